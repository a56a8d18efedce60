//! The task that owns the nodes.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use rpc_core::RpcError;
use rpc_core::registry::{Member, Members, Registry};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Shared;
use super::connector::{Connector, Report, Trouble, What};
use crate::ClientConfig;
use crate::balance::{Event, NodeId, Random};
use crate::breaker::{BreakerState, out_of_fleet};
use crate::channel::{Channel, Status};
use crate::node::Node;
use crate::removal_doubt::RemovalDoubt;
use crate::report::Reporter;
use crate::snapshot::{ConnectionState, Listed, Snapshot, Usable};

/// Reports that may wait for the keeper; connectors wait beyond it.
const REPORTS_MAX: usize = 256;

pub(super) struct Keeper {
    shared: Arc<Shared>,
    registry: Arc<dyn Registry>,
    config: ClientConfig,
    reporter: Option<Arc<Reporter>>,
    nodes: BTreeMap<SocketAddr, Entry>,
    doubt: RemovalDoubt,
    known: bool,
    next_id: u64,
    version: u64,
    report_tx: mpsc::Sender<Report>,
    reports: mpsc::Receiver<Report>,
}

struct Entry {
    node: Arc<Node>,
    member: Member,
    connections: Vec<Connection>,
    usable_since: Option<Instant>,
    trouble: Option<Arc<str>>,
    /// What the node answered, if trying again will not change it.
    refusal: Option<RpcError>,
    /// Connects that failed since one succeeded.
    failed: u32,
    _connectors: JoinSet<()>,
}

struct Connection {
    channel: Option<Arc<Channel>>,
    status: Status,
}

impl Keeper {
    pub(super) fn new(
        shared: Arc<Shared>,
        registry: Arc<dyn Registry>,
        config: ClientConfig,
        reporter: Option<Arc<Reporter>>,
    ) -> Self {
        let (report_tx, reports) = mpsc::channel(REPORTS_MAX);
        Self {
            shared,
            registry,
            config,
            reporter,
            nodes: BTreeMap::new(),
            doubt: RemovalDoubt::new(),
            known: false,
            next_id: 0,
            version: 0,
            report_tx,
            reports,
        }
    }

    /// Follows the registry and the connections for ever.
    pub(super) async fn run(mut self) {
        let mut members = self.registry.members();
        loop {
            let list = members.borrow_and_update().clone();
            self.apply(&list);
            let mut closed = false;
            loop {
                let wake_at = self.publish();
                tokio::select! {
                    changed = members.changed(), if !closed => match changed {
                        Ok(()) => break,
                        // The registry is closed: its last list stays.
                        Err(_) => closed = true,
                    },
                    Some(report) = self.reports.recv() => {
                        self.take(report);
                        while let Ok(report) = self.reports.try_recv() {
                            self.take(report);
                        }
                    }
                    () = self.shared.poke.notified() => {}
                    () = tokio::time::sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => {}
                }
            }
        }
    }

    /// Takes over a new list.
    fn apply(&mut self, list: &Members) {
        if !list.is_known() {
            return;
        }
        self.known = true;
        let now = Instant::now();
        let nodes = &self.nodes;
        let announced = |addr| nodes.get(&addr).is_some_and(|e| e.node.is_leaving());
        let alive = |addr| nodes.get(&addr).is_some_and(Entry::is_alive);
        let kept = self.doubt.apply(now, list.nodes.keys().copied(), announced, alive).clone();
        self.nodes.retain(|addr, entry| {
            let stays = list.nodes.contains_key(addr) || kept.contains(addr);
            if !stays {
                tracing::info!(node = %addr, id = entry.member.record.id, "node gone");
            }
            stays
        });
        for (addr, member) in &list.nodes {
            match self.nodes.get_mut(addr) {
                Some(entry) if entry.is_same(member) => {
                    entry.node.update(member);
                    entry.member = member.clone();
                }
                _ => self.add(member, now),
            }
        }
    }

    /// A node that is new, or came back as another incarnation.
    fn add(&mut self, member: &Member, now: Instant) {
        tracing::info!(node = %member.addr, id = member.record.id, "node found");
        self.next_id += 1;
        let node = Arc::new(Node::new(NodeId(self.next_id), member, now));
        let mut connectors = JoinSet::new();
        let count = self.config.connections_per_node.max(1);
        for index in 0..count {
            let connector = Connector {
                node: node.clone(),
                index,
                config: self.config.clone(),
                health: self.registry.health(),
                reports: self.report_tx.clone(),
                random: Random::new(self.shared.random()),
            };
            connectors.spawn(connector.run());
        }
        let connections = (0..count).map(|_| Connection { channel: None, status: Status::Open }).collect();
        let entry = Entry {
            node,
            member: member.clone(),
            connections,
            usable_since: None,
            trouble: None,
            refusal: None,
            failed: 0,
            _connectors: connectors,
        };
        self.nodes.insert(member.addr, entry);
    }

    fn take(&mut self, report: Report) {
        let Some((addr, entry)) = self.nodes.iter_mut().find(|(_, e)| e.node.id == report.node) else { return };
        let addr = *addr;
        let connection = &mut entry.connections[report.index];
        let mut ended = false;
        match report.what {
            What::Connected(channel) => {
                entry.failed = 0;
                entry.trouble = None;
                entry.refusal = None;
                entry.node.connected(Instant::now());
                *connection = Connection { channel: Some(channel), status: Status::Open };
            }
            What::Failed(Trouble { reason, refusal }) => {
                ended = true;
                entry.failed = entry.failed.saturating_add(1);
                entry.trouble = Some(reason);
                entry.refusal = refusal;
                entry.node.connect_failed(Instant::now());
            }
            What::Status(status) => {
                if let Status::Closed(reason) = &status {
                    ended = true;
                    entry.trouble = Some(reason.clone());
                }
                if matches!(status, Status::Closed(_) | Status::Leaving) {
                    // Calls in flight hold it until they are answered; then it closes.
                    connection.channel = None;
                    ended = true;
                }
                connection.status = status;
            }
        }
        if ended && self.doubt.believe(addr) {
            tracing::info!(node = %addr, "node gone: the registry said so, and its connection closed");
            self.nodes.remove(&addr);
        }
    }

    /// Determines who may be called and publishes it. Returns when to do so again at the latest.
    fn publish(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let breakers: Vec<BreakerState> = self.nodes.values().map(|e| e.node.breaker(now)).collect();
        let ejected = out_of_fleet(&breakers);
        let wake_at = breakers.iter().filter_map(|b| match b {
            BreakerState::Ejected { until } if *until > now => Some(*until),
            BreakerState::Ejected { .. } | BreakerState::Healthy | BreakerState::Probing => None,
        });
        let wake_at = wake_at.min();
        let is_out = |at: usize| ejected[at] && matches!(breakers[at], BreakerState::Ejected { .. });
        let mut usable = self.usable(now, |at, entry| !is_out(at) && !entry.node.is_leaving(), &[Status::Open]);
        if usable.is_empty() {
            // Rather a node in doubt than none.
            usable = self.usable(now, |_, entry| !entry.node.is_leaving(), &[Status::Open, Status::Suspect]);
        }
        let listed = self.nodes.values().zip(&breakers).map(|(entry, breaker)| entry.listed(*breaker));
        let all: Vec<Listed> = listed.collect();
        let in_use: HashSet<NodeId> = usable.iter().map(|u| u.node.id).collect();
        let removed = all.iter().filter(|listed| !in_use.contains(&listed.node.id)).map(Listed::removed).collect();
        self.version += 1;
        self.shared.observe(&Event::Members { nodes: &usable.iter().map(|u| u.node.id).collect::<Vec<_>>() });
        let snapshot = Snapshot { version: self.version, usable, removed, known: self.known, all };
        self.shared.set_snapshot(snapshot);
        self.shared.published.send_modify(|count| *count += 1);
        self.move_calls();
        wake_at
    }

    /// Calls that wait at silent nodes go elsewhere as soon as there is an elsewhere.
    fn move_calls(&self) {
        let suspects = self.nodes.values().flat_map(|e| e.connections.iter().map(move |c| (e.node.id, c)));
        let suspects = suspects.filter(|(_, c)| c.status == Status::Suspect);
        for (id, channel) in suspects.filter_map(|(id, c)| Some((id, c.channel.as_ref()?))) {
            let snapshot = self.shared.snapshot();
            let healthy = |e: &Entry| e.connections.iter().any(|c| c.channel.is_some() && c.status == Status::Open);
            let healthy = |id| self.nodes.values().any(|e| e.node.id == id && healthy(e));
            channel.evict(snapshot.usable.iter().any(|u| u.node.id != id && healthy(u.node.id)));
        }
    }

    fn usable(
        &mut self,
        now: Instant,
        admits: impl Fn(usize, &Entry) -> bool,
        statuses: &[Status],
    ) -> Vec<Arc<Usable>> {
        let mut usable = Vec::new();
        for (at, entry) in self.nodes.values_mut().enumerate() {
            let channels: Vec<_> = entry
                .connections
                .iter()
                .filter(|c| statuses.contains(&c.status))
                .filter_map(|c| c.channel.clone())
                .collect();
            if channels.is_empty() || !admits(at, entry) {
                entry.usable_since = None;
                continue;
            }
            let since = *entry.usable_since.get_or_insert(now);
            // What was measured belongs to the incarnation that answered, whatever the list says.
            let incarnation = &channels[0].peer.incarnation;
            let reporter = self.reporter.as_ref().filter(|_| !incarnation.is_empty());
            let samples = reporter.map(|r| r.node(entry.node.addr, incarnation));
            usable.push(Arc::new(Usable::new(entry.node.clone(), channels, since, samples)));
        }
        usable
    }
}

impl Entry {
    /// Whether `member` is the node that this entry is about.
    fn is_same(&self, member: &Member) -> bool {
        // An entry that cannot be read says nothing about who is there.
        member.malformed.is_some() || self.node.incarnation.as_deref().unwrap_or_default() == member.record.id
    }

    /// Whether it has a connection, or has not failed to get one yet.
    fn is_alive(&self) -> bool {
        self.connections.iter().any(|c| c.channel.is_some()) || (self.failed == 0 && self.trouble.is_none())
    }

    /// Whether a call that finds no node does well to wait for this one.
    fn is_hopeful(&self) -> bool {
        !self.node.is_leaving() && self.refusal.is_none() && self.failed < crate::breaker::FAILED_CONNECTS_MAX
    }

    fn listed(&self, breaker: BreakerState) -> Listed {
        let has =
            |wanted: fn(&Status) -> bool| self.connections.iter().any(|c| c.channel.is_some() && wanted(&c.status));
        let connection = if self.node.is_leaving() {
            ConnectionState::Leaving
        } else if matches!(breaker, BreakerState::Ejected { .. }) {
            ConnectionState::Ejected
        } else if has(|s| *s == Status::Open) {
            ConnectionState::Connected
        } else if has(|s| *s == Status::Suspect) {
            ConnectionState::Suspect
        } else {
            ConnectionState::Connecting
        };
        Listed {
            node: self.node.clone(),
            member: self.member.clone(),
            connection,
            channels: self.connections.iter().filter_map(|c| c.channel.clone()).collect(),
            hopeful: self.is_hopeful(),
            trouble: self.trouble.clone(),
            refusal: self.refusal.clone(),
        }
    }
}
