//! The latest response times, by load.

/// Response times kept per level of load, for [`super::LoadReport::latency_us`].
const RECENT: usize = 8;

/// Levels of load for which response times are kept: two per doubling of the requests in flight.
const LEVELS: usize = 32;

/// The latest response times at each level of load.
#[derive(Clone, Debug)]
pub(super) struct RecentTimes {
    levels: Vec<Recent>,
}

impl RecentTimes {
    pub(super) fn new() -> Self {
        Self { levels: vec![Recent::default(); LEVELS] }
    }

    /// A response time of a request that arrived when there were so many, itself included.
    pub(super) fn add(&mut self, in_flight: u32, us: f64) {
        self.levels[level(in_flight)].add(us);
    }

    /// The median at the level nearest to so many requests; 0 if there is none.
    pub(super) fn median_us(&self, in_flight: u32) -> f64 {
        let here = level(in_flight);
        let levels = (0..LEVELS).flat_map(|away| [here.checked_sub(away), here.checked_add(away)]);
        let mut medians = levels.flatten().filter_map(|level| self.levels.get(level)?.median());
        medians.next().unwrap_or(0.0)
    }
}

/// The latest response times at one level of load.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    times_us: [f64; RECENT],
    count: usize,
    next: usize,
}

impl Recent {
    fn add(&mut self, us: f64) {
        self.times_us[self.next] = us;
        self.next = (self.next + 1) % RECENT;
        self.count = (self.count + 1).min(RECENT);
    }

    fn median(&self) -> Option<f64> {
        let mut times = self.times_us;
        let times = &mut times[..self.count];
        // The bits of numbers that are not negative are in their order, and faster to compare.
        times.sort_unstable_by_key(|us| us.to_bits());
        times.get(self.count / 2).copied()
    }
}

fn level(in_flight: u32) -> usize {
    ((f64::from(in_flight.max(1)).log2() * 2.0) as usize).min(LEVELS - 1)
}
