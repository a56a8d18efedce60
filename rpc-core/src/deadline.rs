//! When a call has to be over.

use std::time::Duration;

use tokio::time::Instant;

/// The instant at which a call has to be over. On the wire it travels as the milliseconds that
/// remain, so the clocks of two machines are never compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline `timeout` after `now`; a timeout too long to represent counts as thirty years.
    pub fn after(now: Instant, timeout: Duration) -> Self {
        const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
        Self(now.checked_add(timeout).unwrap_or_else(|| now + FAR))
    }

    /// The instant itself.
    pub fn instant(self) -> Instant {
        self.0
    }

    /// What is left at `now`; zero when it is over.
    pub fn remaining(self, now: Instant) -> Duration {
        self.0.saturating_duration_since(now)
    }

    /// Whether it is over at `now`.
    pub fn is_over(self, now: Instant) -> bool {
        now >= self.0
    }

    /// What is left at `now` in whole milliseconds, rounded up: a call with time left never says 0.
    pub fn remaining_ms(self, now: Instant) -> u64 {
        whole_ms(self.remaining(now))
    }
}

/// A time in whole milliseconds, rounded up.
#[inline]
pub fn whole_ms(time: Duration) -> u64 {
    // Two parts: dividing the nanoseconds as one number takes 128 bits and ten times as long.
    time.as_secs().saturating_mul(1000).saturating_add(u64::from(time.subsec_nanos().div_ceil(1_000_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn remaining_is_rounded_up_and_never_negative() {
        let now = Instant::now();
        let deadline = Deadline::after(now, Duration::from_micros(1500));
        assert_eq!(deadline.remaining_ms(now), 2);
        assert!(!deadline.is_over(now));
        let later = now + Duration::from_secs(1);
        assert_eq!(deadline.remaining_ms(later), 0);
        assert!(deadline.is_over(later));
        assert!(!Deadline::after(now, Duration::MAX).is_over(later));
    }
}
