//! Numbers of the runs of a job, of which each runs once in the whole cluster.

use std::time::Duration;

use tokio::time::Instant;

/// Claims refused in a row after which the leader takes its clock to be behind that of a former leader.
/// One is refused when leadership changes within a slot.
const REFUSALS_MAX: u32 = 2;

/// Which slot a firing is for: seconds since the Unix epoch, by this machine's clock, divided by the
/// period. Pure.
///
/// Clocks are set back, and those of two machines differ. A leader whose clock shows a slot that it has
/// claimed already although a period has passed goes on counting by the monotonic clock. One
/// whose claims are refused again and again looks for a number above the last one, in steps that
/// double.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    period: Duration,
    claimed: Option<(u64, Instant)>,
    refusals: u32,
}

impl Slots {
    pub(crate) fn new(period: Duration) -> Self {
        Self { period, claimed: None, refusals: 0 }
    }

    /// The slots to claim for a firing at `now`, one after the other until one is granted.
    pub(crate) fn candidates(&self, unix_seconds: u64, now: Instant) -> impl Iterator<Item = u64> + use<> {
        let by_wall = unix_seconds / self.period.as_secs().max(1);
        let first = match self.claimed {
            Some((slot, at)) if by_wall <= slot => {
                let periods = now.saturating_duration_since(at).as_nanos() / self.period.as_nanos().max(1);
                slot.saturating_add(u64::try_from(periods).unwrap_or(u64::MAX))
            }
            _ => by_wall,
        };
        // Half a million years of seconds: whatever a clock showed, it is found.
        let steps = if self.refusals >= REFUSALS_MAX { 44 } else { 0 };
        std::iter::once(first).chain((0..steps).map(move |step| first.saturating_add(1 << step)))
    }

    /// A slot was granted.
    pub(crate) fn granted(&mut self, slot: u64, now: Instant) {
        self.claimed = Some((slot, now));
        self.refusals = 0;
    }

    /// None was.
    pub(crate) fn refused(&mut self) {
        self.refusals = self.refusals.saturating_add(1);
    }

    /// This process does not lead, so nothing can be said of its clock.
    pub(crate) fn not_leading(&mut self) {
        self.refusals = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(5);

    /// The cluster's memory of the last slot.
    #[derive(Default)]
    struct Cluster(u64);

    impl Cluster {
        fn fire(&mut self, slots: &mut Slots, unix_seconds: u64, now: Instant) -> Option<u64> {
            for slot in slots.candidates(unix_seconds, now) {
                if slot > self.0 {
                    self.0 = slot;
                    slots.granted(slot, now);
                    return Some(slot);
                }
            }
            slots.refused();
            None
        }
    }

    #[test]
    fn a_slot_is_the_unix_time_over_the_period_and_runs_once() {
        let start = Instant::now();
        let (mut cluster, mut a, mut b) = (Cluster::default(), Slots::new(PERIOD), Slots::new(PERIOD));
        assert_eq!(cluster.fire(&mut a, 1_000, start), Some(200));
        assert_eq!(cluster.fire(&mut a, 1_004, start + PERIOD / 2), None, "the same slot");
        assert_eq!(cluster.fire(&mut b, 1_003, start), None, "the same slot by another leader");
        assert_eq!(cluster.fire(&mut b, 1_005, start + PERIOD), Some(201));
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_stop_the_job() {
        let start = Instant::now();
        let (mut cluster, mut slots) = (Cluster::default(), Slots::new(PERIOD));
        assert_eq!(cluster.fire(&mut slots, 100_000, start), Some(20_000));
        for firing in 1..=3 {
            let now = start + PERIOD * firing;
            assert_eq!(cluster.fire(&mut slots, 50_000 + 5 * u64::from(firing), now), Some(20_000 + u64::from(firing)));
        }
    }

    #[test]
    fn a_new_leader_whose_clock_is_behind_catches_up_at_its_third_firing() {
        let start = Instant::now();
        let (mut cluster, mut old, mut new) = (Cluster::default(), Slots::new(PERIOD), Slots::new(PERIOD));
        assert_eq!(cluster.fire(&mut old, 100_000, start), Some(20_000));
        let granted: Vec<bool> = (0..6)
            .map(|firing| cluster.fire(&mut new, 50_000 + 5 * firing, start + PERIOD * firing as u32).is_some())
            .collect();
        assert_eq!(granted, [false, false, true, true, true, true]);
    }

    #[test]
    fn whoever_does_not_lead_keeps_to_its_clock() {
        let now = Instant::now();
        let mut slots = Slots::new(PERIOD);
        (0..9).for_each(|_| slots.refused());
        slots.not_leading();
        assert_eq!(slots.candidates(1_000, now).collect::<Vec<_>>(), [200]);
    }
}
