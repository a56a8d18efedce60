//! A simulated client: the real policy on the real per-node state.

use std::net::SocketAddr;
use std::time::Duration;

use rpc_client::balance::{Event, LoadReport, NodeId, NodeView, Policy, Random, View};
use rpc_client::breaker::{Admission, Breaker, BreakerState, out_of_fleet};
use rpc_client::node_load::NodeLoad;
use tokio::time::Instant;

use crate::clock::Nanos;
use crate::published::Published;

/// A client.
pub struct Client {
    /// Chooses nodes; none if the simulation itself does (the oracle).
    pub policy: Option<Box<dyn Policy>>,
    /// What it knows of each server, by the server's index.
    pub nodes: Vec<Node>,
    /// Indices of the servers that the policy sees.
    pub usable: Vec<u32>,
    /// Seeds of its picks.
    pub random: Random,
    /// Its arrivals and their work: the same for every policy.
    pub arrivals: Random,
    /// Mean nanoseconds between two calls, at the highest rate.
    pub gap: f64,
    /// Calls that it will still make; then another client takes its place.
    pub calls_left: Option<u32>,
    /// How many clients were in this place before it.
    pub generation: u32,
    /// When an ejected node may come back, or a view must be looked at again.
    check_at: Option<Instant>,
    /// A node that is let in by a single call.
    probing: Option<u32>,
}

/// What a client knows of a server.
#[derive(Clone, Debug)]
pub struct Node {
    /// Whether it is in the list.
    pub present: bool,
    /// Since when.
    pub since: Instant,
    /// Its weight.
    pub weight: u32,
    /// Calls that wait for it.
    pub in_flight: u32,
    /// Its speed and failures.
    pub load: NodeLoad,
    /// Whether it is taken out.
    pub breaker: Breaker,
    /// Its newest report.
    pub report: Option<(LoadReport, Instant)>,
}

impl Node {
    /// A server of which nothing is known.
    pub fn new(now: Instant, present: bool, weight: u32) -> Self {
        Self {
            present,
            since: now,
            weight,
            in_flight: 0,
            load: NodeLoad::new(),
            breaker: Breaker::new(now),
            report: None,
        }
    }
}

impl Client {
    /// A client that knows the list and nothing else.
    pub fn new(policy: Option<Box<dyn Policy>>, nodes: Vec<Node>, seed: u64, gap: f64) -> Self {
        let mut client = Self {
            policy,
            nodes,
            usable: Vec::new(),
            random: Random::new(seed),
            arrivals: Random::new(!seed),
            gap,
            calls_left: None,
            generation: 0,
            check_at: None,
            probing: None,
        };
        client.rebuild(None);
        client
    }

    /// Another client takes the place: it knows the list and nothing else.
    pub fn restart(&mut self, policy: Option<Box<dyn Policy>>, nodes: Vec<Node>) {
        self.policy = policy;
        self.nodes = nodes;
        self.generation += 1;
        self.check_at = None;
        self.rebuild(None);
    }

    /// Tells the policy, if it wants to know.
    pub fn observe(&mut self, event: &Event<'_>) {
        if let Some(policy) = &mut self.policy
            && policy.observes()
        {
            policy.observe(event);
        }
    }

    /// A call ended: what the node's state learns. Returns whether the view must be rebuilt.
    pub fn learn(
        &mut self,
        server: usize,
        now: Instant,
        latency: Duration,
        ok: bool,
        admission: Admission,
        eject: bool,
    ) {
        let node = &mut self.nodes[server];
        node.load.reply(now, latency, ok);
        if !eject {
            return;
        }
        let before = node.breaker.state(now);
        node.breaker.outcome(now, admission, ok);
        if node.breaker.state(now) != before {
            self.rebuild(Some(now));
        }
    }

    /// A node that is to be let in by the next call.
    pub fn trial(&mut self, now: Instant) -> Option<(u32, Admission)> {
        if self.check_at.is_some_and(|at| now >= at) {
            self.rebuild(Some(now));
        }
        let server = self.probing?;
        let admission = self.nodes[server as usize].breaker.admit(now)?;
        Some((server, admission))
    }

    /// Makes the list of usable nodes anew. Before the first call no breaker has anything to say.
    pub fn rebuild(&mut self, now: Option<Instant>) {
        let listed: Vec<u32> = (0..self.nodes.len() as u32).filter(|&s| self.nodes[s as usize].present).collect();
        self.check_at = None;
        self.probing = None;
        self.usable = match now {
            None => listed,
            Some(now) => self.without_ejected(&listed, now),
        };
        let members: Vec<NodeId> = self.usable.iter().map(|&s| NodeId(u64::from(s))).collect();
        self.observe(&Event::Members { nodes: &members });
    }

    fn without_ejected(&mut self, listed: &[u32], now: Instant) -> Vec<u32> {
        let states: Vec<BreakerState> = listed.iter().map(|&s| self.nodes[s as usize].breaker.state(now)).collect();
        if states.iter().all(|s| *s == BreakerState::Healthy) {
            return listed.to_vec();
        }
        let ends = states.iter().filter_map(|state| match state {
            BreakerState::Ejected { until } => Some(*until),
            BreakerState::Probing | BreakerState::Healthy => None,
        });
        self.check_at = ends.min();
        let out = out_of_fleet(&states);
        let probing = states.iter().position(|s| *s == BreakerState::Probing).filter(|&i| out[i]);
        self.probing = probing.map(|i| listed[i]);
        listed.iter().zip(out).filter(|(_, out)| !out).map(|(&server, _)| server).collect()
    }
}

/// What the policy sees.
pub struct ClientView<'a> {
    /// All servers.
    pub nodes: &'a [Node],
    /// Those it may use.
    pub usable: &'a [u32],
    /// The registry.
    pub published: &'a Published,
    /// The time.
    pub now: Instant,
    /// The same.
    pub now_nanos: Nanos,
    /// Whether servers send reports.
    pub reports: bool,
}

impl View for ClientView<'_> {
    fn len(&self) -> usize {
        self.usable.len()
    }

    fn id(&self, index: usize) -> NodeId {
        NodeId(u64::from(self.usable[index]))
    }

    fn in_flight(&self, index: usize) -> u32 {
        self.nodes[self.usable[index] as usize].in_flight
    }

    fn reports(&self, _index: usize) -> bool {
        self.reports
    }

    fn node(&self, index: usize) -> NodeView {
        let server = self.usable[index];
        let node = &self.nodes[server as usize];
        NodeView {
            id: NodeId(u64::from(server)),
            addr: SocketAddr::from((server.to_be_bytes(), 8000)),
            weight: node.weight,
            in_flight: node.in_flight,
            latency_us: node.load.latency_us(self.now),
            registry_us: self.published.read(server as usize, self.now_nanos),
            failure: node.load.failure(self.now),
            reports: self.reports,
            report: node.report.map(|(report, at)| (report, self.now - at)),
            usable_for: self.now - node.since,
        }
    }
}
