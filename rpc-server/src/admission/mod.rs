//! A limit to how many calls a server runs at once.
//!
//! A permit is taken before a handler is started and given back when it has ended, however that is.
//! Calls that find none wait in a short queue, not started; beyond that they are refused with
//! `overloaded`, which says when to come back. Without a limit nothing of this exists.

mod come_back;
mod gate;
mod gradient;
mod limit;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod waiting;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use rpc_core::protocol::code;
use rpc_core::{Deadline, RpcError};
use tokio::time::Instant;

use self::gate::{Decided, Entered, Gate, Refusal, Verdict};
pub use self::limit::ConcurrencyLimit;
use self::limit::Limit;
use self::waiting::Waiting;
use crate::Method;
use crate::context::Call;
use crate::handler::{BoxInvocation, Invocation};
use crate::reply::Reply;

/// The calls of one server that run or wait, shared by its connections.
#[derive(Debug)]
pub(crate) struct Admission(Mutex<Gate<Arc<Turn>>>);

/// The right to run one call, given back when dropped.
#[derive(Debug)]
struct Permit {
    admission: Arc<Admission>,
    began: Instant,
    answered: bool,
}

/// A place in the queue. Dropped, it is left.
#[derive(Debug)]
struct Ticket {
    admission: Arc<Admission>,
    number: u64,
    turn: Arc<Turn>,
}

/// What a waiting call is told: set once, under the gate's lock, and taken by its ticket.
#[derive(Debug, Default)]
struct Turn {
    verdict: AtomicU8,
    waker: AtomicWaker,
}

/// Values of [`Turn::verdict`].
mod turn {
    pub(super) const WAITING: u8 = 0;
    pub(super) const RUN: u8 = 1;
    pub(super) const EXPIRED: u8 = 2;
    /// The verdict was taken, and with it the duty to leave.
    pub(super) const TAKEN: u8 = 3;
}

/// What a call gets.
enum Place {
    Permit(Permit),
    Ticket(Ticket),
}

impl Admission {
    /// None if calls are not limited.
    pub(crate) fn new(limit: ConcurrencyLimit, queue_max: Option<usize>) -> Option<Arc<Self>> {
        let limit = Limit::new(limit)?;
        Some(Arc::new(Self(Mutex::new(Gate::new(limit, queue_max)))))
    }

    /// Starts a call, or has it wait, or says that there is no room.
    pub(crate) fn start(
        self: &Arc<Self>,
        method: &Arc<Method>,
        call: &Call<'_>,
        limit: usize,
    ) -> Result<BoxInvocation, RpcError> {
        match self.enter(call.received, call.deadline())? {
            Place::Permit(permit) => Ok(Box::pin(Permitted { invocation: method.start(call, limit)?, permit })),
            Place::Ticket(ticket) => Ok(Box::pin(Waiting::new(ticket, method, call, limit)?)),
        }
    }

    /// Whether calls wait for others to end.
    pub(crate) fn is_crowded(&self) -> bool {
        self.0.lock().is_crowded()
    }

    /// Calls that were refused so far.
    pub(crate) fn refused(&self) -> u64 {
        self.0.lock().refused()
    }

    fn enter(self: &Arc<Self>, now: Instant, deadline: Option<Deadline>) -> Result<Place, RpcError> {
        let mut turn = None;
        let make = || turn.insert(Arc::new(Turn::default())).clone();
        match self.step(|gate, decided| gate.enter(now, deadline, decided, make)) {
            Entered::Run => Ok(Place::Permit(Permit { admission: self.clone(), began: now, answered: false })),
            Entered::Wait(number) => {
                let turn = turn.unwrap_or_default();
                Ok(Place::Ticket(Ticket { admission: self.clone(), number, turn }))
            }
            Entered::Refuse(refusal) => Err(overloaded(refusal)),
        }
    }

    /// Changes the gate and tells those who waited for it.
    fn step<R>(&self, change: impl FnOnce(&mut Gate<Arc<Turn>>, &mut Decided<Arc<Turn>>) -> R) -> R {
        let mut decided = Vec::new();
        let result = {
            let mut gate = self.0.lock();
            let result = change(&mut gate, &mut decided);
            for (turn, verdict) in &decided {
                let told = if *verdict == Verdict::Run { turn::RUN } else { turn::EXPIRED };
                turn.verdict.store(told, Ordering::Release);
            }
            result
        };
        decided.into_iter().for_each(|(turn, _)| turn.waker.wake());
        result
    }
}

#[cold]
fn overloaded(refusal: Refusal) -> RpcError {
    let Refusal { running, queued, retry_after } = refusal;
    let ms = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
    RpcError::new(code::OVERLOADED, format!("{running} calls run and {queued} wait; come back in {ms} ms"))
        .with_data(&serde_json::json!({ "retry_after_ms": ms, "running": running, "queued": queued }))
}

impl Drop for Permit {
    fn drop(&mut self) {
        let (began, answered) = (self.began, self.answered);
        let now = Instant::now();
        self.admission.step(|gate, decided| gate.leave(now, began, answered, decided));
    }
}

impl Ticket {
    /// Waits for the verdict: a permit, or none because the caller's time is over. Not to be polled
    /// again after that.
    fn poll(&self, cx: &Context<'_>) -> Poll<Option<Permit>> {
        // Registering first closes the gap between looking and sleeping.
        self.turn.waker.register(cx.waker());
        match self.turn.verdict.load(Ordering::Acquire) {
            turn::WAITING => Poll::Pending,
            turn::RUN => {
                self.turn.verdict.store(turn::TAKEN, Ordering::Relaxed);
                let began = Instant::now();
                Poll::Ready(Some(Permit { admission: self.admission.clone(), began, answered: false }))
            }
            _ => Poll::Ready(None),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let (number, turn) = (self.number, self.turn.clone());
        self.admission.step(|gate, decided| match turn.verdict.load(Ordering::Relaxed) {
            turn::WAITING => gate.give_up(number),
            // It was this call's turn, and nobody is left to take it.
            turn::RUN => {
                let now = Instant::now();
                gate.leave(now, now, false, decided);
            }
            _ => {}
        });
    }
}

/// A call that runs with a permit.
struct Permitted {
    // Dropped before the permit is given back.
    invocation: BoxInvocation,
    permit: Permit,
}

impl Invocation for Permitted {
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>, reply: &mut Reply<'_>) -> Poll<()> {
        let poll = self.invocation.as_mut().poll(cx, reply);
        self.permit.answered |= poll.is_ready();
        poll
    }
}
