//! How calls fail: what may be repeated, and what the caller is told.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rpc_client::{CallOptions, Client, ClientConfig, Error, ErrorKind, NotRepeated};
use rpc_core::protocol::{ERROR_CODES, code};
use rpc_server::{ConcurrencyLimit, RpcError, Server, ServerBuilder, ServerConfig};
use rpc_tests::cluster::{Node, any_port, connected, dead_address, nodes_are};
use rpc_tests::raw::RawPeer;
use serde_json::{Value, json};

/// The error object that the server answered with.
fn remote(error: &Error) -> &RpcError {
    match error.kind() {
        ErrorKind::Remote { error, .. } => error,
        other => panic!("not an answer of the server: {other:?}"),
    }
}

/// A method that counts how often it ran, and fails with the code it is given.
fn failing(ran: &Arc<AtomicUsize>) -> ServerBuilder {
    let ran = ran.clone();
    Server::builder().method("fail", move |(code,): (i64,)| {
        ran.fetch_add(1, Ordering::SeqCst);
        async move { Err::<(), _>(RpcError::new(code, "ran").with_data(&json!([1]))) }
    })
}

#[tokio::test]
async fn a_call_whose_handler_failed_runs_once_whatever_the_code() {
    let ran = Arc::new(AtomicUsize::new(0));
    let nodes = [Node::start(failing(&ran)).await, Node::start(failing(&ran)).await];
    let client = Client::connect(&format!("static:{},{}", nodes[0].addr, nodes[1].addr)).await.unwrap();
    connected(&client, 2).await;
    for code in ERROR_CODES.iter().map(|known| known.code).chain([-32050, -1, 0, 42]) {
        ran.store(0, Ordering::SeqCst);
        let error = client.call::<_, Value>("fail", &(code,)).await.unwrap_err();
        assert_eq!(ran.load(Ordering::SeqCst), 1, "code {code}: {error}");
        let answer = remote(&error);
        assert!(!error.is_unsent(), "code {code} arrived as {}", answer.code);
        if answer.code == code::UPSTREAM && code != code::UPSTREAM {
            let data: Value = serde_json::from_str(answer.data.as_ref().unwrap().get()).unwrap();
            assert_eq!(data["upstream"], json!({ "code": code, "message": "ran", "data": [1] }));
        }
    }
}

#[tokio::test]
async fn params_that_no_handler_has_seen_are_told_apart_from_those_that_one_refused() {
    let ran = Arc::new(AtomicUsize::new(0));
    for concurrency in [ConcurrencyLimit::Unlimited, ConcurrencyLimit::Fixed(NonZeroUsize::MIN)] {
        let config = ServerConfig { concurrency, ..ServerConfig::default() };
        let node = Node::start(failing(&ran).config(config)).await;
        let client = Client::connect(&format!("static:{}", node.addr)).await.unwrap();
        connected(&client, 1).await;
        ran.store(0, Ordering::SeqCst);
        let unseen = client.call::<_, Value>("fail", &("tea",)).await.unwrap_err();
        assert_eq!((unseen.name(), unseen.is_unsent(), ran.load(Ordering::SeqCst)), ("invalid_params", true, 0));
        let refused = client.call::<_, Value>("fail", &(code::INVALID_PARAMS,)).await.unwrap_err();
        assert_eq!((refused.name(), refused.is_unsent(), ran.load(Ordering::SeqCst)), ("invalid_params", false, 1));
    }
}

#[tokio::test]
async fn a_failed_call_of_a_handler_is_passed_on_with_its_cause() {
    let ran = Arc::new(AtomicUsize::new(0));
    let back = Node::start(failing(&ran)).await;
    let inner = Client::connect(&format!("static:{}", back.addr)).await.unwrap();
    connected(&inner, 1).await;
    let front = Server::builder().method("front", move |(method, code): (String, i64)| {
        let inner = inner.clone();
        async move { Ok::<Value, RpcError>(inner.call(&method, &(code,)).await?) }
    });
    let front = Node::start(front).await;
    let client = Client::connect(&format!("static:{}", front.addr)).await.unwrap();
    connected(&client, 1).await;
    let error = client.call::<_, Value>("front", &("fail", 42)).await.unwrap_err();
    assert_eq!((remote(&error).code, &*remote(&error).message), (42, "ran"), "an application's error goes through");
    let error = client.call::<_, Value>("front", &("nosuch", 42)).await.unwrap_err();
    assert_eq!(remote(&error).code, code::UPSTREAM, "{error}");
    assert!(remote(&error).data.as_ref().unwrap().get().contains("method_not_found"), "{error:?}");
}

/// A node that says hello and answers every request with this code; counts them.
pub(crate) async fn refusing(code: i64) -> (SocketAddr, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let listener = tokio::net::TcpListener::bind(any_port()).await.unwrap();
    let (addr, count) = (listener.local_addr().unwrap(), asked.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut peer = RawPeer::new(stream);
            while let Some(request) = peer.receive().await {
                let request: Value = serde_json::from_str(&request).unwrap();
                if request["id"].is_null() {
                    continue;
                }
                let mut answer = match request["method"].as_str() {
                    Some("rpc.hello") => json!({ "result": { "version": 1 } }),
                    _ => {
                        count.fetch_add(1, Ordering::SeqCst);
                        json!({ "error": { "code": code, "message": "not now" } })
                    }
                };
                (answer["jsonrpc"], answer["id"]) = (json!("2.0"), request["id"].clone());
                peer.send(&answer.to_string()).await;
            }
        }
    });
    (addr, asked)
}

#[tokio::test]
async fn a_node_that_refuses_is_asked_with_pauses_and_not_for_ever() {
    for (code, most) in [(code::OVERLOADED, 16), (code::INCOMPATIBLE_VERSION, 1)] {
        let (addr, asked) = refusing(code).await;
        let client = Client::connect(&format!("static:{addr}")).await.unwrap();
        connected(&client, 1).await;
        let options = CallOptions::new().timeout(Duration::from_secs(20));
        let error = client.call_with::<_, Value>("any", &(), &options).await.unwrap_err();
        assert_eq!(remote(&error).code, code, "{error}");
        assert_eq!((asked.load(Ordering::SeqCst), error.attempts().len()), (most, most));
        assert!(error.is_unsent());
    }
}

/// A node that says hello, takes one call and is gone.
async fn losing() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind(any_port()).await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut peer = RawPeer::new(listener.accept().await.unwrap().0);
        drop(listener);
        while let Some(request) = peer.receive().await {
            let request: Value = serde_json::from_str(&request).unwrap();
            match request["method"].as_str() {
                Some("any") => return,
                Some("rpc.hello") => {
                    let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": { "version": 1 } });
                    peer.send(&answer.to_string()).await;
                }
                _ => {}
            }
        }
    });
    addr
}

#[tokio::test]
async fn a_call_lost_at_one_node_and_refused_by_another_is_not_called_unsent() {
    for code in [code::OVERLOADED, code::DRAINING, code::PERMISSION_DENIED] {
        let (lost_at, (refuses, _)) = (losing().await, refusing(code).await);
        let config = ClientConfig { call_timeout: Duration::from_millis(300), ..ClientConfig::default() };
        let prefers = Box::new(crate::failover::Prefer(lost_at));
        let url = format!("static:{lost_at},{refuses}");
        let client = Client::builder().config(config).policy(prefers).connect(&url).await.unwrap();
        connected(&client, 2).await;
        let options = CallOptions::new().idempotent();
        let error = client.call_with::<_, Value>("any", &(), &options).await.unwrap_err();
        assert_eq!((remote(&error).code, error.attempts()[0].node), (code, lost_at), "{error:?}");
        assert!(remote(&error).is_unstarted() && !error.is_unsent(), "{error:?}");
        assert!(error.hint().starts_with("the call may have run in an earlier attempt; "), "{error:?}");
    }
}

/// Checks the anatomy of an error: a stable name, the cause, what was tried, the registry and how
/// fresh its list is, and what to do next, which is something in the program and not at a shell.
fn check(error: &Error, name: &str, tried: bool, registry: bool) {
    assert_eq!(error.name(), name, "{error:?}");
    assert!(!error.to_string().is_empty() && !error.to_string().contains('\n'), "{error}");
    assert_eq!(!error.attempts().is_empty(), tried, "{name}: {error:?}");
    assert_eq!(error.registry().is_some(), registry, "{name}: {error:?}");
    let hint = error.hint();
    assert!(hint.len() > 10 && !hint.contains("--") && !hint.contains("rpc-client"), "{name}: {hint}");
    let text = format!("{error:?}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains(name) && lines.last().unwrap().ends_with(&hint), "{text}");
    assert_eq!(lines.iter().any(|line| line.starts_with("  tried: #1 ")), tried, "{text}");
    assert_eq!(lines.iter().any(|line| line.starts_with("  registry: ")), registry, "{text}");
}

#[tokio::test]
async fn every_error_of_the_client_says_what_happened_and_what_to_do() {
    let methods = || {
        Server::builder()
            .method("number", |(): ()| async { Ok::<_, RpcError>(7) })
            .method("hang", |(): ()| std::future::pending::<Result<(), RpcError>>())
    };
    let node = Node::start(methods()).await;
    let url = format!("static:{}", node.addr);
    let client = Client::connect(&url).await.unwrap();
    connected(&client, 1).await;
    let short = CallOptions::new().timeout(Duration::from_millis(200));

    check(&Client::connect("nothing").await.err().unwrap(), "config", false, false);
    check(&client.call::<_, Value>("number", &"tea").await.unwrap_err(), "bad_request", true, true);
    check(&client.call::<_, String>("number", &()).await.unwrap_err(), "decode", true, true);
    let long = ["x".repeat(5_000_000)];
    check(&client.call::<_, Value>("number", &long).await.unwrap_err(), "too_large", true, true);
    check(&client.call_with::<_, Value>("hang", &(), &short).await.unwrap_err(), "deadline_exceeded", true, true);
    check(&client.call::<_, Value>("nosuch", &()).await.unwrap_err(), "method_not_found", true, true);

    let caller = client.clone();
    let hanging = tokio::spawn(async move { caller.call::<_, Value>("hang", &()).await });
    nodes_are(&client, "a call in flight", |nodes| nodes[0].in_flight == 1).await;
    node.kill().await;
    let lost = hanging.await.unwrap().unwrap_err();
    check(&lost, "transport", true, true);
    assert_eq!(lost.not_repeated(), Some(NotRepeated::NotIdempotent));

    let nobody = Client::connect(&rpc_tests::cluster::fresh_registry()).await.unwrap();
    check(&nobody.call::<_, Value>("number", &()).await.unwrap_err(), "no_node", false, true);
    let (dead, _held) = dead_address();
    let unreachable = Client::connect(&format!("static:{dead}")).await.unwrap();
    check(&unreachable.call::<_, Value>("number", &()).await.unwrap_err(), "no_node", true, true);
    let registry = Client::connect(&format!("zk://{dead}/rpc")).await.unwrap();
    let second = CallOptions::new().timeout(Duration::from_secs(1));
    let error = registry.call_with::<_, Value>("number", &(), &second).await.unwrap_err();
    check(&error, "registry_unreachable", false, true);
    assert!(error.registry().unwrap().trouble.as_ref().unwrap().contains("refused"), "{error:?}");

    let closing = client.clone();
    closing.close(Duration::from_secs(1)).await;
    check(&client.call::<_, Value>("number", &()).await.unwrap_err(), "closed", false, true);
}

#[tokio::test]
async fn every_code_of_the_protocol_is_told_by_name_with_what_to_do() {
    for known in ERROR_CODES {
        let (addr, _) = refusing(known.code).await;
        let url = format!("static:{addr}");
        let client = Client::connect(&url).await.unwrap();
        connected(&client, 1).await;
        let short = CallOptions::new().timeout(Duration::from_millis(300));
        let error = client.call_with::<_, Value>("any", &(), &short).await.unwrap_err();
        check(&error, known.name, true, true);
        assert_eq!((remote(&error).is_application(), remote(&error).is_retryable()), (false, known.retry));
        client.close(Duration::from_secs(1)).await;

        let code = if known.code == code::DEADLINE_EXCEEDED { 6 } else { 7 };
        let arguments = ["call", "any", "--timeout", "400ms", "--registry", &url];
        let text = crate::cli::client(&arguments).await.ended_with(code).stderr;
        let head =
            format!("error: not now ({}, code {})\n  from: {addr}\n  tried: #1 {addr}  ", known.name, known.code);
        assert!(text.starts_with(&head), "{text}");
        assert!(
            text.contains("\n  registry: static:") && text.lines().last().unwrap().starts_with("  next: "),
            "{text}"
        );
        let json = crate::cli::client(&[&arguments[..], &["--format", "json"]].concat()).await.ended_with(code).json();
        let error = &json["error"];
        assert_eq!((&error["code"], &error["name"]), (&json!(known.code), &json!(known.name)));
        assert!(error["hint"].as_str().unwrap().len() > 10, "{json}");
        assert!(json["attempts"][0]["node"].is_string() && json["registry"]["list_age_ms"].is_u64(), "{json}");
    }
}
