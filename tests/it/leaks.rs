//! What is left behind: nothing, however often calls are given up and connections come and go.

use std::future::pending;
use std::time::Duration;

use rpc_client::{CallOptions, Client, ClientUsage, ConnectionState, ErrorKind};
use rpc_server::{Method, RpcError, Server, ServerUsage};
use rpc_tests::binaries;
use rpc_tests::cluster::{Node, SOON, any_port, connected, nodes_are, until};
use rpc_tests::link::Link;
use rpc_tests::process::Process;
use rpc_tests::puppet::{Puppet, entry_of};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

fn long() -> bool {
    std::env::var_os("RPC_TESTS_LONG").is_some()
}

/// Memory that a process has in RAM, in KiB.
pub(crate) fn resident_kib(process: u32) -> u64 {
    status_kib(process, "VmRSS:")
}

/// The most that it ever had there.
pub(crate) fn peak_kib(process: u32) -> u64 {
    status_kib(process, "VmHWM:")
}

fn status_kib(process: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Files and sockets that a process has open.
fn open_files(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

/// Two thousand calls that are never answered, at most a thousand at a time: half of them are dropped by
/// their callers, half time out.
async fn give_up(client: &Client) {
    let mut calls = JoinSet::new();
    for n in 0..2000 {
        let client = client.clone();
        calls.spawn(async move {
            let short = Duration::from_millis(1 + n % 7);
            if n % 2 == 0 {
                let limit = CallOptions::new().timeout(short);
                let error = client.call_with::<_, ()>("hang", &(n,), &limit).await.unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::DeadlineExceeded { .. }), "{error:?}");
            } else {
                timeout(short, client.call::<_, ()>("hang", &(n,))).await.unwrap_err();
            }
        });
        while calls.len() >= 1000 {
            calls.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(ended) = calls.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_calls_given_up_leave_nothing() {
    let hang = Method::new("hang", |(_,): (u64,)| pending::<Result<(), RpcError>>());
    let server = Server::builder().with(hang).bind(any_port()).await.unwrap();
    let (addr, usage) = (server.local_addr(), server.usage());
    let serving = tokio::spawn(server.serve(pending()));
    let client = Client::connect(&format!("static:{addr}")).await.unwrap();
    connected(&client, 1).await;
    // The tables have their full size by then, and the allocator what it keeps.
    for _ in 0..10 {
        give_up(&client).await;
    }
    let before = resident_kib(std::process::id());
    for _ in 0..40 {
        give_up(&client).await;
    }
    let after = resident_kib(std::process::id());
    // 80,000 calls that left 64 bytes each, on one side, would be 5 MiB.
    assert!(after < before + 4096, "{before} KiB before, {after} KiB after");
    let nothing = ClientUsage { connections: 1, calls: 0, unsent_bytes: 0 };
    until("empty client", SOON, || client.usage() == nothing).await;
    until("empty server", SOON, || usage() == ServerUsage { connections: 1, ..ServerUsage::default() }).await;
    assert_eq!(client.nodes()[0].in_flight, 0);
    drop(client);
    until("closed connection", SOON, || usage() == ServerUsage::default()).await;
    serving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_that_leads_nowhere_is_given_up_within_25_s() {
    let link = Link::open().await;
    let server = Server::builder().method("echo", |(n,): (u64,)| async move { Ok::<_, RpcError>(n) });
    let server = server.bind(any_port()).await.unwrap();
    let usage = server.usage();
    link.lead_to(server.local_addr());
    let incarnation = server.incarnation().to_owned();
    let serving = tokio::spawn(server.serve(pending()));
    let registry = Puppet::new();
    registry.list([entry_of(link.addr, &incarnation)]);
    let client = Client::builder().connect_to(registry).unwrap();
    connected(&client, 1).await;
    assert_eq!(client.call::<_, u64>("echo", &(7,)).await.unwrap(), 7);
    link.stall();
    let pulled = Instant::now();
    let within = Duration::from_secs(25);
    until("end of the connection", within, || client.usage().connections == 0).await;
    // 8 to 10 s of silence, and two pings of 5 s each.
    assert!(pulled.elapsed() > Duration::from_secs(17), "{:?}", pulled.elapsed());
    assert_ne!(client.nodes()[0].connection, ConnectionState::Connected);
    if long() {
        // The server asks after half a minute only: it has nothing to lose but memory.
        until("end of the connection on the server", SOON * 2, || usage().connections == 0).await;
        assert!(pulled.elapsed() < Duration::from_secs(50), "{:?}", pulled.elapsed());
    }
    link.resume();
    nodes_are(&client, "connected again", |nodes| nodes[0].connected).await;
    assert_eq!(client.call::<_, u64>("echo", &(8,)).await.unwrap(), 8);
    serving.abort();
}

/// Calls one after the other by so many tasks; returns how many there were.
async fn calls(client: &Client, tasks: usize, lasting: Duration, pause: Duration) -> usize {
    let mut calling = JoinSet::new();
    let end = Instant::now() + lasting;
    for _ in 0..tasks {
        let client = client.clone();
        calling.spawn(async move {
            let mut count = 0;
            while Instant::now() < end {
                client.call_detailed("echo", &[count], &CallOptions::new()).await.unwrap();
                count += 1;
                if !pause.is_zero() {
                    sleep(pause).await;
                }
            }
            count
        });
    }
    calling.join_all().await.into_iter().sum()
}

/// What the server and this process have: memory in KiB, and files.
#[derive(Clone, Copy, Debug)]
struct Sample {
    memory: [u64; 2],
    files: [usize; 2],
}

impl Sample {
    fn take(server: &Process) -> Self {
        let processes = [server.id(), std::process::id()];
        Self { memory: processes.map(resident_kib), files: processes.map(open_files) }
    }

    /// The most memory, and the files that stayed open: some more are open for a moment whenever a client comes.
    fn of_all(samples: &[Self]) -> Self {
        samples
            .iter()
            .copied()
            .reduce(|a, b| Self {
                memory: [0, 1].map(|n| a.memory[n].max(b.memory[n])),
                files: [0, 1].map(|n| a.files[n].min(b.files[n])),
            })
            .unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_and_files_stay_as_they_are_while_clients_come_and_go() {
    let lasting = Duration::from_secs(if long() { 600 } else { 18 });
    let dir = tempfile::tempdir().unwrap();
    let url = format!("local:{}", dir.path().display());
    let server = binaries::start("rpc-server", ["--port", "0", "--registry", &url]);
    server.stdout_line("serving ", SOON).await;
    let client = Client::connect(&url).await.unwrap();
    connected(&client, 1).await;
    // Half of what eight tasks can do: each pauses as long as a call takes it.
    let tasks = 8;
    let most = calls(&client, tasks, Duration::from_secs(1), Duration::ZERO).await;
    let pause = Duration::from_secs(1).mul_f64(tasks as f64 / most as f64).max(Duration::from_millis(1));
    let steady = tokio::spawn({
        let client = client.clone();
        async move { calls(&client, tasks, lasting, pause).await }
    });
    let coming_and_going = tokio::spawn({
        let (url, end) = (url.clone(), Instant::now() + lasting);
        async move {
            let mut count = 0;
            while Instant::now() < end {
                let client = Client::connect(&url).await.unwrap();
                for n in 0..20 {
                    client.call_detailed("echo", &[n], &CallOptions::new()).await.unwrap();
                }
                count += 1;
                match count % 2 {
                    0 => client.close(SOON).await,
                    _ => drop(client),
                }
            }
            count
        }
    });
    let mut samples = Vec::new();
    while !steady.is_finished() {
        sleep(lasting / 60).await;
        samples.push(Sample::take(&server));
    }
    let (steady, came) = (steady.await.unwrap(), coming_and_going.await.unwrap());
    assert!(steady > 100 && came > 10, "{steady} calls, {came} clients");
    // The first third is for caches and pools to fill.
    let (middle, last) = (Sample::of_all(&samples[20..40]), Sample::of_all(&samples[40..]));
    report(&format!("{steady} calls, {came} clients that came and went; {middle:?}, then {last:?}"));
    for side in [0, 1] {
        let allowed = middle.memory[side] + middle.memory[side] / 20 + 2048;
        assert!(last.memory[side] <= allowed, "memory grows: {samples:?}");
        assert!(last.files[side] <= middle.files[side] + 4, "files stay open: {samples:?}");
    }
}

#[expect(clippy::print_stdout, reason = "what was measured is worth reading after a long run")]
fn report(text: &str) {
    println!("{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_client_leaves_no_connection_and_no_task() {
    let node = Node::start(Server::builder().method("echo", |(n,): (u64,)| async move { Ok::<_, RpcError>(n) })).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for _ in 0..20 {
        let client = Client::connect(&format!("static:{}", node.addr)).await.unwrap();
        connected(&client, 1).await;
        assert_eq!(client.call::<_, u64>("echo", &(1,)).await.unwrap(), 1);
        client.close(SOON).await;
    }
    until("end of all tasks", SOON, || tasks() <= before).await;
}
