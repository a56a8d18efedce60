//! What is tried: the servers, the load, and what happens meanwhile.

use std::time::Duration;

use rpc_client::balance::Random;
use rpc_sim::work::Work;

/// Calls a second of all clients together, at most: two cores carry these and the probes that come
/// with them without making anybody wait.
const CALLS_PER_S_MAX: f64 = 1200.0;

/// Added to the name of a policy: calls that may be repeated leave a node that gives no sign of life
/// when asked for one.
pub(crate) const HEDGE: &str = "+hedge";

/// One scenario. Unless said otherwise there are 8 servers with 4 permits each and 8 clients, each
/// a process, and the work of a call is N(20 ms, 20 ms) above 0, 25.8 ms on average.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) servers: usize,
    /// Calls that a server works on at once; the others wait in line.
    pub(crate) permits: usize,
    pub(crate) clients: usize,
    /// Processes that the clients are spread over.
    pub(crate) processes: usize,
    pub(crate) load: Load,
    pub(crate) methods: &'static [Method],
    /// Calls may be repeated. The first policy then runs once more with [`HEDGE`].
    pub(crate) idempotent: bool,
    pub(crate) script: Script,
}

/// How many calls are made.
#[derive(Clone, Copy)]
pub(crate) enum Load {
    /// Share of what the servers can do that are there from the beginning to the end.
    Utilization(f64),
    /// Of each client.
    CallsPerS(f64),
}

/// One method.
pub(crate) struct Method {
    pub(crate) name: &'static str,
    /// Share of the calls.
    pub(crate) share: f64,
    pub(crate) work: Work,
}

/// What happens during the run. The servers that something happens to come first.
#[derive(Clone, Copy)]
pub(crate) enum Script {
    Steady,
    /// The first server is so many times as slow in the middle third.
    Slow(f64),
    /// The first server fails every call after half a millisecond.
    FailFast,
    /// The servers are stopped in turn.
    Freeze {
        every: Duration,
        stopped: Duration,
    },
    /// The first server is killed after a third and started again after two.
    Restart,
    /// So many servers join after a third, with this speed.
    Join(usize, f64),
    /// Half of the servers have half the speed.
    Halves,
}

/// What a server is like, as changed while it runs.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) speed: f64,
    pub(crate) fails: bool,
}

const NORMAL: &[Method] =
    &[Method { name: "work", share: 1.0, work: Work::Normal { mean_ms: 20.0, deviation_ms: 20.0 } }];

const QUICK_AND_LONG: &[Method] = &[
    Method { name: "quick", share: 0.95, work: Work::Constant { ms: 5.0 } },
    Method { name: "long", share: 0.05, work: Work::Constant { ms: 200.0 } },
];

const BASE: Scenario = Scenario {
    name: "",
    about: "",
    servers: 8,
    permits: 4,
    clients: 8,
    processes: 8,
    load: Load::Utilization(0.7),
    methods: NORMAL,
    idempotent: false,
    script: Script::Steady,
};

/// The scenarios R1 to R9.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "R1-70", about: "equal servers, 70 %", ..BASE },
    Scenario { name: "R1-90", about: "equal servers, 90 %", load: Load::Utilization(0.9), ..BASE },
    Scenario {
        name: "R2",
        about: "one server ten times as slow in the middle third, 70 %",
        script: Script::Slow(10.0),
        ..BASE
    },
    Scenario { name: "R3", about: "one server fails in 0.5 ms, 70 %", script: Script::FailFast, ..BASE },
    Scenario {
        name: "R4",
        about: "every 2 s another server is stopped for 300 ms, 70 %; calls may be repeated",
        idempotent: true,
        script: Script::Freeze { every: Duration::from_secs(2), stopped: Duration::from_millis(300) },
        ..BASE
    },
    Scenario {
        name: "R5",
        about: "one server is killed after a third and started again after two, 70 %",
        script: Script::Restart,
        ..BASE
    },
    Scenario {
        name: "R6",
        about: "two servers of speed 0.3 join after a third, 70 % of the others",
        script: Script::Join(2, 0.3),
        ..BASE
    },
    Scenario {
        name: "R7",
        about: "200 clients (4 processes) with 2 calls a second each, 2 permits, 64 %",
        permits: 2,
        clients: 200,
        processes: 4,
        load: Load::CallsPerS(2.0),
        ..BASE
    },
    Scenario {
        name: "R8",
        about: "half of the servers at half speed, 80 %",
        load: Load::Utilization(0.8),
        script: Script::Halves,
        ..BASE
    },
    Scenario {
        name: "R9",
        about: "two methods, 5 ms and (5 %) 200 ms, 50 %",
        load: Load::Utilization(0.5),
        methods: QUICK_AND_LONG,
        ..BASE
    },
];

impl Scenario {
    /// The scenario with this name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        SCENARIOS.iter().find(|scenario| scenario.name == name)
    }

    /// Which of R1 to R9 it belongs to.
    pub(crate) fn family(&self) -> &'static str {
        self.name.split('-').next().unwrap_or(self.name)
    }

    /// The policies to run, of those asked for.
    pub(crate) fn policies(&self, asked: &[String]) -> Vec<String> {
        let mut policies = asked.to_vec();
        if self.idempotent && !asked.is_empty() {
            policies.insert(1, format!("{}{HEDGE}", asked[0]));
        }
        policies
    }

    /// What a server is like at the beginning.
    pub(crate) fn shape(&self, server: usize) -> Shape {
        let usual = Shape { speed: 1.0, fails: false };
        match self.script {
            Script::FailFast if server == 0 => Shape { fails: true, ..usual },
            Script::Halves if server < self.servers / 2 => Shape { speed: 0.5, ..usual },
            Script::Join(_, speed) if server >= self.servers => Shape { speed, ..usual },
            Script::Steady
            | Script::Slow(_)
            | Script::FailFast
            | Script::Freeze { .. }
            | Script::Restart
            | Script::Join(..)
            | Script::Halves => usual,
        }
    }

    /// The servers that the others differ from.
    pub(crate) fn odd(&self) -> std::ops::Range<usize> {
        match self.script {
            Script::Steady | Script::Freeze { .. } => 0..0,
            Script::Slow(_) | Script::FailFast | Script::Restart => 0..1,
            Script::Join(count, _) => self.servers..self.servers + count,
            Script::Halves => 0..self.servers / 2,
        }
    }

    /// Calls a second of all clients together.
    pub(crate) fn calls_per_s(&self) -> f64 {
        let wanted = match self.load {
            Load::CallsPerS(each) => each * self.clients as f64,
            Load::Utilization(share) => {
                let mean_ms: f64 = self.methods.iter().map(|m| m.share * m.work.mean_ms()).sum();
                let speed: f64 = (0..self.servers).map(|server| self.shape(server).speed).sum();
                share * speed * self.permits as f64 / mean_ms * 1e3
            }
        };
        wanted.min(CALLS_PER_S_MAX)
    }

    /// Draws what to call, and its work in milliseconds.
    pub(crate) fn draw(&self, random: &mut Random) -> (usize, f64) {
        let mut left = random.unit();
        let method = self.methods.iter().position(|method| {
            left -= method.share;
            left < 0.0
        });
        let method = method.unwrap_or(0);
        (method, self.methods[method].work.draw_request(random).1)
    }
}
