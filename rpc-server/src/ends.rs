//! Ends of connections that whoever runs the server may want to know of.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;

use parking_lot::Mutex;
use rpc_core::seldom::Seldom;
use tokio::time::Instant;

/// Tells of each kind of end at long intervals only: anybody can bring most of them about as often as they like. All are
/// told at the level of debugging.
#[derive(Debug, Default)]
pub(crate) struct Ends(Mutex<BTreeMap<EndKind, Seldom>>);

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EndKind {
    /// It broke.
    Broken,
    /// The peer gave no sign of life.
    Silent,
    /// It did not say who it is.
    Unauthenticated,
    /// It did not get on with its message.
    SlowMessage,
    /// It took none of its answers.
    Unread,
    /// It speaks something else.
    NotAFrame,
    /// There was no TLS handshake.
    #[cfg(feature = "tls")]
    Handshake,
}

impl Ends {
    pub(crate) fn tell(&self, peer: SocketAddr, kind: EndKind, reason: &dyn Display) {
        let times = self.0.lock().entry(kind).or_default().count(Instant::now());
        match times {
            Some(1) => tracing::info!(%peer, "connection ended: {reason}"),
            Some(times) => tracing::info!(%peer, times, "connections ended, the last one: {reason}"),
            None => tracing::debug!(%peer, "connection ended: {reason}"),
        }
    }
}
