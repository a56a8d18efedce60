//! A call that waits for its permit.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rpc_core::RpcError;
use rpc_core::protocol::code;
use rpc_core::wire::{Id, Request, RequestMeta};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{Permitted, Ticket};
use crate::Method;
use crate::access::Caller;
use crate::context::Call;
use crate::handler::{BoxInvocation, Invocation};
use crate::handler_error::unfit_params;
use crate::reply::Reply;

/// A call that waits for its permit, and then runs. Until then its handler is not even made, so that
/// a call which is dropped from the queue was provably not started.
pub(super) struct Waiting {
    state: State,
}

enum State {
    Queued { ticket: Ticket, request: Box<Owned> },
    Running(BoxInvocation),
}

/// A request that has outlived the read buffer.
struct Owned {
    method: Arc<Method>,
    id: Option<Id<'static>>,
    params: Option<Box<[u8]>>,
    meta: RequestMeta<'static>,
    peer: SocketAddr,
    caller: Caller,
    received: Instant,
    /// Longest answer.
    limit: usize,
}

impl Waiting {
    /// # Errors
    /// Params that are not one JSON value: in the usual spelling nobody has looked for their end yet.
    pub(super) fn new(ticket: Ticket, method: &Arc<Method>, call: &Call<'_>, limit: usize) -> Result<Self, RpcError> {
        let request = call.request;
        if let Some(params) = request.params {
            serde_json::from_slice::<&RawValue>(params).map_err(|e| unfit_params(format!("params: {e}"), "."))?;
        }
        let request = Box::new(Owned {
            method: method.clone(),
            id: request.id.clone().map(Id::into_owned),
            params: request.params.map(Box::from),
            meta: request.meta.clone().into_owned(),
            peer: call.peer,
            caller: call.caller.clone(),
            received: call.received,
            limit,
        });
        Ok(Self { state: State::Queued { ticket, request } })
    }
}

impl Owned {
    fn start(&self) -> Result<BoxInvocation, RpcError> {
        let request = Request {
            id: self.id.clone(),
            method: Cow::Borrowed(&self.method.name),
            params: self.params.as_deref(),
            meta: self.meta.clone(),
        };
        let call = Call { request: &request, peer: self.peer, received: self.received, caller: &self.caller };
        self.method.start(&call, self.limit)
    }
}

impl Invocation for Waiting {
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>, reply: &mut Reply<'_>) -> Poll<()> {
        loop {
            match &mut self.state {
                State::Running(invocation) => return invocation.as_mut().poll(cx, reply),
                State::Queued { ticket, request } => {
                    let Some(permit) = ready!(ticket.poll(cx)) else {
                        reply
                            .refuse(&RpcError::new(code::DEADLINE_EXCEEDED, "the caller's time was over in the queue"));
                        return Poll::Ready(());
                    };
                    match request.start() {
                        Ok(invocation) => self.state = State::Running(Box::pin(Permitted { invocation, permit })),
                        Err(error) => {
                            reply.error(&error);
                            return Poll::Ready(());
                        }
                    }
                }
            }
        }
    }
}
