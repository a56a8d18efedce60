//! Connections with TLS: the handshake, and those who do not want one.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rpc_core::protocol::code;
use rpc_core::tls::{Accepted, HANDSHAKE_TIMEOUT, ServerTls, TlsStream};
use rpc_core::wire::{Id, NotAFrame, Spoken, put_error, spoken};
use rpc_core::{RpcError, net};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::connection::Connection;
use crate::ends::EndKind;
use crate::links::LinkGuard;
use crate::server::Shared;

/// Serves a connection until it ends.
pub(crate) async fn serve(tls: ServerTls, stream: net::Stream, peer: SocketAddr, shared: Arc<Shared>, link: LinkGuard) {
    match timeout(HANDSHAKE_TIMEOUT, accept(&tls, stream)).await {
        Ok(Ok(Some(Accepted { stream, names }))) => {
            let is_broken = |stream: &TlsStream<net::Stream>| net::is_broken(stream.socket());
            Connection::new(stream, is_broken, peer, &names, shared, link).await;
        }
        Ok(Ok(None)) => tracing::debug!(%peer, "closed by the peer"),
        Ok(Err(error)) => shared.ends.tell(peer, EndKind::Handshake, &error),
        Err(_) => {
            let late = format_args!("no TLS handshake within {HANDSHAKE_TIMEOUT:?}");
            shared.ends.tell(peer, EndKind::Handshake, &late);
        }
    }
}

/// None if the peer closes before it says anything.
async fn accept(tls: &ServerTls, stream: net::Stream) -> io::Result<Option<Accepted<net::Stream>>> {
    let Some(first) = net::first_byte(&stream).await? else { return Ok(None) };
    match spoken(first) {
        Spoken::Tls => tls.accept(stream).await.map(Some),
        Spoken::Frames => {
            // It is refused whether or not it hears so.
            let _ = refuse(stream).await;
            Err(io::Error::other("the peer does not speak TLS, which this server requires"))
        }
        Spoken::Other => Err(io::Error::other(NotAFrame(first))),
    }
}

/// Tells a peer without TLS why it is not served, and waits until it has gone.
async fn refuse(mut stream: net::Stream) -> io::Result<()> {
    let error = RpcError::new(code::TLS_REQUIRED, "this server speaks TLS only");
    let mut out = Vec::new();
    put_error(&mut out, &Id::NULL, None, &error, usize::MAX);
    stream.write_all(&out).await?;
    stream.shutdown().await?;
    // Closing with unread bytes would reset the connection, and the peer might not get to read the answer.
    while stream.read(&mut [0; 1024]).await? > 0 {}
    Ok(())
}
