//! Servers with more work than they take, and peers that keep what they take up.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use rpc_client::{CallOptions, Client};
use rpc_core::protocol::code;
use rpc_server::{ConcurrencyLimit, Method, RpcError, Server, ServerBuilder, ServerConfig};
use rpc_tests::cluster::{Node, SOON, connected, fresh_registry, until};
use rpc_tests::raw::RawPeer;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// Handlers that run until the test lets them end.
#[derive(Clone)]
struct Work {
    running: Arc<AtomicUsize>,
    /// The most that ran at once.
    most: Arc<AtomicUsize>,
    started: Arc<AtomicUsize>,
    ends: Arc<Semaphore>,
}

/// Counts a running handler, however it ends.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Work {
    fn new() -> Self {
        let count = Arc::<AtomicUsize>::default;
        Self { running: count(), most: count(), started: count(), ends: Arc::new(Semaphore::new(0)) }
    }

    fn started(&self) -> usize {
        self.started.load(Ordering::SeqCst)
    }

    fn method(&self) -> Method {
        let work = self.clone();
        Method::new("work", move |(): ()| {
            work.started.fetch_add(1, Ordering::SeqCst);
            let running = work.running.fetch_add(1, Ordering::SeqCst) + 1;
            work.most.fetch_max(running, Ordering::SeqCst);
            let (running, ends) = (Running(work.running.clone()), work.ends.clone());
            async move {
                let _running = running;
                ends.acquire().await.map_err(|e| RpcError::internal(e.to_string()))?.forget();
                Ok::<_, RpcError>("done")
            }
        })
    }

    fn server(&self, limit: usize, queue_max: Option<usize>) -> ServerBuilder {
        let concurrency = ConcurrencyLimit::Fixed(NonZeroUsize::new(limit).unwrap());
        let config = ServerConfig { concurrency, queue_max, ..ServerConfig::default() };
        Server::builder()
            .config(config)
            .with(self.method())
            .method("fails", |(): ()| async { Err::<(), _>(RpcError::new(1, "no")) })
            .method("panics", |(): ()| async { if true { panic!("as asked") } else { Ok::<_, RpcError>(()) } })
            .method("takes", |(text,): (String,)| async { Ok::<_, RpcError>(text) })
    }
}

fn call(id: usize, method: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method}).to_string()
}

fn codes(answers: &[Value]) -> Vec<Option<i64>> {
    answers.iter().map(|answer| answer["error"]["code"].as_i64()).collect()
}

#[tokio::test]
async fn calls_beyond_the_limit_wait_and_further_ones_are_told_when_to_come_back() {
    let work = Work::new();
    let node = Node::start(work.server(1, Some(1))).await;
    let mut peer = RawPeer::connect(node.addr).await;
    for id in [1, 2] {
        peer.send(&call(id, "work")).await;
    }
    let refused = peer.ask_json(&call(3, "work")).await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(3), &json!(code::OVERLOADED)), "{refused}");
    let after = refused["error"]["data"]["retry_after_ms"].as_u64().unwrap();
    assert!((1..=1000).contains(&after), "{refused}");
    assert_eq!(work.started(), 1, "the second waits, not started");
    work.ends.add_permits(2);
    assert_eq!(peer.receive_json().await["id"], 1);
    assert_eq!(peer.receive_json().await["id"], 2);
    assert_eq!((work.started(), work.most.load(Ordering::SeqCst)), (2, 1));
}

#[tokio::test]
async fn a_call_whose_time_ends_in_the_queue_is_never_run() {
    let work = Work::new();
    let node = Node::start(work.server(1, None)).await;
    let mut peer = RawPeer::connect(node.addr).await;
    peer.send(&call(1, "work")).await;
    let brief = json!({"jsonrpc": "2.0", "id": 2, "method": "work", "meta": {"timeout_ms": 30}});
    let answer = peer.ask_json(&brief.to_string()).await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(2), &json!(code::DEADLINE_EXCEEDED)));
    work.ends.add_permits(10);
    assert_eq!(peer.receive_json().await["id"], 1);
    assert_eq!(peer.ask_json(&call(3, "work")).await["result"], "done");
    assert_eq!(work.started(), 2);
}

#[tokio::test]
async fn many_connections_together_never_exceed_the_limit_and_every_call_is_answered_once() {
    const CALLERS: usize = 40;
    const EACH: usize = 20;
    let work = Work::new();
    let node = Node::start(work.server(8, None)).await;
    let mut peers = join_all((0..CALLERS).map(|_| RawPeer::connect(node.addr))).await;
    for peer in &mut peers {
        for id in 0..EACH {
            peer.send(&call(id, "work")).await;
        }
    }
    // 8 run and 8 wait; all others are refused while none ends.
    let refusals = Arc::new(AtomicUsize::new(0));
    let reading = peers.into_iter().map(|mut peer| {
        let refusals = refusals.clone();
        tokio::spawn(async move {
            let (mut ids, mut done) = (Vec::new(), 0);
            for _ in 0..EACH {
                let answer = peer.receive_json().await;
                ids.push(answer["id"].as_u64().unwrap());
                match answer["error"]["code"].as_i64() {
                    Some(code) => {
                        assert_eq!(code, code::OVERLOADED, "{answer}");
                        refusals.fetch_add(1, Ordering::SeqCst);
                    }
                    None => done += 1,
                }
            }
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), EACH, "each call is answered once");
            done
        })
    });
    let reading: Vec<_> = reading.collect();
    until("refusals", SOON, || refusals.load(Ordering::SeqCst) == CALLERS * EACH - 16).await;
    assert_eq!(work.started(), 8);
    work.ends.add_permits(16);
    let done: usize = join_all(reading).await.into_iter().map(Result::unwrap).sum();
    assert_eq!((done, work.started(), work.most.load(Ordering::SeqCst)), (16, 16, 8));
}

#[tokio::test]
async fn a_place_is_given_back_however_its_call_ends() {
    let work = Work::new();
    let node = Node::start(work.server(1, Some(1))).await;
    let mut peer = RawPeer::connect(node.addr).await;
    let mut id = 0;
    let mut next = || {
        id += 1;
        id
    };
    for _ in 0..3 {
        assert_eq!(codes(&[peer.ask_json(&call(next(), "fails")).await]), [Some(1)]);
        assert_eq!(codes(&[peer.ask_json(&call(next(), "panics")).await]), [Some(code::INTERNAL_ERROR)]);
        assert_eq!(codes(&[peer.ask_json(&call(next(), "takes")).await]), [Some(code::INVALID_PARAMS)]);
        // One runs and one waits; the first is taken back, then the other.
        let (running, waiting) = (next(), next());
        peer.send(&call(running, "work")).await;
        peer.send(&call(waiting, "work")).await;
        let cancel = |id: usize| json!({"jsonrpc": "2.0", "method": "rpc.cancel", "params": {"id": id}}).to_string();
        for id in [running, waiting] {
            let answer = peer.ask_json(&cancel(id)).await;
            assert_eq!(
                (&answer["id"], codes(std::slice::from_ref(&answer))),
                (&json!(id), vec![Some(code::CANCELLED)])
            );
        }
        // Both are lost with their connection.
        let mut other = RawPeer::connect(node.addr).await;
        other.ask(r#"{"jsonrpc":"2.0","id":0,"method":"rpc.hello","params":{"version":1}}"#).await;
        let before = work.started();
        other.send(&call(1, "work")).await;
        other.send(&call(2, "work")).await;
        until("start", SOON, || work.started() == before + 1).await;
        drop(other);
        until("end", SOON, || work.running.load(Ordering::SeqCst) == 0).await;
    }
    work.ends.add_permits(1);
    let last = next();
    assert_eq!(peer.ask_json(&call(last, "work")).await["result"], "done");
}

/// Params with members after them are told only by reading the message as a whole.
#[tokio::test]
async fn a_call_that_waited_is_read_as_any_other() {
    let work = Work::new();
    let node = Node::start(work.server(1, Some(4))).await;
    let mut peer = RawPeer::connect(node.addr).await;
    peer.send(&call(1, "work")).await;
    peer.send(r#"{"jsonrpc":"2.0","id":2,"method":"takes","params":["hi"],"more":[]}"#).await;
    peer.send(r#"{"jsonrpc":"2.0","id":3,"method":"takes","params":[4]}"#).await;
    let answer = peer.ask_json(r#"{"jsonrpc":"2.0","id":4,"method":"takes","params":["hi"}"#).await;
    assert_eq!(codes(&[answer]), [Some(code::PARSE_ERROR)]);
    work.ends.add_permits(1);
    assert_eq!(peer.receive_json().await["id"], 1);
    assert_eq!(peer.receive_json().await["result"], "hi");
    assert_eq!(codes(&[peer.receive_json().await]), [Some(code::INVALID_PARAMS)]);
}

#[tokio::test]
async fn the_elements_of_a_batch_are_calls_like_others() {
    let work = Work::new();
    work.ends.add_permits(1000);
    let batch = |count: usize| format!("[{}]", (0..count).map(|id| call(id, "work")).collect::<Vec<_>>().join(","));
    let patient = Node::start(work.server(1, Some(99))).await;
    let answers = RawPeer::connect(patient.addr).await.ask_json(&batch(100)).await;
    assert!(answers.as_array().unwrap().iter().all(|answer| answer["result"] == "done"), "{answers}");
    assert_eq!(work.most.load(Ordering::SeqCst), 1);
    let hasty = Node::start(work.server(1, Some(0))).await;
    let answers = RawPeer::connect(hasty.addr).await.ask_json(&batch(3)).await;
    assert_eq!(codes(answers.as_array().unwrap()), [None, Some(code::OVERLOADED), Some(code::OVERLOADED)]);
}

#[tokio::test]
async fn the_elements_of_a_batch_are_taken_back_and_expire_by_themselves() {
    let work = Work::new();
    let node = Node::start(Server::builder().with(work.method())).await;
    let mut peer = RawPeer::connect(node.addr).await;
    let brief = json!({"jsonrpc": "2.0", "id": "brief", "method": "work", "meta": {"timeout_ms": 20}});
    peer.send(&format!("[{},{},{brief}]", call(1, "work"), call(2, "work"))).await;
    until("start", SOON, || work.started() == 3).await;
    peer.send(r#"{"jsonrpc":"2.0","method":"rpc.cancel","params":{"id":2}}"#).await;
    until("end of the two", SOON, || work.running.load(Ordering::SeqCst) == 1).await;
    work.ends.add_permits(1);
    let answers = peer.receive_json().await;
    let expected = [None, Some(code::CANCELLED), Some(code::DEADLINE_EXCEEDED)];
    assert_eq!(codes(answers.as_array().unwrap()), expected, "{answers}");
}

#[tokio::test]
async fn a_client_comes_back_to_the_only_node_when_it_was_told() {
    let work = Work::new();
    let url = fresh_registry();
    let _node = Node::start(work.server(1, Some(0)).registry(&url).unwrap()).await;
    let client = Client::connect(&url).await.unwrap();
    let start = || {
        let (client, options) = (client.clone(), CallOptions::new().timeout(SOON));
        tokio::spawn(async move { client.call_detailed("work", &(), &options).await })
    };
    let first = start();
    until("start", SOON, || work.started() == 1).await;
    let second = start();
    let brief = CallOptions::new().timeout(Duration::from_millis(100));
    let error = client.call_with::<_, String>("work", &(), &brief).await.unwrap_err();
    assert!(error.attempts()[0].outcome.contains("come back in"), "{error:?}");
    work.ends.add_permits(2);
    assert_eq!(first.await.unwrap().unwrap().attempts.len(), 1);
    let attempts = second.await.unwrap().unwrap().attempts;
    assert!(attempts.len() > 1 && attempts[0].outcome.contains("come back in"), "{attempts:?}");
    assert_eq!(work.started(), 2);
}

#[tokio::test]
async fn what_one_node_refuses_another_takes() {
    let url = fresh_registry();
    let (full, free) = (Work::new(), Work::new());
    free.ends.add_permits(1000);
    let _full = Node::start(full.server(1, Some(0)).registry(&url).unwrap()).await;
    let _free = Node::start(free.server(8, None).registry(&url).unwrap()).await;
    let policy = rpc_client::balance::policy("round_robin").unwrap();
    let client = Client::builder().policy(policy).connect(&url).await.unwrap();
    connected(&client, 2).await;
    let held = {
        let client = client.clone();
        tokio::spawn(async move { client.call_with::<_, String>("work", &(), &CallOptions::new().timeout(SOON)).await })
    };
    // It is the first of its node or the other one's; one more makes it sure.
    while full.started() == 0 {
        let client = client.clone();
        tokio::spawn(async move { client.call::<_, String>("work", &()).await });
        tokio::task::yield_now().await;
    }
    for _ in 0..50 {
        assert_eq!(client.call::<_, String>("work", &()).await.unwrap(), "done");
    }
    assert_eq!(full.started(), 1);
    full.ends.add_permits(1);
    assert_eq!(held.await.unwrap().unwrap(), "done");
}
