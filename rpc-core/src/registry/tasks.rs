//! The tasks behind one registry handle.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Owns the tasks of a registry handle: they are told to stop when it is closed or dropped. What a
/// task has to clean up, it cleans up by itself.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    stop: CancellationToken,
    tracker: TaskTracker,
}

impl Tasks {
    /// Starts a task, which ends soon after the token is cancelled.
    pub(super) fn spawn<F>(&self, task: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tracker.spawn(task(self.stop.clone()));
    }

    /// Whether the tasks were told to stop.
    pub(super) fn is_closed(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Tells all tasks to stop and waits for them, at most for `timeout`.
    pub(super) async fn close(&self, timeout: Duration) {
        self.stop.cancel();
        self.tracker.close();
        let _ = tokio::time::timeout(timeout, self.tracker.wait()).await;
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
