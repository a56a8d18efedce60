//! Calls that go on while a test does something to the servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rpc_client::Error;
use tokio::task::JoinHandle;

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

/// The calls that failed.
pub fn failures<T>(outcomes: &[(u64, Result<T, Error>)]) -> Vec<(u64, &Error)> {
    outcomes.iter().filter_map(|(call, outcome)| Some((*call, outcome.as_ref().err()?))).collect()
}
