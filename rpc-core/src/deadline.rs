//! When a call has to be over.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// The instant at which a call has to be over. On the wire it travels as the milliseconds that
/// remain, so the clocks of two machines are never compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

thread_local! {
    static CURRENT: Cell<Option<Deadline>> = const { Cell::new(None) };
}

impl Deadline {
    /// The deadline of the call whose handler is being polled on this thread, if it has one. Calls
    /// that a handler makes end by then, however much time they ask for. A task that a handler
    /// spawns is on its own, and has none.
    pub fn current() -> Option<Self> {
        CURRENT.get()
    }

    /// Runs `f` with `deadline` as the current one. For servers, around each poll of a handler.
    pub fn within<R>(deadline: Option<Self>, f: impl FnOnce() -> R) -> R {
        struct Restore(Option<Deadline>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0);
            }
        }
        let _restore = Restore(CURRENT.replace(deadline));
        f()
    }

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

    #[test]
    fn the_current_deadline_ends_with_its_scope_also_by_a_panic() {
        let now = Instant::now();
        let [outer, inner] = [2, 1].map(|s| Some(Deadline::after(now, Duration::from_secs(s))));
        Deadline::within(outer, || {
            Deadline::within(inner, || assert_eq!(Deadline::current(), inner));
            assert_eq!(Deadline::current(), outer);
            Deadline::within(None, || assert_eq!(Deadline::current(), None));
            std::panic::catch_unwind(|| Deadline::within(inner, || panic!("as a handler does"))).unwrap_err();
            assert_eq!(Deadline::current(), outer);
        });
        assert_eq!(Deadline::current(), None);
    }

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
