//! How loaded a server is, by its own account, and how long a call to it will take.
//!
//! The server keeps a [`LoadMeter`] and sends its [`LoadReport`]s; the client compares nodes by
//! [`expected_us`], and the server refuses by the same formula, so both mean the same by a bound.

mod concurrency;
mod errors;
mod idle_time;
mod meter;
mod recent;

pub use self::meter::{Begun, Finish, LoadMeter};

/// Share of the permits (or cores) up to which a server answers at full speed, for the default of
/// [`LoadMeter::new`]: half of them. Too low only spreads the calls more evenly than needed; too
/// high hides queues (ablation in `docs/BALANCING.md`).
pub const CONCURRENCY_PER_PERMIT: f64 = 0.5;

/// A success rate is not believed below this, so that every expected time stays finite.
const SUCCESS_MIN: f64 = 0.01;

/// A method's name as a number, the same on both sides (FNV-1a, 32 bits), never 0.
#[inline]
pub fn method_hash(name: &str) -> u32 {
    let hash = name.bytes().fold(0x811C_9DC5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.max(1)
}

/// A server's own account of its load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadReport {
    /// The method that `service_us` is about, as [`method_hash`] has it; 0 is none in particular.
    pub method: u32,
    /// Requests in flight at the server, from everybody.
    pub in_flight: u32,
    /// What an answer of the method takes when the server is otherwise idle, in microseconds; 0 is
    /// unknown.
    pub service_us: f64,
    /// Requests that it can run at once without slowing down.
    pub concurrency: f64,
    /// Share of recent requests that failed, 0 to 1.
    pub errors: f64,
    /// Median of the latest response times at about the present number in flight, in microseconds;
    /// 0 is unknown.
    pub latency_us: f64,
}

/// What a call is expected to take, in microseconds, on a node that answers in `service_us` when
/// idle, with `utilization` times as many calls (this one included) as it can run at once. It
/// grows with the square beyond that: more than such a queue costs, as what is known of it is
/// always a little old. `failure` is the share of calls that fail.
pub fn expected_us(service_us: f64, utilization: f64, failure: f64) -> f64 {
    let square = utilization * utilization;
    let success = (1.0 - failure).clamp(SUCCESS_MIN, 1.0);
    service_us * ((1.0 + square * square).sqrt() + 0.15 * utilization) / success.powi(4)
}

impl LoadReport {
    /// What one more call is expected to take, in microseconds: the value that a bound is compared
    /// with.
    pub fn expected_us(&self) -> f64 {
        expected_us(self.service_us, (f64::from(self.in_flight) + 1.0) / self.concurrency, self.errors)
    }
}
