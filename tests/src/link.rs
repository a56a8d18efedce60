//! Cables between clients and servers that tests can pull.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::cluster::any_port;

/// A way to another address of this machine, which tests can spoil.
#[derive(Clone, Debug)]
pub struct Line(Arc<watch::Sender<State>>);

#[derive(Clone, Copy, Debug)]
struct State {
    target: Option<SocketAddr>,
    delay: Duration,
    stalled: bool,
    severed: bool,
    /// Connections of an older generation are closed.
    generation: u64,
}

impl Line {
    fn to(target: Option<SocketAddr>) -> Self {
        let state = State { target, delay: Duration::ZERO, stalled: false, severed: false, generation: 0 };
        Self(Arc::new(watch::Sender::new(state)))
    }

    /// New connections go to `target`.
    pub fn lead_to(&self, target: SocketAddr) {
        self.0.send_modify(|s| s.target = Some(target));
    }

    /// Every piece of data is held up for `delay`, in both directions.
    pub fn delay(&self, delay: Duration) {
        self.0.send_modify(|s| s.delay = delay);
    }

    /// Nothing passes any more, and nobody is told: connections stay open, new ones too.
    pub fn stall(&self) {
        self.0.send_modify(|s| s.stalled = true);
    }

    /// Breaks all connections, and closes each new one.
    pub fn sever(&self) {
        self.0.send_modify(|s| {
            s.generation += 1;
            s.severed = true;
        });
    }

    /// Ends a stall, after which what was held up goes on, or lets new connections through again.
    pub fn resume(&self) {
        self.0.send_modify(|s| {
            s.stalled = false;
            s.severed = false;
        });
    }

    /// Breaks all connections, new ones work.
    pub fn cut(&self) {
        self.0.send_modify(|s| s.generation += 1);
    }
}

/// Forwards TCP connections to another address of this machine, and spoils them on demand.
#[derive(Debug)]
pub struct Link {
    /// Where clients connect.
    pub addr: SocketAddr,
    line: Line,
    forwarding: JoinHandle<()>,
}

impl Link {
    /// A link that leads nowhere yet: connections to it are closed at once.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn open() -> Self {
        let line = Line::to(None);
        let only = line.clone();
        let (addr, forwarding) = forward(move |_, _| Some(only.clone())).await;
        Self { addr, line, forwarding }
    }
}

impl std::ops::Deref for Link {
    type Target = Line;

    fn deref(&self) -> &Line {
        &self.line
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.forwarding.abort();
    }
}

/// A link to one address with a line for each of several clients.
#[derive(Debug)]
pub struct Switch {
    /// Where clients connect.
    pub addr: SocketAddr,
    /// The lines, by client.
    pub lines: Vec<Line>,
    forwarding: JoinHandle<()>,
}

impl Switch {
    /// A switch to `target` with so many lines. `who` tells from the two addresses of a connection, the
    /// client's first, which client made it; connections of others are closed.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn open(
        target: SocketAddr,
        clients: usize,
        who: impl Fn(SocketAddr, SocketAddr) -> Option<usize> + Send + Sync + 'static,
    ) -> Self {
        let lines: Vec<Line> = (0..clients).map(|_| Line::to(Some(target))).collect();
        let all = lines.clone();
        let (addr, forwarding) = forward(move |peer, addr| who(peer, addr).map(|client| all[client].clone())).await;
        Self { addr, lines, forwarding }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.forwarding.abort();
    }
}

async fn forward(
    line: impl Fn(SocketAddr, SocketAddr) -> Option<Line> + Send + Sync + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let line = Arc::new(line);
    let listener = TcpListener::bind(any_port()).await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let forwarding = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let Ok((client, peer)) = listener.accept().await else { continue };
            while connections.try_join_next().is_some() {}
            let line = line.clone();
            connections.spawn(async move {
                // It may take some milliseconds to find out, in which others want to connect too.
                let Ok(Some(line)) = spawn_blocking(move || line(peer, addr)).await else { return };
                let mut state = line.0.subscribe();
                let now = *state.borrow_and_update();
                let mut watched = state.clone();
                let cut = async move { drop(watched.wait_for(|s| s.generation != now.generation).await) };
                tokio::select! {
                    () = connection(client, state) => {}
                    () = cut => {}
                }
            });
        }
    });
    (addr, forwarding)
}

async fn connection(client: TcpStream, mut state: watch::Receiver<State>) {
    // A stalled link accepts, as the kernel of a hung machine does.
    let Ok(now) = state.wait_for(|s| !s.stalled).await.map(|s| *s) else { return };
    let Some(target) = now.target.filter(|_| !now.severed) else { return };
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), server.into_split());
    tokio::join!(pump(client_in, server_out, state.clone()), pump(server_in, client_out, state));
}

/// Moves bytes one way until either end closes; then that way is closed too.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<State>) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = from.read(&mut piece).await {
        let delay = state.borrow().delay;
        if !delay.is_zero() {
            sleep(delay).await;
        }
        if state.wait_for(|s| !s.stalled).await.is_err() || to.write_all(&piece[..n]).await.is_err() {
            return;
        }
    }
    let _ = state.wait_for(|s| !s.stalled).await;
}
