//! Peers that take up what they do not use, and commands that meet a full server.

use std::future::pending;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rpc_client::{CallOptions, Client};
use rpc_core::open_files::OTHER_FILES;
use rpc_core::protocol::{IN_FLIGHT_MAX, code};
use rpc_server::{Method, RpcError, Server, ServerBuilder, ServerConfig, ServerUsage};
use rpc_tests::binaries;
use rpc_tests::cluster::{Node, SOON, any_port, connected, fresh_registry, until};
use rpc_tests::process::{Exit, Process};
use rpc_tests::raw::RawPeer;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use crate::leaks::resident_kib;

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"rpc.ping"}"#;

fn server(config: ServerConfig) -> ServerBuilder {
    Server::builder()
        .config(config)
        .method("echo", |(text,): (String,)| async { Ok::<_, RpcError>(text) })
        .with(Method::new("hang", |(): ()| pending::<Result<(), RpcError>>()))
}

fn frame(message: &str) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&length, message.as_bytes()].concat()
}

#[tokio::test]
async fn a_message_that_trickles_in_costs_its_connection_and_no_other() {
    let message_timeout = Duration::from_secs(1);
    let node = Node::start(server(ServerConfig { message_timeout, ..ServerConfig::default() })).await;
    let (mut read, mut write) = TcpStream::connect(node.addr).await.unwrap().into_split();
    let mut other = RawPeer::connect(node.addr).await;
    let began = Instant::now();
    let closed = tokio::spawn(async move { timeout(SOON, read.read(&mut [0; 64])).await });
    let trickle =
        frame(&json!({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": ["x".repeat(4096)]}).to_string());
    for byte in trickle.chunks(1) {
        if closed.is_finished() || write.write_all(byte).await.is_err() {
            break;
        }
        assert_eq!(other.ask_json(PING).await["id"], 1, "whole messages come as slowly, or as often, as they like");
        sleep(Duration::from_millis(20)).await;
    }
    let read = closed.await.unwrap().expect("the server closes in time");
    assert_eq!(read.unwrap_or(0), 0, "it answers nothing");
    let took = began.elapsed();
    assert!(took >= message_timeout, "{took:?}");
    assert_eq!(other.ask_json(PING).await["id"], 1);
}

/// What a peer that has closed its side and is then gone began, ends.
#[tokio::test]
async fn a_peer_that_is_gone_keeps_no_handler_though_it_had_closed_its_side() {
    let server = server(ServerConfig::default()).bind(any_port()).await.unwrap();
    let (addr, usage) = (server.local_addr(), server.usage());
    let serving = tokio::spawn(server.serve(pending()));
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = frame(&json!({"jsonrpc": "2.0", "id": 1, "method": "hang"}).to_string());
    stream.write_all(&request).await.unwrap();
    stream.shutdown().await.unwrap();
    until("call", SOON, || usage().calls == 1).await;
    // Longer than a look at all connections takes to come round: a peer that waits is served.
    sleep(Duration::from_millis(1500)).await;
    assert_eq!((usage().connections, usage().calls), (1, 1));
    stream.set_zero_linger().unwrap();
    drop(stream);
    until("end", SOON, || usage().connections == 0 && usage().calls == 0).await;
    serving.abort();
}

#[tokio::test]
async fn peers_that_speak_something_else_do_not_fill_the_log() {
    let server = binaries::start("rpc-server", ["--port", "0", "--registry", "none"]);
    let serving = server.stdout_line("serving ", SOON).await;
    let addr = serving.split_whitespace().find_map(|word| word.parse::<SocketAddr>().ok()).unwrap();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        // It may close before it has read all, which resets the connection.
        let _ = timeout(SOON, stream.read(&mut [0; 64])).await.expect("it closes");
    }
    server.terminate();
    let log = server.finished(SOON).await.stderr;
    let told = log.iter().filter(|line| line.contains("does not send frames")).count();
    assert_eq!(told, 1, "{log:#?}");
}

#[tokio::test]
async fn a_peer_that_takes_no_answers_costs_its_connection() {
    let config = ServerConfig { unread_timeout: Duration::from_secs(1), ..ServerConfig::default() };
    let server = server(config).bind(any_port()).await.unwrap();
    let (addr, usage) = (server.local_addr(), server.usage());
    let serving = tokio::spawn(server.serve(pending()));
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request =
        frame(&json!({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": ["x".repeat(65_536)]}).to_string());
    let writing = async { while stream.write_all(&request).await.is_ok() {} };
    timeout(SOON, writing).await.expect("the server closes in time");
    until("end of the connection", SOON, || usage() == ServerUsage::default()).await;
    serving.abort();
}

#[tokio::test]
async fn a_connection_that_cannot_be_pinged_is_closed_when_idle() {
    let config = ServerConfig { idle_timeout: Duration::from_secs(1), ..ServerConfig::default() };
    let server = server(config).bind(any_port()).await.unwrap();
    let (addr, usage) = (server.local_addr(), server.usage());
    let serving = tokio::spawn(server.serve(pending()));
    let client = Client::connect(&format!("static:{addr}")).await.unwrap();
    connected(&client, 1).await;
    let mut waiting = RawPeer::connect(addr).await;
    waiting.send(r#"{"jsonrpc":"2.0","id":1,"method":"hang"}"#).await;
    let mut idle = RawPeer::connect(addr).await;
    idle.ask(PING).await;
    let began = Instant::now();
    idle.closed().await;
    assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
    assert_eq!(usage().connections, 2, "one has said hello, the other is owed an answer");
    assert_eq!(waiting.ask_json(PING).await["id"], 1);
    serving.abort();
}

/// A connection has room for twice the calls that our client lets wait.
#[tokio::test]
async fn one_connection_takes_up_no_more_than_its_share() {
    let ends = Arc::new(Semaphore::new(0));
    let until_ends = ends.clone();
    let wait = Method::new("wait", move |(): ()| {
        let ends = until_ends.clone();
        async move { ends.acquire().await.map(|_| ()).map_err(|e| RpcError::internal(e.to_string())) }
    });
    let server = server(ServerConfig::default()).with(wait).bind(any_port()).await.unwrap();
    let (addr, usage) = (server.local_addr(), server.usage());
    let serving = tokio::spawn(server.serve(pending()));
    let mut greedy = RawPeer::connect(addr).await;
    for id in 0..3 * IN_FLIGHT_MAX {
        greedy.send(&json!({"jsonrpc": "2.0", "id": id, "method": "wait"}).to_string()).await;
    }
    until("full connection", SOON, || usage().calls == 2 * IN_FLIGHT_MAX).await;
    let mut other = RawPeer::connect(addr).await;
    let echo = json!({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": ["hi"]}).to_string();
    for _ in 0..100 {
        assert_eq!(other.ask_json(&echo).await["result"], "hi");
    }
    assert_eq!(usage().calls, 2 * IN_FLIGHT_MAX);
    ends.add_permits(1);
    for _ in 0..3 * IN_FLIGHT_MAX {
        assert!(greedy.receive_json().await["error"].is_null(), "the rest is served as well");
    }
    serving.abort();
}

/// Sockets hold some MiB of each direction; what comes after that would have to be kept by the server.
#[tokio::test(flavor = "multi_thread")]
async fn peers_that_take_no_answers_cost_a_server_little_memory() {
    let grown = memory_of_peers_that_take_no_answers(65_536).await;
    assert!(grown < 16 * 1024, "{grown} KiB for {PEERS} peers");
}

/// What has arrived of a message, and the answer to the one before.
#[tokio::test(flavor = "multi_thread")]
async fn peers_that_take_no_large_answers_cost_a_server_two_messages_each() {
    const BYTES: usize = 3_000_000;
    let grown = memory_of_peers_that_take_no_answers(BYTES).await;
    assert!(grown < (PEERS * 3 * BYTES / 1024) as u64, "{grown} KiB for {PEERS} peers");
}

const PEERS: usize = 8;

/// How many KiB a server grows by for peers that ask for such texts and take no answers.
async fn memory_of_peers_that_take_no_answers(text: usize) -> u64 {
    const OFFERED: usize = 128 * 1024 * 1024;
    let dir = tempfile::tempdir().unwrap();
    let url = format!("local:{}", dir.path().display());
    let server = binaries::start("rpc-server", ["--port", "0", "--registry", &url]);
    let serving = server.stdout_line("serving ", SOON).await;
    let addr: std::net::SocketAddr = serving.split_whitespace().nth(1).unwrap().parse().unwrap();
    let client = Client::connect(&url).await.unwrap();
    connected(&client, 1).await;
    let before = resident_kib(server.id());
    let request =
        frame(&json!({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": ["x".repeat(text)]}).to_string());
    let peers = (0..PEERS).map(|_| {
        let request = request.clone();
        tokio::spawn(async move {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            for _ in 0..OFFERED / request.len() {
                match timeout(Duration::from_secs(3), stream.write_all(&request)).await {
                    Ok(written) => written.unwrap(),
                    // The server takes no more.
                    Err(_) => return Some(stream),
                }
            }
            None
        })
    });
    let mut stalled = Vec::new();
    for peer in peers.collect::<Vec<_>>() {
        stalled.push(peer.await.unwrap().expect("the server stops to take requests"));
    }
    let grown = resident_kib(server.id()).saturating_sub(before);
    assert_eq!(client.call::<_, [u32; 1]>("echo", &[7]).await.unwrap(), [7], "others are served");
    drop(stalled);
    grown
}

/// Few files as under `ulimit -n`, which is 1024 on most systems; a shell that lowers it first.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_takes_no_more_connections_than_it_has_files_for() {
    const FILES: usize = 200;
    const PLACES: usize = FILES - OTHER_FILES as usize;
    let dir = tempfile::tempdir().unwrap();
    let url = format!("local:{}", dir.path().display());
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {FILES}; exec \"$0\" \"$@\"")]).arg(binaries::path("rpc-server"));
    let server = Process::start({
        command.args(["--port", "0", "--registry", &url]);
        command
    });
    let serving = server.stdout_line("serving ", SOON).await;
    let addr: std::net::SocketAddr = serving.split_whitespace().nth(1).unwrap().parse().unwrap();
    let mut taken = Vec::new();
    for _ in 0..PLACES {
        let mut peer = RawPeer::connect(addr).await;
        assert_eq!(peer.ask_json(PING).await["id"], 1);
        taken.push(peer);
    }
    for _ in 0..100 {
        let mut peer = RawPeer::connect(addr).await;
        assert_eq!(peer.receive_json().await["error"]["code"], code::OVERLOADED);
        peer.closed().await;
    }
    assert_eq!(taken[0].ask_json(PING).await["id"], 1);
    let ended = binaries::start("rpc-client", ["doctor", "--registry", &url, "--timeout", "1s"]).finished(SOON).await;
    let told = ended.stdout.join("\n");
    assert!(told.contains(&format!("it is full: the server has its {PLACES} connections")), "{told}");
    // The registry had a file to spare all the while.
    std::fs::remove_file(dir.path().join(addr.to_string())).unwrap();
    until("new entry", SOON, || dir.path().join(addr.to_string()).exists()).await;
    server.terminate();
    let log = server.finished(SOON).await.stderr.join("\n");
    let times = |text: &str| log.matches(text).count();
    assert_eq!(times(&format!("connections are limited to {PLACES}, not 65536")), 1, "{log}");
    assert_eq!((times("connection limit reached"), times("cannot accept")), (1, 0), "{log}");
}

#[tokio::test]
async fn connections_turned_away_are_counted_and_their_calls_go_elsewhere() {
    let url = fresh_registry();
    let full = server(ServerConfig { connections_max: 1, ..ServerConfig::default() }).registry(&url).unwrap();
    let full = full.bind(any_port()).await.unwrap();
    let (addr, usage) = (full.advertised_addr(), full.usage());
    let mut taken = RawPeer::connect(addr).await;
    let serving = tokio::spawn(full.serve(pending()));
    assert_eq!(taken.ask_json(PING).await["id"], 1);
    let free = Node::start(server(ServerConfig::default()).registry(&url).unwrap()).await;
    let client = Client::connect(&url).await.unwrap();
    until("refusal", SOON, || usage().connections_refused > 0).await;
    for n in 0..20 {
        let reply = client.call_detailed("echo", &(n.to_string(),), &CallOptions::new()).await.unwrap();
        assert_eq!(reply.node, free.addr, "{reply:?}");
    }
    assert_eq!(usage().connections, 1);
    serving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_meets_only_full_servers_says_so_and_uses_one_that_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("local:{}", dir.path().display());
    let server =
        binaries::start("rpc-server", ["--port", "0", "--registry", &url, "--concurrency", "1", "--queue", "0"]);
    let serving = server.stdout_line("serving ", SOON).await;
    let addr = serving.split_whitespace().nth(1).unwrap().parse().unwrap();
    let mut busy = RawPeer::connect(addr).await;
    busy.send(r#"{"jsonrpc":"2.0","id":1,"method":"sleep","params":{"ms":60000}}"#).await;
    assert_eq!(busy.ask_json(PING).await["id"], 1, "what is ours is answered however full the server is");
    let call = || binaries::start("rpc-client", ["call", "echo", "[7]", "--registry", &url, "--timeout", "500ms"]);
    let ended = call().finished(SOON).await;
    let told = ended.stderr.join("\n");
    assert_eq!(ended.exit, Some(Exit::Code(7)), "{told}");
    assert!(told.contains("1 calls run and 0 wait; come back in"), "{told}");
    let free = binaries::start("rpc-server", ["--port", "0", "--registry", &url]);
    free.stdout_line("serving ", SOON).await;
    for _ in 0..5 {
        let ended = call().finished(SOON).await;
        let answer: [u32; 1] = serde_json::from_str(&ended.stdout.join("")).unwrap();
        assert_eq!((ended.exit, answer), (Some(Exit::Code(0)), [7]), "{:?}", ended.stderr);
    }
}
