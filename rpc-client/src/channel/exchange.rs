//! One request and its reply.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use rpc_core::protocol;
use rpc_core::wire::{EncodeError, RequestMeta, put_notification, put_request};
use serde::Serialize;
use tokio::time::Instant;

use super::{Answer, Channel, Failure, OUT_MAX};

/// A request to be sent.
pub(crate) struct Outgoing<'a, P: ?Sized> {
    pub(crate) method: &'a str,
    pub(crate) meta: RequestMeta<'a>,
    pub(crate) params: &'a P,
    pub(crate) now: Instant,
    pub(crate) deadline: Instant,
    /// Whether it may be ended when the node falls silent, to go elsewhere.
    pub(crate) movable: bool,
}

/// The reply to a request that was sent. Dropping it takes the request back: the slot is freed at once
/// and the server is told.
#[must_use = "dropped, it takes the request back"]
pub(crate) struct Exchange<'a> {
    channel: &'a Channel,
    /// None once it has ended.
    id: Option<u64>,
    /// The waker of the task that polls it is in the table: that of the poll in which it was sent.
    sent_now: bool,
}

/// Why there is no reply.
#[derive(Debug)]
pub(crate) enum ExchangeError {
    /// The request cannot be written.
    Encode(EncodeError),
    /// Too much waits already; nothing was sent.
    Crowded,
    /// It was sent, or waited to be.
    Failed(Failure),
    /// The node gave no sign of life when asked, and the call is to go elsewhere.
    Hung,
}

/// The waker of the task that awaits this.
#[inline]
pub(crate) async fn waker() -> Waker {
    poll_fn(|cx| Poll::Ready(cx.waker().clone())).await
}

impl Future for Exchange<'_> {
    type Output = Result<Answer, ExchangeError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if std::mem::take(&mut self.sent_now) {
            return Poll::Pending;
        }
        let id = self.id.expect("it is not polled after it has ended");
        let shared = &self.channel.shared;
        let mut state = shared.state.lock();
        let Some(outcome) = state.slots.take(id) else {
            state.slots.set_waker(id, cx.waker());
            return Poll::Pending;
        };
        let notify_room = shared.notify_room(&mut state);
        // The server still works for a call that was given up.
        let abandoned = matches!(outcome, Err(Failure::Deadline | Failure::Silent));
        let notify_writer = abandoned && cancel(shared, &mut state, id);
        drop(state);
        if notify_writer {
            shared.writer.notify_one();
        }
        if notify_room {
            shared.room.notify_waiters();
        }
        self.id = None;
        Poll::Ready(outcome.map_err(ExchangeError::Failed))
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let shared = &self.channel.shared;
        let mut state = shared.state.lock();
        let notify_writer = state.slots.remove(id) && cancel(shared, &mut state, id);
        if state.slots.waiting() == 0 {
            state.liveness.gave_up();
        }
        let notify_room = shared.notify_room(&mut state);
        drop(state);
        if notify_writer {
            shared.writer.notify_one();
        }
        if notify_room {
            shared.room.notify_waiters();
        }
    }
}

/// Tells the server that `id` is no longer wanted; `true` if the writer is to be notified. When the
/// buffer is full the server is left to find out by the deadline that it knows.
fn cancel(shared: &super::Shared, state: &mut super::State, id: u64) -> bool {
    if has_room(state).is_err() {
        return false;
    }
    put_notification(&mut state.out, protocol::CANCEL, &serde_json::json!({ "id": id }), usize::MAX)
        .expect("an object with a number is a valid request");
    shared.flush(state)
}

/// Whether one more frame may be written.
#[inline]
fn has_room(state: &super::State) -> Result<(), ExchangeError> {
    if state.closed {
        return Err(ExchangeError::Failed(Failure::Closed { sent: false }));
    }
    if state.out.len() >= OUT_MAX {
        return Err(ExchangeError::Crowded);
    }
    Ok(())
}

/// Writes a frame into the buffer that all calls share. The params belong to the caller: if writing
/// them panics, what was written of the frame is taken back.
#[inline]
fn unwinding<R>(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>) -> R) -> std::thread::Result<R> {
    let before = out.len();
    let put = catch_unwind(AssertUnwindSafe(|| put(out)));
    if put.is_err() {
        out.truncate(before);
    }
    put
}

impl Channel {
    /// Sends a request. `waker` is that of the task that is going to await the reply, and does so in the same poll: a
    /// call so keeps nothing of the request while it waits.
    ///
    /// # Errors
    /// If nothing was sent.
    #[inline]
    pub(crate) fn send<P: Serialize + ?Sized>(
        &self,
        outgoing: &Outgoing<'_, P>,
        waker: Waker,
    ) -> Result<Exchange<'_>, ExchangeError> {
        let Outgoing { method, meta, params, now, deadline, movable } = outgoing;
        let shared = &self.shared;
        let (id, notify_writer, notify_keeper);
        {
            let mut guard = shared.state.lock();
            let state = &mut *guard;
            has_room(state)?;
            id = state.slots.next_id().ok_or(ExchangeError::Crowded)?;
            match unwinding(&mut state.out, |out| put_request(out, id, method, meta, *params, shared.limit)) {
                Ok(put) => put.map_err(ExchangeError::Encode)?,
                Err(panic) => {
                    drop(guard);
                    resume_unwind(panic);
                }
            }
            let frame_end = state.taken + state.out.len() as u64;
            state.slots.insert(id, frame_end, *deadline, *movable, waker);
            let look_at = state.liveness.sent(*now).min(*deadline);
            notify_keeper = state.keeper_at.is_none_or(|at| look_at < at);
            if notify_keeper {
                state.keeper_at = Some(look_at);
            }
            notify_writer = shared.flush(state);
        }
        if notify_writer {
            shared.writer.notify_one();
        }
        if notify_keeper {
            shared.keeper.notify_one();
        }
        Ok(Exchange { channel: self, id: Some(id), sent_now: true })
    }

    /// Sends a notification.
    ///
    /// # Errors
    /// As a request that fails before it is sent.
    pub(crate) fn notify<P: Serialize + ?Sized>(&self, method: &str, params: &P) -> Result<(), ExchangeError> {
        let shared = &self.shared;
        let notify_writer = {
            let mut guard = shared.state.lock();
            let state = &mut *guard;
            has_room(state)?;
            match unwinding(&mut state.out, |out| put_notification(out, method, params, shared.limit)) {
                Ok(put) => put.map_err(ExchangeError::Encode)?,
                Err(panic) => {
                    drop(guard);
                    resume_unwind(panic);
                }
            }
            shared.flush(state)
        };
        if notify_writer {
            shared.writer.notify_one();
        }
        Ok(())
    }
}
