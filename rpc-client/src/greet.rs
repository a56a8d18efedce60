//! Who answers at an address.

use std::net::SocketAddr;
use std::time::Duration;

use rpc_core::RpcError;
use tokio::time::Instant;

use crate::ClientConfig;
use crate::channel::{DialError, DialOptions, dial};

/// What a node said to hello.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Greeting {
    /// The incarnation that answers; empty of a server that does not know hello.
    pub incarnation: String,
    /// From the beginning to its answer.
    pub elapsed: Duration,
}

/// Why nobody said hello.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GreetError {
    /// No connection: refused, or no way there.
    #[error("{0}")]
    NoConnection(std::io::Error),
    /// A connection, or none, and then nothing for the time that a client has patience.
    #[error("{0}")]
    Silent(std::io::Error),
    /// TLS failed: a certificate that is not believed, such as an expired one, or no TLS at all.
    #[error("{0}")]
    NotSecure(std::io::Error),
    /// A node, but it takes no clients now, or not these.
    #[error("{} ({})", .0.message, .0.name())]
    Refused(RpcError),
    /// Something else than a node, or one that no client could use.
    #[error("{0}")]
    NoNode(String),
}

/// The certificate that a node shows, in DER; none if it shows none that this configuration believes.
#[cfg(feature = "tls")]
pub async fn certificate(addr: SocketAddr, config: &ClientConfig) -> Option<Vec<u8>> {
    let tls = config.tls.as_ref()?;
    let shown = async {
        let stream = rpc_core::net::dial(addr, config.connect_timeout).await.ok()?;
        tls.connect(stream, addr).await.ok()?.peer_certificate().map(<[u8]>::to_vec)
    };
    tokio::time::timeout(config.connect_timeout * 2, shown).await.ok()?
}

/// Connects with an address and says hello, as a client of this configuration would, to whichever
/// incarnation is there. The connection is closed again.
///
/// # Errors
/// Nobody is there, or not a node that takes this client.
pub async fn greet(addr: SocketAddr, config: &ClientConfig) -> Result<Greeting, GreetError> {
    let options = DialOptions {
        patience: config.connect_timeout,
        incarnation: None,
        message_bytes_max: config.message_bytes_max,
        random: 0,
        token: config.token.clone(),
        #[cfg(feature = "tls")]
        tls: config.tls.clone(),
    };
    let started = Instant::now();
    match dial(addr, &options).await {
        Ok(channel) => Ok(Greeting { incarnation: channel.peer.incarnation.clone(), elapsed: started.elapsed() }),
        Err(DialError::Connect(e)) if e.kind() == std::io::ErrorKind::TimedOut => Err(GreetError::Silent(e)),
        Err(DialError::Connect(e)) if e.kind() == std::io::ErrorKind::InvalidData => Err(GreetError::NotSecure(e)),
        Err(DialError::Connect(e)) => Err(GreetError::NoConnection(e)),
        Err(DialError::Refused(error)) => Err(GreetError::Refused(error)),
        Err(DialError::Protocol(reason) | DialError::Unfit(reason)) => Err(GreetError::NoNode(reason)),
    }
}
