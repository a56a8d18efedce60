//! How a call fails: what crosses the wire ([`RpcError`]) and what a caller sees ([`Error`]).

mod hint;
mod text;

pub use self::text::{attempts as attempts_text, micros, millis, printable};

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::protocol::{self, code};

/// An error object of JSON-RPC 2.0: what a handler returns and what the other side receives.
#[derive(Clone, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message} (code {code})")]
pub struct RpcError {
    /// The standard codes and -32000…-32099 belong to the protocol, every other integer to the
    /// application.
    pub code: i64,
    /// One sentence for people; programs look at `code` and `data`.
    pub message: String,
    /// Anything else, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
}

impl RpcError {
    /// An error without data.
    ///
    /// A handler that returns a code of the protocol which promises that the call was not started
    /// (such as `overloaded`, passed on from another service) has run all the same: the server sends
    /// it as `upstream`, with the original in its data.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// The same error with data; data that cannot be serialised is left out.
    #[must_use]
    pub fn with_data(mut self, data: &impl Serialize) -> Self {
        self.data = serde_json::value::to_raw_value(data).ok();
        self
    }

    /// `internal_error`, for a failure the handler did not foresee.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(code::INTERNAL_ERROR, message)
    }

    /// `invalid_params`, with what is wrong with them.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(code::INVALID_PARAMS, message)
    }

    /// How long the server that refused wants to be left alone: `data.retry_after_ms`.
    pub fn retry_after(&self) -> Option<Duration> {
        #[derive(Deserialize)]
        struct Data {
            retry_after_ms: u64,
        }
        self.data_as().map(|data: Data| Duration::from_millis(data.retry_after_ms))
    }

    /// The data as a type; `None` without data, or if they are of another type.
    pub fn data_as<T: serde::de::DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_str(self.data.as_ref()?.get()).ok()
    }

    /// Whether the code is the application's own, and not of the protocol.
    pub fn is_application(&self) -> bool {
        protocol::error_code(self.code).is_none()
    }

    /// Whether another attempt, on another node, can help.
    pub fn is_retryable(&self) -> bool {
        protocol::error_code(self.code).is_some_and(|known| known.retry)
    }

    /// Whether the server says that it did not start the call: by the code, or of `invalid_params`,
    /// which a handler may give too, by `data.started`.
    pub fn is_unstarted(&self) -> bool {
        #[derive(Deserialize)]
        struct Data {
            started: bool,
        }
        let by_data = || self.data_as().is_some_and(|data: Data| !data.started);
        let by_code = protocol::error_code(self.code).is_some_and(|known| !known.started);
        by_code || self.code == code::INVALID_PARAMS && by_data()
    }

    /// The stable name of a protocol code, or `application`.
    pub fn name(&self) -> &'static str {
        protocol::error_code(self.code).map_or("application", |c| c.name)
    }
}

/// Why a call, or setting one up, failed: the kind, what was tried, and how fresh the list of
/// nodes was.
///
/// `Display` is the cause in one sentence; `Debug`, which a `main` that returns it prints, is
/// everything in several lines, with what to do.
#[derive(Clone)]
pub struct Error(Box<Report>);

#[derive(Clone, Debug)]
struct Report {
    kind: ErrorKind,
    attempts: Vec<Attempt>,
    registry: Option<RegistryState>,
    not_repeated: Option<NotRepeated>,
    started: bool,
}

/// What went wrong. A kind exists where a caller would act differently.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A URL or option that cannot work.
    #[error("{0}")]
    Config(String),
    /// The request cannot be sent as it is: params that are no array or object, or cannot be
    /// serialised.
    #[error("the request cannot be sent: {0}")]
    BadRequest(String),
    /// No list of nodes could be read in time.
    #[error("the registry could not be reached within {} ms", .waited.as_millis())]
    RegistryUnreachable {
        /// How long the call waited for it.
        waited: Duration,
    },
    /// The registry lists no node that can be used.
    #[error("no usable node")]
    NoNode,
    /// The deadline passed.
    #[error("no answer within {} ms", .timeout.as_millis())]
    DeadlineExceeded {
        /// The time that the call had.
        timeout: Duration,
    },
    /// The server answered with an error.
    #[error("{error}")]
    Remote {
        /// The node that answered.
        node: SocketAddr,
        /// Its answer.
        error: RpcError,
    },
    /// A connection could not be opened or was lost. When `sent` is false the request provably
    /// was not started.
    #[error("connection to {node} failed: {reason}")]
    Transport {
        /// The node at the other end.
        node: SocketAddr,
        /// Whether the server may have received the request.
        sent: bool,
        /// What happened to the connection.
        reason: String,
    },
    /// The result is not of the type that the caller asked for, or no result at all: the reason then begins with
    /// [`NO_VALID_ANSWER`].
    #[error("cannot read the result from {node}: {reason}")]
    Decode {
        /// The node that answered.
        node: SocketAddr,
        /// The path of the member that does not fit, and why.
        reason: String,
    },
    /// The request is longer than the limit.
    #[error("the request has {size} bytes, the limit is {limit}")]
    TooLarge {
        /// Its length in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

/// How the reason of [`ErrorKind::Decode`] begins where no type would fit what came.
pub const NO_VALID_ANSWER: &str = "the node sent no valid answer";

/// Why a call that may have run was not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NotRepeated {
    /// Neither the server nor the caller said that running twice does no harm.
    NotIdempotent,
    /// It was, as often as a call is.
    OftenEnough,
    /// The client's budget of repeats is used up: so many calls fail that repeats would make it worse.
    NoBudget,
    /// There was no other node to send it to.
    NoOtherNode,
}

/// One attempt of a call, in the order they were made.
#[derive(Clone, Debug, Serialize)]
pub struct Attempt {
    /// The node it went to.
    pub node: SocketAddr,
    /// From sending to the outcome, in microseconds; 0 if nothing was sent.
    pub elapsed_us: u64,
    /// `ok`, or what happened instead; a very long text is cut.
    pub outcome: String,
}

/// What was known of the registry when a call failed.
#[derive(Clone, Debug, Serialize)]
pub struct RegistryState {
    /// The registry's URL.
    pub url: String,
    /// Age of the list in milliseconds; none before the first one.
    pub list_age_ms: Option<u64>,
    /// Nodes in the list.
    pub listed: usize,
    /// Those that could take a call.
    pub usable: usize,
    /// Why the registry cannot be read at the moment, if so.
    pub trouble: Option<String>,
    /// Whether that is because it answers, and does not let this client in.
    #[serde(skip)]
    pub refused: bool,
}

impl ErrorKind {
    /// How long the node that refused wants to be left alone, if it said so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Remote { error, .. } => error.retry_after(),
            _ => None,
        }
    }
}

impl Error {
    /// The kind, so that a caller can act on it.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The attempts that were made, oldest first.
    pub fn attempts(&self) -> &[Attempt] {
        &self.0.attempts
    }

    /// The state of the registry at the time of the failure, if it matters.
    pub fn registry(&self) -> Option<&RegistryState> {
        self.0.registry.as_ref()
    }

    /// Whether the registry answers, and does not let this client in.
    pub fn is_registry_refusal(&self) -> bool {
        self.0.registry.as_ref().is_some_and(|state| state.refused)
    }

    /// The same error with the attempts that led to it.
    #[must_use]
    pub fn with_attempts(mut self, attempts: Vec<Attempt>) -> Self {
        self.0.attempts = attempts;
        self
    }

    /// The same error with the state of the registry.
    #[must_use]
    pub fn with_registry(mut self, registry: RegistryState) -> Self {
        self.0.registry = Some(registry);
        self
    }

    /// The server's error object, if the server answered with one.
    pub fn remote(&self) -> Option<&RpcError> {
        match &self.0.kind {
            ErrorKind::Remote { error, .. } => Some(error),
            _ => None,
        }
    }

    /// A stable name for programs and logs.
    pub fn name(&self) -> &'static str {
        match &self.0.kind {
            ErrorKind::Config(_) => "config",
            ErrorKind::BadRequest(_) => "bad_request",
            ErrorKind::RegistryUnreachable { .. } => "registry_unreachable",
            ErrorKind::NoNode => "no_node",
            ErrorKind::DeadlineExceeded { .. } => "deadline_exceeded",
            ErrorKind::Remote { error, .. } => error.name(),
            ErrorKind::Transport { .. } => "transport",
            ErrorKind::Decode { .. } => "decode",
            ErrorKind::TooLarge { .. } => "too_large",
            ErrorKind::Closed => "closed",
        }
    }

    /// What to do next, in one sentence, for whoever wrote the program.
    pub fn hint(&self) -> String {
        hint::of(self)
    }

    /// Why a call that may have run was not repeated, if that is how it ended.
    pub fn not_repeated(&self) -> Option<NotRepeated> {
        self.0.not_repeated.filter(|_| matches!(self.0.kind, ErrorKind::Transport { sent: true, .. }))
    }

    /// The same error with why the call was not repeated.
    #[must_use]
    pub fn with_not_repeated(mut self, why: Option<NotRepeated>) -> Self {
        self.0.not_repeated = why;
        self
    }

    /// The same error of a call of which an attempt before the last one may have started it, or none.
    #[must_use]
    pub fn with_started(mut self, started: bool) -> Self {
        self.0.started = started;
        self
    }

    /// All that is known, in several lines for people: cause and stable name, attempts, registry, and
    /// `next` as what to do. Control characters of other programs are escaped.
    pub fn to_text(&self, next: &str) -> String {
        text::of(self, next)
    }

    /// Whether the failed call provably was never started anywhere, by none of its attempts.
    pub fn is_unsent(&self) -> bool {
        if self.0.started {
            return false;
        }
        match &self.0.kind {
            ErrorKind::Remote { error, .. } => error.is_unstarted(),
            ErrorKind::Transport { sent, .. } => !sent,
            ErrorKind::DeadlineExceeded { .. } | ErrorKind::Decode { .. } => false,
            ErrorKind::Config(_)
            | ErrorKind::BadRequest(_)
            | ErrorKind::RegistryUnreachable { .. }
            | ErrorKind::NoNode
            | ErrorKind::TooLarge { .. }
            | ErrorKind::Closed => true,
        }
    }
}

impl From<Error> for RpcError {
    /// What a handler passes on when a call of its own failed: an application's error and
    /// `deadline_exceeded` as they are, everything else as `upstream`, with the cause in its data.
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Remote { error, .. } if error.is_application() => error.clone(),
            ErrorKind::DeadlineExceeded { .. } => Self::new(code::DEADLINE_EXCEEDED, error.to_string()),
            _ => {
                let cause = serde_json::json!({ "name": error.name(), "message": error.to_string() });
                Self::new(code::UPSTREAM, error.to_string()).with_data(&serde_json::json!({ "upstream": cause }))
            }
        }
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self(Box::new(Report { kind, attempts: Vec::new(), registry: None, not_repeated: None, started: false }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.kind.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text(&self.hint()))
    }
}

impl std::error::Error for Error {
    /// The server's error object, of an error that is its answer.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.kind {
            ErrorKind::Remote { error, .. } => Some(error),
            _ => None,
        }
    }
}
