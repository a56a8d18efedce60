//! One run: the state of the world, and what happens next.

use std::time::Duration;

use rpc_client::balance::{Event, NodeId, Random};
use rpc_client::breaker::Admission;
use rpc_core::LoadReport;
use rpc_core::load::Begun;

use crate::agenda::{Agenda, Happening};
use crate::changes::{self, Change, Influences, What};
use crate::client::{Client, Node};
use crate::clock::{Clock, Nanos, milliseconds, seconds};
use crate::outcome::Outcome;
use crate::policies::PolicyName;
use crate::published::Published;
use crate::scenario::Scenario;
use crate::server::Server;
use crate::slab::{Key, Slab};
use crate::work::exponential;

/// A run of a scenario with one policy and one seed.
pub struct Simulation<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) policy: &'a PolicyName,
    pub(crate) clock: Clock,
    pub(crate) now: Nanos,
    pub(crate) agenda: Agenda,
    pub(crate) clients: Vec<Client>,
    pub(crate) servers: Vec<Server>,
    pub(crate) published: Published,
    pub(crate) calls: Slab<Call>,
    pub(crate) attempts: Slab<Attempt>,
    pub(crate) probes: Slab<Probe>,
    pub(crate) outcome: Outcome,
    pub(crate) timeout: Nanos,
    network: Random,
    influences: Vec<Influences>,
    changes: Vec<Change>,
    until: Nanos,
    warmup: Nanos,
}

/// A call that waits for its answer.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) client: u32,
    pub(crate) client_generation: u32,
    pub(crate) began: Nanos,
    /// Place of its method in the mix.
    pub(crate) method: usize,
    pub(crate) work_ms: f64,
    pub(crate) excluded: Vec<NodeId>,
    pub(crate) probed: u32,
    /// Probe answers that it waits for.
    pub(crate) awaited: u32,
    /// Its probes that may still be answered.
    pub(crate) outstanding: u32,
    /// The attempt under way.
    pub(crate) attempt: Option<u32>,
}

/// A request on its way, at a server, or its reply on the way back.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) call: Key,
    pub(crate) client: u32,
    pub(crate) client_generation: u32,
    pub(crate) server: u32,
    pub(crate) sent: Nanos,
    pub(crate) method: usize,
    pub(crate) work_ms: f64,
    pub(crate) bound: Option<f64>,
    pub(crate) admission: Admission,
    pub(crate) begun: Option<Begun>,
    pub(crate) result: AttemptResult,
    pub(crate) report: Option<LoadReport>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptResult {
    Open,
    Answered,
    Failed,
    Refused,
}

/// A probe on its way.
#[derive(Debug)]
pub(crate) struct Probe {
    /// The call that waits for it.
    pub(crate) call: Option<Key>,
    pub(crate) client: u32,
    pub(crate) client_generation: u32,
    pub(crate) server: u32,
    pub(crate) sent: Nanos,
    pub(crate) method: usize,
    pub(crate) report: Option<LoadReport>,
}

impl<'a> Simulation<'a> {
    /// The world at the start.
    pub fn new(scenario: &'a Scenario, policy: &'a PolicyName, seed: u64) -> Self {
        let clock = Clock::new();
        let mut random = Random::new(seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1));
        let servers: Vec<Server> = changes::servers(scenario)
            .map(|group| {
                let condition = Influences::none(group).condition();
                let concurrency = group.concurrency.unwrap_or(group.cores * rpc_core::load::CONCURRENCY_PER_PERMIT);
                let mut server = Server::new(condition, group.discipline, concurrency, &clock);
                server.present = group.joins_s <= 0.0;
                server
            })
            .collect();
        let until = seconds(scenario.duration_s);
        let mut simulation = Self {
            scenario,
            policy,
            clock,
            now: 0,
            agenda: Agenda::default(),
            clients: Vec::new(),
            published: Published::new(
                changes::servers(scenario).map(|group| group.published_ms.map(|ms| (ms * 1e3).ceil() as u64)),
            ),
            calls: Slab::new(),
            attempts: Slab::new(),
            probes: Slab::new(),
            outcome: Outcome {
                answered: vec![0; servers.len()],
                capacity: changes::servers(scenario).map(|g| counted_capacity(scenario, g)).collect(),
                ..Outcome::default()
            },
            servers,
            timeout: milliseconds(scenario.timeout_ms),
            network: Random::new(random.next_u64()),
            influences: changes::servers(scenario).map(Influences::none).collect(),
            changes: changes::plan(scenario, &mut random),
            until,
            warmup: seconds(scenario.warmup_s),
        };
        simulation.begin(&mut random);
        simulation
    }

    fn begin(&mut self, random: &mut Random) {
        for (index, change) in self.changes.iter().enumerate() {
            self.agenda.add(change.at, Happening::Change { change: index as u32 });
        }
        let count = self.scenario.clients.count;
        let skew = self.scenario.clients.skew;
        let weights: Vec<f64> = (1..=count).map(|rank| (rank as f64).powf(-skew)).collect();
        let total: f64 = weights.iter().sum();
        let peak = self.scenario.load.bursts.as_ref().map_or(1.0, |b| b.factor.max(1.0));
        for (index, weight) in weights.iter().enumerate() {
            let gap = 1e9 * total / (weight * self.scenario.calls_per_s() * peak);
            let mut client = Client::new(self.policy.make(count), self.fresh_nodes(), random.next_u64(), gap);
            client.calls_left = self.scenario.clients.calls_each;
            let first = (gap * exponential(&mut client.arrivals)) as Nanos;
            self.clients.push(client);
            self.agenda.add(first, Happening::Call { client: index as u32 });
        }
    }

    /// Runs to the end.
    pub fn run(mut self) -> Outcome {
        while let Some((at, happening)) = self.agenda.take_next() {
            self.now = at;
            match happening {
                Happening::Call { client } => self.next_call(client),
                Happening::Arrival { attempt } => self.arrive(attempt),
                Happening::Completion { server, generation } => self.complete(server, generation),
                Happening::Failure { attempt } => self.end(attempt, AttemptResult::Failed),
                Happening::Reply { attempt } => self.reply(attempt),
                Happening::Timeout { call } => self.time_out(call),
                Happening::ProbeArrival { probe } => self.probe_arrives(probe),
                Happening::ProbeAnswer { probe } => self.probe_answered(probe),
                Happening::ProbeSilence { probe } => self.probe_silent(probe),
                Happening::Change { change } => self.change(change),
            }
        }
        self.outcome
    }

    fn next_call(&mut self, index: u32) {
        if self.now >= self.until {
            return;
        }
        let gap = self.clients[index as usize].gap;
        let wait = (gap * exponential(&mut self.clients[index as usize].arrivals)) as Nanos;
        self.agenda.add(self.now.saturating_add(wait.max(1)), Happening::Call { client: index });
        let client = &mut self.clients[index as usize];
        let (method, work_ms) = self.scenario.work.draw_request(&mut client.arrivals);
        let thinned = client.arrivals.unit();
        if self.scenario.load.bursts.as_ref().is_some_and(|b| {
            let into_s = (self.now as f64 / 1e9) % b.every_s;
            thinned >= if into_s < b.for_s { b.factor.min(1.0) } else { 1.0 / b.factor.max(1.0) }
        }) {
            return;
        }
        if client.calls_left == Some(0) {
            let (policy, nodes) = (self.policy.make(self.clients.len()), self.fresh_nodes());
            let client = &mut self.clients[index as usize];
            client.restart(policy, nodes);
            client.calls_left = self.scenario.clients.calls_each;
        }
        let client = &mut self.clients[index as usize];
        client.calls_left = client.calls_left.map(|left| left - 1);
        let call = self.calls.insert(Call {
            client: index,
            client_generation: client.generation,
            began: self.now,
            method,
            work_ms,
            excluded: Vec::new(),
            probed: 0,
            awaited: 0,
            outstanding: 0,
            attempt: None,
        });
        self.agenda.add(self.now + self.timeout, Happening::Timeout { call });
        self.choose(call);
    }

    fn fresh_nodes(&self) -> Vec<Node> {
        let now = self.clock.instant(self.now);
        let groups = changes::servers(self.scenario).zip(&self.servers);
        groups.map(|(group, server)| Node::new(now, server.present, group.weight)).collect()
    }

    fn change(&mut self, change: u32) {
        let Change { server, what, .. } = self.changes[change as usize];
        match what {
            What::Join | What::Leave => {
                let present = matches!(what, What::Join);
                self.servers[server].present = present;
                let now = self.clock.instant(self.now);
                for client in &mut self.clients {
                    client.nodes[server].present = present;
                    client.nodes[server].since = now;
                    client.rebuild(Some(now));
                }
                return;
            }
            What::Fails(after) => self.servers[server].fails_after = after,
            What::Cold(_) | What::Antagonist(..) | What::Incident(_) | What::Frozen(_) => {}
        }
        self.influences[server].apply(what);
        let condition = self.influences[server].condition();
        self.servers[server].change(self.now, condition);
        if !self.servers[server].is_frozen() {
            let held_up = std::mem::take(&mut self.servers[server].held_up);
            held_up.into_iter().for_each(|attempt| self.arrive(attempt));
        }
        self.schedule_completion(server);
    }

    /// The time of one way through the network.
    pub(crate) fn way(&mut self) -> Nanos {
        let network = &self.scenario.network;
        milliseconds(network.one_way_ms + network.jitter_ms * exponential(&mut self.network)).max(1)
    }

    /// The call is over.
    pub(crate) fn conclude(&mut self, call: Key, ok: bool, timed_out: bool) {
        let Some(ended) = self.calls.take(call) else { return };
        if ended.began < self.warmup || self.scenario.work.server(ended.method).is_some() {
            return;
        }
        self.outcome.calls += 1;
        self.outcome.failed += u64::from(!ok);
        self.outcome.timed_out += u64::from(timed_out);
        self.outcome.latency.record(Duration::from_nanos(self.now - ended.began));
    }

    /// Whether what happens now is counted.
    pub(crate) fn is_counted(&self) -> bool {
        self.now >= self.warmup
    }

    /// Tells the client's policy, unless another client has taken its place.
    pub(crate) fn observe(&mut self, client: u32, generation: u32, event: &Event<'_>) {
        let client = &mut self.clients[client as usize];
        if client.generation == generation {
            client.observe(event);
        }
    }
}

fn counted_capacity(scenario: &Scenario, group: &crate::scenario::ServerGroup) -> f64 {
    let (from, to) = (scenario.warmup_s, scenario.duration_s);
    let there = group.leaves_s.unwrap_or(to).min(to) - group.joins_s.max(from);
    (group.cores * group.speed * there / (to - from)).max(1e-9)
}
