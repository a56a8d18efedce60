//! Recording all that a decision depends on, so that it can be explained and made again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Decision, NodeId, NodeView, Pick, Policy, Score, View};

/// A decision that looked at more nodes is recorded without replay: a record is to stay small.
const NODES_MAX: usize = 64;

/// Scores that are kept, those with the lowest costs.
const SCORES_MAX: usize = 16;

/// A node that was compared, as it was, and its score.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The node as the policy saw it.
    pub node: NodeView,
    /// Its score.
    pub score: Score,
}

/// A decision and what it came from.
pub(crate) struct Recorded {
    pub(crate) decision: Decision,
    /// The lowest cost first; empty if the policy compares nothing.
    pub(crate) candidates: Vec<Candidate>,
    /// None if the policy cannot be copied, or looked at too many nodes.
    pub(crate) replay: Option<Replay>,
}

/// Lets `policy` decide and keeps what it went by.
pub(crate) fn record(policy: &mut dyn Policy, view: &dyn View, pick: &Pick<'_>) -> Recorded {
    let reading = Reading { view, read: RefCell::default() };
    let mut scores = policy.scores(&reading, pick);
    let before = policy.copy();
    let decision = policy.decide(&reading, pick);
    scores.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    scores.truncate(SCORES_MAX);
    let candidates = scores.into_iter().map(|score| Candidate { node: reading.node(score.index), score }).collect();
    let nodes = reading.read.into_inner();
    let replay = before.filter(|_| nodes.len() <= NODES_MAX).map(|policy| Replay {
        policy: Mutex::new(policy),
        nodes,
        len: view.len(),
        method: pick.method,
        key: pick.key,
        now: pick.now,
        seed: pick.seed,
        excluded: pick.excluded.into(),
        probed: pick.probed,
    });
    Recorded { decision, candidates, replay }
}

/// A view that keeps what was read of it. A node that is read twice looks the same both times.
struct Reading<'a> {
    view: &'a dyn View,
    read: RefCell<BTreeMap<usize, NodeView>>,
}

impl View for Reading<'_> {
    fn len(&self) -> usize {
        self.view.len()
    }

    fn node(&self, index: usize) -> NodeView {
        *self.read.borrow_mut().entry(index).or_insert_with(|| self.view.node(index))
    }
}

/// All that a decision depended on: the policy as it was, the nodes that it looked at, and what it
/// was asked.
pub(crate) struct Replay {
    policy: Mutex<Box<dyn Policy>>,
    nodes: BTreeMap<usize, NodeView>,
    /// Nodes that there were to look at.
    len: usize,
    method: u32,
    key: Option<u64>,
    now: Instant,
    seed: u64,
    excluded: Box<[NodeId]>,
    probed: u32,
}

impl Replay {
    /// Decides again: the same, as a policy depends on nothing else. `None` if it looks at a node
    /// that it did not look at before, which would be a defect of the policy.
    pub(crate) fn decide(&self) -> Option<Decision> {
        let mut policy = self.policy.lock().copy()?;
        let view = Remembered { nodes: &self.nodes, len: self.len, missed: Cell::new(false) };
        let Self { method, key, now, seed, probed, .. } = *self;
        let decision = policy.decide(&view, &Pick { method, key, now, seed, excluded: &self.excluded, probed });
        (!view.missed.get()).then_some(decision)
    }
}

/// The nodes that were looked at.
struct Remembered<'a> {
    nodes: &'a BTreeMap<usize, NodeView>,
    len: usize,
    /// Another one was looked at.
    missed: Cell<bool>,
}

impl View for Remembered<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn node(&self, index: usize) -> NodeView {
        if let Some(node) = self.nodes.get(&index) {
            return *node;
        }
        self.missed.set(true);
        NodeView {
            id: NodeId(u64::MAX),
            addr: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            weight: 0,
            in_flight: 0,
            latency_us: None,
            registry_us: 0,
            failure: 0.0,
            reports: false,
            report: None,
            usable_for: Duration::ZERO,
        }
    }
}
