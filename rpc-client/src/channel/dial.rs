//! Connecting and saying hello.

use std::net::SocketAddr;
use std::time::Duration;

use rpc_core::protocol::{self, MESSAGE_BYTES_FLOOR, PROTOCOL_VERSION, code, feature};
use rpc_core::secret::Token;
use rpc_core::wire::{Frame, FrameBuffer, Incoming, Response, parse, put_request};
use rpc_core::{RpcError, net};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::{Channel, Hello, Peer};

/// The id of the hello, before any call.
const HELLO_ID: u64 = 1;

/// A longer answer to hello is not taken: what the node says of itself, or why it refuses, is kept.
const HELLO_BYTES_MAX: usize = 256 * 1024;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// Refused, unreachable, or too slow.
    #[error("{0}")]
    Connect(std::io::Error),
    /// Whoever listens there is not the node that was meant.
    #[error("{}", .0.message)]
    Refused(RpcError),
    /// A node with which no call could succeed, by what it says of itself.
    #[error("{0}")]
    Unfit(String),
    /// What came back is no answer to hello.
    #[error("no hello: {0}")]
    Protocol(String),
}

#[derive(Debug, Deserialize)]
struct Welcome {
    /// Another server than ours may leave it out; one that names another version means it.
    #[serde(default)]
    version: Option<u64>,
    #[serde(default)]
    incarnation: String,
    #[serde(default)]
    features: Vec<String>,
    #[serde(default)]
    idempotent: Vec<String>,
    #[serde(default)]
    message_bytes_max: Option<usize>,
}

/// How to connect.
#[derive(Clone, Debug)]
pub(crate) struct DialOptions {
    /// Time to connect, and again to get an answer to hello.
    pub(crate) patience: Duration,
    /// Any other instance at the address is refused.
    pub(crate) incarnation: Option<String>,
    pub(crate) message_bytes_max: usize,
    /// 64 random bits.
    pub(crate) random: u64,
    pub(crate) token: Option<Token>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<rpc_core::tls::ClientTls>,
}

/// Connects to `node` and says hello.
pub(crate) async fn dial(node: SocketAddr, options: &DialOptions) -> Result<Channel, DialError> {
    let patience = options.patience;
    let stream = net::dial(node, patience).await.map_err(DialError::Connect)?;
    timeout(patience, greet(stream, node, options)).await.map_err(|_| {
        let waited = format!("no answer to hello within {} ms", patience.as_millis());
        DialError::Connect(std::io::Error::new(std::io::ErrorKind::TimedOut, waited))
    })?
}

/// Says hello, with TLS if that is wanted.
async fn greet(stream: net::Stream, node: SocketAddr, options: &DialOptions) -> Result<Channel, DialError> {
    #[cfg(feature = "tls")]
    if let Some(tls) = &options.tls {
        let stream = tls.connect(stream, node).await.map_err(DialError::Connect)?;
        let (read_half, write_half) = tokio::io::split(stream);
        return hello(read_half, write_half, node, options).await;
    }
    let (read_half, write_half) = stream.into_split();
    hello(read_half, write_half, node, options).await
}

/// Says hello on an open connection.
pub(crate) async fn hello<R, W>(
    mut read_half: R,
    mut write_half: W,
    node: SocketAddr,
    options: &DialOptions,
) -> Result<Channel, DialError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let limit = options.message_bytes_max;
    let sent = Instant::now();
    let mut params =
        json!({ "version": PROTOCOL_VERSION, "features": [feature::PING, feature::GOAWAY, feature::LOAD] });
    if let Some(incarnation) = &options.incarnation {
        params["incarnation"] = incarnation.as_str().into();
    }
    if let Some(token) = &options.token {
        params["token"] = token.current().expose().into();
    }
    let mut out = Vec::new();
    put_request(&mut out, HELLO_ID, protocol::HELLO, &Default::default(), &params, limit)
        .map_err(|e| DialError::Protocol(e.to_string()))?;
    // A server that turns clients away may have closed the connection by now; what it said can still be read.
    let unwritten = write_half.write_all(&out).await.err();
    let mut input = FrameBuffer::new(limit.min(HELLO_BYTES_MAX));
    let answer = loop {
        match input.next_frame().map_err(|e| DialError::Protocol(e.to_string()))? {
            Some(Frame::Message(message)) => match parse(message) {
                Incoming::Response(response) if response.id == Some(HELLO_ID) => {
                    break response.body.map(<[u8]>::to_vec).map_err(<[u8]>::to_vec);
                }
                // The message was not understood, or not even read.
                Incoming::Response(Response { id: None, body: Err(error), .. }) => break Err(error.to_vec()),
                // Nothing else is expected yet, and nothing else matters yet.
                Incoming::Request(_) | Incoming::Response(_) => continue,
                Incoming::Batch(_) | Incoming::Invalid(_) => {
                    return Err(DialError::Protocol("the answer is no JSON-RPC message".into()));
                }
            },
            Some(Frame::Oversized { size, .. }) => {
                return Err(DialError::Protocol(format!("an answer of {size} bytes")));
            }
            None => {}
        }
        match read_half.read(input.room()).await.map_err(DialError::Connect)? {
            0 => {
                let closed = || DialError::Protocol("the connection was closed".into());
                return Err(unwritten.map_or_else(closed, DialError::Connect));
            }
            n => input.filled(n),
        }
    };
    input.set_limit(limit);
    let hello = Hello { peer: peer(answer, limit)?, input, round_trip: sent.elapsed(), random: options.random };
    Ok(Channel::new(node, read_half, write_half, hello))
}

fn peer(answer: Result<Vec<u8>, Vec<u8>>, limit: usize) -> Result<Peer, DialError> {
    let text = match answer {
        Ok(text) => text,
        Err(text) => {
            let error: RpcError =
                serde_json::from_slice(&text).map_err(|e| DialError::Protocol(format!("a malformed error: {e}")))?;
            // Any JSON-RPC server will do: without hello it has no pings, and nothing is known of
            // its methods.
            return match error.code {
                code::METHOD_NOT_FOUND => Ok(Peer { message_bytes_max: limit, ..Peer::default() }),
                _ => Err(DialError::Refused(error)),
            };
        }
    };
    let welcome: Welcome =
        serde_json::from_slice(&text).map_err(|e| DialError::Protocol(format!("a malformed answer: {e}")))?;
    fit(&welcome)?;
    Ok(Peer {
        incarnation: welcome.incarnation,
        pings: welcome.features.iter().any(|f| f == feature::PING),
        reports: welcome.features.iter().any(|f| f == feature::LOAD),
        idempotent: welcome.idempotent,
        message_bytes_max: welcome.message_bytes_max.unwrap_or(limit).min(limit),
    })
}

/// Refuses a node that would misunderstand calls, or take none.
fn fit(welcome: &Welcome) -> Result<(), DialError> {
    if let Some(version) = welcome.version.filter(|version| *version != u64::from(PROTOCOL_VERSION)) {
        let message = format!("the node speaks version {version}, this client {PROTOCOL_VERSION}");
        let error = RpcError::new(code::INCOMPATIBLE_VERSION, message).with_data(&json!({ "version": version }));
        return Err(DialError::Refused(error));
    }
    match welcome.message_bytes_max {
        Some(limit) if limit < MESSAGE_BYTES_FLOOR => Err(DialError::Unfit(format!(
            "the node takes messages of up to {limit} bytes, the protocol's own need {MESSAGE_BYTES_FLOOR}"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rpc_core::wire::{Id, put_error, put_result};
    use tokio::io::{duplex, split};

    use super::*;

    /// What comes of a hello when this was said and the connection closed.
    async fn refused_after(said: &[u8]) -> DialError {
        let (near, mut far) = duplex(said.len());
        far.write_all(said).await.unwrap();
        // Now nothing can be written to it any more.
        drop(far);
        let (read_half, write_half) = split(near);
        let options = DialOptions {
            patience: Duration::from_secs(20),
            incarnation: None,
            message_bytes_max: 1 << 24,
            random: 0,
            token: None,
            #[cfg(feature = "tls")]
            tls: None,
        };
        hello(read_half, write_half, "127.0.0.1:1".parse().unwrap(), &options).await.err().unwrap()
    }

    /// What it says of itself, and why it refuses, is kept.
    #[tokio::test]
    async fn a_server_that_says_too_much_of_itself_is_refused() {
        let mut said = Vec::new();
        put_result(&mut said, &Id::Number(HELLO_ID), None, &json!({ "incarnation": "x".repeat(1 << 20) }), usize::MAX)
            .unwrap();
        let error = refused_after(&said).await.to_string();
        assert!(error.starts_with("no hello: an answer of 1048"), "{error}");
    }

    #[tokio::test]
    async fn what_a_server_said_before_it_closed_is_heard() {
        let mut said = Vec::new();
        put_error(&mut said, &Id::NULL, None, &RpcError::new(code::OVERLOADED, "full"), usize::MAX);
        let error = refused_after(&said).await;
        assert!(matches!(&error, DialError::Refused(error) if error.code == code::OVERLOADED), "{error:?}");
    }
}
