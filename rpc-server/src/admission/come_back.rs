//! When a refused caller does well to come back. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// No caller is told to stay away for longer: what is known of the load says nothing about later.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(1);

/// What a call takes, before any has ended.
const HELD_FIRST: Duration = Duration::from_millis(10);

/// Weight of a call in the mean time that calls take.
const HELD_GAIN: f64 = 1.0 / 16.0;

/// Gives each refused caller a time of its own, one call's share of the server's time after the one
/// before, so that they return as fast as calls are worked off and not all together. Source of the
/// scheme: the virtual scheduling algorithm of ITU-T I.371 (1996), annex A, known as GCRA.
#[derive(Debug)]
pub(super) struct ComeBack {
    /// Mean seconds that a call takes.
    held: f64,
    /// What the last caller was told.
    last: Option<Instant>,
}

impl Default for ComeBack {
    fn default() -> Self {
        Self { held: HELD_FIRST.as_secs_f64(), last: None }
    }
}

impl ComeBack {
    /// A call ended after this time.
    pub(super) fn ended(&mut self, held: Duration) {
        self.held += HELD_GAIN * (held.as_secs_f64() - self.held);
    }

    /// When to come back to a server that runs `limit` calls at once and has `queued` waiting. Whole
    /// milliseconds, at least 1.
    pub(super) fn after(&mut self, now: Instant, limit: usize, queued: usize) -> Duration {
        let share = self.held / limit.max(1) as f64;
        let seconds = |seconds: f64| Duration::from_secs_f64(seconds.clamp(0.0, RETRY_AFTER_MAX.as_secs_f64()));
        let worked_off = now + seconds(share * queued as f64);
        let at = self.last.map_or(worked_off, |last| last.max(worked_off)) + seconds(share);
        let at = at.min(now + RETRY_AFTER_MAX);
        self.last = Some(at);
        let ms = at.saturating_duration_since(now).as_secs_f64() * 1e3;
        Duration::from_millis((ms.ceil() as u64).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_come_back_one_after_the_other_and_not_too_late() {
        let now = Instant::now();
        let mut come_back = ComeBack::default();
        (0..200).for_each(|_| come_back.ended(Duration::from_millis(80)));
        let ms = |d: Duration| d.as_millis();
        let told: Vec<_> = (0..4).map(|_| ms(come_back.after(now, 8, 8))).collect();
        assert_eq!(told, [90, 100, 110, 120], "8 waiting calls of 80 ms take 8 others 80 ms");
        assert!((0..1000).map(|_| come_back.after(now, 8, 8)).all(|after| after <= RETRY_AFTER_MAX));
        let later = now + Duration::from_secs(5);
        assert_eq!(ms(come_back.after(later, 8, 0)), 10, "nobody is expected any more");
    }
}
