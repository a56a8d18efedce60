//! Measures the load of a server.

use std::time::Duration;

use tokio::time::Instant;

use super::LoadReport;
use super::concurrency::Concurrency;
use super::errors::Errors;
use super::idle_time::IdleTime;
use super::recent::RecentTimes;

/// Methods that are told apart. Of any other the time stays unknown.
const METHODS_MAX: usize = 1024;

/// Measures the load of one server. Pure: the time is an argument. Each call is constant work.
#[derive(Clone, Debug)]
pub struct LoadMeter {
    concurrency: Concurrency,
    in_flight: u32,
    /// Requests in flight, integrated over time (in request-seconds) up to `integrated_to`.
    integral: f64,
    integrated_to: Instant,
    idle: ByMethod,
    /// Of all methods together.
    idle_any: IdleTime,
    errors: Errors,
    recent: RecentTimes,
}

/// A request that began, to be handed back when it ends.
#[derive(Clone, Copy, Debug)]
#[must_use = "a request that is never finished counts for ever"]
pub struct Begun {
    at: Instant,
    method: u32,
    integral: f64,
    in_flight: u32,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It was answered. An error of the application is an answer.
    Answered,
    /// The server failed it: its time says nothing about the next one.
    Failed,
    /// The caller took it back.
    Cancelled,
}

impl LoadMeter {
    /// A meter of a server that runs `concurrency` requests at once without slowing down
    /// ([`super::CONCURRENCY_PER_PERMIT`] x permits, unless the user knows better).
    pub fn new(concurrency: f64, now: Instant) -> Self {
        Self {
            concurrency: Concurrency::new(concurrency),
            in_flight: 0,
            integral: 0.0,
            integrated_to: now,
            idle: ByMethod::default(),
            idle_any: IdleTime::default(),
            errors: Errors::new(now),
            recent: RecentTimes::new(),
        }
    }

    /// A request of this method arrived ([`super::method_hash`]).
    pub fn begin(&mut self, now: Instant, method: u32) -> Begun {
        self.integrate(now);
        self.in_flight = self.in_flight.saturating_add(1);
        Begun { at: now, method, integral: self.integral, in_flight: self.in_flight }
    }

    /// A request ended.
    pub fn finish(&mut self, begun: Begun, now: Instant, finish: Finish) {
        self.integrate(now);
        self.in_flight = self.in_flight.saturating_sub(1);
        if finish == Finish::Cancelled {
            return;
        }
        self.errors.add(now, finish == Finish::Failed);
        if finish == Finish::Failed {
            return;
        }
        let seconds = now.saturating_duration_since(begun.at).as_secs_f64().max(1e-6);
        let shared = ((self.integral - begun.integral) / seconds).max(1.0);
        let ln_seconds = seconds.ln();
        let slowed = ln_growth(shared / self.concurrency.value());
        self.idle_any.add(ln_seconds - slowed);
        if let Some(idle) = self.idle.entry(begun.method) {
            idle.add(ln_seconds - slowed);
            self.concurrency.learn(idle.off_level(ln_seconds), shared.ln());
        }
        self.recent.add(begun.in_flight, seconds * 1e6);
    }

    /// `count` requests, `failed` of them failures, were answered one after the other in `took`
    /// altogether, up to `now`. As they were never in flight together with each other, they are
    /// one sample of what a request takes.
    pub fn answered_at_once(&mut self, now: Instant, method: u32, count: u32, took: Duration, failed: u32) {
        let each = took / count.max(1);
        let finishes = [(count - failed.min(count), Finish::Answered), (failed, Finish::Failed)];
        for (_, finish) in finishes.into_iter().filter(|(count, _)| *count > 0) {
            self.integrate(now);
            let begun = Begun {
                at: now.checked_sub(each).unwrap_or(now),
                method,
                integral: self.integral - f64::from(self.in_flight + 1) * each.as_secs_f64(),
                in_flight: self.in_flight + 1,
            };
            self.in_flight += 1;
            self.finish(begun, now, finish);
        }
    }

    /// Requests that run or wait now.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The load now, and how long the method takes; 0 is none in particular.
    pub fn report(&self, now: Instant, method: u32) -> LoadReport {
        let idle = if method == 0 { Some(&self.idle_any) } else { self.idle.get(method) };
        LoadReport {
            method,
            in_flight: self.in_flight,
            service_us: idle.map_or(0.0, IdleTime::us),
            concurrency: self.concurrency.value(),
            errors: self.errors.share(now),
            latency_us: self.recent.median_us(self.in_flight.saturating_add(1)),
        }
    }

    fn integrate(&mut self, now: Instant) {
        // Requests of several threads may come in with times slightly out of order.
        let passed = now.saturating_duration_since(self.integrated_to);
        self.integral += passed.as_secs_f64() * f64::from(self.in_flight);
        self.integrated_to = self.integrated_to.max(now);
    }
}

/// Idle times by method, in the order of the methods.
#[derive(Clone, Debug, Default)]
struct ByMethod(Vec<(u32, IdleTime)>);

impl ByMethod {
    fn get(&self, method: u32) -> Option<&IdleTime> {
        self.place(method).ok().map(|place| &self.0[place].1)
    }

    /// None if there are too many methods.
    fn entry(&mut self, method: u32) -> Option<&mut IdleTime> {
        let place = match self.place(method) {
            Ok(place) => place,
            Err(_) if self.0.len() >= METHODS_MAX => return None,
            Err(place) => {
                self.0.insert(place, (method, IdleTime::default()));
                place
            }
        };
        Some(&mut self.0[place].1)
    }

    fn place(&self, method: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&method, |(known, _)| *known)
    }
}

/// By how much requests slow each other down at `utilization`, as a logarithm: a smooth
/// `ln max(1, utilization)`.
fn ln_growth(utilization: f64) -> f64 {
    let square = utilization * utilization;
    0.25 * (square * square).ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ECHO: u32 = 7;
    const LONG: u32 = 8;

    fn run(meter: &mut LoadMeter, now: &mut Instant, at_once: u32, each: Duration) {
        let begun: Vec<Begun> = (0..at_once).map(|_| meter.begin(*now, ECHO)).collect();
        *now += each;
        begun.into_iter().for_each(|b| meter.finish(b, *now, Finish::Answered));
    }

    #[test]
    fn the_idle_response_time_is_found_whatever_the_load() {
        let mut now = Instant::now();
        let (mut idle, mut busy) = (LoadMeter::new(2.0, now), LoadMeter::new(2.0, now));
        for _ in 0..200 {
            run(&mut idle, &mut now, 1, Duration::from_millis(20));
            run(&mut busy, &mut now, 20, Duration::from_millis(200));
        }
        let (idle, busy) = (idle.report(now, ECHO), busy.report(now, ECHO));
        assert!((19_000.0..20_100.0).contains(&idle.service_us), "{idle:?}");
        assert!((19_000.0..21_000.0).contains(&busy.service_us), "{busy:?}");
        assert_eq!((idle.in_flight, idle.errors), (0, 0.0));
    }

    #[test]
    fn long_calls_do_not_make_short_ones_look_long() {
        let mut now = Instant::now();
        let mut meter = LoadMeter::new(2.0, now);
        for _ in 0..100 {
            run(&mut meter, &mut now, 1, Duration::from_millis(20));
            let long = meter.begin(now, LONG);
            now += Duration::from_millis(500);
            meter.finish(long, now, Finish::Answered);
        }
        assert!((19_000.0..20_100.0).contains(&meter.report(now, ECHO).service_us));
        assert!((480_000.0..500_100.0).contains(&meter.report(now, LONG).service_us));
        assert_eq!(meter.report(now, 9).service_us, 0.0, "nothing is known of a method never called");
        assert!((20_000.0..500_000.0).contains(&meter.report(now, 0).service_us), "of no method in particular");
    }

    #[test]
    fn a_queue_is_expected_to_take_longer() {
        let mut now = Instant::now();
        let mut meter = LoadMeter::new(2.0, now);
        run(&mut meter, &mut now, 1, Duration::from_millis(20));
        let idle = meter.report(now, ECHO).expected_us();
        let waiting: Vec<Begun> = (0..7).map(|_| meter.begin(now, ECHO)).collect();
        assert_eq!(meter.report(now, ECHO).in_flight, 7);
        assert!(meter.report(now, ECHO).expected_us() > 10.0 * idle);
        waiting.into_iter().for_each(|b| meter.finish(b, now, Finish::Cancelled));
        assert_eq!(meter.report(now, ECHO).expected_us(), idle, "what was taken back leaves no trace");
    }

    /// Runs requests of `time(in_flight)` each, with a changing number in flight, for a while.
    fn settle(meter: &mut LoadMeter, mut now: Instant, time: impl Fn(u32) -> Duration) -> LoadReport {
        for i in 0..500u32 {
            let in_flight = 4 + i * 7 % 13;
            run(meter, &mut now, in_flight, time(in_flight));
        }
        meter.report(now, ECHO)
    }

    #[test]
    fn requests_that_only_wait_may_be_many_and_those_that_compute_may_not() {
        let now = Instant::now();
        let waiting = settle(&mut LoadMeter::new(2.0, now), now, |_| Duration::from_millis(20));
        assert!(waiting.concurrency > 8.0, "{waiting:?}");
        assert!((18_000.0..20_500.0).contains(&waiting.service_us), "{waiting:?}");
        let computing = settle(&mut LoadMeter::new(2.0, now), now, |n| Duration::from_millis(5) * n.max(4));
        assert!((2.0..2.5).contains(&computing.concurrency), "{computing:?}");
    }

    #[test]
    fn failing_fast_is_not_fast() {
        let mut now = Instant::now();
        let mut meter = LoadMeter::new(2.0, now);
        (0..50).for_each(|_| run(&mut meter, &mut now, 1, Duration::from_millis(20)));
        let healthy = meter.report(now, ECHO);
        for _ in 0..10 {
            let begun = meter.begin(now, ECHO);
            now += Duration::from_micros(500);
            meter.finish(begun, now, Finish::Failed);
        }
        let failing = meter.report(now, ECHO);
        assert_eq!(failing.service_us, healthy.service_us);
        assert!(failing.expected_us() > 3.0 * healthy.expected_us(), "{failing:?}");
        now += Duration::from_secs(60);
        assert!(meter.report(now, ECHO).errors < 0.01, "old failures are forgotten");
    }

    #[test]
    fn the_median_is_of_response_times_at_the_present_load() {
        let mut now = Instant::now();
        let mut meter = LoadMeter::new(2.0, now);
        assert_eq!(meter.report(now, ECHO).latency_us, 0.0);
        (0..20).for_each(|_| run(&mut meter, &mut now, 1, Duration::from_millis(20)));
        let waiting: Vec<Begun> = (0..15).map(|_| meter.begin(now, ECHO)).collect();
        (0..20).for_each(|_| run(&mut meter, &mut now, 1, Duration::from_millis(90)));
        assert_eq!(meter.report(now, ECHO).latency_us.round(), 90_000.0);
        waiting.into_iter().for_each(|b| meter.finish(b, now, Finish::Cancelled));
        assert_eq!(meter.report(now, ECHO).latency_us.round(), 20_000.0);
    }

    #[test]
    fn extremes_stay_finite() {
        let now = Instant::now();
        for concurrency in [0.0, -1.0, f64::INFINITY, 1e-300] {
            let mut meter = LoadMeter::new(concurrency, now);
            let begun = meter.begin(now, ECHO);
            meter.finish(begun, now + Duration::from_secs(1 << 30), Finish::Answered);
            let begun = meter.begin(now, ECHO);
            meter.finish(begun, now, Finish::Failed);
            let report = meter.report(now, ECHO);
            assert!(report.expected_us().is_finite() && report.service_us > 0.0, "{report:?}");
        }
    }
}
