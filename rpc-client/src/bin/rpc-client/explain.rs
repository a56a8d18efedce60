//! What the client knew when it chose.

use std::fmt::Write;

use rpc_client::balance::POLICIES;
use rpc_client::{Attempt, Client, ConnectionState, NodeStatus, RegistryState};
use serde::Serialize;

use crate::common::Common;
use crate::{failure, units};

/// The registry, the policy, and every node with the reason why it could be chosen or not.
#[derive(Serialize)]
pub(crate) struct Explanation {
    registry: RegistryState,
    policy: String,
    nodes: Vec<Candidate>,
    misnamed: Vec<String>,
    /// Further nodes in the list, with which one call needs no connection.
    not_considered: usize,
}

#[derive(Serialize)]
struct Candidate {
    #[serde(flatten)]
    status: NodeStatus,
    /// Why it could not be chosen; none for a candidate.
    left_out: Option<String>,
}

impl Explanation {
    pub(crate) fn of(client: &Client, common: &Common, not_considered: usize) -> Self {
        let candidate = |status: NodeStatus| Candidate { left_out: left_out(&status), status };
        Self {
            registry: client.registry_state(),
            policy: common.policy.clone(),
            nodes: client.nodes().into_iter().map(candidate).collect(),
            misnamed: client.misnamed(),
            not_considered,
        }
    }

    /// For people, with the attempts that were made.
    pub(crate) fn text(&self, attempts: &[Attempt]) -> String {
        let mut text = format!("registry  {}\n", failure::registry_text(&self.registry));
        let what = POLICIES.iter().find(|(name, _, _)| *name == self.policy).map_or("", |(_, what, _)| what);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "policy    {}: {what}", self.policy);
        let width = self.nodes.iter().map(|c| c.status.node.to_string().len()).max().unwrap_or_default();
        let mut label = "nodes";
        for Candidate { status, left_out } in &self.nodes {
            let node = status.node.to_string();
            let time = match status.response_time_us {
                0 => "unknown".into(),
                us => units::micros(us),
            };
            let why = left_out.as_ref().map_or("candidate", |why| why);
            let _ = writeln!(text, "{label:8}  {node:width$}  {why}; response time {time}");
            label = "";
        }
        if self.not_considered > 0 {
            let more = units::nodes(self.not_considered);
            let _ = writeln!(text, "{label:8}  and {more} more, with which one call needs no connection");
        }
        for name in &self.misnamed {
            let _ = writeln!(text, "{label:8}  `{name}` is no address, and was ignored");
            label = "";
        }
        let mut label = "tried";
        for (number, attempt) in attempts.iter().enumerate() {
            let _ = writeln!(text, "{label:8}  {}", failure::attempt_text(number, attempt));
            label = "";
        }
        text.truncate(text.trim_end().len());
        text
    }
}

/// Why a node could not be chosen.
fn left_out(status: &NodeStatus) -> Option<String> {
    let why = match status.connection {
        ConnectionState::Connected => return None,
        ConnectionState::Connecting => "not connected",
        ConnectionState::Suspect => "left out: silent while calls wait",
        ConnectionState::Leaving => "left out: draining, takes no new calls",
        ConnectionState::Ejected => "left out for a while: failed too often",
    };
    Some(match &status.trouble {
        Some(trouble) => format!("{why}: {trouble}"),
        None => why.into(),
    })
}
