//! What an answer takes when the server is otherwise idle.

/// Successes over which the idle response time is averaged: as many as make its variance this
/// small, within [`SAMPLES_MIN`] and [`SAMPLES_MAX`]. More would notice a change later.
const VARIANCE: f64 = 0.03;

/// Least number of successes over which is averaged.
const SAMPLES_MIN: f64 = 16.0;

/// Largest number of successes over which is averaged.
const SAMPLES_MAX: f64 = 100.0;

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
        }
    }
}
