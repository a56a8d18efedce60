//! How a command fails: an exit code, and an error that says what to do.

use std::net::SocketAddr;

use rpc_client::{Attempt, Error, ErrorKind, NotRepeated, RegistryState};
use rpc_core::printable;
use rpc_core::protocol::code;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::common::{Common, Format};
use crate::explain::Explanation;
use crate::{next, output};

/// Why a command ends early.
pub(crate) enum Failure {
    /// Calling failed, or what leads to it.
    Rpc {
        error: Box<Error>,
        /// From the start of the call to its failure, if it was one.
        latency_us: Option<u64>,
        /// How nodes were chosen, if that was asked for.
        explain: Option<Box<Explanation>>,
    },
    /// The command line asks for what cannot be.
    Usage { message: String, hint: String },
    /// The machine did not let us.
    Other { message: String, hint: String },
    /// Nobody reads the output any more, so there is nobody to tell.
    BrokenPipe,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Rpc { error: Box::new(error), latency_us: None, explain: None }
    }
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: hint.into() }
    }

    pub(crate) fn other(message: impl Into<String>) -> Self {
        Self::Other { message: message.into(), hint: OTHER.to_owned() }
    }

    /// The same, with what to do about it.
    pub(crate) fn machine(message: String, hint: String) -> Self {
        Self::Other { message, hint }
    }

    /// Tells the user, and returns the exit code.
    pub(crate) fn report(&self, common: &Common) -> u8 {
        if !matches!(self, Self::BrokenPipe) {
            match common.format {
                Format::Text => output::note(&self.text(common)),
                // Whether anybody reads it does not change how the command ended.
                Format::Json => drop(output::json(&self.json(common))),
            }
        }
        self.exit_code()
    }

    /// Tells people only, where programs have got an object already, and returns the exit code.
    pub(crate) fn note(&self, common: &Common) -> u8 {
        match common.format {
            Format::Text => self.report(common),
            Format::Json => self.exit_code(),
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Rpc { error, .. } => exit_code(error),
            Self::Usage { .. } => 2,
            Self::Other { .. } => 1,
            Self::BrokenPipe => 0,
        }
    }

    fn text(&self, common: &Common) -> String {
        match self {
            Self::Rpc { error, .. } => format!("error: {}", error.to_text(&next::step(error, common))),
            Self::Usage { message, hint } => format!("error: {message} (usage)\n  next: {hint}"),
            Self::Other { message, hint } => format!("error: {} (other)\n  next: {hint}", printable(message)),
            Self::BrokenPipe => String::new(),
        }
    }

    fn json(&self, common: &Common) -> Report<'_> {
        let plain = |name, message: String, hint: &str| Report {
            error: Body { code: None, name, message, data: None, not_repeated: None, hint: hint.to_owned() },
            node: None,
            latency_us: None,
            attempts: &[],
            registry: None,
            explain: None,
        };
        match self {
            Self::Rpc { error, latency_us, explain } => {
                let remote = error.remote();
                Report {
                    error: Body {
                        code: remote.map(|e| e.code).or_else(|| protocol_code(error.name())),
                        name: error.name(),
                        message: remote.map_or_else(|| error.to_string(), |e| e.message.clone()),
                        data: remote.and_then(|e| e.data.as_deref()),
                        not_repeated: error.not_repeated(),
                        hint: next::step(error, common),
                    },
                    node: node(error),
                    latency_us: *latency_us,
                    attempts: error.attempts(),
                    registry: error.registry(),
                    explain: explain.as_deref(),
                }
            }
            Self::Usage { message, hint } => plain("usage", message.clone(), hint),
            Self::Other { message, hint } => plain("other", message.clone(), hint),
            Self::BrokenPipe => plain("broken_pipe", String::new(), ""),
        }
    }
}

/// A failure as `--format json` shows it.
#[derive(Serialize)]
struct Report<'a> {
    error: Body<'a>,
    node: Option<SocketAddr>,
    latency_us: Option<u64>,
    attempts: &'a [Attempt],
    registry: Option<&'a RegistryState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    explain: Option<&'a Explanation>,
}

#[derive(Serialize)]
struct Body<'a> {
    /// The JSON-RPC code; none for a failure that is not the protocol's.
    code: Option<i64>,
    /// The stable name.
    name: &'a str,
    message: String,
    data: Option<&'a RawValue>,
    /// Why a call that may have run was not repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_repeated: Option<NotRepeated>,
    hint: String,
}

/// What to do about a failure of the machine.
const OTHER: &str = "the message names what could not be done; mend that, and run the command again";

/// The exit code for an error.
pub(crate) fn exit_code(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::BadRequest(_) | ErrorKind::TooLarge { .. } => 2,
        ErrorKind::Config(_) => 3,
        ErrorKind::RegistryUnreachable { .. } => 4,
        ErrorKind::NoNode => 5,
        ErrorKind::DeadlineExceeded { .. } => 6,
        // Which side noticed first that the time was over is chance.
        ErrorKind::Remote { error, .. } if error.code == code::DEADLINE_EXCEEDED => 6,
        ErrorKind::Remote { .. } => 7,
        ErrorKind::Transport { .. } => 8,
        // The kinds that a caller could act on are all above.
        _ => 1,
    }
}

/// The node that an error is about, if it is about one.
pub(crate) fn node(error: &Error) -> Option<SocketAddr> {
    match error.kind() {
        ErrorKind::Remote { node, .. } | ErrorKind::Transport { node, .. } | ErrorKind::Decode { node, .. } => {
            Some(*node)
        }
        // The time was over while it waited for the node of its last attempt.
        ErrorKind::DeadlineExceeded { .. } => error.attempts().last().map(|attempt| attempt.node),
        _ => None,
    }
}

fn protocol_code(name: &str) -> Option<i64> {
    rpc_core::protocol::ERROR_CODES.iter().find(|known| known.name == name).map(|known| known.code)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    fn rpc(kind: ErrorKind) -> Failure {
        Error::from(kind).into()
    }

    /// Each kind of error but the servers' answers, which have codes, with its name, its exit code and whether
    /// it is about a node.
    fn table() -> Vec<(Failure, &'static str, u8, bool)> {
        let node = ([127, 0, 0, 1], 1).into();
        let reason = || "the reason for it".to_owned();
        let time = Duration::from_millis(250);
        vec![
            (rpc(ErrorKind::Config(reason())), "config", 3, false),
            (rpc(ErrorKind::BadRequest(reason())), "bad_request", 2, false),
            (rpc(ErrorKind::RegistryUnreachable { waited: time }), "registry_unreachable", 4, false),
            (rpc(ErrorKind::NoNode), "no_node", 5, false),
            (rpc(ErrorKind::DeadlineExceeded { timeout: time }), "deadline_exceeded", 6, false),
            (rpc(ErrorKind::Transport { node, sent: true, reason: reason() }), "transport", 8, true),
            (rpc(ErrorKind::Decode { node, reason: reason() }), "decode", 1, true),
            (rpc(ErrorKind::TooLarge { size: 2, limit: 1 }), "too_large", 2, false),
            (rpc(ErrorKind::Closed), "closed", 1, false),
            (Failure::usage(reason(), "what to do instead"), "usage", 2, false),
            (Failure::other(reason()), "other", 1, false),
        ]
    }

    #[test]
    fn every_kind_of_error_is_told_by_name_with_what_to_do_in_text_and_json() {
        let common = Common::of_registry("zk://a:1/shop");
        for (failure, name, exit, has_node) in table() {
            assert_eq!(failure.exit_code(), exit, "{name}");
            let text = failure.text(&common);
            let lines: Vec<&str> = text.lines().collect();
            assert!(lines[0].starts_with("error: ") && lines[0].ends_with(&format!(" ({name})")), "{text}");
            let next = lines.last().unwrap().strip_prefix("  next: ").unwrap_or_else(|| panic!("{text}"));
            let json = serde_json::to_value(failure.json(&common)).unwrap();
            let error = &json["error"];
            assert_eq!((&error["name"], &error["hint"]), (&json!(name), &json!(next)), "{json}");
            assert_eq!(lines[0], format!("error: {} ({name})", error["message"].as_str().unwrap()));
            assert!(next.len() > 10 && error["message"].as_str().unwrap().len() > 10, "{text}");
            // Those that a server could have answered with have the same code wherever they come from.
            let code = rpc_core::protocol::ERROR_CODES.iter().find(|known| known.name == name).map(|known| known.code);
            assert_eq!((&error["code"], json["node"].is_string()), (&json!(code), has_node), "{json}");
            assert_eq!((&json["attempts"], &json["registry"]), (&json!([]), &Value::Null));
        }
    }

    #[test]
    fn the_table_has_every_kind_of_error_once() {
        let source = include_str!("../../../../rpc-core/src/error/mod.rs");
        let names = source.lines().filter(|line| line.trim_start().starts_with("ErrorKind::"));
        let names: Vec<&str> = names.filter_map(|line| line.split('"').nth(1)).collect();
        let table = table();
        let mut told: BTreeSet<&str> = table.iter().map(|(_, name, ..)| *name).collect();
        assert_eq!(told.len(), table.len());
        assert!(told.remove("usage") && told.remove("other"));
        assert_eq!(told, names.iter().copied().collect(), "the names in `Error::name`");
    }
}
