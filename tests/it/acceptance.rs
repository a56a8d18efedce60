//! The main job on the real parts: our commands as processes, a real ZooKeeper, and an observer that
//! shares no code with them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use rpc_client::{CallOptions, Client, Reply};
use rpc_tests::binaries;
use rpc_tests::cluster::{connected, nodes_are, until};
use rpc_tests::load::{Load, failures};
use rpc_tests::process::{Exit, Process, SOON};
use rpc_tests::zk::{SESSION, ZooKeeper};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep};
use zookeeper_client as zk;

/// Steps in which the tests' ZooKeeper expires sessions, and a busy machine.
const EXPIRY_SLACK: Duration = Duration::from_secs(3);

/// Whether to take the time that the long variants need.
fn long() -> bool {
    std::env::var_os("RPC_TESTS_LONG").is_some()
}

/// Starts `rpc-server` and waits until it serves.
async fn server(url: &str, options: &[&str]) -> (Process, SocketAddr) {
    let process = start_server(url, options);
    let addr = serving(&process, url).await;
    (process, addr)
}

fn start_server(url: &str, options: &[&str]) -> Process {
    let port: &[&str] = if options.contains(&"--port") { &[] } else { &["--port", "0"] };
    binaries::start("rpc-server", [&["--registry", url], port, options].concat())
}

/// The address in the line that a server writes once it can be found.
async fn serving(process: &Process, url: &str) -> SocketAddr {
    let line = process.stdout_line("serving ", SOON).await;
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!((words.len(), words[0], words[2], words[3]), (4, "serving", "in", url), "{line}");
    words[1].parse().unwrap()
}

fn client_command(url: &str, options: &[&str]) -> Process {
    binaries::start("rpc-client", [options, &["--registry", url]].concat())
}

/// Runs `rpc-client` to its end and returns what it said as JSON, with its exit code.
async fn client_says(url: &str, options: &[&str]) -> (Value, i32) {
    let process = client_command(url, &[options, &["--format", "json"]].concat());
    let seen = process.finished(SOON * 3).await;
    let Some(Exit::Code(code)) = seen.exit else { panic!("{:?}", seen.exit) };
    let text = seen.stdout.join("\n");
    let json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}\n{}", seen.stderr.join("\n")));
    (json, code)
}

/// Calls of `echo` by the node that answered, until told to stop.
fn load(client: &Client, tasks: u64) -> Load<Reply> {
    let client = client.clone();
    Load::start(tasks, move |call| {
        let client = client.clone();
        async move { client.call_detailed("echo", &[call], &CallOptions::new()).await }
    })
}

/// Another program that looks at ZooKeeper all the time.
struct Observer {
    client: zk::Client,
}

/// A value that an entry had, and when it was first seen; none while there was no entry.
type Sighting = (Instant, Option<u64>);

impl Observer {
    async fn new(zk: &ZooKeeper) -> Self {
        let client = zk::Client::connector().with_session_timeout(SESSION).connect(&zk.servers()).await.unwrap();
        Self { client }
    }

    async fn nodes(&self, namespace: &str) -> Vec<String> {
        match self.client.list_children(namespace).await {
            Err(zk::Error::NoNode) => Vec::new(),
            other => other.unwrap(),
        }
    }

    async fn entry(&self, namespace: &str, addr: SocketAddr) -> Option<(Value, zk::Stat)> {
        match self.client.get_data(&format!("{namespace}/{addr}")).await {
            Err(zk::Error::NoNode) => None,
            other => {
                let (data, stat) = other.unwrap();
                Some((serde_json::from_slice(&data).unwrap(), stat))
            }
        }
    }

    async fn gone(&self, namespace: &str, addr: SocketAddr, within: Duration) {
        let end = Instant::now() + within;
        while self.entry(namespace, addr).await.is_some() {
            assert!(Instant::now() < end, "{addr} is still listed after {within:?}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Notes each new version of an entry, within 20 ms.
    fn watch(&self, namespace: &'static str, addr: SocketAddr) -> Watch {
        let observer = Self { client: self.client.clone() };
        let seen: Arc<Mutex<Vec<Sighting>>> = Arc::default();
        let noted = seen.clone();
        let task = tokio::spawn(async move {
            let mut last = None;
            loop {
                let entry = observer.entry(namespace, addr).await;
                let version = entry.as_ref().map(|(_, stat)| (stat.czxid, stat.version));
                if last != Some(version) {
                    last = Some(version);
                    let value = entry.map(|(record, _)| record["response_time_us"].as_u64().unwrap());
                    noted.lock().push((Instant::now(), value));
                }
                sleep(Duration::from_millis(20)).await;
            }
        });
        Watch { seen, task }
    }
}

struct Watch {
    seen: Arc<Mutex<Vec<Sighting>>>,
    task: JoinHandle<()>,
}

impl Watch {
    fn all(&self) -> Vec<Sighting> {
        assert!(!self.task.is_finished(), "the observer lost its connection");
        self.seen.lock().clone()
    }

    async fn until(&self, what: &str, within: Duration, found: impl Fn(&[Sighting]) -> bool) -> Vec<Sighting> {
        let end = Instant::now() + within;
        loop {
            let all = self.all();
            if found(&all) {
                return all;
            }
            assert!(Instant::now() < end, "no {what} within {within:?}: {all:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Requirement S8: one client throughout, started with one of the two servers.
#[tokio::test(flavor = "multi_thread")]
async fn the_demonstration() {
    let zk = ZooKeeper::standalone().await;
    let url = zk.url("rpc");
    let observer = Observer::new(&zk).await;
    let (quick, at_quick) = server(&url, &["--delay", "0ms-1000ms"]).await;
    let client = Client::connect(&url).await.unwrap();
    connected(&client, 1).await;
    client.call_detailed("echo", &["before"], &CallOptions::new()).await.unwrap();
    let (_slow, at_slow) = server(&url, &["--delay", "0ms-3000ms"]).await;
    connected(&client, 2).await;

    let mut shares = BTreeMap::from([(at_quick, 0), (at_slow, 0)]);
    for call in 0..60 {
        let reply = client.call_detailed("echo", &[call], &CallOptions::new()).await.unwrap();
        *shares.get_mut(&reply.node).unwrap() += 1;
    }
    assert!(shares[&at_quick] >= 42, "at least 70 % for the faster: {shares:?}");

    // It stops in good order.
    let calling = load(&client, 8);
    calling.more(8).await;
    let began = Instant::now();
    quick.terminate();
    nodes_are(&client, "without the stopped node", |n| n.iter().all(|n| n.node != at_quick)).await;
    observer.gone("/rpc", at_quick, SOON).await;
    assert_eq!(quick.finished(SOON).await.exit, Some(Exit::Code(0)));
    assert!(began.elapsed() < Duration::from_secs(5), "it had a second's work: {:?}", began.elapsed());
    calling.more(8).await;

    // It is back on its port, and is killed.
    let (quick, again) = server(&url, &["--port", &at_quick.port().to_string(), "--delay", "0ms-1000ms"]).await;
    assert_eq!(again, at_quick);
    connected(&client, 2).await;
    calling.more(8).await;
    quick.kill();
    let killed = Instant::now();
    nodes_are(&client, "no connection to it", |n| n.iter().all(|n| n.node != at_quick || !n.connected)).await;
    assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
    observer.gone("/rpc", at_quick, SESSION + EXPIRY_SLACK).await;
    nodes_are(&client, "without the killed node", |n| n.iter().all(|n| n.node != at_quick)).await;
    calling.more(8).await;
    let outcomes = calling.stop().await;
    assert!(failures(&outcomes).is_empty(), "{:?}", failures(&outcomes));
    let last = client.call_detailed("echo", &["after"], &CallOptions::new()).await.unwrap();
    assert_eq!(last.node, at_slow);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_sees_response_times_come_stay_and_go() {
    let zk = ZooKeeper::standalone().await;
    let url = zk.url("rpc");
    let observer = Observer::new(&zk).await;
    let (_server, addr) = server(&url, &["--delay", "10ms", "--name", "tea"]).await;
    let (record, stat) = observer.entry("/rpc", addr).await.unwrap();
    assert_ne!(stat.ephemeral_owner, 0, "it is ephemeral");
    assert_eq!((&record["v"], &record["weight"], &record["state"]), (&1.into(), &100.into(), &"up".into()));
    assert_eq!((&record["response_time_us"], &record["meta"]["name"]), (&0.into(), &"tea".into()));
    assert!(record["id"].as_str().is_some_and(|id| id.len() == 36) && record["started_ms"].is_u64(), "{record}");
    assert_eq!(observer.nodes("/rpc").await, [addr.to_string()], "nothing else is in there");

    let steady = Duration::from_secs(if long() { 60 } else { 15 });
    let watch = observer.watch("/rpc", addr);
    // Two clients; one of them calls without success, which is never written.
    let other = client_command(&url, &["bench", "fail", r#"{"code":7}"#, "--rps", "2", "--duration", "600s"]);
    let client = Client::connect(&url).await.unwrap();
    connected(&client, 1).await;
    let (began, mut pace) = (Instant::now(), interval(Duration::from_millis(100)));
    while began.elapsed() < steady {
        pace.tick().await;
        client.call_detailed("echo", &(), &CallOptions::new()).await.unwrap();
    }
    let stopped = Instant::now();

    let seen = watch.until("reset", Duration::from_secs(12), |s| s.len() > 2 && s[s.len() - 1].1 == Some(0)).await;
    assert_eq!(seen[0].1, Some(0));
    let values = &seen[1..seen.len() - 1];
    let (first, _) = values[0];
    assert!(first - began < Duration::from_secs(2), "{:?}", first - began);
    assert!(values.iter().all(|(_, us)| us.is_some_and(|us| (10_000..1_000_000).contains(&us))), "{seen:?}");
    assert!(values.windows(2).all(|w| w[1].0 - w[0].0 < Duration::from_secs(4)), "older than 4 s: {seen:?}");
    let ((last, _), (reset, _)) = (values[values.len() - 1], seen[seen.len() - 1]);
    assert!(last + Duration::from_secs(4) > stopped, "renewed as long as it was called");
    let age = (reset - last).as_millis();
    assert!((4_950..11_000).contains(&age), "reset {age} ms after the last write");
    drop((client, other));
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_client_that_resets_is_killed_another_takes_over() {
    let zk = ZooKeeper::standalone().await;
    let url = zk.url("rpc");
    let observer = Observer::new(&zk).await;
    let (_server, addr) = server(&url, &[]).await;
    // Clients that never measure anything.
    let start = || client_command(&url, &["bench", "fail", r#"{"code":7}"#, "--rps", "2", "--duration", "600s"]);
    let candidates = async |count: usize| {
        let end = Instant::now() + SOON;
        while observer.nodes("/rpc.cluster/jobs/expire").await.iter().filter(|n| n.starts_with("lock-")).count()
            != count
        {
            assert!(Instant::now() < end, "{:?}", observer.nodes("/rpc.cluster/jobs/expire").await);
            sleep(Duration::from_millis(10)).await;
        }
    };
    let holder = start();
    candidates(1).await;
    let _other = start();
    candidates(2).await;

    let watch = observer.watch("/rpc", addr);
    let (reply, code) = client_says(&url, &["call", "echo", "[1]"]).await;
    assert_eq!((code, &reply["result"]), (0, &serde_json::json!([1])), "{reply}");
    let is_set = |s: &[Sighting]| s.last().is_some_and(|(_, us)| us.is_some_and(|us| us > 0));
    let seen = watch.until("value", SOON, is_set).await;
    let (written, _) = seen[seen.len() - 1];
    holder.kill();
    // As ever, and a session timeout and a slot more.
    let within = Duration::from_secs(11 + 5) + SESSION + EXPIRY_SLACK;
    let is_reset = |s: &[Sighting]| s.last().is_some_and(|(_, us)| *us == Some(0));
    let seen = watch.until("reset", within, is_reset).await;
    let age = seen[seen.len() - 1].0 - written;
    assert!(age >= Duration::from_millis(4_950) && age < within, "{age:?}");
}

/// The whole ensemble is away for 20 s, or a minute in the long tests, while calls go on.
async fn outage(zk: ZooKeeper, empty: bool) {
    let url = zk.url("rpc");
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(server(&url, &["--delay", "1ms-3ms"]).await);
    }
    let client = Client::connect(&url).await.unwrap();
    connected(&client, 3).await;
    let calling = load(&client, 4);
    calling.more(100).await;
    (0..zk.len()).for_each(|n| zk.kill(n));
    let end = Instant::now() + Duration::from_secs(if long() { 60 } else { 20 });
    while Instant::now() < end {
        calling.more(100).await;
    }
    if empty {
        (0..zk.len()).for_each(|n| zk.wipe(n));
    }
    join_all((0..zk.len()).map(|n| zk.start(n))).await;
    let back = Instant::now();
    let observer = Observer::new(&zk).await;
    let expected: Vec<String> = servers.iter().map(|(_, addr)| addr.to_string()).collect();
    loop {
        let nodes = observer.nodes("/rpc").await;
        let mut owners = Vec::new();
        for (_, addr) in &servers {
            owners.extend(observer.entry("/rpc", *addr).await.map(|(_, stat)| stat.ephemeral_owner));
        }
        if expected.iter().all(|n| nodes.contains(n)) && nodes.len() == 3 && owners.iter().all(|o| *o != 0) {
            break;
        }
        assert!(back.elapsed() < Duration::from_secs(5), "registered again: {nodes:?} of {expected:?}");
        sleep(Duration::from_millis(10)).await;
    }
    // The sessions from before the outage expire without taking a node along.
    let end = Instant::now() + SESSION + EXPIRY_SLACK;
    while Instant::now() < end {
        calling.more(100).await;
        assert_eq!(observer.nodes("/rpc").await.len(), 3);
    }
    connected(&client, 3).await;
    let outcomes = calling.stop().await;
    assert!(failures(&outcomes).is_empty(), "{:?}", failures(&outcomes));
    let (listing, code) = client_says(&url, &["nodes"]).await;
    assert_eq!((code, listing["nodes"].as_array().unwrap().len()), (0, 3), "{listing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_zookeeper_fails_no_call() {
    outage(ZooKeeper::ensemble().await, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zookeeper_that_comes_back_empty_fails_no_call() {
    outage(ZooKeeper::standalone().await, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_the_leader_of_an_ensemble_fails_no_call() {
    let zk = ZooKeeper::ensemble().await;
    let url = zk.url("rpc");
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(server(&url, &["--delay", "1ms-3ms"]).await);
    }
    let client = Client::connect(&url).await.unwrap();
    connected(&client, 3).await;
    let calling = load(&client, 4);
    calling.more(100).await;
    let leader = zk.leader().await;
    zk.kill(leader);
    let end = Instant::now() + SESSION + EXPIRY_SLACK;
    while Instant::now() < end {
        calling.more(100).await;
        assert_eq!(client.nodes().len(), 3);
    }
    // What changes is seen again.
    let (late, addr) = server(&url, &[]).await;
    connected(&client, 4).await;
    late.terminate();
    nodes_are(&client, "without it", |n| n.len() == 3 && n.iter().all(|n| n.node != addr)).await;
    zk.start(leader).await;
    calling.more(100).await;
    let outcomes = calling.stop().await;
    assert!(failures(&outcomes).is_empty(), "{:?}", failures(&outcomes));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_writes_to_zookeeper_are_bounded_however_many_clients_call() {
    const NODES: u64 = 3;
    const SECONDS: u64 = 8;
    let zk = ZooKeeper::standalone().await;
    let url = zk.url("rpc");
    let mut servers = Vec::new();
    for _ in 0..NODES {
        servers.push(server(&url, &[]).await);
    }
    let clients: Vec<Process> = (0..8)
        .map(|_| client_command(&url, &["bench", "echo", "-c", "4", "--duration", "60s", "--format", "json"]))
        .collect();
    // All of them are candidates for the job, and so under way.
    let observer = Observer::new(&zk).await;
    let end = Instant::now() + SOON;
    while observer.nodes("/rpc.cluster/jobs/expire").await.iter().filter(|n| n.starts_with("lock-")).count() < 8 {
        assert!(Instant::now() < end, "{:?}", observer.nodes("/rpc.cluster/jobs/expire").await);
        sleep(Duration::from_millis(20)).await;
    }
    let watch = observer.watch("/rpc", servers[0].1);
    watch.until("value", SOON, |s| s.last().is_some_and(|(_, us)| us.is_some_and(|us| us > 0))).await;
    let (before, began) = (zk.transactions(0).await, Instant::now());
    sleep(Duration::from_secs(SECONDS)).await;
    let writes = zk.transactions(0).await - before;
    let seconds = began.elapsed().as_secs_f64();
    let most = 2.0 * NODES as f64 * seconds;
    assert!(writes as f64 <= most, "{writes} transactions in {seconds:.1} s, {most:.0} are allowed");
    assert!(writes >= NODES, "{writes} transactions: they are written");
    for client in clients {
        client.signal(rustix::process::Signal::INT);
        let seen = client.finished(SOON).await;
        let report: Value = serde_json::from_str(&seen.stdout.join("\n")).unwrap();
        assert!(report["ok"].as_u64().is_some_and(|ok| ok > 100), "{report}");
        assert_eq!(report["errors"], serde_json::json!({}), "{report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_that_advertise_one_address_are_told_apart() {
    let zk = ZooKeeper::standalone().await;
    let url = zk.url("rpc");
    let (first, addr) = server(&url, &["--name", "first"]).await;
    let second = start_server(&url, &["--name", "second", "--advertise", &addr.to_string()]);
    // Who is told depends on who came last; that one is, with what to do.
    let told = |process: &Process| {
        let lines = process.seen().stderr;
        lines.iter().any(|l| l.contains(&format!("{addr} belongs to another server")) && l.contains("--advertise"))
    };
    until("word of the conflict", SOON, || told(&first) || told(&second)).await;
    let observer = Observer::new(&zk).await;
    let (record, _) = observer.entry("/rpc", addr).await.unwrap();
    let (loser, winner, name) = if told(&first) { (first, second, "second") } else { (second, first, "first") };
    assert_eq!(record["meta"]["name"], name);
    let (listing, _) = client_says(&url, &["nodes"]).await;
    assert_eq!(listing["nodes"].as_array().unwrap().len(), 1);
    assert_eq!(listing["nodes"][0]["name"], name, "{listing}");
    winner.terminate();
    assert_eq!(winner.finished(SOON).await.exit, Some(Exit::Code(0)));
    let end = Instant::now() + SOON;
    while observer.entry("/rpc", addr).await.is_none_or(|(record, _)| record["meta"]["name"] == name) {
        assert!(Instant::now() < end, "the other does not get it: {:?}", loser.seen().stderr);
        sleep(Duration::from_millis(10)).await;
    }
}
