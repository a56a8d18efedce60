//! When a measured response time is written into the registry.

use std::time::Duration;

use rpc_core::registry::Member;
use tokio::time::Instant;

/// Time between two writes of one entry, whoever writes. A second keeps the load on the registry
/// at one write per node and second and leaves four tries before an entry is out of date.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// Longest interval that can be configured: with the jitter, an entry is then still rewritten
/// before it is 4 s old.
pub(crate) const INTERVAL_MAX: Duration = Duration::from_secs(2);

/// Shortest interval that can be configured.
pub(crate) const INTERVAL_MIN: Duration = Duration::from_millis(50);

/// An entry whose value did not move is written again at this age, so that it does not expire at
/// 5 s while it is in use.
pub(crate) const REFRESH_AFTER: Duration = Duration::from_millis(2500);

/// Longest jitter beyond the interval or the refresh.
pub(crate) const JITTER_MAX: Duration = Duration::from_secs(1);

/// How often a client writes: the interval, and its own share of chance in it. All clients see the last
/// write at about the same moment; without the chance they would all write next at the same moment
/// too, and nearly all of them in vain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Time between two writes of one entry by anybody.
    pub(crate) interval: Duration,
    /// From 0 up to 1, drawn anew for each version of the entry.
    pub(crate) jitter: f64,
}

/// Whether a client that measured `median_us` since `since` is to write the entry now.
///
/// * An entry whose value is unknown (0, or out of date) is written within a quarter of the
///   interval: nobody can choose by it until then.
/// * A value that moved by more than a tenth waits for the interval and the jitter.
/// * An entry whose value did not move is refreshed between 2.5 and 3.5 s.
///
/// Ages are counted from the entry's last change by anybody.
pub(crate) fn is_due(entry: &Member, median_us: u64, since: Instant, now: Instant, pace: Pace) -> bool {
    let known_us = entry.response_time_us(now);
    if known_us == 0 {
        let pending = now.saturating_duration_since(since.max(entry.changed_at));
        return pending >= pace.interval.mul_f64(pace.jitter / 4.0);
    }
    let moved = u128::from(median_us.abs_diff(known_us)) * 10 > u128::from(known_us);
    let wait = if moved {
        pace.interval + pace.interval.min(JITTER_MAX).mul_f64(pace.jitter)
    } else {
        REFRESH_AFTER + JITTER_MAX.mul_f64(pace.jitter)
    };
    entry.age(now) >= wait
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rpc_core::NodeRecord;
    use rpc_core::registry::Version;

    use super::*;

    fn entry(response_time_us: u64, changed_at: Instant) -> Member {
        Member {
            addr: ([127, 0, 0, 1], 8898).into(),
            record: NodeRecord::new().with_response_time(response_time_us),
            malformed: None,
            version: Version(1),
            changed_at,
        }
    }

    fn pace(jitter: f64) -> Pace {
        Pace { interval: INTERVAL, jitter }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn an_unknown_entry_is_written_within_a_quarter_of_the_interval() {
        let now = Instant::now();
        let fresh = entry(0, now);
        assert!(is_due(&fresh, 700, now, now, pace(0.0)));
        assert!(!is_due(&fresh, 700, now, now + ms(100), pace(0.999)));
        assert!(is_due(&fresh, 700, now, now + ms(250), pace(0.999)));
        let reset = entry(0, now + ms(9_000));
        assert!(!is_due(&reset, 700, now, now + ms(9_000), pace(0.5)), "old samples do not all rush at a reset entry");
        let expired = entry(700, now);
        assert!(is_due(&expired, 700, now, now + ms(5_001), pace(0.999)));
    }

    #[test]
    fn a_moved_value_waits_for_the_interval_and_the_jitter() {
        let now = Instant::now();
        let known = entry(1000, now);
        for median in [1101, 899, 1, u64::MAX] {
            assert!(!is_due(&known, median, now, now + ms(999), pace(0.0)), "{median}");
            assert!(is_due(&known, median, now, now + ms(1000), pace(0.0)), "{median}");
            assert!(!is_due(&known, median, now, now + ms(1400), pace(0.5)), "{median}");
            assert!(is_due(&known, median, now, now + ms(1500), pace(0.5)), "{median}");
        }
    }

    #[test]
    fn an_unmoved_value_is_refreshed_before_it_is_four_seconds_old() {
        let now = Instant::now();
        let known = entry(1000, now);
        for median in [1000, 1100, 900] {
            assert!(!is_due(&known, median, now, now + ms(2499), pace(0.0)), "{median}");
            assert!(is_due(&known, median, now, now + ms(2500), pace(0.0)), "{median}");
            assert!(is_due(&known, median, now, now + ms(3500), pace(0.999)), "{median}");
        }
    }

    proptest! {
        #[test]
        fn whoever_measures_writes_before_four_seconds_and_not_within_the_interval(
            known in 0u64.., median in 1u64.., age_ms in 0u64..10_000, since_ms in 0u64..10_000,
            interval_ms in 50u64..=2_000, jitter in 0.0f64..1.0,
        ) {
            let start = Instant::now();
            let now = start + ms(10_000);
            let member = entry(known, now - ms(age_ms));
            let pace = Pace { interval: ms(interval_ms), jitter };
            let due = is_due(&member, median, now - ms(since_ms), now, pace);
            if age_ms >= 3_500 && since_ms >= 3_500 {
                prop_assert!(due);
            }
            if known != 0 && age_ms < interval_ms {
                prop_assert!(!due);
            }
        }
    }
}
