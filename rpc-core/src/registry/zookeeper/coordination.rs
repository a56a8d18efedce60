//! Elections, and what only a leader may write.
//!
//! The lock znodes of a job are `<namespace>.cluster/jobs/<job>/lock-<sequence>`: the holder of the
//! lowest leads. Everything a leader writes is one transaction with a check of its lock znode, so
//! a leader that was suspended and has lost its lock writes nothing.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, info};
use zookeeper_client::{self as zk, CreateMode, LockOptions, LockPrefix, OneshotWatcher, OwnedLockClient};

use super::failure::Failure;
use super::session::{Link, Session, connected};
use super::{Options, Shared};
use crate::registry::{Coordination, Lease, UpdateError, Version};
use crate::{BoxFuture, NodeRecord};

/// Pause before a failed candidate stands again.
const RETRY: Duration = Duration::from_millis(300);

/// How often a claim is tried when others write the slot at the same time. Each failure means that
/// somebody else's claim has succeeded, and a lease has one holder, so two would do.
const CLAIM_TRIES: usize = 4;

type Leadership = Option<Arc<dyn Lease>>;

/// The elections that this process takes part in.
pub(super) struct Elections {
    shared: Arc<Shared>,
    /// One candidate per job: two on one session could not tell their lock znodes apart.
    candidates: Arc<Mutex<HashMap<String, watch::Sender<Leadership>>>>,
    /// Marks the lock znodes of this process.
    id: String,
}

impl Elections {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, candidates: Arc::default(), id: uuid::Uuid::new_v4().to_string() }
    }
}

impl Coordination for Elections {
    fn elect(&self, job: &str) -> watch::Receiver<Leadership> {
        let mut candidates = self.candidates.lock();
        if let Some(candidate) = candidates.get(job) {
            return candidate.subscribe();
        }
        let (leadership, receiver) = watch::channel(None);
        candidates.insert(job.to_owned(), leadership.clone());
        let candidate = Candidate {
            job: job.to_owned(),
            dir: self.shared.options.job(job),
            id: self.id.clone(),
            link: self.shared.link.clone(),
            shared: self.shared.clone(),
            leadership,
            candidates: self.candidates.clone(),
        };
        self.shared.tasks.spawn(candidate.run());
        receiver
    }
}

/// The task that stands in one election.
struct Candidate {
    job: String,
    dir: String,
    id: String,
    shared: Arc<Shared>,
    link: watch::Receiver<Link>,
    leadership: watch::Sender<Leadership>,
    candidates: Arc<Mutex<HashMap<String, watch::Sender<Leadership>>>>,
}

/// Why a candidacy or a reign is over.
enum End {
    /// Nobody wants the lease any more, or the registry is being closed.
    Resigned,
    /// To be tried again.
    Lost,
}

impl Candidate {
    async fn run(mut self) {
        loop {
            let session = tokio::select! {
                biased;
                () = self.shared.closing.cancelled() => None,
                () = self.leadership.closed() => None,
                session = connected(&mut self.link) => session,
            };
            if let Some(session) = session {
                match self.stand(&session).await {
                    Ok(End::Lost) => {}
                    // Without this the next candidate would wait until the session ends.
                    Ok(End::Resigned) => drop(self.sweep(&session).await),
                    Err(failure) => debug!(job = self.job, %failure, "not a candidate yet"),
                }
            }
            if self.retire() {
                return;
            }
            sleep(RETRY).await;
        }
    }

    /// Strikes this candidate from the list if it is not wanted any more.
    fn retire(&self) -> bool {
        // Under the lock, so that nobody joins between the look and the removal.
        let mut candidates = self.candidates.lock();
        let closed = self.shared.closing.is_cancelled() || matches!(&*self.link.borrow(), Link::Closed);
        let over = closed || self.leadership.receiver_count() == 0;
        if over {
            candidates.remove(&self.job);
        }
        over
    }

    /// Waits for the lock on one session, and holds it.
    async fn stand(&mut self, session: &Session) -> Result<End, Failure> {
        self.sweep(session).await?;
        let prefix = format!("{}/lock-", self.dir);
        let id = self.id.clone();
        let options = self.shared.options.clone();
        let lock = tokio::select! {
            lock = lock(&session.client, &options, &prefix, &id) => Arc::new(lock?),
            // The crate's `lock` is dropped only with the session or the candidacy; `sweep` removes
            // what a request in flight leaves behind.
            end = self.withdrawn(session.id()) => return Ok(end),
        };
        let end = self.reign(session, &lock).await;
        self.leadership.send_replace(None);
        info!(job = self.job, "not leading any more");
        Ok(end)
    }

    /// Holds the lease while the lock znode is there and the connection stands.
    async fn reign(&mut self, session: &Session, lock: &Arc<OwnedLockClient>) -> End {
        loop {
            let watcher = match self.verify(session, lock.lock_path()).await {
                Ok(Some(watcher)) => watcher,
                Ok(None) | Err(Failure::Definite(_) | Failure::SessionGone(_)) => return End::Lost,
                Err(Failure::Unknown(_)) => {
                    self.leadership.send_replace(None);
                    sleep(RETRY).await;
                    continue;
                }
            };
            info!(job = self.job, lock = lock.lock_path(), "leading");
            self.leadership.send_replace(Some(Arc::new(ZooKeeperLease {
                lock: Arc::downgrade(lock),
                shared: self.shared.clone(),
                last_path: format!("{}/last", self.dir),
            })));
            tokio::select! {
                // A holder is not told otherwise that its lock was deleted.
                _ = AssertUnwindSafe(watcher.changed()).catch_unwind() => {}
                end = self.disturbed(session.id()) => {
                    if let Some(end) = end {
                        return end;
                    }
                }
            }
            // In doubt until it is verified again.
            self.leadership.send_replace(None);
        }
    }

    /// Whether the lock znode is still there and ours; with a watch on it.
    async fn verify(&self, session: &Session, path: &str) -> Result<Option<OneshotWatcher>, Failure> {
        let (stat, watcher) = session.bounded(session.client.check_and_watch_stat(path)).await?;
        Ok(stat.is_some_and(|stat| stat.ephemeral_owner == session.id()).then_some(watcher))
    }

    /// Waits until the lease is in doubt. None once the same session is connected again.
    async fn disturbed(&mut self, session: i64) -> Option<End> {
        let mut doubted = false;
        loop {
            match &*self.link.borrow_and_update() {
                Link::Up(now) if now.id() == session && doubted => return None,
                Link::Up(now) if now.id() == session => {}
                Link::Broken { .. } => {
                    self.leadership.send_replace(None);
                    doubted = true;
                }
                Link::Up(_) | Link::Down { .. } | Link::Closed => return Some(End::Lost),
            }
            tokio::select! {
                () = self.shared.closing.cancelled() => return Some(End::Resigned),
                () = self.leadership.closed() => return Some(End::Resigned),
                _ = self.link.changed() => {}
            }
        }
    }

    /// Waits until the session is over or the candidacy is not wanted any more.
    async fn withdrawn(&mut self, session: i64) -> End {
        loop {
            if let Some(end) = self.disturbed(session).await {
                return end;
            }
        }
    }

    /// Deletes the lock znodes that this process left behind, on this session or an earlier one.
    /// One of them would keep everybody from leading, this process included.
    async fn sweep(&self, session: &Session) -> Result<(), Failure> {
        let names = match session.bounded(session.client.list_children(&self.dir)).await {
            Err(failure) if failure.is(&zk::Error::NoNode) => return Ok(()),
            other => other?,
        };
        for name in names.iter().filter(|name| name.starts_with("lock-")) {
            let path = format!("{}/{name}", self.dir);
            let ours = match session.bounded(session.client.get_data(&path)).await {
                // It is gone, or made by somebody who hides it.
                Err(Failure::Definite(zk::Error::NoNode | zk::Error::NoAuth)) => false,
                other => other?.0 == self.id.as_bytes(),
            };
            if ours {
                match session.bounded(session.client.delete(&path, None)).await {
                    Err(failure) if failure.is(&zk::Error::NoNode) => {}
                    other => other?,
                }
            }
        }
        Ok(())
    }
}

/// The crate's lock. `new_shared`, because the clean-up of `new_curator` misses its own znode.
async fn lock(client: &zk::Client, options: &Options, prefix: &str, id: &str) -> Result<OwnedLockClient, Failure> {
    let options = LockOptions::new(options.acls()).with_ancestor_options(options.create(CreateMode::Persistent))?;
    let lock = client.lock(LockPrefix::new_shared(prefix)?, id.as_bytes(), options).await?;
    Ok(lock.into_owned())
}

/// Leadership as long as the lock znode exists.
struct ZooKeeperLease {
    /// Gone once the candidate has given the lock up, however long the lease is kept.
    lock: Weak<OwnedLockClient>,
    shared: Arc<Shared>,
    last_path: String,
}

impl ZooKeeperLease {
    fn lock(&self) -> Result<(Arc<OwnedLockClient>, Session), UpdateError> {
        let lock = self.lock.upgrade().ok_or(UpdateError::LeaseLost)?;
        Ok((lock, self.shared.session()?))
    }

    /// The highest slot that was claimed, and the version of that entry; none if there was none.
    async fn last(&self, session: &Session) -> Result<Option<(u64, i32)>, Failure> {
        match session.bounded(session.client.get_data(&self.last_path)).await {
            Ok((data, stat)) => {
                let last = std::str::from_utf8(&data).ok().and_then(|text| text.parse().ok());
                Ok(Some((last.unwrap_or(0), stat.version)))
            }
            Err(failure) if failure.is(&zk::Error::NoNode) => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

impl Lease for ZooKeeperLease {
    fn claim(&self, slot: u64) -> BoxFuture<'_, Result<bool, UpdateError>> {
        Box::pin(async move {
            let (lock, session) = self.lock()?;
            let data = slot.to_string().into_bytes();
            for _ in 0..CLAIM_TRIES {
                let written = match self.last(&session).await? {
                    Some((last, _)) if last >= slot => return Ok(false),
                    Some((_, version)) => {
                        session.bounded(lock.set_data(&self.last_path, &data, Some(version))).await.map(drop)
                    }
                    None => {
                        let options = self.shared.options.create(CreateMode::Persistent);
                        session.bounded(lock.create(&self.last_path, &data, &options)).await.map(drop)
                    }
                };
                match written {
                    Ok(()) => return Ok(true),
                    Err(Failure::Definite(zk::Error::BadVersion | zk::Error::NoNode | zk::Error::NodeExists)) => {}
                    Err(failure) => return Err(failure.into()),
                }
            }
            Err(UpdateError::Changed)
        })
    }

    fn update(&self, addr: SocketAddr, version: Version, record: NodeRecord) -> BoxFuture<'_, Result<(), UpdateError>> {
        Box::pin(async move {
            let (lock, session) = self.lock()?;
            let set = async |path: String, data: Vec<u8>, version| {
                session.bounded(lock.set_data(&path, &data, Some(version))).await
            };
            self.shared.update(&session, addr, version, &record, set).await
        })
    }
}
