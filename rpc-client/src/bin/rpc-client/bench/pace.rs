//! When the calls of an open loop are to start.

use std::time::Duration;

use tokio::time::Instant;

use super::load::Amount;

/// A stop is noticed this soon.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Evenly spaced times from a start.
#[derive(Debug)]
pub(super) struct Pace {
    started: Instant,
    interval_s: f64,
    total: u64,
}

impl Pace {
    pub(super) fn new(started: Instant, rps: f64, amount: Amount) -> Self {
        let by_duration = amount.duration.map_or(u64::MAX, |duration| (duration.as_secs_f64() * rps).ceil() as u64);
        let total = amount.calls.unwrap_or(u64::MAX).min(by_duration);
        Self { started, interval_s: rps.recip(), total }
    }

    /// When call `number` (from 0) is to start; none beyond the last.
    pub(super) fn start_of(&self, number: u64) -> Option<Instant> {
        (number < self.total).then(|| self.started + Duration::from_secs_f64(number as f64 * self.interval_s))
    }

    /// How many calls were to start up to `now`.
    pub(super) fn due(&self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.started).as_secs_f64();
        // Multiplying may round down what adding up rounded up; a call is then due a moment later.
        ((elapsed / self.interval_s) as u64).saturating_add(1).min(self.total)
    }

    /// How long to wait after the first `given` calls; none if there are no more.
    pub(super) fn pause(&self, given: u64, now: Instant) -> Option<Duration> {
        Some(self.start_of(given)?.saturating_duration_since(now).min(PAUSE_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn every_call_has_its_time_and_none_is_given_twice() {
        let started = Instant::now();
        let amount = Amount { calls: None, duration: Some(Duration::from_secs(1)) };
        let pace = Pace::new(started, 100.0, amount);
        assert_eq!(pace.due(started), 1);
        assert_eq!(pace.due(started + Duration::from_millis(25)), 3);
        assert_eq!(pace.due(started + Duration::from_secs(9)), 100);
        assert_eq!(pace.start_of(3), Some(started + Duration::from_millis(30)));
        assert_eq!(pace.start_of(100), None);
        assert_eq!(pace.pause(3, started + Duration::from_millis(25)), Some(Duration::from_millis(5)));
        assert_eq!(pace.pause(3, started + Duration::from_millis(95)), Some(Duration::ZERO));
        assert_eq!(pace.pause(100, started), None);
        let few = Pace::new(started, 100.0, Amount { calls: Some(5), ..amount });
        assert_eq!((few.start_of(4).is_some(), few.start_of(5)), (true, None));
    }
}
