//! Why calls went where they went: the last decisions of a client, kept in memory.

#[cfg(all(test, feature = "loom"))]
mod model;
mod trace;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rpc_core::Attempt;
use serde::Serialize;
use tokio::time::Instant;

pub(crate) use self::trace::{Asked, Trace, attempt};
use crate::balance::{Candidate, Decision, Replay};
use crate::sync::{AtomicU64, Mutex};

/// Decisions that are kept. At a few kilobytes each they take a megabyte or two.
const KEPT: usize = 256;

/// One in so many calls is recorded though nothing happened to it: enough to see what is usual, too
/// few to cost anything.
const SAMPLE: u64 = 64;

/// A decision about one attempt of a call, and what it came from.
pub struct DecisionRecord {
    /// Number of the call, counted by this client from 0. Decisions with the same number are of the
    /// same call.
    pub call: u64,
    /// The method called; very long names are cut.
    pub method: String,
    /// When it was made.
    pub at: Instant,
    /// Why it was recorded.
    pub reason: Reason,
    /// Counts the lists that this client has made for its calls, a new one whenever a node, its
    /// connection or its state changes.
    pub list_version: u64,
    /// How long ago the registry confirmed its list; none before the first one.
    pub list_age: Option<Duration>,
    /// Nodes that the policy could choose from, those that the call had tried already included.
    pub usable: usize,
    /// Nodes of the list that it could not choose.
    pub removed: Arc<[Removed]>,
    /// Nodes that the call had tried already.
    pub tried: Vec<SocketAddr>,
    /// How often the call had probed since it was last sent.
    pub probed: u32,
    /// What the policy compared, the lowest cost first: at most 16. Empty if it compares nothing.
    pub candidates: Vec<Candidate>,
    /// What the policy decided.
    pub decision: Decision,
    /// The nodes to which the call or the probes were sent.
    pub nodes: Vec<SocketAddr>,
    /// What came of sending it; none if it was not sent.
    pub outcome: Option<Attempt>,
    replay: Option<Replay>,
}

impl DecisionRecord {
    /// Lets the policy, as it was, decide again: [`DecisionRecord::decision`] comes out. `None` where
    /// too little was kept: of the first attempt of a call that was recorded only because that
    /// attempt failed, of policies that cannot be copied, and of those that look at very many nodes.
    pub fn replay(&self) -> Option<Decision> {
        self.replay.as_ref()?.decide()
    }
}

impl std::fmt::Debug for DecisionRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DecisionRecord")
            .field("call", &self.call)
            .field("method", &self.method)
            .field("reason", &self.reason)
            .field("decision", &self.decision)
            .field("nodes", &self.nodes)
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}

/// Why a decision was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The call asked for it: [`crate::CallOptions::explain`].
    Explained,
    /// The node refused the call because of its load.
    Refused,
    /// The attempt failed, or there was no node to choose.
    Failed,
    /// The call had been tried elsewhere before.
    Repeated,
    /// One in 64 of the other calls.
    Sampled,
}

/// A node of the list that could not be chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// The node.
    pub node: SocketAddr,
    /// What removed it.
    pub filter: Filter,
    /// Why, as far as is known beyond that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What keeps a node of the list from being chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// There is no connection to it.
    NotConnected,
    /// It does not answer while calls wait.
    Silent,
    /// It takes no new calls by its own word.
    Draining,
    /// It failed too often and is left alone for a while.
    Ejected,
}

/// The last decisions of a client.
#[derive(Default)]
pub(crate) struct Decisions {
    /// Gives the calls their numbers.
    calls: AtomicU64,
    /// The newest last.
    kept: Mutex<VecDeque<Arc<DecisionRecord>>>,
}

impl Decisions {
    /// A call begins.
    #[inline]
    pub(crate) fn begin(&self, explained: bool) -> Trace {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        Trace::new(call, explained, call.is_multiple_of(SAMPLE))
    }

    /// Calls begun so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn push(&self, record: DecisionRecord) {
        let record = Arc::new(record);
        let oldest = {
            let mut kept = self.kept.lock();
            let oldest = if kept.len() == KEPT { kept.pop_front() } else { None };
            kept.push_back(record);
            oldest
        };
        // Not while others wait for the lock.
        drop(oldest);
    }

    /// The oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<DecisionRecord>> {
        self.kept.lock().iter().cloned().collect()
    }
}
