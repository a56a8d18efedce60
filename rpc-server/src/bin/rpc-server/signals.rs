//! The signals that stop the server.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT as they arrive.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// Takes both signals over from now on.
pub(crate) fn listen() -> Signals {
    let on = |kind| signal(kind).expect("the runtime has its signal driver, and these signals can be caught");
    Signals { terminate: on(SignalKind::terminate()), interrupt: on(SignalKind::interrupt()) }
}

impl Signals {
    /// Waits for the next one; returns the exit code of a process that it ends.
    pub(crate) async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.terminate.recv() => 143,
            _ = self.interrupt.recv() => 130,
        }
    }
}
