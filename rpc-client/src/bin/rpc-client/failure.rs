//! How a command fails: an exit code, and an error that says what to do.

use std::fmt::Write;
use std::net::SocketAddr;

use rpc_client::{Attempt, Error, ErrorKind, RegistryState, RpcError};
use rpc_core::protocol::code;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::common::Format;
use crate::explain::Explanation;
use crate::{output, units};

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
    Other(String),
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
        Self::Other(message.into())
    }

    /// Tells the user, and returns the exit code.
    pub(crate) fn report(&self, format: Format) -> u8 {
        if !matches!(self, Self::BrokenPipe) {
            match format {
                Format::Text => output::note(&self.text()),
                // Whether anybody reads it does not change how the command ended.
                Format::Json => drop(output::json(&self.json())),
            }
        }
        self.exit_code()
    }

    /// Tells people only, where programs have got an object already, and returns the exit code.
    pub(crate) fn note(&self, format: Format) -> u8 {
        match format {
            Format::Text => self.report(format),
            Format::Json => self.exit_code(),
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Rpc { error, .. } => exit_code(error),
            Self::Usage { .. } => 2,
            Self::Other(_) => 1,
            Self::BrokenPipe => 0,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Rpc { error, .. } => rpc_text(error),
            Self::Usage { message, hint } => format!("error: {message} (usage)\n  next: {hint}"),
            Self::Other(message) => format!("error: {message}"),
            Self::BrokenPipe => String::new(),
        }
    }

    fn json(&self) -> Report<'_> {
        let plain = |name, message: String, hint| Report {
            error: Body { code: None, name, message, data: None, hint },
            node: None,
            latency_us: None,
            attempts: &[],
            registry: None,
            explain: None,
        };
        match self {
            Self::Rpc { error, latency_us, explain } => {
                let remote = remote(error);
                Report {
                    error: Body {
                        code: remote.map(|(_, e)| e.code).or_else(|| protocol_code(error.name())),
                        name: error.name(),
                        message: remote.map_or_else(|| error.to_string(), |(_, e)| e.message.clone()),
                        data: remote.and_then(|(_, e)| e.data.as_deref()),
                        hint: error.hint(),
                    },
                    node: node(error),
                    latency_us: *latency_us,
                    attempts: error.attempts(),
                    registry: error.registry(),
                    explain: explain.as_deref(),
                }
            }
            Self::Usage { message, hint } => plain("usage", message.clone(), hint),
            Self::Other(message) => plain("other", message.clone(), ""),
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
    hint: &'a str,
}

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

fn remote(error: &Error) -> Option<(SocketAddr, &RpcError)> {
    match error.kind() {
        ErrorKind::Remote { node, error } => Some((*node, error)),
        _ => None,
    }
}

fn protocol_code(name: &str) -> Option<i64> {
    rpc_core::protocol::ERROR_CODES.iter().find(|known| known.name == name).map(|known| known.code)
}

/// Code, cause, what was tried, the registry and how fresh its list is, what to do next.
fn rpc_text(error: &Error) -> String {
    let mut text = match remote(error) {
        Some((node, e)) => {
            let data = e.data.as_ref().map(|data| format!("\n  data: {data}")).unwrap_or_default();
            format!("error: {} ({}, code {})\n  from: {node}{data}", e.message, e.name(), e.code)
        }
        None => format!("error: {error} ({})", error.name()),
    };
    let mut line = |label: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  {label}: {value}");
    };
    for (number, attempt) in error.attempts().iter().enumerate() {
        line(if number == 0 { "tried" } else { "     " }, &attempt_text(number, attempt));
    }
    if let Some(registry) = error.registry() {
        line("registry", &registry_text(registry));
    }
    line("next", error.hint());
    text
}

/// One attempt in one line.
pub(crate) fn attempt_text(number: usize, attempt: &Attempt) -> String {
    let Attempt { node, elapsed_us, outcome } = attempt;
    format!("#{} {node}  {outcome}  ({})", number + 1, units::micros(*elapsed_us))
}

/// The registry and how fresh its list is, in one line.
pub(crate) fn registry_text(state: &RegistryState) -> String {
    let age = match state.list_age_ms {
        Some(ms) => {
            format!("list {} old, {} listed, {} usable", units::millis(ms), units::nodes(state.listed), state.usable)
        }
        None => "no list yet".into(),
    };
    let trouble = state.trouble.as_ref().map(|trouble| format!("; {trouble}")).unwrap_or_default();
    format!("{}: {age}{trouble}", state.url)
}
