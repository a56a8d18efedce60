//! Virtual time: whole nanoseconds from the start of the simulation.

use std::time::Duration;

use tokio::time::Instant;

/// A moment of virtual time, in nanoseconds from the start.
pub type Nanos = u64;

/// One second.
pub const SECOND: Nanos = 1_000_000_000;

/// One millisecond.
pub const MILLISECOND: Nanos = 1_000_000;

/// Turns virtual time into the instants that the client's code takes.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock whose start is any real instant: only differences are ever looked at.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }

    /// The instant that stands for a moment of virtual time.
    pub fn instant(&self, at: Nanos) -> Instant {
        self.start + Duration::from_nanos(at)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// Seconds as virtual time; what is negative is 0.
pub fn seconds(s: f64) -> Nanos {
    (s * 1e9) as Nanos
}

/// Milliseconds as virtual time; what is negative is 0.
pub fn milliseconds(ms: f64) -> Nanos {
    (ms * 1e6) as Nanos
}
