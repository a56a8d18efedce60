//! One multiplexed connection to one node.
//!
//! The caller encodes its request straight into the shared buffer, under one short lock. If it is
//! alone it writes at once; otherwise the writer task writes for everybody. The reader task hands
//! over all replies of a read under one lock and wakes after it; the caller's own task decodes.

mod dial;
mod exchange;
mod liveness;
#[cfg(all(test, feature = "loom"))]
mod model;
mod slots;
mod tasks;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::select_all;
use rpc_core::wire::FrameBuffer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub(crate) use dial::{DialError, DialOptions, dial};
pub(crate) use exchange::{Exchange, ExchangeError, Outgoing, waker};
use liveness::Liveness;
use slots::Slots;
pub(crate) use slots::{Answer, Failure};

use crate::sync::{AtomicU64, Mutex};

/// Bytes that may wait for the socket. A call beyond that waits or takes another node.
const OUT_MAX: usize = 8 * 1024 * 1024;

/// A longer reason why a connection was closed is cut: it may repeat what the node sent, and is kept.
const REASON_BYTES_MAX: usize = 512;

/// Set in the count of bytes written when the connection is closed.
const CLOSED: u64 = 1 << 63;

/// A connection that said hello. Dropping it closes the socket.
pub(crate) struct Channel {
    shared: Arc<Shared>,
    /// The reader, the writer and the keeper; aborted when the channel is dropped.
    _tasks: JoinSet<()>,
    pub(crate) peer: Peer,
}

/// What saying hello on a connection has left.
pub(crate) struct Hello {
    pub(crate) peer: Peer,
    /// May hold what came after the answer.
    pub(crate) input: FrameBuffer,
    pub(crate) round_trip: Duration,
    /// 64 random bits, to spread the pings of many connections.
    pub(crate) random: u64,
}

/// What the node said of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// Empty if it does not speak our protocol's own methods.
    pub(crate) incarnation: String,
    /// It answers pings.
    pub(crate) pings: bool,
    /// It sends load reports and answers probes.
    pub(crate) reports: bool,
    /// A handful at most, so a search beats a hash.
    pub(crate) idempotent: Vec<String>,
    pub(crate) message_bytes_max: usize,
}

/// Whether a channel takes calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Open,
    /// The node does not answer a ping while calls wait.
    Suspect,
    /// The node said that it takes nothing new.
    Leaving,
    Closed(Arc<str>),
}

struct Shared {
    node: SocketAddr,
    state: Mutex<State>,
    /// Bytes that the socket has taken, or is being offered; [`CLOSED`] once it must not be offered any more.
    written: AtomicU64,
    /// Wakes the writer task.
    writer: Notify,
    /// Tells the keeper task that it has to look earlier than it thinks.
    keeper: Notify,
    /// A slot or room in the buffer has become free after a time without.
    room: Notify,
    status: watch::Sender<Status>,
    pings: bool,
    limit: usize,
}

struct State {
    /// Frames to be written.
    out: Vec<u8>,
    /// Bytes in `out` that answer what the node asked.
    answers: usize,
    /// Takes the place of `out` while that is being written.
    idle_out: Vec<u8>,
    /// Bytes ever taken out of `out`: where its first byte stands in the stream of all bytes.
    taken: u64,
    /// The writer was told, or is at work.
    writing: bool,
    /// Here while nobody writes.
    half: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    slots: Slots,
    liveness: Liveness,
    /// When the keeper will look next.
    keeper_at: Option<Instant>,
    /// Callers wait for room.
    crowded: bool,
    /// The node does not answer a ping while calls wait. Part of the status, kept here because every read asks for it.
    suspect: bool,
    /// While the node is silent, calls that may go to another one are given up.
    evicting: bool,
    closed: bool,
    pings_sent: u64,
}

impl Channel {
    /// Takes over a connection on which hello was said.
    pub(crate) fn new(
        node: SocketAddr,
        read_half: impl AsyncRead + Send + Unpin + 'static,
        write_half: impl AsyncWrite + Send + Unpin + 'static,
        hello: Hello,
    ) -> Self {
        let shared = Arc::new(Shared::new(node, write_half, &hello));
        let Hello { peer, input, .. } = hello;
        let mut tasks = JoinSet::new();
        tasks.spawn(tasks::read(shared.clone(), read_half, input));
        tasks.spawn(tasks::write(shared.clone()));
        tasks.spawn(tasks::keep(shared.clone()));
        Self { shared, _tasks: tasks, peer }
    }

    /// Whether it takes calls, now and later.
    pub(crate) fn status(&self) -> watch::Receiver<Status> {
        self.shared.status.subscribe()
    }

    /// Waits until a call may find a slot. It may have to ask again.
    pub(crate) async fn room(&self) {
        let freed = self.shared.room.notified();
        tokio::pin!(freed);
        freed.as_mut().enable();
        {
            let mut state = self.shared.state.lock();
            if state.closed || (!state.slots.is_full() && state.out.len() < OUT_MAX) {
                return;
            }
            state.crowded = true;
        }
        freed.await;
    }

    /// Entries of the table of calls, and bytes that the socket has not taken yet.
    pub(crate) fn held(&self) -> (usize, usize) {
        let state = self.shared.state.lock();
        let written = self.shared.written.load(Ordering::Acquire);
        let unsent = (state.taken + state.out.len() as u64).saturating_sub(written);
        (state.slots.taken(), usize::try_from(unsent).unwrap_or(usize::MAX))
    }

    /// The last round trip measured, of a hello or a ping.
    pub(crate) fn round_trip(&self) -> Duration {
        self.shared.state.lock().liveness.round_trip()
    }

    /// Whether calls that may run twice are given up while the node is silent. Only sensible as long as
    /// there is another node that they can go to.
    pub(crate) fn evict(&self, evict: bool) {
        let mut wake = Vec::new();
        {
            let mut state = self.shared.state.lock();
            state.evicting = evict && state.suspect;
            if state.evicting {
                state.slots.fail_movable(&mut wake);
            }
        }
        wake.into_iter().for_each(Waker::wake);
    }
}

/// Waits until a call may find a slot on one of them. It may have to ask again.
pub(crate) async fn room_on_any(channels: &[Arc<Channel>]) {
    select_all(channels.iter().map(|channel| Box::pin(channel.room()))).await;
}

impl Shared {
    fn new(node: SocketAddr, write_half: impl AsyncWrite + Send + Unpin + 'static, hello: &Hello) -> Self {
        let state = State {
            out: Vec::new(),
            answers: 0,
            idle_out: Vec::new(),
            taken: 0,
            writing: false,
            half: Some(Box::new(write_half)),
            slots: Slots::default(),
            liveness: Liveness::new(Instant::now(), hello.round_trip, hello.random),
            keeper_at: None,
            crowded: false,
            suspect: false,
            evicting: false,
            closed: false,
            pings_sent: 0,
        };
        Self {
            node,
            state: Mutex::new(state),
            written: AtomicU64::new(0),
            writer: Notify::new(),
            keeper: Notify::new(),
            room: Notify::new(),
            status: watch::Sender::new(Status::Open),
            pings: hello.peer.pings,
            limit: hello.peer.message_bytes_max,
        }
    }

    /// After frames were put into `out`: writes them here and now if nothing else is in flight,
    /// otherwise has the writer do it together with what others add. `true` if the writer is to be
    /// notified once the lock is released.
    fn flush(&self, state: &mut State) -> bool {
        if state.writing {
            return false;
        }
        // Callers that are about to take their replies are likely to send again: the first of them is not
        // alone, though no call waits.
        if state.slots.taken() <= 1
            && let Some(half) = &mut state.half
        {
            let mut cx = Context::from_waker(Waker::noop());
            if let Poll::Ready(Ok(n)) = Pin::new(half).poll_write(&mut cx, &state.out) {
                self.written.fetch_add(n as u64, Ordering::Release);
                state.taken += n as u64;
                if n == state.out.len() {
                    state.out.clear();
                    state.answers = 0;
                    return false;
                }
                state.out.drain(..n);
            }
        }
        state.writing = true;
        true
    }

    /// Frees the memory that only traffic needs, if there is none now.
    fn release(state: &mut State) {
        if state.out.is_empty() && !state.writing && state.slots.release() {
            state.out = Vec::new();
            state.idle_out = Vec::new();
        }
    }

    fn notify_room(&self, state: &mut State) -> bool {
        std::mem::take(&mut state.crowded)
    }

    fn set_status(&self, status: Status) {
        self.status.send_if_modified(|current| {
            let stays = matches!(current, Status::Closed(_)) || *current == status;
            // A node that is leaving does not come back by being heard of.
            let stays = stays || (*current == Status::Leaving && !matches!(status, Status::Closed(_)));
            if !stays {
                *current = status;
            }
            !stays
        });
    }

    /// Ends the connection: every waiting call learns whether its request had left.
    fn close(&self, reason: &str) {
        let reason = &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)];
        let mut wake = Vec::new();
        {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            state.closed = true;
            state.half = None;
            state.out = Vec::new();
            let written = self.written.fetch_or(CLOSED, Ordering::AcqRel);
            state.slots.fail_all(written, &mut wake);
        }
        tracing::debug!(node = %self.node, reason, "connection closed");
        self.set_status(Status::Closed(reason.into()));
        wake.into_iter().for_each(Waker::wake);
        self.room.notify_waiters();
        self.writer.notify_one();
    }
}
