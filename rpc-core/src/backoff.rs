//! How long to wait before trying again.

use std::time::Duration;

/// The delay before retry `attempt` (counted from 0): `first` doubling up to `max`, with full
/// jitter, so that many clients that lost one server do not come back in step.
///
/// `random` is any 64 random bits; the delay is uniform between 0 and the doubled value.
/// Source of the scheme: Marc Brooker, "Exponential Backoff and Jitter" (AWS, 2015).
pub fn full_jitter(attempt: u32, first: Duration, max: Duration, random: u64) -> Duration {
    let ceiling = first.saturating_mul(1u32.checked_shl(attempt.min(31)).unwrap_or(u32::MAX)).min(max);
    let nanos = u64::try_from(ceiling.as_nanos()).unwrap_or(u64::MAX);
    // The high half of the product is a uniform number below `nanos`.
    Duration::from_nanos(((u128::from(random) * u128::from(nanos)) >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_maximum_and_uses_the_whole_range() {
        let first = Duration::from_millis(50);
        let max = Duration::from_secs(10);
        assert_eq!(full_jitter(0, first, max, 0), Duration::ZERO);
        let almost = |d: Duration| d - Duration::from_nanos(1);
        assert_eq!(full_jitter(0, first, max, u64::MAX), almost(first));
        assert_eq!(full_jitter(3, first, max, u64::MAX), almost(first * 8));
        assert_eq!(full_jitter(40, first, max, u64::MAX), almost(max));
    }
}
