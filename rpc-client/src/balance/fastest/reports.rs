//! The load reports that [`super::Fastest`] compares.

use std::time::Duration;

use rpc_core::load::{LoadReport, expected_us};
use tokio::time::Instant;

use super::FastestSettings;
use super::usual::{Method, Usual};
use crate::balance::places::Places;
use crate::balance::{NodeId, Pick, Random, Score, View};

/// Reports kept: the most recent ones, one a node. More cost time on every call and gain nothing.
const REPORTS_MAX: usize = 16;

/// An older report says too little about a node to call it.
const AGE_MAX: Duration = Duration::from_secs(5);

/// Weight of a report in its node's mean number of requests in flight.
const IN_FLIGHT_GAIN: f64 = 0.1;

/// Weight of a report in the means over all nodes.
const FLEET_GAIN: f64 = 0.02;

/// Longest idle time that is believed, in microseconds.
const SERVICE_US_MAX: f64 = 1e12;

/// The most recent reports, and means over all nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports {
    entries: Vec<Entry>,
    usual: Usual,
    /// Mean expected time, in microseconds.
    pub(super) expected_us: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    node: NodeId,
    report: LoadReport,
    /// How long which method takes there.
    service: Option<(Method, f64)>,
    at: Instant,
    /// Calls sent there since.
    sent: f64,
    mean_in_flight: f64,
    /// What the view said about the node, read again after each report.
    seen: Option<Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    index: usize,
    weight: f64,
    failure: f64,
}

/// A node and what a call to it is expected to take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scored {
    pub(super) node: NodeId,
    pub(super) index: usize,
    pub(super) expected_us: f64,
    /// What it would take if the node were idle.
    pub(super) idle_us: f64,
}

/// The two nodes with the lowest expected times.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Best {
    pub(super) first: Option<Scored>,
    pub(super) second: Option<Scored>,
}

impl Best {
    fn consider(&mut self, scored: Option<Scored>) {
        let Some(scored) = scored else { return };
        if self.first.is_none_or(|b| scored.expected_us < b.expected_us) {
            self.second = self.first;
            self.first = Some(scored);
        } else if self.second.is_none_or(|b| scored.expected_us < b.expected_us) {
            self.second = Some(scored);
        }
    }
}

impl Reports {
    /// A report arrived.
    pub(super) fn add(&mut self, node: NodeId, report: &LoadReport, at: Instant) {
        let report = sane(report);
        let in_flight = f64::from(report.in_flight);
        let mut service = None;
        if report.service_us > 0.0 {
            service = Some((self.usual.learn(report.method, report.service_us), report.service_us));
            let us = report.expected_us().min(SERVICE_US_MAX);
            self.expected_us = Some(self.expected_us.map_or(us, |mean| mean + FLEET_GAIN * (us - mean)));
        }
        let fresh = Entry { node, report, service, at, sent: 0.0, mean_in_flight: in_flight, seen: None };
        if let Some(entry) = self.entries.iter_mut().find(|e| e.node == node) {
            let mean_in_flight = entry.mean_in_flight + IN_FLIGHT_GAIN * (in_flight - entry.mean_in_flight);
            // It may have answered other methods only.
            let service = service.or(entry.service);
            *entry = Entry { mean_in_flight, service, ..fresh };
        } else if self.entries.len() < REPORTS_MAX {
            self.entries.push(fresh);
        } else if let Some(oldest) = self.entries.iter_mut().min_by_key(|e| e.at) {
            *oldest = fresh;
        }
    }

    /// A call was sent.
    pub(super) fn sent(&mut self, node: NodeId) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.node == node) {
            entry.sent += 1.0;
        }
    }

    /// Something else changed about a node, such as its failures.
    pub(super) fn look_again(&mut self, node: NodeId) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.node == node) {
            entry.seen = None;
        }
    }

    /// What is known of a node is void.
    pub(super) fn remove(&mut self, node: NodeId) {
        self.entries.retain(|e| e.node != node);
    }

    /// The membership changed.
    pub(super) fn follow(&mut self, places: &Places) {
        self.entries.retain(|e| places.has(e.node));
        self.entries.iter_mut().for_each(|e| e.seen = None);
    }

    /// How many nodes that may be chosen have a report younger than `age`.
    pub(super) fn younger_than(&self, age: Duration, pick: &Pick<'_>) -> usize {
        let young = |e: &&Entry| pick.now.saturating_duration_since(e.at) < age && !pick.is_excluded(e.node);
        self.entries.iter().filter(young).count()
    }

    /// The nodes with the lowest expected times.
    pub(super) fn best(
        &mut self,
        view: &dyn View,
        pick: &Pick<'_>,
        places: &Places,
        settings: &FastestSettings,
    ) -> Best {
        self.entries.retain(|e| pick.now.saturating_duration_since(e.at) <= AGE_MAX);
        // Of a node that has answered nothing yet nothing else is known.
        let usual_us = self.usual.of(pick.method).unwrap_or(1.0);
        let usual = &self.usual;
        let mut scored = [None; REPORTS_MAX];
        let mut best = Best::default();
        for (entry, scored) in self.entries.iter_mut().zip(&mut scored) {
            if pick.is_excluded(entry.node) {
                continue;
            }
            let Some(seen) = entry.look(view, places) else { continue };
            let idle_us = entry.idle_us(usual, pick.method, usual_us);
            *scored = Some(entry.score(seen, pick.now, idle_us, settings));
            best.consider(*scored);
        }
        let Some(first) = best.first else { return best };
        // The numbers that draw the nodes to compare must not be those that break a tie.
        let mut random = Random::new(!pick.seed);
        let limit = first.expected_us * (1.0 + settings.tie);
        let mut equals = 0;
        let mut chosen = first;
        for scored in scored.into_iter().flatten().filter(|s| s.expected_us <= limit) {
            equals += 1;
            if random.below(equals) == 0 {
                chosen = scored;
            }
        }
        if chosen.node != first.node {
            best = Best { first: Some(chosen), second: Some(first) };
        }
        best
    }
}

impl Reports {
    /// What [`Reports::best`] compares, with what it is made from.
    pub(super) fn scores(
        &self,
        view: &dyn View,
        pick: &Pick<'_>,
        places: &Places,
        settings: &FastestSettings,
    ) -> Vec<Score> {
        let usual_us = self.usual.of(pick.method).unwrap_or(1.0);
        let score = |entry: &Entry| {
            let seen = entry.find(view, places)?;
            let idle_us = entry.idle_us(&self.usual, pick.method, usual_us);
            let scored = entry.score(seen, pick.now, idle_us, settings);
            let terms = vec![
                ("idle_us", idle_us),
                ("in_flight", entry.in_flight(pick.now, idle_us, settings)),
                ("reported_in_flight", f64::from(entry.report.in_flight)),
                ("sent_since", entry.sent),
                ("age_us", pick.now.saturating_duration_since(entry.at).as_secs_f64() * 1e6),
                ("concurrency", entry.report.concurrency),
                ("failure", seen.failure.max(entry.report.errors)),
                ("weight", 100.0 * seen.weight),
            ];
            Some(Score { index: scored.index, cost: scored.expected_us, terms })
        };
        let young = |e: &&Entry| pick.now.saturating_duration_since(e.at) <= AGE_MAX && !pick.is_excluded(e.node);
        self.entries.iter().filter(young).filter_map(score).collect()
    }
}

impl Entry {
    fn look(&mut self, view: &dyn View, places: &Places) -> Option<Seen> {
        self.seen = self.find(view, places);
        self.seen
    }

    fn find(&self, view: &dyn View, places: &Places) -> Option<Seen> {
        if let Some(seen) = self.seen.filter(|seen| seen.index < view.len()) {
            return Some(seen);
        }
        let index = places.find(view, self.node)?;
        let node = view.node(index);
        Some(Seen { index, weight: f64::from(node.weight.max(1)) / 100.0, failure: node.failure })
    }

    /// What the method takes there when nothing else runs.
    fn idle_us(&self, usual: &Usual, method: u32, usual_us: f64) -> f64 {
        self.service.map_or(usual_us, |(known, us)| usual.convert(method, known, us))
    }

    /// Requests that the node is expected to have by now.
    fn in_flight(&self, now: Instant, idle_us: f64, settings: &FastestSettings) -> f64 {
        let age_us = now.saturating_duration_since(self.at).as_secs_f64() * 1e6;
        let kept = (-age_us / (settings.fade * idle_us)).exp();
        self.mean_in_flight + (f64::from(self.report.in_flight) - self.mean_in_flight) * kept + self.sent
    }

    fn score(&self, seen: Seen, now: Instant, idle_us: f64, settings: &FastestSettings) -> Scored {
        let in_flight = self.in_flight(now, idle_us, settings);
        let failure = seen.failure.max(self.report.errors);
        let us = expected_us(idle_us, (in_flight + 1.0) / self.report.concurrency, failure) / seen.weight;
        Scored { node: self.node, index: seen.index, expected_us: us.min(f64::MAX), idle_us: idle_us / seen.weight }
    }
}

/// A report from the wire, with every number within what can be computed with.
fn sane(report: &LoadReport) -> LoadReport {
    let within = |value: f64, low: f64, high: f64, or: f64| if value.is_nan() { or } else { value.clamp(low, high) };
    let service_us = within(report.service_us, 0.0, SERVICE_US_MAX, 0.0);
    LoadReport {
        service_us: if service_us > 0.0 { service_us.max(1.0) } else { 0.0 },
        concurrency: within(report.concurrency, 0.01, 1e6, 1.0),
        errors: within(report.errors, 0.0, 1.0, 0.0),
        ..*report
    }
}
