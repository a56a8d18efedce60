//! The calls of a benchmark.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rpc_client::{CallOptions, Client, Error};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::pace::Pace;
use super::tally::Tally;
use crate::units;

/// Tallies, so that workers seldom wait for one another. A tally takes some hundred kilobytes,
/// which is why not each of a thousand workers has its own.
const SHARDS: usize = 8;

/// How much there is to do; whichever comes first ends it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amount {
    pub(super) calls: Option<u64>,
    pub(super) duration: Option<Duration>,
}

/// Everything the workers share.
pub(super) struct Load {
    client: Client,
    method: String,
    params: Box<RawValue>,
    options: CallOptions,
    amount: Amount,
    /// With `--rps`: when calls are to start, and a permit for each whose time has come.
    pace: Option<(Pace, Semaphore)>,
    started: Instant,
    ended: OnceLock<Instant>,
    stopped: AtomicBool,
    next: AtomicU64,
    shards: [Mutex<Tally>; SHARDS],
    first_error: OnceLock<Error>,
}

impl Load {
    pub(super) fn new(
        client: Client,
        method: &str,
        params: Box<RawValue>,
        options: CallOptions,
        amount: Amount,
        rps: Option<f64>,
    ) -> Arc<Self> {
        let started = Instant::now();
        Arc::new(Self {
            client,
            method: method.to_owned(),
            params,
            options,
            amount,
            pace: rps.map(|rps| (Pace::new(started, rps, amount), Semaphore::new(0))),
            started,
            ended: OnceLock::new(),
            stopped: AtomicBool::new(false),
            next: AtomicU64::new(0),
            shards: std::array::from_fn(|_| Mutex::default()),
            first_error: OnceLock::new(),
        })
    }

    /// Starts the workers; they end by themselves when everything is done.
    pub(super) fn start(self: &Arc<Self>, concurrency: usize) -> JoinSet<()> {
        if self.pace.is_some() {
            let load = self.clone();
            // A thread, since the runtime's timers are only good to a millisecond.
            std::thread::spawn(move || load.keep_pace(concurrency));
        }
        let mut workers = JoinSet::new();
        for number in 0..concurrency {
            workers.spawn(self.clone().work(number % SHARDS));
        }
        workers
    }

    /// Makes no further calls; `now` is the end.
    pub(super) fn stop(&self, now: Instant) {
        self.stopped.store(true, Ordering::Relaxed);
        self.ended.get_or_init(|| now);
    }

    async fn work(self: Arc<Self>, shard: usize) {
        while let Some(from) = self.next().await {
            let outcome = self.client.call_detailed(&self.method, &*self.params, &self.options).await;
            let latency = from.elapsed();
            if let Err(error) = &outcome {
                self.first_error.get_or_init(|| error.clone());
            }
            self.shards[shard].lock().add(&outcome, latency);
        }
    }

    /// The time from which the next call counts; none when there are no more.
    async fn next(&self) -> Option<Instant> {
        if let Some((pace, due)) = &self.pace {
            due.acquire().await.ok()?.forget();
            return pace.start_of(self.next.fetch_add(1, Ordering::Relaxed));
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let is_over = self.amount.calls.is_some_and(|calls| number >= calls)
            || self.amount.duration.is_some_and(|duration| now.duration_since(self.started) >= duration);
        (!is_over).then_some(now)
    }

    /// Gives a permit for each call when its time has come, and in the end one to each worker.
    fn keep_pace(&self, workers: usize) {
        let Some((pace, due)) = &self.pace else { return };
        let mut given = 0;
        while !self.stopped.load(Ordering::Relaxed) {
            let now_due = pace.due(Instant::now());
            due.add_permits(usize::try_from(now_due - given).unwrap_or(Semaphore::MAX_PERMITS));
            given = now_due;
            match pace.pause(given, Instant::now()) {
                Some(pause) => std::thread::sleep(pause),
                None => break,
            }
        }
        due.add_permits(workers);
    }

    /// How long it took, or has taken so far.
    pub(super) fn elapsed(&self, now: Instant) -> Duration {
        self.ended.get().copied().unwrap_or(now).duration_since(self.started)
    }

    /// All that was counted so far.
    pub(super) fn tally(&self) -> Tally {
        let mut total = Tally::default();
        for shard in &self.shards {
            total.merge(&shard.lock());
        }
        total
    }

    /// The first error of all.
    pub(super) fn first_error(&self) -> Option<Error> {
        self.first_error.get().cloned()
    }

    /// One line about how far it is.
    pub(super) fn progress(&self, now: Instant) -> String {
        let (tally, elapsed) = (self.tally(), self.elapsed(now));
        let of = self.amount.calls.map(|calls| format!(" of {calls}")).unwrap_or_default();
        let time =
            self.amount.duration.map(|duration| format!(" of {:.0}", duration.as_secs_f64())).unwrap_or_default();
        format!(
            "{:.1}{time} s  {}{of} calls  {:.0}/s succeeded  {} errors  p50 {}  p99 {}",
            elapsed.as_secs_f64(),
            tally.calls(),
            tally.ok as f64 / elapsed.as_secs_f64().max(1e-3),
            tally.failed(),
            units::micros(tally.latency.quantile_us(0.5)),
            units::micros(tally.latency.quantile_us(0.99)),
        )
    }
}
