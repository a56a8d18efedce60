//! How loaded a server is, by its own account, and how long a call to it will take.
//!
//! The server keeps a [`LoadMeter`] and sends its [`LoadReport`]s; the client compares nodes by
//! [`expected_us`], and the server refuses by the same formula, so both mean the same by a bound.

use std::time::Duration;

use tokio::time::Instant;

/// Share of the permits (or cores) up to which a server answers at full speed, for the default of
/// [`LoadMeter::new`]: half of them. Too low only spreads the calls more evenly than needed; too
/// high hides queues (ablation in `docs/BALANCING.md`).
pub const CONCURRENCY_PER_PERMIT: f64 = 0.5;

/// Successes over which the idle response time is averaged.
const SAMPLES: f64 = 40.0;

/// Time constant with which failures are forgotten.
const ERRORS_DECAY: Duration = Duration::from_secs(5);

/// Successes and failures that count as seen at the start, so that one failure is not all.
const ERRORS_PRIOR: f64 = 2.0;

/// A success rate is not believed below this, so that every expected time stays finite.
const SUCCESS_MIN: f64 = 0.01;

/// Response times kept per level of load, for [`LoadReport::latency_us`].
const RECENT: usize = 8;

/// Levels of load for which response times are kept: two per doubling of the requests in flight.
const LEVELS: usize = 32;

/// A server's own account of its load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadReport {
    /// Requests in flight at the server, from everybody.
    pub in_flight: u32,
    /// What an answer takes when the server is otherwise idle, in microseconds; 0 is unknown.
    pub service_us: f64,
    /// Requests that it can run at once without slowing down.
    pub concurrency: f64,
    /// Variance of `service_us`'s logarithm: how little it is to be trusted.
    pub noise: f64,
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

/// Measures the load of one server. Pure: the time is an argument. Each call is constant work.
#[derive(Clone, Debug)]
pub struct LoadMeter {
    concurrency: f64,
    in_flight: u32,
    /// Requests in flight, integrated over time (in request-seconds) up to `integrated_to`.
    integral: f64,
    integrated_to: Instant,
    idle: LogMean,
    errors: Errors,
    recent: Vec<Recent>,
}

/// A request that began, to be handed back when it ends.
#[derive(Clone, Copy, Debug)]
#[must_use = "a request that is never finished counts for ever"]
pub struct Begun {
    at: Instant,
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
    /// ([`CONCURRENCY_PER_PERMIT`] x permits, unless the user knows better).
    pub fn new(concurrency: f64, now: Instant) -> Self {
        Self {
            concurrency: concurrency.clamp(0.1, 1e6),
            in_flight: 0,
            integral: 0.0,
            integrated_to: now,
            idle: LogMean::default(),
            errors: Errors { ok: 0.0, bad: 0.0, at: now },
            recent: vec![Recent::default(); LEVELS],
        }
    }

    /// A request arrived.
    pub fn begin(&mut self, now: Instant) -> Begun {
        self.integrate(now);
        self.in_flight = self.in_flight.saturating_add(1);
        Begun { at: now, integral: self.integral, in_flight: self.in_flight }
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
        self.idle.add(seconds.ln() - ln_growth(shared / self.concurrency));
        self.recent[level(begun.in_flight)].add(seconds * 1e6);
    }

    /// Requests that run or wait now.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The load now.
    pub fn report(&self, now: Instant) -> LoadReport {
        LoadReport {
            in_flight: self.in_flight,
            service_us: if self.idle.count == 0.0 { 0.0 } else { self.idle.mean.exp() * 1e6 },
            concurrency: self.concurrency,
            noise: self.idle.noise(),
            errors: self.errors.share(now),
            latency_us: self.latency_us(),
        }
    }

    fn integrate(&mut self, now: Instant) {
        // Requests of several threads may come in with times slightly out of order.
        let passed = now.saturating_duration_since(self.integrated_to);
        self.integral += passed.as_secs_f64() * f64::from(self.in_flight);
        self.integrated_to = self.integrated_to.max(now);
    }

    /// The median at the nearest level that has one; the lower of two equally near.
    fn latency_us(&self) -> f64 {
        let here = level(self.in_flight + 1);
        let levels = (0..LEVELS).flat_map(|away| [here.checked_sub(away), here.checked_add(away)]);
        let medians = levels.flatten().filter_map(|level| self.recent.get(level)?.median());
        medians.into_iter().next().unwrap_or(0.0)
    }
}

/// By how much requests slow each other down at `utilization`, as a logarithm: a smooth
/// `ln max(1, utilization)`.
fn ln_growth(utilization: f64) -> f64 {
    let square = utilization * utilization;
    0.25 * (square * square).ln_1p()
}

fn level(in_flight: u32) -> usize {
    ((f64::from(in_flight.max(1)).log2() * 2.0) as usize).min(LEVELS - 1)
}

/// Running mean and variance of a logarithm: robust to the heavy tail of response times.
#[derive(Clone, Copy, Debug, Default)]
struct LogMean {
    mean: f64,
    variance: f64,
    count: f64,
}

impl LogMean {
    fn add(&mut self, value: f64) {
        self.count = (self.count + 1.0).min(2.0 * SAMPLES);
        let gain = 1.0 / self.count.min(SAMPLES);
        let off = value - self.mean;
        self.mean += off * gain;
        self.variance += (off * off * (1.0 - gain) - self.variance) * gain;
    }

    fn noise(&self) -> f64 {
        if self.count < 2.0 { 1.0 } else { self.variance / self.count }
    }
}

#[derive(Clone, Copy, Debug)]
struct Errors {
    ok: f64,
    bad: f64,
    at: Instant,
}

impl Errors {
    fn add(&mut self, now: Instant, failed: bool) {
        let kept = self.kept(now);
        self.ok = self.ok * kept + if failed { 0.0 } else { 1.0 };
        self.bad = self.bad * kept + if failed { 1.0 } else { 0.0 };
        self.at = self.at.max(now);
    }

    fn share(&self, now: Instant) -> f64 {
        // A server that never failed, the usual one, reports 0 at once.
        if self.bad == 0.0 {
            return 0.0;
        }
        let kept = self.kept(now);
        self.bad * kept / ((self.ok + self.bad) * kept + ERRORS_PRIOR)
    }

    fn kept(&self, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at);
        (-passed.as_secs_f64() / ERRORS_DECAY.as_secs_f64()).exp()
    }
}

/// The latest response times at one level of load.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    times_us: [f64; RECENT],
    count: usize,
    next: usize,
}

impl Recent {
    fn add(&mut self, us: f64) {
        self.times_us[self.next] = us;
        self.next = (self.next + 1) % RECENT;
        self.count = (self.count + 1).min(RECENT);
    }

    fn median(&self) -> Option<f64> {
        let mut times = self.times_us;
        let times = &mut times[..self.count];
        times.sort_unstable_by(f64::total_cmp);
        times.get(self.count / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(meter: &mut LoadMeter, now: &mut Instant, at_once: u32, each: Duration) {
        let begun: Vec<Begun> = (0..at_once).map(|_| meter.begin(*now)).collect();
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
        let (idle, busy) = (idle.report(now), busy.report(now));
        assert!((19_000.0..20_100.0).contains(&idle.service_us), "{idle:?}");
        assert!((19_000.0..21_000.0).contains(&busy.service_us), "{busy:?}");
        assert_eq!((idle.in_flight, idle.errors), (0, 0.0));
    }

    #[test]
    fn a_queue_is_expected_to_take_longer() {
        let mut now = Instant::now();
        let mut meter = LoadMeter::new(2.0, now);
        run(&mut meter, &mut now, 1, Duration::from_millis(20));
        let idle = meter.report(now).expected_us();
        let waiting: Vec<Begun> = (0..7).map(|_| meter.begin(now)).collect();
        assert_eq!(meter.report(now).in_flight, 7);
        assert!(meter.report(now).expected_us() > 10.0 * idle);
        waiting.into_iter().for_each(|b| meter.finish(b, now, Finish::Cancelled));
        assert_eq!(meter.report(now).expected_us(), idle, "what was taken back leaves no trace");
    }

    #[test]
    fn failing_fast_is_not_fast() {
        let mut now = Instant::now();
        let mut meter = LoadMeter::new(2.0, now);
        (0..50).for_each(|_| run(&mut meter, &mut now, 1, Duration::from_millis(20)));
        let healthy = meter.report(now);
        for _ in 0..50 {
            let begun = meter.begin(now);
            now += Duration::from_micros(500);
            meter.finish(begun, now, Finish::Failed);
        }
        let failing = meter.report(now);
        assert_eq!(failing.service_us, healthy.service_us);
        assert!(failing.expected_us() > 3.0 * healthy.expected_us(), "{failing:?}");
        now += Duration::from_secs(60);
        assert!(meter.report(now).errors < 0.01, "old failures are forgotten");
    }

    #[test]
    fn the_median_is_of_response_times_at_the_present_load() {
        let mut now = Instant::now();
        let mut meter = LoadMeter::new(2.0, now);
        assert_eq!(meter.report(now).latency_us, 0.0);
        (0..20).for_each(|_| run(&mut meter, &mut now, 1, Duration::from_millis(20)));
        let waiting: Vec<Begun> = (0..15).map(|_| meter.begin(now)).collect();
        (0..20).for_each(|_| run(&mut meter, &mut now, 1, Duration::from_millis(90)));
        assert_eq!(meter.report(now).latency_us.round(), 90_000.0);
        waiting.into_iter().for_each(|b| meter.finish(b, now, Finish::Cancelled));
        assert_eq!(meter.report(now).latency_us.round(), 20_000.0);
    }

    #[test]
    fn extremes_stay_finite() {
        let now = Instant::now();
        for concurrency in [0.0, -1.0, f64::INFINITY, 1e-300] {
            let mut meter = LoadMeter::new(concurrency, now);
            let begun = meter.begin(now);
            meter.finish(begun, now + Duration::from_secs(1 << 30), Finish::Answered);
            let begun = meter.begin(now);
            meter.finish(begun, now, Finish::Failed);
            let report = meter.report(now);
            assert!(report.expected_us().is_finite() && report.service_us > 0.0, "{report:?}");
        }
    }
}
