//! The wire as docs/PROTOCOL.md states it: the golden messages against the encoder, the decoder
//! and a real server, and the document's tables against the code.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use rpc_client::Client;
use rpc_core::load::method_hash;
use rpc_core::protocol::{self, ERROR_CODES, code, feature};
use rpc_core::wire::{
    Frame, FrameBuffer, Id, Incoming, LoadText, Request, RequestMeta, Response, parse, parse_any, parse_element,
    put_error, put_notification, put_request, put_result,
};
use rpc_core::{Error, ErrorKind, LoadReport, RpcError};
use rpc_server::{Access, Method, Secret, Server, ServerConfig, ServerTls, ServerTlsFiles};
use rpc_tests::certificates::Authority;
use rpc_tests::cluster::Node;
use rpc_tests::raw::RawPeer;
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;

const DOCUMENT: &str = include_str!("../../docs/PROTOCOL.md");
const INCARNATION: &str = "6f1c1d5e-6d0c-4b5e-9a57-0c4f6f0a7b11";
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const LIMIT: usize = protocol::MESSAGE_BYTES_MAX;

/// The golden messages by the name of their file.
fn golden() -> BTreeMap<String, String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(path).unwrap().trim_end().to_owned())
        })
        .collect()
}

fn message(name: &str) -> String {
    golden().remove(name).unwrap_or_else(|| panic!("no golden file {name}"))
}

#[test]
fn the_document_shows_every_golden_message_and_no_other() {
    let mut shown: Vec<&str> =
        DOCUMENT.split("```json\n").skip(1).map(|rest| rest.split("\n```").next().unwrap()).collect();
    let golden = golden();
    let mut known: Vec<&str> = golden.values().map(String::as_str).collect();
    shown.sort_unstable();
    known.sort_unstable();
    assert_eq!(shown, known);
}

/// What `put` writes, framed, must be the golden message.
fn written(name: &str, put: impl FnOnce(&mut Vec<u8>)) {
    let mut out = Vec::new();
    put(&mut out);
    let expected = message(name);
    let length = u32::try_from(expected.len()).unwrap().to_be_bytes();
    assert_eq!(out[..4], length, "{name}");
    assert_eq!(String::from_utf8_lossy(&out[4..]), expected, "{name}");
}

/// The report in the golden files.
fn load_report() -> LoadReport {
    LoadReport {
        method: method_hash("echo"),
        in_flight: 3,
        service_us: 850.0,
        concurrency: 2.0,
        errors: 0.0,
        latency_us: 910.0,
    }
}

#[test]
fn messages_are_written_as_the_golden_files_have_them() {
    let timeout = RequestMeta { timeout_ms: Some(5000), ..Default::default() };
    let full = full_meta();
    written("request", |out| put_request(out, 1024, "echo", &timeout, &json!({"text": "hi"}), LIMIT).unwrap());
    written("request_meta", |out| put_request(out, 2049, "sleep", &full, &json!({"ms": 10}), LIMIT).unwrap());
    written("notification", |out| put_notification(out, "echo", &["nobody answers"], LIMIT).unwrap());
    written("ping", |out| put_request(out, 1, protocol::PING, &Default::default(), &(), LIMIT).unwrap());
    written("discover", |out| put_request(out, 2, protocol::DISCOVER, &Default::default(), &(), LIMIT).unwrap());
    written("cancel", |out| put_notification(out, protocol::CANCEL, &json!({"id": 1024}), LIMIT).unwrap());
    let goaway = json!({"drain_ms": 15000, "reason": "draining"});
    written("goaway", |out| put_notification(out, protocol::GOAWAY, &goaway, LIMIT).unwrap());
    let id = Id::Number(1024);
    written("result", |out| put_result(out, &id, None, &json!({"text": "hi"}), LIMIT).unwrap());
    let text = LoadText::new(&load_report());
    let load = Some(text.as_bytes());
    written("result_load", |out| put_result(out, &id, load, &json!({"text": "hi"}), LIMIT).unwrap());
    let numbers: serde_json::Value = serde_json::from_slice(text.as_bytes()).unwrap();
    written("probe", |out| {
        put_request(out, 3, protocol::PROBE, &Default::default(), &[method_hash("echo")], LIMIT).unwrap()
    });
    written("probe_answer", |out| put_result(out, &Id::Number(3), None, &numbers, LIMIT).unwrap());
    written("ping_answer", |out| put_result(out, &Id::Number(1), None, &(), LIMIT).unwrap());
    written("error", |out| {
        let text = "params: `ms`: invalid type: string \"soon\", expected u64 at line 1 column 12";
        let data = json!({"path": "ms", "started": false});
        put_error(out, &id, None, &RpcError::invalid_params(text).with_data(&data), LIMIT);
    });
}

fn full_meta() -> RequestMeta<'static> {
    RequestMeta {
        timeout_ms: Some(250),
        attempt: 1,
        bound_us: Some(1500),
        key: Some("room 7".into()),
        traceparent: Some(TRACE.into()),
    }
}

fn request<'a>(text: &'a str, read: fn(&'a [u8]) -> Incoming<'a>) -> Request<'a> {
    match read(text.as_bytes()) {
        Incoming::Request(request) => request,
        other => panic!("{text} is no request: {other:?}"),
    }
}

fn response<'a>(text: &'a str, read: fn(&'a [u8]) -> Incoming<'a>) -> Response<'a> {
    match read(text.as_bytes()) {
        Incoming::Response(response) => response,
        other => panic!("{text} is no response: {other:?}"),
    }
}

/// By the short path where there is one, and by serde: both must read the same.
const READERS: [fn(&[u8]) -> Incoming<'_>; 2] = [parse, parse_any];

#[test]
fn golden_requests_are_read_as_they_are_meant() {
    for read in READERS {
        let text = message("request");
        let got = request(&text, read);
        assert_eq!((got.id, &*got.method), (Some(Id::Number(1024)), "echo"));
        assert_eq!(got.params, Some(&br#"{"text":"hi"}"#[..]));
        assert_eq!(got.meta, RequestMeta { timeout_ms: Some(5000), ..Default::default() });
        assert_eq!(request(&message("request_meta"), read).meta, full_meta());
        let text = message("notification");
        let got = request(&text, read);
        assert_eq!((got.id, got.params), (None, Some(&br#"["nobody answers"]"#[..])));
        let text = message("ping");
        let got = request(&text, read);
        assert_eq!((got.id, &*got.method, got.params), (Some(Id::Number(1)), protocol::PING, None));
        assert_eq!(request(&message("hello"), read).method, protocol::HELLO);
        assert_eq!(request(&message("cancel"), read).method, protocol::CANCEL);
        assert_eq!(request(&message("goaway"), read).method, protocol::GOAWAY);
        assert_eq!(request(&message("discover"), read).method, protocol::DISCOVER);
        let text = message("batch");
        let Incoming::Batch(elements) = read(text.as_bytes()) else { panic!("no batch") };
        let ids = elements.into_iter().map(|element| match parse_element(element) {
            Incoming::Request(request) => request.id,
            other => panic!("{other:?}"),
        });
        assert_eq!(ids.collect::<Vec<_>>(), [Some(Id::Other("\"a\"".into())), None, Some(Id::NULL)]);
    }
}

#[test]
fn golden_answers_are_read_as_they_are_meant() {
    for read in READERS {
        let text = message("result");
        let got = response(&text, read);
        assert_eq!((got.id, got.body, got.load), (Some(1024), Ok(&br#"{"text":"hi"}"#[..]), None));
        let text = message("result_load");
        let got = response(&text, read);
        assert_eq!((got.body, got.load), (Ok(&br#"{"text":"hi"}"#[..]), Some(load_report())));
        assert_eq!(response(&message("ping_answer"), read).body, Ok(&b"null"[..]));
        for (name, expected) in [("error", code::INVALID_PARAMS), ("too_large", code::TOO_LARGE)] {
            let text = message(name);
            let error: RpcError = serde_json::from_slice(response(&text, read).body.unwrap_err()).unwrap();
            assert_eq!(error.code, expected, "{name}");
        }
    }
}

#[derive(Deserialize)]
struct Sleep {
    ms: u64,
}

async fn sleep(params: Sleep) -> Result<(), RpcError> {
    tokio::time::sleep(std::time::Duration::from_millis(params.ms)).await;
    Ok(())
}

/// A server with the methods of the examples; it stops with the runtime.
async fn server() -> (SocketAddr, String) {
    let echo = Method::raw("echo", async |_, params| Ok(params)).idempotent().summary("Returns its params");
    let server = Server::builder().name("golden").with(echo).with(Method::new("sleep", sleep));
    let server = server.bind("127.0.0.1:0").await.map_err(|e: Error| e.to_string()).unwrap();
    let (addr, incarnation) = (server.local_addr(), server.incarnation().to_owned());
    tokio::spawn(server.serve(std::future::pending()));
    (addr, incarnation)
}

#[tokio::test]
async fn a_server_answers_the_golden_requests_with_the_golden_answers() {
    let (addr, incarnation) = server().await;
    let mut peer = RawPeer::connect(addr).await;
    for (asked, answered) in [
        ("request", "result"),
        ("ping", "ping_answer"),
        ("batch", "batch_answer"),
        ("hello", "hello_answer"),
        ("discover", "discover_answer"),
    ] {
        let answer = peer.ask(&message(asked).replace(INCARNATION, &incarnation)).await;
        assert_eq!(answer.replace(&incarnation, INCARNATION), message(answered), "{asked}");
    }
    let wrong = message("request").replace("echo", "sleep").replace(r#""text":"hi""#, r#""ms":"soon""#);
    assert_eq!(peer.ask(&wrong).await, message("error"));
    // Without rules a token is not looked at.
    let hello = peer.ask(&message("hello_token")).await;
    assert_eq!(hello.replace(&incarnation, INCARNATION), message("hello_answer"));
    // The notification is not answered: the next answer is that of the ping.
    peer.send(&message("notification")).await;
    assert_eq!(peer.ask(&message("ping")).await, message("ping_answer"));
}

#[tokio::test]
async fn who_comes_without_tls_or_a_token_gets_the_golden_errors() {
    let authority = Authority::new();
    let rpc_tests::certificates::Issued { cert, key } = authority.issue("node", &["127.0.0.1"]);
    let tls = ServerTls::files(ServerTlsFiles { cert, key, client_ca: None }).unwrap();
    let access = Access::token(Secret::new("correct horse battery staple")).unwrap();
    for (name, config) in [
        ("tls_required", ServerConfig { tls: Some(tls), ..ServerConfig::default() }),
        ("unauthenticated", ServerConfig { access: Some(access), ..ServerConfig::default() }),
    ] {
        let node = Node::start(Server::builder().config(config)).await;
        let mut peer = RawPeer::connect(node.addr).await;
        let hello = message("hello").replace(INCARNATION, &node.incarnation);
        assert_eq!(peer.ask(&hello).await, message(name));
        peer.closed().await;
    }
}

#[tokio::test]
async fn cancelling_answers_the_request_and_a_request_over_the_limit_is_refused() {
    let (addr, _) = server().await;
    let mut peer = RawPeer::connect(addr).await;
    peer.send(r#"{"jsonrpc":"2.0","id":1024,"method":"sleep","params":{"ms":600000}}"#).await;
    let cancelled = peer.ask(&message("cancel")).await;
    assert!(cancelled.starts_with(r#"{"jsonrpc":"2.0","id":1024,"error":{"code":-32001,"#), "{cancelled}");
    let head = r#"{"jsonrpc":"2.0","id":1024,"method":"echo","params":[""#;
    assert_eq!(peer.ask(&format!("{head}{}\"]}}", "x".repeat(5_000_000 - head.len() - 3))).await, message("too_large"));
    assert_eq!(peer.ask(&message("ping")).await, message("ping_answer"));
}

#[tokio::test]
async fn members_may_come_in_any_order() {
    let (addr, _) = server().await;
    let mut peer = RawPeer::connect(addr).await;
    for text in [
        r#"{"jsonrpc":"2.0","id":1024,"method":"echo","params":{"text":"hi"},"meta":{"timeout_ms":5000}}"#,
        r#"{"jsonrpc":"2.0","id":1024,"method":"echo","params":{"text":"hi"},"unknown":[{}]}"#,
        r#"{ "id": 1024, "params": {"text":"hi"}, "method": "echo", "jsonrpc": "2.0" }"#,
    ] {
        assert_eq!(peer.ask(text).await, message("result"), "{text}");
    }
    let hello = peer.ask(r#"{"jsonrpc":"2.0","id":0,"method":"rpc.hello","params":{"version":1},"meta":{}}"#).await;
    assert!(hello.contains(r#""version":1"#), "{hello}");
    let cut = peer.ask(r#"{"jsonrpc":"2.0","id":1024,"method":"echo","params":{"text":"hi}}"#).await;
    assert!(cut.starts_with(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"#), "{cut}");
}

/// A server of somebody else's: it knows no hello and spells its answers in ways of its own.
async fn foreign_server(listener: TcpListener) {
    let (stream, _) = listener.accept().await.unwrap();
    let mut peer = RawPeer::new(stream);
    while let Some(text) = peer.receive().await {
        let Incoming::Request(request) = parse(text.as_bytes()) else { panic!("{text}") };
        let Some(Id::Number(id)) = request.id else { continue };
        let answer = match &*request.method {
            "result first" => format!(r#" {{ "result" : [1], "id" : {id}, "jsonrpc" : "2.0" }} "#),
            "more follows" => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":[1],"meta":{{"a":{{}}}},"x":null}}"#),
            "null first" => format!(r#"{{"error":null,"result":[1],"id":{id},"jsonrpc":"2.0"}}"#),
            "with null" => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":[1],"error":null}}"#),
            "error" => format!(r#"{{"id":{id},"error":{{"message":"no","code":7}},"jsonrpc":"2.0"}}"#),
            "both" => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":[1],"error":{{"code":7,"message":"no"}}}}"#),
            "neither" => format!(r#"{{"jsonrpc":"2.0","id":{id}}}"#),
            "broken" => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":[1],"x"}}"#),
            _ => format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"unknown"}}}}"#),
        };
        // An answer that nobody asked for is counted, and does no harm.
        peer.send(r#"{"jsonrpc":"2.0","id":"who?","result":0}"#).await;
        peer.send(&answer).await;
    }
}

#[tokio::test]
async fn our_client_calls_any_json_rpc_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("static:{}", listener.local_addr().unwrap());
    tokio::spawn(foreign_server(listener));
    let client = Client::builder().wait_for_node().connect(&url).await.unwrap();
    for method in ["result first", "more follows", "with null", "null first"] {
        assert_eq!(client.call::<_, Vec<u64>>(method, &()).await.unwrap(), [1], "{method}");
        let reply = client.call_detailed(method, &(), &Default::default()).await.unwrap();
        assert_eq!(reply.result.get(), "[1]", "{method}");
    }
    let error = client.call::<_, u64>("error", &()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Remote { error, .. } if error.code == 7), "{error}");
    let ours = client.call::<_, u64>("result first", &()).await.unwrap_err();
    assert!(matches!(ours.kind(), ErrorKind::Decode { .. }) && ours.hint().contains("the type"), "{ours:?}");
    for method in ["broken", "both"] {
        let typed = client.call::<_, Vec<u64>>(method, &()).await.unwrap_err();
        let raw = client.call_detailed(method, &(), &Default::default()).await.unwrap_err();
        for error in [typed, raw] {
            assert!(matches!(error.kind(), ErrorKind::Decode { .. }), "{error}");
            assert!(error.attempts().len() == 1 && error.registry().is_some(), "{error:?}");
            assert!(error.to_string().contains("no valid answer") && !error.hint().contains("the type"), "{error:?}");
        }
    }
    // Of which call this was the answer is not told by it.
    let error = client.call::<_, u64>("neither", &()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Transport { sent: true, .. }), "{error:?}");
    assert!(error.to_string().contains("the node sent no valid message"), "{error:?}");
}

#[test]
fn other_protocols_are_told_apart_and_the_frame_is_as_documented() {
    let mut buffer = FrameBuffer::new(LIMIT);
    let example = [&[0, 0, 0, 0x2c][..], message("ping").as_bytes()].concat();
    assert!(DOCUMENT.contains("00 00 00 2c  7b 22 6a 73 6f 6e 72 70 63 22 3a"), "the frame's example");
    buffer.room()[..example.len()].copy_from_slice(&example);
    buffer.filled(example.len());
    assert_eq!(buffer.next_frame(), Ok(Some(Frame::Message(message("ping").as_bytes()))));
}

#[test]
fn the_tables_hold_every_code_limit_method_and_feature() {
    let yes = |b| if b { "yes" } else { "no" };
    let mut rows: Vec<String> = Vec::new();
    for e in ERROR_CODES {
        rows.push(format!("| {} | `{}` | {} | {} |", e.code, e.name, yes(e.started), yes(e.retry)));
    }
    for name in [feature::PING, feature::GOAWAY, feature::LOAD] {
        rows.push(format!("| `{name}` |"));
    }
    let limits = [
        ("LENGTH_BYTES", protocol::LENGTH_BYTES.to_string()),
        ("MESSAGE_BYTES_MAX", protocol::MESSAGE_BYTES_MAX.to_string()),
        ("MESSAGE_BYTES_CEILING", protocol::MESSAGE_BYTES_CEILING.to_string()),
        ("MESSAGE_BYTES_FLOOR", protocol::MESSAGE_BYTES_FLOOR.to_string()),
        ("IN_FLIGHT_MAX", protocol::IN_FLIGHT_MAX.to_string()),
        ("BATCH_MAX", protocol::BATCH_MAX.to_string()),
        ("CALL_TIMEOUT", format!("{} ms", protocol::CALL_TIMEOUT.as_millis())),
        ("CONNECT_TIMEOUT", format!("{} ms", protocol::CONNECT_TIMEOUT.as_millis())),
    ];
    rows.extend(limits.iter().map(|(name, value)| format!("| `{name}` | {value} |")));
    rows.push(format!("`PROTOCOL_VERSION` is {}.", protocol::PROTOCOL_VERSION));
    // Whatever else the source declares must be known here, and methods be described.
    for line in include_str!("../../rpc-core/src/protocol.rs").lines() {
        let Some((name, rest)) = line.strip_prefix("pub const ").and_then(|l| l.split_once(": ")) else { continue };
        match rest.split_once(" = ") {
            Some(("&str", value)) => rows.push(format!("`{}`", value.trim_matches(['"', ';']))),
            Some(_) => assert!(rows.iter().any(|row| row.contains(&format!("`{name}`"))), "{name} is not checked"),
            None => {}
        }
    }
    let missing: Vec<&String> = rows.iter().filter(|row| !DOCUMENT.contains(*row)).collect();
    assert!(missing.is_empty(), "docs/PROTOCOL.md lacks {missing:#?}");
}
