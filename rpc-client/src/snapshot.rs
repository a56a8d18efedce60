//! The nodes that take calls, published whole.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rpc_core::registry::Member;
use rpc_core::{ErrorKind, RpcError};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::balance::{NodeId, NodeView, View};
use crate::channel::Channel;
use crate::decisions::{Filter, Removed};
use crate::node::Node;
use crate::report::NodeSamples;

/// The nodes that take calls. Published as one, never changed after that.
#[derive(Default)]
pub(crate) struct Snapshot {
    /// Counts the snapshots.
    pub(crate) version: u64,
    pub(crate) usable: Vec<Arc<Usable>>,
    /// Those that are not, and why.
    pub(crate) removed: Arc<[Removed]>,
    /// Whether a list of nodes was ever read.
    pub(crate) known: bool,
    /// All nodes, usable or not, by address.
    pub(crate) all: Vec<Listed>,
}

/// A node of the list, and where this client stands with it.
pub(crate) struct Listed {
    pub(crate) node: Arc<Node>,
    pub(crate) member: Member,
    pub(crate) connection: ConnectionState,
    /// Its open connections, silent ones included.
    pub(crate) channels: Vec<Arc<Channel>>,
    /// Whether a call that finds no node does well to wait for this one.
    pub(crate) hopeful: bool,
    pub(crate) trouble: Option<Arc<str>>,
    /// What the node answered to hello, if trying again will not change it.
    pub(crate) refusal: Option<RpcError>,
}

impl Snapshot {
    /// Why no node can be used: that one of them does not want this client, if so.
    pub(crate) fn no_node(&self) -> ErrorKind {
        let refusal = self.all.iter().find_map(|l| Some((l.member.addr, l.refusal.clone()?)));
        refusal.map_or(ErrorKind::NoNode, |(node, error)| ErrorKind::Remote { node, error })
    }
}

impl Listed {
    /// Whether a connection was made, or trying to has failed once.
    pub(crate) fn is_settled(&self) -> bool {
        self.trouble.is_some() || self.connection != ConnectionState::Connecting
    }

    /// Why it takes no calls, if it does not.
    pub(crate) fn removed(&self) -> Removed {
        let filter = match self.connection {
            ConnectionState::Connecting | ConnectionState::Connected => Filter::NotConnected,
            ConnectionState::Suspect => Filter::Silent,
            ConnectionState::Leaving => Filter::Draining,
            ConnectionState::Ejected => Filter::Ejected,
        };
        let why = self.member.malformed.clone().or_else(|| self.trouble.as_deref().map(str::to_owned));
        Removed { node: self.node.addr, filter, why }
    }

    pub(crate) fn status(&self, now: Instant) -> NodeStatus {
        let state = match (&self.member.malformed, self.node.is_leaving()) {
            (Some(_), _) => "malformed",
            (None, true) => "draining",
            (None, false) => "up",
        };
        NodeStatus {
            node: self.member.addr,
            id: self.member.record.id.clone(),
            name: self.member.record.meta.get("name").and_then(|n| n.as_str()).map(str::to_owned),
            state: state.to_owned(),
            response_time_us: self.node.response_time_us(now),
            age_ms: u64::try_from(self.node.entry_age(now).as_millis()).unwrap_or(u64::MAX),
            connected: self.connection == ConnectionState::Connected,
            connection: self.connection,
            in_flight: self.node.in_flight(),
            trouble: self.member.malformed.clone().or_else(|| self.trouble.as_deref().map(str::to_owned)),
        }
    }
}

/// A node with open connections.
pub(crate) struct Usable {
    pub(crate) node: Arc<Node>,
    pub(crate) channels: Vec<Arc<Channel>>,
    pub(crate) since: Instant,
    /// Its server sends load reports and answers probes.
    pub(crate) reports: bool,
    /// Where to record latencies for the write-back.
    pub(crate) samples: Option<Arc<NodeSamples>>,
    next: AtomicUsize,
}

impl Usable {
    pub(crate) fn new(
        node: Arc<Node>,
        channels: Vec<Arc<Channel>>,
        since: Instant,
        samples: Option<Arc<NodeSamples>>,
    ) -> Self {
        let reports = channels.iter().all(|c| c.peer.reports);
        Self { node, channels, since, reports, samples, next: AtomicUsize::new(0) }
    }

    /// Which connection the next call takes: each in turn, and with many calls in flight several on the
    /// same before the next, so that they leave and come back in one write.
    #[inline]
    pub(crate) fn next_channel(&self) -> usize {
        match self.channels.len() {
            1 => 0,
            n => {
                // Not in one step, which costs more: two calls that take the same turn do no harm.
                let call = self.next.load(Ordering::Relaxed);
                self.next.store(call.wrapping_add(1), Ordering::Relaxed);
                turn(call, self.node.in_flight() as usize, n)
            }
        }
    }
}

/// Which of `channels` call number `call` takes while `in_flight` are in flight. As many in a row as each has
/// of them share one, rounded down to a power of two: the turns stay the same while that number hardly changes.
fn turn(call: usize, in_flight: usize, channels: usize) -> usize {
    let each = (in_flight / channels).max(1);
    (call >> each.ilog2()) % channels
}

/// A snapshot at a moment, as policies see it.
pub(crate) struct SnapshotView<'a> {
    pub(crate) usable: &'a [Arc<Usable>],
    pub(crate) now: Instant,
}

impl View for SnapshotView<'_> {
    fn len(&self) -> usize {
        self.usable.len()
    }

    fn node(&self, index: usize) -> NodeView {
        let usable = &self.usable[index];
        usable.node.view(self.now, usable)
    }

    fn id(&self, index: usize) -> NodeId {
        self.usable[index].node.id
    }

    fn in_flight(&self, index: usize) -> u32 {
        self.usable[index].node.in_flight()
    }

    fn reports(&self, index: usize) -> bool {
        self.usable[index].reports
    }
}

/// A node in the list, for people and programs that look.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its address.
    pub node: SocketAddr,
    /// Its incarnation, empty if unknown.
    pub id: String,
    /// Its label, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `up`, `draining`, or `malformed` if its entry cannot be read.
    pub state: String,
    /// The response time in the registry, in microseconds; 0 is unknown or out of date.
    pub response_time_us: u64,
    /// How long ago its entry last changed, as seen from here, in milliseconds.
    pub age_ms: u64,
    /// Whether this client has a connection that takes calls.
    pub connected: bool,
    /// More about the connection.
    pub connection: ConnectionState,
    /// Calls of this client that wait for an answer.
    pub in_flight: u32,
    /// What is wrong, if something is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// What a client holds at a moment. Without calls in progress, `calls` and `unsent_bytes` are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientUsage {
    /// Open connections to nodes that are in the list and do not leave.
    pub connections: usize,
    /// Entries in the tables of these connections: calls that wait for an answer, and answers
    /// that their callers have not taken yet.
    pub calls: usize,
    /// Bytes of requests that the sockets have not taken yet.
    pub unsent_bytes: usize,
}

impl Snapshot {
    pub(crate) fn usage(&self) -> ClientUsage {
        let mut usage = ClientUsage::default();
        for channel in self.all.iter().flat_map(|listed| &listed.channels) {
            let (calls, unsent_bytes) = channel.held();
            usage.connections += 1;
            usage.calls += calls;
            usage.unsent_bytes += unsent_bytes;
        }
        usage
    }
}

/// Where this client stands with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionState {
    /// A connection is being made, or will be tried again.
    Connecting,
    /// It takes calls.
    Connected,
    /// It does not answer while calls wait.
    Suspect,
    /// It takes no new calls and finishes the old ones.
    Leaving,
    /// It failed too often and is left alone for a while.
    Ejected,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(in_flight: usize) -> Vec<usize> {
        (0..16).map(|call| turn(call, in_flight, 4)).collect()
    }

    #[test]
    fn few_calls_are_spread_and_many_share_a_write() {
        assert_eq!(turns(0), [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(turns(7), turns(0));
        assert_eq!(turns(8), [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!(turns(19), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
    }
}
