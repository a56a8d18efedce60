//! A server that sends without end: what that costs the client, and the calls to other nodes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rpc_core::protocol::{MESSAGE_BYTES_CEILING, MESSAGE_BYTES_MAX};
use rpc_server::{RpcError, Server};
use rpc_tests::binaries;
use rpc_tests::cluster::{Node, SOON, any_port, until};
use rpc_tests::raw::RawPeer;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::leaks::peak_kib;

/// What is sent at most; a client that kept it would be seen.
const FLOOD: u64 = 200_000_000;

/// What a client may need beyond what it had with two connections at rest. A message of its limit, in a
/// buffer that doubles, and its copy are 12 MiB.
const GROWTH_KIB: u64 = 32 * 1024;

/// Calls that the other node answers while the flood lasts.
const CALLS: usize = 100;

/// What the server has sent, on all connections, and how many of these the client has closed.
#[derive(Default)]
struct Flooded {
    bytes: AtomicU64,
    closed: AtomicUsize,
}

/// What a server sends again and again, and whether it answers hello before.
struct Flood {
    bytes: Vec<u8>,
    greets: bool,
}

/// Reads the hello of each connection and nothing else, and floods it once it may.
async fn lie(listener: TcpListener, flood: Flood, begin: Arc<Semaphore>, flooded: Arc<Flooded>) {
    while let Ok((stream, _)) = listener.accept().await {
        let mut peer = RawPeer::new(stream);
        let hello = peer.receive_json().await;
        if flood.greets {
            let features = json!({ "features": ["ping", "goaway", "load"], "version": 1 });
            peer.send(&json!({ "jsonrpc": "2.0", "id": hello["id"], "result": features }).to_string()).await;
        }
        drop(begin.acquire().await.unwrap());
        send_for_ever(peer.into_stream(), &flood.bytes, &flooded).await;
        flooded.closed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns when the client has closed the connection.
async fn send_for_ever(mut stream: TcpStream, flood: &[u8], flooded: &Flooded) {
    loop {
        let mut rest = flood;
        while !rest.is_empty() {
            let Ok(n) = stream.write(rest).await else { return };
            flooded.bytes.fetch_add(n as u64, Ordering::Relaxed);
            rest = &rest[n..];
        }
    }
}

/// Has `rpc-client` call two nodes, of which one floods it until `enough`, and looks at what the client needs and
/// what becomes of the calls to the other.
async fn flooded_until(flood: Flood, enough: impl Fn(&Flooded) -> bool) {
    let answered = Arc::<AtomicUsize>::default();
    let count = answered.clone();
    let healthy = Node::start(Server::builder().method("count", move |(): ()| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, RpcError>(()) }
    }))
    .await;
    let listener = TcpListener::bind(any_port()).await.unwrap();
    let url = format!("static:{},{}", listener.local_addr().unwrap(), healthy.addr);
    let (begin, flooded) = (Arc::new(Semaphore::new(0)), Arc::<Flooded>::default());
    let lying = tokio::spawn(lie(listener, flood, begin.clone(), flooded.clone()));
    let client = ["bench", "count", "--rps", "200", "--duration", "60s", "--format", "json", "--registry", &url];
    let client = binaries::start("rpc-client", client);
    let asked = || answered.load(Ordering::Relaxed);
    until("first calls", SOON, || asked() >= 10).await;
    let (kib_before, asked_before) = (peak_kib(client.id()), asked());
    begin.add_permits(1);
    until("end of the flood", SOON, || enough(&flooded) && asked() >= asked_before + CALLS).await;
    let grown = peak_kib(client.id()) - kib_before;
    client.signal(Signal::INT);
    let ended = client.finished(SOON).await;
    lying.abort();
    let report: Value = serde_json::from_str(&ended.stdout.join("")).unwrap_or_else(|e| panic!("{e}: {ended:?}"));
    assert!(grown < GROWTH_KIB, "{grown} KiB");
    assert_all_answered(&report, healthy.addr);
}

fn assert_all_answered(report: &Value, node: SocketAddr) {
    let of_node = &report["nodes"][node.to_string()];
    assert!(of_node["calls"].as_u64().unwrap() >= CALLS as u64 && of_node["errors"] == 0, "{report:#}");
}

fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&length, message].concat()
}

/// The answers that the client owes are bounded by what it closes the connection for.
#[tokio::test(flavor = "multi_thread")]
async fn endless_questions_of_a_server_that_reads_no_answers_cost_its_connection_only() {
    let pings = frame(br#"{"jsonrpc":"2.0","id":1,"method":"rpc.ping"}"#).repeat(10_000);
    flooded_until(Flood { bytes: pings, greets: true }, |flooded| {
        let (bytes, closed) = (flooded.bytes.load(Ordering::Relaxed), flooded.closed.load(Ordering::Relaxed));
        assert!(bytes < FLOOD, "{bytes} bytes on {closed} connections");
        closed >= 3
    })
    .await;
}

fn all_is_sent(flooded: &Flooded) -> bool {
    flooded.bytes.load(Ordering::Relaxed) >= FLOOD
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_answers_that_nobody_asked_for_leave_nothing() {
    let answer = |id: &str, bytes: usize| {
        let text = "x".repeat(bytes);
        frame(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"{text}"}}"#).as_bytes())
    };
    // Of hello, of a call and of a ping that are yet to come, and of nothing.
    let ids = ["0", "2251799813685248", "9007199254740991", "null"];
    let small = ids.map(|id| answer(id, 10)).concat().repeat(4000);
    let large = ids.map(|id| answer(id, MESSAGE_BYTES_MAX / 4)).concat();
    flooded_until(Flood { bytes: [small, large].concat(), greets: true }, all_is_sent).await;
}

/// Frames of the greatest length there is, which are passed over.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_without_end_is_not_kept() {
    let head = u32::try_from(MESSAGE_BYTES_CEILING).unwrap().to_be_bytes();
    let text = br#"{"jsonrpc":"2.0","id":1,"result":""#;
    let message = [&head, &text[..], &vec![b'x'; MESSAGE_BYTES_CEILING - text.len()]].concat();
    flooded_until(Flood { bytes: message, greets: true }, all_is_sent).await;
}

/// The time to say hello ends it, whatever is said meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_says_anything_but_hello_is_left() {
    let ping = frame(br#"{"jsonrpc":"2.0","id":1,"method":"rpc.ping"}"#);
    let other = frame(br#"{"jsonrpc":"2.0","id":7,"result":null}"#);
    let bytes = [ping, other].concat().repeat(10_000);
    flooded_until(Flood { bytes, greets: false }, |flooded| flooded.closed.load(Ordering::Relaxed) >= 3).await;
}
