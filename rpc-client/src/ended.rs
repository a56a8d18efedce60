//! How an attempt of a call ended.

use std::sync::Arc;

use rpc_core::ErrorKind;
use rpc_core::protocol::code;

use crate::channel::{Answer, Channel};

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
