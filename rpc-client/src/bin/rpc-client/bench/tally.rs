//! What came of the calls.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use rpc_client::{Error, ErrorKind, Reply};
use rpc_core::LatencyRecorder;

use crate::failure;

/// Counts and latencies.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) ok: u64,
    /// By name, an application's own by code.
    pub(super) errors: BTreeMap<String, u64>,
    /// Attempts beyond the first of each call.
    pub(super) repeats: u64,
    /// Of the calls that succeeded, from when they were to start.
    pub(super) latency: LatencyRecorder,
    pub(super) nodes: BTreeMap<SocketAddr, NodeTally>,
}

/// The calls that one node had the last word in.
#[derive(Default)]
pub(super) struct NodeTally {
    pub(super) calls: u64,
    pub(super) errors: u64,
    /// From sending to its answer.
    pub(super) latency: LatencyRecorder,
}

impl Tally {
    pub(super) fn add(&mut self, outcome: &Result<Reply, Error>, latency: Duration) {
        let attempts = outcome.as_ref().map_or_else(Error::attempts, |reply| &reply.attempts);
        self.repeats += attempts.len().saturating_sub(1) as u64;
        match outcome {
            Ok(reply) => {
                self.ok += 1;
                self.latency.record(latency);
                let node = self.nodes.entry(reply.node).or_default();
                node.calls += 1;
                let took = reply.attempts.last().map_or(0, |attempt| attempt.elapsed_us);
                node.latency.record(Duration::from_micros(took));
            }
            Err(error) => {
                *self.errors.entry(name(error)).or_default() += 1;
                if let Some(node) = failure::node(error) {
                    let node = self.nodes.entry(node).or_default();
                    node.calls += 1;
                    node.errors += 1;
                }
            }
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.ok += other.ok;
        self.repeats += other.repeats;
        self.latency.merge(&other.latency);
        for (name, count) in &other.errors {
            *self.errors.entry(name.clone()).or_default() += count;
        }
        for (node, theirs) in &other.nodes {
            let ours = self.nodes.entry(*node).or_default();
            ours.calls += theirs.calls;
            ours.errors += theirs.errors;
            ours.latency.merge(&theirs.latency);
        }
    }

    pub(super) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    pub(super) fn calls(&self) -> u64 {
        self.ok + self.failed()
    }
}

fn name(error: &Error) -> String {
    match error.kind() {
        ErrorKind::Remote { error, .. } if rpc_core::protocol::error_code(error.code).is_none() => {
            error.code.to_string()
        }
        _ => error.name().to_owned(),
    }
}
