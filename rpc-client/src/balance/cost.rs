//! What a policy compares: the expected time of a call, from what the client knows by itself.

use super::{NodeView, Score};

/// Longest response time that is believed, in microseconds: keeps every cost finite.
const LATENCY_US_MAX: f64 = 1e12;

/// The success rate is not believed below this: a node that failed every call costs 10^8 times as
/// much as one that did not, and still less than infinity.
const SUCCESS_MIN: f64 = 0.01;

/// The response time in microseconds that counts for the node; none if nothing is known.
pub(super) fn latency_us(measured: Option<f64>, registry_us: u64) -> Option<f64> {
    let published = (registry_us > 0).then_some(registry_us as f64);
    // A time of 0 would stay the lowest however many calls wait there.
    measured.filter(|us| us.is_finite()).or(published).map(|us| us.clamp(1.0, LATENCY_US_MAX))
}

/// The response time, times the calls that will share the node (this one included), relative to
/// its weight, raised steeply by failures.
pub(super) fn expected(node: &NodeView, latency_us: f64) -> f64 {
    let calls = f64::from(node.in_flight) + 1.0;
    let weight = f64::from(node.weight.max(1));
    latency_us * calls / weight * failure_penalty(node.failure)
}

/// The same with what it was made from.
pub(super) fn score(index: usize, node: &NodeView, latency_us: f64) -> Score {
    let terms = vec![
        ("latency_us", latency_us),
        ("in_flight", f64::from(node.in_flight)),
        ("weight", f64::from(node.weight)),
        ("failure", node.failure),
    ];
    Score { index, cost: expected(node, latency_us), terms }
}

/// The factor by which failures make a node dearer. To the fourth power, as a fast failure must
/// outweigh its speed: at half of the calls failing a node has to be 16 times as fast.
pub(super) fn failure_penalty(failure: f64) -> f64 {
    let success = (1.0 - failure).clamp(SUCCESS_MIN, 1.0);
    success.powi(-4)
}
