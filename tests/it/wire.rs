//! Servers and clients against peers that are written by hand, byte by byte: the whole of JSON-RPC
//! 2.0, and everything that is wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rpc_client::{CallOptions, Client, ErrorKind};
use rpc_core::protocol::{BATCH_MAX, MESSAGE_BYTES_MAX, code};
use rpc_server::{Method, RpcError, Server, ServerBuilder, ServerConfig};
use rpc_tests::cluster::{self, Node, SOON, any_port, connected, nodes_are, until};
use rpc_tests::raw::RawPeer;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

#[derive(Deserialize)]
struct Subtract {
    minuend: i64,
    subtrahend: i64,
}

async fn echo(params: Value) -> Result<Value, RpcError> {
    Ok(params)
}

async fn nap((ms,): (u64,)) -> Result<u64, RpcError> {
    sleep(Duration::from_millis(ms)).await;
    Ok(ms)
}

fn methods() -> ServerBuilder {
    Server::builder()
        .with(Method::new("echo", echo).idempotent())
        .method("nap", nap)
        .method("subtract", |p: Subtract| async move { Ok::<_, RpcError>(p.minuend - p.subtrahend) })
        .method("sum", |n: Vec<i64>| async move { Ok::<_, RpcError>(n.iter().sum::<i64>()) })
        .method("update", |_: Value| async { Ok::<_, RpcError>(()) })
        .method("notify_hello", |_: Value| async { Ok::<_, RpcError>(()) })
        .method("notify_sum", |_: Value| async { Ok::<_, RpcError>(()) })
        .method("get_data", |()| async { Ok::<_, RpcError>(("hello", 5)) })
        .method("grow", |(n,): (usize,)| async move { Ok::<_, RpcError>("x".repeat(n)) })
        .method("panic", |_: Value| async { if true { panic!("as asked") } else { Ok::<_, RpcError>(()) } })
}

const PING: &str = r#"{"jsonrpc":"2.0","id":"ping","method":"rpc.ping"}"#;

/// The connection lives, and nothing else was sent on it.
async fn alive(peer: &mut RawPeer) {
    assert_eq!(peer.ask(PING).await, r#"{"jsonrpc":"2.0","id":"ping","result":null}"#);
}

fn request(id: impl Into<Value>, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params}).to_string()
}

/// Whether the answer is an error with this code and id.
fn is_error(answer: &Value, code: i64, id: &Value) -> bool {
    answer["jsonrpc"] == "2.0"
        && answer["error"]["code"] == code
        && answer["error"]["message"].as_str().is_some_and(|m| !m.is_empty())
        && answer.get("id") == Some(id)
        && answer.get("result").is_none()
}

/// What the specification prints is compared but for the messages of errors, which are ours.
fn same_answer(got: &Value, expected: &Value) -> bool {
    match expected.get("error") {
        Some(error) => is_error(got, error["code"].as_i64().unwrap(), &expected["id"]),
        None => got == expected,
    }
}

/// The examples of the specification of JSON-RPC 2.0, section 7: request, answer.
const EXAMPLES: &[(&str, &str)] = &[
    (
        r#"{"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}"#,
        r#"{"jsonrpc": "2.0", "result": 19, "id": 1}"#,
    ),
    (
        r#"{"jsonrpc": "2.0", "method": "subtract", "params": [23, 42], "id": 2}"#,
        r#"{"jsonrpc": "2.0", "result": -19, "id": 2}"#,
    ),
    (
        r#"{"jsonrpc": "2.0", "method": "subtract", "params": {"subtrahend": 23, "minuend": 42}, "id": 3}"#,
        r#"{"jsonrpc": "2.0", "result": 19, "id": 3}"#,
    ),
    (
        r#"{"jsonrpc": "2.0", "method": "subtract", "params": {"minuend": 42, "subtrahend": 23}, "id": 4}"#,
        r#"{"jsonrpc": "2.0", "result": 19, "id": 4}"#,
    ),
    (r#"{"jsonrpc": "2.0", "method": "update", "params": [1,2,3,4,5]}"#, ""),
    (r#"{"jsonrpc": "2.0", "method": "foobar"}"#, ""),
    (
        r#"{"jsonrpc": "2.0", "method": "foobar", "id": "1"}"#,
        r#"{"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "1"}"#,
    ),
    (
        r#"{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]"#,
        r#"{"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}, "id": null}"#,
    ),
    (
        r#"{"jsonrpc": "2.0", "method": 1, "params": "bar"}"#,
        r#"{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}"#,
    ),
    (
        r#"[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"}, {"jsonrpc": "2.0", "method"]"#,
        r#"{"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}, "id": null}"#,
    ),
    ("[]", r#"{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}"#),
    ("[1]", r#"[{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}]"#),
    (
        "[1,2,3]",
        r#"[
            {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null},
            {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null},
            {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}
        ]"#,
    ),
    (
        r#"[
            {"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},
            {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]},
            {"jsonrpc": "2.0", "method": "subtract", "params": [42,23], "id": "2"},
            {"foo": "boo"},
            {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},
            {"jsonrpc": "2.0", "method": "get_data", "id": "9"}
        ]"#,
        r#"[
            {"jsonrpc": "2.0", "result": 7, "id": "1"},
            {"jsonrpc": "2.0", "result": 19, "id": "2"},
            {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null},
            {"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "5"},
            {"jsonrpc": "2.0", "result": ["hello", 5], "id": "9"}
        ]"#,
    ),
    (
        r#"[
            {"jsonrpc": "2.0", "method": "notify_sum", "params": [1,2,4]},
            {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]}
        ]"#,
        "",
    ),
];

#[tokio::test]
async fn the_examples_of_the_json_rpc_specification() {
    let node = Node::start(methods()).await;
    let mut peer = RawPeer::connect(node.addr).await;
    for (asked, expected) in EXAMPLES {
        peer.send(asked).await;
        if expected.is_empty() {
            alive(&mut peer).await;
            continue;
        }
        let (got, expected) = (peer.receive_json().await, serde_json::from_str::<Value>(expected).unwrap());
        match (&got, &expected) {
            (Value::Array(got), Value::Array(expected)) => {
                assert_eq!(got.len(), expected.len(), "{asked}: {got:?}");
                // The answers of a batch may come in any order.
                for one in expected {
                    let count = |of: &[Value]| of.iter().filter(|other| same_answer(other, one)).count();
                    assert_eq!(count(got), count(expected), "{asked}: {got:?}");
                }
            }
            _ => assert!(same_answer(&got, &expected), "{asked}: {got}"),
        }
    }
    alive(&mut peer).await;
}

#[tokio::test]
async fn ids_of_every_kind_come_back_as_they_were() {
    let node = Node::start(methods()).await;
    let mut peer = RawPeer::connect(node.addr).await;
    for id in [
        "0",
        "7",
        "-1",
        "-0",
        "1.5",
        "1.0",
        "1e3",
        "9007199254740993",
        "18446744073709551616",
        "123456789012345678901234567890",
        r#""""#,
        r#""a""#,
        r#""7""#,
        r#""\u00e4\n\"""#,
        r#""ä 漢 🦀""#,
        "null",
    ] {
        let answer = peer.ask(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"echo","params":[1]}}"#)).await;
        assert_eq!(answer, format!(r#"{{"jsonrpc":"2.0","id":{id},"result":[1]}}"#));
        // One that is answered later is kept meanwhile.
        let answer = peer.ask(&format!(r#"{{"jsonrpc":"2.0","method":"nap","params":[1],"id":{id}}}"#)).await;
        assert_eq!(answer, format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#));
    }
    for id in ["[]", "{}", "true", "[1]"] {
        let answer = peer.ask_json(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"echo"}}"#)).await;
        assert!(is_error(&answer, code::INVALID_REQUEST, &Value::Null), "{id}: {answer}");
    }
}

#[tokio::test]
async fn what_is_no_request_is_answered_and_the_connection_lives_on() {
    let node = Node::start(methods()).await;
    let mut peer = RawPeer::connect(node.addr).await;
    let null = Value::Null;
    for (bytes, code, id) in [
        (&b""[..], code::PARSE_ERROR, &null),
        (b" ", code::PARSE_ERROR, &null),
        (b"\xff\xfe\x00", code::PARSE_ERROR, &null),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ec\xffho\"}", code::PARSE_ERROR, &null),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":[\"\xff\"]}", code::PARSE_ERROR, &null),
        (b"{", code::PARSE_ERROR, &null),
        (b"{}{}", code::PARSE_ERROR, &null),
        (b"nonsense", code::PARSE_ERROR, &null),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":[1}", code::PARSE_ERROR, &null),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":[1]} x}", code::PARSE_ERROR, &null),
        (b"17", code::INVALID_REQUEST, &null),
        (b"null", code::INVALID_REQUEST, &null),
        (b"\"text\"", code::INVALID_REQUEST, &null),
        (b"{}", code::INVALID_REQUEST, &null),
        (b"{\"id\":5,\"method\":\"echo\"}", code::INVALID_REQUEST, &json!(5)),
        (b"{\"jsonrpc\":\"1.0\",\"id\":5,\"method\":\"echo\"}", code::INVALID_REQUEST, &json!(5)),
        (b"{\"jsonrpc\":2.0,\"id\":5,\"method\":\"echo\"}", code::INVALID_REQUEST, &json!(5)),
        (b"{\"jsonrpc\":\"2.0\",\"id\":5}", code::INVALID_REQUEST, &json!(5)),
        (b"{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":[\"echo\"]}", code::INVALID_REQUEST, &json!(5)),
        (b"{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"echo\",\"params\":\"bar\"}", code::INVALID_REQUEST, &json!(5)),
        (b"{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"echo\",\"params\":null}", code::INVALID_REQUEST, &json!(5)),
        (b"{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"echo\",\"meta\":7}", code::INVALID_REQUEST, &json!(5)),
        (b"{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"echo\",\"params\":[1],\"id\":6}", code::INVALID_REQUEST, &null),
    ] {
        peer.send_with_length(bytes.len() as u32, bytes).await;
        let answer = peer.receive_json().await;
        assert!(is_error(&answer, code, id), "{}: {answer}", String::from_utf8_lossy(bytes));
        alive(&mut peer).await;
    }
}

#[tokio::test]
async fn hostile_json_does_no_harm() {
    let node = Node::start(methods()).await;
    let mut peer = RawPeer::connect(node.addr).await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for text in [
        deep.clone(),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"echo","params":{deep}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"get_data","params":{deep}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"echo","other":{deep}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "m".repeat(1_000_000)),
        format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"echo"}}"#, "i".repeat(1_000_000)),
        r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":[1e999999]}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":["\ud800"]}"#.to_owned(),
    ] {
        let answer = peer.ask_json(&text).await;
        assert!(
            answer.get("id").is_some() || answer[0]["error"].is_object(),
            "{:.200}: {:.200}",
            text,
            answer.to_string()
        );
        alive(&mut peer).await;
    }
}

#[tokio::test]
async fn an_unknown_method_names_the_near_one_and_wrong_params_their_path() {
    let node = Node::start(methods()).await;
    let mut peer = RawPeer::connect(node.addr).await;
    let answer = peer.ask_json(&request(3, "substract", &json!([1, 2]))).await;
    assert!(is_error(&answer, code::METHOD_NOT_FOUND, &json!(3)), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("`subtract`"), "{answer}");
    assert_eq!(answer["error"]["data"], json!({"method": "substract", "did_you_mean": "subtract"}));
    let answer = peer.ask_json(&request(4, "subtract", &json!({"minuend": 1, "subtrahend": "2"}))).await;
    assert!(is_error(&answer, code::INVALID_PARAMS, &json!(4)), "{answer}");
    assert_eq!(answer["error"]["data"]["path"], "subtrahend");
    let answer = peer.ask_json(&request(5, "rpc.helo", &json!([]))).await;
    assert!(is_error(&answer, code::METHOD_NOT_FOUND, &json!(5)), "{answer}");
    alive(&mut peer).await;
}

#[tokio::test]
async fn a_message_over_the_limit_is_passed_over() {
    let node = Node::start(methods()).await;
    let mut peer = RawPeer::connect(node.addr).await;
    let head = r#"{"jsonrpc":"2.0","id":77,"method":"echo","params":[""#;
    let tail = r#""]}"#;
    let fits = format!("{head}{}{tail}", "x".repeat(MESSAGE_BYTES_MAX - head.len() - tail.len()));
    assert_eq!(fits.len(), MESSAGE_BYTES_MAX);
    let answer = peer.ask_json(&fits).await;
    assert!(answer["result"][0].as_str().unwrap().len() > MESSAGE_BYTES_MAX - 100);
    // The id is told where it is spelled as usual.
    for (head, id) in [(head, json!(77)), (r#"{ "jsonrpc": "2.0", "id": 77, "params": [""#, Value::Null)] {
        let answer = peer.ask_json(&format!("{head}{}{tail}", "x".repeat(MESSAGE_BYTES_MAX))).await;
        assert!(is_error(&answer, code::TOO_LARGE, &id), "{answer}");
        assert_eq!(answer["error"]["data"]["limit"], MESSAGE_BYTES_MAX);
        alive(&mut peer).await;
    }
    // The longest that a frame can announce, in small pieces, with a request right behind it.
    let size = 0x00ff_ffff;
    peer.send_with_length(size, b"").await;
    let piece = vec![b' '; 65_537];
    let mut left = size as usize;
    while left > 0 {
        let n = left.min(piece.len());
        peer.send_bytes(&piece[..n]).await;
        left -= n;
    }
    peer.send(PING).await;
    let answer = peer.receive_json().await;
    assert!(is_error(&answer, code::TOO_LARGE, &Value::Null), "{answer}");
    assert_eq!(peer.receive().await.unwrap(), r#"{"jsonrpc":"2.0","id":"ping","result":null}"#);
}

#[tokio::test]
async fn a_reply_over_the_limit_is_an_error_of_its_call() {
    let config = ServerConfig { message_bytes_max: 1000, ..ServerConfig::default() };
    let node = Node::start(methods().config(config)).await;
    let mut peer = RawPeer::connect(node.addr).await;
    let answer = peer.ask_json(&request(1, "grow", &json!([1000]))).await;
    assert!(is_error(&answer, code::TOO_LARGE, &json!(1)), "{answer}");
    assert_eq!(answer["error"]["data"]["what"], "reply");
    assert_eq!(answer["error"]["data"]["limit"], 1000);
    let fits = peer.ask_json(&request(2, "grow", &json!([900]))).await;
    assert_eq!(fits["result"].as_str().unwrap().len(), 900);
    let batch: Vec<Value> =
        (0..3).map(|id| json!({"jsonrpc": "2.0", "id": id, "method": "grow", "params": [400]})).collect();
    let answer = peer.ask_json(&json!(batch).to_string()).await;
    assert!(is_error(&answer, code::TOO_LARGE, &Value::Null), "{answer}");
    alive(&mut peer).await;
}

#[tokio::test]
async fn another_protocol_is_shut_out_and_nobody_else_notices() {
    let node = Node::start(methods()).await;
    let mut neighbour = RawPeer::connect(node.addr).await;
    for bytes in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], b"\x16\x03\x01\x02\x00", b"\x01\x00\x00\x00{}", b"{"] {
        let mut peer = RawPeer::connect(node.addr).await;
        peer.send_bytes(bytes).await;
        peer.closed().await;
        alive(&mut neighbour).await;
    }
    let mut peer = RawPeer::connect(node.addr).await;
    alive(&mut peer).await;
    peer.send_bytes(b"GET / HTTP/1.1\r\n\r\n").await;
    peer.closed().await;
}

#[tokio::test]
async fn a_connection_cut_in_the_middle_of_a_message_harms_nobody_else() {
    let (seen, mut runs) = watch::channel(0usize);
    let hang = Method::new("hang", move |()| {
        struct Gone(watch::Sender<usize>);
        impl Drop for Gone {
            fn drop(&mut self) {
                self.0.send_modify(|n| *n -= 1);
            }
        }
        let seen = seen.clone();
        async move {
            seen.send_modify(|n| *n += 1);
            let _gone = Gone(seen);
            std::future::pending::<Result<(), RpcError>>().await
        }
    });
    let node = Node::start(methods().with(hang)).await;
    let mut neighbour = RawPeer::connect(node.addr).await;
    for cut in [1, 3, 4, 5, 30] {
        let mut peer = RawPeer::connect(node.addr).await;
        peer.send(r#"{"jsonrpc":"2.0","id":1,"method":"hang"}"#).await;
        timeout(SOON, runs.wait_for(|n| *n == 1)).await.unwrap().unwrap();
        let request = request(2, "echo", &json!(["never completed"]));
        let frame = [&(request.len() as u32).to_be_bytes(), request.as_bytes()].concat();
        peer.send_bytes(&frame[..cut]).await;
        drop(peer);
        // Its handler goes with it.
        timeout(SOON, runs.wait_for(|n| *n == 0)).await.unwrap().unwrap();
        alive(&mut neighbour).await;
    }
}

#[tokio::test]
async fn a_message_may_arrive_byte_by_byte() {
    let node = Node::start(methods()).await;
    let mut peer = RawPeer::connect(node.addr).await;
    for text in [PING.to_owned(), request(1, "echo", &json!(["ä", {"b": [1]}])), "[]".into(), "\u{e4}".into()] {
        let frame = [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
        for byte in frame {
            peer.send_bytes(&[byte]).await;
            tokio::task::yield_now().await;
        }
        peer.receive_json().await;
    }
    alive(&mut peer).await;
}

#[tokio::test]
async fn a_thousand_requests_in_one_write_are_all_answered() {
    let node = Node::start(methods()).await;
    let mut peer = RawPeer::connect(node.addr).await;
    let mut bytes = Vec::new();
    for id in 0..1000 {
        // Every third is answered later, every fifth is spelled unusually.
        let method = if id % 3 == 0 { "nap" } else { "echo" };
        let text = match id % 5 {
            0 => format!(r#" {{"id": {id}, "params": [{}], "method": "{method}", "jsonrpc": "2.0"}} "#, id % 7),
            _ => format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":[{}]}}"#, id % 7),
        };
        bytes.extend((text.len() as u32).to_be_bytes());
        bytes.extend(text.as_bytes());
    }
    peer.send_bytes(&bytes).await;
    let mut missing: std::collections::BTreeSet<u64> = (0..1000).collect();
    while !missing.is_empty() {
        let answer = peer.receive_json().await;
        let id = answer["id"].as_u64().unwrap();
        assert!(missing.remove(&id), "answered twice: {answer}");
        let expected = if id.is_multiple_of(3) { json!(id % 7) } else { json!([id % 7]) };
        assert_eq!(answer["result"], expected, "{id}");
    }
    alive(&mut peer).await;
}

#[tokio::test]
async fn batches_up_to_their_limit_run_at_the_same_time() {
    let node = Node::start(methods()).await;
    let mut peer = RawPeer::connect(node.addr).await;
    let of = |n: usize, ms: u64| {
        let batch: Vec<Value> =
            (0..n).map(|id| json!({"jsonrpc": "2.0", "id": id, "method": "nap", "params": [ms]})).collect();
        json!(batch).to_string()
    };
    let began = Instant::now();
    let answer = peer.ask_json(&of(BATCH_MAX, 50)).await;
    assert!(began.elapsed() < Duration::from_millis(50 * BATCH_MAX as u64 / 2), "{:?}", began.elapsed());
    let mut ids: Vec<u64> = answer.as_array().unwrap().iter().map(|a| a["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..BATCH_MAX as u64));
    let answer = peer.ask_json(&of(BATCH_MAX + 1, 0)).await;
    assert!(is_error(&answer, code::INVALID_REQUEST, &Value::Null), "{answer}");
    alive(&mut peer).await;
}

#[tokio::test]
async fn each_request_of_a_batch_fails_by_itself() {
    let node = Node::start(methods()).await;
    let mut peer = RawPeer::connect(node.addr).await;
    let batch = json!([
        {"jsonrpc": "2.0", "id": 1, "method": "panic"},
        {"jsonrpc": "2.0", "id": 2, "method": "subtract", "params": [1]},
        [{"jsonrpc": "2.0", "id": 3, "method": "echo"}],
        {"jsonrpc": "2.0", "id": 4, "method": "rpc.ping"},
        {"jsonrpc": "2.0", "method": "panic"},
        {"jsonrpc": "2.0", "method": "nosuch"},
        {"jsonrpc": "2.0", "id": 5, "result": 7},
        {"jsonrpc": "2.0", "id": 6, "method": "nap", "params": [1]},
        {"jsonrpc": "2.0", "id": 7, "method": "rpc.hello", "params": {"version": 1}},
    ]);
    let answers = peer.ask_json(&batch.to_string()).await;
    let answers = answers.as_array().unwrap();
    let has = |code, id: Value| answers.iter().filter(|a| is_error(a, code, &id)).count();
    assert_eq!(has(code::INTERNAL_ERROR, json!(1)), 1, "{answers:?}");
    assert_eq!(has(code::INVALID_PARAMS, json!(2)), 1, "{answers:?}");
    assert_eq!(has(code::INVALID_REQUEST, Value::Null), 2, "{answers:?}");
    assert_eq!(has(code::METHOD_NOT_FOUND, json!(7)), 1, "{answers:?}");
    let hello = answers.iter().find(|answer| answer["id"] == 7).unwrap();
    assert!(hello["error"]["message"].as_str().unwrap().contains("not part of a batch"), "{hello}");
    assert!(answers.contains(&json!({"jsonrpc": "2.0", "id": 4, "result": null})), "{answers:?}");
    assert!(answers.contains(&json!({"jsonrpc": "2.0", "id": 6, "result": 1})), "{answers:?}");
    assert_eq!(answers.len(), 7, "{answers:?}");
    alive(&mut peer).await;
}

#[tokio::test]
async fn a_notification_is_never_answered_whatever_comes_of_it() {
    let node = Node::start(methods()).await;
    let mut peer = RawPeer::connect(node.addr).await;
    for text in [
        r#"{"jsonrpc":"2.0","method":"echo","params":[1]}"#,
        r#"{"jsonrpc":"2.0","method":"nosuch"}"#,
        r#"{"jsonrpc":"2.0","method":"subtract","params":[1]}"#,
        r#"{"jsonrpc":"2.0","method":"panic"}"#,
        r#"{"jsonrpc":"2.0","method":"nap","params":[1]}"#,
        r#"{"jsonrpc":"2.0","method":"grow","params":[5000000]}"#,
        r#"{"jsonrpc":"2.0","method":"rpc.ping"}"#,
        r#"{"jsonrpc":"2.0","method":"rpc.nosuch"}"#,
        r#"{"jsonrpc":"2.0","method":"rpc.cancel","params":{"id":99}}"#,
        r#"{"jsonrpc":"2.0","method":"rpc.cancel","params":"nonsense"}"#,
    ] {
        if text.contains("nonsense") {
            // It is no request at all, and that is answered.
            let answer = peer.ask_json(text).await;
            assert!(is_error(&answer, code::INVALID_REQUEST, &Value::Null), "{answer}");
        } else {
            peer.send(text).await;
        }
        // The answer to this comes later than the nap would end.
        assert_eq!(peer.ask_json(&request(1, "nap", &json!([20]))).await["result"], 20, "{text}");
    }
}

#[tokio::test]
async fn hello_tells_what_the_server_is_and_refuses_who_means_another() {
    let node = Node::start(methods()).await;
    let mut peer = RawPeer::connect(node.addr).await;
    let hello = |params: Value| request(0, "rpc.hello", &params);
    let answer = peer.ask_json(&hello(json!({"version": 2, "features": []}))).await;
    assert!(is_error(&answer, code::INCOMPATIBLE_VERSION, &json!(0)), "{answer}");
    assert_eq!(answer["error"]["data"]["version"], 1);
    let answer = peer.ask_json(&hello(json!({"version": 1, "incarnation": "somebody else"}))).await;
    assert!(is_error(&answer, code::WRONG_INCARNATION, &json!(0)), "{answer}");
    for wrong in [json!([]), json!({"version": "1"}), json!({"version": 1, "incarnation": 5})] {
        let answer = peer.ask_json(&hello(wrong)).await;
        assert!(is_error(&answer, code::INVALID_PARAMS, &json!(0)), "{answer}");
    }
    let answer = peer.ask_json(&hello(json!({"version": 1, "incarnation": node.incarnation, "more": [1]}))).await;
    let result = &answer["result"];
    assert_eq!(result["version"], 1);
    assert_eq!(result["incarnation"], node.incarnation.as_str());
    assert_eq!(result["message_bytes_max"], MESSAGE_BYTES_MAX);
    assert_eq!(result["idempotent"], json!(["echo"]));
    alive(&mut peer).await;
}

#[tokio::test]
async fn discover_lists_every_method_and_which_may_be_repeated() {
    let node = Node::start(methods()).await;
    let mut peer = RawPeer::connect(node.addr).await;
    let answer = peer.ask_json(r#"{"jsonrpc":"2.0","id":2,"method":"rpc.discover","params":[]}"#).await;
    let methods = answer["result"]["methods"].as_array().unwrap();
    assert_eq!(methods.len(), 10, "{answer}");
    for method in methods {
        assert_eq!(method["x-idempotent"], method["name"] == "echo", "{method}");
    }
    assert!(answer["result"]["openrpc"].as_str().unwrap().starts_with("1."));
}

#[tokio::test]
async fn a_request_is_taken_back_by_its_id() {
    let node = Node::start(methods()).await;
    let mut peer = RawPeer::connect(node.addr).await;
    for id in [r#""a\u00e4""#, "7", "-7", "1.50", "null", "18446744073709551616", "10000000000000000000"] {
        peer.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"nap","params":[60000]}}"#)).await;
        let answer = peer.ask(&format!(r#"{{"jsonrpc":"2.0","method":"rpc.cancel","params":{{"id":{id}}}}}"#)).await;
        let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{},"#, code::CANCELLED);
        assert!(answer.starts_with(&head), "{answer}");
        alive(&mut peer).await;
    }
    // As a request it is answered as requests are.
    let answer = peer.ask_json(&request(1, "rpc.cancel", &json!({"id": 99}))).await;
    assert_eq!(answer, json!({"jsonrpc": "2.0", "id": 1, "result": null}));
}

#[tokio::test]
async fn a_request_whose_time_is_over_is_answered_so() {
    let node = Node::start(methods()).await;
    let mut peer = RawPeer::connect(node.addr).await;
    let answer = peer.ask_json(r#"{"jsonrpc":"2.0","id":1,"method":"echo","meta":{"timeout_ms":0}}"#).await;
    assert!(is_error(&answer, code::DEADLINE_EXCEEDED, &json!(1)), "{answer}");
    let began = Instant::now();
    let text = r#"{"jsonrpc":"2.0","id":2,"method":"nap","meta":{"timeout_ms":100},"params":[60000]}"#;
    let answer = peer.ask_json(text).await;
    assert!(is_error(&answer, code::DEADLINE_EXCEEDED, &json!(2)), "{answer}");
    // The server looks once a second.
    assert!((100..5000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    alive(&mut peer).await;
}

#[tokio::test]
async fn a_plain_peer_that_closes_its_sending_side_still_gets_its_answers() {
    let node = Node::start(methods()).await;
    let mut peer = RawPeer::connect(node.addr).await;
    peer.send(&request(1, "nap", &json!([100]))).await;
    peer.send(&request(2, "grow", &json!([1_000_000]))).await;
    peer.close_sending().await;
    let answers = [peer.receive_json().await, peer.receive_json().await];
    for id in [1, 2] {
        assert!(answers.iter().any(|a| a["id"] == id && a.get("result").is_some()), "{id}");
    }
    peer.closed().await;
}

#[tokio::test]
async fn a_draining_server_tells_those_who_said_hello_and_closes_the_others() {
    let config = ServerConfig { drain_timeout: Duration::from_secs(10), ..ServerConfig::default() };
    let node = Node::start(methods().config(config)).await;
    let addr = node.addr;
    let mut plain_idle = RawPeer::connect(addr).await;
    let mut plain_busy = RawPeer::connect(addr).await;
    let mut greeted = RawPeer::connect(addr).await;
    alive(&mut plain_idle).await;
    greeted.ask_json(&request(0, "rpc.hello", &json!({"version": 1, "features": ["ping", "goaway"]}))).await;
    greeted.send(&request(1, "nap", &json!([300]))).await;
    plain_busy.send(&request(1, "nap", &json!([300]))).await;
    alive(&mut greeted).await;
    alive(&mut plain_busy).await;
    let began = Instant::now();
    let stopping = tokio::spawn(node.stop());

    let goaway = greeted.receive_json().await;
    assert_eq!((&goaway["method"], goaway.get("id")), (&json!("rpc.goaway"), None));
    plain_idle.closed().await;
    let refused = greeted.ask_json(&request(2, "echo", &json!([1]))).await;
    assert!(is_error(&refused, code::DRAINING, &json!(2)), "{refused}");
    // New connections are refused in good order too, and silent ones do not hold up the end.
    let mut late = RawPeer::connect(addr).await;
    let _silent = RawPeer::connect(addr).await;
    let refused = late.ask_json(&request(0, "rpc.hello", &json!({"version": 1}))).await;
    assert!(is_error(&refused, code::DRAINING, &json!(0)), "{refused}");

    assert_eq!(greeted.receive_json().await["result"], 300);
    assert_eq!(plain_busy.receive_json().await["result"], 300);
    plain_busy.closed().await;
    late.closed().await;
    drop(greeted);
    stopping.await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "before the drain times out: {:?}", began.elapsed());
}

#[tokio::test]
async fn draining_ends_after_its_time_whoever_still_hangs_on() {
    let config = ServerConfig { drain_timeout: Duration::from_millis(300), ..ServerConfig::default() };
    let node = Node::start(methods().config(config)).await;
    let mut peer = RawPeer::connect(node.addr).await;
    peer.ask_json(&request(0, "rpc.hello", &json!({"version": 1}))).await;
    peer.send(&request(1, "nap", &json!([60_000]))).await;
    alive(&mut peer).await;
    let began = Instant::now();
    node.stop().await;
    assert!((300..5000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    assert_eq!(peer.receive_json().await["method"], "rpc.goaway");
    assert_eq!(peer.receive().await, None, "the connection is closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_connections_that_send_nothing_do_not_keep_others_out() {
    cluster::open_many_files();
    let node = Node::start(methods()).await;
    let mut silent = Vec::new();
    for _ in 0..1000 {
        silent.push(RawPeer::connect(node.addr).await);
    }
    let client = Client::connect(&format!("static:{}", node.addr)).await.unwrap();
    connected(&client, 1).await;
    for n in 0..100 {
        assert_eq!(client.call::<_, [u32; 1]>("echo", &[n]).await.unwrap(), [n]);
    }
    for peer in silent.iter_mut().step_by(100) {
        alive(peer).await;
    }
}

#[tokio::test]
async fn connections_beyond_the_maximum_are_told_so_and_closed() {
    let config = ServerConfig { connections_max: 3, ..ServerConfig::default() };
    let node = Node::start(methods().config(config)).await;
    let mut peers = Vec::new();
    for _ in 0..3 {
        let mut peer = RawPeer::connect(node.addr).await;
        alive(&mut peer).await;
        peers.push(peer);
    }
    let mut peer = RawPeer::connect(node.addr).await;
    peer.send(PING).await;
    let told = peer.receive_json().await;
    assert_eq!((&told["id"], &told["error"]["code"]), (&Value::Null, &json!(code::OVERLOADED)), "{told}");
    peer.closed().await;
    let client = Client::connect(&format!("static:{}", node.addr)).await.unwrap();
    let error = client.call::<_, ()>("echo", &[1]).await.unwrap_err();
    assert!(error.attempts().iter().any(|a| a.outcome == "the server has its 3 connections"), "{error:?}");
    drop((peers.pop(), client));
    // The place is free again.
    let end = Instant::now() + SOON;
    loop {
        let mut peer = RawPeer::connect(node.addr).await;
        peer.send(PING).await;
        if peer.receive_json().await["error"].is_null() {
            break;
        }
        assert!(Instant::now() < end, "the place stays taken");
    }
    alive(&mut peers[0]).await;
}

/// A method whose results are large, and how often it ran. With `later` it is not ready at once.
fn large(later: bool) -> (Method, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    // Raw, as writing a megabyte takes a while in a debug build.
    let text = serde_json::value::to_raw_value(&"x".repeat(1_000_000)).unwrap();
    let method = Method::raw("large", move |_, _| {
        let (count, text) = (count.clone(), text.clone());
        async move {
            if later {
                tokio::task::yield_now().await;
            }
            count.fetch_add(1, Ordering::SeqCst);
            Ok(text)
        }
    });
    (method, runs)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_does_not_read_does_not_make_the_server_hoard_answers() {
    // What the kernel keeps for both sockets, and then some.
    const AHEAD_MAX: usize = 30;
    const REQUESTS: usize = 100;
    for later in [false, true] {
        let (method, runs) = large(later);
        let node = Node::start(methods().with(method)).await;
        let mut peer = RawPeer::connect(node.addr).await;
        for id in 0..REQUESTS {
            peer.send(&request(id, "large", &json!([]))).await;
        }
        until("first answers", SOON, || runs.load(Ordering::SeqCst) > 3).await;
        let end = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end {
            assert!(runs.load(Ordering::SeqCst) <= AHEAD_MAX, "later {later}");
            sleep(Duration::from_millis(5)).await;
        }
        for received in 0..REQUESTS {
            assert!(runs.load(Ordering::SeqCst) <= received + AHEAD_MAX, "later {later}");
            peer.receive().await.unwrap();
        }
        alive(&mut peer).await;
    }
}

/// Accepts one connection and answers hello as a node would.
async fn fake_node(listener: &TcpListener) -> RawPeer {
    let (stream, _) = timeout(SOON, listener.accept()).await.expect("the client connects").unwrap();
    let mut peer = RawPeer::new(stream);
    let hello = peer.receive_json().await;
    assert_eq!(hello["method"], "rpc.hello");
    let result = json!({"version": 1, "features": ["ping", "goaway"], "incarnation": "fake", "idempotent": ["safe"]});
    peer.send(&json!({"jsonrpc": "2.0", "id": hello["id"], "result": result}).to_string()).await;
    peer
}

async fn fake() -> (TcpListener, Client) {
    let listener = TcpListener::bind(any_port()).await.unwrap();
    let client = Client::connect(&format!("static:{}", listener.local_addr().unwrap())).await.unwrap();
    (listener, client)
}

fn answer(request: &Value, result: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string()
}

#[tokio::test]
async fn a_reply_cut_in_the_middle_fails_its_call_and_the_client_connects_again() {
    let (listener, client) = fake().await;
    for cut in [2, 4, 20] {
        let mut node = fake_node(&listener).await;
        connected(&client, 1).await;
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.call::<_, Value>("unsafe", &[1]).await }
        });
        let asked = node.receive_json().await;
        let text = answer(&asked, &json!("the whole of it"));
        node.send_bytes(&[&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()[..cut]).await;
        drop(node);
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Transport { sent: true, .. }), "{error:?}");
        assert!(!error.is_unsent());
    }
    let mut node = fake_node(&listener).await;
    connected(&client, 1).await;
    let call = tokio::spawn(async move { client.call::<_, u32>("unsafe", &[1]).await });
    let asked = node.receive_json().await;
    node.send(&answer(&asked, &json!(7))).await;
    assert_eq!(call.await.unwrap().unwrap(), 7);
}

#[tokio::test]
async fn replies_that_nobody_asked_for_are_ignored() {
    let (listener, client) = fake().await;
    let mut node = fake_node(&listener).await;
    connected(&client, 1).await;
    for n in 0..3 {
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.call::<_, u32>("m", &[n]).await }
        });
        let asked = node.receive_json().await;
        for stray in ["1", "999999999", "\"x\"", "null", "-1"] {
            node.send(&format!(r#"{{"jsonrpc":"2.0","id":{stray},"result":666}}"#)).await;
        }
        node.send(&answer(&asked, &json!(n))).await;
        node.send(&answer(&asked, &json!(667))).await;
        assert_eq!(call.await.unwrap().unwrap(), n);
    }
}

#[tokio::test]
async fn a_client_answers_pings_and_has_no_methods() {
    let (listener, client) = fake().await;
    let mut node = fake_node(&listener).await;
    connected(&client, 1).await;
    alive(&mut node).await;
    let answer = node.ask_json(&request("s", "echo", &json!([1]))).await;
    assert!(is_error(&answer, code::METHOD_NOT_FOUND, &json!("s")), "{answer}");
    node.send(r#"{"jsonrpc":"2.0","method":"rpc.future","params":[]}"#).await;
    alive(&mut node).await;
}

#[tokio::test]
async fn a_node_that_sends_nonsense_is_given_up_and_tried_again() {
    let (listener, client) = fake().await;
    for nonsense in [&b"\0\0\0\x02hm"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x02[]", b"\0\0\0\x01\xff"] {
        let mut node = fake_node(&listener).await;
        connected(&client, 1).await;
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.call::<_, u32>("unsafe", &()).await }
        });
        node.receive_json().await;
        node.send_bytes(nonsense).await;
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Transport { sent: true, .. }), "{error:?}");
        node.closed().await;
    }
    fake_node(&listener).await;
}

#[tokio::test]
async fn malformed_errors_and_results_fail_their_call_only() {
    let (listener, client) = fake().await;
    let mut node = fake_node(&listener).await;
    connected(&client, 1).await;
    for (reply, name) in [
        (r#""error":{"code":"x"}"#, "internal_error"),
        (r#""error":null"#, "internal_error"),
        (r#""error":{"code":5,"message":"m","data":{"a":1},"more":2}"#, "application"),
        (r#""result":"text""#, "decode"),
        (r#""result":{"a":1},"extra":[]"#, "decode"),
    ] {
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.call::<_, u32>("m", &()).await }
        });
        let id = node.receive_json().await["id"].clone();
        node.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},{reply}}}"#)).await;
        assert_eq!(call.await.unwrap().unwrap_err().name(), name, "{reply}");
    }
    alive(&mut node).await;
}

#[tokio::test]
async fn a_plain_json_rpc_server_will_do() {
    let (listener, client) = fake().await;
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut node = RawPeer::new(stream);
        let mut asked = Vec::new();
        while let Some(text) = node.receive().await {
            let request: Value = serde_json::from_str(&text).unwrap();
            asked.push(request["method"].as_str().unwrap().to_owned());
            let reply = match request["method"].as_str().unwrap() {
                "double" => answer(&request, &json!(request["params"][0].as_u64().unwrap() * 2)),
                _ => json!({"error": {"message": "Method not found", "code": -32601}, "id": request["id"], "jsonrpc": "2.0"})
                    .to_string(),
            };
            node.send(&reply).await;
        }
        asked
    });
    connected(&client, 1).await;
    for n in 0..5 {
        assert_eq!(client.call::<_, u64>("double", &[n]).await.unwrap(), 2 * n);
    }
    assert_eq!(client.call::<_, u64>("triple", &[1]).await.unwrap_err().name(), "method_not_found");
    drop(client);
    let asked = serving.await.unwrap();
    assert_eq!(asked, ["rpc.hello", "double", "double", "double", "double", "double", "triple"]);
}

#[tokio::test]
async fn a_node_that_accepts_and_says_nothing_is_not_used() {
    let (listener, client) = fake().await;
    let _silent = timeout(SOON, listener.accept()).await.unwrap().unwrap();
    nodes_are(&client, "given up", |n| {
        n.first().is_some_and(|n| n.trouble.as_ref().is_some_and(|t| t.contains("hello")))
    })
    .await;
    let options = CallOptions::new().timeout(Duration::from_millis(200));
    let error = client.call_with::<_, u32>("m", &(), &options).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoNode), "{error:?}");
    assert!(error.attempts()[0].outcome.contains("hello"), "{error:?}");
    assert!(error.is_unsent());
}
