//! When the scheduled job runs. The only file that names `tokio_cron_scheduler`.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use rpc_core::{Error, ErrorKind};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_cron_scheduler::{Job, JobScheduler, JobSchedulerError};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::warn;

/// Periods without a firing after which the job runs anyway. The cron goes by the wall clock and stands
/// still when that is set back.
const SILENT_PERIODS_MAX: u32 = 3;

/// A cron pattern that fires every so many seconds: `*/5 * * * * *`, also with `?` for `*` and `0/5`
/// for `*/5`. Other patterns are refused: entries expire by their age, so the job has to come
/// round evenly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    period_s: u8,
}

impl Default for Schedule {
    /// Every 5 seconds, which is as long as a response time is valid.
    fn default() -> Self {
        Self { period_s: 5 }
    }
}

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(pattern: &str) -> Result<Self, Error> {
        let period_s = parse(pattern).map_err(|reason| {
            ErrorKind::Config(format!(
                "schedule `{pattern}`: {reason}; write `*/N * * * * *` for every N seconds, where N divides 60"
            ))
        })?;
        Ok(Self { period_s })
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "*/{} * * * * *", self.period_s)
    }
}

impl Schedule {
    /// From one firing to the next.
    pub fn period(&self) -> Duration {
        Duration::from_secs(self.period_s.into())
    }
}

fn parse(pattern: &str) -> Result<u8, String> {
    let fields: Vec<&str> = pattern.split_whitespace().collect();
    let [seconds, others @ ..] = fields.as_slice() else { return Err("it is empty".into()) };
    if others.len() != 5 {
        return Err(format!("it has {} fields, not 6 (the first is for the seconds)", fields.len()));
    }
    if let Some(other) = others.iter().find(|field| !matches!(**field, "*" | "?")) {
        return Err(format!("`{other}` leaves times out"));
    }
    let period = match seconds.split_once('/') {
        None if matches!(*seconds, "*" | "?") => Ok(1),
        Some(("*" | "?" | "0", step)) => step.parse().map_err(|_| format!("`{step}` is no number of seconds")),
        None | Some(_) => Err(format!("`{seconds}` is not every N seconds")),
    }?;
    if period == 0 || period > 30 || 60 % period != 0 {
        return Err(format!("every {period} seconds is not even over a minute"));
    }
    Ok(period)
}

/// Fires by a [`Schedule`], until it is dropped.
pub(crate) struct Firings {
    cron: mpsc::Receiver<()>,
    /// Kept, so that the channel stays open when the cron thread is gone.
    _sender: mpsc::Sender<()>,
    watchdog: Watchdog,
    _thread: Option<DropGuard>,
}

impl Firings {
    /// Starts the cron. Without it, for lack of a thread, the watchdog alone fires.
    pub(crate) fn start(schedule: &Schedule) -> Self {
        // One firing waits while the job runs; those that come while it waits are the same to the job.
        let (sender, cron) = mpsc::channel(1);
        let thread = start_thread(schedule.to_string(), sender.clone());
        if let Err(error) = &thread {
            warn!(%error, "the cron scheduler did not start; the job goes by the monotonic clock alone");
        }
        let watchdog = Watchdog::new(Instant::now(), schedule.period());
        Self { cron, _sender: sender, watchdog, _thread: thread.ok() }
    }

    /// Firings by another clock than the wall's, for tests.
    #[cfg(test)]
    pub(crate) fn by_hand(period: Duration) -> (mpsc::Sender<()>, Self) {
        let (sender, cron) = mpsc::channel(1);
        let watchdog = Watchdog::new(Instant::now(), period);
        (sender.clone(), Self { cron, _sender: sender, watchdog, _thread: None })
    }

    /// Waits for the next firing.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            Some(()) = self.cron.recv() => self.watchdog.fired(Instant::now()),
            () = tokio::time::sleep_until(self.watchdog.due()) => self.watchdog.barked(Instant::now()),
        }
    }
}

/// Notices by the monotonic clock that the cron is silent. Pure.
#[derive(Clone, Copy, Debug)]
struct Watchdog {
    period: Duration,
    due: Instant,
}

impl Watchdog {
    fn new(now: Instant, period: Duration) -> Self {
        Self { period, due: now + period * SILENT_PERIODS_MAX }
    }

    fn due(&self) -> Instant {
        self.due
    }

    fn fired(&mut self, now: Instant) {
        self.due = now + self.period * SILENT_PERIODS_MAX;
    }

    /// The watchdog stands in for the cron from now on, until that fires again.
    fn barked(&mut self, now: Instant) {
        self.due = now + self.period;
    }
}

/// Runs the cron scheduler in a small runtime on a thread of its own. The scheduler starts a dozen
/// tasks that hold on to each other and outlive its shutdown; they end with this runtime.
fn start_thread(pattern: String, firings: mpsc::Sender<()>) -> io::Result<DropGuard> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    std::thread::Builder::new().name("rpc-cron".into()).spawn(move || {
        runtime.block_on(async move {
            let mut scheduler = match start_cron(&pattern, firings).await {
                Ok(scheduler) => scheduler,
                Err(error) => return warn!(%error, "the cron scheduler did not start"),
            };
            stopped.cancelled().await;
            if let Err(error) = scheduler.shutdown().await {
                warn!(%error, "the cron scheduler did not stop");
            }
        });
    })?;
    Ok(stop.drop_guard())
}

async fn start_cron(pattern: &str, firings: mpsc::Sender<()>) -> Result<JobScheduler, JobSchedulerError> {
    let mut scheduler = JobScheduler::new().await?;
    scheduler.init().await?;
    let job = Job::new(pattern, move |_, _| {
        // Full: a firing waits already. Closed: nobody is left to run the job.
        let _ = firings.try_send(());
    })?;
    scheduler.add(job).await?;
    scheduler.start().await?;
    Ok(scheduler)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_of_every_five_seconds_are_read() {
        for pattern in ["*/5 * * * * *", "*/5 * * * * ?", "0/5 * * * ? *", " */5  *  * * * * "] {
            let schedule: Schedule = pattern.parse().unwrap();
            assert_eq!(schedule, Schedule::default(), "{pattern}");
            assert_eq!(schedule.to_string(), "*/5 * * * * *");
        }
        assert_eq!("* * * * * *".parse::<Schedule>().unwrap().period(), Duration::from_secs(1));
        assert_eq!("*/30 * * * * *".parse::<Schedule>().unwrap().period(), Duration::from_secs(30));
    }

    #[test]
    fn other_patterns_are_refused_with_the_reason() {
        for (pattern, reason) in [
            ("", "empty"),
            ("*/5 * * * *", "5 fields"),
            ("*/7 * * * * *", "not even"),
            ("*/0 * * * * *", "not even"),
            ("*/60 * * * * *", "not even"),
            ("*/x * * * * *", "no number"),
            ("3/5 * * * * *", "not every N"),
            ("0 * * * * *", "not every N"),
            ("*/5 0 * * * *", "`0` leaves times out"),
        ] {
            let error = pattern.parse::<Schedule>().unwrap_err().to_string();
            assert!(error.contains(reason), "{pattern}: {error}");
        }
    }

    #[tokio::test]
    async fn the_cron_fires_on_the_second_and_its_thread_ends_with_it() {
        let mut firings = Firings::start(&"* * * * * *".parse().unwrap());
        let mut times = Vec::new();
        for _ in 0..3 {
            tokio::time::timeout(Duration::from_secs(10), firings.next()).await.expect("it fires");
            times.push(Instant::now());
        }
        assert!(times[2] - times[0] < Duration::from_millis(2900), "the cron fires, not the watchdog: {times:?}");
        let sender = firings._sender.clone();
        drop(firings);
        // The thread lets go of its sender when the scheduler's tasks are gone.
        let ended = async {
            while sender.strong_count() > 1 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), ended).await.expect("the thread ends");
    }

    #[tokio::test(start_paused = true)]
    async fn the_watchdog_stands_in_for_a_silent_cron() {
        let period = Duration::from_secs(5);
        let (cron, mut firings) = Firings::by_hand(period);
        let start = Instant::now();
        cron.try_send(()).unwrap();
        firings.next().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        for periods in [3, 4, 5] {
            firings.next().await;
            assert_eq!(start.elapsed().as_secs(), 5 * periods);
        }
        cron.try_send(()).unwrap();
        firings.next().await;
        assert_eq!(start.elapsed().as_secs(), 25, "the cron is back");
        firings.next().await;
        assert_eq!(start.elapsed().as_secs(), 40);
    }
}
