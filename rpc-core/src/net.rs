//! Sockets. The only file that names `TcpStream`; `tls` goes around them.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// A connection without TLS.
pub type Stream = TcpStream;

/// Connections that wait for `accept`. The kernel caps it at `net.core.somaxconn`.
const BACKLOG: u32 = 1024;

/// The kernel asks an idle peer for a sign of life after this time: the last resort against peers
/// that do not answer `rpc.ping` because they never said hello.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// And again after this time. The kernel of a peer that is gone says so only when it has forgotten the connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Listens on `addr`; port 0 picks a free one.
///
/// # Errors
/// What the operating system says, such as the address being in use.
pub fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A server that restarts finds the old connections of its port in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Connects to `addr`.
///
/// # Errors
/// What the operating system says, or `TimedOut` after `timeout`.
pub async fn dial(addr: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(timeout, TcpStream::connect(addr)).await.map_err(|_| {
        io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {} ms", timeout.as_millis()))
    })??;
    configure(&stream)?;
    Ok(stream)
}

/// Accepts one connection.
///
/// # Errors
/// What the operating system says, such as too many open files.
pub async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    configure(&stream)?;
    Ok((stream, peer))
}

/// The first byte that the peer sends, which stays to be read; none if it closes before.
///
/// # Errors
/// The connection broke.
pub async fn first_byte(stream: &TcpStream) -> io::Result<Option<u8>> {
    let mut byte = [0];
    Ok((stream.peek(&mut byte).await? > 0).then_some(byte[0]))
}

/// Whether the connection is broken. After the peer has closed its side, reading does not tell.
pub fn is_broken(stream: &TcpStream) -> bool {
    !matches!(stream.take_error(), Ok(None))
}

fn configure(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}
