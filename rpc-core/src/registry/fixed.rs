//! `static:ip:port,ip:port`: a fixed list.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{Capabilities, Coordination, Health, Member, Members, Registration, Registry, RegistryUrl};
use super::{UpdateError, Version};
use crate::{BoxFuture, NodeRecord};

/// A list of nodes that never changes. Response times cannot be written back to it.
pub(super) struct FixedRegistry {
    url: RegistryUrl,
    members: watch::Sender<Arc<Members>>,
    health: watch::Sender<Health>,
}

impl FixedRegistry {
    pub(super) fn new(url: &RegistryUrl, addrs: &[SocketAddr]) -> Self {
        let now = Instant::now();
        let member = |&addr| {
            // Which incarnation answers there is not known, hence a record without an id.
            let record = NodeRecord::unreadable();
            (addr, Member { addr, record, malformed: None, version: Version(0), changed_at: now })
        };
        let nodes = addrs.iter().map(member).collect();
        let members = Members { nodes, misnamed: Vec::new(), as_of: Some(now) };
        Self {
            url: url.clone(),
            members: watch::Sender::new(Arc::new(members)),
            health: watch::Sender::new(Health::Live),
        }
    }
}

const REFUSAL: &str = "a fixed list takes no entries and no response times; use local: or zk://host:port/namespace";

impl Registry for FixedRegistry {
    fn url(&self) -> &RegistryUrl {
        &self.url
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { register: false, write_back: false, coordination: false }
    }

    fn register(&self, addr: SocketAddr, _record: NodeRecord) -> Registration {
        let url = &self.url;
        Registration::refused(match self.members.borrow().nodes.contains_key(&addr) {
            true => format!("{url}: {REFUSAL}"),
            false => format!("{url} does not list {addr}, and takes no entries"),
        })
    }

    fn members(&self) -> watch::Receiver<Arc<Members>> {
        self.members.subscribe()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    fn read(&self, addr: SocketAddr) -> BoxFuture<'_, Result<Option<Member>, UpdateError>> {
        let member = self.members.borrow().nodes.get(&addr).cloned();
        Box::pin(std::future::ready(Ok(member)))
    }

    fn update(&self, _: SocketAddr, _: Version, _: NodeRecord) -> BoxFuture<'_, Result<(), UpdateError>> {
        Box::pin(std::future::ready(Err(UpdateError::Refused(REFUSAL.into()))))
    }

    fn coordination(&self) -> Option<Arc<dyn Coordination>> {
        None
    }

    fn close(&self, _timeout: Duration) -> BoxFuture<'_, ()> {
        self.health.send_replace(Health::Closed);
        Box::pin(std::future::ready(()))
    }
}
