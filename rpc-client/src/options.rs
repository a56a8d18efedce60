//! What a caller can set.

use std::time::Duration;

use crate::schedule::Schedule;
use crate::write_back;
use rpc_core::Deadline;
use rpc_core::protocol::{CALL_TIMEOUT, CONNECT_TIMEOUT, MESSAGE_BYTES_MAX};
use rpc_core::secret::Token;
use tokio::time::Instant;

/// Limits and times of a client.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The time a call has unless its options say otherwise. Default: 5 s.
    pub call_timeout: Duration,
    /// The time to open a connection, and again to exchange hellos. Default: 500 ms.
    pub connect_timeout: Duration,
    /// Longest message sent or accepted, in bytes. Default: 4 MiB; 512 to 16 MiB - 1.
    pub message_bytes_max: usize,
    /// Connections to each node. One multiplexed connection serves 1024 calls at once; more help
    /// only where a single TCP stream is the limit. Default: 1.
    pub connections_per_node: usize,
    /// Whether a call waits, within its time, for a first node when the list is empty or no node
    /// can be reached, instead of failing at once. Default: no.
    pub wait_for_node: bool,
    /// Whether measured response times are written back to the registry, where other clients find
    /// them. A client that does not takes no part in the expiry job either. Default: yes.
    pub write_back: bool,
    /// How often the response time of a node is written back at most, counting everybody's
    /// writes. Default: 1 s.
    pub write_interval: Duration,
    /// When the expiry job runs, which sets response times that nobody has measured lately back to
    /// unknown; none in a client that takes no part in it, such as one that lives for a single call. Default: every 5 s.
    pub expiry: Option<Schedule>,
    /// What to say to servers that want to know who calls. Without TLS, whoever can read what goes
    /// over the network learns it. Default: nothing.
    pub token: Option<Token>,
    /// Connections are encrypted, and servers have to show a certificate. Default: not.
    #[cfg(feature = "tls")]
    pub tls: Option<rpc_core::tls::ClientTls>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            call_timeout: CALL_TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            message_bytes_max: MESSAGE_BYTES_MAX,
            connections_per_node: 1,
            wait_for_node: false,
            write_back: true,
            write_interval: write_back::INTERVAL,
            expiry: Some(Schedule::default()),
            token: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

/// What one call asks for.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    pub(crate) timeout: Option<Duration>,
    pub(crate) key: Option<String>,
    pub(crate) idempotent: bool,
    pub(crate) explain: bool,
    pub(crate) hedge: bool,
}

impl CallOptions {
    pub(crate) const NONE: &Self = &Self { timeout: None, key: None, idempotent: false, explain: false, hedge: false };

    /// Options that ask for nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The time that the whole call has, all attempts together. A call that a handler of a server
    /// makes ends with the handler's own deadline at the latest.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The key: policies that know about keys send equal keys to the same node, and the handler
    /// sees it.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Declares that the call may run twice without harm. It is then repeated, on another node,
    /// when its node fails. Methods that the server declares idempotent need not be marked.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// How long the call has, and until when. Within a handler of a server, not longer than that has.
    pub(crate) fn time(&self, default: Duration, now: Instant) -> (Duration, Deadline) {
        let timeout = self.timeout.unwrap_or(default);
        let deadline = Deadline::after(now, timeout);
        match Deadline::current() {
            Some(rest) if rest < deadline => (rest.remaining(now), rest),
            _ => (timeout, deadline),
        }
    }

    /// Declares the call idempotent, and has it go elsewhere when its node hangs: when the answer takes
    /// longer than that node's usually do, the node is asked for a sign of life, and if there is none the
    /// call is given up there and repeated on another node, within the budget for repeats. Asking first
    /// keeps calls that merely take long from being made twice. It costs a timer a call, and needs
    /// servers that answer probes.
    #[must_use]
    pub fn hedge(mut self) -> Self {
        self.hedge = true;
        self.idempotent()
    }

    /// Records how nodes are chosen for the call; [`crate::Client::decisions`] has it afterwards.
    #[must_use]
    pub fn explain(mut self) -> Self {
        self.explain = true;
        self
    }
}
