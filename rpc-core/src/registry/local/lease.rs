//! Election by a locked file.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;

use super::directory::{Directory, is_at};
use super::writer::{Writer, is_locked_by, open_lock};
use super::{blocking, settle};
use crate::registry::tasks::Tasks;
use crate::registry::{Coordination, Lease, UpdateError, Version};
use crate::{BoxFuture, NodeRecord};

/// A leadership is tried for, and looked after, this often.
const ELECTION_INTERVAL: Duration = Duration::from_millis(500);

pub(super) struct LocalCoordination {
    pub(super) dir: Arc<Directory>,
    pub(super) tasks: Arc<Tasks>,
}

impl Coordination for LocalCoordination {
    fn elect(&self, job: &str) -> watch::Receiver<Option<Arc<dyn Lease>>> {
        let (leader, receiver) = watch::channel(None);
        let (dir, job) = (self.dir.clone(), job.to_owned());
        self.tasks.spawn(|stop| async move {
            let mut leadership = None;
            tokio::select! {
                () = take_part(dir, job, &leader, &mut leadership) => {}
                () = stop.cancelled() => {}
                () = leader.closed() => {}
            }
            leader.send_replace(None);
            drop(leadership);
        });
        receiver
    }
}

type Leader = watch::Sender<Option<Arc<dyn Lease>>>;

/// Leads whenever nobody else does, until the future is dropped.
async fn take_part(dir: Arc<Directory>, job: String, leader: &Leader, leadership: &mut Option<Arc<Leadership>>) {
    loop {
        match leadership {
            None => {
                *leadership = lead(&dir, &job).await;
                if let Some(leadership) = leadership {
                    leader.send_replace(Some(Arc::new(LocalLease(Arc::downgrade(leadership)))));
                }
            }
            Some(held) if is_held(held).await => {}
            Some(_) => {
                leader.send_replace(None);
                *leadership = None;
            }
        }
        tokio::time::sleep(ELECTION_INTERVAL).await;
    }
}

async fn lead(dir: &Arc<Directory>, job: &str) -> Option<Arc<Leadership>> {
    let (dir, name) = (dir.clone(), job.to_owned());
    let leadership = blocking(move || Leadership::take(dir, name)).await.unwrap_or_else(|error| {
        tracing::debug!(job, %error, "no election");
        None
    });
    leadership.map(Arc::new)
}

/// Whether the file is still there: if it was deleted, another process can lock a new one.
async fn is_held(leadership: &Arc<Leadership>) -> bool {
    let leadership = leadership.clone();
    blocking(move || leadership.is_held()).await.unwrap_or(false)
}

/// The lock on a job's file, which the kernel takes from a process that dies.
struct Leadership {
    dir: Arc<Directory>,
    job: String,
    lock: File,
}

impl Leadership {
    fn take(dir: Arc<Directory>, job: String) -> io::Result<Option<Self>> {
        dir.prepare()?;
        let lock = open_lock(&dir.job(&job, ".lock"))?;
        let leadership = Self { dir, job, lock };
        let taken = is_locked_by(&leadership.lock)? && leadership.is_held()?;
        Ok(taken.then_some(leadership))
    }

    fn is_held(&self) -> io::Result<bool> {
        is_at(&self.lock, &self.dir.job(&self.job, ".lock"))
    }

    fn claim(&self, writer: &Writer<'_>, slot: u64) -> io::Result<bool> {
        let path = self.dir.job(&self.job, ".slot");
        let last = match fs::read_to_string(&path) {
            Ok(text) => {
                Some(text.trim().parse::<u64>().map_err(|e| io::Error::other(format!("{}: {e}", path.display())))?)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        let first = last.is_none_or(|last| slot > last);
        if first {
            writer.put(&path, slot.to_string().as_bytes())?;
        }
        Ok(first)
    }
}

/// Writes while the leadership can still be taken hold of. The lock then stays for as long as the
/// write lasts, so that nobody else leads meanwhile.
struct LocalLease(Weak<Leadership>);

impl LocalLease {
    async fn fenced<T: Send + 'static>(
        &self,
        write: impl FnOnce(&Leadership, &Writer<'_>) -> io::Result<Result<T, UpdateError>> + Send + 'static,
    ) -> Result<T, UpdateError> {
        let leadership = self.0.upgrade().ok_or(UpdateError::LeaseLost)?;
        let written = blocking(move || {
            let writer = Writer::lock(&leadership.dir)?;
            if leadership.is_held()? { write(&leadership, &writer) } else { Ok(Err(UpdateError::LeaseLost)) }
        });
        settle(written.await)
    }
}

impl Lease for LocalLease {
    fn claim(&self, slot: u64) -> BoxFuture<'_, Result<bool, UpdateError>> {
        Box::pin(self.fenced(move |leadership, writer| leadership.claim(writer, slot).map(Ok)))
    }

    fn update(&self, addr: SocketAddr, version: Version, record: NodeRecord) -> BoxFuture<'_, Result<(), UpdateError>> {
        Box::pin(self.fenced(move |_, writer| writer.update(addr, version, &record)))
    }
}
