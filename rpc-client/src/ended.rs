//! How an attempt of a call ended.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpc_core::protocol::{self, code};
use rpc_core::wire::{EncodeError, give_body};
use rpc_core::{ErrorKind, RpcError};

use crate::channel::{Answer, Channel, ExchangeError, Failure, Status};
use crate::node::Outcome;
use crate::refusals::is_failure;

/// How an attempt ended.
pub(crate) enum Ended {
    Answered(Answer),
    /// The call was not started there.
    NotStarted(ErrorKind),
    /// It may have been started there; whether it may be sent again all the same.
    Started(ErrorKind, bool),
    /// The same; it is sent again, which the budget has paid for.
    Hung(ErrorKind),
    /// There was no room to send it.
    Crowded(Arc<Channel>),
    /// There was no time to send it.
    TooLate(ErrorKind),
    /// Another attempt cannot help, or there is no time for one.
    Final(ErrorKind),
}

impl Ended {
    /// What an attempt without a result says about its node, and what follows for the call.
    #[cold]
    pub(crate) fn judge(
        node: SocketAddr,
        channel: &Arc<Channel>,
        timeout: Duration,
        outcome: Result<Answer, ExchangeError>,
        may_repeat: bool,
        elapsed: Duration,
    ) -> (Outcome, Self) {
        let lost = |sent, reason: &str| ErrorKind::Transport { node, sent, reason: reason.to_owned() };
        let closed = |sent, before: &str| match &*channel.status().borrow() {
            Status::Closed(reason) => lost(sent, &format!("the connection closed before {before}: {reason}")),
            // The calls are told first.
            Status::Open | Status::Suspect | Status::Leaving => {
                lost(sent, &format!("the connection closed before {before}"))
            }
        };
        match outcome {
            Ok(answer) => {
                let error = serde_json::from_slice::<RpcError>(&answer.body)
                    .unwrap_or_else(|e| RpcError::internal(format!("the node sent a malformed error: {e}")));
                give_body(answer.body);
                let outcome = if is_failure(&error) { Outcome::Failed(elapsed) } else { Outcome::ApplicationError };
                let elsewhere = protocol::error_code(error.code).is_some_and(|known| known.retry && !known.started);
                let kind = ErrorKind::Remote { node, error };
                (outcome, if elsewhere { Self::NotStarted(kind) } else { Self::Final(kind) })
            }
            Err(ExchangeError::Encode(EncodeError::TooLarge { size, limit })) => {
                (Outcome::ApplicationError, Self::Final(ErrorKind::TooLarge { size, limit }))
            }
            Err(ExchangeError::Encode(error)) => {
                (Outcome::ApplicationError, Self::Final(ErrorKind::BadRequest(error.to_string())))
            }
            Err(ExchangeError::Crowded) => (Outcome::ApplicationError, Self::Crowded(channel.clone())),
            Err(ExchangeError::Failed(Failure::Deadline)) => {
                let error = ErrorKind::DeadlineExceeded { timeout };
                (Outcome::Failed(elapsed), Self::Final(error))
            }
            // The probe has told the policy, and the node may have had a pause only.
            Err(ExchangeError::Hung) => {
                (Outcome::ApplicationError, Self::Hung(lost(true, "the node gave no sign of life")))
            }
            Err(ExchangeError::Failed(Failure::Silent)) => {
                (Outcome::Failed(elapsed), Self::Started(lost(true, "the node has fallen silent"), may_repeat))
            }
            Err(ExchangeError::Failed(Failure::Closed { sent: true })) => {
                (Outcome::Failed(elapsed), Self::Started(closed(true, "the answer"), may_repeat))
            }
            Err(ExchangeError::Failed(Failure::Closed { sent: false })) => {
                let error = closed(false, "the request had left");
                (Outcome::ApplicationError, Self::NotStarted(error))
            }
        }
    }

    /// What happened, for people.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Answered(_) => "ok".to_owned(),
            Self::NotStarted(ErrorKind::NoNode) => "it is tried out by another call".to_owned(),
            Self::NotStarted(kind)
            | Self::Started(kind, _)
            | Self::Hung(kind)
            | Self::TooLate(kind)
            | Self::Final(kind) => kind.to_string(),
            Self::Crowded(_) => "no room on the connection".to_owned(),
        }
    }

    /// Whether the node refused because of its load.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::NotStarted(ErrorKind::Remote { error, .. })
            if matches!(error.code, code::REFUSED | code::OVERLOADED))
    }
}
