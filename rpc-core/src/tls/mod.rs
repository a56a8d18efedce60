//! TLS 1.3, with or without client certificates: the only place that names `rustls`.
//!
//! `probe` is for ZooKeeper, which is spoken to in TLS 1.2 as well, by another library.
//!
//! Certificates and keys are PEM files, read again when they are replaced, or PEM text. Connections
//! that are open stay as they are.

mod client;
mod distrust;
mod pem;
#[cfg(feature = "zookeeper-tls")]
mod probe;
mod server;
mod stream;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;

pub use client::{ClientTls, ClientTlsFiles};
pub use distrust::Distrust;
#[cfg(feature = "zookeeper-tls")]
pub(crate) use probe::{PemTexts, Probe, ensure_default_provider, is_server_name};
pub use server::{Accepted, ServerTls, ServerTlsFiles};
pub use stream::TlsStream;

/// The time that a handshake may take on the server's side, its first byte included. It takes two
/// round trips; whoever needs longer only occupies a connection.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Chosen here, so that it does not depend on what else the program links.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A failed handshake in words. Where the peer hangs up, it most likely speaks something else, which `question` asks.
fn handshake_failed(error: &io::Error, question: &str) -> io::Error {
    if let Some(reason) = Distrust::of(error) {
        return io::Error::new(error.kind(), reason);
    }
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match error.kind() {
        UnexpectedEof | ConnectionReset | BrokenPipe => {
            io::Error::new(error.kind(), format!("TLS handshake: the peer closed the connection{question}"))
        }
        kind => io::Error::new(kind, format!("TLS handshake: {error}")),
    }
}
