//! The other side of the socket, byte by byte: what a client in another language would do.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// No test waits longer than this for a message.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection that sends and receives messages as text, and anything else as bytes.
#[derive(Debug)]
pub struct RawPeer(TcpStream);

impl RawPeer {
    /// Connects to a server.
    ///
    /// # Panics
    /// When nobody listens there.
    pub async fn connect(addr: SocketAddr) -> Self {
        Self(TcpStream::connect(addr).await.expect("a server listens"))
    }

    /// Takes over an accepted connection, to play the server.
    pub fn new(stream: TcpStream) -> Self {
        Self(stream)
    }

    /// The connection, for what no method here does.
    pub fn into_stream(self) -> TcpStream {
        self.0
    }

    /// Sends one message.
    ///
    /// # Panics
    /// When the connection is gone.
    pub async fn send(&mut self, message: &str) {
        let length = u32::try_from(message.len()).expect("tests send no gigabytes").to_be_bytes();
        self.send_bytes(&[&length, message.as_bytes()].concat()).await;
    }

    /// Sends bytes as they are.
    ///
    /// # Panics
    /// When the connection is gone.
    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.expect("the connection is open");
    }

    /// The next message, or `None` if the peer closed the connection before it.
    ///
    /// # Panics
    /// When nothing comes in time, or a message that is cut off or not UTF-8.
    pub async fn receive(&mut self) -> Option<String> {
        let message = async {
            let mut length = [0; 4];
            self.0.read_exact(&mut length).await.ok()?;
            let mut message = vec![0; u32::from_be_bytes(length) as usize];
            self.0.read_exact(&mut message).await.expect("a message is complete");
            Some(String::from_utf8(message).expect("a message is UTF-8"))
        };
        tokio::time::timeout(PATIENCE, message).await.expect("a message, or the end, comes in time")
    }

    /// Sends a request and returns the next message.
    ///
    /// # Panics
    /// As [`RawPeer::receive`] does, or when the peer closes instead.
    pub async fn ask(&mut self, request: &str) -> String {
        self.send(request).await;
        self.receive().await.expect("the peer answers")
    }

    /// Sends one message in a frame whose length says `size`.
    ///
    /// # Panics
    /// When the connection is gone.
    pub async fn send_with_length(&mut self, size: u32, message: &[u8]) {
        self.send_bytes(&[&size.to_be_bytes(), message].concat()).await;
    }

    /// The next message as JSON.
    ///
    /// # Panics
    /// As [`RawPeer::receive`] does, or when the peer closes instead, or it is no JSON.
    pub async fn receive_json(&mut self) -> serde_json::Value {
        let message = self.receive().await.expect("the peer answers");
        serde_json::from_str(&message).unwrap_or_else(|e| panic!("{message}: {e}"))
    }

    /// Sends a request and returns the next message as JSON.
    ///
    /// # Panics
    /// As [`RawPeer::receive_json`] does.
    pub async fn ask_json(&mut self, request: &str) -> serde_json::Value {
        self.send(request).await;
        self.receive_json().await
    }

    /// Waits until the peer has closed the connection without sending anything more.
    ///
    /// # Panics
    /// When it sends something, or does not close in time.
    pub async fn closed(&mut self) {
        let end = async {
            let mut byte = [0];
            // A reset is an end too.
            self.0.read(&mut byte).await.unwrap_or(0)
        };
        let n = tokio::time::timeout(PATIENCE, end).await.expect("the peer closes in time");
        assert_eq!(n, 0, "the peer sends something instead of closing");
    }

    /// Closes the sending side; answers may still come.
    ///
    /// # Panics
    /// When the connection is gone.
    pub async fn close_sending(&mut self) {
        self.0.shutdown().await.expect("the connection is open");
    }
}
