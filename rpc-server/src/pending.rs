//! Calls whose handlers were not ready at once.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{self, Poll};

use futures_util::future::{AbortHandle, Abortable, Aborted};
use futures_util::stream::{FuturesUnordered, StreamExt};
use rpc_core::protocol::code;
use rpc_core::wire::{Id, put_error};
use rpc_core::{Deadline, RpcError};
use tokio::time::Instant;

use crate::handler::BoxInvocation;
use crate::reply::Reply;

/// Calls in progress on one connection, driven by the connection's own task.
#[derive(Default)]
pub(crate) struct PendingCalls {
    running: FuturesUnordered<Abortable<Running>>,
    /// What may still end a call early, by a key that counts up.
    handles: HashMap<u64, Handle>,
    next_key: u64,
}

struct Handle {
    id: Option<Id<'static>>,
    deadline: Option<Deadline>,
    abort: AbortHandle,
}

/// One call; it collects its own answer.
struct Running {
    key: u64,
    id: Option<Id<'static>>,
    invocation: BoxInvocation,
    out: Vec<u8>,
    limit: usize,
}

impl Future for Running {
    type Output = (u64, Vec<u8>);

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut reply = Reply { out: &mut this.out, id: this.id.as_ref(), limit: this.limit };
        task::ready!(poll_caught(&mut this.invocation, cx, &mut reply));
        Poll::Ready((this.key, std::mem::take(&mut this.out)))
    }
}

/// Polls a handler; a panic in it becomes an `internal_error`, and the connection lives on.
#[inline]
pub(crate) fn poll_caught(
    invocation: &mut BoxInvocation,
    cx: &mut task::Context<'_>,
    reply: &mut Reply<'_>,
) -> Poll<()> {
    let before = reply.out.len();
    // After a panic the invocation is never polled again, so nothing sees what it left behind.
    match catch_unwind(AssertUnwindSafe(|| invocation.as_mut().poll(cx, reply))) {
        Ok(poll) => poll,
        Err(panic) => {
            // The result may have panicked while it was being written.
            reply.out.truncate(before);
            reply.error(&panicked(&*panic));
            Poll::Ready(())
        }
    }
}

/// The answer to a call whose handler panicked. What it said goes to the log, not to the caller.
#[cold]
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> RpcError {
    let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panic = said.unwrap_or("(no text)"), "a handler panicked");
    RpcError::internal("the handler panicked")
}

impl PendingCalls {
    pub(crate) fn len(&self) -> usize {
        self.handles.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    pub(crate) fn push(
        &mut self,
        id: Option<Id<'static>>,
        deadline: Option<Deadline>,
        invocation: BoxInvocation,
        limit: usize,
    ) {
        let key = self.next_key;
        self.next_key += 1;
        let (abort, registration) = AbortHandle::new_pair();
        self.handles.insert(key, Handle { id: id.clone(), deadline, abort });
        self.running.push(Abortable::new(Running { key, id, invocation, out: Vec::new(), limit }, registration));
    }

    /// The answer of the next call that is done; empty for a notification.
    ///
    /// To be asked even when no call is left to be answered: an aborted handler is dropped here.
    pub(crate) fn poll_done(&mut self, cx: &mut task::Context<'_>) -> Poll<Vec<u8>> {
        if self.running.is_empty() {
            return Poll::Pending;
        }
        loop {
            match task::ready!(self.running.poll_next_unpin(cx)) {
                Some(Ok((key, answer))) => {
                    self.handles.remove(&key);
                    return Poll::Ready(answer);
                }
                // It was answered when it was aborted.
                Some(Err(Aborted)) => {}
                // An empty set is asked again when a call is pushed, by the same task.
                None => return Poll::Pending,
            }
        }
    }

    /// Drops the handler of the request with this id, as its caller asked, and answers it.
    pub(crate) fn cancel(&mut self, id: &Id<'_>, out: &mut Vec<u8>, limit: usize) {
        let wanted = self.handles.iter().find(|(_, h)| h.id.as_ref() == Some(id)).map(|(key, _)| *key);
        if let Some(key) = wanted {
            self.end(key, &RpcError::new(code::CANCELLED, "the caller took the request back"), out, limit);
        }
    }

    /// Drops the handlers whose deadline is over and answers their calls.
    pub(crate) fn expire(&mut self, now: Instant, out: &mut Vec<u8>, limit: usize) {
        let over = |h: &Handle| h.deadline.is_some_and(|d| d.is_over(now));
        let keys: Vec<u64> = self.handles.iter().filter(|(_, h)| over(h)).map(|(key, _)| *key).collect();
        for key in keys {
            self.end(key, &RpcError::new(code::DEADLINE_EXCEEDED, "the caller's time is over"), out, limit);
        }
    }

    fn end(&mut self, key: u64, error: &RpcError, out: &mut Vec<u8>, limit: usize) {
        let Some(handle) = self.handles.remove(&key) else { return };
        handle.abort.abort();
        if let Some(id) = &handle.id {
            put_error(out, id, None, error, limit);
        }
    }
}
