//! A cable between a client and a server that tests can pull.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::cluster::any_port;

/// Forwards TCP connections to another address of this machine, and spoils them on demand.
#[derive(Debug)]
pub struct Link {
    /// Where clients connect.
    pub addr: SocketAddr,
    state: Arc<watch::Sender<State>>,
    forwarding: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    target: Option<SocketAddr>,
    delay: Duration,
    stalled: bool,
    /// Connections of an older generation are closed.
    generation: u64,
}

impl Link {
    /// A link that leads nowhere yet: connections to it are closed at once.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn open() -> Self {
        let listener = TcpListener::bind(any_port()).await.expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let state = State { target: None, delay: Duration::ZERO, stalled: false, generation: 0 };
        let state = Arc::new(watch::Sender::new(state));
        let forwarding = tokio::spawn(forward(listener, state.clone()));
        Self { addr, state, forwarding }
    }

    /// New connections go to `target`.
    pub fn lead_to(&self, target: SocketAddr) {
        self.state.send_modify(|s| s.target = Some(target));
    }

    /// Every piece of data is held up for `delay`, in both directions.
    pub fn delay(&self, delay: Duration) {
        self.state.send_modify(|s| s.delay = delay);
    }

    /// Nothing passes any more, and nobody is told: connections stay open, new ones too.
    pub fn stall(&self) {
        self.state.send_modify(|s| s.stalled = true);
    }

    /// Ends a stall; what was held up goes on.
    pub fn resume(&self) {
        self.state.send_modify(|s| s.stalled = false);
    }

    /// Breaks all connections, new ones work.
    pub fn cut(&self) {
        self.state.send_modify(|s| s.generation += 1);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.forwarding.abort();
    }
}

async fn forward(listener: TcpListener, state: Arc<watch::Sender<State>>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        let mut state = state.subscribe();
        let now = *state.borrow_and_update();
        connections.spawn(async move {
            let mut watched = state.clone();
            let cut = async move { drop(watched.wait_for(|s| s.generation != now.generation).await) };
            tokio::select! {
                () = connection(client, state) => {}
                () = cut => {}
            }
        });
    }
}

async fn connection(client: TcpStream, mut state: watch::Receiver<State>) {
    // A stalled link accepts, as the kernel of a hung machine does.
    let Ok(now) = state.wait_for(|s| !s.stalled).await.map(|s| *s) else { return };
    let Some(target) = now.target else { return };
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
