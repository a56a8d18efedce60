//! Where servers register and clients find them.
//!
//! A [`Registry`] announces nodes, publishes the list of them, and lets response times be written
//! back. [`Coordination`] elects the one client that runs the expiry job. A backend declares what
//! it can do with [`Registry::capabilities`]; one conformance suite (in the package `rpc-tests`)
//! runs for each declared capability.
//!
//! The call path never awaits a registry: it reads the list last published.

mod fixed;
#[cfg(unix)]
mod local;
mod members;
mod memory;
mod open;
mod registration;
mod tasks;
mod url;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::{BoxFuture, NodeRecord};

pub use members::RESPONSE_TIME_VALID;
pub use members::{Member, Members, Version};
pub use open::open;
pub use registration::{Registration, RegistrationCommand, RegistrationStatus};
pub use url::{RegistryUrl, Target, parse_duration, url_from_environment};

/// Where servers register and clients find them. Cheap to share as an `Arc`.
///
/// All methods but `update`, `read` and `close` return at once. Work goes on in tasks that the
/// backend owns and ends in [`Registry::close`] or when the last handle is dropped.
pub trait Registry: Send + Sync + 'static {
    /// The URL that this registry was opened with, as people write it.
    fn url(&self) -> &RegistryUrl;

    /// What this backend can do.
    fn capabilities(&self) -> Capabilities;

    /// Announces a node and keeps it announced, whatever happens to the connection with the
    /// registry, until the registration is withdrawn or dropped. It never fails: its status says
    /// how far it is. A backend that cannot register at all reports
    /// [`RegistrationStatus::Refused`] with the reason and the way out.
    fn register(&self, addr: SocketAddr, record: NodeRecord) -> Registration;

    /// The list of nodes as last read. It is kept while the registry cannot be reached.
    fn members(&self) -> watch::Receiver<Arc<Members>>;

    /// Whether the list is being kept up to date.
    fn health(&self) -> watch::Receiver<Health>;

    /// Reads one entry afresh. `Ok(None)`: there is none. The list is brought up to date too.
    fn read(&self, addr: SocketAddr) -> BoxFuture<'_, Result<Option<Member>, UpdateError>>;

    /// Replaces the record of an entry if it still has `version`. Bounded in time.
    ///
    /// # Cancellation
    /// Dropping the future leaves it open whether the record was written.
    fn update(&self, addr: SocketAddr, version: Version, record: NodeRecord) -> BoxFuture<'_, Result<(), UpdateError>>;

    /// Coordination between the clients of this registry, where the backend has it.
    fn coordination(&self) -> Option<Arc<dyn Coordination>>;

    /// Ends all tasks; registrations still alive are withdrawn first. Returns when the registry
    /// has confirmed it or `timeout` is over.
    fn close(&self, timeout: Duration) -> BoxFuture<'_, ()>;
}

/// Agreement among the clients of one registry.
pub trait Coordination: Send + Sync + 'static {
    /// Takes part in the election for `job` until the receiver is dropped. It holds a lease while
    /// this process is the leader, and none as soon as that is in doubt.
    fn elect(&self, job: &str) -> watch::Receiver<Option<Arc<dyn Lease>>>;
}

/// Leadership of one job. Everything written through it is fenced: once another process leads,
/// these writes fail.
pub trait Lease: Send + Sync + 'static {
    /// Claims the run numbered `slot`. `true` only for the first claim of a slot above all those
    /// claimed before, by anybody: a slot runs once in the whole cluster.
    fn claim(&self, slot: u64) -> BoxFuture<'_, Result<bool, UpdateError>>;

    /// [`Registry::update`], fenced.
    fn update(&self, addr: SocketAddr, version: Version, record: NodeRecord) -> BoxFuture<'_, Result<(), UpdateError>>;
}

/// Why an entry was not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// Somebody wrote it since, or it is gone: what was read is out of date.
    #[error("the entry has changed since it was read")]
    Changed,
    /// Leadership was lost.
    #[error("another process leads now")]
    LeaseLost,
    /// It is not known whether the write took place: the registry did not answer in time.
    #[error("the registry did not answer: {0}")]
    Unknown(String),
    /// The backend cannot write, or refused to (rights, size).
    #[error("the registry refused: {0}")]
    Refused(String),
}

/// What a backend can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Servers can register.
    pub register: bool,
    /// Response times can be written back.
    pub write_back: bool,
    /// Clients can elect a leader.
    pub coordination: bool,
}

/// Whether the list of nodes is being kept up to date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// No list was read yet.
    Connecting {
        /// Why not, once that is known.
        trouble: Option<Trouble>,
    },
    /// Changes arrive.
    Live,
    /// The list is the last one known; the registry cannot be reached.
    Stale {
        /// Since when.
        since: Instant,
        /// Why.
        trouble: Trouble,
    },
    /// The registry was closed.
    Closed,
}

impl Health {
    /// Whether changes arrive.
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Live)
    }

    /// Why changes do not arrive, if so and if known.
    pub fn trouble(&self) -> Option<&str> {
        match self {
            Self::Connecting { trouble } => trouble.as_ref().map(Trouble::reason),
            Self::Stale { trouble, .. } => Some(trouble.reason()),
            Self::Closed => Some("closed"),
            Self::Live => None,
        }
    }

    /// Whether changes do not arrive because the registry does not let this client in.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Connecting { trouble: Some(Trouble::Refused(_)) } | Self::Stale { trouble: Trouble::Refused(_), .. }
        )
    }
}

/// Why a registry cannot be read, for people, by what ends it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// It does not answer, or not with a list. That may pass by itself.
    #[error("{0}")]
    Unreachable(String),
    /// It answers, and does not let this client in. That ends when somebody changes the rights.
    #[error("{0}")]
    Refused(String),
}

impl Trouble {
    /// What happened.
    pub fn reason(&self) -> &str {
        match self {
            Self::Unreachable(reason) | Self::Refused(reason) => reason,
        }
    }
}

impl From<&str> for Trouble {
    fn from(reason: &str) -> Self {
        Self::Unreachable(reason.to_owned())
    }
}

/// Publishes a value; those who wait for a change are woken only if it is one.
fn publish<T: PartialEq>(sender: &watch::Sender<T>, next: T) {
    sender.send_if_modified(|value| {
        let news = *value != next;
        *value = next;
        news
    });
}
