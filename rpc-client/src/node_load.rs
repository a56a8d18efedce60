//! What this client knows about the speed of one node.

use std::time::Duration;

use tokio::time::Instant;

/// Time constant with which an old latency, and an old failure, lose their weight. Long enough to
/// average a node that answers a few times a second, short enough that a node that was slow once is
/// tried again within half a minute (Finagle's and linkerd's peak EWMA use 10 s as well).
pub const DECAY: Duration = Duration::from_secs(10);

/// Weight of one reply in the failure score: three failures in a row bring it to two thirds.
pub const FAILURE_GAIN: f64 = 0.3;

/// Below this share of the time constant, `exp` is replaced by the first terms of its series, whose
/// relative error is then under 2e-5. On a busy node no reply pays for `exp`.
const SERIES_BELOW: f64 = 0.05;

/// An estimate never falls below a microsecond: at 0 a node would stay the best whatever is in
/// flight on it.
const LATENCY_US_MIN: f64 = 1.0;

/// Speed and failures of one node as this client sees them. Pure: the time is an argument, and
/// reading changes nothing.
///
/// The latency is a *peak EWMA*: it jumps up to a higher latency at once and approaches lower ones
/// with the time constant [`DECAY`], weighting by time and not by number of replies. While no
/// reply comes, readings decay towards 0 with the same constant, so a node that is avoided for being slow
/// looks better and better until it is tried again.
///
/// A failed call never lowers the latency. It raises it when it took longer than the estimate:
/// a call that hung shows that the node is at least that slow.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeLoad {
    latency: Option<Decaying>,
    failure: Option<Decaying>,
}

/// A value and the time it had it.
#[derive(Clone, Copy, Debug)]
struct Decaying {
    value: f64,
    at: Instant,
}

impl NodeLoad {
    /// A node that never answered.
    pub fn new() -> Self {
        Self::default()
    }

    /// Learns from the end of a call that took `latency`. `ok` is about the node: an error of the
    /// application is a good answer of the node.
    pub fn reply(&mut self, now: Instant, latency: Duration, ok: bool) {
        let sample = latency.as_secs_f64() * 1e6;
        if ok {
            self.latency = Some(match self.latency {
                Some(old) if sample < old.value => {
                    let kept = old.weight(now);
                    // Replies that are recorded out of order must not turn the time back.
                    Decaying { value: old.value * kept + sample * (1.0 - kept), at: old.at.max(now) }
                }
                _ => Decaying { value: sample, at: now },
            });
        } else if self.latency.is_some_and(|old| sample > old.read(now)) {
            self.latency = Some(Decaying { value: sample, at: now });
        }
        // A node without failures, the usual one, does no arithmetic here.
        if !ok || self.failure.is_some() {
            let before = self.failure(now);
            let target = if ok { 0.0 } else { 1.0 };
            let value = before + FAILURE_GAIN * (target - before);
            self.failure = (value > 1e-6).then_some(Decaying { value, at: now });
        }
    }

    /// The latency to expect, in microseconds, at least 1; none before the first good answer.
    pub fn latency_us(&self, now: Instant) -> Option<f64> {
        self.latency.map(|latency| latency.read(now).max(LATENCY_US_MIN))
    }

    /// The share of recent calls that failed, 0 to 1, newer ones counting more.
    pub fn failure(&self, now: Instant) -> f64 {
        self.failure.map_or(0.0, |failure| failure.read(now))
    }
}

impl Decaying {
    /// The share of the value that is left at `now`.
    fn weight(self, now: Instant) -> f64 {
        // All replies of a read come at the same time: for most of them nothing has passed.
        if now <= self.at {
            return 1.0;
        }
        let x = now.saturating_duration_since(self.at).as_secs_f64() / DECAY.as_secs_f64();
        if x < SERIES_BELOW { 1.0 - x + 0.5 * x * x } else { (-x).exp() }
    }

    fn read(self, now: Instant) -> f64 {
        self.value * self.weight(now)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn a_slow_answer_counts_at_once_and_fast_ones_win_back_slowly() {
        let start = Instant::now();
        let mut load = NodeLoad::new();
        assert_eq!(load.latency_us(start), None);
        load.reply(start, 10 * MS, true);
        load.reply(start, 500 * MS, true);
        assert_eq!(load.latency_us(start), Some(500_000.0));
        for i in 1..=1000 {
            load.reply(after(start, i * 10), 10 * MS, true);
        }
        // One time constant later: 10 ms + 490 ms / e.
        let estimate = load.latency_us(after(start, 10_000)).unwrap();
        assert!((estimate - 190_260.0).abs() < 200.0, "{estimate}");
        for i in 1001..=10_000 {
            load.reply(after(start, i * 10), 10 * MS, true);
        }
        assert!(load.latency_us(after(start, 100_000)).unwrap() < 10_100.0);
    }

    #[test]
    fn a_slow_node_that_is_avoided_is_tried_again_within_half_a_minute() {
        let start = Instant::now();
        let mut slow = NodeLoad::new();
        slow.reply(start, 100 * MS, true);
        assert!(slow.latency_us(after(start, 5_000)).unwrap() > 50_000.0);
        assert!(slow.latency_us(after(start, 30_000)).unwrap() < 5_000.0);
        assert_eq!(slow.latency_us(after(start, 10_000_000)), Some(1.0));
    }

    #[test]
    fn reading_changes_nothing() {
        let start = Instant::now();
        let mut read = NodeLoad::new();
        let mut unread = NodeLoad::new();
        for load in [&mut read, &mut unread] {
            load.reply(start, 80 * MS, true);
            load.reply(start, MS, false);
        }
        for i in 0..100 {
            read.latency_us(after(start, i));
            read.failure(after(start, i));
        }
        for load in [&mut read, &mut unread] {
            load.reply(after(start, 100), 20 * MS, true);
        }
        assert_eq!(read.latency_us(after(start, 200)), unread.latency_us(after(start, 200)));
        assert_eq!(read.failure(after(start, 200)), unread.failure(after(start, 200)));
    }

    #[test]
    fn failing_fast_does_not_make_a_node_fast() {
        let start = Instant::now();
        let mut load = NodeLoad::new();
        load.reply(start, MS / 10, false);
        assert_eq!(load.latency_us(start), None, "a failure is no latency");
        load.reply(start, 50 * MS, true);
        for _ in 0..1000 {
            load.reply(start, MS / 10, false);
        }
        assert_eq!(load.latency_us(start), Some(50_000.0));
        assert!(load.failure(start) > 0.99);
    }

    #[test]
    fn a_call_that_hung_shows_how_slow_the_node_is() {
        let start = Instant::now();
        let mut load = NodeLoad::new();
        load.reply(start, 50 * MS, true);
        load.reply(after(start, 5_000), 5_000 * MS, false);
        assert_eq!(load.latency_us(after(start, 5_000)), Some(5_000_000.0));
    }

    #[test]
    fn failures_are_forgiven_by_good_answers_and_by_time() {
        let start = Instant::now();
        let mut load = NodeLoad::new();
        load.reply(start, MS, false);
        assert!((load.failure(start) - 0.3).abs() < 1e-9);
        let later = load.failure(after(start, 10_000));
        assert!((later - 0.3 / std::f64::consts::E).abs() < 1e-6, "{later}");
        for _ in 0..40 {
            load.reply(start, MS, true);
        }
        assert_eq!(load.failure(start), 0.0);
    }

    proptest! {
        #[test]
        fn estimates_stay_finite_and_between_the_extremes(
            replies in prop::collection::vec((0u64..20_000, 0u64..10_000_000, any::<bool>()), 1..200),
            idle_ms in 0u64..1_000_000,
        ) {
            let start = Instant::now();
            let mut load = NodeLoad::new();
            let (mut highest, mut good) = (0u64, false);
            for (at_ms, latency_us, ok) in replies {
                // The times are in no order, as replies of several threads may be.
                let now = after(start, at_ms);
                let before = load.latency_us(now);
                load.reply(now, Duration::from_micros(latency_us), ok);
                highest = highest.max(latency_us);
                good |= ok;
                let estimate = load.latency_us(now);
                prop_assert_eq!(estimate.is_some(), good);
                if let Some(estimate) = estimate {
                    prop_assert!(estimate.is_finite() && estimate >= 1.0);
                    prop_assert!(estimate <= (highest as f64).max(1.0) * (1.0 + 1e-9));
                    prop_assert!(ok || estimate >= before.unwrap(), "a failure lowered the estimate");
                }
                prop_assert!((0.0..=1.0).contains(&load.failure(now)));
                let idle = after(start, at_ms + idle_ms);
                prop_assert!(load.latency_us(idle) <= estimate);
                prop_assert!(load.failure(idle) <= load.failure(now));
            }
        }

        #[test]
        fn the_series_meets_exp(x in 0.0f64..0.2) {
            let start = Instant::now();
            let decaying = Decaying { value: 1.0, at: start };
            let exact = (-x).exp();
            prop_assert!((decaying.read(start + DECAY.mul_f64(x)) - exact).abs() < 3e-5);
        }
    }
}
