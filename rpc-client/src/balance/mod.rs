//! Which node gets the next call.
//!
//! A policy is a state machine without I/O, clock or randomness of its own: what it needs comes
//! in as arguments, so a recorded decision can be replayed and a simulator can run the real code.
//! It sees usable nodes only: connected, not draining, not ejected, not suspect.
//!
//! To add a policy: one file, and one row in [`POLICIES`].

mod cost;
mod fastest;
mod least_in_flight;
mod p2c;
mod places;
mod prequal;
mod random;
mod replay;
mod round_robin;
mod sample;
mod shortest;
#[cfg(test)]
mod testing;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

pub use fastest::{Fastest, FastestSettings};
pub use least_in_flight::LeastInFlight;
pub use p2c::TwoChoices;
pub use prequal::{PoolEntry, Prequal, PrequalSettings, Ranking};
pub use random::RandomChoice;
pub use replay::Candidate;
pub(crate) use replay::{Recorded, Replay, record};
pub use round_robin::RoundRobin;
pub use rpc_core::LoadReport;
pub use shortest::Shortest;

/// Makes a policy with nothing learnt yet.
pub type MakePolicy = fn() -> Box<dyn Policy>;

/// The policies: name, what it does in one line, how it is made.
pub const POLICIES: &[(&str, &str, MakePolicy)] = &[
    ("fastest", "the node expected to answer soonest", || Box::new(Fastest::new())),
    ("p2c", "the better of two random nodes by response time and calls in flight", || Box::new(TwoChoices)),
    ("least_in_flight", "the node with the fewest calls of this client", || Box::new(LeastInFlight)),
    ("prequal", "the best of a pool of probed nodes (`prequal:q=0.6+probes=3+sync`)", || {
        Box::new(Prequal::new(PrequalSettings::default()))
    }),
    ("round_robin", "each node in turn", || Box::new(RoundRobin::new())),
    ("random", "any node", || Box::new(RandomChoice)),
    ("shortest", "the lowest response time in the registry, unknown first (herds: for comparison)", || {
        Box::new(Shortest)
    }),
];

/// The policy of a client that asks for none.
pub const POLICY_DEFAULT: &str = "fastest";

/// The policy with this name. `prequal` takes options after a colon ([`Prequal::parse`]).
pub fn policy(name: &str) -> Option<Box<dyn Policy>> {
    if let Some(options) = name.strip_prefix("prequal:") {
        return Prequal::parse(options).map(|prequal| Box::new(prequal) as Box<dyn Policy>);
    }
    POLICIES.iter().find(|(known, _, _)| *known == name).map(|(_, _, make)| make())
}

/// A balancing policy. Implement [`Policy::pick`]; the rest is for policies that learn.
pub trait Policy: Send + 'static {
    /// Chooses a node: its index in `view`, or `None` if there is none to choose.
    fn pick(&mut self, view: &dyn View, pick: &Pick<'_>) -> Option<usize>;

    /// Chooses a node, or asks for probes first. By default it sends where [`Policy::pick`] says.
    fn decide(&mut self, view: &dyn View, pick: &Pick<'_>) -> Decision {
        match self.pick(view, pick) {
            Some(index) => Decision::Send { index, bound: None },
            None => Decision::NoNode,
        }
    }

    /// For people who ask why: what [`Policy::decide`] would compare if it were asked now. Empty for
    /// policies that compare nothing.
    fn scores(&self, view: &dyn View, pick: &Pick<'_>) -> Vec<Score> {
        let _ = (view, pick);
        Vec::new()
    }

    /// Learns from what happened. Only called if [`Policy::observes`].
    fn observe(&mut self, event: &Event<'_>) {
        let _ = event;
    }

    /// Whether [`Policy::observe`] is to be called.
    fn observes(&self) -> bool {
        false
    }

    /// A copy of the state, so that a recorded decision can be replayed. Policies without one are
    /// recorded without replay.
    fn copy(&self) -> Option<Box<dyn Policy>> {
        None
    }
}

/// The usable nodes at one moment, in an order that is the same for all picks of one membership.
pub trait View {
    /// How many there are.
    fn len(&self) -> usize;

    /// The node at `index`, which is below `len`.
    fn node(&self, index: usize) -> NodeView;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// [`NodeView::id`] alone, which costs less to find out.
    fn id(&self, index: usize) -> NodeId {
        self.node(index).id
    }

    /// [`NodeView::in_flight`] alone.
    fn in_flight(&self, index: usize) -> u32 {
        self.node(index).in_flight
    }

    /// [`NodeView::reports`] alone.
    fn reports(&self, index: usize) -> bool {
        self.node(index).reports
    }
}

/// A node as a policy sees it: a plain copy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeView {
    /// Identity within this client: never reused, and new when the node comes back.
    pub id: NodeId,
    /// Its address.
    pub addr: SocketAddr,
    /// Relative capacity, 100 by default.
    pub weight: u32,
    /// Calls of this client that wait for an answer from it.
    pub in_flight: u32,
    /// This client's own estimate of its response time in microseconds (peak EWMA: it jumps up at
    /// once and decays), none before the first answer.
    pub latency_us: Option<f64>,
    /// The response time in the registry, in microseconds; 0 is unknown.
    pub registry_us: u64,
    /// Share of recent calls that failed, 0 to 1, decaying.
    pub failure: f64,
    /// Whether its server sends load reports and answers probes.
    pub reports: bool,
    /// The newest load report and its age, from servers that send them.
    pub report: Option<(LoadReport, Duration)>,
    /// How long it has been usable.
    pub usable_for: Duration,
}

/// Identity of a node within one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

/// What a pick is about.
#[derive(Clone, Copy, Debug)]
pub struct Pick<'a> {
    /// The called method, as [`rpc_core::load::method_hash`] has it: load reports tell how long *it*
    /// takes.
    pub method: u32,
    /// The caller's key, hashed; equal keys want the same node.
    pub key: Option<u64>,
    /// The time.
    pub now: Instant,
    /// 64 random bits; more are drawn from [`Pick::random`].
    pub seed: u64,
    /// Nodes already tried by this call, those that refused it included.
    pub excluded: &'a [NodeId],
    /// How often this call was asked to probe since it was last sent: a policy that would probe
    /// again and again sees here that it has.
    pub probed: u32,
}

impl Pick<'_> {
    /// A generator seeded by this pick.
    pub fn random(&self) -> Random {
        Random(self.seed)
    }

    /// Whether this call already tried the node.
    pub fn is_excluded(&self, node: NodeId) -> bool {
        self.excluded.contains(&node)
    }
}

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014): small,
/// quick, and good enough to choose nodes with.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that yields the same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A uniform number below `bound`, which is not 0. The bias is below `bound` / 2^64.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// A uniform number from 0 up to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// What a policy wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Send to this node. With a bound (microseconds of expected time) the server refuses if it
    /// is more loaded than that; a refused call was not started.
    Send {
        /// Index in the view.
        index: usize,
        /// The bound, in microseconds.
        bound: Option<f64>,
    },
    /// Probe these nodes about the called method, wait for `wait_for` of the answers (or until no more
    /// can come), then ask again with [`Pick::probed`] one higher.
    Probe {
        /// Indices in the view.
        indices: Vec<usize>,
        /// How many answers to wait for; 0 sends the probes and asks again at once.
        wait_for: usize,
    },
    /// There is no node to send to.
    NoNode,
}

/// What a policy compares a node by.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Index in the view.
    pub index: usize,
    /// Lower is better.
    pub cost: f64,
    /// What the cost was made from: names, with their units, and values.
    pub terms: Vec<(&'static str, f64)>,
}

/// What a policy can learn from.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// A call was sent.
    Sent {
        /// The node.
        node: NodeId,
        /// When.
        now: Instant,
    },
    /// A call ended.
    Reply {
        /// The node.
        node: NodeId,
        /// When.
        now: Instant,
        /// From sending to the reply.
        latency: Duration,
        /// Whether it succeeded. An application's own error is a success of the node.
        ok: bool,
        /// The load report that came with it.
        report: Option<LoadReport>,
    },
    /// The server refused the call because of its load. It was not started.
    Refused {
        /// The node.
        node: NodeId,
        /// When.
        now: Instant,
        /// The load report that came with it.
        report: Option<LoadReport>,
    },
    /// A probe was answered.
    ProbeAnswer {
        /// The node.
        node: NodeId,
        /// When.
        now: Instant,
        /// From sending to the answer.
        round_trip: Duration,
        /// The load report.
        report: LoadReport,
    },
    /// A probe was not answered in time.
    ProbeSilent {
        /// The node.
        node: NodeId,
        /// When.
        now: Instant,
    },
    /// The usable nodes changed.
    Members {
        /// All of them now, in the order of the view.
        nodes: &'a [NodeId],
    },
}
