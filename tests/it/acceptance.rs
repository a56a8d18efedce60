//! The main job on the real parts: real server processes, a real ZooKeeper, kill -9.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rpc_client::{CallOptions, Client, ClientConfig};
use rpc_core::NodeRecord;
use rpc_tests::binaries;
use rpc_tests::process::{Process, SOON};
use rpc_tests::zk::{SESSION, ZooKeeper};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// A server process of the command, once it is registered.
async fn server(url: &str, delay: &str) -> (Process, SocketAddr) {
    let process = binaries::start("rpc-server", ["--port", "0", "--registry", url, "--delay", delay]);
    let addr = serving(&process).await;
    (process, addr)
}

/// The address in the line `serving IP:PORT in URL`.
async fn serving(process: &Process) -> SocketAddr {
    let line = process.stdout_line("serving", SOON).await;
    line.split(' ').nth(1).and_then(|addr| addr.parse().ok()).unwrap_or_else(|| panic!("no address in `{line}`"))
}

async fn client(url: &str) -> Client {
    let config = ClientConfig { wait_for_node: true, ..ClientConfig::default() };
    Client::builder().config(config).connect(url).await.unwrap()
}

/// Waits until `holds`, and says after how long.
async fn until(what: &str, within: Duration, mut holds: impl AsyncFnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < within, "not within {within:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    start.elapsed()
}

/// A ZooKeeper client of its own, which knows nothing of our libraries but the payload.
struct Observer {
    zk: zookeeper_client::Client,
    namespace: &'static str,
}

impl Observer {
    async fn new(zk: &ZooKeeper, namespace: &'static str) -> Self {
        let zk = zookeeper_client::Client::connect(&zk.servers()).await.unwrap();
        Self { zk, namespace }
    }

    async fn entry(&self, addr: SocketAddr) -> Option<(NodeRecord, zookeeper_client::Stat)> {
        let (payload, stat) = self.zk.get_data(&format!("/{}/{addr}", self.namespace)).await.ok()?;
        Some((NodeRecord::from_json(&payload).unwrap(), stat))
    }

    async fn response_time_us(&self, addr: SocketAddr) -> u64 {
        self.entry(addr).await.map_or(0, |(record, _)| record.response_time_us)
    }

    async fn count(&self) -> usize {
        self.zk.list_children(&format!("/{}", self.namespace)).await.map_or(0, |names| names.len())
    }
}

/// Calls one after the other until it is told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    task: JoinHandle<Result<(), String>>,
}

impl Load {
    fn start(client: &Client) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (client, stopped, count) = (client.clone(), stop.clone(), done.clone());
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                client.call::<_, Value>("echo", &[1]).await.map_err(|e| format!("{e}: {:?}", e.attempts()))?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        Self { stop, done, task }
    }

    /// Waits for some more calls to be answered.
    async fn goes_on(&self) {
        let before = self.done.load(Ordering::Relaxed);
        let more = async || self.task.is_finished() || self.done.load(Ordering::Relaxed) > before + 3;
        until("calls go on", SOON, more).await;
    }

    /// How many calls there were. No call may have failed.
    async fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap().unwrap();
        self.done.load(Ordering::Relaxed)
    }
}

/// Requirement S8, with free ports.
#[tokio::test(flavor = "multi_thread")]
async fn the_faster_node_gets_the_calls_and_its_loss_fails_none() {
    let zk = ZooKeeper::standalone().await;
    let url = zk.url("s8");
    let (first, first_addr) = server(&url, "0ms-1000ms").await;
    let client = client(&url).await;
    client.call::<_, Value>("echo", &()).await.unwrap();
    let (second, second_addr) = server(&url, "0ms-3000ms").await;
    until("the second is connected", SOON, async || client.nodes().iter().filter(|n| n.connected).count() == 2).await;
    let mut answers = BTreeMap::new();
    for _ in 0..60 {
        let reply = client.call_detailed("echo", &(), &CallOptions::new()).await.unwrap();
        *answers.entry(reply.node).or_insert(0) += 1;
    }
    let share = f64::from(answers[&first_addr]) / 60.0;
    assert!(share >= 0.7, "the first got {share} of the calls: {answers:?}");

    // A clean stop, while calls go on: nothing fails, and the entry is gone at once.
    let load = Load::start(&client);
    load.goes_on().await;
    first.terminate();
    first.finished(SOON).await;
    let observer = Observer::new(&zk, "s8").await;
    assert!(observer.entry(first_addr).await.is_none());
    load.goes_on().await;
    // It comes back, elsewhere, and the other one is killed: calls in flight there go to it.
    let (_third, third_addr) = server(&url, "0ms-100ms").await;
    until("the third is connected", SOON, async || client.nodes().iter().any(|n| n.node == third_addr && n.connected))
        .await;
    second.kill();
    let killed = Instant::now();
    load.goes_on().await;
    until("the killed server's entry is gone", SESSION + SOON, async || observer.entry(second_addr).await.is_none())
        .await;
    assert!(killed.elapsed() < SESSION * 2, "gone after {:?}, the session is {SESSION:?}", killed.elapsed());
    load.finish().await;
}

/// Requirements S1, S6 and S7 as somebody else sees them.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_sees_the_entry_written_back_and_expired() {
    let zk = ZooKeeper::standalone().await;
    let url = zk.url("seen");
    let (_server, addr) = server(&url, "1ms").await;
    let observer = Observer::new(&zk, "seen").await;
    let (record, stat) = observer.entry(addr).await.unwrap();
    assert_ne!(stat.ephemeral_owner, 0, "the entry is ephemeral");
    assert_eq!((record.v, record.response_time_us), (1, 0));
    assert_eq!(record.id.len(), 36);

    let (one, two) = (client(&url).await, client(&url).await);
    let loads = [Load::start(&one), Load::start(&two)];
    let written = until("written back", Duration::from_secs(2), async || observer.response_time_us(addr).await > 0);
    written.await;
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        let us = observer.response_time_us(addr).await;
        assert!(us >= 1000, "{us} us during steady calls");
        sleep_until(Instant::now() + Duration::from_millis(50)).await;
    }
    for load in loads {
        load.finish().await;
    }
    // What is under way may still be written; then nothing but the reset.
    let (mut version, mut since) = (None, Instant::now());
    loop {
        let (record, stat) = observer.entry(addr).await.unwrap();
        let now = Instant::now();
        if record.response_time_us == 0 {
            let after = now - since;
            assert!(after >= Duration::from_secs(5) && after < Duration::from_secs(11), "reset after {after:?}");
            break;
        }
        if version.replace(stat.mzxid) != Some(stat.mzxid) {
            since = now;
        }
        assert!(now - since < Duration::from_secs(15), "never reset");
        sleep_until(now + Duration::from_millis(10)).await;
    }
}

/// The client that holds the lease is killed; the other one takes the job over.
#[tokio::test(flavor = "multi_thread")]
async fn the_job_goes_on_when_its_leader_is_killed() {
    let zk = ZooKeeper::standalone().await;
    let url = zk.url("job");
    let (_server, addr) = server(&url, "1ms").await;
    // It leads: nobody else takes part yet.
    let arguments = ["bench", "echo", "--duration", "60s", "--rps", "2", "--registry", &url];
    let leader = binaries::start("rpc-client", arguments);
    let observer = Observer::new(&zk, "job").await;
    let lock = "/job.cluster/jobs/expire";
    let candidates = async || {
        let names = observer.zk.list_children(lock).await.unwrap_or_default();
        names.iter().filter(|name| name.contains("lock-")).count()
    };
    until("the first client takes part in the election", SOON, async || candidates().await == 1).await;
    let other = client(&url).await;
    until("the second does too", SOON, async || candidates().await == 2).await;
    other.call::<_, Value>("echo", &()).await.unwrap();
    until("written back", SOON, async || observer.response_time_us(addr).await > 0).await;
    leader.kill();
    let killed = Instant::now();
    until("reset by the other", SOON * 2, async || observer.response_time_us(addr).await == 0).await;
    // One session timeout for the lock to go, one slot of 5 s, 5 s of validity, and the crate's polling.
    assert!(killed.elapsed() < SESSION * 2 + Duration::from_secs(11), "reset after {:?}", killed.elapsed());
}

/// ZooKeeper is away for 20 s under load, and comes back with or without its data.
async fn survives_an_outage(with_data: bool) {
    let zk = ZooKeeper::standalone().await;
    let url = zk.url("outage");
    let mut servers = Vec::new();
    for delay in ["1ms", "2ms", "3ms"] {
        servers.push(server(&url, delay).await);
    }
    let client = client(&url).await;
    until("all are connected", SOON, async || client.nodes().iter().filter(|n| n.connected).count() == 3).await;
    let load = Load::start(&client);
    load.goes_on().await;
    zk.kill(0);
    sleep_until(Instant::now() + Duration::from_secs(20)).await;
    load.goes_on().await;
    if !with_data {
        zk.wipe(0);
    }
    zk.start(0).await;
    let back = Instant::now();
    let observer = Observer::new(&zk, "outage").await;
    until("all are registered again", SOON, async || observer.count().await == 3).await;
    assert!(back.elapsed() < Duration::from_secs(5), "registered again after {:?}", back.elapsed());
    load.goes_on().await;
    assert_eq!(client.nodes().iter().filter(|n| n.connected).count(), 3);
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_zookeeper_fails_no_call() {
    survives_an_outage(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zookeeper_that_lost_its_data_fails_no_call() {
    survives_an_outage(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_an_ensembles_leader_fails_no_call() {
    let zk = ZooKeeper::ensemble().await;
    let url = zk.url("ensemble");
    let (_a, _) = server(&url, "1ms").await;
    let (_b, _) = server(&url, "2ms").await;
    let client = client(&url).await;
    let load = Load::start(&client);
    load.goes_on().await;
    let leader = zk.leader().await;
    zk.kill(leader);
    let killed = Instant::now();
    let observer = Observer::new(&zk, "ensemble").await;
    until("both are registered", SOON, async || observer.count().await == 2).await;
    load.goes_on().await;
    // Two sessions and an election: whatever was lost by the leader's death would be gone by now.
    sleep_until(killed + SESSION * 2).await;
    assert_eq!(observer.count().await, 2);
    load.goes_on().await;
    load.finish().await;
}

/// Requirement S6: the registry's load does not depend on the number of clients or calls.
#[tokio::test(flavor = "multi_thread")]
async fn many_busy_clients_write_no_more_than_the_interval_allows() {
    let zk = ZooKeeper::standalone().await;
    let url = zk.url("busy");
    const NODES: usize = 3;
    let mut servers = Vec::new();
    for _ in 0..NODES {
        servers.push(server(&url, "0ms").await);
    }
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(client(&url).await);
    }
    let loads: Vec<Load> = clients.iter().map(Load::start).collect();
    for load in &loads {
        load.goes_on().await;
    }
    let (before, start) = (zk.transactions(0).await, Instant::now());
    sleep_until(start + Duration::from_secs(10)).await;
    let writes = zk.transactions(0).await - before;
    let allowed = 2.0 * NODES as f64 * start.elapsed().as_secs_f64();
    for load in loads {
        load.finish().await;
    }
    assert!(writes as f64 <= allowed, "{writes} transactions, {allowed} allowed");
    assert!(writes > 0, "nothing was written back");
}
