//! Other ways to rank the entries of Prequal's pool of probe answers.

use rpc_client::balance::{Policy, PoolEntry, Prequal, PrequalSettings};

/// C3's score over the pool: the service time times the cube of the requests there.
pub fn pooled_cubic() -> Box<dyn Policy> {
    Box::new(Prequal::ranked_by(PrequalSettings::default(), cubic))
}

/// Latency plus requests in flight, which count as one idle service time each.
pub fn pooled_linear() -> Box<dyn Policy> {
    Box::new(Prequal::ranked_by(PrequalSettings::default(), linear))
}

fn cubic(entry: &PoolEntry) -> f64 {
    (f64::from(entry.in_flight) + 1.0).powi(3) * entry.service_us
}

fn linear(entry: &PoolEntry) -> f64 {
    entry.latency_us + f64::from(entry.in_flight) * entry.service_us
}
