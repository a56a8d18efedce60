//! The task that keeps the list up to date.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::OPERATION_MAX;
use super::reader::Reader;
use super::watcher::Wake;
use crate::registry::{Health, Trouble, publish};

/// Values are read at most 20 times a second, however many events there are.
const READ_INTERVAL_MIN: Duration = Duration::from_millis(50);

/// The directory is read this often without events, in case one was lost.
const READ_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// A directory that is not there yet cannot be watched, and is looked for this often.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Changes seldom come alone. This much patience makes one read of the several events of a
/// registration, and lets the kernel let go of a dead process's lock.
const SETTLE: Duration = Duration::from_millis(2);

/// Reads at each change until it is told to stop.
pub(super) async fn follow(
    reader: Arc<Reader>,
    wake: Arc<Wake>,
    health: watch::Sender<Health>,
    stop: CancellationToken,
) {
    let _ = stop.run_until_cancelled(follow_for_ever(reader, wake, &health)).await;
    health.send_replace(Health::Closed);
}

async fn follow_for_ever(reader: Arc<Reader>, wake: Arc<Wake>, health: &watch::Sender<Health>) {
    loop {
        let started = Instant::now();
        // The kernel reports that a lock file is being closed just before it lets go of the lock,
        // so a read at the event may find it held: another one follows soon.
        let lock_closed = wake.lock_closed.swap(false, Ordering::AcqRel);
        let read = read(&reader, health).await;
        let earliest = started + READ_INTERVAL_MIN;
        let latest = match (&read, lock_closed) {
            (Ok(false), _) => started + LOOK_INTERVAL,
            (_, true) => earliest,
            (_, false) => started + READ_INTERVAL_MAX,
        };
        match read {
            Ok(_) => publish(health, Health::Live),
            Err(error) => set_trouble(&reader, health, &error),
        }
        tokio::select! {
            () = wake.changed.notified() => sleep_until(earliest.max(Instant::now() + SETTLE)).await,
            () = sleep_until(latest) => {}
        }
    }
}

/// Reads once. While that takes too long, the health says so; a second read beside it would only
/// hang as well. Whether there is a directory.
async fn read(reader: &Arc<Reader>, health: &watch::Sender<Health>) -> io::Result<bool> {
    let mut reading = {
        let reader = reader.clone();
        tokio::task::spawn_blocking(move || reader.read_all().map(|()| reader.is_watching()))
    };
    match tokio::time::timeout(OPERATION_MAX, &mut reading).await {
        Ok(read) => read?,
        Err(_) => {
            set_trouble(reader, health, &io::Error::from(io::ErrorKind::TimedOut));
            reading.await?
        }
    }
}

fn set_trouble(reader: &Reader, health: &watch::Sender<Health>, error: &io::Error) {
    let trouble = Trouble::Unreachable(error.to_string());
    let as_of = reader.members().borrow().as_of;
    let next = match as_of {
        Some(since) => Health::Stale { since, trouble },
        None => Health::Connecting { trouble: Some(trouble) },
    };
    publish(health, next);
}
