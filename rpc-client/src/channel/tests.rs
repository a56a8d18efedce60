//! How often a channel writes, and what comes of its calls when it cannot.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rpc_core::wire::{Frame, FrameBuffer, Incoming, begin_frame, end_frame, parse, put_result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex, sink, split};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Channel, ExchangeError, Failure, Hello, Outgoing, Peer, Status, waker};

const LIMIT: usize = 1 << 20;

/// Counts the writes, each of which is a system call on a socket.
struct Counting<W>(W, Arc<AtomicUsize>);

impl<W: AsyncWrite + Unpin> AsyncWrite for Counting<W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.0).poll_write(cx, bytes);
        self.1.fetch_add(usize::from(written.is_ready()), Ordering::Relaxed);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// A node that answers all requests of a read at once, each with 1.
async fn answer(mut io: DuplexStream) {
    let (mut input, mut out) = (FrameBuffer::new(LIMIT), Vec::new());
    loop {
        while let Some(Frame::Message(message)) = input.next_frame().unwrap() {
            let Incoming::Request(request) = parse(message) else { panic!("no request") };
            put_result(&mut out, request.id.as_ref().unwrap(), None, &1, LIMIT).unwrap();
        }
        io.write_all(&out).await.unwrap();
        out.clear();
        match io.read(input.room()).await.unwrap() {
            0 => return,
            n => input.filled(n),
        }
    }
}

fn channel(
    read_half: impl AsyncRead + Send + Unpin + 'static,
    write_half: impl AsyncWrite + Send + Unpin + 'static,
) -> Channel {
    let hello = Hello {
        peer: Peer { message_bytes_max: LIMIT, ..Peer::default() },
        input: FrameBuffer::new(LIMIT),
        round_trip: Duration::from_micros(10),
        random: 0,
    };
    Channel::new("127.0.0.1:1".parse().unwrap(), read_half, write_half, hello)
}

/// Writes per call with this many calls in flight, on a runtime of one thread: all is done by its tasks, in an
/// order that depends on nothing else, whatever the thread has to wait for.
fn writes_per_call(runtime: &Runtime, in_flight: usize) -> f64 {
    const EACH: usize = 100;
    const NEVER: Duration = Duration::from_secs(3600);
    let count = Arc::<AtomicUsize>::default();
    let counted = count.clone();
    let all = runtime.spawn(async move {
        let (near, far) = duplex(LIMIT);
        tokio::spawn(answer(far));
        let (read_half, write_half) = split(near);
        let channel = Arc::new(channel(read_half, Counting(write_half, counted)));
        let mut callers = JoinSet::new();
        for _ in 0..in_flight {
            let channel = channel.clone();
            callers.spawn(async move {
                for _ in 0..EACH {
                    let now = Instant::now();
                    let outgoing = Outgoing {
                        method: "one",
                        meta: Default::default(),
                        params: &[1],
                        now,
                        deadline: now + NEVER,
                        movable: false,
                    };
                    let exchange = channel.send(&outgoing, waker().await).unwrap();
                    assert_eq!(exchange.await.unwrap().body, b"1");
                }
            });
        }
        callers.join_all().await;
    });
    runtime.block_on(all).unwrap();
    count.load(Ordering::Relaxed) as f64 / (in_flight * EACH) as f64
}

/// Takes the first request. At the next the connection breaks, and the node has just answered the first.
struct Breaking {
    node: Option<DuplexStream>,
    first: Option<Vec<u8>>,
}

impl AsyncWrite for Breaking {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(first) = self.first.take() else {
            self.first = Some(bytes.to_vec());
            return Poll::Ready(Ok(bytes.len()));
        };
        let (mut input, mut answer) = (FrameBuffer::new(LIMIT), Vec::new());
        input.room()[..first.len()].copy_from_slice(&first);
        input.filled(first.len());
        let Some(Frame::Message(message)) = input.next_frame().unwrap() else { panic!("no frame") };
        let Incoming::Request(request) = parse(message) else { panic!("no request") };
        put_result(&mut answer, request.id.as_ref().unwrap(), None, &1, LIMIT).unwrap();
        let mut node = self.node.take().unwrap();
        assert!(Pin::new(&mut node).poll_write(cx, &answer).is_ready());
        Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn what_the_node_sent_before_the_connection_broke_is_read() {
    let (near, far) = duplex(LIMIT);
    let channel = channel(near, Breaking { node: Some(far), first: None });
    let now = Instant::now();
    let deadline = now + Duration::from_secs(20);
    let outgoing = Outgoing { method: "one", meta: Default::default(), params: &[1], now, deadline, movable: false };
    let waker = waker().await;
    let (answered, lost) = (channel.send(&outgoing, waker.clone()).unwrap(), channel.send(&outgoing, waker).unwrap());
    let (answered, lost) = tokio::join!(answered, lost);
    assert_eq!(answered.unwrap().body, b"1");
    assert!(matches!(lost, Err(ExchangeError::Failed(Failure::Closed { sent: false }))), "{lost:?}");
}

/// Without the yield before each write, the multi-thread runtime writes each request by itself.
#[test]
fn requests_made_together_share_a_write() {
    let mut multi_thread = Builder::new_multi_thread();
    multi_thread.worker_threads(1);
    for mut builder in [Builder::new_current_thread(), multi_thread] {
        let writes = writes_per_call(&builder.enable_all().build().unwrap(), 64);
        // One for all 64, and some more while they get into step.
        assert!(writes <= 0.02, "{writes} writes a call");
    }
}

#[test]
fn a_caller_that_is_alone_writes_once_per_call() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(writes_per_call(&runtime, 1), 1.0);
}

fn frame(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let start = begin_frame(&mut out);
    out.extend_from_slice(text.as_bytes());
    end_frame(&mut out, start, usize::MAX).unwrap();
    out
}

/// What a node asks without end, and reads no answers to. The reason why the connection is closed.
async fn reason_after(asked: &[u8]) -> String {
    const ENOUGH: usize = 64 << 20;
    let (near, far) = duplex(64 * 1024);
    let (read_half, write_half) = split(near);
    let (channel, (_unread, mut far)) = (channel(read_half, write_half), split(far));
    let mut status = channel.status();
    let flood = async {
        for _ in 0..ENOUGH / asked.len() {
            if far.write_all(asked).await.is_err() {
                std::future::pending::<()>().await;
            }
            assert!(channel.held().1 < 16 << 20, "{} bytes wait for the node", channel.held().1);
        }
        panic!("the node asked for {ENOUGH} bytes of answers");
    };
    tokio::select! {
        () = flood => unreachable!(),
        closed = status.wait_for(|status| matches!(status, Status::Closed(_))) => match &*closed.unwrap() {
            Status::Closed(reason) => reason.to_string(),
            other => panic!("{other:?}"),
        },
    }
}

#[tokio::test]
async fn a_node_that_asks_and_takes_no_answers_costs_its_connection() {
    let ping = frame(r#"{"jsonrpc":"2.0","id":1,"method":"rpc.ping"}"#);
    assert_eq!(reason_after(&ping).await, "the node takes no answers");
    let unknown = frame(r#"{"jsonrpc":"2.0","id":1,"method":"who"}"#);
    assert_eq!(reason_after(&unknown).await, "the node takes no answers");
    let id = "x".repeat(LIMIT / 2);
    let long = frame(&format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"rpc.ping"}}"#));
    assert_eq!(reason_after(&long).await, format!("the node asked something with an id of {} bytes", id.len() + 2));
    // The reason is kept, and serde repeats what it does not expect.
    let text = frame(&format!("\"{id}\""));
    assert!(reason_after(&text).await.len() < 1000);
}

/// A node that takes its answers may ask as much as it likes.
#[tokio::test]
async fn a_node_that_takes_its_answers_may_ask_for_ever() {
    let (near, far) = duplex(64 * 1024);
    let (read_half, write_half) = split(near);
    let (channel, (mut answers, mut far)) = (channel(read_half, write_half), split(far));
    let pings = frame(r#"{"jsonrpc":"2.0","id":1,"method":"rpc.ping"}"#).repeat(1000);
    let answer = frame(r#"{"jsonrpc":"2.0","id":1,"result":null}"#);
    const TIMES: usize = 100;
    let ask = async {
        for _ in 0..TIMES {
            far.write_all(&pings).await.unwrap();
        }
    };
    let mut answered = vec![0; answer.len() * 1000 * TIMES];
    let (_, read) = tokio::join!(ask, answers.read_exact(&mut answered));
    read.unwrap();
    assert_eq!(*channel.status().borrow(), Status::Open);
}

/// Has pings whenever it is read, for a while.
struct Flood {
    pings: Vec<u8>,
    until: Instant,
}

impl AsyncRead for Flood {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if Instant::now() < self.until && room.remaining() >= self.pings.len() {
            room.put_slice(&self.pings);
        }
        Poll::Ready(Ok(()))
    }
}

/// On one thread: the node's pings leave time for what else there is to do.
#[tokio::test]
async fn a_call_ends_at_its_deadline_however_much_the_node_sends() {
    let pings = frame(r#"{"jsonrpc":"2.0","id":1,"method":"rpc.ping"}"#).repeat(200);
    let channel = channel(Flood { pings, until: Instant::now() + Duration::from_secs(5) }, sink());
    let now = Instant::now();
    let deadline = now + Duration::from_millis(50);
    let outgoing = Outgoing { method: "one", meta: Default::default(), params: &[1], now, deadline, movable: false };
    let ended = channel.send(&outgoing, waker().await).unwrap().await;
    assert!(matches!(ended, Err(ExchangeError::Failed(Failure::Deadline))), "{ended:?}");
}
