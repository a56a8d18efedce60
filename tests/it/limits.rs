//! Settings with which nothing could work are refused, with what is wrong with them; so are nodes that name
//! such.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rpc_client::{Client, ClientConfig, Error, ErrorKind};
use rpc_core::protocol::{MESSAGE_BYTES_CEILING, MESSAGE_BYTES_FLOOR, code};
use rpc_core::registry;
use rpc_server::{Method, RpcError, Server, ServerBuilder, ServerConfig};
use rpc_tests::cluster::{Node, any_port, connected, fresh_registry};
use rpc_tests::raw::RawPeer;
use serde_json::{Value, json};

async fn unit((): ()) -> Result<(), RpcError> {
    Ok(())
}

/// What is wrong with the settings.
fn config_error<T>(result: Result<T, Error>) -> String {
    let error = result.err().expect("it was taken");
    assert!(matches!(error.kind(), ErrorKind::Config(_)), "{error:?}");
    error.to_string()
}

async fn bind_error(builder: ServerBuilder) -> String {
    config_error(builder.bind(any_port()).await)
}

#[tokio::test]
async fn names_by_which_no_method_could_be_called_are_refused() {
    for name in ["rpc.mine", "rpc.ping", "rpc."] {
        for builder in [Server::builder().method(name, unit), Server::builder().with(Method::new(name, unit))] {
            let error = bind_error(builder.method("fine", unit)).await;
            assert!(error.contains(&format!("`{name}`")) && error.contains("belong to the protocol"), "{error}");
        }
    }
    let error = bind_error(Server::builder().method("fine", unit).method("", unit)).await;
    assert!(error.contains("empty name"), "{error}");
    for name in ["rpc", "rpcx.y", "RPC.mine", " "] {
        assert!(Server::builder().method(name, unit).bind(any_port()).await.is_ok(), "{name}");
    }
}

#[tokio::test]
async fn limits_that_nothing_works_with_are_refused() {
    for bytes in [0, 1, 100, MESSAGE_BYTES_FLOOR - 1, MESSAGE_BYTES_CEILING + 1, usize::MAX] {
        let server = ServerConfig { message_bytes_max: bytes, ..ServerConfig::default() };
        let client = ClientConfig { message_bytes_max: bytes, ..ClientConfig::default() };
        let url = fresh_registry();
        let open = registry::open(&url.parse().unwrap()).unwrap();
        for error in [
            bind_error(Server::builder().config(server)).await,
            config_error(Client::builder().config(client.clone()).connect(&url).await),
            config_error(Client::builder().config(client).connect_to(open)),
        ] {
            let named = [bytes, MESSAGE_BYTES_FLOOR, MESSAGE_BYTES_CEILING].map(|n| error.contains(&n.to_string()));
            assert!(named == [true; 3] && error.contains("message_bytes_max"), "{error}");
        }
    }
    let config = ServerConfig { connections_max: 0, ..ServerConfig::default() };
    let error = bind_error(Server::builder().config(config)).await;
    assert!(error.contains("connections_max"), "{error}");
}

/// At the lowest limit everything that the protocol itself has to say is said in full.
#[tokio::test]
async fn the_lowest_limit_leaves_room_for_hello_and_each_error() {
    let config = ServerConfig { message_bytes_max: MESSAGE_BYTES_FLOOR, ..ServerConfig::default() };
    let url = fresh_registry();
    let builder =
        Server::builder().method("orders.list", |(n,): (usize,)| async move { Ok::<_, RpcError>("x".repeat(n)) });
    let node = Node::start(builder.config(config.clone()).registry(&url).unwrap()).await;
    let mine = ClientConfig { message_bytes_max: MESSAGE_BYTES_FLOOR, ..ClientConfig::default() };
    let client = Client::builder().config(mine).connect(&url).await.unwrap();
    connected(&client, 1).await;
    assert_eq!(client.call::<_, String>("orders.list", &(2,)).await.unwrap(), "xx");
    for (method, params) in [("orders.list", json!(["two"])), ("orders.lst", json!([2])), ("orders.list", json!([600]))]
    {
        let error = client.call::<_, Value>(method, &params).await.unwrap_err();
        assert!(!error.to_string().contains("the error message is longer"), "{error:?}");
        let ErrorKind::Remote { error, .. } = error.kind() else { panic!("{error:?}") };
        assert!(error.data.is_some(), "{error:?}");
    }
    let mut raw = RawPeer::connect(node.addr).await;
    let hello =
        |params: Value| json!({"jsonrpc": "2.0", "id": u64::MAX, "method": "rpc.hello", "params": params}).to_string();
    let other = "6f1c1d5e-6d0c-4b5e-9a57-0c4f6f0a7b11";
    for (asked, expected) in [
        ("{".to_owned(), code::PARSE_ERROR),
        ("{}".to_owned(), code::INVALID_REQUEST),
        (format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"{}\"}}", u64::MAX, "x".repeat(600)), code::TOO_LARGE),
        (hello(json!({"version": 7, "features": ["load"]})), code::INCOMPATIBLE_VERSION),
        (hello(json!({"version": 1, "features": ["load"], "incarnation": other})), code::WRONG_INCARNATION),
        (hello(json!({"version": "1"})), code::INVALID_PARAMS),
    ] {
        let answer = raw.ask_json(&asked).await;
        assert_eq!(answer["error"]["code"], expected, "{answer}");
        assert!(!answer.to_string().contains("the error message is longer"), "{answer}");
    }
}

/// A node that answers every hello so; counts them.
async fn answering(hello: Value) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind(any_port()).await.unwrap();
    let (addr, asked) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = asked.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut peer = RawPeer::new(stream);
            let request = peer.receive_json().await;
            count.fetch_add(1, Ordering::SeqCst);
            let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": hello });
            peer.send(&answer.to_string()).await;
        }
    });
    (addr, asked)
}

#[tokio::test]
async fn a_node_that_says_it_cannot_be_used_is_not() {
    for (hello, reason) in [
        (json!({ "version": 7 }), "speaks version 7, this client 1"),
        (json!({ "version": 1, "message_bytes_max": 0 }), "messages of up to 0 bytes"),
        (json!({ "version": 1, "message_bytes_max": 511 }), "messages of up to 511 bytes"),
    ] {
        let (addr, asked) = answering(hello).await;
        let client = Client::connect(&format!("static:{addr}")).await.unwrap();
        assert!(client.ready(Duration::from_secs(20)).await);
        let [node] = &client.nodes()[..] else { panic!("{:?}", client.nodes()) };
        assert!(!node.connected && node.trouble.as_ref().unwrap().contains(reason), "{node:?}");
        let error = client.call::<_, Value>("any", &()).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NoNode) && error.is_unsent(), "{error:?}");
        assert!(error.attempts().iter().any(|attempt| attempt.outcome.contains(reason)), "{error:?}");
        // It is asked again with pauses that grow: the first few of them take a second at most.
        let asked = asked.load(Ordering::SeqCst);
        assert!(asked < 20, "{asked} hellos");
    }
}

#[tokio::test]
async fn a_node_beside_an_unusable_one_takes_the_calls() {
    let (unusable, _) = answering(json!({ "version": 7 })).await;
    let node = Node::start(Server::builder().method("unit", unit)).await;
    let client = Client::connect(&format!("static:{unusable},{}", node.addr)).await.unwrap();
    assert!(client.ready(Duration::from_secs(20)).await);
    for _ in 0..20 {
        client.call::<_, ()>("unit", &()).await.unwrap();
    }
}
