//! The policies and the response times in the registry, over real connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rpc_client::balance::{POLICIES, policy};
use rpc_client::{CallOptions, Client, ClientConfig};
use rpc_core::registry::{self, Members, Registry};
use rpc_server::{RpcError, Server, ServerBuilder, ServerConfig};
use rpc_tests::cluster::{Node, SOON, connected, fresh_registry, until};
use rpc_tests::load::Load;
use rpc_tests::puppet::{Puppet, entry};
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep, timeout};

/// `nap` takes `ms` milliseconds and answers with them.
fn napper(ms: u64) -> ServerBuilder {
    let nap = move |()| async move {
        sleep(Duration::from_millis(ms)).await;
        Ok::<_, RpcError>(ms)
    };
    let fail = |()| async { Err::<(), _>(RpcError::new(1, "as asked")) };
    Server::builder().method("nap", nap).method("fail", fail)
}

async fn nappers(url: &str, times: &[u64]) -> Vec<Node> {
    let mut nodes = Vec::new();
    for ms in times {
        nodes.push(Node::start(napper(*ms).registry(url).unwrap()).await);
    }
    nodes
}

async fn client(url: &str, name: &str, nodes: usize) -> Client {
    let client = Client::builder().policy(policy(name).unwrap()).connect(url).await.unwrap();
    connected(&client, nodes).await;
    client
}

/// Makes `count` calls from `tasks` tasks and counts the answers by the node's time.
async fn shares(client: &Client, tasks: usize, count: usize) -> BTreeMap<u64, usize> {
    let shares = Arc::new(Mutex::new(BTreeMap::new()));
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let (client, shares) = (client.clone(), shares.clone());
            let count = (task..count).step_by(tasks).count();
            tokio::spawn(async move {
                for _ in 0..count {
                    let ms: u64 = client.call("nap", &()).await.unwrap();
                    *shares.lock().entry(ms).or_default() += 1;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    std::mem::take(&mut *shares.lock())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_policy_places_every_call_whatever_the_number_of_nodes() {
    for times in [&[1][..], &[1, 3], &[1, 3, 8]] {
        let url = fresh_registry();
        let _nodes = nappers(&url, times).await;
        for (name, _, _) in POLICIES {
            let client = client(&url, name, times.len()).await;
            let shares = shares(&client, 8, 96).await;
            assert_eq!(shares.values().sum::<usize>(), 96, "{name} {shares:?}");
            match *name {
                "round_robin" => assert!(shares.values().all(|n| *n == 96 / times.len()), "{name} {shares:?}"),
                "random" => assert_eq!(shares.len(), times.len(), "{name} {shares:?}"),
                _ => {}
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fastest_sends_clearly_more_to_the_faster_node() {
    let url = fresh_registry();
    let _nodes = nappers(&url, &[5, 50]).await;
    let client = client(&url, "fastest", 2).await;
    // One call after the other, then many at a time.
    let alone = shares(&client, 1, 60).await;
    assert!(alone[&5] >= 48, "{alone:?}");
    let together = shares(&client, 8, 400).await;
    assert!(together[&5] >= 300, "{together:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_later_is_tried_and_does_not_take_the_whole_stream() {
    for (later, at_least, at_most) in [(60, 1, 120), (2, 40, 400)] {
        let url = fresh_registry();
        let _first = nappers(&url, &[8]).await;
        let client = client(&url, "fastest", 1).await;
        shares(&client, 4, 100).await;
        let _second = nappers(&url, &[later]).await;
        connected(&client, 2).await;
        let shares = shares(&client, 4, 400).await;
        let count = shares.get(&later).copied().unwrap_or(0);
        assert!((at_least..=at_most).contains(&count), "a node of {later} ms beside one of 8 ms: {shares:?}");
    }
}

/// A client that was told by the registry what others measured.
async fn told(registry: &Arc<Puppet>, name: &str) -> Client {
    let client = Client::builder().policy(policy(name).unwrap()).connect_to(registry.clone()).unwrap();
    connected(&client, 2).await;
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_makes_one_call_makes_it_at_the_node_that_others_found_quick() {
    for reports in ["nothing of themselves", "what they have answered"] {
        let (slow, quick) = (Node::start(napper(300)).await, Node::start(napper(1)).await);
        let known = |node: &Node, us| {
            let mut entry = entry(node);
            entry.record.response_time_us = us;
            entry
        };
        let registry = Puppet::new();
        registry.list([known(&slow, 300_000), known(&quick, 1_000)]);
        if reports == "what they have answered" {
            shares(&told(&registry, "round_robin").await, 1, 4).await;
            // The registry knows nothing, as after five seconds without calls.
            registry.list([entry(&slow), entry(&quick)]);
        }
        for name in ["fastest", "shortest"] {
            // The policy that goes by the registry alone calls what is unknown first.
            if name == "shortest" && reports == "what they have answered" {
                continue;
            }
            let mut slow_ones = 0;
            for _ in 0..10 {
                let client = told(&registry, name).await;
                slow_ones += u32::from(client.call::<_, u64>("nap", &()).await.unwrap() != 1);
            }
            // Of a node that has answered nobody yet it knows little: the first call there tells.
            let most = u32::from(name == "fastest" && reports == "nothing of themselves");
            assert!(slow_ones <= most, "{name}, nodes know {reports}: {slow_ones} of 10 calls at the slow one");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_gets_the_long_calls_keeps_its_share_of_the_others() {
    let mut nodes = Vec::new();
    for name in [1, 2] {
        let nap = move |()| async move {
            sleep(Duration::from_millis(4)).await;
            Ok::<_, RpcError>(name)
        };
        let long = |()| async {
            sleep(Duration::from_millis(100)).await;
            Ok::<_, RpcError>(())
        };
        let config = ServerConfig { permits: Some(32), ..ServerConfig::default() };
        nodes.push(Node::start(Server::builder().config(config).method("nap", nap).method("long", long)).await);
    }
    let client = Client::connect(&format!("static:{},{}", nodes[0].addr, nodes[1].addr)).await.unwrap();
    connected(&client, 2).await;
    // Somebody whose keys belong to the first node calls nothing but the long method there.
    let other = Client::connect(&format!("static:{}", nodes[0].addr)).await.unwrap();
    let long = Load::start(1, move |_| {
        let other = other.clone();
        async move { other.call::<_, ()>("long", &()).await }
    });
    long.more(3).await;
    // So many, because a busy machine makes one of two nodes look slower for a while.
    let shares = shares(&client, 4, 3600).await;
    long.stop().await;
    assert!((1620..=1980).contains(&shares[&1]), "{shares:?}");
}

/// What an entry was, each time the list changed.
fn observe(registry: &Arc<dyn Registry>, addr: SocketAddr) -> Arc<Mutex<Vec<(Instant, u64)>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (mut members, noted): (watch::Receiver<Arc<Members>>, _) = (registry.members(), seen.clone());
    tokio::spawn(async move {
        let mut last = None;
        while members.changed().await.is_ok() {
            let members = members.borrow_and_update().clone();
            let Some(member) = members.nodes.get(&addr) else { continue };
            if last != Some(member.version) {
                last = Some(member.version);
                noted.lock().push((Instant::now(), member.record.response_time_us));
            }
        }
    });
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn response_times_are_written_back_kept_fresh_and_reset() {
    let url = fresh_registry();
    let registry = registry::open(&url.parse().unwrap()).unwrap();
    let node = Node::start(napper(10).registry(&url).unwrap()).await;
    let seen = observe(&registry, node.addr);
    let clients = [client(&url, "fastest", 1).await, client(&url, "fastest", 1).await];
    assert_eq!(registry.members().borrow().nodes[&node.addr].record.response_time_us, 0, "a fresh node is unknown");

    let began = Instant::now();
    let mut pace = interval(Duration::from_millis(100));
    while began.elapsed() < Duration::from_secs(7) {
        pace.tick().await;
        clients[0].call::<_, u64>("nap", &()).await.unwrap();
    }
    let written = seen.lock().clone();
    let (first, _) = written[0];
    assert!(first - began < Duration::from_secs(2), "written after {:?}", first - began);
    // Never 0 while calls go on, and never older than 4 s.
    assert!(written.iter().all(|(_, us)| (10_000..1_000_000).contains(us)), "{written:?}");
    assert!(written.windows(2).all(|w| w[1].0 - w[0].0 < Duration::from_secs(4)), "{written:?}");
    // At most one write in an interval, whoever writes.
    assert!(written.len() <= 9, "{written:?}");

    // 5 to 11 s after the last write it is unknown again, once for the whole cluster.
    until("reset", SOON, || seen.lock().last().is_some_and(|(_, us)| *us == 0)).await;
    let all = seen.lock().clone();
    let zeros = all.iter().filter(|(_, us)| *us == 0).count();
    let (last, _) = all[all.len() - 2];
    let (reset, _) = all[all.len() - 1];
    assert_eq!(zeros, 1, "{all:?}");
    assert!((5_000..11_000).contains(&(reset - last).as_millis()), "{:?}", reset - last);
    assert_eq!(clients[1].nodes()[0].response_time_us, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_makes_one_call_still_delivers_its_measurement() {
    let url = fresh_registry();
    let registry = registry::open(&url.parse().unwrap()).unwrap();
    let node = Node::start(napper(20).registry(&url).unwrap()).await;
    let time = || registry.members().borrow().nodes[&node.addr].record.response_time_us;
    let brief = client(&url, "fastest", 1).await;
    brief.call::<_, u64>("nap", &()).await.unwrap();
    brief.close(SOON).await;
    assert!((20_000..2_000_000).contains(&time()), "{}", time());
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_and_abandoned_calls_are_never_written_back() {
    let url = fresh_registry();
    let registry = registry::open(&url.parse().unwrap()).unwrap();
    let node = Node::start(napper(60_000).registry(&url).unwrap()).await;
    let client = client(&url, "fastest", 1).await;
    for _ in 0..10 {
        client.call::<_, ()>("fail", &()).await.unwrap_err();
        let limit = CallOptions::new().timeout(Duration::from_millis(10));
        client.call_with::<_, u64>("nap", &(), &limit).await.unwrap_err();
    }
    client.close(SOON).await;
    assert_eq!(registry.members().borrow().nodes[&node.addr].record.response_time_us, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_restarted_node_was_measured_at_is_not_said_of_the_new_one() {
    let url = fresh_registry();
    let registry = registry::open(&url.parse().unwrap()).unwrap();
    let old = Node::start(napper(40).registry(&url).unwrap()).await;
    let addr = old.addr;
    let config = ClientConfig { write_interval: Duration::from_millis(50), ..ClientConfig::default() };
    let client = Client::builder().config(config).connect(&url).await.unwrap();
    connected(&client, 1).await;
    for _ in 0..5 {
        client.call::<_, u64>("nap", &()).await.unwrap();
    }
    let time = || registry.members().borrow().nodes.get(&addr).map_or(0, |m| m.record.response_time_us);
    until("first value", SOON, || time() >= 40_000).await;
    old.stop().await;
    let new = Node::start_at(addr, napper(1).registry(&url).unwrap()).await;
    connected(&client, 1).await;
    let mut members = registry.members();
    client.call::<_, u64>("nap", &()).await.unwrap();
    let measured = |m: &Arc<Members>| {
        m.nodes.get(&addr).is_some_and(|m| m.record.id == new.incarnation && m.record.response_time_us > 0)
    };
    let seen = timeout(SOON, members.wait_for(measured)).await.unwrap().unwrap().clone();
    assert!(seen.nodes[&addr].record.response_time_us < 40_000, "{:?}", seen.nodes[&addr].record);
}
