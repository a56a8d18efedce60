//! How often a connection writes.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use rpc_core::RpcError;
use rpc_core::wire::{Frame, FrameBuffer, put_request};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::time::Instant;

use super::{Connection, Ended, OUT_HIGH};
use crate::Server;
use crate::links::Links;

const LIMIT: usize = 1 << 20;

/// Counts the writes, each of which is a system call on a socket.
struct Counting(DuplexStream, Arc<AtomicUsize>);

impl AsyncRead for Counting {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, room)
    }
}

impl AsyncWrite for Counting {
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

/// Writes that answer `rounds` times `batch` requests that arrive together.
async fn writes(method: &str, text: &str, batch: u64, rounds: usize) -> usize {
    let server = Server::builder()
        .method("echo", |(text,): (String,)| async { Ok::<_, RpcError>(text) })
        .method("later", |(text,): (String,)| async {
            tokio::task::yield_now().await;
            Ok::<_, RpcError>(text)
        })
        .bind("127.0.0.1:0")
        .await
        .unwrap();
    let (mut near, far) = duplex(LIMIT);
    let count = Arc::<AtomicUsize>::default();
    let links = Arc::new(Links::new(&server.shared.config));
    let far = Counting(far, count.clone());
    let connection = Connection::new(far, |_| false, server.local_addr(), &[], server.shared.clone(), links.add());
    let serving = tokio::spawn(connection);
    let mut requests = Vec::new();
    for id in 0..batch {
        put_request(&mut requests, id, method, &Default::default(), &(text,), LIMIT).unwrap();
    }
    let mut input = FrameBuffer::new(LIMIT);
    for _ in 0..rounds {
        near.write_all(&requests).await.unwrap();
        let mut answers = 0;
        while answers < batch {
            match input.next_frame().unwrap() {
                Some(Frame::Message(message)) => {
                    assert!(message.ends_with(format!("\"{text}\"}}").as_bytes()));
                    answers += 1;
                }
                Some(frame) => panic!("{frame:?}"),
                None => {
                    let n = near.read(input.room()).await.unwrap();
                    input.filled(n);
                }
            }
        }
    }
    drop(near);
    serving.await.unwrap();
    count.load(Ordering::Relaxed)
}

#[tokio::test]
async fn one_write_answers_all_that_a_read_brought() {
    // A buffer that still grows takes a few reads for the first requests.
    let (settling, rounds) = (4, 100);
    for method in ["echo", "later"] {
        let writes = writes(method, "hello", 64, rounds).await;
        assert!(writes <= rounds + settling, "{method}: {writes} writes for {rounds} batches");
    }
}

#[tokio::test]
async fn a_long_batch_starts_flowing_before_its_end() {
    let text = "x".repeat(1000);
    let writes = writes("echo", &text, 640, 1).await;
    assert!(writes >= 640 * text.len() / (2 * OUT_HIGH), "{writes} writes");
}

/// A connection to a server whose `echo` counts its calls, watched by the sweep.
struct Watched {
    near: DuplexStream,
    serving: tokio::task::JoinHandle<Option<Ended>>,
    calls: Arc<AtomicUsize>,
}

async fn watched(room: usize) -> Watched {
    let calls = Arc::<AtomicUsize>::default();
    let counted = calls.clone();
    let server = Server::builder()
        .method("echo", move |(text,): (String,)| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, RpcError>(text) }
        })
        .bind("127.0.0.1:0")
        .await
        .unwrap();
    let (near, far) = duplex(room);
    let links = Arc::new(Links::new(&server.shared.config));
    let mut connection = Connection::new(far, |_| false, server.local_addr(), &[], server.shared.clone(), links.add());
    tokio::spawn(async move { links.sweep_for_ever(None).await });
    let serving = tokio::spawn(async move { poll_fn(|cx| connection.advance(cx)).await.err() });
    Watched { near, serving, calls }
}

fn request(id: u64, text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    put_request(&mut out, id, "echo", &Default::default(), &(text,), LIMIT).unwrap();
    out
}

#[tokio::test(start_paused = true)]
async fn a_message_that_trickles_in_ends_its_connection() {
    let mut peer = watched(LIMIT).await;
    let start = Instant::now();
    let message = request(1, &"x".repeat(1000));
    // Whole messages may come as slowly as they like.
    for _ in 0..4 {
        peer.near.write_all(&request(0, "hi")).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    }
    let began = Instant::now();
    for byte in message.chunks(1) {
        if peer.near.write_all(byte).await.is_err() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    assert!(matches!(peer.serving.await.unwrap(), Some(Ended::SlowMessage)));
    let seconds = began.elapsed().as_secs();
    assert!((30..=33).contains(&seconds), "{seconds} s, {} s in all", start.elapsed().as_secs());
    assert_eq!(peer.calls.load(Ordering::Relaxed), 4);
}

#[tokio::test(start_paused = true)]
async fn a_slow_message_that_gets_done_in_time_is_served() {
    let mut peer = watched(LIMIT).await;
    for id in 0..3 {
        let message = request(id, "slowly");
        for part in message.chunks(message.len() / 20) {
            peer.near.write_all(part).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
    }
    assert_eq!(peer.calls.load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_nothing_is_served_little_and_then_closed() {
    const ROOM: usize = 16 * 1024;
    let mut peer = watched(ROOM).await;
    let text = "x".repeat(1000);
    let began = Instant::now();
    for id in 0.. {
        if peer.near.write_all(&request(id, &text)).await.is_err() {
            break;
        }
    }
    assert!(matches!(peer.serving.await.unwrap(), Some(Ended::Unread)));
    let seconds = began.elapsed().as_secs();
    assert!((30..=33).contains(&seconds), "{seconds} s");
    // What the pipe holds, what waits to be written, and one more answer.
    let calls = peer.calls.load(Ordering::Relaxed);
    assert!(calls * text.len() <= ROOM + OUT_HIGH + 2 * text.len(), "{calls} calls");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_slowly_is_served() {
    let mut peer = watched(1024).await;
    for id in 0..60 {
        let (request, mut part) = (request(id, &"x".repeat(800)), [0; 400]);
        peer.near.write_all(&request).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_secs(20)).await;
        let n = peer.near.read(&mut part).await.unwrap();
        assert!(n > 0);
    }
    assert!(!peer.serving.is_finished());
}
