//! What the client knew when it chose, and how it chose.

use std::fmt::Write;
use std::sync::Arc;

use rpc_client::balance::POLICIES;
use rpc_client::{Attempt, Client, ConnectionState, Filter, NodeStatus, Reason, RegistryState, Removed};
use rpc_core::{attempts_text, printable};
use serde::Serialize;

use crate::common::Common;
use crate::decision::Decision;
use crate::units;

/// The registry, the policy, every node with the reason why it could be chosen or not, and every
/// decision of the call.
#[derive(Serialize)]
pub(crate) struct Explanation {
    registry: RegistryState,
    policy: String,
    nodes: Vec<Node>,
    misnamed: Vec<String>,
    /// Further nodes in the list, with which one call needs no connection.
    not_considered: usize,
    decisions: Vec<Decision>,
}

#[derive(Serialize)]
struct Node {
    #[serde(flatten)]
    status: NodeStatus,
    /// Why it could not be chosen; none for a candidate.
    left_out: Option<String>,
}

impl Explanation {
    /// Of a client that has made one call.
    pub(crate) fn of(client: &Client, common: &Common, not_considered: usize) -> Self {
        let records = client.decisions();
        let explained = records.iter().filter(|record| record.reason == Reason::Explained);
        let last = explained.clone().next_back().map(|record| &record.removed);
        let node = |status: NodeStatus| Node { left_out: left_out(&status, last), status };
        Self {
            registry: client.registry_state(),
            policy: common.policy.clone(),
            nodes: client.nodes().into_iter().map(node).collect(),
            misnamed: client.misnamed(),
            not_considered,
            decisions: explained.map(|record| Decision::of(record)).collect(),
        }
    }

    /// For people, with the attempts that were made.
    pub(crate) fn text(&self, attempts: &[Attempt]) -> String {
        let mut text = format!("registry  {}\n", self.registry);
        let what = POLICIES.iter().find(|(name, _, _)| *name == self.policy).map_or("", |(_, what, _)| what);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "policy    {}: {what}", self.policy);
        let width = self.nodes.iter().map(|c| c.status.node.to_string().len()).max().unwrap_or_default();
        let mut label = "nodes";
        for Node { status, left_out } in &self.nodes {
            let node = status.node.to_string();
            let time = match status.response_time_us {
                0 => "unknown".into(),
                us => units::micros(us),
            };
            let why = printable(left_out.as_deref().unwrap_or("candidate"));
            let _ = writeln!(text, "{label:8}  {node:width$}  {why}; response time {time}");
            label = "";
        }
        if self.not_considered > 0 {
            let more = units::nodes(self.not_considered);
            let _ = writeln!(text, "{label:8}  and {more} more, with which one call needs no connection");
        }
        for name in &self.misnamed {
            let _ = writeln!(text, "{label:8}  `{}` is no address, and was ignored", printable(name));
            label = "";
        }
        let mut label = "decided";
        for (number, decision) in self.decisions.iter().enumerate() {
            for line in decision.lines(number) {
                let _ = writeln!(text, "{label:8}  {line}");
                label = "";
            }
        }
        let mut label = "tried";
        for line in attempts_text(attempts) {
            let _ = writeln!(text, "{label:8}  {line}");
            label = "";
        }
        text.truncate(text.trim_end().len());
        text
    }
}

/// Why a node could not be chosen: by the last decision, or by its state if there was none.
fn left_out(status: &NodeStatus, removed: Option<&Arc<[Removed]>>) -> Option<String> {
    let (filter, why) = match removed {
        Some(removed) => {
            let removed = removed.iter().find(|removed| removed.node == status.node)?;
            (removed.filter, removed.why.as_ref())
        }
        None => (filter(status.connection)?, status.trouble.as_ref()),
    };
    let filter = match filter {
        Filter::NotConnected => "not connected",
        Filter::Silent => "left out: silent while calls wait",
        Filter::Draining => "left out: draining, takes no new calls",
        Filter::Ejected => "left out for a while: failed too often",
    };
    Some(match why {
        Some(why) => format!("{filter}: {why}"),
        None => filter.into(),
    })
}

fn filter(connection: ConnectionState) -> Option<Filter> {
    match connection {
        ConnectionState::Connected => None,
        ConnectionState::Connecting => Some(Filter::NotConnected),
        ConnectionState::Suspect => Some(Filter::Silent),
        ConnectionState::Leaving => Some(Filter::Draining),
        ConnectionState::Ejected => Some(Filter::Ejected),
    }
}
