//! The report of a benchmark.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

use rpc_client::Client;
use rpc_core::{LatencySummary, printable};
use serde::Serialize;
use tokio::time::Instant;

use super::load::Load;
use super::threshold::{Numbers, Threshold};
use crate::common::Common;
use crate::table::table;
use crate::units;

/// What a benchmark found out, as `--format json` shows it.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) calls: u64,
    pub(super) ok: u64,
    errors: BTreeMap<String, u64>,
    rps: f64,
    elapsed_ms: u64,
    latency_us: LatencySummary,
    nodes: BTreeMap<SocketAddr, Node>,
    /// Attempts beyond the first of each call.
    repeats: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    thresholds: Vec<Verdict>,
    interrupted: bool,
    /// One error as an example.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_error: Option<String>,
}

#[derive(Serialize)]
struct Node {
    calls: u64,
    errors: u64,
    p50_us: u64,
    p99_us: u64,
}

impl Node {
    /// A time of its answers, of which there may be none.
    fn time(&self, us: u64) -> String {
        if self.calls == self.errors { "-".into() } else { units::micros(us) }
    }
}

#[derive(Serialize)]
struct Verdict {
    threshold: String,
    met: bool,
}

impl Report {
    pub(super) fn of(load: &Load, thresholds: &[Threshold], interrupted: bool) -> Self {
        let tally = load.tally();
        let elapsed = load.elapsed(Instant::now());
        let rps = tally.ok as f64 / elapsed.as_secs_f64().max(Duration::from_micros(1).as_secs_f64());
        let latency = tally.latency.summary();
        let numbers = Numbers { latency, calls: tally.calls(), ok: tally.ok, rps };
        let verdict =
            |threshold: &Threshold| Verdict { threshold: threshold.text.clone(), met: threshold.is_met(&numbers) };
        let nodes = tally.nodes.iter().map(|(addr, node)| {
            let (p50_us, p99_us) = (node.latency.quantile_us(0.5), node.latency.quantile_us(0.99));
            (*addr, Node { calls: node.calls, errors: node.errors, p50_us, p99_us })
        });
        Self {
            calls: tally.calls(),
            ok: tally.ok,
            nodes: nodes.collect(),
            rps: (rps * 10.0).round() / 10.0,
            elapsed_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            latency_us: latency,
            repeats: tally.repeats,
            thresholds: thresholds.iter().map(verdict).collect(),
            interrupted,
            first_error: load.first_error().map(|error| error.to_string()),
            errors: tally.errors,
        }
    }

    pub(super) fn is_missed(&self) -> bool {
        self.thresholds.iter().any(|verdict| !verdict.met)
    }

    /// For people.
    pub(super) fn text(&self, method: &str, common: &Common, client: &Client) -> String {
        let LatencySummary { p50, p90, p99, p999, max } = self.latency_us;
        let interrupted = if self.interrupted { ", interrupted" } else { "" };
        let mut text = format!("{method} in {} by {}{interrupted}\n\n", client.registry_state().url, common.policy);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "calls    {} in {}, {:.0}/s succeeded",
            self.calls,
            units::millis(self.elapsed_ms),
            self.rps
        );
        let _ = writeln!(text, "errors   {}", self.errors_text());
        if self.repeats > 0 {
            let _ = writeln!(text, "repeats  {}", self.repeats);
        }
        let latencies = [("p50", p50), ("p90", p90), ("p99", p99), ("p99.9", p999), ("max", max)];
        let latencies = latencies.map(|(name, us)| format!("{name} {}", units::micros(us)));
        let _ = writeln!(text, "latency  {}", if self.ok == 0 { "-".into() } else { latencies.join("   ") });
        if !self.nodes.is_empty() {
            let _ = write!(text, "\n{}\n", self.table());
        }
        for Verdict { threshold, met } in &self.thresholds {
            let _ = write!(text, "\n{} {threshold}", if *met { "met   " } else { "MISSED" });
        }
        text.truncate(text.trim_end().len());
        text
    }

    fn errors_text(&self) -> String {
        if self.errors.is_empty() {
            return "none".into();
        }
        let counts: Vec<String> = self.errors.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let first =
            self.first_error.as_ref().map(|error| format!(" (the first: {})", printable(error))).unwrap_or_default();
        format!("{}{first}", counts.join(", "))
    }

    fn table(&self) -> String {
        let total: u64 = self.nodes.values().map(|node| node.calls).sum();
        let row = |(addr, node): (&SocketAddr, &Node)| {
            [
                addr.to_string(),
                format!("{:.1} %", 100.0 * node.calls as f64 / total.max(1) as f64),
                node.calls.to_string(),
                node.errors.to_string(),
                node.time(node.p50_us),
                node.time(node.p99_us),
            ]
        };
        table(["NODE", "SHARE", "CALLS", "ERRORS", "P50", "P99"], &self.nodes.iter().map(row).collect::<Vec<_>>(), 1)
    }
}
