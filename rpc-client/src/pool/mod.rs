//! Channels to the nodes of the registry.
//!
//! One task, the [`keeper`], owns the nodes: it merges what the registry says with what the
//! connections show, and publishes the result as one [`Snapshot`]. Calls read snapshots only.

mod connector;
mod keeper;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rpc_core::registry::Registry;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::ClientConfig;
use crate::balance::{Decision, Event, NodeId, Pick, Policy, Random};
use crate::report::Reporter;
use crate::snapshot::{Snapshot, SnapshotView, Usable};

/// Times that a policy may ask for probes before it has to choose.
const PROBES_MAX: u32 = 4;

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
}

/// What was chosen for a call.
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

    /// Chooses a node for a call that has tried `tried` already; `None` if none is left.
    #[inline]
    pub(crate) fn choose(&self, now: Instant, key: Option<u64>, tried: &[NodeId]) -> Option<Choice> {
        let snapshot = self.shared.snapshot.load();
        let view = SnapshotView { usable: &snapshot.usable, now };
        let mut pick = Pick { key, now, seed: self.shared.seed(), excluded: tried, probed: 0 };
        let mut policy = self.shared.policy.lock();
        while pick.probed <= PROBES_MAX {
            match policy.decide(&view, &pick) {
                Decision::Send { index, bound } => {
                    let usable = snapshot.usable[index].clone();
                    return Some(Choice { usable, bound, alone: snapshot.usable.len() == 1 });
                }
                // No node's view says that it reports, so there is no answer to wait for.
                Decision::Probe { .. } => pick.probed += 1,
                Decision::NoNode => return None,
            }
        }
        None
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
