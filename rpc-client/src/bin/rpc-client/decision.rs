//! One decision of a policy, for people and programs.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use rpc_client::balance::{self, Candidate};
use rpc_client::{Attempt, DecisionRecord, Removed};
use serde::Serialize;

use crate::units;

/// One decision.
#[derive(Serialize)]
pub(crate) struct Decision {
    /// Counts the lists that the client made for its calls.
    list_version: u64,
    /// How long ago the registry had confirmed its list.
    list_age_ms: Option<u64>,
    /// Nodes that could be chosen, those already tried included.
    usable: usize,
    /// Nodes that could not.
    removed: Vec<Removed>,
    /// Nodes that the call had tried before.
    tried: Vec<SocketAddr>,
    /// Rounds of probes that the call had made before.
    probed: u32,
    /// What was compared, the lowest cost first.
    candidates: Vec<Compared>,
    #[serde(flatten)]
    verdict: Verdict,
    /// The nodes that the call or the probes went to.
    nodes: Vec<SocketAddr>,
    /// What came of it, if the call was sent.
    outcome: Option<Attempt>,
}

/// A node that was compared.
#[derive(Serialize)]
struct Compared {
    node: SocketAddr,
    cost: f64,
    terms: BTreeMap<&'static str, f64>,
    /// The terms in the policy's order.
    #[serde(skip)]
    text: String,
}

#[derive(Serialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
enum Verdict {
    Send { bound_us: Option<f64> },
    Probe { wait_for: usize },
    NoNode,
}

impl Decision {
    pub(crate) fn of(record: &DecisionRecord) -> Self {
        let verdict = match record.decision {
            balance::Decision::Send { bound, .. } => Verdict::Send { bound_us: bound },
            balance::Decision::Probe { wait_for, .. } => Verdict::Probe { wait_for },
            balance::Decision::NoNode => Verdict::NoNode,
        };
        Self {
            list_version: record.list_version,
            list_age_ms: record.list_age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
            usable: record.usable,
            removed: record.removed.to_vec(),
            tried: record.tried.clone(),
            probed: record.probed,
            candidates: record.candidates.iter().map(compared).collect(),
            verdict,
            nodes: record.nodes.clone(),
            outcome: record.outcome.clone(),
        }
    }

    /// For people, a line each.
    pub(crate) fn lines(&self, number: usize) -> Vec<String> {
        let nodes = join(&self.nodes);
        let what = match &self.verdict {
            Verdict::Send { bound_us: None } => format!("send to {nodes}"),
            Verdict::Send { bound_us: Some(us) } => {
                format!("send to {nodes}, which is to refuse if it expects more than {}", units::micros(*us as u64))
            }
            Verdict::Probe { wait_for: 0 } => format!("probe {nodes} meanwhile"),
            Verdict::Probe { wait_for } => format!("probe {nodes} first, and wait for {wait_for}"),
            Verdict::NoNode => "no node to send to".to_owned(),
        };
        let age = self.list_age_ms.map_or_else(String::new, |ms| format!(" ({} old)", units::millis(ms)));
        let (version, usable, removed) = (self.list_version, self.usable, self.removed.len());
        let mut lines =
            vec![format!("#{} {what}; by list {version}{age}: {usable} usable, {removed} left out", number + 1)];
        if !self.tried.is_empty() {
            lines.push(format!("   tried before: {}", join(&self.tried)));
        }
        let width = self.candidates.iter().map(|c| c.node.to_string().len()).max().unwrap_or_default();
        let line = |c: &Compared| format!("   {:width$}  cost {}: {}", c.node.to_string(), number_text(c.cost), c.text);
        lines.extend(self.candidates.iter().map(line));
        lines
    }
}

fn compared(candidate: &Candidate) -> Compared {
    let Candidate { node, score } = candidate;
    let text: Vec<String> = score.terms.iter().map(|(name, value)| format!("{name} {}", number_text(*value))).collect();
    Compared { node: node.addr, cost: score.cost, terms: score.terms.iter().copied().collect(), text: text.join(", ") }
}

fn join(nodes: &[SocketAddr]) -> String {
    nodes.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// Without digits that say nothing.
fn number_text(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_say_something() {
        assert_eq!([0.0, 0.25, 812.7, 1234.5].map(number_text), ["0", "0.250", "812.700", "1234"]);
    }
}
