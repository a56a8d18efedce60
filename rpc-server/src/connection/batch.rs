//! Batches: several requests in one message, answered by one message.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use rpc_core::load::method_hash;
use rpc_core::protocol::{self, LENGTH_BYTES, code};
use rpc_core::wire::{Id, Incoming, begin_frame, end_frame, parse_element, put_error};
use rpc_core::{Deadline, RpcError};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::access::Caller;
use crate::context::Call;
use crate::handler::{BoxInvocation, Invocation, Unwanted};
use crate::load::{Account, Running};
use crate::pending::poll_caught;
use crate::reply::Reply;
use crate::server::Shared;

/// The requests of a batch, run at the same time.
struct Batch {
    elements: Vec<Element>,
}

/// One request of a batch, or its answer if that is known at once.
struct Element {
    id: Option<Id<'static>>,
    invocation: Option<BoxInvocation>,
    deadline: Option<Deadline>,
    /// Its framed answer, empty for a notification.
    answer: Vec<u8>,
    account: Account,
}

pub(super) fn start(
    elements: &[&RawValue],
    shared: &Shared,
    peer: SocketAddr,
    caller: &Caller,
    now: Instant,
    draining: bool,
) -> BoxInvocation {
    let elements = elements.iter().map(|e| element(parse_element(e), shared, peer, caller, now, draining)).collect();
    Box::pin(Batch { elements })
}

fn element(
    incoming: Incoming<'_>,
    shared: &Shared,
    peer: SocketAddr,
    caller: &Caller,
    now: Instant,
    draining: bool,
) -> Element {
    let limit = shared.config.message_bytes_max;
    let mut answer = Vec::new();
    let request = match incoming {
        Incoming::Request(request) => request,
        Incoming::Invalid(invalid) => {
            put_error(&mut answer, &invalid.id, None, &invalid.error, limit);
            return Element::answered(answer);
        }
        Incoming::Response(_) | Incoming::Batch(_) => {
            let error = RpcError::new(code::INVALID_REQUEST, "only requests belong in a batch");
            put_error(&mut answer, &Id::NULL, None, &error, limit);
            return Element::answered(answer);
        }
    };
    let id = request.id.clone().map(Id::into_owned);
    let mut account = Account::None;
    let mut reply = Reply { out: &mut answer, id: id.as_ref(), limit, account: &mut account };
    let (mut invocation, mut deadline) = (None, None);
    if request.method.starts_with(protocol::RESERVED_PREFIX) {
        reply.outcome(shared.reserved(&request, caller));
    } else {
        let call = Call { request: &request, peer, received: now, caller };
        match shared.start(&call, draining) {
            Ok(started) => {
                invocation = Some(started);
                deadline = call.deadline();
                account = Account::Running(Running::begin(&shared.load, now, method_hash(&request.method), false));
            }
            Err(error) => reply.error(&error),
        }
    }
    Element { id, invocation, deadline, answer, account }
}

impl Element {
    fn answered(answer: Vec<u8>) -> Self {
        Self { id: None, invocation: None, deadline: None, answer, account: Account::None }
    }
}

impl Invocation for Batch {
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>, reply: &mut Reply<'_>) -> Poll<()> {
        let mut waiting = false;
        for element in &mut self.elements {
            let Some(invocation) = &mut element.invocation else { continue };
            let mut own = Reply {
                out: &mut element.answer,
                id: element.id.as_ref(),
                limit: reply.limit,
                account: &mut element.account,
            };
            match poll_caught(invocation, cx, &mut own) {
                Poll::Ready(()) => element.invocation = None,
                Poll::Pending => waiting = true,
            }
        }
        if waiting {
            return Poll::Pending;
        }
        self.write(reply);
        Poll::Ready(())
    }

    fn end_parts(mut self: Pin<&mut Self>, unwanted: &Unwanted<'_>, error: &RpcError) -> bool {
        let mut any = false;
        for element in self.elements.iter_mut().filter(|e| e.invocation.is_some()) {
            if unwanted(element.id.as_ref(), element.deadline) {
                any = true;
                element.invocation = None;
                element.account = Account::None;
                if let Some(id) = &element.id {
                    put_error(&mut element.answer, id, None, error, usize::MAX);
                }
            }
        }
        any
    }
}

impl Batch {
    /// Writes all answers as one message; nothing if there were notifications only.
    fn write(&self, reply: &mut Reply<'_>) {
        let answers: Vec<&[u8]> = self.elements.iter().filter_map(|e| e.answer.get(LENGTH_BYTES..)).collect();
        if answers.is_empty() {
            return;
        }
        let start = begin_frame(reply.out);
        reply.out.push(b'[');
        reply.out.extend_from_slice(&answers.join(&b','));
        reply.out.push(b']');
        if let Err(error) = end_frame(reply.out, start, reply.limit) {
            let error = RpcError::new(code::TOO_LARGE, format!("the answers to the batch: {error}"));
            put_error(reply.out, &Id::NULL, None, &error, reply.limit);
        }
    }
}
