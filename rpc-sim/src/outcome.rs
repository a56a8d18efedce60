//! What came out of a simulation.

use rpc_core::LatencyRecorder;
use serde::Serialize;

/// What came out, of one run or of several with different seeds.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// From call to answer; calls that timed out count with the timeout.
    pub latency: LatencyRecorder,
    /// Calls that ended.
    pub calls: u64,
    /// Those that failed, timeouts included.
    pub failed: u64,
    /// Those that timed out.
    pub timed_out: u64,
    /// Probes sent.
    pub probes: u64,
    /// Requests refused because of the servers' load.
    pub refusals: u64,
    /// Answers of each server.
    pub answered: Vec<u64>,
    /// Capacity of each server, in cores of speed 1, times the share of the time that it was there.
    pub capacity: Vec<f64>,
}

/// The figures that are shown.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Median, ms.
    pub p50_ms: f64,
    /// 90th percentile, ms.
    pub p90_ms: f64,
    /// 99th percentile, ms.
    pub p99_ms: f64,
    /// 99.9th percentile, ms.
    pub p999_ms: f64,
    /// Failed calls, timeouts included, %.
    pub failed_percent: f64,
    /// Calls that timed out, %.
    pub timed_out_percent: f64,
    /// Answers per capacity of the busiest server over the mean.
    pub imbalance: f64,
    /// Largest share of the answers that one server gave, %.
    pub top_share_percent: f64,
    /// Probes per call.
    pub probes_per_call: f64,
    /// Refusals per call.
    pub refusals_per_call: f64,
    /// Calls that were counted.
    pub calls: u64,
}

impl Outcome {
    /// Adds a run with another seed.
    pub fn merge(&mut self, other: &Self) {
        self.latency.merge(&other.latency);
        self.calls += other.calls;
        self.failed += other.failed;
        self.timed_out += other.timed_out;
        self.probes += other.probes;
        self.refusals += other.refusals;
        self.answered.resize(other.answered.len(), 0);
        self.answered.iter_mut().zip(&other.answered).for_each(|(a, b)| *a += b);
        self.capacity.clone_from(&other.capacity);
    }

    /// The figures that are shown.
    pub fn figures(&self) -> Figures {
        let ms = |quantile| self.latency.quantile_us(quantile) as f64 / 1000.0;
        let per_call = |count: u64| count as f64 / self.calls.max(1) as f64;
        let answers = self.answered.iter().sum::<u64>().max(1) as f64;
        let mean = answers / self.capacity.iter().sum::<f64>();
        let per_capacity = self.answered.iter().zip(&self.capacity).map(|(&a, &c)| a as f64 / c / mean);
        Figures {
            p50_ms: ms(0.5),
            p90_ms: ms(0.9),
            p99_ms: ms(0.99),
            p999_ms: ms(0.999),
            failed_percent: 100.0 * per_call(self.failed),
            timed_out_percent: 100.0 * per_call(self.timed_out),
            imbalance: per_capacity.fold(0.0, f64::max),
            top_share_percent: 100.0 * self.answered.iter().copied().max().unwrap_or(0) as f64 / answers,
            probes_per_call: per_call(self.probes),
            refusals_per_call: per_call(self.refusals),
            calls: self.calls,
        }
    }
}
