//! TLS, tokens and what a caller may do, over real sockets with certificates made for the test.

use std::net::SocketAddr;
use std::time::Duration;

use rpc_client::{CallOptions, Client, ClientConfig, ClientTls, ClientTlsFiles, Error, ErrorKind, Secret, Token};
use rpc_core::protocol::code;
use rpc_server::{Access, Method, RpcError, Server, ServerBuilder, ServerConfig, ServerTls, ServerTlsFiles};
use rpc_tests::certificates::{Authority, Issued};
use rpc_tests::cluster::{Node, SOON, connected, until};
use rpc_tests::raw::RawPeer;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const TOKEN: &str = "correct horse battery staple";
const HELLO: &str = r#"{"jsonrpc":"2.0","id":0,"method":"rpc.hello","params":{"version":1}}"#;
const ECHO: &str = r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":[1]}"#;
const PING: &str = r#"{"jsonrpc":"2.0","id":2,"method":"rpc.ping"}"#;

fn hello(token: &str) -> String {
    json!({"jsonrpc":"2.0","id":0,"method":"rpc.hello","params":{"version":1,"token":token}}).to_string()
}

fn server(config: ServerConfig) -> ServerBuilder {
    Server::builder()
        .config(config)
        .with(Method::raw("echo", |_, params| async move { Ok(params) }).idempotent())
        .with(Method::with_context("whoami", |context, (): ()| async move {
            Ok::<_, RpcError>(context.identity.map(|identity| identity.to_string()))
        }))
        .method("orders.list", |(): ()| async { Ok::<_, RpcError>("orders") })
}

fn tls(issued: &Issued, client_ca: Option<&Authority>) -> ServerConfig {
    let files = ServerTlsFiles {
        cert: issued.cert.clone(),
        key: issued.key.clone(),
        client_ca: client_ca.map(Authority::file),
    };
    ServerConfig { tls: Some(ServerTls::files(files).unwrap()), ..ServerConfig::default() }
}

fn believing(authority: &Authority, identity: Option<&Issued>) -> ClientTls {
    let identity = identity.map(|issued| (issued.cert.clone(), issued.key.clone()));
    ClientTls::files(ClientTlsFiles { ca: authority.file(), identity }).unwrap()
}

async fn client(addr: SocketAddr, tls: Option<ClientTls>, token: Option<&str>) -> Client {
    let token = token.map(|token| Token::new(Secret::new(token)).unwrap());
    // Debug builds on a busy machine take their time for a handshake.
    let config = ClientConfig { tls, token, connect_timeout: Duration::from_secs(5), ..ClientConfig::default() };
    Client::builder().config(config).connect(&format!("static:{addr}")).await.unwrap()
}

async fn echo(client: &Client) -> Result<Value, Error> {
    client.call_with("echo", &[1], &CallOptions::new().timeout(SOON)).await
}

/// Why the only node cannot be used.
async fn trouble(client: &Client) -> String {
    let error = echo(client).await.unwrap_err();
    let attempts: Vec<&str> = error.attempts().iter().map(|attempt| attempt.outcome.as_str()).collect();
    format!("{error}: {}", attempts.join(", "))
}

fn remote(error: &Error) -> &RpcError {
    match error.kind() {
        ErrorKind::Remote { error, .. } => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn calls_of_every_size_go_through_tls() {
    let authority = Authority::new();
    let node = Node::start(server(tls(&authority.issue("node", &["127.0.0.1"]), None))).await;
    let client = client(node.addr, Some(believing(&authority, None)), None).await;
    for size in [0, 1, 1000, 16_384, 100_000, 3_000_000] {
        let text = "x".repeat(size);
        let options = CallOptions::new().timeout(SOON);
        let back: (String,) = client.call_with("echo", &(&text,), &options).await.unwrap();
        assert_eq!(back.0, text);
    }
    let mut calls = JoinSet::new();
    for number in 0..500 {
        let client = client.clone();
        calls.spawn(async move {
            let text = format!("{number}").repeat(number);
            let options = CallOptions::new().timeout(SOON);
            let back: (String,) = client.call_with("echo", &(&text,), &options).await.unwrap();
            assert_eq!(back.0, text);
        });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    node.stop().await;
}

#[tokio::test]
async fn a_server_is_believed_by_its_authority_and_its_name() {
    let (authority, other) = (Authority::new(), Authority::new());
    let node = Node::start(server(tls(&authority.issue("node", &["orders.test"]), None))).await;
    let by_name = believing(&authority, None).expect_name("orders.test").unwrap();
    echo(&client(node.addr, Some(by_name), None).await).await.unwrap();
    let by_address = trouble(&client(node.addr, Some(believing(&authority, None)), None).await).await;
    assert!(by_address.contains("not for 127.0.0.1, but for") && by_address.contains("orders.test"), "{by_address}");
    let stranger = believing(&other, None).expect_name("orders.test").unwrap();
    let unknown = trouble(&client(node.addr, Some(stranger), None).await).await;
    assert!(unknown.contains("issued by none of the authorities"), "{unknown}");
}

#[tokio::test]
async fn with_a_client_authority_only_its_clients_get_in_and_are_known_by_name() {
    let (authority, other) = (Authority::new(), Authority::new());
    let node = Node::start(server(tls(&authority.issue("node", &["127.0.0.1"]), Some(&authority)))).await;
    let known = authority.issue("client", &["billing.test"]);
    let known = client(node.addr, Some(believing(&authority, Some(&known))), None).await;
    assert_eq!(known.call::<_, String>("whoami", &()).await.unwrap(), "billing.test");
    let without = trouble(&client(node.addr, Some(believing(&authority, None)), None).await).await;
    assert!(without.contains("CertificateRequired"), "{without}");
    let stranger = other.issue("client", &["billing.test"]);
    let stranger = trouble(&client(node.addr, Some(believing(&authority, Some(&stranger))), None).await).await;
    assert!(stranger.contains("alert"), "{stranger}");
}

#[tokio::test]
async fn a_certificate_may_call_what_the_access_file_says() {
    let authority = Authority::new();
    let rules = authority.directory().join("access.json");
    std::fs::write(&rules, r#"{"certificates":[{"name":"billing.test","methods":["orders.*","whoami"]}]}"#).unwrap();
    let config = ServerConfig {
        access: Some(Access::file(rules).unwrap()),
        ..tls(&authority.issue("node", &["127.0.0.1"]), Some(&authority))
    };
    let node = Node::start(server(config)).await;
    let listed = authority.issue("listed", &["billing.test"]);
    let listed = client(node.addr, Some(believing(&authority, Some(&listed))), None).await;
    assert_eq!(listed.call::<_, String>("orders.list", &()).await.unwrap(), "orders");
    assert_eq!(listed.call::<_, String>("whoami", &()).await.unwrap(), "billing.test");
    assert_eq!(remote(&echo(&listed).await.unwrap_err()).code, code::PERMISSION_DENIED);
    let unlisted = authority.issue("unlisted", &["other.test"]);
    let unlisted = client(node.addr, Some(believing(&authority, Some(&unlisted))), None).await;
    assert_eq!(remote(&echo(&unlisted).await.unwrap_err()).code, code::UNAUTHENTICATED);
}

#[tokio::test]
async fn each_side_says_that_the_other_does_or_does_not_speak_tls() {
    let authority = Authority::new();
    let with = Node::start(server(tls(&authority.issue("node", &["127.0.0.1"]), None))).await;
    let without = Node::start(server(ServerConfig::default())).await;
    let error = echo(&client(with.addr, None, None).await).await.unwrap_err();
    assert_eq!(error.name(), "tls_required");
    assert!(error.hint().contains("ClientConfig::tls"));
    let error = trouble(&client(without.addr, Some(believing(&authority, None)), None).await).await;
    assert!(error.contains("does it serve TLS"), "{error}");
    // Any client without TLS is told, and then hung up on.
    let mut raw = RawPeer::connect(with.addr).await;
    assert_eq!(raw.ask_json(ECHO).await["error"]["code"], code::TLS_REQUIRED);
    raw.closed().await;
}

#[tokio::test]
async fn a_new_certificate_is_used_and_a_broken_one_is_not() {
    let (old, new) = (Authority::new(), Authority::new());
    let issued = old.issue("node", &["127.0.0.1"]);
    let node = Node::start(server(tls(&issued, None))).await;
    let before = client(node.addr, Some(believing(&old, None)), None).await;
    echo(&before).await.unwrap();
    // The key no longer fits: the old pair stays in use.
    let replacement = new.issue("node", &["127.0.0.1"]);
    std::fs::copy(&replacement.cert, &issued.cert).unwrap();
    sleep(rpc_core::reloaded::LOOK_EVERY * 2).await;
    echo(&client(node.addr, Some(believing(&old, None)), None).await).await.unwrap();
    std::fs::copy(&replacement.key, &issued.key).unwrap();
    let end = Instant::now() + SOON;
    while echo(&client(node.addr, Some(believing(&new, None)), None).await).await.is_err() {
        assert!(Instant::now() < end, "the new certificate is not used");
    }
    // The connection that was open is still the same.
    echo(&before).await.unwrap();
}

fn with_access(access: Access) -> ServerConfig {
    ServerConfig { access: Some(access), ..ServerConfig::default() }
}

fn with_token() -> ServerConfig {
    with_access(Access::token(Secret::new(TOKEN)).unwrap())
}

#[tokio::test]
async fn a_token_lets_in_and_a_wrong_or_missing_one_is_told() {
    let node = Node::start(server(with_token())).await;
    let right = client(node.addr, None, Some(TOKEN)).await;
    echo(&right).await.unwrap();
    assert_eq!(right.call::<_, String>("whoami", &()).await.unwrap(), "shared");
    for token in [None, Some("wrong horse battery staple")] {
        let started = Instant::now();
        let error = echo(&client(node.addr, None, token).await).await.unwrap_err();
        assert_eq!(error.name(), "unauthenticated", "{token:?}");
        assert!(error.is_unsent() && error.hint().contains("ClientConfig::token"));
        assert!(started.elapsed() < SOON, "it does not wait for what cannot come");
        assert!(!format!("{error:?}").contains("horse"), "{error:?}");
    }
}

#[tokio::test]
async fn without_a_token_only_hello_and_ping_are_answered() {
    let node = Node::start(server(with_token())).await;
    let mut raw = RawPeer::connect(node.addr).await;
    assert_eq!(raw.ask_json(PING).await["result"], Value::Null);
    let probe = PING.replace("ping", "probe");
    let (discover, other) = (PING.replace("ping", "discover"), PING.replace("ping", "nonsense"));
    for request in [ECHO, &probe, &discover, &other] {
        assert_eq!(raw.ask_json(request).await["error"]["code"], code::UNAUTHENTICATED, "{request}");
    }
    // A notification is not run, and not answered either.
    raw.send(r#"{"jsonrpc":"2.0","method":"echo","params":[1]}"#).await;
    raw.send(r#"{"jsonrpc":"2.0","method":"rpc.cancel","params":{"id":1}}"#).await;
    let batch = raw.ask_json(&format!("[{ECHO},{PING},{discover}]")).await;
    assert_eq!(batch[0]["error"]["code"], code::UNAUTHENTICATED);
    assert_eq!(batch[1]["result"], Value::Null);
    assert_eq!(batch[2]["error"]["code"], code::UNAUTHENTICATED);
    // Long messages are for those who are known.
    let long = ECHO.replace("[1]", &format!("[\"{}\"]", "x".repeat(20_000)));
    assert_eq!(raw.ask_json(&long).await["error"]["code"], code::TOO_LARGE);
    assert!(raw.ask_json(&hello(TOKEN)).await["result"]["version"].is_u64());
    assert_eq!(raw.ask_json(ECHO).await["result"], json!([1]));
    assert!(raw.ask_json(&long).await["result"].is_array());
    // Whoever says something else afterwards is believed no longer.
    assert_eq!(raw.ask_json(&hello("another one, which is wrong")).await["error"]["code"], code::UNAUTHENTICATED);
    raw.closed().await;
}

#[tokio::test]
async fn a_wrong_token_costs_the_connection_and_says_nothing_of_the_server() {
    let node = Node::start(server(with_token())).await;
    for first in [HELLO.to_owned(), hello("wrong horse battery staple"), hello("")] {
        let mut raw = RawPeer::connect(node.addr).await;
        let answer = raw.ask(&first).await;
        assert!(answer.contains("-32009") && !answer.contains(&node.incarnation), "{answer}");
        raw.closed().await;
    }
}

#[tokio::test]
async fn who_does_not_say_who_it_is_has_to_go() {
    let node = Node::start(server(with_token())).await;
    let mut known = RawPeer::connect(node.addr).await;
    known.ask(&hello(TOKEN)).await;
    let mut silent = RawPeer::connect(node.addr).await;
    let mut talking = RawPeer::connect(node.addr).await;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(3) {
        talking.ask(PING).await;
    }
    tokio::join!(silent.closed(), talking.closed());
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert_eq!(known.ask_json(ECHO).await["result"], json!([1]));
}

#[tokio::test]
async fn a_taken_back_token_ends_what_it_opened() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("access.json");
    let rule =
        |name: &str, methods: &str| json!({"name": name, "token": format!("{TOKEN} {name}"), "methods": [methods]});
    std::fs::write(&file, json!({"tokens": [rule("a", "*"), rule("b", "orders.*")]}).to_string()).unwrap();
    let node = Node::start(server(with_access(Access::file(file.clone()).unwrap()))).await;
    let a = client(node.addr, None, Some(&format!("{TOKEN} a"))).await;
    let b = client(node.addr, None, Some(&format!("{TOKEN} b"))).await;
    echo(&a).await.unwrap();
    let denied = echo(&b).await.unwrap_err();
    assert_eq!((denied.name(), denied.is_unsent()), ("permission_denied", true));
    assert_eq!(b.call::<_, String>("orders.list", &()).await.unwrap(), "orders");
    let mut raw = RawPeer::connect(node.addr).await;
    raw.ask(&hello(&format!("{TOKEN} b"))).await;
    let listed = raw.ask(&PING.replace("ping", "discover")).await;
    assert!(listed.contains("orders.list") && !listed.contains("\"echo\""), "{listed}");
    // Broken rules change nothing.
    std::fs::write(&file, "{").unwrap();
    sleep(rpc_core::reloaded::LOOK_EVERY * 2).await;
    echo(&a).await.unwrap();
    std::fs::write(&file, json!({"tokens": [rule("b", "*")]}).to_string()).unwrap();
    let end = Instant::now() + SOON;
    while echo(&b).await.is_err() {
        assert!(Instant::now() < end, "the new rules are not used");
    }
    assert_eq!(raw.ask_json(ECHO).await["result"], json!([1]), "an open connection follows the rules");
    assert_eq!(echo(&a).await.unwrap_err().name(), "unauthenticated");
}

#[tokio::test]
async fn a_replaced_token_file_is_read_for_the_next_connection() {
    let dir = tempfile::tempdir().unwrap();
    let (access, own) = (dir.path().join("server.token"), dir.path().join("client.token"));
    std::fs::write(&access, format!("{TOKEN} 1\n")).unwrap();
    std::fs::write(&own, format!("{TOKEN} 1")).unwrap();
    let node = Node::start(server(with_access(Access::token_file(access.clone()).unwrap()))).await;
    let config = ClientConfig { token: Some(Token::file(own.clone()).unwrap()), ..ClientConfig::default() };
    let client = Client::builder().config(config).connect(&format!("static:{}", node.addr)).await.unwrap();
    echo(&client).await.unwrap();
    std::fs::write(&own, format!("{TOKEN} 22")).unwrap();
    sleep(rpc_core::reloaded::LOOK_EVERY).await;
    std::fs::write(&access, format!("{TOKEN} 22\n")).unwrap();
    // The old token is taken back: at most what is on its way then is lost.
    let mut failed = 0;
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        failed += u32::from(echo(&client).await.is_err());
        sleep(Duration::from_millis(20)).await;
    }
    assert!(failed <= 2, "{failed} calls failed");
    connected(&client, 1).await;
    echo(&client).await.unwrap();
}

#[tokio::test]
async fn a_tls_server_drains_like_any_other() {
    let authority = Authority::new();
    let config = ServerConfig {
        access: Some(Access::token(Secret::new(TOKEN)).unwrap()),
        ..tls(&authority.issue("node", &["127.0.0.1"]), None)
    };
    let slow = server(config).method("slow", |(): ()| async {
        sleep(Duration::from_millis(500)).await;
        Ok::<_, RpcError>("done")
    });
    let node = Node::start(slow).await;
    let client = client(node.addr, Some(believing(&authority, None)), Some(TOKEN)).await;
    echo(&client).await.unwrap();
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.call::<_, String>("slow", &()).await }
    });
    until("call in flight", SOON, || client.nodes()[0].in_flight == 1).await;
    node.stop().await;
    assert_eq!(call.await.unwrap().unwrap(), "done");
}

/// What a peer gets that begins `bytes` and then waits: until the server hangs up.
async fn hung_up_on(addr: SocketAddr, bytes: &[u8]) -> Duration {
    let started = Instant::now();
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut rest = Vec::new();
    // A reset is an end too.
    let _ = timeout(SOON, stream.read_to_end(&mut rest)).await.expect("the server hangs up in time");
    started.elapsed()
}

#[tokio::test]
async fn broken_and_slow_handshakes_end_and_disturb_nobody() {
    rpc_tests::cluster::open_many_files();
    let authority = Authority::new();
    let node = Node::start(server(tls(&authority.issue("node", &["127.0.0.1"]), None))).await;
    let client = client(node.addr, Some(believing(&authority, None)), None).await;
    echo(&client).await.unwrap();
    // What begins as TLS and is none, what promises more than it brings, and silence.
    let garbage: &[&[u8]] = &[
        b"\x16\x03\x01\x00\x05hello",
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x03\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x15\x03\x01\x00\x02\x02\x28",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\x16",
        b"",
    ];
    let mut peers = JoinSet::new();
    for bytes in garbage {
        let addr = node.addr;
        peers.spawn(async move { hung_up_on(addr, bytes).await });
    }
    // Many that only connect, and half of them go at once.
    let mut idle = Vec::new();
    for number in 0..1000 {
        let mut stream = TcpStream::connect(node.addr).await.unwrap();
        stream.write_all(&[0x16, 3, 1]).await.unwrap();
        if number % 2 == 0 {
            idle.push(stream);
        }
    }
    echo(&client).await.unwrap();
    while let Some(took) = peers.join_next().await {
        let took = took.unwrap();
        assert!(took < rpc_core::tls::HANDSHAKE_TIMEOUT + Duration::from_secs(10), "{took:?}");
    }
    for mut stream in idle {
        let _ = timeout(SOON, stream.read(&mut [0; 64])).await.expect("the server hangs up in time");
    }
    echo(&client).await.unwrap();
    node.stop().await;
}
