//! How often a connection writes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use rpc_core::RpcError;
use rpc_core::wire::{Frame, FrameBuffer, put_request};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};

use super::{Connection, OUT_HIGH};
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
    let links = Arc::new(Links::default());
    let far = Counting(far, count.clone());
    let connection = Connection::new(far, server.local_addr(), &[], server.shared.clone(), links.add());
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
