//! Limits and times of a server.

use std::time::Duration;

use rpc_core::protocol::{MESSAGE_BYTES_MAX, check_message_limit};
use rpc_core::{Error, ErrorKind};

use crate::access::Access;
use crate::admission::ConcurrencyLimit;

/// 4 MiB in this time are 1.1 Mbit/s.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// As long as for a message on its way in.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);

/// A peer that cannot be pinged may be there or not, and its connection costs little.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// Limits and times of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Longest message accepted or sent, in bytes. Default: 4 MiB; 512 to 16 MiB - 1.
    pub message_bytes_max: usize,
    /// How long calls may go on after the server was told to stop. Default: 15 s.
    pub drain_timeout: Duration,
    /// Connections beyond this are closed, up to 32 at a time after an `overloaded` error with the id `null`: a
    /// connection left unaccepted would have its peer wait for nothing. Default: 65 536; at least 1. Where the
    /// system tells how many files the process may have open (Linux), no more than 64 fewer than
    /// that, as it is when serving begins.
    pub connections_max: usize,
    /// A connection on which a message has begun, and is not complete after this time, is closed:
    /// bytes that trickle in hold memory and a place for nothing. Measured to the second, as the
    /// next two are. Default: 30 s, in which 4 MiB take 1.1 Mbit/s.
    pub message_timeout: Duration,
    /// A connection whose peer takes none of its answers for this time is closed. Default: 30 s.
    pub unread_timeout: Duration,
    /// A connection whose peer cannot be pinged, as it never said hello, is closed after this time
    /// without a byte, unless an answer is due. Default: 10 minutes.
    pub idle_timeout: Duration,
    /// How many calls run at once; further ones wait, and then are refused with `overloaded`.
    /// Default: as many as arrive.
    pub concurrency: ConcurrencyLimit,
    /// Calls that wait, in arrival order, when as many run as may. When they are so many, those go
    /// whose time is over; then the newest is refused. Default: as many as may run, which makes an
    /// admitted call wait about as long as one call takes.
    pub queue_max: Option<usize>,
    /// Requests that the server can work on at once: the concurrency hint of its load reports.
    /// Default: the fixed limit of `concurrency`, or else the number of cores, which is right for
    /// handlers that compute. Set it to the permits of the pool, or the like, that handlers wait
    /// for. Too low only spreads calls more evenly than needed; too high hides queues.
    pub permits: Option<usize>,
    /// Who may call what. Default: everybody everything.
    pub access: Option<Access>,
    /// Connections are encrypted, and others refused. Default: not.
    #[cfg(feature = "tls")]
    pub tls: Option<rpc_core::tls::ServerTls>,
}

impl ServerConfig {
    /// Refuses what no call could be served with.
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_message_limit(self.message_bytes_max)?;
        if self.connections_max == 0 {
            let reason = "connections_max is 0, so that nobody could connect: it must be at least 1";
            return Err(ErrorKind::Config(reason.into()).into());
        }
        Ok(())
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            message_bytes_max: MESSAGE_BYTES_MAX,
            drain_timeout: Duration::from_secs(15),
            connections_max: 65_536,
            message_timeout: MESSAGE_TIMEOUT,
            unread_timeout: UNREAD_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
            concurrency: ConcurrencyLimit::Unlimited,
            queue_max: None,
            permits: None,
            access: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}
