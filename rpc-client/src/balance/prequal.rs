//! Prequal: probing to reduce queuing and latency (Wydrowski et al., NSDI 2024).

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::places::Places;
use super::{Decision, Event, LoadReport, NodeId, Pick, Policy, Random, Score, View, sample};

/// Entries of the pool; more gain little.
const POOL_MAX: usize = 16;

/// An older answer is not believed.
const POOL_AGE_MAX: Duration = Duration::from_secs(1);

/// In synchronous mode answers are for the call that asked.
const SYNC_AGE_MAX: Duration = Duration::from_millis(3);

/// How much more often entries are used than they arrive, over what removal leaves.
const REUSE_EXCESS: f64 = 1.0;

/// Longest reuse, where the published formula has none: in small clusters.
const REUSE_MAX: f64 = 10.0;

/// Entries removed per call.
const REMOVED_PER_CALL: f64 = 1.0;

/// Probe answers from which the distribution of requests in flight is estimated.
const DISTRIBUTION: usize = 64;

/// Added to the cost of hot entries, which come after all others.
const HOT_COST: f64 = 1e15;

/// The settings of [`Prequal`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrequalSettings {
    /// Entries with more requests in flight than this quantile of all are hot. 0 goes by requests
    /// in flight alone, 1 by latency alone.
    pub quantile: f64,
    /// Probes per call.
    pub probes: usize,
    /// Whether a call waits for its own probes rather than use the answers of earlier ones.
    pub sync: bool,
}

impl Default for PrequalSettings {
    /// The published 0.84 herds on few nodes at high load (`docs/BALANCING.md`), so 0.6, which is in
    /// the published range too.
    fn default() -> Self {
        Self { quantile: 0.6, probes: 3, sync: false }
    }
}

/// An answer to a probe.
#[derive(Clone, Copy, Debug)]
pub struct PoolEntry {
    /// Requests in flight, and the calls sent there since.
    pub in_flight: u32,
    /// Latest response time at about that number.
    pub latency_us: f64,
    /// Response time when idle.
    pub service_us: f64,
    node: NodeId,
    at: Instant,
    uses_left: u32,
}

/// How entries are ranked, lowest first, instead of hot and cold.
pub type Ranking = fn(&PoolEntry) -> f64;

/// Probes random nodes, and calls from a pool of the answers the one with the lowest latency among
/// those that are not hot, else the one with the fewest requests in flight.
#[derive(Clone, Debug)]
pub struct Prequal {
    settings: PrequalSettings,
    ranking: Option<Ranking>,
    places: Places,
    pool: Vec<PoolEntry>,
    in_flights: VecDeque<u32>,
    /// Fractional removals that are due.
    removals_due: f64,
    remove_worst: bool,
    random: Random,
}

impl Prequal {
    /// With these settings.
    pub fn new(settings: PrequalSettings) -> Self {
        Self {
            settings,
            ranking: None,
            places: Places::default(),
            pool: Vec::new(),
            in_flights: VecDeque::new(),
            removals_due: 0.0,
            remove_worst: false,
            random: Random::new(0),
        }
    }

    /// The pool alone, with another ranking.
    pub fn ranked_by(settings: PrequalSettings, ranking: Ranking) -> Self {
        Self { ranking: Some(ranking), ..Self::new(settings) }
    }

    /// From `q=0.84`, `probes=5`, `sync`, joined by `+`.
    pub fn parse(options: &str) -> Option<Self> {
        let mut settings = PrequalSettings::default();
        for option in options.split(['+', ',']).filter(|o| !o.is_empty()) {
            match option.split_once('=') {
                Some(("q", value)) => settings.quantile = value.parse().ok().filter(|q| (0.0..=1.0).contains(q))?,
                Some(("probes", value)) => settings.probes = value.parse().ok().filter(|p| (1..=16).contains(p))?,
                None if option == "sync" => settings.sync = true,
                _ => return None,
            }
        }
        Some(Self::new(settings))
    }

    /// The pool is kept below the size of a small cluster, or nothing would ever leave it.
    fn pool_max(&self) -> usize {
        POOL_MAX.min((self.places.len() / 2).max(2))
    }

    fn uses(&mut self) -> u32 {
        let nodes = self.places.len().max(1) as f64;
        let kept = (1.0 - self.pool_max() as f64 / nodes) * self.settings.probes as f64 - REMOVED_PER_CALL;
        let uses = if kept > 0.0 { ((1.0 + REUSE_EXCESS) / kept).clamp(1.0, REUSE_MAX) } else { REUSE_MAX };
        let up = self.random.unit() < uses.fract();
        uses as u32 + u32::from(up)
    }

    fn answered(&mut self, node: NodeId, at: Instant, report: &LoadReport) {
        if self.in_flights.len() == DISTRIBUTION {
            self.in_flights.pop_front();
        }
        self.in_flights.push_back(report.in_flight);
        self.pool.retain(|entry| entry.node != node);
        let uses_left = if self.settings.sync { 1 } else { self.uses() };
        self.pool.push(PoolEntry {
            in_flight: report.in_flight,
            latency_us: report.latency_us,
            service_us: report.service_us,
            node,
            at,
            uses_left,
        });
        if self.pool.len() > self.pool_max().max(self.settings.probes) {
            self.remove_oldest();
        }
    }

    fn remove_oldest(&mut self) {
        let oldest = (0..self.pool.len()).min_by_key(|&i| self.pool[i].at);
        oldest.map(|i| self.pool.remove(i));
    }

    fn hot_above(&self) -> u32 {
        let mut sorted: Vec<u32> = self.in_flights.iter().copied().collect();
        if sorted.is_empty() || self.settings.quantile >= 1.0 {
            return u32::MAX;
        }
        let place = (self.settings.quantile * sorted.len() as f64) as usize;
        *sorted.select_nth_unstable(place.min(self.in_flights.len() - 1)).1
    }

    /// Lowest first.
    fn rank(&self, entry: &PoolEntry, hot_above: u32) -> (bool, f64) {
        match self.ranking {
            Some(ranking) => (false, ranking(entry)),
            None if entry.in_flight > hot_above => (true, f64::from(entry.in_flight)),
            None => (false, entry.latency_us),
        }
    }

    /// The places in the pool of the best and the worst entry that `may` be used.
    fn extremes(&self, may: impl Fn(&PoolEntry) -> bool) -> Option<(usize, usize)> {
        let hot_above = self.hot_above();
        let ranked = self.pool.iter().enumerate().filter(|(_, e)| may(e)).map(|(i, e)| (self.rank(e, hot_above), i));
        let order =
            |a: &((bool, f64), usize), b: &((bool, f64), usize)| a.0.0.cmp(&b.0.0).then(a.0.1.total_cmp(&b.0.1));
        let best = ranked.clone().min_by(order)?;
        let worst = ranked.max_by(order)?;
        Some((best.1, worst.1))
    }

    fn age_max(&self) -> Duration {
        if self.settings.sync { SYNC_AGE_MAX } else { POOL_AGE_MAX }
    }

    /// With fewer entries any node is called.
    fn occupancy_min(&self) -> usize {
        if self.settings.sync { 1 } else { 2 }
    }

    fn choose(&mut self, view: &dyn View, pick: &Pick<'_>) -> Option<usize> {
        let age_max = self.age_max();
        self.pool.retain(|entry| pick.now.saturating_duration_since(entry.at) <= age_max);
        let occupancy_min = self.occupancy_min();
        let usable = |entry: &PoolEntry| !pick.is_excluded(entry.node);
        let best = if self.pool.len() < occupancy_min { None } else { self.extremes(usable) };
        let index = best.and_then(|(best, _)| {
            let index = self.places.find(view, self.pool[best].node);
            self.pool[best].in_flight = self.pool[best].in_flight.saturating_add(1);
            self.pool[best].uses_left = self.pool[best].uses_left.saturating_sub(1);
            if self.pool[best].uses_left == 0 || index.is_none() {
                self.pool.remove(best);
            }
            index
        });
        self.removals_due += if self.settings.sync { 0.0 } else { REMOVED_PER_CALL };
        while self.removals_due >= 1.0 {
            self.removals_due -= 1.0;
            self.remove_one();
        }
        index.or_else(|| sample::one(view, pick, &mut pick.random()))
    }

    fn remove_one(&mut self) {
        self.remove_worst = !self.remove_worst;
        if !self.remove_worst {
            return self.remove_oldest();
        }
        if let Some((_, worst)) = self.extremes(|_| true) {
            self.pool.remove(worst);
        }
    }
}

impl Policy for Prequal {
    fn pick(&mut self, view: &dyn View, pick: &Pick<'_>) -> Option<usize> {
        self.choose(view, pick)
    }

    fn decide(&mut self, view: &dyn View, pick: &Pick<'_>) -> Decision {
        if pick.probed == 0 && view.len() > 1 {
            self.random = Random::new(pick.seed ^ 1);
            let indices = sample::several(view, pick, &mut pick.random(), self.settings.probes);
            if !indices.is_empty() {
                let wait_for = if self.settings.sync { indices.len().saturating_sub(1).max(1) } else { 0 };
                return Decision::Probe { indices, wait_for };
            }
        }
        self.choose(view, pick).map_or(Decision::NoNode, |index| Decision::Send { index, bound: None })
    }

    fn scores(&self, view: &dyn View, pick: &Pick<'_>) -> Vec<Score> {
        let age_max = self.age_max();
        let is_fresh = |entry: &&PoolEntry| pick.now.saturating_duration_since(entry.at) <= age_max;
        let fresh = || self.pool.iter().filter(is_fresh);
        if fresh().count() < self.occupancy_min() {
            return Vec::new();
        }
        let hot_above = self.hot_above();
        let score = |entry: &PoolEntry| {
            let index = self.places.find(view, entry.node)?;
            let (hot, rank) = self.rank(entry, hot_above);
            let terms = vec![
                ("in_flight", f64::from(entry.in_flight)),
                ("latency_us", entry.latency_us),
                ("hot", f64::from(u8::from(hot))),
                ("uses_left", f64::from(entry.uses_left)),
            ];
            Some(Score { index, cost: if hot { HOT_COST + rank } else { rank }, terms })
        };
        fresh().filter(|entry| !pick.is_excluded(entry.node)).filter_map(score).collect()
    }

    fn observe(&mut self, event: &Event<'_>) {
        match event {
            Event::ProbeAnswer { node, now, report, .. } => self.answered(*node, *now, report),
            Event::Members { nodes } => {
                self.places.follow(nodes);
                self.pool.retain(|entry| self.places.has(entry.node));
            }
            Event::Sent { .. } | Event::Reply { .. } | Event::Refused { .. } | Event::ProbeSilent { .. } => {}
        }
    }

    fn observes(&self) -> bool {
        true
    }

    fn copy(&self) -> Option<Box<dyn Policy>> {
        Some(Box::new(self.clone()))
    }
}
