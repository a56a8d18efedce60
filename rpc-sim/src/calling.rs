//! The client's side of a call: choosing, sending, probing, learning.

use std::time::Duration;

use rpc_client::balance::{Decision, Event, NodeId, Pick};
use rpc_client::breaker::Admission;

use crate::agenda::Happening;
use crate::client::ClientView;
use crate::clock::{MILLISECOND, Nanos};
use crate::simulation::{Attempt, AttemptResult, Probe, Simulation};
use crate::slab::Key;

/// A probe without an answer is given up after this time.
const PROBE_TIMEOUT: Nanos = 5 * MILLISECOND;

impl Simulation<'_> {
    /// Asks the policy where to send a call, and does what it says.
    pub(crate) fn choose(&mut self, key: Key) {
        let now = self.clock.instant(self.now);
        loop {
            let Some(call) = self.calls.get(key) else { return };
            if let Some(server) = self.scenario.work.server(call.method) {
                return self.send(key, server as u32, None, Admission::Regular);
            }
            let client = &mut self.clients[call.client as usize];
            if let Some((server, admission)) = client.trial(now) {
                return self.send(key, server, None, admission);
            }
            let seed = client.random.next_u64();
            let Some(policy) = &mut client.policy else {
                let best = (0..self.servers.len()).filter(|&s| self.servers[s].present).min_by(|&a, &b| {
                    self.servers[a].slowdown_of_one_more().total_cmp(&self.servers[b].slowdown_of_one_more())
                });
                let best = best.expect("the scenario has servers");
                return self.send(key, best as u32, None, Admission::Regular);
            };
            let view = ClientView {
                nodes: &client.nodes,
                usable: &client.usable,
                published: &self.published,
                now,
                now_nanos: self.now,
                reports: self.scenario.reports,
            };
            let pick =
                Pick { method: hash(call.method), key: None, now, seed, excluded: &call.excluded, probed: call.probed };
            match policy.decide(&view, &pick) {
                Decision::Send { index, bound } => {
                    let server = client.usable[index];
                    return self.send(key, server, bound, Admission::Regular);
                }
                Decision::NoNode => return self.conclude(key, false, false),
                Decision::Probe { indices, wait_for } => {
                    call.probed += 1;
                    call.awaited = wait_for as u32;
                    call.outstanding = if wait_for == 0 { 0 } else { indices.len() as u32 };
                    let servers: Vec<u32> = indices.into_iter().map(|index| client.usable[index]).collect();
                    let asked = (call.method, call.client, call.client_generation);
                    let waits = (wait_for > 0).then_some(key);
                    servers.into_iter().for_each(|server| self.probe(waits, asked, server));
                    if wait_for > 0 {
                        return;
                    }
                }
            }
        }
    }

    fn send(&mut self, key: Key, server: u32, bound: Option<f64>, admission: Admission) {
        let now = self.clock.instant(self.now);
        let Some(call) = self.calls.get(key) else { return };
        let client = &mut self.clients[call.client as usize];
        client.nodes[server as usize].in_flight += 1;
        client.observe(&Event::Sent { node: NodeId(u64::from(server)), now });
        let attempt = Attempt {
            call: key,
            client: call.client,
            client_generation: call.client_generation,
            server,
            sent: self.now,
            method: call.method,
            work_ms: call.work_ms,
            bound,
            admission,
            begun: None,
            result: AttemptResult::Open,
            report: None,
        };
        let attempt = self.attempts.insert(attempt).index;
        call.attempt = Some(attempt);
        self.servers[server as usize].assigned += 1;
        let arrives = self.now + self.way();
        self.agenda.add(arrives, Happening::Arrival { attempt });
    }

    fn probe(&mut self, call: Option<Key>, asked: (usize, u32, u32), server: u32) {
        let (method, client, client_generation) = asked;
        self.outcome.probes += u64::from(self.is_counted());
        let probe =
            self.probes.insert(Probe { call, client, client_generation, server, sent: self.now, method, report: None });
        let arrives = self.now + self.way();
        self.agenda.add(arrives, Happening::ProbeArrival { probe });
        self.agenda.add(self.now + PROBE_TIMEOUT, Happening::ProbeSilence { probe });
    }

    pub(crate) fn probe_answered(&mut self, key: Key) {
        let Some(probe) = self.probes.take(key) else { return };
        let (node, now) = (NodeId(u64::from(probe.server)), self.clock.instant(self.now));
        if let Some(report) = probe.report {
            let client = &mut self.clients[probe.client as usize];
            if client.generation == probe.client_generation {
                client.nodes[probe.server as usize].report = Some((report, now));
            }
            let round_trip = Duration::from_nanos(self.now - probe.sent);
            let event = Event::ProbeAnswer { node, now, round_trip, report };
            self.observe(probe.client, probe.client_generation, &event);
        }
        self.probe_over(&probe, true);
    }

    pub(crate) fn probe_silent(&mut self, key: Key) {
        let Some(probe) = self.probes.take(key) else { return };
        let event = Event::ProbeSilent { node: NodeId(u64::from(probe.server)), now: self.clock.instant(self.now) };
        self.observe(probe.client, probe.client_generation, &event);
        self.probe_over(&probe, false);
    }

    fn probe_over(&mut self, probe: &Probe, answered: bool) {
        let Some(key) = probe.call else { return };
        let Some(call) = self.calls.get(key) else { return };
        if call.awaited == 0 {
            return;
        }
        call.awaited -= u32::from(answered);
        call.outstanding = call.outstanding.saturating_sub(1);
        if call.awaited == 0 || call.outstanding == 0 {
            call.awaited = 0;
            self.choose(key);
        }
    }

    pub(crate) fn reply(&mut self, index: u32) {
        let attempt = self.attempts.take_at(index);
        // A call that timed out has told what it had to tell; its reply is not waited for.
        if self.calls.get(attempt.call).is_none() {
            return;
        }
        let latency = self.now - attempt.sent;
        let ok = attempt.result == AttemptResult::Answered;
        let refused = attempt.result == AttemptResult::Refused;
        self.learn(&attempt, Duration::from_nanos(latency), ok, refused);
        if refused {
            self.outcome.refusals += u64::from(self.is_counted());
            let call = self.calls.get(attempt.call).expect("it is waiting");
            call.excluded.push(NodeId(u64::from(attempt.server)));
            call.probed = 0;
            call.attempt = None;
            return self.choose(attempt.call);
        }
        if ok {
            self.published.answered(attempt.server as usize, self.now, latency);
        }
        if self.is_counted() && self.scenario.work.server(attempt.method).is_none() {
            self.outcome.answered[attempt.server as usize] += 1;
        }
        self.conclude(attempt.call, ok, false);
    }

    pub(crate) fn time_out(&mut self, key: Key) {
        let Some(call) = self.calls.get(key) else { return };
        let waited = call.attempt;
        if let Some(index) = waited {
            let attempt = self.attempts.at(index);
            let told = Attempt { report: None, ..*attempt };
            let latency = Duration::from_nanos(self.now - told.sent);
            self.learn(&told, latency, false, false);
        }
        self.conclude(key, false, true);
    }

    fn learn(&mut self, attempt: &Attempt, latency: Duration, ok: bool, refused: bool) {
        let (node, now) = (NodeId(u64::from(attempt.server)), self.clock.instant(self.now));
        let client = &mut self.clients[attempt.client as usize];
        if client.generation != attempt.client_generation {
            return;
        }
        let server = attempt.server as usize;
        client.nodes[server].in_flight -= 1;
        if let Some(report) = attempt.report {
            client.nodes[server].report = Some((report, now));
        }
        if refused {
            return client.observe(&Event::Refused { node, now, report: attempt.report });
        }
        client.learn(server, now, latency, ok, attempt.admission, self.scenario.breaker);
        client.observe(&Event::Reply { node, now, latency, ok, report: attempt.report });
    }
}

/// What a client takes for the hash of a method's name.
pub(crate) fn hash(method: usize) -> u32 {
    method as u32 + 1
}
