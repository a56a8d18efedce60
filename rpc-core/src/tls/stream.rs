//! A connection on which the handshake is done.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Distrust;

/// Bytes of one TLS record. One at a time is handed over, so that it is known which have left.
const RECORD: usize = 16 * 1024;

/// A connection on which the handshake is done. It differs from what `tokio-rustls` offers in two ways:
///
/// - Bytes count as written when the socket has taken them, not when they are encrypted: what is
///   reported as not written cannot be read by the peer. After `Pending`, the next write has to
///   begin with the same bytes.
/// - A peer that closes without saying so in TLS has closed. Messages carry their length, so one
///   that was cut off is noticed anyway.
#[derive(Debug)]
pub struct TlsStream<Io> {
    inner: tokio_rustls::TlsStream<Io>,
    /// Bytes that are encrypted and not reported as written yet.
    owed: usize,
}

impl<Io> TlsStream<Io> {
    pub(super) fn new(inner: impl Into<tokio_rustls::TlsStream<Io>>) -> Self {
        Self { inner: inner.into(), owed: 0 }
    }

    /// What lies under it.
    pub fn socket(&self) -> &Io {
        self.inner.get_ref().0
    }

    /// The certificate that the peer showed, in DER.
    pub fn peer_certificate(&self) -> Option<&[u8]> {
        self.inner.get_ref().1.peer_certificates()?.first().map(AsRef::as_ref)
    }
}

impl<Io: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<Io> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match ready!(Pin::new(&mut self.inner).poll_read(cx, room)) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            // Of TLS, not of the socket; an alert from the peer is one of them.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Poll::Ready(Err(match Distrust::of(&error) {
                Some(reason) => io::Error::new(error.kind(), reason),
                None => io::Error::new(error.kind(), format!("TLS: {error}")),
            })),
            done => Poll::Ready(done),
        }
    }
}

impl<Io: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.owed == 0 {
            let record = &bytes[..bytes.len().min(RECORD)];
            this.owed = ready!(Pin::new(&mut this.inner).poll_write(cx, record))?;
        }
        ready!(Pin::new(&mut this.inner).poll_flush(cx))?;
        Poll::Ready(Ok(std::mem::take(&mut this.owed)))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
