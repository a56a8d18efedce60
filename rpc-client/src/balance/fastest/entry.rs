//! One node's load report, and what follows from it.

use rpc_core::load::{LoadReport, expected_us};

use super::FastestSettings;
use super::usual::{Known, Usual};
use crate::balance::places::Places;
use crate::balance::{NodeId, View};

/// Weight of a report in the mean number of requests that others have at its node.
const OTHERS_GAIN: f64 = 0.1;

/// Longest idle time that is believed, in microseconds.
const SERVICE_US_MAX: f64 = 1e12;

/// A standing is worked out again after this share of the time in which it fades.
const STANDING_KEPT: f64 = 0.05;

/// The newest report of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) node: NodeId,
    /// Where the node is in the view, when it was last looked up.
    pub(super) index: usize,
    report: LoadReport,
    known: Known,
    /// Requests in flight from other clients, and their recent mean.
    others: f64,
    mean_others: Option<f64>,
    /// Whether `others` is of this report.
    counted: bool,
    /// What the view said about the node, read again after each report.
    seen: Option<Seen>,
    /// A ratio of idle times and what is left of it without noise: it only changes with reports.
    shrunk: (f64, f64),
    pub(super) standing: Standing,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Calls of this client in flight there, kept up to date.
    own: f64,
    weight: f64,
    failure: f64,
}

/// How a node stands, whatever the method, in relation to its weight. Working it out for every node
/// on every call would cost more than the rest of the choice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// Idle time over the usual idle time.
    pub(super) ratio: f64,
    /// Idle time in microseconds of a method that has no usual one.
    pub(super) any_us: f64,
    /// Expected time over idle time.
    pub(super) slowdown: f64,
    /// Until when this is near enough, in microseconds.
    pub(super) until_us: f64,
    /// Requests that the node is expected to have, and its failures.
    in_flight: f64,
    failure: f64,
}

impl Entry {
    pub(super) fn new(node: NodeId, report: LoadReport, known: Known) -> Self {
        Self {
            node,
            index: usize::MAX,
            report,
            known,
            others: 0.0,
            mean_others: None,
            counted: false,
            seen: None,
            shrunk: (1.0, 1.0),
            standing: Standing { ratio: 1.0, any_us: 1.0, slowdown: 1.0, until_us: 0.0, in_flight: 0.0, failure: 0.0 },
        }
    }

    /// A newer report came. If it knows nothing of its method, what is known of another one stays.
    pub(super) fn renew(&mut self, newer: Self) {
        let known = Known { service: newer.known.service.or(self.known.service), ..self.known };
        *self = Self { index: self.index, mean_others: self.mean_others, known, ..newer };
    }

    /// A call was sent there.
    pub(super) fn sent(&mut self) {
        if let Some(seen) = &mut self.seen {
            seen.own += 1.0;
        }
    }

    /// What the view says may have changed.
    pub(super) fn look_again(&mut self) {
        self.seen = None;
    }

    /// Makes index and standing hold, given the age of the report. False if the node is not in the
    /// view.
    pub(super) fn work_out(
        &mut self,
        view: &dyn View,
        places: &Places,
        usual: &mut Usual,
        (now_us, age_us): (f64, f64),
        settings: &FastestSettings,
    ) -> bool {
        let Some(seen) = self.look(view, places, usual) else { return false };
        let any_us = usual.any_us(self.known);
        // What others have there is old news, and fades to the usual; the own calls are known.
        let fades_us = settings.fade * any_us;
        let kept = (-age_us.max(0.0) / fades_us).exp();
        let mean = self.mean_others.unwrap_or(self.others);
        let in_flight = mean + (self.others - mean) * kept + seen.own;
        let failure = seen.failure.max(self.report.errors);
        let ratio = usual.ratio(self.known);
        if ratio != self.shrunk.0 {
            self.shrunk = (ratio, shrunk(ratio, settings.noise));
        }
        self.standing = Standing {
            ratio: self.shrunk.1 / seen.weight,
            any_us: any_us / seen.weight,
            slowdown: expected_us(1.0, (in_flight + 1.0) / self.report.concurrency, failure),
            until_us: now_us + STANDING_KEPT * fades_us,
            in_flight,
            failure,
        };
        true
    }

    /// What the cost of a call there is made from, for people: `standing` holds.
    pub(super) fn terms(&self, usual_us: Option<f64>, age_us: f64) -> Vec<(&'static str, f64)> {
        let seen = self.seen.unwrap_or(Seen { own: 0.0, weight: 1.0, failure: 0.0 });
        let standing = &self.standing;
        vec![
            ("idle_us", usual_us.map_or(standing.any_us, |us| us * standing.ratio) * seen.weight),
            ("in_flight", standing.in_flight),
            ("reported_in_flight", f64::from(self.report.in_flight)),
            ("own_in_flight", seen.own),
            ("age_us", age_us),
            ("concurrency", self.report.concurrency),
            ("failure", standing.failure),
            ("weight", 100.0 * seen.weight),
        ]
    }

    fn look(&mut self, view: &dyn View, places: &Places, usual: &mut Usual) -> Option<Seen> {
        let there = self.index < view.len();
        if let Some(seen) = self.seen.filter(|_| there) {
            return Some(seen);
        }
        if !there || view.id(self.index) != self.node {
            self.index = places.find(view, self.node)?;
        }
        let node = view.node(self.index);
        let own = f64::from(node.in_flight);
        if !self.counted {
            self.counted = true;
            self.others = (f64::from(self.report.in_flight) - own).max(0.0);
            let mean = self.mean_others.unwrap_or(self.others);
            self.mean_others = Some(mean + OTHERS_GAIN * (self.others - mean));
        }
        let published_us = (node.registry_us as f64).min(SERVICE_US_MAX);
        if published_us > 0.0 && published_us != self.known.published_us {
            usual.learn_published(published_us);
        }
        self.known.published_us = published_us;
        self.seen = Some(Seen { own, weight: f64::from(node.weight.max(1)) / 100.0, failure: node.failure });
        self.seen
    }
}

/// A ratio with what may be noise taken off (James and Stein, 1961): a node that looks slower than
/// it is gets no calls to show that it is not.
fn shrunk(ratio: f64, noise: f64) -> f64 {
    let off = ratio.ln();
    let kept = 1.0 - noise / (off * off);
    if kept > 0.0 { (off * kept).exp() } else { 1.0 }
}

/// A report from the wire, with every number within what can be computed with.
pub(super) fn sane(report: &LoadReport) -> LoadReport {
    let within = |value: f64, low: f64, high: f64, or: f64| if value.is_nan() { or } else { value.clamp(low, high) };
    let service_us = within(report.service_us, 0.0, SERVICE_US_MAX, 0.0);
    LoadReport {
        service_us: if service_us > 0.0 { service_us.max(1.0) } else { 0.0 },
        concurrency: within(report.concurrency, 0.01, 1e6, 1.0),
        errors: within(report.errors, 0.0, 1.0, 0.0),
        ..*report
    }
}
