//! Channels to the nodes of the registry.
//!
//! One task, the [`keeper`], owns the nodes: it merges what the registry says with what the
//! connections show, and publishes the result as one [`Snapshot`]. Calls read snapshots only.

mod connector;
mod keeper;
mod probe;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rpc_core::registry::Registry;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

pub(crate) use self::probe::Probes;
use crate::ClientConfig;
use crate::balance::{Decision, Event, NodeId, Pick, Policy, Random};
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
    snapshot: ArcSwap<Snapshot>,
    /// Counts published snapshots.
    published: watch::Sender<u64>,
    /// A breaker changed its mind on the path of a call.
    poke: Notify,
    policy: Mutex<Box<dyn Policy>>,
    observes: bool,
    seeds: AtomicU64,
    /// Probes under way.
    probing: AtomicUsize,
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

/// What a call asks for, as far as the choice of a node depends on it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Asked {
    /// The method, hashed.
    pub(crate) method: u32,
    /// The key, hashed.
    pub(crate) key: Option<u64>,
}

/// The node chosen for a call.
pub(crate) struct Choice {
    pub(crate) usable: Arc<Usable>,
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
            snapshot: ArcSwap::default(),
            published: watch::Sender::new(0),
            poke: Notify::new(),
            observes: policy.observes(),
            policy: Mutex::new(policy),
            seeds: AtomicU64::new(seed),
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
        self.shared.snapshot.store(Arc::new(Snapshot { known: true, ..Snapshot::default() }));
        self.shared.published.send_modify(|count| *count += 1);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.keeper.lock().is_none()
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.snapshot.load_full()
    }

    /// Told of every snapshot published from now on.
    pub(crate) fn published(&self) -> watch::Receiver<u64> {
        self.shared.published.subscribe()
    }

    /// Chooses a node for a call that has tried `tried` already, and probed `probed` times since.
    #[inline]
    pub(crate) fn choose(&self, now: Instant, asked: Asked, tried: &[NodeId], probed: u32) -> Chosen {
        let Asked { method, key } = asked;
        let snapshot = self.shared.snapshot.load();
        let view = SnapshotView { usable: &snapshot.usable, now };
        let pick = Pick { method, key, now, seed: self.shared.seed(), excluded: tried, probed };
        let decision = self.shared.policy.lock().decide(&view, &pick);
        match decision {
            Decision::Send { index, bound } => {
                let usable = snapshot.usable[index].clone();
                Chosen::Node(Choice { usable, bound, alone: snapshot.usable.len() == 1 })
            }
            Decision::Probe { indices, wait_for } if probed < probe::ROUNDS_MAX => {
                let targets = indices.into_iter().map(|index| snapshot.usable[index].clone()).collect();
                Chosen::Probe(Probes { targets, method, wait_for })
            }
            Decision::Probe { .. } | Decision::NoNode => Chosen::None,
        }
    }

    /// Sends probes and waits as long as the policy wants.
    pub(crate) async fn probe(&self, probes: Probes) {
        self.shared.probe(probes).await;
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
        self.shared.seed()
    }
}

impl Shared {
    fn seed(&self) -> u64 {
        Random::new(self.seeds.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed)).next_u64()
    }

    fn observe(&self, event: &Event<'_>) {
        if self.observes {
            self.policy.lock().observe(event);
        }
    }
}
