//! What came of a call.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpc_core::wire::{exact_result, give_body, read_json};
use rpc_core::{Attempt, Error, ErrorKind};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::channel::Answer;
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
    pub(crate) fn into_result<R: DeserializeOwned>(self) -> Result<R, Error> {
        match decode(&self.answer.body) {
            Ok(result) => {
                give_body(self.answer.body);
                Ok(result)
            }
            Err(_) => Err(undecodable::<R>(&self.answer.body, self.usable.node.addr).with_attempts(self.attempts)),
        }
    }

    pub(crate) fn into_reply(self) -> Result<Reply, Error> {
        let node = self.usable.node.addr;
        let result = decode(&self.answer.body)
            .map_err(|e| Error::from(ErrorKind::Decode { node, reason: format!("the result is no JSON: {e}") }))?;
        let mut attempts = self.attempts;
        attempts.push(attempt(node, self.answer.received.saturating_duration_since(self.sent), "ok"));
        let elapsed = self.answer.received.saturating_duration_since(self.started);
        Ok(Reply { result, node, elapsed, attempts })
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

/// Says which part of a result does not fit the type that was asked for.
#[cold]
fn undecodable<R: DeserializeOwned>(body: &[u8], node: SocketAddr) -> Error {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let reason = match serde_path_to_error::deserialize::<_, R>(&mut deserializer) {
        Err(error) => match error.path().to_string().as_str() {
            "." => error.inner().to_string(),
            path => format!("`{path}`: {}", error.inner()),
        },
        Ok(_) => "more follows the value".to_owned(),
    };
    ErrorKind::Decode { node, reason }.into()
}
