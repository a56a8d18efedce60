//! Events of the file system.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

use super::directory::{Directory, FileId};

/// Says that something changed. Many events are one wake-up.
#[derive(Debug, Default)]
pub(super) struct Wake {
    pub(super) changed: Notify,
    /// A file that was open for writing was closed: a lock, since payloads are renamed into place.
    pub(super) lock_closed: AtomicBool,
}

/// Watches the payloads and the locks, as long as it exists.
pub(super) struct Watcher {
    directories: [FileId; 2],
    /// None where the system has no events left to give: what is read regularly has to do then.
    _events: Option<RecommendedWatcher>,
}

impl Watcher {
    pub(super) fn new(dir: &Directory, directories: [FileId; 2], wake: Arc<Wake>) -> Self {
        let events = watch(&[dir.root(), &dir.locks()], wake);
        let events = events.inspect_err(|error| tracing::warn!(%error, "no file system events, changes are seen late"));
        Self { directories, _events: events.ok() }
    }

    /// Whether it watches these directories and not others that had their names before.
    pub(super) fn is_on(&self, directories: [FileId; 2]) -> bool {
        self.directories == directories
    }
}

fn watch(paths: &[&Path], wake: Arc<Wake>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
        match event.map(|event| event.kind) {
            Ok(EventKind::Access(AccessKind::Close(AccessMode::Write))) => {
                wake.lock_closed.store(true, Ordering::Release);
            }
            // Reading is no change; our own reading would wake us for ever.
            Ok(EventKind::Access(_)) => return,
            Ok(_) | Err(_) => {}
        }
        wake.changed.notify_one();
    })?;
    for path in paths {
        watcher.watch(path, RecursiveMode::NonRecursive)?;
    }
    Ok(watcher)
}
