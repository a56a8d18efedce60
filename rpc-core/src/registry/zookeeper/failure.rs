//! The three ways in which a ZooKeeper operation fails.

use std::fmt;

use zookeeper_client as zk;

use crate::registry::{Trouble, UpdateError};

/// Why an operation failed, by what the caller can conclude from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// ZooKeeper answered: it was not done.
    Definite(zk::Error),
    /// No answer: it may have been done, or may still be (a request that timed out is applied
    /// after a reconnect). Only looking again tells.
    Unknown(String),
    /// The session is over, and this client with it.
    SessionGone(String),
}

impl Failure {
    /// Whether ZooKeeper answered with exactly this error.
    pub(super) fn is(&self, error: &zk::Error) -> bool {
        matches!(self, Self::Definite(e) if e == error)
    }
}

impl From<zk::Error> for Failure {
    fn from(error: zk::Error) -> Self {
        use zk::Error as E;
        match error {
            E::SessionExpired | E::AuthFailed | E::ClientClosed => Self::SessionGone(error.to_string()),
            E::NoNode
            | E::NodeExists
            | E::BadVersion
            | E::NoAuth
            | E::InvalidAcl
            | E::NotEmpty
            | E::NoChildrenForEphemerals
            | E::BadArguments(_)
            | E::RuntimeInconsistent
            | E::NotReadOnly
            | E::QuotaExceeded
            | E::MarshallingError
            | E::Unimplemented => Self::Definite(error),
            // A lost connection has several faces, `Custom` with an operating system error or
            // "no response" among them. What is not known to be definite is unknown.
            other => Self::Unknown(other.to_string()),
        }
    }
}

impl From<Failure> for UpdateError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Definite(zk::Error::BadVersion | zk::Error::NoNode) => Self::Changed,
            Failure::Definite(zk::Error::RuntimeInconsistent) => Self::LeaseLost,
            Failure::Definite(_) => Self::Refused(failure.to_string()),
            Failure::Unknown(reason) | Failure::SessionGone(reason) => Self::Unknown(reason),
        }
    }
}

impl From<&Failure> for Trouble {
    fn from(failure: &Failure) -> Self {
        match failure {
            Failure::Definite(_) => Self::Refused(failure.to_string()),
            Failure::Unknown(_) | Failure::SessionGone(_) => Self::Unreachable(failure.to_string()),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Definite(zk::Error::NoAuth) => f.write_str(
                "ZooKeeper refuses: these credentials may not do that; compare RPC_ZK_AUTH with who made the entries",
            ),
            Self::Definite(error) => write!(f, "ZooKeeper refuses: {error}"),
            Self::Unknown(reason) => write!(f, "ZooKeeper did not answer: {reason}"),
            Self::SessionGone(reason) => write!(f, "the ZooKeeper session is over: {reason}"),
        }
    }
}
