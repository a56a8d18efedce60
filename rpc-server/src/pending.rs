//! Calls whose handlers were not ready at once.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use rpc_core::protocol::code;
use rpc_core::wire::{Id, put_error};
use rpc_core::{Deadline, RpcError};
use tokio::time::Instant;

use crate::handler::{BoxInvocation, Unwanted};
use crate::load::Account;
use crate::reply::Reply;

/// Calls in progress on one connection, driven by the connection's own task.
///
/// Each has a slot with a waker that outlives it, so that a call costs no allocation here. Without
/// calls, nothing is allocated at all.
#[derive(Default)]
pub(crate) struct PendingCalls {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// None before the first call.
    woken: Option<Arc<Woken>>,
    /// Slots to be polled in this turn.
    turn: VecDeque<usize>,
}

struct Slot {
    call: Option<Running>,
    signal: Arc<Signal>,
    /// The same, as a waker.
    waker: Waker,
}

/// One call, and what may end it early.
struct Running {
    id: Option<Id<'static>>,
    deadline: Option<Deadline>,
    invocation: BoxInvocation,
    account: Account,
}

/// The slots whose wakers were called.
#[derive(Default)]
struct Woken {
    slots: Mutex<Vec<usize>>,
    task: AtomicWaker,
}

/// Wakes one slot.
struct Signal {
    slot: usize,
    /// It is among the woken slots already.
    given: AtomicBool,
    woken: Arc<Woken>,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.given.swap(true, Ordering::AcqRel) {
            self.woken.slots.lock().push(self.slot);
            self.woken.task.wake();
        }
    }
}

/// Polls a handler; a panic in it becomes an `internal_error`, and the connection lives on.
#[inline]
pub(crate) fn poll_caught(invocation: &mut BoxInvocation, cx: &mut Context<'_>, reply: &mut Reply<'_>) -> Poll<()> {
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
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a call. It is polled by the next [`PendingCalls::poll`].
    pub(crate) fn push(
        &mut self,
        id: Option<Id<'static>>,
        deadline: Option<Deadline>,
        invocation: BoxInvocation,
        account: Account,
    ) {
        let call = Some(Running { id, deadline, invocation, account });
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at].call = call;
                at
            }
            None => {
                let slot = self.slots.len();
                let woken = self.woken.get_or_insert_default().clone();
                let signal = Arc::new(Signal { slot, given: AtomicBool::new(false), woken });
                self.slots.push(Slot { call, waker: signal.clone().into(), signal });
                slot
            }
        };
        self.slots[at].waker.wake_by_ref();
    }

    /// Polls the calls that were woken; those that are done write their answers to `out`, until it
    /// is `full` bytes long. `true` if there are more to poll.
    pub(crate) fn poll(&mut self, cx: &Context<'_>, out: &mut Vec<u8>, full: usize, limit: usize) -> bool {
        let Some(woken) = self.woken.as_ref().filter(|_| self.slots.len() > self.free.len()) else { return false };
        // Registering first closes the gap between looking and sleeping.
        woken.task.register(cx.waker());
        // What is woken from now on waits for the next turn, so that a turn ends.
        self.turn.extend(woken.slots.lock().drain(..));
        while out.len() < full {
            let Some(at) = self.turn.pop_front() else { return false };
            let slot = &mut self.slots[at];
            // Before the poll: a wake-up during it counts for the next one.
            slot.signal.given.store(false, Ordering::Release);
            // The slot may have been woken by what an earlier call left behind.
            let Some(call) = &mut slot.call else { continue };
            let mut reply = Reply { out, id: call.id.as_ref(), limit, account: &mut call.account };
            if poll_caught(&mut call.invocation, &mut Context::from_waker(&slot.waker), &mut reply).is_ready() {
                slot.call = None;
                self.free.push(at);
            }
        }
        !self.turn.is_empty()
    }

    /// Drops the handler of the request with this id, as its caller asked, and answers it.
    pub(crate) fn cancel(&mut self, id: &Id<'_>, out: &mut Vec<u8>, limit: usize) {
        let wanted = |call: &Running| call.id.as_ref() == Some(id);
        let error = RpcError::new(code::CANCELLED, "the caller took the request back");
        match self.slots.iter().position(|slot| slot.call.as_ref().is_some_and(wanted)) {
            Some(at) => self.end(at, &error, out, limit),
            None => self.end_parts(&|part, _| part == Some(id), &error),
        }
    }

    /// Drops the handlers whose deadline is over and answers their calls.
    pub(crate) fn expire(&mut self, now: Instant, out: &mut Vec<u8>, limit: usize) {
        let error = RpcError::new(code::DEADLINE_EXCEEDED, "the caller's time is over");
        for at in 0..self.slots.len() {
            let deadline = self.slots[at].call.as_ref().and_then(|call| call.deadline);
            if deadline.is_some_and(|d| d.is_over(now)) {
                self.end(at, &error, out, limit);
            }
        }
        self.end_parts(&|_, deadline| deadline.is_some_and(|d| d.is_over(now)), &error);
    }

    /// Ends calls in batches, which have neither id nor deadline as a whole.
    fn end_parts(&mut self, unwanted: &Unwanted<'_>, error: &RpcError) {
        for slot in &mut self.slots {
            if let Some(call) = &mut slot.call
                && call.id.is_none()
                && call.deadline.is_none()
                && call.invocation.as_mut().end_parts(unwanted, error)
            {
                slot.waker.wake_by_ref();
            }
        }
    }

    fn end(&mut self, at: usize, error: &RpcError, out: &mut Vec<u8>, limit: usize) {
        let Some(call) = self.slots[at].call.take() else { return };
        self.free.push(at);
        if let Some(id) = &call.id {
            put_error(out, id, None, error, limit);
        }
    }

    /// Gives the memory back if no call is in progress.
    pub(crate) fn release(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }
}
