//! The task that keeps the list of nodes.
//!
//! One child watch on the namespace and one data watch per node, all of them one-shot: the crate
//! restores these at a reconnect, and they fire for what changed meanwhile. A watch that has not
//! fired is kept, whatever else happens: dropping one costs a request.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info};
use zookeeper_client::{self as zk, OneshotWatcher};

use super::Shared;
use super::failure::Failure;
use super::session::{Link, Session, random};
use super::table::{Table, version};
use crate::registry::{Health, Member, Members, Trouble, UpdateError, publish};
use crate::{BoxFuture, backoff};

/// Least time between two rounds of reading, so at most 20 per second however many events come.
/// ZooKeeper serves about 50 000 re-reads per second in all, for all clients.
const READ_GAP: Duration = Duration::from_millis(50);

/// Pause after a round that failed.
const RETRY_GAP: Duration = Duration::from_millis(300);

/// Pause after one that was refused. Repeating it helps only once somebody has changed the rights.
const REFUSED_GAP: Duration = Duration::from_secs(2);

/// Everything is read again this often although no event came, or up to half as often again, so that
/// clients that started together drift apart. It should never find anything; it bounds the harm of
/// an event that was lost, and confirms the age of the list.
const RECHECK: Duration = Duration::from_secs(10);

/// While the session is connected and no event comes, the list is what ZooKeeper has: its age is
/// set back this often. A session that is cut off is noticed within about as much.
const CONFIRM: Duration = Duration::from_secs(1);

/// Reads in flight at a time.
const READS_MAX: usize = 64;

/// Somebody wants an entry read afresh.
#[derive(Debug)]
pub(super) struct ReadRequest {
    pub(super) addr: SocketAddr,
    pub(super) answer: oneshot::Sender<Result<Option<Member>, UpdateError>>,
}

/// The task that keeps the list.
pub(super) struct Follower {
    shared: Arc<Shared>,
    link: watch::Receiver<Link>,
    members: watch::Sender<Arc<Members>>,
    health: watch::Sender<Health>,
    requests: mpsc::Receiver<ReadRequest>,
    waiting: Vec<ReadRequest>,
    table: Table,
    watches: Watches,
    /// Nodes to read.
    dirty: BTreeSet<SocketAddr>,
    list_dirty: bool,
}

/// Watches that have not fired.
#[derive(Default)]
struct Watches {
    fired: FuturesUnordered<BoxFuture<'static, Watched>>,
    armed: BTreeSet<Watched>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Watched {
    /// The children of the namespace.
    List,
    /// Whether the namespace exists.
    Namespace,
    Node(SocketAddr),
}

impl Follower {
    pub(super) fn new(
        shared: Arc<Shared>,
        requests: mpsc::Receiver<ReadRequest>,
    ) -> (Self, watch::Receiver<Arc<Members>>, watch::Receiver<Health>) {
        let (members, members_rx) = watch::channel(Arc::default());
        let (health, health_rx) = watch::channel(Health::Connecting { trouble: None });
        let follower = Self {
            link: shared.link.clone(),
            table: Table::default(),
            shared,
            members,
            health,
            requests,
            waiting: Vec::new(),
            watches: Watches::default(),
            dirty: BTreeSet::new(),
            list_dirty: true,
        };
        (follower, members_rx, health_rx)
    }

    pub(super) async fn run(mut self) {
        while let Some(session) = self.connected().await {
            // A new session has no watches, and nothing is known of what happened before it.
            self.watches = Watches::default();
            self.everything_is_dirty();
            self.follow(&session).await;
        }
        self.health.send_replace(Health::Closed);
    }

    /// Waits for a connected session; none when the registry is closed.
    async fn connected(&mut self) -> Option<Session> {
        loop {
            let link = self.link.borrow_and_update().clone();
            match link {
                _ if self.shared.closing.is_cancelled() => return None,
                Link::Up(session) => return Some(session),
                Link::Closed => return None,
                Link::Down { .. } | Link::Broken { .. } => self.troubled(link.trouble()),
            }
            tokio::select! {
                () = self.shared.closing.cancelled() => return None,
                changed = self.link.changed() => changed.ok()?,
                request = self.requests.recv() => {
                    let _ = request?.answer.send(Err(self.link.borrow().unknown()));
                }
            }
        }
    }

    /// Keeps the list until there is another session, or none.
    async fn follow(&mut self, session: &Session) {
        let mut due = Instant::now();
        let mut recheck = due + recheck_pause();
        let mut up = true;
        loop {
            let now = Instant::now();
            if up && (!self.waiting.is_empty() || (self.is_dirty() && due <= now)) {
                due = match self.refresh(session).await {
                    Ok(()) => {
                        self.publish();
                        now + READ_GAP
                    }
                    Err(failure) => {
                        debug!(%failure, "the list of nodes could not be read");
                        let trouble = Trouble::from(&failure);
                        let refused = matches!(trouble, Trouble::Refused(_));
                        self.troubled(Some(trouble));
                        Instant::now() + if refused { REFUSED_GAP } else { RETRY_GAP }
                    }
                };
                self.answer();
                continue;
            }
            tokio::select! {
                () = self.shared.closing.cancelled() => return,
                changed = self.link.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let link = self.link.borrow_and_update().clone();
                    match &link {
                        Link::Up(now) if now.id() == session.id() => {
                            up = true;
                            // The restored watches have told what changed, if anything; this
                            // confirms that the list is fresh.
                            self.everything_is_dirty();
                        }
                        Link::Broken { .. } => {
                            up = false;
                            self.troubled(link.trouble());
                        }
                        Link::Up(_) | Link::Down { .. } | Link::Closed => return,
                    }
                }
                Some(watched) = self.watches.fired.next(), if !self.watches.fired.is_empty() => self.fired(watched),
                Some(request) = self.requests.recv() => self.want(request, up),
                () = sleep_until(due), if up && self.is_dirty() => {}
                () = sleep(CONFIRM), if up && !self.is_dirty() => self.publish(),
                () = sleep_until(recheck) => {
                    self.everything_is_dirty();
                    recheck = Instant::now() + recheck_pause();
                }
            }
        }
    }

    fn fired(&mut self, watched: Watched) {
        self.watches.armed.remove(&watched);
        match watched {
            Watched::Node(addr) => drop(self.dirty.insert(addr)),
            Watched::List | Watched::Namespace => self.list_dirty = true,
        }
    }

    fn want(&mut self, request: ReadRequest, up: bool) {
        if up {
            self.dirty.insert(request.addr);
            self.waiting.push(request);
        } else {
            let _ = request.answer.send(Err(self.link.borrow().unknown()));
        }
    }

    fn answer(&mut self) {
        for request in self.waiting.drain(..) {
            let outcome = match self.dirty.contains(&request.addr) {
                true => Err(UpdateError::Unknown("it could not be read".into())),
                false => Ok(self.table.get(request.addr).cloned()),
            };
            let _ = request.answer.send(outcome);
        }
    }

    fn is_dirty(&self) -> bool {
        self.list_dirty || !self.dirty.is_empty()
    }

    fn everything_is_dirty(&mut self) {
        self.list_dirty = true;
        self.dirty.extend(self.table.addresses());
    }

    /// Reads what is dirty.
    async fn refresh(&mut self, session: &Session) -> Result<(), Failure> {
        if self.list_dirty {
            let names = self.list(session).await?;
            self.dirty.extend(self.table.list(names));
            self.list_dirty = false;
        }
        let mut outcome = Ok(());
        let all: Vec<_> = self.dirty.iter().copied().collect();
        for some in all.chunks(READS_MAX) {
            let reads = some.iter().map(|addr| {
                let armed = self.watches.armed.contains(&Watched::Node(*addr));
                read(session, self.shared.options.node(*addr), armed)
            });
            for (addr, read) in some.iter().zip(join_all(reads).await) {
                match read {
                    Ok((data, stat, watcher)) => {
                        self.watches.keep(Watched::Node(*addr), watcher);
                        self.table.put(*addr, &data, version(&stat), Instant::now());
                    }
                    Err(failure) if failure.is(&zk::Error::NoNode) => self.table.remove(*addr),
                    // The others are not to suffer from it.
                    Err(refused @ Failure::Definite(_)) => {
                        self.table.put_hidden(*addr, refused.to_string(), Instant::now());
                    }
                    Err(failure) => {
                        outcome = Err(failure);
                        continue;
                    }
                }
                self.dirty.remove(addr);
            }
        }
        outcome
    }

    /// The names of all znodes. A namespace that does not exist is an empty list, and is waited for.
    async fn list(&mut self, session: &Session) -> Result<Vec<String>, Failure> {
        let namespace = self.shared.options.namespace.clone();
        loop {
            let listed = if self.watches.armed.contains(&Watched::List) {
                session.bounded(session.client.list_children(&namespace)).await
            } else {
                session.bounded(session.client.list_and_watch_children(&namespace)).await.map(|(names, watcher)| {
                    self.watches.keep(Watched::List, Some(watcher));
                    names
                })
            };
            match listed {
                Err(failure) if failure.is(&zk::Error::NoNode) => {}
                other => return other,
            }
            if self.watches.armed.contains(&Watched::Namespace) {
                return Ok(Vec::new());
            }
            let (stat, watcher) = session.bounded(session.client.check_and_watch_stat(&namespace)).await?;
            self.watches.keep(Watched::Namespace, Some(watcher));
            if stat.is_none() {
                return Ok(Vec::new());
            }
        }
    }

    fn publish(&mut self) {
        let next = self.table.snapshot(Instant::now());
        let news = !self.table.is_in(&self.members.borrow());
        self.members.send_if_modified(|members| {
            if members.is_known() {
                for addr in next.nodes.keys().filter(|addr| !members.nodes.contains_key(addr)) {
                    info!(node = %addr, "node appeared");
                }
                for addr in members.nodes.keys().filter(|addr| !next.nodes.contains_key(addr)) {
                    info!(node = %addr, "node disappeared");
                }
            }
            // That nothing changed is no news, but the list is younger.
            *members = Arc::new(next);
            news
        });
        // Not if the connection broke meanwhile.
        if matches!(&*self.link.borrow(), Link::Up(_)) {
            publish(&self.health, Health::Live);
        }
    }

    fn troubled(&self, trouble: Option<Trouble>) {
        let lost = || trouble.clone().unwrap_or_else(|| "not connected".into());
        let next = match &*self.health.borrow() {
            Health::Stale { since, .. } => Health::Stale { since: *since, trouble: lost() },
            _ if !self.members.borrow().is_known() => Health::Connecting { trouble },
            _ => Health::Stale { since: Instant::now(), trouble: lost() },
        };
        publish(&self.health, next);
    }
}

impl Watches {
    fn keep(&mut self, watched: Watched, watcher: Option<OneshotWatcher>) {
        let Some(watcher) = watcher else { return };
        self.armed.insert(watched);
        // The crate panics in a watcher that is polled while its runtime goes down.
        let changed = AssertUnwindSafe(watcher.changed()).catch_unwind();
        self.fired.push(Box::pin(changed.map(move |_| watched)));
    }
}

fn recheck_pause() -> Duration {
    RECHECK + backoff::full_jitter(0, RECHECK / 2, RECHECK / 2, random())
}

/// Reads one znode, and watches it unless a watch is `armed` already.
async fn read(
    session: &Session,
    path: String,
    armed: bool,
) -> Result<(Vec<u8>, zk::Stat, Option<OneshotWatcher>), Failure> {
    if armed {
        let (data, stat) = session.bounded(session.client.get_data(&path)).await?;
        return Ok((data, stat, None));
    }
    let (data, stat, watcher) = session.bounded(session.client.get_and_watch_data(&path)).await?;
    Ok((data, stat, Some(watcher)))
}
