//! Trouble that ZooKeeper, or the machine, makes for whole processes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rpc_client::{CallOptions, Client};
use rpc_core::NodeRecord;
use rpc_core::registry::{self, Health, Registry};
use rpc_server::{RpcError, Server};
use rpc_tests::binaries;
use rpc_tests::cluster::{Node, until};
use rpc_tests::process::{Exit, Process, SOON};
use rpc_tests::zk::{SESSION, ZooKeeper};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

fn open(url: &str) -> Arc<dyn Registry> {
    registry::open(&url.parse().unwrap()).unwrap()
}

fn addr(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// The slots that a process has claimed so far.
fn claimed(process: &Process) -> BTreeSet<u64> {
    let slot = |line: &String| line.strip_prefix("claimed ")?.parse().ok();
    process.look(|seen| seen.stdout.iter().filter_map(slot).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_hangs_beyond_its_session_is_succeeded_and_claims_nothing_when_it_wakes() {
    let zk = ZooKeeper::standalone().await;
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_registrant"));
        command.args(["claim", &zk.url("ns")]);
        Process::start(command)
    };
    let first = start();
    first.stdout_line("claimed 3", SOON).await;
    let second = start();
    second.stdout_line("waiting", SOON).await;
    first.pause();
    let paused = Instant::now();
    second.stdout_line("claimed", SESSION * 3).await;
    assert!(paused.elapsed() < SESSION + Duration::from_secs(4), "{:?}", paused.elapsed());
    let before = claimed(&first);
    first.resume();
    first.stdout_line("not leading", SOON).await;
    let goal = claimed(&second).len() + 20;
    until("claims of the successor", SOON, || claimed(&second).len() >= goal).await;
    let after = claimed(&first);
    // A request that was on its way may have been answered before the pause and read after it.
    assert!(after.len() <= before.len() + 1, "{before:?}, then {after:?}");
    assert!(after.is_disjoint(&claimed(&second)), "a slot is claimed once: {after:?} {:?}", claimed(&second));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_sessions_see_nodes_come_change_and_go() {
    const SESSIONS: usize = 200;
    let zk = ZooKeeper::standalone().await;
    let server = open(&zk.url("ns"));
    let one = server.register(addr(1), NodeRecord::new());
    let watchers: Vec<_> = (0..SESSIONS).map(|_| open(&zk.url("ns"))).collect();
    let all_see = async |what: &str, ports: &[u16], response_time_us: u64| {
        let began = Instant::now();
        let mut seeing = JoinSet::new();
        for watcher in &watchers {
            let (mut members, ports) = (watcher.members(), ports.to_vec());
            seeing.spawn(async move {
                let seen = members.wait_for(|list| {
                    list.nodes.keys().copied().eq(ports.iter().map(|port| addr(*port)))
                        && list
                            .nodes
                            .values()
                            .all(|m| m.addr != addr(1) || m.record.response_time_us == response_time_us)
                });
                timeout(SOON, seen).await.is_ok_and(|seen| seen.is_ok())
            });
        }
        let seen = seeing.join_all().await.into_iter().filter(|seen| *seen).count();
        assert_eq!(seen, SESSIONS, "{what}");
        began.elapsed()
    };
    all_see("the first node", &[1], 0).await;
    assert!(zk.sessions(0).await > SESSIONS);
    let two = server.register(addr(2), NodeRecord::new());
    let came = all_see("a node that comes", &[1, 2], 0).await;
    let member = server.read(addr(1)).await.unwrap().unwrap();
    server.update(addr(1), member.version, member.record.with_response_time(7)).await.unwrap();
    let changed = all_see("a value that changes", &[1, 2], 7).await;
    assert!(two.withdraw(SOON).await);
    let gone = all_see("a node that goes", &[1], 7).await;
    // Milliseconds on an idle machine.
    for took in [came, changed, gone] {
        assert!(took < Duration::from_secs(5), "{came:?} {changed:?} {gone:?}");
    }
    zk.kill(0);
    zk.start(0).await;
    let three = server.register(addr(3), NodeRecord::new());
    all_see("a node that comes after a restart of ZooKeeper", &[1, 3], 7).await;
    assert!(watchers.iter().all(|watcher| *watcher.health().borrow() == Health::Live));
    assert!(three.withdraw(SOON).await && one.withdraw(SOON).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_starts_before_everything_else_calls_what_comes() {
    let zk = ZooKeeper::standalone().await;
    zk.kill(0);
    let client = Client::builder().wait_for_node().connect(&zk.url("late")).await.unwrap();
    let call = tokio::spawn(async move {
        let patient = CallOptions::new().timeout(SOON * 2);
        client.call_with::<_, u64>("echo", &(5,), &patient).await
    });
    // The server is there before ZooKeeper is, too.
    let server = Server::builder().method("echo", |(n,): (u64,)| async move { Ok::<_, RpcError>(n) });
    let server = server.registry(&zk.url("late")).unwrap().bind("127.0.0.1:0").await.unwrap();
    let serving = tokio::spawn(server.serve(std::future::pending()));
    assert!(!call.is_finished());
    zk.start(0).await;
    assert_eq!(call.await.unwrap().unwrap(), 5);
    serving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_and_started_again_at_once_on_its_port_is_used_again() {
    let zk = ZooKeeper::standalone().await;
    let url = zk.url("again");
    let spare = Server::builder().method("echo", |(n,): (u64,)| async move { Ok::<_, RpcError>(n) });
    let _spare = Node::start(spare.registry(&url).unwrap()).await;
    let mut process = binaries::start("rpc-server", ["--port", "0", "--registry", &url]);
    let line = process.stdout_line("serving ", SOON).await;
    let at: SocketAddr = line.split(' ').nth(1).unwrap().parse().unwrap();
    let client = Client::connect(&url).await.unwrap();
    let used = |id: &str| client.nodes().iter().any(|n| n.node == at && n.id != id && n.connected);
    until("connection", SOON, || used("")).await;
    for _ in 0..3 {
        let old = client.nodes().into_iter().find(|n| n.node == at).unwrap().id;
        process.kill();
        process.wait_for("end", SOON, |seen| seen.exit).await;
        process = binaries::start("rpc-server", ["--port", &at.port().to_string(), "--registry", &url]);
        let killed = Instant::now();
        until("connection to the next incarnation", SOON, || used(&old)).await;
        // The dead session is not waited for.
        assert!(killed.elapsed() < SESSION, "{:?}", killed.elapsed());
    }
}

/// The library that shifts the clock of a process. Debian and Ubuntu: `libfaketime`.
fn faketime() -> PathBuf {
    let library = |dir: PathBuf| Some(dir.join("faketime/libfaketimeMT.so.1")).filter(|path| path.exists());
    let dirs = std::fs::read_dir("/usr/lib").unwrap().filter_map(|dir| Some(dir.ok()?.path()));
    dirs.into_iter().find_map(library).expect("libfaketimeMT.so.1 is there: apt-get install libfaketime")
}

/// A command whose wall clock is shifted by what the file says, at each look.
fn shifted(name: &str, arguments: &[&str], clock: &Path) -> Process {
    let mut command = Command::new(binaries::path(name));
    command
        .args(arguments)
        .env_remove("RPC_REGISTRY")
        .env("LD_PRELOAD", faketime())
        .env("FAKETIME_TIMESTAMP_FILE", clock)
        .env("FAKETIME_NO_CACHE", "1")
        // Nobody can shift the monotonic clock of a machine.
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    Process::start(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_to_and_fro_fails_no_call_and_stops_no_job() {
    let zk = ZooKeeper::standalone().await;
    let url = zk.url("rpc");
    let dir = tempfile::tempdir().unwrap();
    let clock = dir.path().join("clock");
    let set = |shift: &str| std::fs::write(&clock, shift).unwrap();
    set("+0\n");
    let server = shifted("rpc-server", &["--port", "0", "--registry", &url], &clock);
    let line = server.stdout_line("serving ", SOON).await;
    let at: SocketAddr = line.split(' ').nth(1).unwrap().parse().unwrap();
    // It runs the job that resets response times, and measures nothing itself.
    let fail = ["bench", "fail", r#"{"code":7}"#, "--rps", "2", "--duration", "600s", "--registry", &url];
    let _holder = shifted("rpc-client", &fail, &clock);
    let raw = zookeeper_client::Client::connect(&zk.servers()).await.unwrap();
    let end = Instant::now() + SOON;
    let leads = |names: Vec<String>| names.iter().any(|name| name.starts_with("lock-"));
    while !raw.list_children("/rpc.cluster/jobs/expire").await.is_ok_and(leads) {
        assert!(Instant::now() < end, "nobody runs the job");
        sleep(Duration::from_millis(10)).await;
    }
    let observer = open(&zk.url("rpc"));
    let value = || observer.members().borrow().nodes.get(&at).map(|member| member.record.response_time_us);
    let echo = ["bench", "echo", "--rps", "100", "--duration", "4s", "--threshold", "errors<=0", "--registry", &url];
    let caller = shifted("rpc-client", &echo, &clock);
    until("response time", SOON, || value().is_some_and(|us| us > 0)).await;
    for shift in ["+1h\n", "-2h\n", "+3d\n", "-1h\n"] {
        set(shift);
        sleep(Duration::from_millis(600)).await;
    }
    let ended = caller.finished(SOON).await;
    assert_eq!(ended.exit, Some(Exit::Code(0)), "{ended:?}");
    let written = Instant::now();
    assert!(value().is_some_and(|us| us > 0), "no clock has made the value old");
    // A cron that stands still is noticed after three periods of 5 s.
    until("reset", Duration::from_secs(30), || value() == Some(0)).await;
    assert!(written.elapsed() > Duration::from_secs(2), "{:?}", written.elapsed());
    server.terminate();
    assert_eq!(server.finished(SOON).await.exit, Some(Exit::Code(0)));
}
