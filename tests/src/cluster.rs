//! Servers and clients of this process, on real sockets.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rpc_client::{Client, ConnectionState, NodeStatus};
use rpc_core::net;
use rpc_server::ServerBuilder;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// Time for what takes milliseconds on an idle machine.
pub const SOON: Duration = Duration::from_secs(20);

/// A port of the loopback address that the system picks.
pub fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// An address at which nobody listens. Nobody else is given it either: the socket that holds it
/// is kept, bound and not listening, until the second value is dropped.
///
/// # Panics
/// When the system has no free port.
pub fn dead_address() -> (SocketAddr, impl Sized) {
    let socket = tokio::net::TcpSocket::new_v4().expect("the system has sockets");
    socket.bind(any_port()).expect("a free port");
    (socket.local_addr().expect("it is bound"), socket)
}

/// A random number to seed a test with, shown when the test fails.
#[expect(clippy::print_stderr, reason = "the test harness shows it with a failure")]
pub fn seed() -> u64 {
    let seed = RandomState::new().hash_one(std::process::id());
    eprintln!("seed {seed}");
    seed
}

/// The URL of an in-process registry that nobody else uses.
pub fn fresh_registry() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("mem:test-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A running server.
pub struct Node {
    /// The address that clients are told.
    pub addr: SocketAddr,
    /// The address it listens on.
    pub bound: SocketAddr,
    /// The incarnation in its registry record.
    pub incarnation: String,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Node {
    /// Starts a server on a free port.
    ///
    /// # Panics
    /// When it cannot start.
    pub async fn start(builder: ServerBuilder) -> Self {
        Self::start_at(any_port(), builder).await
    }

    /// Starts a server on `addr`; a port that was just left may take a moment to become free.
    ///
    /// # Panics
    /// When it cannot start.
    pub async fn start_at(addr: SocketAddr, builder: ServerBuilder) -> Self {
        if addr.port() != 0 {
            until(&format!("free port {addr}"), SOON, || net::bind(addr).is_ok()).await;
        }
        let server = builder.bind(addr).await.expect("the server starts");
        let (addr, bound) = (server.advertised_addr(), server.local_addr());
        let incarnation = server.incarnation().to_owned();
        if let Some(mut status) = server.registration() {
            let registered = |s: &rpc_core::registry::RegistrationStatus| {
                !matches!(s, rpc_core::registry::RegistrationStatus::Pending { .. })
            };
            timeout(SOON, status.wait_for(registered)).await.expect("it registers in time").expect("it is alive");
        }
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(server.serve(async { drop(stopped.await) }));
        Self { addr, bound, incarnation, stop, serving }
    }

    /// Ends it at once: its connections break, its calls are never answered.
    pub async fn kill(self) {
        self.serving.abort();
        let _ = self.serving.await;
    }

    /// Stops it in good order and returns when it has ended.
    ///
    /// # Panics
    /// When that takes too long.
    pub async fn stop(self) {
        drop(self.stop);
        timeout(SOON, self.serving).await.expect("the server drains in time").expect("it does not panic");
    }
}

/// Waits until `condition` holds.
///
/// # Panics
/// When it does not within the time.
pub async fn until(what: &str, within: Duration, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + within;
    while !condition() {
        assert!(Instant::now() < end, "no {what} within {within:?}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until what the client knows of the nodes satisfies `condition`.
///
/// # Panics
/// When it does not in time; says what the nodes were.
pub async fn nodes_are(client: &Client, what: &str, mut condition: impl FnMut(&[NodeStatus]) -> bool) {
    let end = Instant::now() + SOON;
    loop {
        let nodes = client.nodes();
        if condition(&nodes) {
            return;
        }
        assert!(Instant::now() < end, "not {what} within {SOON:?}: {nodes:#?}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until the client lists exactly `count` nodes and is connected to all of them.
///
/// # Panics
/// When that does not happen in time.
pub async fn connected(client: &Client, count: usize) {
    let all =
        |nodes: &[NodeStatus]| nodes.len() == count && nodes.iter().all(|n| n.connection == ConnectionState::Connected);
    nodes_are(client, &format!("connected to {count} nodes"), all).await;
}

/// Lets this process open as many files as the system allows.
pub fn open_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum });
}
