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
const SAMPLES: f64 = 30.0;

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

/// Largest concurrency.
const CONCURRENCY_MAX: f64 = 1e6;

/// Time constant with which failures are forgotten.
const ERRORS_DECAY: Duration = Duration::from_secs(5);

/// Weight of one outcome in the share of failures. A server that begins to fail at once must be
/// seen to within a few requests, as it answers them fast.
const ERRORS_GAIN: f64 = 0.05;

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
    concurrency: Concurrency,
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
            concurrency: Concurrency::new(concurrency.clamp(0.1, CONCURRENCY_MAX)),
            in_flight: 0,
            integral: 0.0,
            integrated_to: now,
            idle: LogMean::default(),
            errors: Errors { share: 0.0, at: now },
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
        let ln_seconds = seconds.ln();
        self.concurrency.learn(ln_seconds, shared.ln());
        self.idle.add(ln_seconds - ln_growth(shared / self.concurrency.value));
        self.recent[level(begun.in_flight)].add(seconds * 1e6);
    }

    /// `count` requests, `failed` of them failures, were answered one after the other in `took`
    /// altogether, up to `now`. As they were never in flight together with each other, they are
    /// one sample of what a request takes.
    pub fn answered_at_once(&mut self, now: Instant, count: u32, took: Duration, failed: u32) {
        let each = took / count.max(1);
        let finishes = [(count - failed.min(count), Finish::Answered), (failed, Finish::Failed)];
        for (_, finish) in finishes.into_iter().filter(|(count, _)| *count > 0) {
            self.integrate(now);
            let begun = Begun {
                at: now.checked_sub(each).unwrap_or(now),
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

    /// The load now.
    pub fn report(&self, now: Instant) -> LoadReport {
        LoadReport {
            in_flight: self.in_flight,
            service_us: if self.idle.count == 0.0 { 0.0 } else { self.idle.mean.exp() * 1e6 },
            concurrency: self.concurrency.value,
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

/// How many requests the server runs at once without slowing down: the hint, until it is seen to
/// run more. Requests that wait for something else rather than compute do not slow each other
/// down, and the hint, made from cores, would keep callers away for nothing.
#[derive(Clone, Copy, Debug)]
struct Concurrency {
    hint: f64,
    value: f64,
    /// Recent means of the logarithms of response time and requests in flight. Deviations are from
    /// these, so that a server that changes its speed, and is avoided for it, proves nothing.
    ln_time: f64,
    ln_shared: f64,
    time_time: f64,
    time_shared: f64,
    shared_shared: f64,
    count: f64,
}

impl Concurrency {
    fn new(hint: f64) -> Self {
        Self {
            hint,
            value: hint,
            ln_time: 0.0,
            ln_shared: 0.0,
            time_time: 0.0,
            time_shared: 0.0,
            shared_shared: 0.0,
            count: 0.0,
        }
    }

    fn learn(&mut self, ln_time: f64, ln_shared: f64) {
        self.count = (self.count + 1.0).min(SLOPE_SAMPLES);
        let (time, shared) = (ln_time - self.ln_time, ln_shared - self.ln_shared);
        let gain = 1.0 / self.count.min(SAMPLES);
        self.ln_time += time * gain;
        self.ln_shared += shared * gain;
        if self.count <= SAMPLES {
            return;
        }
        let gain = 1.0 / (self.count - SAMPLES);
        self.time_time += (time * time - self.time_time) * gain;
        self.time_shared += (time * shared - self.time_shared) * gain;
        self.shared_shared += (shared * shared - self.shared_shared) * gain;
        let target = if self.is_flat() { self.value.max(HEADROOM * self.ln_shared.exp()) } else { self.hint };
        self.value = (self.value + (target - self.value) * CONCURRENCY_GAIN).clamp(self.hint, CONCURRENCY_MAX);
    }

    /// Whether response times provably do not depend on the requests in flight: the slope of one
    /// logarithm over the other, which is 1 for a busy processor, is about 0.
    fn is_flat(&self) -> bool {
        let samples = self.count - SAMPLES;
        if samples < SLOPE_SAMPLES_MIN || self.shared_shared <= 1e-3 {
            return false;
        }
        let slope = self.time_shared / self.shared_shared;
        let unexplained = (self.time_time - slope * self.time_shared).max(0.0);
        let error = (unexplained / (samples * self.shared_shared)).sqrt();
        slope.abs() + 2.0 * error < SLOPE_FLAT
    }
}

/// Running mean of a logarithm: robust to the heavy tail of response times.
#[derive(Clone, Copy, Debug, Default)]
struct LogMean {
    mean: f64,
    count: f64,
}

impl LogMean {
    fn add(&mut self, value: f64) {
        self.count = (self.count + 1.0).min(SAMPLES);
        self.mean += (value - self.mean) / self.count;
    }
}

/// The share of failures, which fades when nothing comes in.
#[derive(Clone, Copy, Debug)]
struct Errors {
    share: f64,
    at: Instant,
}

impl Errors {
    fn add(&mut self, now: Instant, failed: bool) {
        // A server that never failed, the usual one, does no arithmetic here.
        if failed || self.share > 0.0 {
            let target = if failed { 1.0 } else { 0.0 };
            let share = self.share(now);
            self.share = share + ERRORS_GAIN * (target - share);
            self.at = self.at.max(now);
        }
    }

    fn share(&self, now: Instant) -> f64 {
        if self.share == 0.0 {
            return 0.0;
        }
        let passed = now.saturating_duration_since(self.at);
        self.share * (-passed.as_secs_f64() / ERRORS_DECAY.as_secs_f64()).exp()
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

    /// Runs requests of `time(in_flight)` each, with a changing number in flight, for a while.
    fn settle(meter: &mut LoadMeter, mut now: Instant, time: impl Fn(u32) -> Duration) -> LoadReport {
        for i in 0..500u32 {
            let in_flight = 4 + i * 7 % 13;
            run(meter, &mut now, in_flight, time(in_flight));
        }
        meter.report(now)
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
        let healthy = meter.report(now);
        for _ in 0..10 {
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
