//! What an answer takes when the server is otherwise idle.

/// Successes over which the idle response time is averaged: as many as make its variance this
/// small, within [`SAMPLES_MIN`] and [`SAMPLES_MAX`]. More would notice a change later.
const VARIANCE: f64 = 0.03;

/// Least number of successes over which is averaged.
const SAMPLES_MIN: f64 = 16.0;

/// Largest number of successes over which is averaged.
const SAMPLES_MAX: f64 = 100.0;

/// Weight of a success in the drift.
const DRIFT_GAIN: f64 = 0.25;

/// A success counts in the drift as no more than so many standard deviations: a few of another kind are no
/// drift.
const DRIFT_STEP_MAX: f64 = 3.0;

/// A larger drift, in standard deviations, is a change. Without one it varies by 0.38.
const DRIFT_MAX: f64 = 2.0;

/// A success counts in the variance that the drift is compared with as no more than so many standard
/// deviations, so that a change does not make itself look usual.
const SPREAD_STEP_MAX: f64 = 2.0;

/// The least such variance: a tenth more or less is no change, however even the times were.
const SPREAD_MIN: f64 = 0.01;

/// Successes that the idle response time counts as after a change.
const CHANGED_SAMPLES: f64 = 4.0;

/// Successes over which the level is averaged from which deviations are taken.
pub(super) const LEVEL_SAMPLES: f64 = 32.0;

/// Mean logarithm of what answers take when the server is otherwise idle: robust to the heavy tail of
/// response times.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdleTime {
    mean: f64,
    /// Of single values.
    variance: f64,
    count: f64,
    /// By how many standard deviations the last few values were off the mean.
    drift: f64,
    /// The variance for it.
    spread: f64,
    /// Recent mean of the logarithm of the response time as it is.
    level: f64,
}

impl IdleTime {
    /// The time in microseconds; 0 if nothing was answered yet.
    pub(super) fn us(&self) -> f64 {
        if self.count == 0.0 { 0.0 } else { self.mean.exp() * 1e6 }
    }

    /// How far a response time is off the recent ones.
    pub(super) fn off_level(&mut self, ln_seconds: f64) -> f64 {
        if self.count == 0.0 {
            self.level = ln_seconds;
        }
        let off = ln_seconds - self.level;
        self.level += off / (self.count + 1.0).min(LEVEL_SAMPLES);
        off
    }

    /// A response time, with what the load added taken off, in logarithms of seconds.
    pub(super) fn add(&mut self, value: f64) {
        let samples_max = (self.variance / VARIANCE).clamp(SAMPLES_MIN, SAMPLES_MAX);
        self.count = (self.count + 1.0).min(samples_max);
        let off = value - self.mean;
        self.mean += off / self.count;
        // The first value has nothing to be off from.
        if self.count > 1.0 {
            self.variance += (off * off - self.variance) / self.count;
            self.begin_anew_if_changed(off);
        }
    }

    /// After a large change, such as to a tenth of the speed, the mean begins anew (EWMA control chart; Roberts,
    /// 1959). Without that, a server that is slower, and avoided for it, would take seconds to see by the few
    /// calls it still gets how slow it is. What passes soon, such as a neighbour that takes half of the processor, is
    /// left to the mean: to follow it as quickly makes no call faster.
    fn begin_anew_if_changed(&mut self, off: f64) {
        let spread = self.spread.max(SPREAD_MIN);
        let deviations = (off / spread.sqrt()).clamp(-DRIFT_STEP_MAX, DRIFT_STEP_MAX);
        self.drift += DRIFT_GAIN * (deviations - self.drift);
        self.spread += ((off * off).min(SPREAD_STEP_MAX.powi(2) * spread) - self.spread) / self.count;
        if self.count >= SAMPLES_MIN && self.drift.abs() > DRIFT_MAX {
            self.mean += self.drift * self.spread.sqrt();
            self.drift = 0.0;
            self.count = CHANGED_SAMPLES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After 200 times of 20 ms, give or take a factor of about 1.5, those that `times` makes of some more.
    fn after(seed: u64, times: impl Iterator<Item = f64>) -> f64 {
        let mut random = seed;
        let mut idle = IdleTime::default();
        let usual = std::iter::repeat_n(1.0, 200);
        for times in usual.chain(times) {
            // Knuth's generator; the sum of three uniform numbers is near enough to a normal one.
            let mut unit = || {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 11) as f64 / (1u64 << 53) as f64
            };
            let noise = 0.8 * (unit() + unit() + unit() - 1.5);
            idle.add((0.02 * times).ln() + noise);
        }
        idle.us() / 20_000.0
    }

    #[test]
    fn ten_times_as_slow_or_as_fast_is_seen_within_a_few_answers() {
        let seen = |times, seed| after(seed, std::iter::repeat_n(times, 10));
        for seed in 0..50 {
            let (slower, faster) = (seen(10.0, seed), seen(0.1, seed));
            assert!((4.0..20.0).contains(&slower), "seed {seed}: {slower}");
            assert!((0.05..0.25).contains(&faster), "seed {seed}: {faster}");
        }
    }

    #[test]
    fn what_takes_long_now_and_then_is_no_change() {
        for seed in 0..50 {
            let mixed = after(seed, (0..200).map(|i| if i % 10 > 7 { 10.0 } else { 1.0 }));
            assert!((1.0..3.0).contains(&mixed), "seed {seed}: {mixed}");
        }
    }
}
