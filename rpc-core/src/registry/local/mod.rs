//! `local:[DIR]`: a directory on this machine, without any other process.

mod announcer;
mod directory;
mod entry;
mod follower;
mod lease;
mod reader;
mod watcher;
mod writer;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use self::announcer::Announcer;
use self::directory::Directory;
use self::lease::LocalCoordination;
use self::reader::Reader;
use self::watcher::Wake;
use self::writer::Writer;
use super::tasks::Tasks;
use super::{Capabilities, Coordination, Health, Member, Members, Registration, Registry, RegistryUrl};
use super::{UpdateError, Version};
use crate::{BoxFuture, Error, ErrorKind, NodeRecord};

/// No operation takes longer: two seconds are far beyond what a directory on a local disk needs.
const OPERATION_MAX: Duration = Duration::from_secs(2);

/// One handle on a directory. A node lives as long as the lock that its process holds on a file;
/// the kernel takes the lock from a process that dies.
pub(super) struct LocalRegistry {
    url: RegistryUrl,
    dir: Arc<Directory>,
    reader: Arc<Reader>,
    health: watch::Receiver<Health>,
    tasks: Arc<Tasks>,
}

impl LocalRegistry {
    /// # Errors
    /// There is no default directory, because neither of its two places can be written to; or the
    /// directory cannot be read, for a reason that will not go away.
    pub(super) fn new(url: &RegistryUrl, dir: Option<&Path>) -> Result<Self, Error> {
        let dir = dir.map_or_else(Directory::of_user, Directory::named).map_err(|e| {
            let way_out = "name a directory with local:DIR";
            ErrorKind::Config(format!("registry URL `{url}`: no directory: {e}; {way_out}"))
        })?;
        // Nobody has to wait to be told what waiting does not mend.
        if let Err(error) = dir.check() {
            return Err(ErrorKind::Config(format!("registry URL `{url}`: {error}")).into());
        }
        let dir = Arc::new(dir);
        let wake = Arc::new(Wake::default());
        let reader = Arc::new(Reader::new(dir.clone(), wake.clone()));
        let (health, health_rx) = watch::channel(Health::Connecting { trouble: None });
        let tasks = Arc::new(Tasks::default());
        tasks.spawn(|stop| follower::follow(reader.clone(), wake, health, stop));
        // With the directory spelled out: two users, or two environments, may mean different ones.
        let url = RegistryUrl::local(dir.root());
        Ok(Self { url, dir, reader, health: health_rx, tasks })
    }
}

impl Registry for LocalRegistry {
    fn url(&self) -> &RegistryUrl {
        &self.url
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { register: true, write_back: true, coordination: true }
    }

    fn register(&self, addr: SocketAddr, record: NodeRecord) -> Registration {
        if !addr.ip().to_canonical().is_loopback() {
            return Registration::refused(format!(
                "{} serves this machine only and takes loopback addresses, which {addr} is not; \
                 to be found from other machines, register in zk://host:port/namespace",
                self.url
            ));
        }
        if self.tasks.is_closed() {
            return Registration::refused(format!("{} is closed", self.url));
        }
        let (registration, status, commands) = Registration::channel();
        let (dir, members) = (self.dir.clone(), self.reader.members());
        let announcer = Announcer { dir, addr, record, status, members };
        self.tasks.spawn(|stop| announcer.run(commands, stop));
        registration
    }

    fn members(&self) -> watch::Receiver<Arc<Members>> {
        self.reader.members()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    fn read(&self, addr: SocketAddr) -> BoxFuture<'_, Result<Option<Member>, UpdateError>> {
        let reader = self.reader.clone();
        Box::pin(async move {
            blocking(move || reader.read_one(addr)).await.map_err(|e| UpdateError::Unknown(e.to_string()))
        })
    }

    fn update(&self, addr: SocketAddr, version: Version, record: NodeRecord) -> BoxFuture<'_, Result<(), UpdateError>> {
        let dir = self.dir.clone();
        let update = move || match dir.ids()? {
            // Without a directory there is no entry either, and none is made.
            None => Ok(Err(UpdateError::Changed)),
            Some(_) => Writer::lock(&dir)?.update(addr, version, &record),
        };
        Box::pin(async move { settle(blocking(update).await) })
    }

    fn coordination(&self) -> Option<Arc<dyn Coordination>> {
        Some(Arc::new(LocalCoordination { dir: self.dir.clone(), tasks: self.tasks.clone() }))
    }

    fn close(&self, timeout: Duration) -> BoxFuture<'_, ()> {
        Box::pin(self.tasks.close(timeout))
    }
}

/// Runs `work` where it may block, and gives up waiting for it after [`OPERATION_MAX`].
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    match tokio::time::timeout(OPERATION_MAX, tokio::task::spawn_blocking(work)).await {
        Ok(done) => done?,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the directory does not answer")),
    }
}

/// What failed in time was refused; otherwise it may still take place.
fn settle<T>(written: io::Result<Result<T, UpdateError>>) -> Result<T, UpdateError> {
    written.unwrap_or_else(|error| match error.kind() {
        io::ErrorKind::TimedOut => Err(UpdateError::Unknown(error.to_string())),
        _ => Err(UpdateError::Refused(error.to_string())),
    })
}
