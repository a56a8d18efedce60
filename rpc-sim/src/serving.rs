//! The server's side of a call: accepting or refusing, working, reporting.

use rpc_core::load::Finish;

use crate::agenda::Happening;
use crate::calling::hash;
use crate::simulation::{AttemptResult, Simulation};
use crate::slab::Key;

impl Simulation<'_> {
    pub(crate) fn arrive(&mut self, index: u32) {
        let now = self.clock.instant(self.now);
        let attempt = self.attempts.at(index);
        let server_index = attempt.server as usize;
        let server = &mut self.servers[server_index];
        if server.is_frozen() {
            return server.held_up.push(index);
        }
        if let Some(bound) = attempt.bound
            && server.meter.report(now, hash(attempt.method)).expected_us() > bound
        {
            return self.answer(index, AttemptResult::Refused);
        }
        attempt.begun = Some(server.meter.begin(now, hash(attempt.method)));
        if let Some(after) = server.fails_after {
            self.agenda.add(self.now + after, Happening::Failure { attempt: index });
            return;
        }
        server.start(self.now, index, attempt.work_ms);
        self.schedule_completion(server_index);
    }

    pub(crate) fn complete(&mut self, server: u32, generation: u32) {
        let server_index = server as usize;
        if self.servers[server_index].generation != generation {
            return;
        }
        if let Some(attempt) = self.servers[server_index].complete(self.now) {
            self.end(attempt, AttemptResult::Answered);
        }
        self.schedule_completion(server_index);
    }

    /// A request that was begun ends.
    pub(crate) fn end(&mut self, index: u32, result: AttemptResult) {
        let now = self.clock.instant(self.now);
        let attempt = self.attempts.at(index);
        let finish = if result == AttemptResult::Answered { Finish::Answered } else { Finish::Failed };
        if let Some(begun) = attempt.begun.take() {
            self.servers[attempt.server as usize].meter.finish(begun, now, finish);
        }
        self.answer(index, result);
    }

    fn answer(&mut self, index: u32, result: AttemptResult) {
        let now = self.clock.instant(self.now);
        let attempt = self.attempts.at(index);
        let server = &mut self.servers[attempt.server as usize];
        server.assigned -= 1;
        attempt.result = result;
        attempt.report = self.scenario.reports.then(|| server.meter.report(now, hash(attempt.method)));
        let arrives = self.now + self.way();
        self.agenda.add(arrives, Happening::Reply { attempt: index });
    }

    pub(crate) fn schedule_completion(&mut self, server_index: usize) {
        let server = &mut self.servers[server_index];
        server.generation = server.generation.wrapping_add(1);
        if let Some(at) = server.next_completion() {
            let happening = Happening::Completion { server: server_index as u32, generation: server.generation };
            self.agenda.add(at.max(self.now), happening);
        }
    }

    pub(crate) fn probe_arrives(&mut self, key: Key) {
        let now = self.clock.instant(self.now);
        let Some(probe) = self.probes.get(key) else { return };
        let server = &mut self.servers[probe.server as usize];
        // What stands still answers nothing; the probe is given up before it goes on.
        if server.is_frozen() || !server.present || !self.scenario.reports {
            return;
        }
        probe.report = Some(server.meter.report(now, hash(probe.method)));
        let arrives = self.now + self.way();
        self.agenda.add(arrives, Happening::ProbeAnswer { probe: key });
    }
}
