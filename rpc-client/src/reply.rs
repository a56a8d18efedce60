//! What came of a call.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpc_core::wire::{exact_result, give_body, read_json};
use rpc_core::{Attempt, Error, ErrorKind, NO_VALID_ANSWER};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::channel::Answer;
use crate::client::Inner;
use crate::decisions::attempt;
use crate::snapshot::Usable;

/// A result, who gave it, and what it took.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The result as JSON text.
    pub result: Box<RawValue>,
    /// The node that answered.
    pub node: SocketAddr,
    /// From the call to the result, all attempts together.
    pub elapsed: Duration,
    /// All attempts, the successful one last.
    pub attempts: Vec<Attempt>,
}

/// A call that succeeded, not yet decoded.
pub(crate) struct Success {
    pub(crate) answer: Answer,
    pub(crate) usable: Arc<Usable>,
    pub(crate) started: Instant,
    pub(crate) sent: Instant,
    pub(crate) attempts: Vec<Attempt>,
}

impl Success {
    #[inline]
    pub(crate) fn into_result<R: DeserializeOwned>(self, client: &Inner) -> Result<R, Error> {
        match decode(&self.answer.body) {
            Ok(result) => {
                give_body(self.answer.body);
                Ok(result)
            }
            Err(_) => Err(self.undecodable::<R>(client)),
        }
    }

    pub(crate) fn into_reply(self, client: &Inner) -> Result<Reply, Error> {
        let Ok(result) = decode(&self.answer.body) else { return Err(self.undecodable::<Box<RawValue>>(client)) };
        let elapsed = self.answer.received.saturating_duration_since(self.started);
        Ok(Reply { result, node: self.usable.node.addr, elapsed, attempts: self.all_attempts() })
    }

    /// The error of a call whose result is of no use, which its attempts do not show.
    #[cold]
    fn undecodable<R: DeserializeOwned>(self, client: &Inner) -> Error {
        let kind = misfit::<R>(&self.answer.body, self.usable.node.addr);
        client.error(kind, self.all_attempts())
    }

    /// All attempts, the one that was answered last.
    fn all_attempts(self) -> Vec<Attempt> {
        let elapsed = self.answer.received.saturating_duration_since(self.sent);
        let mut attempts = self.attempts;
        attempts.push(attempt(self.usable.node.addr, elapsed, "ok"));
        attempts
    }
}

/// Reads a result. Where it does not fit, further members of the message may have followed it.
#[inline]
fn decode<R: DeserializeOwned>(body: &[u8]) -> serde_json::Result<R> {
    read_json(body).or_else(|error| match exact_result(body) {
        Some(result) => read_json(&result),
        None => Err(error),
    })
}

/// Says which part of a result does not fit the type that was asked for, or why nothing could.
#[cold]
fn misfit<R: DeserializeOwned>(body: &[u8], node: SocketAddr) -> ErrorKind {
    if exact_result(body).is_none() {
        let what = match std::str::from_utf8(body) {
            Ok(_) => "it is not JSON, or has both a result and an error",
            Err(_) => "it is not UTF-8",
        };
        return ErrorKind::Decode { node, reason: format!("{NO_VALID_ANSWER}: {what}") };
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let reason = match serde_path_to_error::deserialize::<_, R>(&mut deserializer) {
        Err(error) => match error.path().to_string().as_str() {
            "." => error.inner().to_string(),
            path => format!("`{path}`: {}", error.inner()),
        },
        Ok(_) => "more follows the value".to_owned(),
    };
    ErrorKind::Decode { node, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_told_from_what_is_no_answer() {
        let reason = |body: &[u8]| misfit::<u64>(body, ([127, 0, 0, 1], 1).into()).to_string();
        assert!(reason(b"\"tea\"").contains("expected u64"), "{}", reason(b"\"tea\""));
        for body in [&b"\"\xff\""[..], b"[1", b"1,\"error\":{\"code\":7,\"message\":\"no\"}"] {
            assert!(reason(body).contains(NO_VALID_ANSWER), "{}", reason(body));
        }
        assert!(reason(b"\"\xff\"").ends_with("it is not UTF-8"));
    }
}
