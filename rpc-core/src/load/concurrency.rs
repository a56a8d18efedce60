//! How many requests a server runs at once without slowing down.

use super::idle_time::LEVEL_SAMPLES;

/// Successes from which it is learnt whether requests slow each other down.
const SLOPE_SAMPLES: f64 = 2048.0;

/// Fewer prove nothing.
const SLOPE_SAMPLES_MIN: f64 = 64.0;

/// Below this slope requests do not slow each other down.
const SLOPE_FLAT: f64 = 0.15;

/// How many more requests, than were seen not to slow each other down, a server may get.
const HEADROOM: f64 = 1.5;

/// Weight of one request in the learnt concurrency.
const CONCURRENCY_GAIN: f64 = 1.0 / 128.0;

/// Least concurrency.
const CONCURRENCY_MIN: f64 = 0.1;

/// Largest concurrency.
const CONCURRENCY_MAX: f64 = 1e6;

/// How many requests the server runs at once without slowing down: the hint, until it is seen to
/// run more. Requests that wait for something else rather than compute do not slow each other
/// down, and the hint, made from cores, would keep callers away for nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Concurrency {
    hint: f64,
    value: f64,
    /// Recent mean of the logarithm of requests in flight. Deviations are from recent means, so that
    /// a server that changes its speed, and is avoided for it, proves nothing.
    ln_shared: f64,
    time_time: f64,
    time_shared: f64,
    shared_shared: f64,
    count: f64,
}

impl Concurrency {
    pub(super) fn new(hint: f64) -> Self {
        let hint = hint.clamp(CONCURRENCY_MIN, CONCURRENCY_MAX);
        Self { hint, value: hint, ln_shared: 0.0, time_time: 0.0, time_shared: 0.0, shared_shared: 0.0, count: 0.0 }
    }

    pub(super) fn value(&self) -> f64 {
        self.value
    }

    /// A request took so much longer than others of its method lately, in logarithms.
    pub(super) fn learn(&mut self, time: f64, ln_shared: f64) {
        self.count = (self.count + 1.0).min(SLOPE_SAMPLES);
        let shared = ln_shared - self.ln_shared;
        let gain = 1.0 / self.count.min(LEVEL_SAMPLES);
        self.ln_shared += shared * gain;
        if self.count <= LEVEL_SAMPLES {
            return;
        }
        let gain = 1.0 / (self.count - LEVEL_SAMPLES);
        self.time_time += (time * time - self.time_time) * gain;
        self.time_shared += (time * shared - self.time_shared) * gain;
        self.shared_shared += (shared * shared - self.shared_shared) * gain;
        let target = if self.is_flat() { self.value.max(HEADROOM * self.ln_shared.exp()) } else { self.hint };
        self.value = (self.value + (target - self.value) * CONCURRENCY_GAIN).clamp(self.hint, CONCURRENCY_MAX);
    }

    /// Whether response times provably do not depend on the requests in flight: the slope of one
    /// logarithm over the other, which is 1 for a busy processor, is about 0.
    fn is_flat(&self) -> bool {
        let samples = self.count - LEVEL_SAMPLES;
        if samples < SLOPE_SAMPLES_MIN || self.shared_shared <= 1e-3 {
            return false;
        }
        let slope = self.time_shared / self.shared_shared;
        let unexplained = (self.time_time - slope * self.time_shared).max(0.0);
        let error = (unexplained / (samples * self.shared_shared)).sqrt();
        slope.abs() + 2.0 * error < SLOPE_FLAT
    }
}
