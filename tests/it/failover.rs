//! Nodes that die, hang, drain and come back, while calls go on.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rpc_client::balance::{Pick, Policy, View, policy};
use rpc_client::{CallOptions, Client, ClientConfig, ConnectionState, Error, ErrorKind};
use rpc_core::registry::Health;
use rpc_server::{Method, RpcError, Server, ServerBuilder};
use rpc_tests::cluster::{self, Node, SOON, connected, fresh_registry, nodes_are, until};
use rpc_tests::link::Link;
use rpc_tests::load::{Load, failures};
use rpc_tests::puppet::{Puppet, draining, entry, entry_of};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep, timeout};

/// How often each numbered call was begun, anywhere.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<BTreeMap<u64, Vec<&'static str>>>>);

impl Ledger {
    fn begin(&self, call: u64, node: &'static str) {
        self.0.lock().entry(call).or_default().push(node);
    }

    fn of(&self, call: u64) -> Vec<&'static str> {
        self.0.lock().get(&call).cloned().unwrap_or_default()
    }
}

/// A server called `name`: `work` and `safe` take a call's number and milliseconds, note the call
/// in the ledger and return the name; `safe` may be repeated.
fn worker(name: &'static str, ledger: &Ledger) -> ServerBuilder {
    let work = |method: &str| {
        let ledger = ledger.clone();
        Method::new(method, move |(call, ms): (u64, u64)| {
            ledger.begin(call, name);
            async move {
                sleep(Duration::from_millis(ms)).await;
                Ok::<_, RpcError>(name.to_owned())
            }
        })
    };
    Server::builder().with(work("work")).with(work("safe").idempotent())
}

/// A worker behind a link, to be listed by hand.
async fn linked(name: &'static str, ledger: &Ledger) -> (Node, Link) {
    let link = Link::open().await;
    let node = Node::start(worker(name, ledger).advertise(link.addr)).await;
    link.lead_to(node.bound);
    (node, link)
}

/// Always the node at this address while it can be chosen, else the first other.
pub(crate) struct Prefer(pub(crate) SocketAddr);

impl Policy for Prefer {
    fn pick(&mut self, view: &dyn View, pick: &Pick<'_>) -> Option<usize> {
        let free = |i: &usize| !pick.is_excluded(view.node(*i).id);
        let preferred = (0..view.len()).filter(free).find(|i| view.node(*i).addr == self.0);
        preferred.or_else(|| (0..view.len()).find(free))
    }
}

/// A client of a hand-made list that prefers `first`.
async fn client_of(registry: &Arc<Puppet>, first: SocketAddr, count: usize) -> Client {
    let config = ClientConfig { call_timeout: SOON, ..ClientConfig::default() };
    let client = Client::builder().config(config).policy(Box::new(Prefer(first))).connect_to(registry.clone()).unwrap();
    connected(&client, count).await;
    client
}

/// A node behind a link, another one without, and a client that prefers the first.
async fn linked_and_other(ledger: &Ledger) -> (Node, Link, Node, Client) {
    let (a, link) = linked("a", ledger).await;
    let b = Node::start(worker("b", ledger)).await;
    let registry = Puppet::new();
    registry.list([entry(&a), entry(&b)]);
    let client = client_of(&registry, a.addr, 2).await;
    (a, link, b, client)
}

fn start_call(client: &Client, method: &'static str, call: u64, ms: u64) -> JoinHandle<Result<String, Error>> {
    let client = client.clone();
    tokio::spawn(async move { client.call(method, &(call, ms)).await })
}

/// Calls of `method` that go on until told to stop.
fn load(client: &Client, method: &'static str, tasks: u64, ms: u64) -> Load<String> {
    let client = client.clone();
    Load::start(tasks, move |call| {
        let client = client.clone();
        async move { client.call(method, &(call, ms)).await }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn no_idempotent_call_fails_when_a_server_is_killed_under_load() {
    let (ledger, url) = (Ledger::default(), fresh_registry());
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(Node::start(worker(name, &ledger).registry(&url).unwrap()).await);
    }
    let client = Client::connect(&url).await.unwrap();
    connected(&client, 3).await;
    let load = load(&client, "safe", 50, 5);
    load.more(300).await;
    nodes.pop().unwrap().kill().await;
    load.more(300).await;
    nodes.pop().unwrap().kill().await;
    load.more(300).await;
    let outcomes = load.stop().await;
    assert!(failures(&outcomes).is_empty(), "{:?}", failures(&outcomes));
    nodes_are(&client, "down to one", |nodes| nodes.len() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_calls_fail_only_where_they_may_have_run() {
    let (ledger, url) = (Ledger::default(), fresh_registry());
    let a = Node::start(worker("a", &ledger).registry(&url).unwrap()).await;
    let _b = Node::start(worker("b", &ledger).registry(&url).unwrap()).await;
    let client = Client::connect(&url).await.unwrap();
    connected(&client, 2).await;
    let load = load(&client, "work", 40, 10);
    load.more(300).await;
    let addr = a.addr;
    a.kill().await;
    load.more(300).await;
    let outcomes = load.stop().await;
    let failed = failures(&outcomes);
    assert!(failed.len() <= 40, "at most those in flight: {failed:?}");
    for (call, error) in failed {
        assert!(matches!(error.kind(), ErrorKind::Transport { node, sent: true, .. } if *node == addr), "{error:?}");
        // Refusals do not count: they started nothing.
        let lost = error.attempts().iter().filter(|a| !a.outcome.contains("-32004")).count();
        assert_eq!(lost, 1, "{error:?}");
        assert!(ledger.of(call).len() <= 1);
    }
    for (call, name) in outcomes.iter().filter_map(|(call, o)| Some((*call, o.as_ref().ok()?))) {
        assert_eq!(ledger.of(call), [name.as_str()], "it ran once, where the answer came from");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_had_not_left_goes_elsewhere_even_if_it_must_not_run_twice() {
    let ledger = Ledger::default();
    let (a, link, b, client) = linked_and_other(&ledger).await;
    link.stall();
    // More than the kernel takes for both sockets, and less than the client lets wait.
    let calls: Vec<_> = (0..9u64)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move {
                let params = json!([n, 0, "x".repeat(2_000_000)]);
                client.call_detailed("work", &params, &CallOptions::new()).await
            })
        })
        .collect();
    until("calls waiting", SOON, || client.nodes().iter().any(|n| n.node == a.addr && n.in_flight >= 4)).await;
    link.cut();
    let mut moved = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(reply) => moved += usize::from(reply.node == b.addr && reply.attempts.len() == 2),
            Err(error) if error.name() == "invalid_params" => moved += usize::from(error.attempts().len() == 2),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Transport { sent: true, .. }), "{error:?}");
            }
        }
    }
    assert!(moved > 0, "some had not left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_restarts_on_its_port_is_a_new_node() {
    let (ledger, url) = (Ledger::default(), fresh_registry());
    let first = Node::start(worker("first", &ledger).registry(&url).unwrap()).await;
    let client = Client::builder().wait_for_node().connect(&url).await.unwrap();
    connected(&client, 1).await;
    let (addr, old) = (first.addr, first.incarnation.clone());
    assert_eq!(client.nodes()[0].id, old);
    assert_eq!(client.call::<_, String>("work", &(0, 0)).await.unwrap(), "first");
    first.kill().await;
    let second = Node::start_at(addr, worker("second", &ledger).registry(&url).unwrap()).await;
    assert_eq!(client.call::<_, String>("safe", &(1, 0)).await.unwrap(), "second");
    assert_eq!(client.nodes()[0].id, second.incarnation);
    // In good order as well.
    second.stop().await;
    let third = Node::start_at(addr, worker("third", &ledger).registry(&url).unwrap()).await;
    assert_eq!(client.call::<_, String>("safe", &(2, 0)).await.unwrap(), "third");
    assert_eq!(client.nodes()[0].id, third.incarnation);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_address_is_found_again_after_a_restart() {
    let ledger = Ledger::default();
    let node = Node::start(worker("first", &ledger)).await;
    let addr = node.addr;
    let client = Client::builder().wait_for_node().connect(&format!("static:{addr}")).await.unwrap();
    connected(&client, 1).await;
    node.kill().await;
    nodes_are(&client, "lost", |n| n[0].connection != ConnectionState::Connected).await;
    let node = Node::start_at(addr, worker("second", &ledger)).await;
    assert_eq!(client.call::<_, String>("work", &(1, 0)).await.unwrap(), "second");
    node.stop().await;
    let _node = Node::start_at(addr, worker("third", &ledger)).await;
    assert_eq!(client.call::<_, String>("work", &(2, 0)).await.unwrap(), "third");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_listed_incarnation_is_called_while_the_list_is_up_to_date() {
    let ledger = Ledger::default();
    let node = Node::start(worker("a", &ledger)).await;
    let registry = Puppet::new();
    registry.list([entry_of(node.addr, "an earlier one")]);
    let client = Client::builder().connect_to(registry.clone()).unwrap();
    nodes_are(&client, "refused", |n| {
        n.first().and_then(|n| n.trouble.as_deref()).is_some_and(|t| t.contains("another instance"))
    })
    .await;
    let limit = CallOptions::new().timeout(Duration::from_millis(300));
    let error = client.call_with::<_, String>("work", &(1, 0), &limit).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoNode), "{error:?}");
    assert!(ledger.of(1).is_empty());
    // The list may be out of date: whoever answers will do.
    registry.health(Health::Stale { since: Instant::now(), trouble: "gone".into() });
    connected(&client, 1).await;
    assert_eq!(client.call::<_, String>("work", &(2, 0)).await.unwrap(), "a");
    registry.list([entry(&node)]);
    nodes_are(&client, "listed anew", |n| n[0].id == node.incarnation && n[0].connected).await;
    assert_eq!(client.call::<_, String>("work", &(3, 0)).await.unwrap(), "a");
}

/// A registry publishes its first list a moment before it says that it is up to date.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_listed_incarnation_is_called_from_the_first_list_on() {
    let ledger = Ledger::default();
    let node = Node::start(worker("a", &ledger)).await;
    let registry = Puppet::new();
    registry.list([entry_of(node.addr, "an earlier one")]);
    registry.health(Health::Connecting { trouble: None });
    let client = Client::builder().connect_to(registry.clone()).unwrap();
    nodes_are(&client, "tried", |n| n.first().is_some_and(|n| n.connected || n.trouble.is_some())).await;
    let limit = CallOptions::new().timeout(Duration::from_millis(300));
    client.call_with::<_, String>("work", &(1, 0), &limit).await.unwrap_err();
    assert!(ledger.of(1).is_empty());
    assert!(client.nodes()[0].trouble.as_deref().is_some_and(|t| t.contains("another instance")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_fails_no_call() {
    let (ledger, url) = (Ledger::default(), fresh_registry());
    let names = ["a", "b", "c"];
    let mut nodes = Vec::new();
    for name in names {
        nodes.push(Node::start(worker(name, &ledger).registry(&url).unwrap()).await);
    }
    let client = Client::connect(&url).await.unwrap();
    connected(&client, 3).await;
    let (stop, stopped) = watch::channel(false);
    let calling = tokio::spawn({
        let client = client.clone();
        async move {
            let (mut calls, mut pace) = (Vec::new(), interval(Duration::from_millis(2)));
            for call in 0.. {
                if *stopped.borrow() {
                    break;
                }
                pace.tick().await;
                calls.push((call, start_call(&client, "work", call, 20)));
            }
            let mut outcomes = Vec::new();
            for (call, outcome) in calls {
                outcomes.push((call, outcome.await.unwrap()));
            }
            outcomes
        }
    });
    for name in names {
        let node = nodes.remove(0);
        let (addr, old) = (node.addr, node.incarnation.clone());
        let served = ledger.0.lock().len();
        until("calls", SOON, || ledger.0.lock().len() > served + 100).await;
        node.stop().await;
        nodes_are(&client, "one less", |n| n.iter().all(|n| n.id != old)).await;
        nodes.push(Node::start_at(addr, worker(name, &ledger).registry(&url).unwrap()).await);
        connected(&client, 3).await;
    }
    stop.send_replace(true);
    let outcomes = calling.await.unwrap();
    assert!(failures(&outcomes).is_empty(), "{:?}", failures(&outcomes));
    for (call, outcome) in &outcomes {
        assert_eq!(ledger.of(*call), [outcome.as_ref().unwrap().as_str()], "once each");
    }
}

/// A node stops in good order and starts again at its address. Meanwhile the list says what it said
/// before, that the node is draining included.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_restarts_while_the_registry_is_away_is_used_again() {
    let ledger = Ledger::default();
    for (outage_first, announced) in [(true, false), (false, false), (false, true)] {
        let node = Node::start(worker("a", &ledger)).await;
        let (addr, registry) = (node.addr, Puppet::new());
        let before = entry(&node);
        registry.list([before.clone()]);
        let client = client_of(&registry, addr, 1).await;
        let away = || registry.health(Health::Stale { since: Instant::now(), trouble: "gone".into() });
        if outage_first {
            away();
        }
        if announced {
            registry.list([draining(before)]);
        }
        node.stop().await;
        nodes_are(&client, "leaving", |n| n[0].connection == ConnectionState::Leaving).await;
        if !outage_first {
            away();
        }
        let node = Node::start_at(addr, worker("b", &ledger)).await;
        connected(&client, 1).await;
        assert_eq!(client.call::<_, String>("work", &(1, 0)).await.unwrap(), "b");
        // The same again, with the one that nobody has told the client of.
        node.stop().await;
        nodes_are(&client, "leaving", |n| n[0].connection == ConnectionState::Leaving).await;
        let node = Node::start_at(addr, worker("c", &ledger)).await;
        connected(&client, 1).await;
        assert_eq!(client.call::<_, String>("work", &(2, 0)).await.unwrap(), "c");
        registry.list([entry(&node)]);
        nodes_are(&client, "listed anew", |n| n[0].id == node.incarnation && n[0].connected).await;
        assert_eq!(client.call::<_, String>("work", &(3, 0)).await.unwrap(), "c");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_falls_silent_loses_its_calls_at_once_and_comes_back() {
    let ledger = Ledger::default();
    let (a, link, _b, client) = linked_and_other(&ledger).await;
    assert_eq!(client.call::<_, String>("safe", &(0, 0)).await.unwrap(), "a");

    link.stall();
    let began = Instant::now();
    let safe: Vec<_> = (1..=20).map(|call| start_call(&client, "safe", call, 0)).collect();
    let unsafe_one = start_call(&client, "work", 100, 0);
    let state = |nodes: &[rpc_client::NodeStatus]| nodes.iter().find(|n| n.node == a.addr).unwrap().connection;
    // Its lost calls may get it ejected besides.
    nodes_are(&client, "left alone", |n| state(n) != ConnectionState::Connected).await;
    let suspect_after = began.elapsed();
    for call in safe {
        assert_eq!(call.await.unwrap().unwrap(), "b");
    }
    let moved_after = began.elapsed();
    // 250 ms of silence and 250 ms without an answer to the ping; the rest is for a busy machine.
    assert!((480..1500).contains(&suspect_after.as_millis()), "{suspect_after:?}");
    assert!(moved_after < Duration::from_millis(1500), "{moved_after:?}");
    // New calls do not go there.
    let quick = Instant::now();
    assert_eq!(client.call::<_, String>("work", &(101, 0)).await.unwrap(), "b");
    assert!(quick.elapsed() < Duration::from_millis(400), "{:?}", quick.elapsed());
    assert!(!unsafe_one.is_finished(), "it may have run there, and is waited for");

    link.resume();
    nodes_are(&client, "back", |n| state(n) == ConnectionState::Connected).await;
    assert_eq!(unsafe_one.await.unwrap().unwrap(), "a");
    assert_eq!(client.call::<_, String>("work", &(102, 0)).await.unwrap(), "a");
    assert_eq!(ledger.of(100), ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hedged_call_leaves_a_node_that_hangs_and_not_one_that_takes_long() {
    let ledger = Ledger::default();
    let (_a, link, b, client) = linked_and_other(&ledger).await;
    let hedged = CallOptions::new().hedge();
    for call in 0..10 {
        client.call_with::<_, String>("safe", &(call, 1), &hedged).await.unwrap();
    }
    for call in 10..20 {
        client.call_with::<_, String>("work", &(call, 50), &hedged).await.unwrap();
    }
    // On a busy machine a node may be late with its sign of life, but not time and again.
    let once = (10..20).filter(|call| ledger.of(*call) == ["a"]).count();
    assert!(once >= 5, "{once} of 10 long calls were made once");

    link.stall();
    let reply = client.call_detailed("safe", &(100, 0), &hedged).await.unwrap();
    assert_eq!(reply.node, b.addr);
    assert!(reply.attempts[0].outcome.contains("no sign of life"), "{:?}", reply.attempts);
    link.resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_long_answer_does_not_make_hedged_calls_wait_at_a_node_that_hangs() {
    let ledger = Ledger::default();
    let (_a, link, b, client) = linked_and_other(&ledger).await;
    client.call::<_, String>("safe", &(0, 400)).await.unwrap();
    for call in 1..=10 {
        client.call::<_, String>("safe", &(call, 1)).await.unwrap();
    }
    link.stall();
    let began = Instant::now();
    let reply = client.call_detailed("safe", &(100, 0), &CallOptions::new().hedge()).await.unwrap();
    assert_eq!(reply.node, b.addr);
    assert!(began.elapsed() < Duration::from_millis(200), "{:?}", reply.attempts);
    link.resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn when_all_nodes_fall_silent_for_a_while_no_call_fails() {
    let ledger = Ledger::default();
    let ((a, link_a), (b, link_b)) = (linked("a", &ledger).await, linked("b", &ledger).await);
    let registry = Puppet::new();
    registry.list([entry(&a), entry(&b)]);
    let config = ClientConfig { call_timeout: SOON, ..ClientConfig::default() };
    let client =
        Client::builder().config(config).policy(policy("round_robin").unwrap()).connect_to(registry.clone()).unwrap();
    connected(&client, 2).await;
    link_a.stall();
    link_b.stall();
    let calls: Vec<_> =
        (0..20).map(|call| start_call(&client, if call % 4 < 2 { "safe" } else { "work" }, call, 0)).collect();
    nodes_are(&client, "suspect", |n| n.iter().any(|n| n.connection == ConnectionState::Suspect)).await;
    // Long enough for a call to have been moved to the other node, and found it silent too.
    let later = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < later {
        assert!(calls.iter().all(|call| !call.is_finished()), "nobody can have answered");
        sleep(Duration::from_millis(10)).await;
    }
    link_b.resume();
    link_a.resume();
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_to_the_only_node_waits_out_a_stall_and_ends_at_its_deadline() {
    let ledger = Ledger::default();
    let (a, link) = linked("a", &ledger).await;
    let registry = Puppet::new();
    registry.list([entry(&a)]);
    let client = client_of(&registry, a.addr, 1).await;
    link.stall();
    let patient = start_call(&client, "safe", 1, 0);
    let limit = Duration::from_millis(900);
    let began = Instant::now();
    let error = client.call_with::<_, String>("safe", &(2, 0), &CallOptions::new().timeout(limit)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DeadlineExceeded { .. }), "{error:?}");
    assert!(began.elapsed() >= limit && began.elapsed() < limit * 3, "{:?}", began.elapsed());
    link.resume();
    assert_eq!(patient.await.unwrap().unwrap(), "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_lost_the_only_node_fails_at_once() {
    let ledger = Ledger::default();
    let (a, link) = linked("a", &ledger).await;
    let registry = Puppet::new();
    registry.list([entry(&a)]);
    let client = client_of(&registry, a.addr, 1).await;
    for method in ["work", "safe"] {
        connected(&client, 1).await;
        let before = ledger.0.lock().len();
        let call = start_call(&client, method, before as u64, 600_000);
        until("call begun", SOON, || ledger.0.lock().len() > before).await;
        let began = Instant::now();
        link.cut();
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Transport { sent: true, .. }), "{method}: {error:?}");
        assert!(began.elapsed() < Duration::from_secs(3), "{method}: {:?}", began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_go_on_when_all_nodes_were_down_and_are_back() {
    let ledger = Ledger::default();
    let (a, b) = (Node::start(worker("a", &ledger)).await, Node::start(worker("b", &ledger)).await);
    let (at_a, at_b) = (a.addr, b.addr);
    let client = Client::connect(&format!("static:{at_a},{at_b}")).await.unwrap();
    connected(&client, 2).await;
    a.kill().await;
    b.kill().await;
    nodes_are(&client, "all refused", |n| n.iter().all(|n| !n.connected && n.trouble.is_some())).await;
    let limit = CallOptions::new().timeout(Duration::from_secs(2));
    let error = client.call_with::<_, String>("work", &(1, 0), &limit).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoNode), "{error:?}");
    assert!(error.is_unsent());
    let _a = Node::start_at(at_a, worker("a", &ledger)).await;
    let _b = Node::start_at(at_b, worker("b", &ledger)).await;
    let began = Instant::now();
    connected(&client, 2).await;
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    client.call::<_, String>("work", &(2, 0)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_comes_back_empty_takes_no_living_node_away() {
    let ledger = Ledger::default();
    let registry = Puppet::new();
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(Node::start(worker(name, &ledger)).await);
    }
    let entries: Vec<_> = nodes.iter().map(entry).collect();
    registry.list(entries.clone());
    let client = client_of(&registry, nodes[0].addr, 3).await;
    let load = load(&client, "work", 10, 2);
    load.more(50).await;
    registry.list([]);
    load.more(200).await;
    assert_eq!(client.nodes().len(), 3, "all are kept");
    // Two of them come back into the list, the third is still believed.
    registry.list(entries[..2].to_vec());
    load.more(100).await;
    assert_eq!(client.nodes().len(), 3);
    let outcomes = load.stop().await;
    assert!(failures(&outcomes).is_empty(), "{:?}", failures(&outcomes));
    // The doubt ends with the connection.
    let gone = nodes.pop().unwrap();
    gone.kill().await;
    nodes_are(&client, "two", |n| n.len() == 2).await;
    for call in 0..20 {
        client.call::<_, String>("work", &(call, 0)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_that_leaves_the_list_is_believed() {
    let ledger = Ledger::default();
    let registry = Puppet::new();
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(Node::start(worker(name, &ledger)).await);
    }
    registry.list(nodes.iter().map(entry));
    let client = client_of(&registry, nodes[0].addr, 3).await;
    let last = start_call(&client, "work", 1, 300);
    until("call begun", SOON, || ledger.of(1) == ["a"]).await;
    let began = Instant::now();
    registry.list(nodes[1..].iter().map(entry));
    nodes_are(&client, "two", |n| n.len() == 2).await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_ne!(client.call::<_, String>("work", &(2, 0)).await.unwrap(), "a");
    assert_eq!(last.await.unwrap().unwrap(), "a", "what it has is answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_announces_its_leaving_gets_no_more_calls() {
    let ledger = Ledger::default();
    let (a, b) = (Node::start(worker("a", &ledger)).await, Node::start(worker("b", &ledger)).await);
    let registry = Puppet::new();
    registry.list([entry(&a), entry(&b)]);
    let client = client_of(&registry, a.addr, 2).await;
    assert_eq!(client.call::<_, String>("work", &(1, 0)).await.unwrap(), "a");
    registry.list([draining(entry(&a)), entry(&b)]);
    nodes_are(&client, "leaving", |n| n.iter().any(|n| n.connection == ConnectionState::Leaving)).await;
    assert_eq!(client.call::<_, String>("work", &(2, 0)).await.unwrap(), "b");
    // Both announce it: nobody is doubted when they are gone.
    registry.list([draining(entry(&a)), draining(entry(&b))]);
    nodes_are(&client, "both leaving", |n| n.iter().all(|n| n.connection == ConnectionState::Leaving)).await;
    let limit = CallOptions::new().timeout(Duration::from_millis(200));
    let error = client.call_with::<_, String>("work", &(3, 0), &limit).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoNode), "{error:?}");
    registry.list([]);
    nodes_are(&client, "gone", |n| n.is_empty()).await;
    // It changed its mind.
    registry.list([entry(&a)]);
    connected(&client, 1).await;
    assert_eq!(client.call::<_, String>("work", &(4, 0)).await.unwrap(), "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_fails_its_calls_is_left_alone_for_a_while() {
    let ledger = Ledger::default();
    let broken = Method::new("work", |_: (u64, u64)| async {
        if true { panic!("it is broken") } else { Ok::<_, RpcError>("a".to_owned()) }
    });
    let a = Node::start(Server::builder().with(broken)).await;
    let b = Node::start(worker("b", &ledger)).await;
    let registry = Puppet::new();
    registry.list([entry(&a), entry(&b)]);
    let client = client_of(&registry, a.addr, 2).await;
    let mut failed = 0;
    for call in 0..200 {
        failed += usize::from(client.call::<_, String>("work", &(call, 0)).await.is_err());
    }
    assert!((10..=20).contains(&failed), "{failed} of 200: it takes 10 to be sure, and one to try again");
    let state = client.nodes().iter().find(|n| n.node == a.addr).unwrap().connection;
    assert_eq!(state, ConnectionState::Ejected);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_where_nobody_listens_costs_no_call() {
    let ledger = Ledger::default();
    let (dead, _held) = cluster::dead_address();
    let node = Node::start(worker("a", &ledger)).await;
    let client = Client::connect(&format!("static:{dead},{}", node.addr)).await.unwrap();
    for call in 0..100 {
        assert_eq!(client.call::<_, String>("work", &(call, 0)).await.unwrap(), "a");
    }
    nodes_are(&client, "left alone", |n| n.iter().any(|n| n.connection == ConnectionState::Ejected)).await;
    for call in 100..200 {
        assert_eq!(client.call::<_, String>("work", &(call, 0)).await.unwrap(), "a");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_hangs_for_one_call_costs_that_call_only() {
    let ledger = Ledger::default();
    let (a, link) = linked("a", &ledger).await;
    let registry = Puppet::new();
    registry.list([entry(&a)]);
    let client = client_of(&registry, a.addr, 1).await;
    // Late replies to calls that were given up do not disturb others.
    link.delay(Duration::from_millis(60));
    let limit = CallOptions::new().timeout(Duration::from_millis(20));
    for call in 0..20 {
        let error = client.call_with::<_, String>("work", &(call, 0), &limit).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::DeadlineExceeded { .. }), "{error:?}");
        assert_eq!(client.call::<_, String>("safe", &(call, 0)).await.unwrap(), "a");
    }
    assert_eq!(timeout(SOON, client.call::<_, String>("work", &(99, 0))).await.unwrap().unwrap(), "a");
}
