//! What a handler can know about the call besides its params.

use std::net::SocketAddr;
use std::sync::Arc;

use rpc_core::Deadline;
use rpc_core::wire::Request;
use tokio::time::Instant;

use crate::access::Caller;

/// What a handler can know about the call besides its params. The handler's future is dropped when
/// the caller takes the call back, its connection closes, or the deadline passes.
#[derive(Clone, Debug)]
pub struct Context {
    /// The caller's socket address.
    pub peer: SocketAddr,
    /// Who the caller is, if it had to say so: the name of its token or the name in its certificate.
    pub identity: Option<Arc<str>>,
    /// When the caller stops waiting, if it said so. Calls that the handler makes end by then too; a
    /// task that it spawns is on its own.
    pub deadline: Option<Deadline>,
    /// The caller's key, if it gave one.
    pub key: Option<String>,
    /// 0 for the first attempt, 1 for the first repetition and so on.
    pub attempt: u32,
    /// W3C trace context, if the caller sent one.
    pub traceparent: Option<String>,
}

impl Context {
    /// What is left of the time that the caller waits; `None` if it did not say how long.
    pub fn remaining(&self) -> Option<std::time::Duration> {
        self.deadline.map(|deadline| deadline.remaining(Instant::now()))
    }
}

/// A request together with where and when it arrived.
pub(crate) struct Call<'a> {
    pub(crate) request: &'a Request<'a>,
    pub(crate) peer: SocketAddr,
    pub(crate) received: Instant,
    pub(crate) caller: &'a Caller,
}

impl Call<'_> {
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        let timeout = std::time::Duration::from_millis(self.request.meta.timeout_ms?);
        Some(Deadline::after(self.received, timeout))
    }

    pub(crate) fn context(&self) -> Context {
        let meta = &self.request.meta;
        Context {
            peer: self.peer,
            identity: self.caller.name().cloned(),
            deadline: self.deadline(),
            key: meta.key.as_deref().map(str::to_owned),
            attempt: meta.attempt,
            traceparent: meta.traceparent.as_deref().map(str::to_owned),
        }
    }
}
