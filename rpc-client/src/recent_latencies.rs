//! The latencies of one node over the last seconds, for their median.

use std::time::Duration;

use tokio::time::Instant;

/// Linear steps between two powers of two: a median is off by at most 1/64.
const STEPS: usize = 32;
const STEP_BITS: u32 = STEPS.trailing_zeros();

/// Latencies from this power of two of microseconds on (134 s) count as one; no call lasts so long.
const POWER_MAX: u32 = 27;

const BUCKETS: usize = STEPS + (POWER_MAX - STEP_BITS) as usize * STEPS;

/// Half of the time after which a latency no longer counts. An answer that old says nothing of the
/// node today: response times are valid for 5 s in the registry as well.
const HALF_LIFE: Duration = Duration::from_millis(2500);

/// Counts latencies in two halves: the older half is forgotten when the newer one is 2.5 s old, so
/// a latency counts for 2.5 to 5 s. Six kilobytes, whatever the number of calls.
#[derive(Clone, Debug)]
pub(crate) struct RecentLatencies {
    newer: Counts,
    older: Counts,
    turned_at: Instant,
    since: Option<Instant>,
}

impl RecentLatencies {
    /// None yet.
    pub(crate) fn new(now: Instant) -> Self {
        Self { newer: Counts::new(), older: Counts::new(), turned_at: now, since: None }
    }

    /// Counts one.
    pub(crate) fn record(&mut self, now: Instant, latency: Duration) {
        self.turn(now);
        self.newer.add(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
        self.since.get_or_insert(now);
    }

    /// When the first of those that count was recorded, if there are any. It stays as long as there
    /// are any, also when that first one has been forgotten.
    pub(crate) fn since(&mut self, now: Instant) -> Option<Instant> {
        self.turn(now);
        self.since
    }

    /// Their median in whole microseconds, at least 1; none if there are none.
    pub(crate) fn median_us(&mut self, now: Instant) -> Option<u64> {
        self.turn(now);
        let total = self.newer.total + self.older.total;
        // Of an even number, the lower of the two in the middle.
        let middle = total.div_ceil(2);
        let mut seen = 0;
        let mut pairs = self.newer.buckets.iter().zip(self.older.buckets.iter());
        let at = pairs.position(|(newer, older)| {
            seen += u64::from(*newer) + u64::from(*older);
            total > 0 && seen >= middle
        })?;
        Some(value(at).max(1))
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.newer.clear();
        self.older.clear();
        self.since = None;
    }

    fn turn(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.turned_at);
        if age < HALF_LIFE {
            return;
        }
        std::mem::swap(&mut self.newer, &mut self.older);
        self.newer.clear();
        if age >= HALF_LIFE * 2 {
            self.older.clear();
        }
        self.turned_at = now;
        if self.older.total == 0 {
            self.since = None;
        }
    }
}

#[derive(Clone, Debug)]
struct Counts {
    total: u64,
    buckets: Box<[u32; BUCKETS]>,
}

impl Counts {
    fn new() -> Self {
        Self { total: 0, buckets: Box::new([0; BUCKETS]) }
    }

    fn add(&mut self, us: u64) {
        let count = &mut self.buckets[bucket(us)];
        // Four billion in one bucket within 5 s do not happen; if they do, the median is as good.
        if let Some(more) = count.checked_add(1) {
            *count = more;
            self.total += 1;
        }
    }

    fn clear(&mut self) {
        if self.total > 0 {
            self.total = 0;
            self.buckets.fill(0);
        }
    }
}

fn bucket(us: u64) -> usize {
    let us = us.min((1 << POWER_MAX) - 1);
    if us < STEPS as u64 {
        return us as usize;
    }
    let power = us.ilog2() - STEP_BITS;
    STEPS + power as usize * STEPS + (us >> power) as usize - STEPS
}

/// The middle of a bucket.
fn value(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    let power = bucket / STEPS - 1;
    let low = ((STEPS + bucket % STEPS) as u64) << power;
    low + (1u64 << power) / 2
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn one_latency_is_its_own_median() {
        let now = Instant::now();
        let mut latencies = RecentLatencies::new(now);
        assert_eq!(latencies.median_us(now), None);
        assert_eq!(latencies.since(now), None);
        latencies.record(now, us(40));
        assert_eq!(latencies.median_us(now), Some(40));
        assert_eq!(latencies.since(now), Some(now));
        latencies.clear();
        assert_eq!(latencies.median_us(now), None);
        latencies.record(now, Duration::from_nanos(1));
        assert_eq!(latencies.median_us(now), Some(1), "a measured value is never 0, which is unknown");
        latencies.clear();
        latencies.record(now, Duration::MAX);
        assert!(latencies.median_us(now).unwrap() > 100_000_000);
    }

    #[test]
    fn the_median_is_not_moved_by_outliers() {
        let now = Instant::now();
        let mut latencies = RecentLatencies::new(now);
        for latency in [30, 31, 33, 5_000_000, 9_000_000] {
            latencies.record(now, us(latency));
        }
        assert_eq!(latencies.median_us(now), Some(33));
    }

    #[test]
    fn latencies_count_for_at_least_half_and_at_most_the_whole_time() {
        let start = Instant::now();
        let mut latencies = RecentLatencies::new(start);
        latencies.record(start, us(10));
        assert_eq!(latencies.median_us(start + HALF_LIFE), Some(10));
        latencies.record(start + HALF_LIFE, us(20));
        latencies.record(start + HALF_LIFE, us(20));
        assert_eq!(latencies.median_us(start + HALF_LIFE * 2), Some(20));
        assert_eq!(latencies.since(start + HALF_LIFE * 2), Some(start));
        assert_eq!(latencies.median_us(start + HALF_LIFE * 4), None);
        assert_eq!(latencies.since(start + HALF_LIFE * 4), None);
    }

    #[test]
    fn nothing_is_left_after_a_pause() {
        let start = Instant::now();
        let mut latencies = RecentLatencies::new(start);
        latencies.record(start, us(10));
        assert_eq!(latencies.median_us(start + Duration::from_secs(60)), None);
    }

    proptest! {
        #[test]
        fn the_median_is_exact_to_a_sixtyfourth(samples in prop::collection::vec(1u64..130_000_000, 1..300)) {
            let now = Instant::now();
            let mut latencies = RecentLatencies::new(now);
            samples.iter().for_each(|&sample| latencies.record(now, us(sample)));
            let mut sorted = samples;
            sorted.sort_unstable();
            let exact = sorted[(sorted.len() - 1) / 2] as f64;
            let median = latencies.median_us(now).unwrap() as f64;
            prop_assert!((median - exact).abs() <= exact / 64.0 + 0.5, "{median} {exact}");
        }

        #[test]
        fn buckets_are_in_order(a in 0u64..1 << 28, b in 0u64..1 << 28) {
            prop_assert!(bucket(a.max(b)) >= bucket(a.min(b)));
            prop_assert!(bucket(a) < BUCKETS);
        }
    }
}
