//! Latencies of many calls, as percentiles. The only file that knows the histogram library.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Collects latencies with a relative error of at most 1/1000.
#[derive(Clone, Debug)]
pub struct LatencyRecorder(Histogram<u64>);

/// Longest latency that is told apart from longer ones: nearly three hundred years.
const NANOS_MAX: u64 = i64::MAX as u64;

/// Latencies up to this are counted without making room first: with many recorders, as in a load generator, the first
/// call of each would otherwise take a tenth of a millisecond longer, all at the same time.
const NANOS_AT_ONCE: u64 = 60_000_000_000;

/// Percentiles of the recorded latencies, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LatencySummary {
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Longest.
    pub max: u64,
}

impl LatencyRecorder {
    /// An empty recorder. It takes 200 kB, most of which is never touched.
    pub fn new() -> Self {
        let mut histogram =
            Histogram::new_with_bounds(1, NANOS_AT_ONCE, 3).expect("the bounds and digits are in range");
        histogram.auto(true);
        Self(histogram)
    }

    /// Adds one latency.
    pub fn record(&mut self, latency: Duration) {
        // The range is widened as needed; only what is beyond every range is clamped.
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).min(NANOS_MAX);
        self.0.record(nanos).expect("the histogram resizes itself up to NANOS_MAX");
    }

    /// Adds all that `other` recorded.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("recorders grow as needed, so their ranges always fit");
    }

    /// How many latencies were recorded.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The latency below which the share `quantile` (0 to 1) of the recorded ones lies, in whole
    /// microseconds, at least 1. 0 if nothing was recorded.
    pub fn quantile_us(&self, quantile: f64) -> u64 {
        if self.is_empty() {
            return 0;
        }
        self.0.value_at_quantile(quantile).div_ceil(1000).max(1)
    }

    /// The usual percentiles.
    pub fn summary(&self) -> LatencySummary {
        LatencySummary {
            p50: self.quantile_us(0.5),
            p90: self.quantile_us(0.9),
            p99: self.quantile_us(0.99),
            p999: self.quantile_us(0.999),
            max: if self.is_empty() { 0 } else { self.0.max().div_ceil(1000).max(1) },
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.0.reset();
    }
}

impl Default for LatencyRecorder {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_thousandth_over_the_whole_range() {
        let mut recorder = LatencyRecorder::new();
        (1..=1000).for_each(|ms| recorder.record(Duration::from_millis(ms)));
        let summary = recorder.summary();
        for (got, want) in [(summary.p50, 500_000), (summary.p99, 990_000), (summary.max, 1_000_000)] {
            assert!(u64::abs_diff(got, want) <= want / 1000 + 1, "{got} is not {want}");
        }
        recorder.record(Duration::MAX);
        assert!(recorder.summary().max > 1 << 50);
    }
}
