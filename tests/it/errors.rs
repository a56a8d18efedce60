//! How calls fail: what may be repeated, and what the caller is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rpc_client::{CallOptions, Client, Error, ErrorKind};
use rpc_core::protocol::{ERROR_CODES, code};
use rpc_server::{RpcError, Server, ServerBuilder};
use rpc_tests::cluster::{Node, any_port, connected};
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
        let started = ERROR_CODES.iter().find(|known| known.code == answer.code).is_none_or(|known| known.started);
        assert!(started || answer.code == code::INVALID_PARAMS, "code {code} arrived as {}", answer.code);
        if answer.code == code::UPSTREAM && code != code::UPSTREAM {
            let data: Value = serde_json::from_str(answer.data.as_ref().unwrap().get()).unwrap();
            assert_eq!(data["upstream"], json!({ "code": code, "message": "ran", "data": [1] }));
        }
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
async fn refusing(code: i64) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let listener = tokio::net::TcpListener::bind(any_port()).await.unwrap();
    let (addr, count) = (listener.local_addr().unwrap(), asked.clone());
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut peer = RawPeer::new(stream);
        while let Some(request) = peer.receive().await {
            let request: Value = serde_json::from_str(&request).unwrap();
            let answer = match request["method"].as_str() {
                Some("rpc.hello") => json!({ "result": { "version": 1 } }),
                _ => {
                    count.fetch_add(1, Ordering::SeqCst);
                    json!({ "error": { "code": code, "message": "not now" } })
                }
            };
            let mut answer = answer;
            (answer["jsonrpc"], answer["id"]) = (json!("2.0"), request["id"].clone());
            peer.send(&answer.to_string()).await;
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
