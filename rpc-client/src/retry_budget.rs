//! How many repeated attempts a client may make.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Each call earns a tenth of a repeat: in a total outage, retries add at most 10 % load.
pub(crate) const PERMILLE_PER_CALL: u64 = 100;

/// Repeats earned a second whatever the traffic, so that a client that calls rarely may repeat too.
pub(crate) const PER_SECOND: u64 = 3;

/// The most that can be saved up, and what a client starts with: enough to move the calls in flight
/// of one lost connection.
pub(crate) const BURST: u64 = 100;

/// One repeat, in the unit that the budget counts in.
const REPEAT: u64 = 1000;

/// A token bucket of repeats, in thousandths. Pure: the same calls at the same times give the same
/// answers.
///
/// It limits attempts that may have started (only idempotent calls are repeated then). An attempt
/// that was provably not started costs nothing, so it does not come here.
#[derive(Clone, Debug)]
pub(crate) struct RetryBudget {
    permille: u64,
    filled_at: Instant,
}

impl RetryBudget {
    /// A full budget.
    pub(crate) fn new(now: Instant) -> Self {
        Self { permille: BURST * REPEAT, filled_at: now }
    }

    /// Earns the share of `count` new calls. They can be counted elsewhere and handed over late,
    /// in one sum: only what was spent in between could tell the difference, and nothing was.
    pub(crate) fn calls(&mut self, count: u64) {
        self.earn(count.saturating_mul(PERMILLE_PER_CALL));
    }

    /// Takes one repeat out of the budget; `false` if there is none.
    pub(crate) fn try_spend(&mut self, now: Instant) -> bool {
        self.fill(now);
        let allowed = self.permille >= REPEAT;
        if allowed {
            self.permille -= REPEAT;
        }
        allowed
    }

    #[cfg(test)]
    /// Whole repeats that are left at `now`.
    pub(crate) fn left(&self, now: Instant) -> u64 {
        let mut then = self.clone();
        then.fill(now);
        then.permille / REPEAT
    }

    fn fill(&mut self, now: Instant) {
        // In whole milliseconds, of which each earns PER_SECOND thousandths exactly; the rest of
        // the time stays for the next filling.
        let ms = u64::try_from(now.saturating_duration_since(self.filled_at).as_millis()).unwrap_or(u64::MAX);
        self.earn(ms.saturating_mul(PER_SECOND * REPEAT / 1000));
        self.filled_at = self.filled_at.checked_add(Duration::from_millis(ms)).unwrap_or(now);
    }

    fn earn(&mut self, permille: u64) {
        self.permille = self.permille.saturating_add(permille).min(BURST * REPEAT);
    }
}

/// A [`RetryBudget`] for many callers, whose calls are counted elsewhere.
#[derive(Debug)]
pub(crate) struct SharedBudget(Mutex<Counted>);

#[derive(Debug)]
struct Counted {
    budget: RetryBudget,
    /// Calls whose share was earned.
    calls: u64,
}

impl SharedBudget {
    /// A full budget.
    pub(crate) fn new(now: Instant) -> Self {
        Self(Mutex::new(Counted { budget: RetryBudget::new(now), calls: 0 }))
    }

    /// Takes one repeat out of the budget, after `calls` calls in all; `false` if there is none.
    pub(crate) fn try_spend(&self, now: Instant, calls: u64) -> bool {
        let mut counted = self.0.lock();
        let new = calls.saturating_sub(counted.calls);
        counted.calls += new;
        counted.budget.calls(new);
        counted.budget.try_spend(now)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn empty(now: Instant) -> RetryBudget {
        let mut budget = RetryBudget::new(now);
        for _ in 0..BURST {
            assert!(budget.try_spend(now));
        }
        assert!(!budget.try_spend(now), "the burst is {BURST}");
        budget
    }

    #[test]
    fn ten_calls_earn_one_repeat() {
        let now = Instant::now();
        let mut budget = empty(now);
        budget.calls(9);
        assert!(!budget.try_spend(now));
        budget.calls(1);
        assert!(budget.try_spend(now));
        assert!(!budget.try_spend(now));
    }

    #[test]
    fn three_repeats_a_second_come_without_calls() {
        let now = Instant::now();
        let mut budget = empty(now);
        let granted = (1..=1000).filter(|ms| budget.try_spend(now + Duration::from_micros(ms * 10_000))).count();
        assert_eq!(granted, 30, "10 s");
        assert_eq!(budget.left(now + Duration::from_secs(3600)), BURST);
    }

    proptest! {
        #[test]
        fn never_more_than_the_burst_a_tenth_of_the_calls_and_three_a_second(
            steps in prop::collection::vec((0u64..2_000, 0u64..500, 0usize..200), 1..100),
        ) {
            let start = Instant::now();
            let (mut now, mut budget, mut calls, mut spent) = (start, RetryBudget::new(start), 0, 0);
            for (wait_ms, new_calls, wanted) in steps {
                now += Duration::from_millis(wait_ms);
                budget.calls(new_calls);
                calls += new_calls;
                spent += (0..wanted).filter(|_| budget.try_spend(now)).count() as u64;
                let seconds = (now - start).as_secs_f64();
                prop_assert!(spent as f64 <= BURST as f64 + calls as f64 * 0.1 + seconds * 3.0 + 1e-6);
            }
        }

        #[test]
        fn handing_calls_over_in_one_sum_is_the_same(counts in prop::collection::vec(0u64..400, 0..20)) {
            let now = Instant::now();
            let (mut one_by_one, mut at_once) = (empty(now), empty(now));
            counts.iter().for_each(|&count| one_by_one.calls(count));
            at_once.calls(counts.iter().sum());
            prop_assert_eq!(one_by_one.left(now), at_once.left(now));
        }
    }
}
