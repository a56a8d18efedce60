//! Handlers that compute, run where they cannot hold up their neighbours.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::{AbortHandle, Abortable};
use rpc_core::protocol::code;
use rpc_core::wire::Id;
use rpc_core::{Deadline, RpcError};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use crate::handler::{BoxInvocation, Invocation};
use crate::load::Account;
use crate::pending::{panicked, poll_caught};
use crate::reply::Reply;

/// A call on the blocking pool. Dropping it drops the handler at its next await.
struct Computing {
    task: JoinHandle<Vec<u8>>,
    abort: AbortHandle,
}

/// Moves a call to the blocking pool. It writes its answer, to the request `id`, there. While others
/// occupy the pool it waits, and does not run if its time is over by then.
pub(crate) fn on_blocking_pool(
    mut invocation: BoxInvocation,
    id: Option<Id<'static>>,
    deadline: Option<Deadline>,
    limit: usize,
) -> BoxInvocation {
    let runtime = Handle::current();
    let (abort, registration) = AbortHandle::new_pair();
    let task = spawn_blocking(move || {
        let (mut answer, mut waited) = (Vec::new(), true);
        let run = poll_fn(|cx| {
            let mut account = Account::None;
            let mut reply = Reply { out: &mut answer, id: id.as_ref(), limit, account: &mut account };
            if waited && deadline.is_some_and(|d| d.is_over(Instant::now())) {
                reply.error(&RpcError::new(code::DEADLINE_EXCEEDED, "the caller's time was over before it could run"));
                return Poll::Ready(());
            }
            waited = false;
            poll_caught(&mut invocation, cx, &mut reply)
        });
        // Aborted: nobody waits for the answer.
        let _ = runtime.block_on(Abortable::new(run, registration));
        answer
    });
    Box::pin(Computing { task, abort })
}

impl Invocation for Computing {
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>, reply: &mut Reply<'_>) -> Poll<()> {
        match ready!(Pin::new(&mut self.task).poll(cx)) {
            Ok(answer) => {
                reply.account.end(true);
                reply.out.extend_from_slice(&answer);
            }
            Err(error) => match error.try_into_panic() {
                Ok(panic) => reply.error(&panicked(&*panic)),
                Err(_) => reply.error(&RpcError::internal("the server is stopping")),
            },
        }
        Poll::Ready(())
    }
}

impl Drop for Computing {
    fn drop(&mut self) {
        self.abort.abort();
    }
}
