//! Model checks of the slot table and the lock around it: loom runs them in every order of the threads' steps, and
//! finds calls that nobody wakes as deadlocks. The node, and the clock, are played by the tests.
#![allow(clippy::unwrap_used, reason = "nothing but tests is in here")]

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use loom::future::block_on;
use loom::model::Builder;
use loom::sync::Notify as Signal;
use loom::thread;
use rpc_core::protocol::IN_FLIGHT_MAX;
use rpc_core::wire::{Frame, FrameBuffer, Id, Incoming, parse, put_result};
use tokio::io::AsyncWrite;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::exchange::{ExchangeError, Outgoing, waker};
use super::tasks::{deliver, look, write};
use super::{Answer, Channel, Failure, Hello, Peer, Shared};

const LIMIT: usize = 1 << 20;

/// The ids of the first calls of a channel, if they take turns in one slot.
const FIRST: u64 = IN_FLIGHT_MAX as u64;
const SECOND: u64 = 2 * FIRST;

/// A socket that takes `room` bytes of each write. Nothing yields under its lock, so loom need not know it.
#[derive(Clone)]
struct Socket {
    taken: Arc<parking_lot::Mutex<Vec<u8>>>,
    room: usize,
    more: Arc<Signal>,
}

impl Socket {
    fn new(room: usize) -> Self {
        Self { taken: Arc::default(), room, more: Arc::new(Signal::new()) }
    }

    /// Waits until another request has arrived than those of `known`.
    fn next(&self, known: &[u64]) -> u64 {
        loop {
            match self.arrived().into_iter().find(|id| !known.contains(id)) {
                Some(id) => return id,
                None => self.more.wait(),
            }
        }
    }

    /// The ids of the requests that have arrived whole.
    fn arrived(&self) -> Vec<u64> {
        let mut input = FrameBuffer::new(LIMIT);
        let taken = self.taken.lock();
        input.room()[..taken.len()].copy_from_slice(&taken);
        input.filled(taken.len());
        let mut ids = Vec::new();
        while let Ok(Some(Frame::Message(message))) = input.next_frame() {
            if let Incoming::Request(request) = parse(message)
                && let Some(Id::Number(id)) = request.id
            {
                ids.push(id);
            }
        }
        ids
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let n = bytes.len().min(self.room);
        self.taken.lock().extend_from_slice(&bytes[..n]);
        self.more.notify();
        Poll::Ready(Ok(n))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A channel whose tasks are threads of the model, if the test starts them.
fn channel(socket: Socket) -> Arc<Channel> {
    let peer = Peer { message_bytes_max: LIMIT, ..Peer::default() };
    let hello =
        Hello { peer: peer.clone(), input: FrameBuffer::new(LIMIT), round_trip: Duration::from_micros(10), random: 0 };
    let shared = Arc::new(Shared::new("127.0.0.1:1".parse().unwrap(), socket, &hello));
    Arc::new(Channel { shared, _tasks: JoinSet::new(), peer })
}

/// A call whose deadline is now.
async fn exchange(channel: &Channel) -> Result<Answer, ExchangeError> {
    let waker = waker().await;
    let now = Instant::now();
    let meta = Default::default();
    let outgoing = Outgoing { method: "m", meta, params: &[1], now, deadline: now, movable: false };
    channel.send(&outgoing, waker)?.await
}

/// Sends the request without waiting.
fn start(exchange: Pin<&mut impl Future<Output = Result<Answer, ExchangeError>>>) {
    assert!(exchange.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

/// What the reader does when the reply to `id` arrives, which is `id` itself.
fn reply(shared: &Shared, id: u64) {
    let mut frame = Vec::new();
    put_result(&mut frame, &Id::Number(id), None, &id, LIMIT).unwrap();
    arrive(shared, &frame);
}

fn arrive(shared: &Shared, bytes: &[u8]) {
    let mut input = FrameBuffer::new(LIMIT);
    input.room()[..bytes.len()].copy_from_slice(bytes);
    input.filled(bytes.len());
    let mut wake = Vec::new();
    deliver(shared, &mut input, &mut wake).unwrap();
    wake.into_iter().for_each(Waker::wake);
}

fn is_reply(answer: &Answer, id: u64) -> bool {
    answer.ok && answer.body == id.to_string().as_bytes()
}

/// No call waits any more.
fn is_empty(channel: &Channel) -> bool {
    channel.shared.state.lock().slots.waiting() == 0
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    // More switches at inconvenient moments than any known kind of race needs.
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn a_late_reply_never_reaches_the_next_call_of_its_slot() {
    check(|| {
        let socket = Socket::new(usize::MAX);
        let channel = channel(socket.clone());
        let mut given_up = Box::pin(exchange(&channel));
        start(given_up.as_mut());
        let node = thread::spawn({
            let shared = channel.shared.clone();
            move || {
                reply(&shared, FIRST);
                reply(&shared, socket.next(&[FIRST]));
            }
        });
        drop(given_up);
        assert!(is_reply(&block_on(exchange(&channel)).unwrap(), SECOND));
        node.join().unwrap();
        assert!(is_empty(&channel));
    });
}

#[test]
fn a_reply_at_the_deadline_is_either_and_wakes_the_caller() {
    check(|| {
        let channel = channel(Socket::new(usize::MAX));
        let mut call = Box::pin(exchange(&channel));
        start(call.as_mut());
        let node = thread::spawn({
            let shared = channel.shared.clone();
            move || reply(&shared, FIRST)
        });
        let keeper = thread::spawn({
            let shared = channel.shared.clone();
            move || {
                let mut wake = Vec::new();
                look(&shared, &mut shared.state.lock(), &mut wake);
                wake.into_iter().for_each(Waker::wake);
            }
        });
        match block_on(call) {
            Ok(answer) => assert!(is_reply(&answer, FIRST)),
            Err(error) => assert!(matches!(error, ExchangeError::Failed(Failure::Deadline)), "{error:?}"),
        }
        node.join().unwrap();
        keeper.join().unwrap();
        assert!(is_empty(&channel));
    });
}

/// One request is written by its caller, the other by the writer; meanwhile the connection closes. What is said to be
/// unsent has not arrived, and never does.
#[test]
fn every_call_ends_with_its_connection_and_knows_whether_it_was_sent() {
    for room in [usize::MAX, 40] {
        check(move || {
            let socket = Socket::new(room);
            let channel = channel(socket.clone());
            let mut calls = [Box::pin(exchange(&channel)), Box::pin(exchange(&channel))];
            calls.iter_mut().for_each(|call| start(call.as_mut()));
            let writer = thread::spawn({
                let shared = channel.shared.clone();
                move || block_on(write(shared))
            });
            let closer = thread::spawn({
                let shared = channel.shared.clone();
                move || shared.close("closed by the model")
            });
            let outcomes = calls.map(|call| block_on(call).unwrap_err());
            closer.join().unwrap();
            writer.join().unwrap();
            for (id, error) in [FIRST, SECOND + 1].into_iter().zip(outcomes) {
                let ExchangeError::Failed(Failure::Closed { sent }) = error else { panic!("{error:?}") };
                assert!(sent || !socket.arrived().contains(&id), "{id} arrived");
            }
            assert!(is_empty(&channel));
        });
    }
}

#[test]
fn who_waits_for_room_learns_of_it() {
    check(|| {
        let channel = channel(Socket::new(usize::MAX));
        let mut call = Box::pin(exchange(&channel));
        start(call.as_mut());
        let now = Instant::now();
        {
            let mut state = channel.shared.state.lock();
            for _ in 1..IN_FLIGHT_MAX {
                let id = state.slots.next_id().unwrap();
                state.slots.insert(id, 0, now, false, Waker::noop().clone());
            }
        }
        let waiter = thread::spawn({
            let channel = channel.clone();
            move || {
                block_on(channel.room());
                start(Box::pin(exchange(&channel)).as_mut());
            }
        });
        drop(call);
        waiter.join().unwrap();
    });
}

/// The node answers what has arrived, and nothing else: a request that stays in the buffer is never answered.
#[test]
fn the_writer_forgets_no_request() {
    check(|| {
        let socket = Socket::new(usize::MAX);
        let channel = channel(socket.clone());
        let mut first = Box::pin(exchange(&channel));
        start(first.as_mut());
        let writer = thread::spawn({
            let shared = channel.shared.clone();
            move || block_on(write(shared))
        });
        let node = thread::spawn({
            let shared = channel.shared.clone();
            move || {
                reply(&shared, socket.next(&[FIRST]));
                reply(&shared, FIRST);
            }
        });
        assert!(block_on(exchange(&channel)).unwrap().ok);
        assert!(is_reply(&block_on(first).unwrap(), FIRST));
        node.join().unwrap();
        channel.shared.close("the model is over");
        writer.join().unwrap();
        assert!(is_empty(&channel));
    });
}
