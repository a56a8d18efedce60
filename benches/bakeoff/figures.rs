//! From the records of runs to figures.

use std::time::Duration;

use serde::Serialize;

use crate::client::{End, Record};
use crate::run::Outcome;
use crate::scenario::Scenario;

/// Calls of the first second are made but do not count: clients connect, learn and settle in it.
const WARM_UP_US: u32 = 1_000_000;

/// What is known of one policy in one scenario.
#[derive(Default)]
pub(crate) struct Tally {
    rounds: Vec<Round>,
}

struct Round {
    /// Of answered calls and those that timed out, ascending.
    latencies_us: Vec<u32>,
    /// The same by method.
    by_method: Vec<Vec<u32>>,
    calls: usize,
    failed: usize,
    repeated: usize,
    /// Calls that each server ended.
    ended: Vec<usize>,
    late_p99: Duration,
    /// How often the run had to be made again.
    again: usize,
    failure: Option<String>,
}

/// The figures of one policy in one scenario, of all rounds together unless said otherwise.
#[derive(Serialize)]
pub(crate) struct Figures {
    pub(crate) policy: String,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) p999_ms: f64,
    /// By round.
    pub(crate) p99_rounds_ms: Vec<f64>,
    /// By method, where there are several.
    pub(crate) p99_methods_ms: Vec<f64>,
    /// Failed calls, timeouts included.
    pub(crate) errors_percent: f64,
    /// Calls that took more than one attempt.
    pub(crate) repeated_percent: f64,
    /// Share of each server in the calls.
    pub(crate) shares_percent: Vec<f64>,
    pub(crate) calls: usize,
    /// The 99th percentile of how late calls went out, of the worst process.
    pub(crate) late_p99_ms: f64,
    /// Runs that were made again, as too many calls of theirs went out late.
    pub(crate) runs_made_again: usize,
    /// The first failure.
    pub(crate) failure: Option<String>,
}

impl Tally {
    pub(crate) fn add(&mut self, scenario: &Scenario, outcome: &Outcome, again: usize) {
        let records = outcome.reports.iter().flat_map(|report| &report.records);
        let records: Vec<Record> = records.copied().filter(|record| record.due_us >= WARM_UP_US).collect();
        let ended = |port: &u16| records.iter().filter(|record| record.port == *port).count();
        let methods = 0..scenario.methods.len();
        self.rounds.push(Round {
            latencies_us: latencies(&records, |_| true),
            by_method: methods.map(|method| latencies(&records, |r| usize::from(r.method) == method)).collect(),
            calls: records.len(),
            failed: records.iter().filter(|record| record.end != End::Answered).count(),
            repeated: records.iter().filter(|record| record.attempts > 1).count(),
            ended: outcome.ports.iter().map(ended).collect(),
            late_p99: outcome.late_p99(),
            again,
            failure: outcome.reports.iter().find_map(|report| report.failure.clone()),
        });
    }

    pub(crate) fn figures(&self, policy: &str) -> Figures {
        let all = merged(self.rounds.iter().map(|round| &round.latencies_us));
        let methods = self.rounds.first().map_or(0, |round| round.by_method.len());
        let by_method = |method: usize| merged(self.rounds.iter().map(|round| &round.by_method[method]));
        let sum = |count: fn(&Round) -> usize| self.rounds.iter().map(count).sum::<usize>();
        let (calls, ended) = (sum(|round| round.calls), sum(|round| round.ended.iter().sum()));
        let servers = self.rounds.iter().map(|round| round.ended.len()).max().unwrap_or(0);
        let server = |at: usize| self.rounds.iter().filter_map(|round| round.ended.get(at)).sum::<usize>();
        Figures {
            policy: policy.to_owned(),
            p50_ms: quantile_ms(&all, 0.5),
            p99_ms: quantile_ms(&all, 0.99),
            p999_ms: quantile_ms(&all, 0.999),
            p99_rounds_ms: self.rounds.iter().map(|round| quantile_ms(&round.latencies_us, 0.99)).collect(),
            p99_methods_ms: if methods > 1 {
                (0..methods).map(|method| quantile_ms(&by_method(method), 0.99)).collect()
            } else {
                Vec::new()
            },
            errors_percent: percent(sum(|round| round.failed), calls),
            repeated_percent: percent(sum(|round| round.repeated), calls),
            shares_percent: (0..servers).map(|at| percent(server(at), ended)).collect(),
            calls,
            late_p99_ms: self.rounds.iter().map(|round| round.late_p99).max().unwrap_or_default().as_secs_f64() * 1e3,
            runs_made_again: sum(|round| round.again),
            failure: self.rounds.iter().find_map(|round| round.failure.clone()),
        }
    }
}

impl Figures {
    /// From the lowest to the highest p99 of its rounds.
    pub(crate) fn spread_ms(&self) -> f64 {
        let lowest = self.p99_rounds_ms.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = self.p99_rounds_ms.iter().copied().fold(0.0, f64::max);
        (highest - lowest).max(0.0)
    }

    /// Share of these servers in the calls.
    pub(crate) fn share_percent(&self, servers: std::ops::Range<usize>) -> f64 {
        self.shares_percent.get(servers).map_or(0.0, |shares| shares.iter().sum())
    }
}

/// Calls that failed otherwise than by time say nothing about how long calls take.
fn latencies(records: &[Record], which: impl Fn(&Record) -> bool) -> Vec<u32> {
    let counted = records.iter().filter(|record| record.end != End::Failed && which(record));
    let mut latencies: Vec<u32> = counted.map(|record| record.latency_us).collect();
    latencies.sort_unstable();
    latencies
}

fn merged<'a>(parts: impl Iterator<Item = &'a Vec<u32>>) -> Vec<u32> {
    let mut all: Vec<u32> = parts.flatten().copied().collect();
    all.sort_unstable();
    all
}

/// The nearest rank.
fn quantile_ms(sorted_us: &[u32], quantile: f64) -> f64 {
    let rank = (quantile * sorted_us.len() as f64).ceil() as usize;
    sorted_us.get(rank.max(1) - 1).copied().map_or(0.0, |us| f64::from(us) / 1e3)
}

fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_nearest_rank() {
        let hundred: Vec<u32> = (1..=100).map(|ms| ms * 1000).collect();
        assert_eq!((quantile_ms(&hundred, 0.5), quantile_ms(&hundred, 0.99)), (50.0, 99.0));
        assert_eq!((quantile_ms(&hundred, 0.999), quantile_ms(&[], 0.5)), (100.0, 0.0));
    }
}
