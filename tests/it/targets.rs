//! What is promised of deployments, crashes and outages: real processes, a real ZooKeeper, a load that
//! does not wait for anybody.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rpc_client::{CallOptions, Client, ErrorKind, Reply};
use rpc_tests::chaos;
use rpc_tests::cluster::{SOON, connected, nodes_are, until};
use rpc_tests::load::{OpenLoad, Timed};
use rpc_tests::process::{Exit, Process};
use rpc_tests::zk::{SESSION, ZooKeeper};
use serde_json::json;
use tokio::time::{Instant, sleep};

const SERVERS: usize = 5;

/// Calls a second: what is promised in the long tests, and what a busy machine can do in the others.
fn rate() -> u32 {
    if std::env::var_os("RPC_TESTS_LONG").is_some() { 2000 } else { 300 }
}

/// Five server processes, each with an address of its own that it keeps.
struct Servers {
    url: String,
    dir: tempfile::TempDir,
    addrs: Vec<SocketAddr>,
    processes: Vec<Process>,
    _zk: ZooKeeper,
}

impl Servers {
    async fn start() -> Self {
        let zk = ZooKeeper::standalone().await;
        // Addresses of the machine's own network that nobody else uses.
        let [a, b, _, _] = Ipv4Addr::from(0x7f00_0000 | (std::process::id() << 8 & 0xff_ff00)).octets();
        let [_, _, c, _] = Ipv4Addr::from(std::process::id() << 8).octets();
        let addrs: Vec<SocketAddr> = (0..SERVERS).map(|n| ([a, b, c, 100 + n as u8], 7000).into()).collect();
        let mut this =
            Self { url: zk.url("targets"), dir: tempfile::tempdir().unwrap(), addrs, processes: Vec::new(), _zk: zk };
        for n in 0..SERVERS {
            let process = this.spawn(n).await;
            this.processes.push(process);
        }
        this
    }

    async fn spawn(&self, n: usize) -> Process {
        let process = chaos::server(program(), &self.url, self.addrs[n], &self.ledger(n));
        process.stdout_line("incarnation", SOON).await;
        process
    }

    fn ledger(&self, n: usize) -> PathBuf {
        self.dir.path().join(n.to_string())
    }

    /// A client that is connected to all of them.
    async fn client(&self) -> Client {
        let client = Client::connect(&self.url).await.unwrap();
        connected(&client, SERVERS).await;
        client
    }

    /// Checks that no call but the repeatable ones was begun twice, and what was answered once.
    fn begun_once(&self, calls: &[Timed<Reply>]) {
        let begun = chaos::begun((0..SERVERS).map(|n| self.ledger(n)));
        for call in calls.iter().filter(|call| !is_safe(call.number)) {
            let times = begun.get(&call.number).copied().unwrap_or(0);
            let right = if call.outcome.is_ok() { times == 1 } else { times <= 1 };
            assert!(right, "{} was begun {times} times: {:?}", call.number, call.outcome);
        }
    }
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_chaos"))
}

fn is_safe(number: u64) -> bool {
    number.is_multiple_of(2)
}

/// Every second call may be repeated.
fn load(client: &Client) -> OpenLoad<Reply> {
    let client = client.clone();
    OpenLoad::start(rate(), move |number| {
        let client = client.clone();
        async move {
            let method = if is_safe(number) { "safe" } else { "once" };
            let params = json!({"number": number, "ms": number % 8, "filling": ""});
            client.call_detailed(method, &params, &CallOptions::new()).await
        }
    })
}

fn failed(calls: &[Timed<Reply>]) -> Vec<&Timed<Reply>> {
    calls.iter().filter(|call| call.outcome.is_err()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_of_five_nodes_fails_no_call() {
    let mut servers = Servers::start().await;
    let client = servers.client().await;
    let calling = load(&client);
    for n in 0..SERVERS {
        sleep(Duration::from_millis(300)).await;
        let old: Vec<String> = client.nodes().into_iter().map(|node| node.id).collect();
        let addr = servers.addrs[n];
        servers.processes[n].terminate();
        let ended = servers.processes[n].finished(SOON).await;
        assert_eq!(ended.exit, Some(Exit::Code(0)), "{ended:?}");
        servers.processes[n] = servers.spawn(n).await;
        let back = |nodes: &[rpc_client::NodeStatus]| {
            nodes.iter().any(|node| node.node == addr && node.connected && !old.contains(&node.id))
        };
        nodes_are(&client, "used again", back).await;
    }
    let calls = calling.stop().await;
    assert!(failed(&calls).is_empty(), "{} of {}: {:?}", failed(&calls).len(), calls.len(), failed(&calls)[0]);
    servers.begun_once(&calls);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_costs_only_what_it_was_working_on() {
    let servers = Servers::start().await;
    let client = servers.client().await;
    let calling = load(&client);
    sleep(Duration::from_secs(1)).await;
    let (victim, addr) = (&servers.processes[2], servers.addrs[2]);
    victim.kill();
    let killed = Instant::now();
    nodes_are(&client, "without it", |nodes| nodes.iter().all(|node| node.node != addr)).await;
    assert!(killed.elapsed() < SESSION + Duration::from_secs(3), "{:?}", killed.elapsed());
    let calls = calling.stop().await;
    let failed = failed(&calls);
    for call in &failed {
        let error = call.outcome.as_ref().unwrap_err();
        assert!(!is_safe(call.number), "{call:?}");
        let lost = matches!(error.kind(), ErrorKind::Transport { node, sent: true, .. } if *node == addr);
        assert!(lost && call.began < killed + Duration::from_millis(100), "{call:?}");
    }
    // A quarter of a second's calls at one of five nodes would be far more than were in flight.
    assert!(failed.len() <= rate() as usize / 20, "{} failed", failed.len());
    let late: Vec<_> = calls.iter().filter(|call| call.began > killed + Duration::from_millis(100)).collect();
    assert!(late.len() > rate() as usize, "{}", late.len());
    for call in late {
        let reply = call.outcome.as_ref().unwrap();
        assert!(reply.attempts.iter().all(|attempt| attempt.node != addr), "{call:?}");
    }
    servers.begun_once(&calls);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_hangs_for_five_seconds_fails_no_call_that_may_be_repeated() {
    let servers = Servers::start().await;
    let client = servers.client().await;
    let calling = load(&client);
    sleep(Duration::from_secs(1)).await;
    let (victim, addr) = (&servers.processes[1], servers.addrs[1]);
    victim.pause();
    let paused = Instant::now();
    sleep(Duration::from_secs(5)).await;
    victim.resume();
    let resumed = Instant::now();
    // Its session has expired meanwhile: it puts itself back into the list.
    let back = |nodes: &[rpc_client::NodeStatus]| nodes.iter().any(|node| node.node == addr && node.connected);
    nodes_are(&client, "back", back).await;
    assert!(resumed.elapsed() < Duration::from_secs(8), "{:?}", resumed.elapsed());
    let calls = calling.stop().await;
    for call in failed(&calls) {
        assert!(!is_safe(call.number), "{call:?}");
        // It was sent before anybody could know.
        assert!(call.began < paused + Duration::from_secs(1), "{call:?}");
    }
    let slow = calls.iter().filter(|call| is_safe(call.number)).map(|call| call.ended - call.began).max();
    assert!(slow.is_some_and(|slow| slow < Duration::from_millis(2500)), "{slow:?}");
    servers.begun_once(&calls);
    until("calls on all nodes again", SOON, || client.nodes().iter().filter(|node| node.connected).count() == SERVERS)
        .await;
}
