//! The load reports that [`super::Fastest`] compares.

use rpc_core::load::LoadReport;
use tokio::time::Instant;

use super::FastestSettings;
use super::entry::{Entry, sane};
use super::hot::{Each, Hot, REPORTS_MAX, any_within, lowest};
use super::usual::{Known, Usual};
use crate::balance::places::Places;
use crate::balance::{NodeId, Pick, Random, Score, View};

/// An older report says too little about a node to call it.
const AGE_MAX_US: f64 = 5e6;

/// With fewer fresh reports too little is known to choose.
pub(super) const FRESH_MIN: usize = 2;

/// Weight of a report in the mean expected time.
const EXPECTED_GAIN: f64 = 0.02;

/// Largest expected time that enters the mean, in microseconds.
const EXPECTED_US_MAX: f64 = 1e12;

/// The most recent reports, and means over all nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports {
    entries: Vec<Entry>,
    /// In the same order.
    hot: Hot,
    usual: Usual,
    /// Mean expected time, in microseconds.
    pub(super) expected_us: Option<f64>,
    /// What the times of reports are counted from.
    epoch: Option<Instant>,
}

/// A node that a call may go to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chosen {
    pub(super) node: NodeId,
    pub(super) index: usize,
    /// What the call is expected to take, over what it takes when the node is idle.
    pub(super) slowdown: f64,
}

/// What the reports say about a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Best {
    /// The node with the lowest expected time, or one that is as good.
    pub(super) chosen: Option<Chosen>,
    /// What the call is expected to take at the best of the others, in microseconds; infinite if
    /// there is none.
    pub(super) second_us: f64,
    /// Reports not older than twice the usual expected time, counted up to [`FRESH_MIN`].
    pub(super) fresh: usize,
}

impl Reports {
    /// A report arrived.
    pub(super) fn add(&mut self, node: NodeId, report: &LoadReport, at: Instant) {
        let report = sane(report);
        let at_us = self.micros(at);
        let mut known = Known::default();
        if report.service_us > 0.0 {
            known.service = Some((self.usual.learn(report.method, report.service_us), report.service_us));
            let us = report.expected_us().min(EXPECTED_US_MAX);
            self.expected_us = Some(self.expected_us.map_or(us, |mean| mean + EXPECTED_GAIN * (us - mean)));
        }
        let newest = Entry::new(node, report, known);
        let place = match self.hot.place(node) {
            Some(place) => {
                self.entries[place].renew(newest);
                place
            }
            None if self.entries.len() < REPORTS_MAX => {
                self.entries.push(newest);
                self.entries.len() - 1
            }
            None => {
                let oldest = self.oldest();
                self.entries[oldest] = newest;
                oldest
            }
        };
        self.hot.set(place, node, at_us);
    }

    /// A call was sent.
    pub(super) fn sent(&mut self, node: NodeId) {
        if let Some(place) = self.hot.place(node) {
            self.entries[place].sent();
            self.hot.spoil(place);
        }
    }

    /// Something else changed about a node, such as its failures.
    pub(super) fn look_again(&mut self, node: NodeId) {
        if let Some(place) = self.hot.place(node) {
            self.entries[place].look_again();
            self.hot.spoil(place);
        }
    }

    /// What is known of a node is void.
    pub(super) fn remove(&mut self, node: NodeId) {
        if let Some(place) = self.hot.place(node) {
            self.hot.swap_remove(place, self.entries.len());
            self.entries.swap_remove(place);
        }
    }

    /// The membership changed.
    pub(super) fn follow(&mut self, places: &Places) {
        let gone: Vec<NodeId> = self.entries.iter().map(|e| e.node).filter(|&node| !places.has(node)).collect();
        gone.into_iter().for_each(|node| self.remove(node));
        for (place, entry) in self.entries.iter_mut().enumerate() {
            entry.look_again();
            self.hot.spoil(place);
        }
    }

    /// The nodes with the lowest expected times.
    pub(super) fn best(
        &mut self,
        view: &dyn View,
        pick: &Pick<'_>,
        places: &Places,
        settings: &FastestSettings,
    ) -> Best {
        let now_us = self.micros(pick.now);
        let mut expected = self.expected(view, pick, places, (now_us, settings));
        let fresh = self.hot.newer(&expected, now_us - 2.0 * self.expected_us.unwrap_or(0.0), FRESH_MIN);
        let limit = (lowest(&expected) * (1.0 + settings.tie)).min(f64::MAX);
        // The numbers that draw the nodes to compare must not be those that break a tie.
        let place = any_within(&expected, limit, &mut Random::new(!pick.seed));
        let chosen = place.map(|place| {
            expected[place] = f64::INFINITY;
            let Entry { node, index, standing, .. } = self.entries[place];
            Chosen { node, index, slowdown: standing.slowdown }
        });
        // The view may be of a membership that was not told yet.
        let chosen = chosen.filter(|c| c.index < view.len() && view.id(c.index) == c.node);
        Best { chosen, second_us: lowest(&expected), fresh }
    }

    /// What [`Reports::best`] compares, with what it is made from.
    pub(super) fn scores(
        &self,
        view: &dyn View,
        pick: &Pick<'_>,
        places: &Places,
        settings: &FastestSettings,
    ) -> Vec<Score> {
        // To look at a node is to learn of it, which is left to the decision.
        let mut reports = self.clone();
        let now_us = reports.micros(pick.now);
        let expected = reports.expected(view, pick, places, (now_us, settings));
        let usual_us = reports.usual.us(pick.method);
        let there = |entry: &Entry| entry.index < view.len() && view.id(entry.index) == entry.node;
        let score = |((entry, cost), at_us): ((&Entry, f64), f64)| {
            let usable = cost.is_finite() && there(entry);
            usable.then(|| Score { index: entry.index, cost, terms: entry.terms(usual_us, now_us - at_us) })
        };
        reports.entries.iter().zip(expected).zip(reports.hot.at_us).filter_map(score).collect()
    }

    /// What a call is expected to take at the node of each report, in microseconds: infinite where it
    /// may not go.
    fn expected(
        &mut self,
        view: &dyn View,
        pick: &Pick<'_>,
        places: &Places,
        (now_us, settings): (f64, &FastestSettings),
    ) -> Each<f64> {
        let mut due = self.hot.take_due(now_us);
        while due != 0 {
            self.work_out(due.trailing_zeros() as usize, view, places, now_us, settings);
            due &= due - 1;
        }
        let mut expected = self.hot.expected(self.usual.us(pick.method));
        for &node in pick.excluded {
            if let Some(place) = self.hot.place(node) {
                expected[place] = f64::INFINITY;
            }
        }
        expected
    }

    fn work_out(&mut self, place: usize, view: &dyn View, places: &Places, now_us: f64, settings: &FastestSettings) {
        let age_us = now_us - self.hot.at_us[place];
        let entry = &mut self.entries[place];
        if age_us <= AGE_MAX_US && entry.work_out(view, places, &mut self.usual, (now_us, age_us), settings) {
            let standing = entry.standing;
            let until_us = standing.until_us.min(self.hot.at_us[place] + AGE_MAX_US);
            let costs = [standing.ratio, standing.any_us].map(|idle| (idle * standing.slowdown).min(f64::MAX));
            self.hot.worked_out(place, until_us, costs);
        } else {
            self.hot.worked_out(place, f64::NEG_INFINITY, [f64::INFINITY; 2]);
        }
    }

    fn oldest(&self) -> usize {
        let at_us = |place: &usize| self.hot.at_us[*place];
        (0..REPORTS_MAX).min_by(|a, b| at_us(a).total_cmp(&at_us(b))).unwrap_or(0)
    }

    fn micros(&mut self, at: Instant) -> f64 {
        let epoch = *self.epoch.get_or_insert(at);
        let since = at.saturating_duration_since(epoch);
        since.as_secs() as f64 * 1e6 + f64::from(since.subsec_nanos()) / 1e3
    }
}
