//! Recording the decisions of one call.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpc_core::Attempt;
use tokio::time::Instant;

use super::{DecisionRecord, Reason};
use crate::balance::{Decision, NodeId, Pick, Recorded};
use crate::client::Inner;
use crate::pool::{Choice, Chosen};
use crate::snapshot::Snapshot;

/// Longer names of methods are cut.
const METHOD_BYTES_MAX: usize = 128;

/// Longer outcomes of attempts are cut.
const OUTCOME_BYTES_MAX: usize = 512;

/// Decisions that are recorded of a call that did not ask for it: one that nobody takes must not drive
/// out all others.
const RECORDS_MAX: u32 = 16;

/// What is kept of a call while it goes on. Next to nothing, unless its decisions are recorded.
#[derive(Default)]
pub(crate) struct Trace {
    pub(super) call: u64,
    explained: bool,
    /// All its decisions are recorded, not only those that follow a failure.
    whole: bool,
    recorded: u32,
    /// There was no node to choose, which is recorded once until there is.
    stuck: bool,
    /// The decision whose attempt is under way.
    open: Option<Box<DecisionRecord>>,
}

/// What a policy is asked.
pub(crate) struct Asked<'a> {
    pub(crate) method: &'a str,
    pub(crate) method_hash: u32,
    pub(crate) key: Option<u64>,
    pub(crate) now: Instant,
    /// Nodes that the call has tried already.
    pub(crate) tried: &'a [NodeId],
    pub(crate) probed: u32,
}

impl<'a> Asked<'a> {
    /// The same for a policy, with 64 random bits.
    #[inline]
    pub(crate) fn pick(&self, seed: u64) -> Pick<'a> {
        let Self { method_hash: method, key, now, tried: excluded, probed, .. } = *self;
        Pick { method, key, now, seed, excluded, probed }
    }
}

impl Trace {
    #[inline]
    pub(super) fn new(call: u64, explained: bool, sampled: bool) -> Self {
        Self { call, explained, whole: explained || sampled, ..Self::default() }
    }

    /// Whether one more decision may be recorded.
    fn has_room(&mut self) -> bool {
        self.recorded = self.recorded.saturating_add(1);
        self.explained || self.recorded <= RECORDS_MAX
    }

    /// Why a decision is recorded after which nothing went wrong.
    fn reason(&self, tried: &[SocketAddr]) -> Reason {
        match (self.explained, tried.is_empty()) {
            (true, _) => Reason::Explained,
            (false, false) => Reason::Repeated,
            (false, true) => Reason::Sampled,
        }
    }
}

impl Inner {
    /// Chooses a node, and records how if this call is to be recorded.
    #[inline]
    pub(crate) fn choose(&self, asked: &Asked<'_>, trace: &mut Trace) -> Chosen {
        if (trace.whole || !asked.tried.is_empty()) && trace.has_room() {
            return self.choose_and_record(asked, trace);
        }
        self.pool.choose(asked)
    }

    #[cold]
    fn choose_and_record(&self, asked: &Asked<'_>, trace: &mut Trace) -> Chosen {
        let (chosen, snapshot, recorded) = self.pool.choose_and_record(asked);
        let Recorded { decision, candidates, replay } = recorded;
        let mut record = self.record(asked, trace, &snapshot, decision);
        (record.candidates, record.replay) = (candidates, replay);
        match &chosen {
            Chosen::Node(_) => {
                trace.stuck = false;
                trace.open = Some(Box::new(record));
            }
            Chosen::Probe(_) => self.decisions.push(record),
            Chosen::None if std::mem::replace(&mut trace.stuck, true) => {}
            Chosen::None => self.decisions.push(self.failed(record, trace)),
        }
        chosen
    }

    /// A record with all that is known besides the policy's own account.
    fn record(&self, asked: &Asked<'_>, trace: &Trace, snapshot: &Snapshot, decision: Decision) -> DecisionRecord {
        let tried = snapshot.all.iter().filter(|listed| asked.tried.contains(&listed.node.id));
        let tried: Vec<SocketAddr> = tried.map(|listed| listed.node.addr).collect();
        let addr = |index: &usize| snapshot.usable.get(*index).map(|usable| usable.node.addr);
        let nodes = match &decision {
            Decision::Send { index, .. } => addr(index).into_iter().collect(),
            Decision::Probe { indices, .. } => indices.iter().filter_map(addr).collect(),
            Decision::NoNode => Vec::new(),
        };
        let list_age = self.list_age(asked.now);
        DecisionRecord {
            call: trace.call,
            method: asked.method[..asked.method.floor_char_boundary(METHOD_BYTES_MAX)].to_owned(),
            at: asked.now,
            reason: trace.reason(&tried),
            list_version: snapshot.version,
            list_age,
            usable: snapshot.usable.len(),
            removed: snapshot.removed.clone(),
            tried,
            probed: asked.probed,
            candidates: Vec::new(),
            decision,
            nodes,
            outcome: None,
            replay: None,
        }
    }

    fn failed(&self, record: DecisionRecord, trace: &Trace) -> DecisionRecord {
        let reason = if trace.explained { Reason::Explained } else { Reason::Failed };
        DecisionRecord { reason, ..record }
    }

    /// The call was answered.
    #[inline]
    pub(crate) fn record_answer(&self, trace: &mut Trace, node: SocketAddr, sent: Instant, received: Instant) {
        if let Some(record) = trace.open.take() {
            self.record_outcome(*record, attempt(node, received.saturating_duration_since(sent), "ok"));
        }
    }

    #[cold]
    fn record_outcome(&self, record: DecisionRecord, outcome: Attempt) {
        self.decisions.push(DecisionRecord { outcome: Some(outcome), ..record });
    }

    /// An attempt failed. Of a call that is not recorded as a whole it becomes known only now that it
    /// is worth a record, which then lacks what the policy went by.
    #[cold]
    pub(crate) fn record_failure(
        &self,
        trace: &mut Trace,
        asked: &Asked<'_>,
        choice: &Choice,
        outcome: Attempt,
        refused: bool,
    ) {
        let record = match trace.open.take() {
            Some(record) => *record,
            None if !trace.has_room() => return,
            None => {
                let snapshot = self.pool.snapshot();
                let decision = Decision::Send { index: choice.index, bound: choice.bound };
                let mut record = self.record(asked, trace, &snapshot, decision);
                record.nodes = vec![choice.usable.node.addr];
                if snapshot.version != choice.version {
                    record.list_version = choice.version;
                    record.removed = Arc::default();
                }
                record
            }
        };
        let record = self.failed(record, trace);
        let refused = refused && record.reason == Reason::Failed;
        let reason = if refused { Reason::Refused } else { record.reason };
        self.record_outcome(DecisionRecord { reason, ..record }, outcome);
    }

    /// A call fails because there is no node for it.
    pub(crate) fn record_no_node(&self, trace: &mut Trace, asked: &Asked<'_>, snapshot: &Snapshot) {
        if !std::mem::replace(&mut trace.stuck, true) {
            let record = self.record(asked, trace, snapshot, Decision::NoNode);
            self.decisions.push(self.failed(record, trace));
        }
    }
}

/// One attempt, for people and programs. What the node said is cut if it is long: attempts are kept.
pub(crate) fn attempt(node: SocketAddr, elapsed: Duration, outcome: &str) -> Attempt {
    let outcome = &outcome[..outcome.floor_char_boundary(OUTCOME_BYTES_MAX)];
    let elapsed_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
    Attempt { node, elapsed_us, outcome: outcome.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_said_at_length_is_cut_where_it_is_kept() {
        let told = attempt(([127, 0, 0, 1], 1).into(), Duration::ZERO, &"ü".repeat(1 << 20));
        assert_eq!(told.outcome, "ü".repeat(OUTCOME_BYTES_MAX / 2));
    }
}
