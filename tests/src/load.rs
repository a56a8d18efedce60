//! Calls that go on while a test does something to the servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rpc_client::Error;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, interval};

use crate::cluster::{SOON, until};

/// What came of each numbered call.
pub type Outcomes<T> = Vec<(u64, Result<T, Error>)>;

/// Calls made one after the other by several tasks until told to stop, each with its own number.
#[derive(Debug)]
pub struct Load<T> {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<Outcomes<T>>>,
}

impl<T: Send + 'static> Load<T> {
    /// Starts so many tasks that make calls.
    pub fn start<F, Fut>(tasks: u64, call: F) -> Self
    where
        F: Fn(u64) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Result<T, Error>> + Send,
    {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let tasks = (0..tasks).map(|task| {
            let (call, stop, done) = (call.clone(), stop.clone(), done.clone());
            tokio::spawn(async move {
                let mut outcomes = Vec::new();
                for number in task * 1_000_000.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    outcomes.push((number, call(number).await));
                    done.fetch_add(1, Ordering::SeqCst);
                }
                outcomes
            })
        });
        let tasks = tasks.collect();
        Self { stop, done, tasks }
    }

    /// How many calls have ended.
    pub fn done(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }

    /// Waits until `count` more calls have ended.
    ///
    /// # Panics
    /// When they do not in time.
    pub async fn more(&self, count: usize) {
        let target = self.done() + count;
        until(&format!("{count} more calls"), SOON, || self.done() >= target).await;
    }

    /// Lets the calls in flight end and returns what came of all.
    ///
    /// # Panics
    /// When a call did.
    pub async fn stop(self) -> Outcomes<T> {
        self.stop.store(true, Ordering::SeqCst);
        let mut outcomes = Vec::new();
        for task in self.tasks {
            outcomes.extend(task.await.expect("calls do not panic"));
        }
        outcomes
    }
}

/// A call of an [`OpenLoad`].
#[derive(Debug)]
pub struct Timed<T> {
    /// Its number.
    pub number: u64,
    /// When it was begun.
    pub began: Instant,
    /// When it ended.
    pub ended: Instant,
    /// What came of it.
    pub outcome: Result<T, Error>,
}

/// Calls begun at a fixed rate, whatever comes of them, until told to stop.
#[derive(Debug)]
pub struct OpenLoad<T> {
    stop: watch::Sender<bool>,
    running: JoinHandle<JoinSet<Timed<T>>>,
}

impl<T: Send + 'static> OpenLoad<T> {
    /// Begins so many calls a second, numbered from 0.
    pub fn start<F, Fut>(per_second: u32, call: F) -> Self
    where
        F: Fn(u64) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (stop, mut stopped) = watch::channel(false);
        let running = tokio::spawn(async move {
            let (mut calls, mut pace) = (JoinSet::new(), interval(Duration::from_secs(1) / per_second));
            for number in 0.. {
                tokio::select! {
                    _ = stopped.changed() => break,
                    _ = pace.tick() => {}
                }
                let began = Instant::now();
                let called = call(number);
                calls.spawn(async move { Timed { number, began, outcome: called.await, ended: Instant::now() } });
            }
            calls
        });
        Self { stop, running }
    }

    /// Begins no more calls, lets those in flight end and returns what came of all.
    ///
    /// # Panics
    /// When a call did.
    pub async fn stop(self) -> Vec<Timed<T>> {
        self.stop.send_replace(true);
        self.running.await.expect("it does not panic").join_all().await
    }
}

/// The calls that failed.
pub fn failures<T>(outcomes: &[(u64, Result<T, Error>)]) -> Vec<(u64, &Error)> {
    outcomes.iter().filter_map(|(call, outcome)| Some((*call, outcome.as_ref().err()?))).collect()
}
