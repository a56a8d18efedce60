//! The three tasks of a channel.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rpc_core::protocol::{self, code};
use rpc_core::wire::{
    Frame, FrameBuffer, Id, Incoming, Request, give_body, parse, peek_id, put_error, put_request, put_result, take_body,
};
use rpc_core::{LoadReport, RpcError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::liveness::Verdict;
use super::slots::Answer;
use super::{CLOSED, Shared, State, Status};

/// Pings have ids of their own, above all ids of calls (which stay below it for centuries).
const PING_IDS: u64 = 1 << 52;

/// Silence after which memory is freed. Nothing wakes up for it: the next look, at the latest the one that
/// sends a ping, does it.
const RELEASE_AFTER: Duration = Duration::from_secs(2);

/// After a write has failed, the reader has so long to end the connection by itself.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Bytes of answers that may wait for a node to take them. It asks little, and its own buffers hold as much.
const ANSWERS_MAX: usize = 1024 * 1024;

/// A longer id of what a node asks is not repeated to it.
const ID_BYTES_MAX: usize = 128;

/// After so many bytes in a row the reader lets others have the thread: the keeper, which ends calls at their deadlines,
/// the writer and the callers.
const TURN_BYTES: usize = 256 * 1024;

/// A write buffer larger than this is not kept.
const KEEP_BYTES: usize = 1024 * 1024;

/// Reads until the connection ends.
pub(super) async fn read(shared: Arc<Shared>, mut half: impl AsyncRead + Unpin, mut input: FrameBuffer) {
    let mut wake = Vec::new();
    let mut turn = 0;
    loop {
        // First what came together with the answer to hello.
        if let Err(reason) = deliver(&shared, &mut input, &mut wake) {
            return shared.close(&reason);
        }
        wake.drain(..).for_each(Waker::wake);
        if turn >= TURN_BYTES {
            turn = 0;
            tokio::task::yield_now().await;
        }
        match poll_fn(|cx| poll_read(&mut half, &mut input, &mut turn, cx)).await {
            Ok(0) if input.is_mid_message() => return shared.close("closed by the node in the middle of a message"),
            Ok(0) => return shared.close("closed by the node"),
            Ok(n) => {
                input.filled(n);
                turn += n;
            }
            Err(error) => return shared.close(&error.to_string()),
        }
    }
}

/// Reads once. While there is nothing to read, the buffer's memory is lent to others, as is the thread: `turn`, the
/// bytes read in a row, begins anew.
fn poll_read(
    half: &mut (impl AsyncRead + Unpin),
    input: &mut FrameBuffer,
    turn: &mut usize,
    cx: &mut Context<'_>,
) -> Poll<std::io::Result<usize>> {
    let mut room = ReadBuf::new(input.room());
    let read = Pin::new(half).poll_read(cx, &mut room);
    let n = room.filled().len();
    if read.is_pending() {
        input.rest();
        *turn = 0;
    }
    read.map_ok(|()| n)
}

/// Hands over all messages of a read under one lock.
pub(super) fn deliver(shared: &Shared, input: &mut FrameBuffer, wake: &mut Vec<Waker>) -> Result<(), String> {
    let now = Instant::now();
    let mut guard = shared.state.lock();
    let state = &mut *guard;
    loop {
        match input.next_frame() {
            Ok(Some(Frame::Message(message))) => incoming(shared, state, message, now, wake)?,
            Ok(Some(Frame::Oversized { size, head })) => oversized(state, size, head, shared.limit, now, wake),
            Ok(None) => break,
            Err(error) => return Err(error.to_string()),
        }
    }
    let busy = state.slots.waiting() > 0;
    state.liveness.received(now, busy);
    let notify = !state.out.is_empty() && shared.flush(state);
    // Under the lock, as the keeper's opposite: what came last is what holds.
    if std::mem::take(&mut state.suspect) {
        state.evicting = false;
        shared.set_status(Status::Open);
    }
    drop(guard);
    if notify {
        shared.writer.notify_one();
    }
    Ok(())
}

fn incoming(
    shared: &Shared,
    state: &mut State,
    message: &[u8],
    now: Instant,
    wake: &mut Vec<Waker>,
) -> Result<(), String> {
    match parse(message) {
        Incoming::Response(response) => {
            let ok = response.body.is_ok();
            let (Ok(text) | Err(text)) = response.body;
            if let Some(id) = response.id {
                reply(state, id, text, Head { ok, load: response.load, now }, wake);
            }
        }
        Incoming::Request(request) => asked(shared, state, &request)?,
        Incoming::Batch(_) => return Err("the node sent a batch that nobody asked for".into()),
        Incoming::Invalid(invalid) => return Err(format!("the node sent no valid message: {}", invalid.error.message)),
    }
    Ok(())
}

/// What a reply says besides its body.
#[derive(Clone, Copy)]
struct Head {
    ok: bool,
    load: Option<LoadReport>,
    now: Instant,
}

fn reply(state: &mut State, id: u64, text: &[u8], head: Head, wake: &mut Vec<Waker>) {
    let mut body = take_body();
    body.extend_from_slice(text);
    match state.slots.deliver(id, Answer { body, ok: head.ok, received: head.now, load: head.load }) {
        Ok(waker) => wake.extend(waker),
        Err(late) => {
            if id < PING_IDS {
                tracing::trace!(id, "a reply that nobody waits for any more");
            }
            give_body(late.body);
        }
    }
}

/// A reply longer than this side accepts fails its call, not the connection.
fn oversized(state: &mut State, size: usize, head: &[u8], limit: usize, now: Instant, wake: &mut Vec<Waker>) {
    let Some(id) = peek_id(head) else { return };
    let error = RpcError::new(code::TOO_LARGE, format!("the reply has {size} bytes, the limit is {limit}"));
    let text = serde_json::to_vec(&error).expect("a number and a string always serialise");
    reply(state, id, &text, Head { ok: false, load: None, now }, wake);
}

/// What a server asks of its client.
fn asked(shared: &Shared, state: &mut State, request: &Request<'_>) -> Result<(), String> {
    if request.method == protocol::GOAWAY {
        shared.set_status(Status::Leaving);
        return Ok(());
    }
    let Some(id) = &request.id else { return Ok(()) };
    if let Id::Other(text) = id
        && text.len() > ID_BYTES_MAX
    {
        return Err(format!("the node asked something with an id of {} bytes", text.len()));
    }
    if state.answers >= ANSWERS_MAX {
        return Err("the node takes no answers".into());
    }
    let before = state.out.len();
    if request.method == protocol::PING {
        put_result(&mut state.out, id, None, &(), usize::MAX).expect("`null` fits");
    } else {
        let error = RpcError::new(code::METHOD_NOT_FOUND, "a client has no methods");
        put_error(&mut state.out, id, None, &error, usize::MAX);
    }
    state.answers += state.out.len() - before;
    Ok(())
}

/// Writes whatever is in the buffer, for everybody at once.
pub(super) async fn write(shared: Arc<Shared>) {
    loop {
        shared.writer.notified().await;
        loop {
            // Let the other ready tasks add their requests first. Without this the multi-thread
            // runtime runs this task right after the one that woke it, and nearly every request
            // costs a system call of its own: 1.7 to 3 times fewer calls a second were measured.
            tokio::task::yield_now().await;
            let (mut half, mut batch) = {
                let mut guard = shared.state.lock();
                let state = &mut *guard;
                if state.closed {
                    return;
                }
                if state.out.is_empty() {
                    state.writing = false;
                    break;
                }
                let batch = std::mem::replace(&mut state.out, std::mem::take(&mut state.idle_out));
                state.taken += batch.len() as u64;
                state.answers = 0;
                let Some(half) = state.half.take() else { return };
                (half, batch)
            };
            if let Err(error) = write_all(&shared, &mut half, &batch).await {
                // What the node sent before, answers and why it leaves, is still to be read. The reader comes to the
                // end of it and closes the connection; meanwhile nothing more is sent.
                if !shared.state.lock().closed {
                    tokio::time::sleep(LAST_WORDS).await;
                }
                return shared.close(&error.to_string());
            }
            batch.clear();
            if batch.capacity() > KEEP_BYTES {
                batch = Vec::new();
            }
            let crowded = {
                let mut state = shared.state.lock();
                state.half = Some(half);
                state.idle_out = batch;
                shared.notify_room(&mut state)
            };
            if crowded {
                shared.room.notify_waiters();
            }
        }
    }
}

async fn write_all(
    shared: &Shared,
    half: &mut (impl AsyncWrite + Unpin + ?Sized),
    mut bytes: &[u8],
) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let n = poll_fn(|cx| offer(shared, half, bytes, cx)).await?;
        if n == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[n..];
    }
    poll_fn(|cx| match Pin::new(&mut *half).poll_flush(cx) {
        Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(())),
    })
    .await
}

/// Offers bytes to the socket, counting them before it can have them: whoever closes the connection at this moment either
/// counts them as sent as well, or comes first and nothing is written.
fn offer(
    shared: &Shared,
    half: &mut (impl AsyncWrite + Unpin + ?Sized),
    bytes: &[u8],
    cx: &mut Context<'_>,
) -> Poll<std::io::Result<usize>> {
    let offered = bytes.len() as u64;
    if shared.written.fetch_add(offered, Ordering::AcqRel) & CLOSED != 0 {
        return Poll::Ready(Err(std::io::ErrorKind::NotConnected.into()));
    }
    let polled = Pin::new(half).poll_write(cx, bytes);
    let taken = match &polled {
        Poll::Ready(Ok(n)) => *n as u64,
        Poll::Ready(Err(_)) | Poll::Pending => 0,
    };
    shared.written.fetch_sub(offered - taken, Ordering::AcqRel);
    polled
}

/// Ends calls at their deadlines and watches for silence: one timer for all calls.
pub(super) async fn keep(shared: Arc<Shared>) {
    loop {
        let mut wake = Vec::new();
        let (at, verdict, notify) = {
            let mut guard = shared.state.lock();
            let state = &mut *guard;
            if state.closed {
                return;
            }
            look(&shared, state, &mut wake)
        };
        wake.into_iter().for_each(Waker::wake);
        if notify {
            shared.writer.notify_one();
        }
        match verdict {
            Verdict::Dead => return shared.close("no sign of life"),
            Verdict::Fine | Verdict::Ping | Verdict::Suspect => {}
        }
        tokio::select! {
            () = tokio::time::sleep_until(at) => {}
            () = shared.keeper.notified() => {}
        }
    }
}

/// When to look again, what the silence means, and whether the writer is to be notified.
pub(super) fn look(shared: &Shared, state: &mut State, wake: &mut Vec<Waker>) -> (Instant, Verdict, bool) {
    let now = Instant::now();
    let deadline = state.slots.expire(now, wake);
    if state.slots.waiting() == 0 {
        state.liveness.gave_up();
        if state.liveness.silence(now) >= RELEASE_AFTER {
            Shared::release(state);
        }
    }
    let verdict = if shared.pings { state.liveness.verdict(now) } else { Verdict::Fine };
    let mut notify = false;
    if verdict == Verdict::Ping {
        state.pings_sent += 1;
        let id = PING_IDS + state.pings_sent;
        put_request(&mut state.out, id, protocol::PING, &Default::default(), &(), usize::MAX)
            .expect("a request without params fits");
        notify = shared.flush(state);
    }
    if verdict == Verdict::Suspect {
        state.suspect = true;
        shared.set_status(Status::Suspect);
        if state.evicting {
            state.slots.fail_movable(wake);
        }
    }
    // A peer that cannot be pinged has deadlines only; look once a minute to keep the code simple.
    let check = if shared.pings { state.liveness.next_check(now) } else { now + super::liveness::IDLE_PING * 6 };
    let at = deadline.map_or(check, |deadline| deadline.min(check));
    state.keeper_at = Some(at);
    (at, verdict, notify)
}
