//! What a caller and a handler see of a call.

use std::future::{Ready, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rpc_client::balance::{Pick, Policy, Random, View};
use rpc_client::{CallOptions, Client, ClientConfig, ConnectionState, Error, ErrorKind};
use rpc_core::protocol::{IN_FLIGHT_MAX, MESSAGE_BYTES_MAX, code};
use rpc_server::{Context, Method, RpcError, Server, ServerBuilder, ServerConfig};
use rpc_tests::cluster::{self, Node, SOON, connected, fresh_registry, nodes_are, until};
use rpc_tests::puppet::{Puppet, entry};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

#[derive(Debug, Deserialize, Serialize, PartialEq)]
struct Add {
    a: i64,
    b: i64,
}

async fn add(Add { a, b }: Add) -> Result<i64, RpcError> {
    Ok(a + b)
}

async fn echo(params: Value) -> Result<Value, RpcError> {
    Ok(params)
}

/// One server with `methods`, and a client that is connected to it.
async fn pair(methods: ServerBuilder) -> (Node, Client) {
    pair_with(methods, ClientConfig { call_timeout: SOON, ..ClientConfig::default() }).await
}

async fn pair_with(methods: ServerBuilder, config: ClientConfig) -> (Node, Client) {
    let node = Node::start(methods).await;
    let client = Client::builder().config(config).connect(&format!("static:{}", node.addr)).await.unwrap();
    connected(&client, 1).await;
    (node, client)
}

/// The error object that the server answered with.
fn remote(error: &Error) -> &RpcError {
    match error.kind() {
        ErrorKind::Remote { error, .. } => error,
        other => panic!("not an answer of the server: {other:?}"),
    }
}

/// Tells when a handler begins, and when its future is gone.
#[derive(Clone, Default)]
struct Gauge {
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    begun: Arc<AtomicUsize>,
}

struct Running(Gauge);

impl Gauge {
    fn enter(&self) -> Running {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.most.fetch_max(self.running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        Running(self.clone())
    }

    async fn runs(&self, count: usize) {
        until(&format!("{count} handlers running"), SOON, || self.running.load(Ordering::SeqCst) == count).await;
    }

    /// A method that never answers.
    fn hang(&self) -> Method {
        let gauge = self.clone();
        Method::new("hang", move |()| {
            let gauge = gauge.clone();
            async move {
                let _running = gauge.enter();
                pending::<Result<(), RpcError>>().await
            }
        })
    }

    /// A method that answers once the gate is open.
    fn gated(&self, open: &watch::Sender<bool>) -> Method {
        let (gauge, open) = (self.clone(), open.subscribe());
        Method::new("gated", move |(n,): (u64,)| {
            let (gauge, mut open) = (gauge.clone(), open.clone());
            async move {
                let _running = gauge.enter();
                open.wait_for(|open| *open).await.map_err(|_| RpcError::internal("the test is over"))?;
                Ok::<_, RpcError>(n)
            }
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn params_go_by_name_by_position_or_not_at_all() {
    let optional = |n: Option<Vec<u32>>| async move { Ok::<_, RpcError>(n.map(|n| n.len())) };
    let methods = Server::builder()
        .method("add", add)
        .method("nothing", |()| async { Ok::<_, RpcError>("done") })
        .method("optional", optional);
    let (_node, client) = pair(methods).await;
    assert_eq!(client.call::<_, i64>("add", &Add { a: 2, b: 3 }).await.unwrap(), 5);
    assert_eq!(client.call::<_, i64>("add", &(2, 3)).await.unwrap(), 5);
    assert_eq!(client.call::<_, i64>("add", &json!({"b": 1, "a": 1, "extra": true})).await.unwrap(), 2);
    for nothing in [json!(null), json!([]), json!({})] {
        assert_eq!(client.call::<_, String>("nothing", &nothing).await.unwrap(), "done", "{nothing}");
    }
    assert_eq!(client.call::<_, Option<usize>>("optional", &()).await.unwrap(), None);
    assert_eq!(client.call::<_, Option<usize>>("optional", &[1, 2]).await.unwrap(), Some(2));
}

#[tokio::test]
async fn params_that_do_not_fit_name_the_member() {
    #[derive(Deserialize)]
    struct Order {
        items: Vec<Add>,
    }
    let count = |order: Order| async move { Ok::<_, RpcError>(order.items.iter().map(|i| i.a + i.b).sum::<i64>()) };
    let (_node, client) = pair(Server::builder().method("add", add).method("count", count)).await;
    for (method, params, path, says) in [
        ("add", json!([1]), ".", "length 1"),
        ("add", json!({"a": 1}), ".", "missing field `b`"),
        ("add", json!(null), ".", "null"),
        ("add", json!({"a": 1, "b": "two"}), "b", "`b`"),
        ("count", json!({"items": [{"a": 1, "b": 1}, {"a": 1, "b": null}]}), "items[1].b", "`items[1].b`"),
    ] {
        let error = client.call::<_, i64>(method, &params).await.unwrap_err();
        let error = remote(&error);
        assert_eq!(error.code, code::INVALID_PARAMS, "{params}");
        assert!(error.message.contains(says), "{params}: {error}");
        let data: Value = serde_json::from_str(error.data.as_ref().unwrap().get()).unwrap();
        assert_eq!(data["path"], path, "{params}");
    }
}

#[tokio::test]
async fn an_error_of_the_application_arrives_whole() {
    let fail =
        |()| async { Err::<(), _>(RpcError::new(42, "out of stock").with_data(&json!({"left": 0, "items": ["tea"]}))) };
    let (node, client) = pair(Server::builder().method("fail", fail)).await;
    let error = client.call::<_, ()>("fail", &()).await.unwrap_err();
    assert_eq!(error.name(), "application");
    assert!(matches!(error.kind(), ErrorKind::Remote { node: by, .. } if *by == node.addr));
    let error = remote(&error);
    assert_eq!((error.code, error.message.as_str()), (42, "out of stock"));
    let data: Value = serde_json::from_str(error.data.as_ref().unwrap().get()).unwrap();
    assert_eq!(data, json!({"left": 0, "items": ["tea"]}));
}

#[tokio::test]
async fn an_unknown_method_names_the_near_one() {
    let (_node, client) = pair(Server::builder().method("orders.list", echo)).await;
    let error = client.call::<_, Value>("orders.lst", &()).await.unwrap_err();
    assert_eq!(remote(&error).code, code::METHOD_NOT_FOUND);
    assert!(error.to_string().contains("`orders.list`"), "{error}");
}

#[tokio::test]
async fn interleaved_answers_find_their_calls() {
    let seed = cluster::seed();
    let later = |(n, ms): (u64, u64)| async move {
        sleep(Duration::from_millis(ms)).await;
        Ok::<_, RpcError>(n)
    };
    let (_node, client) = pair(Server::builder().method("later", later)).await;
    let mut random = Random::new(seed);
    let calls: Vec<_> = (0..500u64)
        .map(|n| {
            let (client, ms) = (client.clone(), random.below(60) as u64);
            tokio::spawn(async move { (n, client.call::<_, u64>("later", &(n, ms)).await) })
        })
        .collect();
    for call in calls {
        let (n, answer) = call.await.unwrap();
        assert_eq!(answer.unwrap(), n, "seed {seed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_calls_from_64_tasks() {
    let (_node, client) = pair(Server::builder().method("add", add)).await;
    let tasks: Vec<_> = (0..64i64)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for n in 0..157 {
                    assert_eq!(client.call::<_, i64>("add", &(task, n)).await.unwrap(), task + n);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn dropping_a_call_drops_its_handler() {
    let gauge = Gauge::default();
    let (_node, client) = pair(Server::builder().with(gauge.hang()).method("echo", echo)).await;
    {
        let call = client.call::<_, ()>("hang", &());
        tokio::pin!(call);
        tokio::select! {
            _ = &mut call => panic!("it never answers"),
            () = gauge.runs(1) => {}
        }
    }
    gauge.runs(0).await;
    assert_eq!(client.call::<_, Value>("echo", &[1]).await.unwrap(), json!([1]));
}

#[tokio::test]
async fn a_call_that_hangs_ends_at_its_deadline_and_so_does_its_handler() {
    let gauge = Gauge::default();
    let (node, client) = pair(Server::builder().with(gauge.hang())).await;
    let limit = Duration::from_millis(150);
    let began = Instant::now();
    let error = client.call_with::<_, ()>("hang", &(), &CallOptions::new().timeout(limit)).await.unwrap_err();
    let took = began.elapsed();
    assert!(matches!(error.kind(), ErrorKind::DeadlineExceeded { timeout } if *timeout == limit), "{error}");
    assert!(took >= limit && took < limit + Duration::from_secs(2), "{took:?}");
    assert_eq!(error.attempts().len(), 1);
    assert_eq!(error.attempts()[0].node, node.addr);
    gauge.runs(0).await;
    assert_eq!(gauge.begun.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_handler_sees_who_asks_for_how_long_and_with_which_key() {
    let (seen, mut context) = watch::channel::<Option<Context>>(None);
    let look = Method::with_context("look", move |context: Context, ()| {
        seen.send_replace(Some(context));
        async { Ok::<_, RpcError>(()) }
    });
    let (_node, client) = pair(Server::builder().with(look)).await;
    let options = CallOptions::new().timeout(Duration::from_secs(9)).key("room \"7\" ü");
    let before = Instant::now();
    client.call_with::<_, ()>("look", &(), &options).await.unwrap();
    let context = context.borrow_and_update().clone().unwrap();
    assert_eq!(context.key.as_deref(), Some("room \"7\" ü"));
    assert_eq!(context.attempt, 0);
    let deadline = context.deadline.unwrap().instant();
    let expected = before + Duration::from_secs(9);
    assert!(deadline > expected - Duration::from_secs(1) && deadline < expected + Duration::from_secs(1));
}

#[tokio::test]
async fn a_notification_runs_its_handler() {
    let (told, mut heard) = watch::channel(0u32);
    let tell = move |(n,): (u32,)| {
        told.send_modify(|sum| *sum += n);
        async { Ok::<_, RpcError>(()) }
    };
    let (_node, client) = pair(Server::builder().method("tell", tell)).await;
    for n in 1..=10 {
        client.notify("tell", &(n,)).await.unwrap();
    }
    timeout(SOON, heard.wait_for(|sum| *sum == 55)).await.unwrap().unwrap();
    let error = client.notify("tell", &5).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::BadRequest(_)), "{error:?}");
}

#[tokio::test]
async fn a_detailed_call_tells_who_answered_and_what_it_took() {
    let nap = |()| async {
        sleep(Duration::from_millis(30)).await;
        Ok::<_, RpcError>(json!({"rested": true}))
    };
    let (node, client) = pair(Server::builder().method("nap", nap)).await;
    let reply = client.call_detailed("nap", &(), &CallOptions::new()).await.unwrap();
    assert_eq!(reply.result.get(), r#"{"rested":true}"#);
    assert_eq!(reply.node, node.addr);
    assert!(reply.elapsed >= Duration::from_millis(30) && reply.elapsed < SOON, "{:?}", reply.elapsed);
    let [attempt] = &reply.attempts[..] else { panic!("{:?}", reply.attempts) };
    assert_eq!((attempt.node, attempt.outcome.as_str()), (node.addr, "ok"));
    assert!(attempt.elapsed_us >= 30_000, "{attempt:?}");
}

#[tokio::test]
async fn a_result_of_another_type_names_the_member() {
    let (node, client) = pair(Server::builder().method("echo", echo)).await;
    let error = client.call::<_, Vec<Add>>("echo", &json!([{"a": 1, "b": 2}, {"a": 1, "b": "2"}])).await.unwrap_err();
    match error.kind() {
        ErrorKind::Decode { node: by, reason } => {
            assert_eq!(*by, node.addr);
            assert!(reason.contains("`[1].b`"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let detailed = client.call_with::<_, u64>("echo", &["tea"], &Default::default()).await.unwrap_err();
    for error in [error, detailed] {
        let [attempt] = error.attempts() else { panic!("{error:?}") };
        assert_eq!((attempt.node, attempt.outcome.as_str()), (node.addr, "ok"));
        assert_eq!(error.registry().map(|registry| (registry.listed, registry.usable)), Some((1, 1)), "{error:?}");
    }
    assert_eq!(client.call::<_, Vec<u8>>("echo", &[7]).await.unwrap(), [7]);
}

#[tokio::test]
async fn params_that_are_no_list_or_object_are_refused_before_sending() {
    let (_node, client) = pair(Server::builder().method("echo", echo)).await;
    for params in [json!(3), json!("text"), json!(true)] {
        let error = client.call::<_, Value>("echo", &params).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::BadRequest(_)), "{params}: {error:?}");
        assert!(error.is_unsent());
    }
    let keys_that_are_no_strings = std::collections::BTreeMap::from([(vec![1], 2)]);
    let error = client.call::<_, Value>("echo", &keys_that_are_no_strings).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::BadRequest(_)), "{error:?}");
    assert_eq!(client.call::<_, Value>("echo", &[1]).await.unwrap(), json!([1]), "the connection is in order");
}

#[tokio::test]
async fn a_call_before_the_first_list_waits_for_it() {
    let node = Node::start(Server::builder().method("add", add)).await;
    let registry = Puppet::new();
    let client = Client::builder().connect_to(registry.clone()).unwrap();
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.call::<_, i64>("add", &(1, 2)).await }
    });
    let limit = CallOptions::new().timeout(Duration::from_millis(100));
    let error = client.call_with::<_, i64>("add", &(1, 2), &limit).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::RegistryUnreachable { .. }), "{error:?}");
    assert_eq!(error.registry().unwrap().list_age_ms, None);
    assert!(!call.is_finished());
    registry.list([entry(&node)]);
    assert_eq!(call.await.unwrap().unwrap(), 3);
}

#[tokio::test]
async fn a_list_known_to_be_empty_fails_at_once_unless_told_to_wait() {
    let url = fresh_registry();
    let client = Client::connect(&url).await.unwrap();
    assert!(client.ready(SOON).await);
    let began = Instant::now();
    let error = client.call::<_, i64>("add", &(1, 2)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoNode), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    let registry = error.registry().unwrap();
    assert_eq!((registry.url.as_str(), registry.listed, registry.usable), (url.as_str(), 0, 0));
    assert!(registry.list_age_ms.is_some());

    let patient = Client::builder().wait_for_node().connect(&url).await.unwrap();
    let limit = CallOptions::new().timeout(Duration::from_millis(100));
    let error = patient.call_with::<_, i64>("add", &(1, 2), &limit).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoNode), "{error:?}");
    let call = tokio::spawn(async move { patient.call::<_, i64>("add", &(1, 2)).await });
    let _node = Node::start(Server::builder().method("add", add).registry(&url).unwrap()).await;
    assert_eq!(call.await.unwrap().unwrap(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_beyond_the_slots_of_a_connection_wait_for_one() {
    let (gauge, open) = (Gauge::default(), watch::Sender::new(false));
    let (_node, client) = pair(Server::builder().with(gauge.gated(&open))).await;
    let count = 3 * IN_FLIGHT_MAX as u64 + 1;
    let calls: Vec<_> = (0..count)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<_, u64>("gated", &(n,)).await })
        })
        .collect();
    gauge.runs(IN_FLIGHT_MAX).await;
    open.send_replace(true);
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), n as u64);
    }
    assert_eq!(gauge.most.load(Ordering::SeqCst), IN_FLIGHT_MAX);
    assert_eq!(gauge.begun.load(Ordering::SeqCst) as u64, count);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_connection_still_answers_pings_and_obeys_cancellations() {
    let (gauge, open) = (Gauge::default(), watch::Sender::new(false));
    let (_node, client) = pair(Server::builder().with(gauge.gated(&open))).await;
    let mut calls: Vec<_> = (0..IN_FLIGHT_MAX as u64)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<_, u64>("gated", &(n,)).await })
        })
        .collect();
    gauge.runs(IN_FLIGHT_MAX).await;
    // Twice as long as a silent node takes to become suspect.
    let end = Instant::now() + Duration::from_millis(1100);
    while Instant::now() < end {
        assert_eq!(client.nodes()[0].connection, ConnectionState::Connected, "the server answers pings");
        sleep(Duration::from_millis(5)).await;
    }
    calls.drain(..100).for_each(|call| call.abort());
    gauge.runs(IN_FLIGHT_MAX - 100).await;
    open.send_replace(true);
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_gets_no_slot_in_time_has_exceeded_its_deadline() {
    let (gauge, open) = (Gauge::default(), watch::Sender::new(false));
    let (_node, client) = pair(Server::builder().with(gauge.gated(&open))).await;
    for n in 0..IN_FLIGHT_MAX as u64 {
        let client = client.clone();
        tokio::spawn(async move { client.call::<_, u64>("gated", &(n,)).await });
    }
    gauge.runs(IN_FLIGHT_MAX).await;
    let limit = Duration::from_millis(100);
    let began = Instant::now();
    let error = client.call_with::<_, u64>("gated", &(0,), &CallOptions::new().timeout(limit)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DeadlineExceeded { .. }), "{error:?}");
    assert!(began.elapsed() >= limit && began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(gauge.begun.load(Ordering::SeqCst), IN_FLIGHT_MAX);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_up_to_the_limit_pass_beside_small_ones() {
    let (_node, client) = pair(Server::builder().method("echo", echo).method("add", add)).await;
    // The envelope of the request takes less than 200 bytes.
    let big = "x".repeat(MESSAGE_BYTES_MAX - 200);
    let calls: Vec<_> = (0..6)
        .map(|_| {
            let (client, big) = (client.clone(), big.clone());
            tokio::spawn(async move {
                let (same,): (String,) = client.call("echo", &(&big,)).await.unwrap();
                assert!(same == big);
            })
        })
        .collect();
    for n in 0..200 {
        assert_eq!(client.call::<_, i64>("add", &(n, n)).await.unwrap(), 2 * n);
    }
    for call in calls {
        call.await.unwrap();
    }
}

#[tokio::test]
async fn what_is_over_the_limit_fails_alone() {
    let grow = |(n,): (usize,)| async move { Ok::<_, RpcError>("x".repeat(n)) };
    let (_node, client) = pair(Server::builder().method("echo", echo).method("grow", grow)).await;
    let error = client.call::<_, Value>("echo", &("x".repeat(MESSAGE_BYTES_MAX),)).await.unwrap_err();
    match error.kind() {
        ErrorKind::TooLarge { size, limit } => assert!(*size > *limit && *limit == MESSAGE_BYTES_MAX),
        other => panic!("{other:?}"),
    }
    let error = client.call::<_, String>("grow", &(MESSAGE_BYTES_MAX,)).await.unwrap_err();
    assert_eq!(remote(&error).code, code::TOO_LARGE, "{error}");
    assert!(error.to_string().contains(&MESSAGE_BYTES_MAX.to_string()), "{error}");
    assert_eq!(client.call::<_, String>("grow", &(3,)).await.unwrap(), "xxx");
}

#[tokio::test]
async fn each_side_has_its_own_limit() {
    let grow = |(n, _filling): (usize, String)| async move { Ok::<_, RpcError>("x".repeat(n)) };
    let config = ServerConfig { message_bytes_max: 2000, ..ServerConfig::default() };
    let server = Server::builder().method("grow", grow).config(config);
    let config = ClientConfig { message_bytes_max: 1000, ..ClientConfig::default() };
    let (node, small) = pair_with(server, config).await;
    let error = small.call::<_, String>("grow", &(1500, "")).await.unwrap_err();
    assert_eq!(remote(&error).code, code::TOO_LARGE, "{error}");
    assert_eq!(small.call::<_, String>("grow", &(2, "")).await.unwrap(), "xx");
    let large = Client::connect(&format!("static:{}", node.addr)).await.unwrap();
    let error = large.call::<_, String>("grow", &(1, "x".repeat(3000))).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooLarge { limit: 2000, .. }), "{error:?}");
    assert_eq!(large.call::<_, String>("grow", &(1500, "")).await.unwrap().len(), 1500);
}

/// Panics when it is written, after a part of it was.
struct Unwritable;

impl Serialize for Unwritable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        serde::ser::SerializeSeq::serialize_element(&mut list, &1)?;
        panic!("writing it panics")
    }
}

/// Panics when it is read.
struct Unreadable;

impl<'de> Deserialize<'de> for Unreadable {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("reading it panics")
    }
}

#[tokio::test]
async fn a_handler_that_panics_fails_its_own_call_only() {
    let at_once = |_: ()| -> Ready<Result<(), RpcError>> { panic!("before there is a future") };
    let polled = |_: ()| async { if true { panic!("at the first poll") } else { Ok::<_, RpcError>(()) } };
    let later = |_: ()| async {
        sleep(Duration::from_millis(5)).await;
        if true { panic!("after an await") } else { Ok::<_, RpcError>(()) }
    };
    let unwritable = |_: ()| async { Ok::<_, RpcError>(Unwritable) };
    let unwritable_later = |_: ()| async {
        sleep(Duration::from_millis(5)).await;
        Ok::<_, RpcError>(Unwritable)
    };
    let unreadable = |_: Unreadable| async { Ok::<_, RpcError>(()) };
    let computing = |_: ()| async { if true { panic!("on another thread") } else { Ok::<_, RpcError>(()) } };
    let (gauge, open) = (Gauge::default(), watch::Sender::new(false));
    let methods = Server::builder()
        .method("at_once", at_once)
        .method("polled", polled)
        .method("later", later)
        .method("unwritable", unwritable)
        .method("unwritable_later", unwritable_later)
        .method("unreadable", unreadable)
        .with(Method::new("computing", computing).computes())
        .with(gauge.gated(&open))
        .method("add", add);
    let (_node, client) = pair(methods).await;
    let neighbour = tokio::spawn({
        let client = client.clone();
        async move { client.call::<_, u64>("gated", &(5,)).await }
    });
    gauge.runs(1).await;
    for method in ["at_once", "polled", "later", "unwritable", "unwritable_later", "unreadable", "computing"] {
        let error = client.call::<_, Value>(method, &()).await.unwrap_err();
        assert_eq!(remote(&error).code, code::INTERNAL_ERROR, "{method}: {error}");
        assert_eq!(client.call::<_, i64>("add", &(1, 1)).await.unwrap(), 2, "after {method}");
    }
    assert_eq!(gauge.running.load(Ordering::SeqCst), 1, "the neighbour's connection lives");
    open.send_replace(true);
    assert_eq!(neighbour.await.unwrap().unwrap(), 5);
}

#[tokio::test]
async fn params_whose_writing_panics_leave_the_connection_in_order() {
    let (_node, client) = pair(Server::builder().method("add", add)).await;
    let panicking = tokio::spawn({
        let client = client.clone();
        async move { client.call::<_, Value>("add", &Unwritable).await }
    });
    assert!(panicking.await.unwrap_err().is_panic());
    for n in 0..10 {
        assert_eq!(client.call::<_, i64>("add", &(n, 1)).await.unwrap(), n + 1);
    }
    assert_eq!(client.nodes()[0].in_flight, 0);
}

#[tokio::test]
async fn a_computing_method_does_not_hold_up_its_neighbours() {
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let wait = parking_lot::Mutex::new(wait);
    let entered = Arc::new(Notify::new());
    let compute = Method::new("compute", {
        let (wait, entered) = (Arc::new(wait), entered.clone());
        move |()| {
            let (wait, entered) = (wait.clone(), entered.clone());
            async move {
                entered.notify_one();
                // Blocks the thread, as a computation would.
                wait.lock().recv_timeout(SOON).map_err(|e| RpcError::internal(e.to_string()))
            }
        }
    });
    let (_node, client) = pair(Server::builder().with(compute.computes()).method("add", add)).await;
    let computing = tokio::spawn({
        let client = client.clone();
        async move { client.call::<_, ()>("compute", &()).await }
    });
    entered.notified().await;
    for n in 0..100 {
        assert_eq!(client.call::<_, i64>("add", &(n, n)).await.unwrap(), 2 * n);
    }
    assert!(!computing.is_finished());
    go_on.send(()).unwrap();
    computing.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_finds_no_node_ends_the_call_in_time() {
    struct Undecided;
    impl Policy for Undecided {
        fn pick(&mut self, _: &dyn View, _: &Pick<'_>) -> Option<usize> {
            None
        }
    }
    let node = Node::start(Server::builder().method("add", add)).await;
    let other = Node::start(Server::builder().method("add", add)).await;
    let url = format!("static:{},{}", node.addr, other.addr);
    let client = Client::builder().policy(Box::new(Undecided)).connect(&url).await.unwrap();
    connected(&client, 2).await;
    let options = CallOptions::new().timeout(Duration::from_millis(100));
    let call = tokio::spawn(async move { client.call_with::<_, i64>("add", &(1, 2), &options).await });
    let error = timeout(Duration::from_secs(5), call).await.expect("the call ends").unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoNode | ErrorKind::DeadlineExceeded { .. }), "{error:?}");
}

#[tokio::test]
async fn calls_after_close_fail() {
    let (_node, client) = pair(Server::builder().method("add", add)).await;
    let clone = client.clone();
    client.close(SOON).await;
    let error = clone.call::<_, i64>("add", &(1, 2)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Closed), "{error:?}");
    let error = clone.notify("add", &(1, 2)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Closed), "{error:?}");
}

#[tokio::test]
async fn dropping_the_last_client_closes_its_connections() {
    let gauge = Gauge::default();
    let (_node, client) = pair(Server::builder().with(gauge.hang())).await;
    client.notify("hang", &()).await.unwrap();
    gauge.runs(1).await;
    drop(client);
    // The handler of a notification goes with its connection.
    gauge.runs(0).await;
}

#[tokio::test]
async fn a_node_that_refuses_connections_says_so() {
    let (addr, _held) = cluster::dead_address();
    let client = Client::connect(&format!("static:{addr}")).await.unwrap();
    nodes_are(&client, "refused", |nodes| nodes.first().is_some_and(|n| n.trouble.is_some())).await;
    let began = Instant::now();
    let error = client.call::<_, i64>("add", &(1, 2)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoNode), "{error:?}");
    assert_eq!(error.attempts()[0].node, addr);
    assert!(error.attempts()[0].outcome.contains("refused"), "{:?}", error.attempts());
    assert!(began.elapsed() < Duration::from_secs(4), "before the deadline: {:?}", began.elapsed());
}

#[tokio::test]
async fn two_connections_to_a_node_share_the_calls() {
    let peers = Arc::new(parking_lot::Mutex::new(std::collections::BTreeSet::new()));
    let who = Method::with_context("who", {
        let peers = peers.clone();
        move |context: Context, ()| {
            peers.lock().insert(context.peer);
            async { Ok::<_, RpcError>(()) }
        }
    });
    let config = ClientConfig { connections_per_node: 2, ..ClientConfig::default() };
    let (_node, client) = pair_with(Server::builder().with(who), config).await;
    let end = Instant::now() + SOON;
    while peers.lock().len() < 2 {
        assert!(Instant::now() < end, "only one connection is used");
        client.call::<_, ()>("who", &()).await.unwrap();
    }
}

#[tokio::test]
async fn a_flag_shared_by_handlers_is_not_needed_to_tell_concurrent_calls_apart() {
    // Two calls on one connection whose handlers overlap in time: each answers its own.
    let first_entered = Arc::new(Notify::new());
    let second_done = Arc::new(AtomicBool::new(false));
    let method = {
        let (entered, done) = (first_entered.clone(), second_done.clone());
        move |(n,): (u32,)| {
            let (entered, done) = (entered.clone(), done.clone());
            async move {
                if n == 1 {
                    entered.notify_one();
                    until("second call", SOON, || done.load(Ordering::SeqCst)).await;
                }
                Ok::<_, RpcError>(n * 10)
            }
        }
    };
    let (_node, client) = pair(Server::builder().method("tens", method)).await;
    let first = tokio::spawn({
        let client = client.clone();
        async move { client.call::<_, u32>("tens", &(1,)).await }
    });
    first_entered.notified().await;
    assert_eq!(client.call::<_, u32>("tens", &(2,)).await.unwrap(), 20);
    second_done.store(true, Ordering::SeqCst);
    assert_eq!(first.await.unwrap().unwrap(), 10);
}
