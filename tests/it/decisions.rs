//! Why calls went where they went: what the library keeps and what `call --explain` shows of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpc_client::balance::{self, POLICIES, policy};
use rpc_client::{CallOptions, Client, ClientConfig, ConnectionState, DecisionRecord, Filter, Reason};
use rpc_core::protocol::code;
use rpc_core::registry::Member;
use rpc_server::{Method, RpcError, Server, ServerBuilder};
use rpc_tests::cluster::{Node, SOON, connected, dead_address, fresh_registry, nodes_are};
use rpc_tests::puppet::{Puppet, draining, entry, entry_of};

use crate::errors::refusing;

/// `work` answers at once, `fail` fails as a broken node does.
fn server() -> ServerBuilder {
    let fail = |(): ()| async { Err::<(), _>(RpcError::internal("broken")) };
    Server::builder()
        .with(Method::new("work", |(): ()| async { Ok::<_, RpcError>(()) }).idempotent())
        .method("fail", fail)
}

async fn nodes(count: usize) -> Vec<Node> {
    let mut nodes = Vec::new();
    for _ in 0..count {
        nodes.push(Node::start(server()).await);
    }
    nodes
}

/// A client of these nodes that is connected to `count` of them.
async fn client_of(members: Vec<Member>, name: &str, count: usize) -> Client {
    let registry = Puppet::new();
    registry.list(members);
    let config = ClientConfig { call_timeout: SOON, ..ClientConfig::default() };
    let client = Client::builder().config(config).policy(policy(name).unwrap()).connect_to(registry).unwrap();
    let is = |n: &rpc_client::NodeStatus| n.connection == ConnectionState::Connected;
    nodes_are(&client, "connected", |nodes| nodes.iter().filter(|n| is(n)).count() == count).await;
    client
}

async fn call(client: &Client, options: &CallOptions) {
    client.call_with::<_, ()>("work", &(), options).await.unwrap();
}

fn sent(record: &DecisionRecord) -> Option<SocketAddr> {
    matches!(record.decision, balance::Decision::Send { .. }).then(|| record.nodes[0])
}

fn removed(record: &DecisionRecord) -> Vec<(SocketAddr, Filter)> {
    record.removed.iter().map(|removed| (removed.node, removed.filter)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_decision_is_made_again_by_every_policy() {
    let nodes = nodes(3).await;
    for (name, _, _) in POLICIES {
        let client = client_of(nodes.iter().map(entry).collect(), name, 3).await;
        let (usual, explained) = (CallOptions::new(), CallOptions::new().explain());
        for number in 0..60 {
            call(&client, if number % 3 == 0 { &explained } else { &usual }).await;
        }
        let records = client.decisions();
        assert!(records.iter().filter(|r| r.reason == Reason::Explained && sent(r).is_some()).count() == 20, "{name}");
        for record in records {
            assert_eq!(record.replay().as_ref(), Some(&record.decision), "{name}: {record:?}");
            let Some(node) = sent(&record) else { continue };
            assert_eq!(record.outcome.as_ref().map(|o| (o.node, o.outcome.as_str())), Some((node, "ok")), "{name}");
            assert_eq!((record.usable, record.removed.len(), record.tried.len()), (3, 0, 0));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_winner_of_a_comparison_is_explained_by_its_cost() {
    let nodes = nodes(3).await;
    for name in ["fastest", "p2c", "least_in_flight", "shortest"] {
        let client = client_of(nodes.iter().map(entry).collect(), name, 3).await;
        for _ in 0..50 {
            call(&client, &CallOptions::new().explain()).await;
        }
        let records = client.decisions();
        let compared: Vec<_> = records.iter().filter(|r| sent(r).is_some() && r.candidates.len() > 1).collect();
        assert!(compared.len() > 25, "{name}: {} of {}", compared.len(), records.len());
        for record in compared {
            let lowest = &record.candidates[0];
            let winner = record.candidates.iter().find(|c| Some(c.node.addr) == sent(record)).expect("it was compared");
            // `fastest` takes any of those that are as good as equal.
            assert!(winner.score.cost <= 1.1 * lowest.score.cost, "{name}: {:?}", record.candidates);
            assert!(!winner.score.terms.is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_256_are_kept_and_few_of_the_calls_to_which_nothing_happened() {
    let nodes = nodes(2).await;
    let client = client_of(nodes.iter().map(entry).collect(), "round_robin", 2).await;
    for _ in 0..640 {
        call(&client, &CallOptions::new()).await;
    }
    let records = client.decisions();
    assert_eq!(records.len(), 10, "one in 64");
    assert!(records.iter().all(|r| r.reason == Reason::Sampled && r.method == "work"), "{records:?}");
    for _ in 0..300 {
        call(&client, &CallOptions::new().explain()).await;
    }
    let calls: Vec<u64> = client.decisions().iter().map(|record| record.call).collect();
    assert_eq!(calls, (940 - 256..940).collect::<Vec<u64>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_failed_was_refused_or_repeated_is_recorded_unasked() {
    let nodes = nodes(2).await;
    let client = client_of(nodes.iter().map(entry).collect(), "round_robin", 2).await;
    call(&client, &CallOptions::new()).await;
    let options = CallOptions::new().timeout(Duration::from_millis(500));
    client.call_with::<_, ()>("fail", &(), &options).await.unwrap_err();
    let records = client.decisions();
    let of = |call: u64| records.iter().filter(move |record| record.call == call).map(Arc::clone).collect::<Vec<_>>();
    let failed = of(1);
    assert_eq!((failed.len(), failed[0].reason, failed[0].method.as_str()), (1, Reason::Failed, "fail"));
    assert!(failed[0].outcome.as_ref().unwrap().outcome.contains("broken"), "{failed:?}");

    let members = [refusing(code::REFUSED).await, refusing(code::REFUSED).await].map(|(addr, _)| entry_of(addr, ""));
    let client = client_of(members.into(), "round_robin", 2).await;
    client.call_with::<_, ()>("work", &(), &options).await.unwrap_err();
    let refused = client.decisions();
    let times = refused.iter().filter(|record| record.reason == Reason::Refused).count();
    assert!((2..=32).contains(&times), "both nodes were asked, and each at most 16 times: {refused:?}");
    assert!(refused[..2].iter().all(|r| r.reason == Reason::Refused), "{refused:?}");
    assert_eq!((refused[0].tried.as_slice(), refused[1].tried.as_slice()), (&[][..], &refused[0].nodes[..]));
    assert_ne!(refused[0].nodes, refused[1].nodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_filter_says_what_it_removed_and_why() {
    let nodes = nodes(4).await;
    let (dead, _held) = dead_address();
    let mut members: Vec<Member> = nodes.iter().map(entry).collect();
    members[1] = draining(members[1].clone());
    members.push(entry_of(dead, ""));
    let client = client_of(members, "round_robin", 3).await;
    for _ in 0..60 {
        let _ = client.call::<_, ()>("fail", &()).await;
    }
    let ejected = |n: &[rpc_client::NodeStatus]| n.iter().any(|n| n.connection == ConnectionState::Ejected);
    nodes_are(&client, "ejected", ejected).await;
    call(&client, &CallOptions::new().explain()).await;
    let record = client.decisions().pop().unwrap();
    let removed = removed(&record);
    assert!(removed.contains(&(nodes[1].addr, Filter::Draining)), "{removed:?}");
    assert!(removed.iter().any(|(node, filter)| *node == dead && *filter != Filter::Draining), "{removed:?}");
    let healthy: Vec<SocketAddr> = [0, 2, 3].into_iter().map(|at: usize| nodes[at].addr).collect();
    assert!(removed.iter().any(|(node, filter)| healthy.contains(node) && *filter == Filter::Ejected), "{removed:?}");
    assert_eq!(record.usable + removed.len(), 5, "{removed:?}");
    let why = record.removed.iter().find(|removed| removed.node == dead).unwrap().why.as_deref();
    assert!(why.is_some_and(|why| why.contains("refused")), "{why:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn that_there_was_no_node_is_recorded_too() {
    let (dead, _held) = dead_address();
    let registry = Puppet::new();
    registry.list([entry_of(dead, "")]);
    let client = Client::builder().connect_to(registry).unwrap();
    nodes_are(&client, "refused", |nodes| nodes.iter().any(|n| n.trouble.is_some())).await;
    let options = CallOptions::new().timeout(Duration::from_millis(100)).explain();
    client.call_with::<_, ()>("work", &(), &options).await.unwrap_err();
    let records = client.decisions();
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!((&records[0].decision, records[0].usable), (&balance::Decision::NoNode, 0));
    assert_eq!(records[0].removed[0].node, dead);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_outlives_its_nodes_without_keeping_their_connections() {
    let url = fresh_registry();
    let node = Node::start(server().registry(&url).unwrap()).await;
    let client = Client::connect(&url).await.unwrap();
    connected(&client, 1).await;
    call(&client, &CallOptions::new().explain()).await;
    node.stop().await;
    nodes_are(&client, "gone", <[_]>::is_empty).await;
    let records = client.decisions();
    assert_eq!(records[0].replay().as_ref(), Some(&records[0].decision));
}
