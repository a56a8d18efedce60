//! A node as this client sees it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rpc_core::registry::{Member, RESPONSE_TIME_VALID};
use rpc_core::{LoadReport, NodeState};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::balance::{NodeId, NodeView};
use crate::breaker::{Admission, Breaker, BreakerState};
use crate::node_load::NodeLoad;
use crate::snapshot::Usable;

/// A node as this client sees it: what the registry says, and what its own calls have shown. A new
/// incarnation at the same address is another node.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) addr: SocketAddr,
    /// The incarnation in the registry, if there is one.
    pub(crate) incarnation: Option<String>,
    begun: AtomicU32,
    /// Calls that have ended, counted under the lock of `state`: ending a call takes that anyway.
    ended: AtomicU32,
    state: Mutex<State>,
    /// The breaker lets every call pass, as it nearly always does: then no call has to ask it.
    healthy: AtomicBool,
    /// It said goaway.
    pub(crate) left: AtomicBool,
    /// The connectors need not wait any longer.
    pub(crate) hurry: Notify,
}

struct State {
    load: NodeLoad,
    breaker: Breaker,
    response_time_us: u64,
    changed_at: Instant,
    /// When the response time in the registry is out of date.
    valid_until: Instant,
    weight: u32,
    draining: bool,
    /// Another incarnation than the listed one is connected: what the list says of the state is about
    /// a predecessor.
    succeeded: bool,
    /// The newest load report and when it came.
    report: Option<(LoadReport, Instant)>,
}

impl Node {
    pub(crate) fn new(id: NodeId, member: &Member, now: Instant) -> Self {
        let incarnation = (!member.record.id.is_empty()).then(|| member.record.id.clone());
        let node = Self {
            id,
            addr: member.addr,
            incarnation,
            begun: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            state: Mutex::new(State {
                load: NodeLoad::new(),
                breaker: Breaker::new(now),
                response_time_us: 0,
                changed_at: now,
                valid_until: now,
                weight: 0,
                draining: false,
                succeeded: false,
                report: None,
            }),
            healthy: AtomicBool::new(true),
            left: AtomicBool::new(false),
            hurry: Notify::new(),
        };
        node.update(member);
        node
    }

    /// Takes over what the registry says now. `true` if that changes who may be called.
    pub(crate) fn update(&self, member: &Member) -> bool {
        let mut state = self.state.lock();
        state.response_time_us = member.record.response_time_us;
        state.changed_at = member.changed_at;
        state.valid_until = member.changed_at + RESPONSE_TIME_VALID;
        state.weight = member.record.weight;
        let draining = member.record.state == NodeState::Draining;
        std::mem::replace(&mut state.draining, draining) != draining
    }

    /// Whether it takes no new calls by its own word, in the registry or on a connection.
    pub(crate) fn is_leaving(&self) -> bool {
        let state = self.state.lock();
        self.left.load(Ordering::Relaxed) || (state.draining && !state.succeeded)
    }

    /// It said goaway, and another incarnation is connected at its address.
    pub(crate) fn succeeded(&self) {
        self.state.lock().succeeded = true;
        self.left.store(false, Ordering::Relaxed);
    }

    pub(crate) fn in_flight(&self) -> u32 {
        // In this order: none has ended that is not seen to have begun.
        let ended = self.ended.load(Ordering::Acquire);
        self.begun.load(Ordering::Relaxed).wrapping_sub(ended)
    }

    /// What a policy gets to see.
    pub(crate) fn view(&self, now: Instant, usable: &Usable) -> NodeView {
        let state = self.state.lock();
        // A comparison costs a tenth of a subtraction, and every pick does this twice.
        let old = now > state.valid_until;
        NodeView {
            id: self.id,
            addr: self.addr,
            weight: state.weight,
            in_flight: self.in_flight(),
            latency_us: state.load.latency_us(now),
            registry_us: if old { 0 } else { state.response_time_us },
            failure: state.load.failure(now),
            reports: usable.reports,
            report: state.report.map(|(report, at)| (report, now.saturating_duration_since(at))),
            usable_for: now.saturating_duration_since(usable.since),
        }
    }

    /// What an answer usually takes: by its own account at its present load, or else to this client, if it has had
    /// some, which is an estimate on the high side.
    pub(crate) fn usual_latency(&self, now: Instant) -> Option<Duration> {
        let state = self.state.lock();
        let reported_us = state.report.map(|(report, _)| report.latency_us).filter(|us| *us > 0.0);
        let us = reported_us.or_else(|| state.load.latency_us(now))?;
        Duration::try_from_secs_f64(us / 1e6).ok()
    }

    /// A load report came.
    pub(crate) fn reported(&self, now: Instant, report: LoadReport) {
        self.state.lock().report = Some((report, now));
    }

    /// Begins a call. `None` if the node is being tried out and has its one call already.
    pub(crate) fn begin(&self, now: Instant) -> Option<InFlight<'_>> {
        if self.healthy.load(Ordering::Relaxed) {
            return Some(self.in_flight_with(Admission::Regular));
        }
        let admission = self.state.lock().breaker.admit(now)?;
        Some(self.in_flight_with(admission))
    }

    /// Begins a call whatever the breaker says: there is no better node.
    pub(crate) fn begin_anyway(&self) -> InFlight<'_> {
        self.in_flight_with(Admission::Regular)
    }

    fn in_flight_with(&self, admission: Admission) -> InFlight<'_> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        InFlight { node: self, admission, ended: false }
    }

    pub(crate) fn breaker(&self, now: Instant) -> BreakerState {
        self.state.lock().breaker.state(now)
    }

    pub(crate) fn connected(&self, now: Instant) {
        let mut state = self.state.lock();
        state.breaker.connected();
        self.set_healthy(&state, now);
    }

    pub(crate) fn connect_failed(&self, now: Instant) {
        let mut state = self.state.lock();
        state.breaker.connect_failed(now);
        self.set_healthy(&state, now);
    }

    /// Called under the lock whenever the breaker may have changed its state.
    fn set_healthy(&self, state: &State, now: Instant) {
        self.healthy.store(state.breaker.state(now) == BreakerState::Healthy, Ordering::Relaxed);
    }

    /// The registry's response time at `now`, in microseconds; 0 is unknown.
    pub(crate) fn response_time_us(&self, now: Instant) -> u64 {
        let state = self.state.lock();
        if now > state.valid_until { 0 } else { state.response_time_us }
    }

    /// How long ago the registry's entry last changed.
    pub(crate) fn entry_age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.state.lock().changed_at)
    }
}

/// A call in flight. Dropped without an outcome, it was given up by its caller.
pub(crate) struct InFlight<'a> {
    node: &'a Node,
    admission: Admission,
    ended: bool,
}

/// What the end of a call says about its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A result after this time.
    Answered(Duration),
    /// An error of the application: the node works, but this says nothing about its speed.
    ApplicationError,
    /// The node failed or did not answer in time, after this time.
    Failed(Duration),
}

impl InFlight<'_> {
    /// Called under the lock of the node, once.
    fn count(&self) {
        let ended = self.node.ended.load(Ordering::Relaxed);
        self.node.ended.store(ended.wrapping_add(1), Ordering::Release);
    }

    /// The call ended, maybe with a load report. `true` if the node was ejected by it or let in again.
    pub(crate) fn end(mut self, now: Instant, outcome: Outcome, report: Option<LoadReport>) -> bool {
        self.ended = true;
        let mut state = self.node.state.lock();
        self.count();
        if let Some(report) = report {
            state.report = Some((report, now));
        }
        match outcome {
            Outcome::Answered(latency) => state.load.reply(now, latency, true),
            Outcome::ApplicationError => {}
            Outcome::Failed(latency) => state.load.reply(now, latency, false),
        }
        let changed = state.breaker.outcome(now, self.admission, !matches!(outcome, Outcome::Failed(_)));
        if changed {
            self.node.set_healthy(&state, now);
        }
        changed
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let mut state = self.node.state.lock();
            self.count();
            state.breaker.abandoned(self.admission);
        }
    }
}
