//! One socket, driven by one task.
//!
//! The task reads, polls the handler of every complete request in place, and writes all answers of
//! a read with one system call. Handlers that are not ready at once move to [`PendingCalls`],
//! which the same task drives.

mod batch;
mod requests;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{self, Poll};

use rpc_core::protocol::{self, IN_FLIGHT_MAX};
use rpc_core::wire::{Frame, FrameBuffer, give_write_buffer, put_notification, take_write_buffer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::access::{AUTHENTICATE_WITHIN, Caller, STRANGER_BYTES_MAX};
use crate::ends::EndKind;
use crate::links::{LinkGuard, signal};
use crate::load::{Account, Tally};
use crate::pending::PendingCalls;
use crate::server::Shared;

/// Answers waiting beyond this are written before more requests are taken: a long batch starts
/// flowing, and a peer that does not read cannot make the server's memory grow.
const OUT_HIGH: usize = 64 * 1024;

/// Calls in progress beyond which no more are taken from the connection. Our client never has more
/// than half of them: a connection that is full from its side is still read, so that pings and
/// cancellations are heard.
const CALLS_MAX: usize = 2 * IN_FLIGHT_MAX;

pub(crate) struct Connection<Io> {
    io: Io,
    /// Whether it is broken, which reading does not tell once the peer has closed its side.
    is_broken: fn(&Io) -> bool,
    peer: SocketAddr,
    caller: Caller,
    shared: Arc<Shared>,
    link: LinkGuard,
    input: FrameBuffer,
    /// A new limit for messages, before the next.
    input_limit: Option<usize>,
    out: Vec<u8>,
    /// How much of `out` is written.
    written: usize,
    /// Reads that completed a message, and writes, modulo 2^31.
    reads: u32,
    writes: u32,
    pending: PendingCalls,
    /// Requests answered in place since the last read.
    at_once: Account,
    greeted: bool,
    /// The peer wants load reports.
    wants_load: bool,
    /// `rpc.goaway` was sent, or would have been to a peer that said hello.
    leaving: bool,
    /// The peer has closed its side. One that never said hello may have closed only that side, and
    /// still gets its answers.
    eof: bool,
    /// Number of the last ping, which makes its id.
    pings: u64,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("closed by the peer")]
    ByPeer,
    #[error("closed by the peer in the middle of a message")]
    MidMessage,
    #[error("closed")]
    ByUs,
    #[error("no sign of life")]
    Silent,
    #[error("not authenticated within {AUTHENTICATE_WITHIN} s")]
    Unauthenticated,
    #[error("a message was begun and not completed in time")]
    SlowMessage,
    #[error("the peer takes none of its answers")]
    Unread,
    #[error(transparent)]
    NotAFrame(#[from] rpc_core::wire::NotAFrame),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl Ended {
    /// What is told together.
    fn kind(&self) -> EndKind {
        match self {
            Self::ByPeer | Self::MidMessage | Self::ByUs | Self::Io(_) => EndKind::Broken,
            Self::Silent => EndKind::Silent,
            Self::Unauthenticated => EndKind::Unauthenticated,
            Self::SlowMessage => EndKind::SlowMessage,
            Self::Unread => EndKind::Unread,
            Self::NotAFrame(_) => EndKind::NotAFrame,
        }
    }
}

/// Serves until the connection ends, and logs why it did. A future by itself, since an async function
/// around it would hold it several times over.
impl<Io: AsyncRead + AsyncWrite + Unpin> Future for Connection<Io> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.out.capacity() == 0 {
            this.out = take_write_buffer();
        }
        let advanced = this.advance(cx);
        if this.out.is_empty() {
            give_write_buffer(std::mem::take(&mut this.out));
        }
        let ended = task::ready!(advanced).err().unwrap_or(Ended::ByUs);
        let peer = this.peer;
        match ended {
            Ended::ByPeer | Ended::MidMessage | Ended::ByUs => tracing::debug!(%peer, "{ended}"),
            _ => this.shared.ends.tell(peer, ended.kind(), &ended),
        }
        Poll::Ready(())
    }
}

impl<Io: AsyncRead + AsyncWrite + Unpin> Connection<Io> {
    /// `certificate` has the names in the peer's certificate, if it had to show one.
    pub(crate) fn new(
        io: Io,
        is_broken: fn(&Io) -> bool,
        peer: SocketAddr,
        certificate: &[String],
        shared: Arc<Shared>,
        link: LinkGuard,
    ) -> Self {
        let mut input = FrameBuffer::new(shared.config.message_bytes_max);
        let caller = Caller::new(shared.config.access.as_ref(), certificate);
        if caller.is_stranger() {
            link.link.stranger.store(true, Ordering::Relaxed);
            input.set_limit(STRANGER_BYTES_MAX.min(shared.config.message_bytes_max));
        }
        Self {
            io,
            is_broken,
            peer,
            caller,
            shared,
            link,
            input,
            input_limit: None,
            out: Vec::new(),
            written: 0,
            reads: 0,
            writes: 0,
            pending: PendingCalls::default(),
            at_once: Account::AtOnce(Tally::default()),
            greeted: false,
            wants_load: false,
            leaving: false,
            eof: false,
            pings: 0,
        }
    }

    /// Goes on as far as possible. `Ready(Ok)` when the connection is to be closed in good order.
    fn advance(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), Ended>> {
        loop {
            self.obey_signals(cx)?;
            let started = self.start_requests()?;
            let collected = self.collect_answers(cx);
            self.poll_write(cx)?;
            if self.is_finished() {
                return Poll::Ready(Ok(()));
            }
            let mut reading = false;
            let again = match (started, collected) {
                (Progress::All, Progress::All) => {
                    reading = true;
                    self.poll_read(cx)?
                }
                // Stopped at a limit. Once below it again, go on; else the write or a handler that
                // is waited for will wake this task.
                _ => self.has_room(),
            };
            if !again {
                self.tell_sweep(reading);
                return Poll::Pending;
            }
        }
    }

    /// What the sweep has to know while this task sleeps; `reading` if it waits for the peer to go on.
    fn tell_sweep(&self, reading: bool) {
        let link = &self.link.link;
        let odd = |number: u32, yes| if yes { number << 1 | 1 } else { 0 };
        link.busy.store(!self.pending.is_empty(), Ordering::Relaxed);
        link.incomplete.store(odd(self.reads, reading && self.input.is_mid_message()), Ordering::Relaxed);
        link.unsent.store(odd(self.writes, !self.out.is_empty()), Ordering::Relaxed);
    }

    fn has_room(&self) -> bool {
        self.out.len() < OUT_HIGH && self.pending.len() < CALLS_MAX
    }

    fn obey_signals(&mut self, cx: &mut task::Context<'_>) -> Result<(), Ended> {
        let signals = self.link.link.take_signals(cx.waker());
        if signals == 0 {
            return Ok(());
        }
        if signals & signal::CLOSE != 0 {
            return Err(if self.caller.is_stranger() { Ended::Unauthenticated } else { Ended::Silent });
        }
        if signals & signal::RULES != 0 {
            self.recognise();
        }
        if signals & signal::SLOW != 0 {
            return Err(Ended::SlowMessage);
        }
        if signals & signal::UNREAD != 0 {
            return Err(Ended::Unread);
        }
        if signals & signal::PING != 0 {
            self.ping();
        }
        if signals & signal::EXPIRE != 0 {
            // It waits for its answers, or is gone; nothing else would tell.
            if self.eof && (self.is_broken)(&self.io) {
                return Err(Ended::ByPeer);
            }
            self.pending.expire(Instant::now(), &mut self.out, self.shared.config.message_bytes_max);
        }
        if signals & signal::GOAWAY != 0 && !self.leaving {
            self.leaving = true;
            if self.greeted {
                self.go_away();
            }
        }
        if signals & signal::RELEASE != 0 {
            self.input.release();
            self.pending.release();
        }
        Ok(())
    }

    fn go_away(&mut self) {
        let drain_ms = u64::try_from(self.shared.config.drain_timeout.as_millis()).unwrap_or(u64::MAX);
        let params = serde_json::json!({ "reason": "draining", "drain_ms": drain_ms });
        put_notification(&mut self.out, protocol::GOAWAY, &params, usize::MAX)
            .expect("a small object is a valid request");
    }

    fn collect_answers(&mut self, cx: &task::Context<'_>) -> Progress {
        let limit = self.shared.config.message_bytes_max;
        if self.pending.poll(cx, &mut self.out, OUT_HIGH, limit) { Progress::Some } else { Progress::All }
    }

    /// Starts every request that has arrived, unless a limit is reached first.
    fn start_requests(&mut self) -> Result<Progress, Ended> {
        // The buffer moves out while its messages are handled: their answers go to `self`.
        let mut input = std::mem::replace(&mut self.input, FrameBuffer::new(0));
        let mut received = None;
        let progress = self.start_from(&mut input, &mut received);
        self.input = input;
        if let Some(received) = received {
            self.reads = self.reads.wrapping_add(1);
            self.count_answers(received);
        }
        progress
    }

    fn start_from(&mut self, input: &mut FrameBuffer, received: &mut Option<Instant>) -> Result<Progress, Ended> {
        while self.has_room() {
            if let Some(limit) = self.input_limit.take() {
                input.set_limit(limit);
            }
            match input.next_frame()? {
                Some(Frame::Message(message)) => {
                    let now = *received.get_or_insert_with(|| self.begin_answers());
                    self.message(message, now);
                }
                Some(Frame::Oversized { size, head }) => self.oversized(size, head),
                None => return Ok(Progress::All),
            }
        }
        Ok(Progress::Some)
    }

    /// Before the first request of a read: the first answer will carry the load.
    fn begin_answers(&mut self) -> Instant {
        let now = Instant::now();
        if self.wants_load
            && let Account::AtOnce(tally) = &mut self.at_once
        {
            tally.report = Some(self.shared.load.say(now, tally.method));
        }
        now
    }

    /// After the last request of a read: those that were answered in place enter the load.
    fn count_answers(&mut self, received: Instant) {
        if let Account::AtOnce(tally) = &mut self.at_once
            && tally.answered + tally.failed > 0
        {
            let now = Instant::now();
            let took = now.saturating_duration_since(received);
            self.shared.load.answered_at_once(now, tally, took);
            *tally = Tally { method: tally.method, ..Tally::default() };
        }
    }

    /// Reads once; `true` if something arrived.
    fn poll_read(&mut self, cx: &mut task::Context<'_>) -> Result<bool, Ended> {
        if self.eof {
            return Ok(false);
        }
        let mut room = ReadBuf::new(self.input.room());
        match Pin::new(&mut self.io).poll_read(cx, &mut room) {
            Poll::Pending => {
                self.input.rest();
                Ok(false)
            }
            Poll::Ready(Err(error)) => Err(error.into()),
            Poll::Ready(Ok(())) => {
                let n = room.filled().len();
                if n == 0 {
                    self.eof = true;
                    self.input.rest();
                    return match (self.input.is_mid_message(), self.greeted) {
                        (true, _) => Err(Ended::MidMessage),
                        (false, true) => Err(Ended::ByPeer),
                        (false, false) => Ok(true),
                    };
                }
                self.input.filled(n);
                self.link.link.active.store(true, Ordering::Relaxed);
                Ok(true)
            }
        }
    }

    /// Writes what is waiting, as far as the peer takes it.
    fn poll_write(&mut self, cx: &mut task::Context<'_>) -> Result<(), Ended> {
        if self.out.is_empty() {
            return Ok(());
        }
        while self.written < self.out.len() {
            match Pin::new(&mut self.io).poll_write(cx, &self.out[self.written..]) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Ready(Ok(0)) => return Err(std::io::Error::from(std::io::ErrorKind::WriteZero).into()),
                Poll::Ready(Ok(n)) => {
                    self.written += n;
                    self.writes = self.writes.wrapping_add(1);
                }
            }
        }
        self.written = 0;
        self.out.clear();
        match Pin::new(&mut self.io).poll_flush(cx) {
            Poll::Ready(Err(error)) => Err(error.into()),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }

    /// Whether everything that was asked is answered and nothing more is to come. A peer that
    /// said hello closes by itself after `rpc.goaway`: only it knows what is still under way.
    fn is_finished(&self) -> bool {
        let idle = self.pending.is_empty() && self.out.is_empty();
        idle && (self.eof || (self.leaving && !self.greeted && !self.input.is_mid_message()))
    }
}

/// Whether all that could be done was, or a limit stopped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    All,
    Some,
}
