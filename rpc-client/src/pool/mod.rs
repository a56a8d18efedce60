//! Channels to the nodes of the registry.
//!
//! One task, the [`keeper`], owns the nodes: it merges what the registry says with what the
//! connections show, and publishes the result as one [`Snapshot`]. Calls read snapshots only.

mod connector;
mod keeper;
mod probe;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;
use rpc_core::registry::Registry;
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;

pub(crate) use self::probe::Probes;
use crate::ClientConfig;
use crate::balance::{Decision, Event, NodeId, Policy, Random, Recorded, record};
use crate::decisions::Asked;
use crate::report::Reporter;
use crate::snapshot::{Snapshot, SnapshotView, Usable};

/// Channels to the nodes of the registry, and the policy that chooses among them. Dropping it
/// closes all of them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    /// None once the pool is closed.
    keeper: Mutex<Option<AbortOnDropHandle<()>>>,
}

struct Shared {
    /// Counts published snapshots.
    published: watch::Sender<u64>,
    /// A breaker changed its mind on the path of a call.
    poke: Notify,
    chooser: Mutex<Chooser>,
    /// What happens to calls is told to the policy.
    observes: bool,
    /// Probes under way.
    probing: AtomicUsize,
}

/// All that a choice takes, behind one lock: each further one would cost every call as much.
struct Chooser {
    policy: Box<dyn Policy>,
    random: Random,
    snapshot: Arc<Snapshot>,
}

/// What a policy decided about a call.
pub(crate) enum Chosen {
    /// To send it.
    Node(Choice),
    /// To learn more first, and to be asked again.
    Probe(Probes),
    /// No node is left to try.
    None,
}

/// The node chosen for a call.
pub(crate) struct Choice {
    pub(crate) usable: Arc<Usable>,
    /// Its place among the usable nodes of the snapshot with this version.
    pub(crate) index: usize,
    pub(crate) version: u64,
    /// The node is to refuse if it expects to take longer, in microseconds.
    pub(crate) bound: Option<f64>,
    /// There is no other usable node.
    pub(crate) alone: bool,
}

impl Pool {
    /// Follows `registry` until dropped.
    pub(crate) fn new(
        registry: &Arc<dyn Registry>,
        policy: Box<dyn Policy>,
        config: ClientConfig,
        reporter: Option<Arc<Reporter>>,
        seed: u64,
    ) -> Self {
        let shared = Arc::new(Shared {
            published: watch::Sender::new(0),
            poke: Notify::new(),
            observes: policy.observes(),
            chooser: Mutex::new(Chooser { policy, random: Random::new(seed), snapshot: Arc::default() }),
            probing: AtomicUsize::new(0),
        });
        let keeper = keeper::Keeper::new(shared.clone(), registry.clone(), config, reporter);
        let keeper = AbortOnDropHandle::new(tokio::spawn(keeper.run()));
        Self { shared, keeper: Mutex::new(Some(keeper)) }
    }

    /// Gives up all nodes. Calls in flight keep their connections until they are answered.
    pub(crate) async fn close(&self) {
        let keeper = self.keeper.lock().take();
        if let Some(keeper) = keeper {
            keeper.abort();
            // Once it has ended it publishes nothing any more.
            let _ = keeper.await;
        }
        self.shared.set_snapshot(Snapshot { known: true, ..Snapshot::default() });
        self.shared.published.send_modify(|count| *count += 1);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.keeper.lock().is_none()
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.snapshot()
    }

    /// Told of every snapshot published from now on.
    pub(crate) fn published(&self) -> watch::Receiver<u64> {
        self.shared.published.subscribe()
    }

    /// Chooses a node for a call.
    #[inline]
    pub(crate) fn choose(&self, asked: &Asked<'_>) -> Chosen {
        let Chooser { policy, random, snapshot } = &mut *self.shared.chooser.lock();
        let view = SnapshotView { usable: &snapshot.usable, now: asked.now };
        let decision = policy.decide(&view, &asked.pick(random.next_u64()));
        chosen(snapshot, asked, decision)
    }

    /// The same, with the snapshot and all that the policy went by.
    pub(crate) fn choose_and_record(&self, asked: &Asked<'_>) -> (Chosen, Arc<Snapshot>, Recorded) {
        let Chooser { policy, random, snapshot } = &mut *self.shared.chooser.lock();
        let view = SnapshotView { usable: &snapshot.usable, now: asked.now };
        let recorded = record(policy.as_mut(), &view, &asked.pick(random.next_u64()));
        (chosen(snapshot, asked, recorded.decision.clone()), snapshot.clone(), recorded)
    }

    /// Sends probes that nobody waits for.
    pub(crate) fn send_probes(&self, probes: Probes) {
        self.shared.send_probes(probes);
    }

    /// Returns at the next snapshot; after `tried`, at the first that has a usable node which is not
    /// among these.
    pub(crate) async fn news(&self, published: &mut watch::Receiver<u64>, tried: Option<&Vec<NodeId>>) {
        while published.changed().await.is_ok() {
            let is_new = |tried: &Vec<NodeId>| self.snapshot().usable.iter().any(|u| !tried.contains(&u.node.id));
            if tried.is_none_or(is_new) {
                return;
            }
        }
    }

    /// Sends probes and waits as long as the policy wants.
    pub(crate) async fn probe(&self, probes: Probes) {
        self.shared.probe(probes).await;
    }

    /// Asks a node for a sign of life: whether it gave one. `None` if it was not asked.
    pub(crate) async fn ask(&self, usable: &Usable, method_hash: u32) -> Option<bool> {
        self.shared.probe_one(usable, method_hash).await
    }

    /// A breaker changed its mind: the usable nodes are to be determined again.
    pub(crate) fn poke(&self) {
        self.shared.poke.notify_one();
    }

    pub(crate) fn observe(&self, event: &Event<'_>) {
        self.shared.observe(event);
    }

    /// 64 random bits.
    pub(crate) fn random(&self) -> u64 {
        self.shared.random()
    }
}

fn chosen(snapshot: &Snapshot, asked: &Asked<'_>, decision: Decision) -> Chosen {
    match decision {
        Decision::Send { index, bound } => {
            let usable = snapshot.usable[index].clone();
            let alone = snapshot.usable.len() == 1;
            Chosen::Node(Choice { usable, index, version: snapshot.version, bound, alone })
        }
        Decision::Probe { indices, wait_for } if asked.probed < probe::ROUNDS_MAX => {
            let targets = indices.into_iter().map(|index| snapshot.usable[index].clone()).collect();
            Chosen::Probe(Probes { targets, method: asked.method_hash, wait_for })
        }
        Decision::Probe { .. } | Decision::NoNode => Chosen::None,
    }
}

impl Shared {
    fn snapshot(&self) -> Arc<Snapshot> {
        self.chooser.lock().snapshot.clone()
    }

    fn set_snapshot(&self, snapshot: Snapshot) {
        let old = std::mem::replace(&mut self.chooser.lock().snapshot, Arc::new(snapshot));
        // Maybe the last one that has some connections: not while calls wait for the lock.
        drop(old);
    }

    fn random(&self) -> u64 {
        self.chooser.lock().random.next_u64()
    }

    fn observe(&self, event: &Event<'_>) {
        if self.observes {
            self.chooser.lock().policy.observe(event);
        }
    }
}
