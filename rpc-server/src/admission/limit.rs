//! How many calls run at once.

use std::num::NonZeroUsize;

use tokio::time::Instant;

use super::gradient::Gradient;

/// How many calls a server runs at once. Its queue and what becomes of calls beyond are those of
/// [`crate::ServerConfig::queue_max`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConcurrencyLimit {
    /// As many as arrive.
    #[default]
    Unlimited,
    /// So many.
    Fixed(NonZeroUsize),
    /// As many as the server is seen to run without slowing them down, which is measured all the
    /// time (by the gradient of the response time, as Envoy's adaptive concurrency does). It starts
    /// at 4, at which calls are refused, and grows by more than half every 100 ms when needed. For
    /// calls that take similar times; where a few take far longer, set a fixed limit.
    Adaptive,
}

/// The limit in force.
#[derive(Debug)]
pub(super) enum Limit {
    Fixed(usize),
    Adaptive(Box<Gradient>),
}

impl Limit {
    /// None if calls are not limited.
    pub(super) fn new(limit: ConcurrencyLimit) -> Option<Self> {
        match limit {
            ConcurrencyLimit::Unlimited => None,
            ConcurrencyLimit::Fixed(limit) => Some(Self::Fixed(limit.get())),
            ConcurrencyLimit::Adaptive => Some(Self::Adaptive(Box::default())),
        }
    }

    /// Calls that may run at `now`, at least 1.
    pub(super) fn now(&mut self, now: Instant) -> usize {
        match self {
            Self::Fixed(limit) => *limit,
            Self::Adaptive(gradient) => gradient.limit(now),
        }
    }

    /// A call began; `running` with it.
    pub(super) fn began(&mut self, running: usize) {
        if let Self::Adaptive(gradient) = self {
            gradient.began(running);
        }
    }

    /// A call found all places taken.
    pub(super) fn found_full(&mut self) {
        if let Self::Adaptive(gradient) = self {
            gradient.found_full();
        }
    }

    /// A call ended.
    pub(super) fn ended(&mut self, now: Instant, began: Instant, answered: bool) {
        if let Self::Adaptive(gradient) = self {
            gradient.ended(now, began, answered);
        }
    }
}
