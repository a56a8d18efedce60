//! The node that is expected to answer soonest.

mod entry;
mod hot;
mod reports;
mod settings;
mod usual;

use std::time::Duration;

use tokio::time::Instant;

use self::reports::{Best, FRESH_MIN, Reports};
pub use self::settings::FastestSettings;
use super::places::Places;
use super::sample::{self, Drawn};
use super::{Decision, Event, NodeId, NodeView, Pick, Policy, Score, View, cost};

/// Refusals that may come in a row after quiet times.
const REFUSALS_MAX: f64 = 20.0;

/// Refusals of one call after which a node has to take it.
const REFUSALS_PER_CALL: usize = 2;

/// A node that did not answer a probe is left alone for so long, unless it answers something.
const SILENT_FOR: Duration = Duration::from_millis(250);

/// Silent nodes that are remembered.
const SILENT_MAX: usize = 16;

/// Response times in the registry that differ by less say nothing about which node is the faster:
/// each is the median of a few calls of others. Going by them would send every new client to the
/// same node.
const PRIOR_PRECISION: f64 = 2.0;

/// Weight of a probe in the mean round trip.
const ROUND_TRIP_GAIN: f64 = 0.1;

/// Weight of a call in the share of calls that waited for probes.
const WAITED_GAIN: f64 = 0.05;

/// Calls the node that is expected to answer soonest by its own load reports: its idle time, and
/// how many requests it has for what it can run at once ([`rpc_core::load::expected_us`]). Reports
/// come with replies, and with probes: a call waits for some when too little is known, or when
/// every known node has a queue and a probe costs next to nothing.
///
/// What is known is always a little old, so a call goes out with a bound: a node that is by now
/// much busier than the second best refuses it at once, and it goes there.
///
/// Nodes that send no reports are compared by two random choices: response time, the registry's
/// as long as there is none of our own, times calls in flight.
#[derive(Clone, Debug)]
pub struct Fastest {
    settings: FastestSettings,
    places: Places,
    reports: Reports,
    round_trip_us: Option<f64>,
    refusals_left: f64,
    /// Share of recent calls that waited for probes.
    waited: f64,
    silent: Vec<(NodeId, Instant)>,
}

impl Fastest {
    /// With the default settings.
    pub fn new() -> Self {
        Self::tuned(FastestSettings::default())
    }

    /// With other settings.
    pub fn tuned(settings: FastestSettings) -> Self {
        Self {
            settings,
            places: Places::default(),
            reports: Reports::default(),
            round_trip_us: None,
            refusals_left: REFUSALS_MAX,
            waited: 0.0,
            silent: Vec::new(),
        }
    }

    /// Whether a round trip is below this share of a usual call. It is tried while unknown.
    fn can_wait(&self, share: f64) -> bool {
        match (self.round_trip_us, self.reports.expected_us) {
            (Some(round_trip), Some(expected)) => round_trip < share * expected,
            _ => true,
        }
    }

    /// Whether too little is known to choose.
    fn is_cold(&self, view: &dyn View, pick: &Pick<'_>, best: &Best) -> bool {
        let others = view.len().saturating_sub(self.silent.len().max(pick.excluded.len()));
        best.fresh < others.min(FRESH_MIN)
    }

    fn probe(&self, view: &dyn View, pick: &Pick<'_>, count: usize, wait_for: usize) -> Option<Decision> {
        let mut indices = sample::several(view, pick, &mut pick.random(), count);
        if !self.silent.is_empty() {
            indices.retain(|&index| !self.is_silent(view.id(index), pick.now));
        }
        let wait_for = wait_for.min(indices.len());
        (!indices.is_empty()).then_some(Decision::Probe { indices, wait_for })
    }

    fn is_silent(&self, node: NodeId, now: Instant) -> bool {
        self.silent.iter().any(|&(silent, until)| silent == node && now < until)
    }

    /// The probes to make before this call is sent, if any.
    fn probe_first(&mut self, view: &dyn View, pick: &Pick<'_>, best: &Best) -> Option<Decision> {
        if pick.probed > 0 {
            return None;
        }
        let settings = self.settings;
        let queues = best.chosen.is_some_and(|chosen| chosen.slowdown > settings.queue);
        let wait = (self.can_wait(settings.cold_round_trip) && self.is_cold(view, pick, best))
            || (queues && self.can_wait(settings.queue_round_trip));
        self.waited += WAITED_GAIN * (f64::from(u8::from(wait)) - self.waited);
        if wait {
            // Not for the last of them: it may be a node that hangs.
            return self.probe(view, pick, settings.probes, settings.probes.saturating_sub(1).max(1));
        }
        let chance = settings.background_probes * (1.0 - self.waited);
        let mut random = pick.random();
        // The numbers that choose the node must not be the one that decides.
        if random.unit() < chance {
            let pick = Pick { seed: random.next_u64(), ..*pick };
            return self.probe(view, &pick, 1, 0);
        }
        None
    }

    fn bound(&mut self, second_us: f64, pick: &Pick<'_>) -> Option<f64> {
        if pick.excluded.is_empty() {
            self.refusals_left = (self.refusals_left + self.settings.refusals).min(REFUSALS_MAX);
        }
        if pick.excluded.len() >= REFUSALS_PER_CALL || self.refusals_left < 1.0 || self.settings.refusals == 0.0 {
            return None;
        }
        let bound = self.settings.bound * second_us + self.round_trip_us.unwrap_or(0.0);
        bound.is_finite().then_some(bound)
    }

    fn heard_of(&mut self, node: NodeId) {
        self.silent.retain(|(silent, _)| *silent != node);
    }
}

impl Default for Fastest {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy for Fastest {
    fn pick(&mut self, view: &dyn View, pick: &Pick<'_>) -> Option<usize> {
        match self.decide(view, &Pick { probed: 1, ..*pick }) {
            Decision::Send { index, .. } => Some(index),
            Decision::Probe { .. } | Decision::NoNode => None,
        }
    }

    fn decide(&mut self, view: &dyn View, pick: &Pick<'_>) -> Decision {
        let send = |index| Decision::Send { index, bound: None };
        let (a, b) = match sample::two(view, pick, &mut pick.random()) {
            Drawn::Nothing => return Decision::NoNode,
            Drawn::One(index) => return Decision::Send { index, bound: None },
            Drawn::Two(a, b) => (a, b),
        };
        if !(view.reports(a) && view.reports(b)) {
            return send(better(view, a, b));
        }
        if !self.silent.is_empty() {
            self.silent.retain(|&(_, until)| pick.now < until);
        }
        let best = self.reports.best(view, pick, &self.places, &self.settings);
        if let Some(probe) = self.probe_first(view, pick, &best) {
            return probe;
        }
        if let Some(chosen) = best.chosen {
            return Decision::Send { index: chosen.index, bound: self.bound(best.second_us, pick) };
        }
        match (self.is_silent(view.id(a), pick.now), self.is_silent(view.id(b), pick.now)) {
            (true, false) => send(b),
            (false, true) => send(a),
            (false, false) | (true, true) => send(better(view, a, b)),
        }
    }

    fn scores(&self, view: &dyn View, pick: &Pick<'_>) -> Vec<Score> {
        let Drawn::Two(a, b) = sample::two(view, pick, &mut pick.random()) else { return Vec::new() };
        let reports = if view.reports(a) && view.reports(b) {
            self.reports.scores(view, pick, &self.places, &self.settings)
        } else {
            Vec::new()
        };
        if !reports.is_empty() {
            return reports;
        }
        let (node_a, node_b) = (view.node(a), view.node(b));
        let (latency_a, latency_b) = latencies(&node_a, &node_b);
        vec![cost::score(a, &node_a, latency_a), cost::score(b, &node_b, latency_b)]
    }

    fn observe(&mut self, event: &Event<'_>) {
        match event {
            Event::Sent { node, .. } => self.reports.sent(*node),
            Event::Reply { node, now, report, .. } => match report {
                Some(report) => {
                    self.heard_of(*node);
                    self.reports.add(*node, report, *now);
                }
                None => self.reports.look_again(*node),
            },
            Event::Refused { node, now, report } => {
                self.refusals_left = (self.refusals_left - 1.0).max(0.0);
                self.heard_of(*node);
                if let Some(report) = report {
                    self.reports.add(*node, report, *now);
                }
            }
            Event::ProbeAnswer { node, now, round_trip, report } => {
                let us = round_trip.as_secs_f64() * 1e6;
                self.round_trip_us = Some(self.round_trip_us.map_or(us, |mean| mean + ROUND_TRIP_GAIN * (us - mean)));
                self.heard_of(*node);
                self.reports.add(*node, report, *now);
            }
            Event::ProbeSilent { node, now } => {
                self.heard_of(*node);
                self.reports.remove(*node);
                if self.silent.len() < SILENT_MAX {
                    self.silent.push((*node, *now + SILENT_FOR));
                }
            }
            Event::Members { nodes } => {
                self.places.follow(nodes);
                self.reports.follow(&self.places);
                self.silent.retain(|(node, _)| self.places.has(*node));
            }
        }
    }

    fn observes(&self) -> bool {
        true
    }

    fn copy(&self) -> Option<Box<dyn Policy>> {
        Some(Box::new(self.clone()))
    }
}

/// The better of two nodes by what this client knows itself.
fn better(view: &dyn View, a: usize, b: usize) -> usize {
    if cheaper(&view.node(b), &view.node(a)) { b } else { a }
}

fn cheaper(a: &NodeView, b: &NodeView) -> bool {
    let (latency_a, latency_b) = latencies(a, b);
    cost::expected(a, latency_a) < cost::expected(b, latency_b)
}

/// A node that this client has not called yet is as fast as others found it, within
/// [`PRIOR_PRECISION`], or as fast as the other one.
fn latencies(a: &NodeView, b: &NodeView) -> (f64, f64) {
    let known_a = cost::latency_us(a.latency_us, a.registry_us);
    let known_b = cost::latency_us(b.latency_us, b.registry_us);
    let (latency_a, latency_b) = (known_a.or(known_b).unwrap_or(1.0), known_b.or(known_a).unwrap_or(1.0));
    let measured = a.latency_us.is_some() && b.latency_us.is_some();
    if !measured && latency_a.max(latency_b) < PRIOR_PRECISION * latency_a.min(latency_b) {
        let both = latency_a.min(latency_b);
        return (both, both);
    }
    (latency_a, latency_b)
}

#[cfg(test)]
mod tests;
