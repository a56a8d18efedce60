//! `--delay`: a sleep before each answer.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rpc_core::registry::parse_duration;

/// A time, or a range from which each use draws one, uniformly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delay {
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

impl Delay {
    /// Reads `20ms` or `0ms-1000ms`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (from, to) = text.split_once('-').unwrap_or((text, text));
        let (from, to) = (parse_duration(from)?, parse_duration(to)?);
        if from > to {
            return Err(format!("`{text}` ends before it begins"));
        }
        Ok(Self { from, to })
    }

    /// A time of the range: `unit` is 0 to 1.
    fn at(self, unit: f64) -> Duration {
        self.from + (self.to - self.from).mul_f64(unit)
    }
}

/// Sleeps for a [`Delay`].
#[derive(Debug)]
pub(crate) struct Sleeper {
    delay: Delay,
    /// Seeded by the standard library's own randomness, so that servers do not sleep in step.
    random: RandomState,
    drawn: AtomicU64,
}

impl Sleeper {
    pub(crate) fn new(delay: Delay) -> Self {
        Self { delay, random: RandomState::new(), drawn: AtomicU64::new(0) }
    }

    pub(crate) async fn sleep(&self) {
        if self.delay.to == Duration::ZERO {
            return;
        }
        let bits = self.random.hash_one(self.drawn.fetch_add(1, Ordering::Relaxed));
        let unit = (bits >> 11) as f64 / (1u64 << 53) as f64;
        tokio::time::sleep(self.delay.at(unit)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_duration_or_a_range() {
        let ms = Duration::from_millis;
        assert_eq!(Delay::parse("20ms"), Ok(Delay { from: ms(20), to: ms(20) }));
        let range = Delay::parse("0ms-3s").unwrap();
        assert_eq!((range.at(0.0), range.at(0.5), range.at(1.0)), (ms(0), ms(1500), ms(3000)));
        for bad in ["", "5", "-", "5ms-", "10ms-5ms", "1ms-2ms-3ms"] {
            assert!(Delay::parse(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sleeps_are_spread_over_the_range() {
        let sleeper = Sleeper::new(Delay::parse("100ms-200ms").unwrap());
        let mut sum = Duration::ZERO;
        for _ in 0..1000 {
            let start = tokio::time::Instant::now();
            sleeper.sleep().await;
            let slept = start.elapsed();
            assert!((99..=202).contains(&slept.as_millis()), "{slept:?}");
            sum += slept;
        }
        // The mean of 1000 uniform draws is within 5 standard errors, 4.6 ms, of the middle.
        assert!((145..=156).contains(&(sum / 1000).as_millis()), "{sum:?}");
    }
}
