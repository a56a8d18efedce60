//! What can be changed about [`super::Fastest`].

/// The settings of [`super::Fastest`]. The defaults won in the simulator; `docs/BALANCING.md` shows
/// what happens without each of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FastestSettings {
    /// Probes per call that nobody waits for, when none was waited for: they find nodes that get
    /// no calls.
    pub background_probes: f64,
    /// Nodes probed at once when a call waits for the answers of all but one.
    pub probes: usize,
    /// A call waits for probes when little is known, if the round trip is below this share of the
    /// expected time.
    pub cold_round_trip: f64,
    /// A call waits for probes when every known node has a queue, if the round trip is below this
    /// share of the expected time.
    pub queue_round_trip: f64,
    /// A node has a queue when its expected time is above this multiple of its idle one.
    pub queue: f64,
    /// A node refuses a call when it expects more than this multiple of the second best.
    pub bound: f64,
    /// Refusals per call that are allowed for in the long run. 0 sends without bounds.
    pub refusals: f64,
    /// Requests in flight in an old report fade to the node's mean over this multiple of its idle
    /// time.
    pub fade: f64,
    /// Idle times that differ by no more than the square root of this, in logarithms, do not differ.
    pub noise: f64,
    /// Nodes whose expected times are above the lowest by no more than this share of it are equal:
    /// any one is called.
    pub tie: f64,
}

impl Default for FastestSettings {
    fn default() -> Self {
        Self {
            background_probes: 0.25,
            probes: 3,
            cold_round_trip: 0.25,
            queue_round_trip: 0.05,
            queue: 2.0,
            bound: 2.0,
            refusals: 0.2,
            fade: 2.0,
            noise: 0.02,
            tie: 0.1,
        }
    }
}
