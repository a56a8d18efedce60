//! A registry on strings: the test decides what it says and when.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpc_core::registry::{
    Capabilities, Coordination, Health, Member, Members, Registration, Registry, RegistryUrl, UpdateError, Version,
};
use rpc_core::{BoxFuture, NodeRecord, NodeState};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::Node;

/// A registry whose list and health are set by the test. Nothing is written to it.
pub struct Puppet {
    url: RegistryUrl,
    members: watch::Sender<Arc<Members>>,
    health: watch::Sender<Health>,
}

impl Puppet {
    /// A registry that has not said anything yet.
    ///
    /// # Panics
    /// Never: the URL is valid.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            url: "mem:puppet".parse().expect("it is a registry URL"),
            members: watch::Sender::default(),
            health: watch::Sender::new(Health::Connecting { trouble: None }),
        })
    }

    /// Publishes a list of these entries.
    pub fn list(&self, members: impl IntoIterator<Item = Member>) {
        let nodes = members.into_iter().map(|member| (member.addr, member)).collect();
        self.health.send_replace(Health::Live);
        self.members.send_replace(Arc::new(Members { nodes, misnamed: Vec::new(), as_of: Some(Instant::now()) }));
    }

    /// Says whether the list is being kept up to date.
    pub fn health(&self, health: Health) {
        self.health.send_replace(health);
    }
}

/// The entry of a running server.
pub fn entry(node: &Node) -> Member {
    entry_of(node.addr, &node.incarnation)
}

/// The entry of an incarnation at an address; an empty one is not checked.
pub fn entry_of(addr: SocketAddr, incarnation: &str) -> Member {
    let record = NodeRecord { id: incarnation.to_owned(), ..NodeRecord::new() };
    Member { addr, record, malformed: None, version: Version(1), changed_at: Instant::now() }
}

/// The same entry of a node that drains.
pub fn draining(mut member: Member) -> Member {
    member.record.state = NodeState::Draining;
    member
}

impl Registry for Puppet {
    fn url(&self) -> &RegistryUrl {
        &self.url
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { register: false, write_back: false, coordination: false }
    }

    fn register(&self, _: SocketAddr, _: NodeRecord) -> Registration {
        Registration::refused("nothing is written to it".into())
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
        Box::pin(std::future::ready(Err(UpdateError::Refused("nothing is written to it".into()))))
    }

    fn coordination(&self) -> Option<Arc<dyn Coordination>> {
        None
    }

    fn close(&self, _: Duration) -> BoxFuture<'_, ()> {
        self.health.send_replace(Health::Closed);
        Box::pin(std::future::ready(()))
    }
}
