//! How each request enters the server's load, and how the load gets back to clients.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rpc_core::LoadReport;
use rpc_core::load::{Begun, Finish, LoadMeter};
use rpc_core::wire::LoadText;
use tokio::time::Instant;

/// A report is spelled once in so long while the requests in progress stay the same, and what was answered at once enters
/// the load together. Shorter than the way to any client, which makes each report older than that.
const FRESH: Duration = Duration::from_micros(100);

/// The load of one server, shared by its connections.
#[derive(Debug)]
pub(crate) struct Load(Mutex<State>);

#[derive(Debug)]
struct State {
    meter: LoadMeter,
    /// Not in the meter yet.
    at_once: Option<AtOnce>,
    said: Option<Said>,
}

/// Requests of one method that were answered at once.
#[derive(Debug)]
struct AtOnce {
    method: u32,
    answered: u32,
    failed: u32,
    took: Duration,
    last: Instant,
    /// Until when more are added.
    until: Instant,
}

/// The last report.
#[derive(Debug)]
struct Said {
    text: LoadText,
    method: u32,
    in_flight: u32,
    until: Instant,
}

impl Load {
    pub(crate) fn new(concurrency: f64) -> Self {
        let meter = LoadMeter::new(concurrency, Instant::now());
        Self(Mutex::new(State { meter, at_once: None, said: None }))
    }

    /// Requests in progress.
    pub(crate) fn in_flight(&self) -> u32 {
        self.0.lock().meter.in_flight()
    }

    /// The load, and how long the method takes.
    pub(crate) fn report(&self, method: u32) -> LoadReport {
        self.0.lock().settled().report(Instant::now(), method)
    }

    /// The same to be sent along with what is answered at once.
    pub(crate) fn say(&self, now: Instant, method: u32) -> LoadText {
        let mut state = self.0.lock();
        let in_flight = state.meter.in_flight();
        if let Some(said) = &state.said
            && (said.method, said.in_flight) == (method, in_flight)
            && now < said.until
        {
            return said.text;
        }
        let text = LoadText::new(&state.settled().report(now, method));
        state.said = Some(Said { text, method, in_flight, until: now + FRESH });
        text
    }

    /// Counts requests whose handlers were ready at once, all of one read together: timing each
    /// would cost more than most of them take.
    pub(crate) fn answered_at_once(&self, now: Instant, tally: &Tally, took: Duration) {
        let &Tally { answered, failed, method, .. } = tally;
        let mut state = self.0.lock();
        match &mut state.at_once {
            Some(more) if more.method == method && now < more.until => {
                more.answered += answered;
                more.failed += failed;
                more.took += took;
                more.last = now;
            }
            _ => {
                state.settled();
                state.at_once = Some(AtOnce { method, answered, failed, took, last: now, until: now + FRESH });
            }
        }
    }
}

impl State {
    /// The meter, with all in it.
    fn settled(&mut self) -> &mut LoadMeter {
        if let Some(AtOnce { method, answered, failed, took, last, .. }) = self.at_once.take() {
            self.meter.answered_at_once(last, method, answered + failed, took, failed);
        }
        &mut self.meter
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
        let begun = load.0.lock().settled().begin(now, method);
        Self { load: load.clone(), begun: Some(begun), method, reports }
    }

    fn end(&mut self, finish: Finish) -> Option<LoadText> {
        let begun = self.begun.take()?;
        let now = Instant::now();
        let mut state = self.load.0.lock();
        let meter = state.settled();
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

#[cfg(test)]
mod tests {
    use rpc_core::wire::parse_load;

    use super::*;

    const ECHO: u32 = 7;

    fn answered(load: &Load, now: Instant, took: Duration) {
        load.answered_at_once(now, &Tally { answered: 1, method: ECHO, ..Tally::default() }, took);
    }

    fn said(load: &Load, now: Instant) -> LoadReport {
        parse_load(load.say(now, ECHO).as_bytes()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_is_as_old_as_the_way_to_a_client_at_most() {
        let load = Load::new(2.0);
        let start = Instant::now();
        answered(&load, start, Duration::from_millis(1));
        let first = said(&load, start);
        answered(&load, start, Duration::from_millis(9));
        assert_eq!(said(&load, start + FRESH / 2), first);
        let later = said(&load, start + FRESH);
        assert!(later.service_us > 2.0 * first.service_us, "{first:?} {later:?}");
        // A request in progress is in it at once.
        let running = Running::begin(&Arc::new(load), start + FRESH, ECHO, true);
        assert_eq!(said(&running.load, start + FRESH).in_flight, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn many_answers_in_a_short_time_are_one_sample() {
        let load = Load::new(2.0);
        let start = Instant::now();
        let us = Duration::from_micros(1);
        answered(&load, start, us * 100);
        for n in 1..10 {
            answered(&load, start + us * n, us * 10);
        }
        assert_eq!(load.report(ECHO).service_us.round(), 19.0, "100 + 9 x 10 us for ten");
    }
}
