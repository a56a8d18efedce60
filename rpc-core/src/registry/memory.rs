//! `mem:NAME`: a registry within this process, for tests, examples and simulations.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::registration::answer;
use super::tasks::Tasks;
use super::{Capabilities, Coordination, Health, Lease, Member, Members, Registration, RegistrationCommand};
use super::{RegistrationStatus, Registry, RegistryUrl, UpdateError, Version, publish};
use crate::{BoxFuture, NodeRecord};

/// One handle on a space that all handles with the same name share.
pub(super) struct MemoryRegistry {
    url: RegistryUrl,
    space: Arc<Space>,
    health: watch::Sender<Health>,
    tasks: Arc<Tasks>,
}

impl MemoryRegistry {
    pub(super) fn new(url: &RegistryUrl, name: &str) -> Self {
        let health = watch::Sender::new(Health::Live);
        Self { url: url.clone(), space: Space::named(name), health, tasks: Arc::default() }
    }
}

impl Registry for MemoryRegistry {
    fn url(&self) -> &RegistryUrl {
        &self.url
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { register: true, write_back: true, coordination: true }
    }

    fn register(&self, addr: SocketAddr, record: NodeRecord) -> Registration {
        if self.tasks.is_closed() {
            return Registration::refused(format!("{} is closed", self.url));
        }
        let (registration, status, commands) = Registration::channel();
        let space = self.space.clone();
        self.tasks.spawn(|stop| announce(space, addr, record, status, commands, stop));
        registration
    }

    fn members(&self) -> watch::Receiver<Arc<Members>> {
        self.space.members.subscribe()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    fn read(&self, addr: SocketAddr) -> BoxFuture<'_, Result<Option<Member>, UpdateError>> {
        Box::pin(std::future::ready(Ok(self.space.read(addr))))
    }

    fn update(&self, addr: SocketAddr, version: Version, record: NodeRecord) -> BoxFuture<'_, Result<(), UpdateError>> {
        Box::pin(std::future::ready(self.space.update(addr, version, record)))
    }

    fn coordination(&self) -> Option<Arc<dyn Coordination>> {
        Some(Arc::new(MemoryCoordination { space: self.space.clone(), tasks: self.tasks.clone() }))
    }

    fn close(&self, timeout: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.tasks.close(timeout).await;
            self.health.send_replace(Health::Closed);
        })
    }
}

/// What the handles of one name share. It ends with the last of them.
struct Space {
    members: watch::Sender<Arc<Members>>,
    jobs: Mutex<HashMap<String, Job>>,
    /// An address or a leadership became free.
    freed: Notify,
}

#[derive(Default)]
struct Job {
    led: bool,
    last_slot: Option<u64>,
}

impl Space {
    fn named(name: &str) -> Arc<Self> {
        static SPACES: LazyLock<Mutex<HashMap<String, Weak<Space>>>> = LazyLock::new(Mutex::default);
        let mut spaces = SPACES.lock();
        spaces.retain(|_, space| space.strong_count() > 0);
        if let Some(space) = spaces.get(name).and_then(Weak::upgrade) {
            return space;
        }
        let members = Members { as_of: Some(Instant::now()), ..Members::default() };
        let space = Arc::new(Self {
            members: watch::Sender::new(Arc::new(members)),
            jobs: Mutex::default(),
            freed: Notify::new(),
        });
        spaces.insert(name.to_owned(), Arc::downgrade(&space));
        space
    }

    /// Publishes what `edit` makes of the nodes, if it returns true.
    fn edit(&self, edit: impl FnOnce(&mut BTreeMap<SocketAddr, Member>) -> bool) -> bool {
        self.members.send_if_modified(|members| {
            let members = Arc::make_mut(members);
            members.as_of = Some(Instant::now());
            edit(&mut members.nodes)
        })
    }

    fn read(&self, addr: SocketAddr) -> Option<Member> {
        self.edit(|_| false);
        self.members.borrow().nodes.get(&addr).cloned()
    }

    fn insert(self: &Arc<Self>, addr: SocketAddr, record: &NodeRecord) -> Option<Announced> {
        let inserted = self.edit(|nodes| {
            let free = !nodes.contains_key(&addr);
            if free {
                nodes.insert(addr, entry(addr, record.clone()));
            }
            free
        });
        inserted.then(|| Announced { space: self.clone(), addr })
    }

    fn update(&self, addr: SocketAddr, version: Version, record: NodeRecord) -> Result<(), UpdateError> {
        let updated = self.edit(|nodes| match nodes.get_mut(&addr) {
            Some(member) if member.version == version => {
                *member = entry(addr, record);
                true
            }
            Some(_) | None => false,
        });
        if updated { Ok(()) } else { Err(UpdateError::Changed) }
    }

    fn lead(self: &Arc<Self>, job: &str) -> Option<Arc<Leadership>> {
        let mut jobs = self.jobs.lock();
        let entry = jobs.entry(job.to_owned()).or_default();
        let free = !std::mem::replace(&mut entry.led, true);
        free.then(|| Arc::new(Leadership { space: self.clone(), job: job.to_owned() }))
    }
}

/// A new version of an entry.
fn entry(addr: SocketAddr, record: NodeRecord) -> Member {
    static VERSIONS: AtomicU64 = AtomicU64::new(1);
    let version = Version(VERSIONS.fetch_add(1, Ordering::Relaxed));
    Member { addr, record, malformed: None, version, changed_at: Instant::now() }
}

/// An entry, which is gone when this is dropped.
struct Announced {
    space: Arc<Space>,
    addr: SocketAddr,
}

impl Announced {
    /// Writes the state and leaves what others wrote.
    fn set_state(&self, record: &NodeRecord) {
        self.space.edit(|nodes| match nodes.get_mut(&self.addr) {
            Some(member) => {
                *member = entry(self.addr, NodeRecord { state: record.state, ..member.record.clone() });
                true
            }
            None => false,
        });
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.space.edit(|nodes| nodes.remove(&self.addr).is_some());
        self.space.freed.notify_waiters();
    }
}

/// Keeps `addr` announced until it is withdrawn.
async fn announce(
    space: Arc<Space>,
    addr: SocketAddr,
    mut record: NodeRecord,
    status: watch::Sender<RegistrationStatus>,
    mut commands: mpsc::Receiver<RegistrationCommand>,
    stop: CancellationToken,
) {
    let mut announced: Option<Announced> = None;
    let mut unanswered: Vec<oneshot::Sender<()>> = Vec::new();
    let withdrawn = loop {
        let freed = space.freed.notified();
        tokio::pin!(freed);
        freed.as_mut().enable();
        announced = announced.or_else(|| space.insert(addr, &record));
        if announced.is_some() {
            publish(&status, RegistrationStatus::Registered);
            unanswered.drain(..).for_each(answer);
        } else {
            let detail = format!("{addr} is registered by somebody else in this process");
            publish(&status, RegistrationStatus::Conflict { detail });
        }
        tokio::select! {
            command = commands.recv() => match command {
                Some(RegistrationCommand::SetState(state, done)) => {
                    record.state = state;
                    unanswered.push(done);
                    if let Some(announced) = &announced {
                        announced.set_state(&record);
                    }
                }
                Some(RegistrationCommand::Withdraw(done)) => break Some(done),
                None => break None,
            },
            () = stop.cancelled() => break None,
            () = freed, if announced.is_none() => {}
        }
    };
    drop(announced);
    publish(&status, RegistrationStatus::Withdrawn);
    withdrawn.into_iter().for_each(answer);
}

struct MemoryCoordination {
    space: Arc<Space>,
    tasks: Arc<Tasks>,
}

impl Coordination for MemoryCoordination {
    fn elect(&self, job: &str) -> watch::Receiver<Option<Arc<dyn Lease>>> {
        let (leader, receiver) = watch::channel(None);
        let (space, job) = (self.space.clone(), job.to_owned());
        self.tasks.spawn(|stop| async move {
            let mut leadership = None;
            tokio::select! {
                () = take_part(space, job, &leader, &mut leadership) => {}
                () = stop.cancelled() => {}
                () = leader.closed() => {}
            }
            leader.send_replace(None);
            drop(leadership);
        });
        receiver
    }
}

/// Leads as soon as nobody else does, until the future is dropped.
async fn take_part(
    space: Arc<Space>,
    job: String,
    leader: &watch::Sender<Option<Arc<dyn Lease>>>,
    leadership: &mut Option<Arc<Leadership>>,
) {
    loop {
        let freed = space.freed.notified();
        tokio::pin!(freed);
        freed.as_mut().enable();
        if leadership.is_none() {
            *leadership = space.lead(&job);
            if let Some(leadership) = leadership {
                leader.send_replace(Some(Arc::new(MemoryLease(Arc::downgrade(leadership)))));
            }
        }
        freed.await;
    }
}

/// Nobody else leads while this exists.
struct Leadership {
    space: Arc<Space>,
    job: String,
}

impl Drop for Leadership {
    fn drop(&mut self) {
        if let Some(job) = self.space.jobs.lock().get_mut(&self.job) {
            job.led = false;
        }
        self.space.freed.notify_waiters();
    }
}

/// Writes while the leadership can still be taken hold of, which keeps others from leading for as
/// long as the write lasts.
struct MemoryLease(Weak<Leadership>);

impl MemoryLease {
    fn fenced<R>(&self, write: impl FnOnce(&Leadership) -> Result<R, UpdateError>) -> Result<R, UpdateError> {
        write(&*self.0.upgrade().ok_or(UpdateError::LeaseLost)?)
    }
}

impl Lease for MemoryLease {
    fn claim(&self, slot: u64) -> BoxFuture<'_, Result<bool, UpdateError>> {
        Box::pin(std::future::ready(self.fenced(|leadership| {
            let mut jobs = leadership.space.jobs.lock();
            let last = &mut jobs.entry(leadership.job.clone()).or_default().last_slot;
            let first = last.is_none_or(|last| slot > last);
            if first {
                *last = Some(slot);
            }
            Ok(first)
        })))
    }

    fn update(&self, addr: SocketAddr, version: Version, record: NodeRecord) -> BoxFuture<'_, Result<(), UpdateError>> {
        Box::pin(std::future::ready(self.fenced(|leadership| leadership.space.update(addr, version, record))))
    }
}
