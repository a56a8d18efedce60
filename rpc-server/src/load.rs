//! How each request enters the server's load, and how the load gets back to clients.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rpc_core::LoadReport;
use rpc_core::load::{Begun, Finish, LoadMeter};
use rpc_core::wire::LoadText;
use tokio::time::Instant;

/// The load of one server, shared by its connections.
#[derive(Debug)]
pub(crate) struct Load(Mutex<LoadMeter>);

impl Load {
    pub(crate) fn new(concurrency: f64) -> Self {
        Self(Mutex::new(LoadMeter::new(concurrency, Instant::now())))
    }

    /// Requests in progress.
    pub(crate) fn in_flight(&self) -> u32 {
        self.0.lock().in_flight()
    }

    /// The load, and how long the method takes.
    pub(crate) fn report(&self, method: u32) -> LoadReport {
        self.0.lock().report(Instant::now(), method)
    }

    /// Counts requests whose handlers were ready at once, all of one read together: timing each
    /// would cost more than most of them take.
    pub(crate) fn answered_at_once(&self, now: Instant, tally: &Tally, took: Duration) {
        let count = tally.answered + tally.failed;
        self.0.lock().answered_at_once(now, tally.method, count, took, tally.failed);
    }
}

/// How one request enters the load.
#[derive(Debug, Default)]
pub(crate) enum Account {
    /// It does not: one of the protocol's own.
    #[default]
    None,
    /// It is refused because of the load, which is sent along.
    Refused(LoadText),
    /// Its handler is polled for the first time, in place.
    AtOnce(Tally),
    /// Its handler was not ready at once.
    Running(Running),
}

/// Requests of one read that were answered at once.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) answered: u32,
    pub(crate) failed: u32,
    /// The latest one's method, which stands for all: they are the shortest of calls.
    pub(crate) method: u32,
    /// The report for the first answer of the next write: all answers of a write leave together, so
    /// one report says it for all.
    pub(crate) report: Option<LoadText>,
}

/// A request in progress. Dropped before its end, it was cancelled.
#[derive(Debug)]
pub(crate) struct Running {
    load: Arc<Load>,
    begun: Option<Begun>,
    method: u32,
    /// The caller wants reports.
    reports: bool,
}

impl Running {
    pub(crate) fn begin(load: &Arc<Load>, now: Instant, method: u32, reports: bool) -> Self {
        let begun = load.0.lock().begin(now, method);
        Self { load: load.clone(), begun: Some(begun), method, reports }
    }

    fn end(&mut self, finish: Finish) -> Option<LoadText> {
        let begun = self.begun.take()?;
        let now = Instant::now();
        let mut meter = self.load.0.lock();
        meter.finish(begun, now, finish);
        self.reports.then(|| LoadText::new(&meter.report(now, self.method)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end(Finish::Cancelled);
    }
}

impl Account {
    /// The request is not part of the load after all.
    pub(crate) fn refuse(&mut self) {
        if let Self::Running(running) = self {
            running.end(Finish::Cancelled);
        }
    }

    /// The request ended; returns the report to send along.
    #[inline]
    pub(crate) fn end(&mut self, ok: bool) -> Option<LoadText> {
        match self {
            Self::None => None,
            Self::Refused(report) => Some(*report),
            Self::AtOnce(tally) => {
                tally.answered += u32::from(ok);
                tally.failed += u32::from(!ok);
                tally.report.take()
            }
            Self::Running(running) => running.end(if ok { Finish::Answered } else { Finish::Failed }),
        }
    }
}
