//! The share of failures.

use std::time::Duration;

use tokio::time::Instant;

/// Time constant with which failures are forgotten.
const ERRORS_DECAY: Duration = Duration::from_secs(5);

/// Weight of one outcome in the share of failures. A server that begins to fail at once must be
/// seen to within a few requests, as it answers them fast.
const ERRORS_GAIN: f64 = 0.05;

/// The share of failures, which fades when nothing comes in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Errors {
    share: f64,
    at: Instant,
}

impl Errors {
    pub(super) fn new(now: Instant) -> Self {
        Self { share: 0.0, at: now }
    }

    pub(super) fn add(&mut self, now: Instant, failed: bool) {
        // A server that never failed, the usual one, does no arithmetic here.
        if failed || self.share > 0.0 {
            let target = if failed { 1.0 } else { 0.0 };
            let share = self.share(now);
            self.share = share + ERRORS_GAIN * (target - share);
            self.at = self.at.max(now);
        }
    }

    pub(super) fn share(&self, now: Instant) -> f64 {
        if self.share == 0.0 {
            return 0.0;
        }
        let passed = now.saturating_duration_since(self.at);
        self.share * (-passed.as_secs_f64() / ERRORS_DECAY.as_secs_f64()).exp()
    }
}
