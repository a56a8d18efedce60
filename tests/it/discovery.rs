//! Nodes that come and go, as clients see it.

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rpc_client::balance::Random;
use rpc_client::{Client, ClientConfig, ConnectionState, ErrorKind};
use rpc_core::registry::RegistrationStatus;
use rpc_server::{Context, Method, RpcError, Server, ServerBuilder};
use rpc_tests::cluster::{self, Node, SOON, any_port, connected, fresh_registry, nodes_are, until};
use rpc_tests::puppet::{Puppet, entry, entry_of};
use tokio::time::{Instant, sleep, timeout};

/// `who` answers with the name; it may be repeated.
fn named(name: &str) -> ServerBuilder {
    let answer = name.to_owned();
    let who = move |()| {
        let name = answer.clone();
        async move { Ok::<_, RpcError>(name) }
    };
    Server::builder().name(name).with(Method::new("who", who).idempotent())
}

async fn who(client: &Client) -> String {
    client.call("who", &()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_starts_first_follows_what_comes_and_goes() {
    let url = fresh_registry();
    let client = Client::builder().wait_for_node().connect(&url).await.unwrap();
    let first_call = tokio::spawn({
        let client = client.clone();
        async move { who(&client).await }
    });
    assert!(client.ready(SOON).await);
    assert!(client.nodes().is_empty());
    let a = Node::start(named("a").registry(&url).unwrap()).await;
    assert_eq!(first_call.await.unwrap(), "a");

    let b = Node::start(named("b").registry(&url).unwrap()).await;
    connected(&client, 2).await;
    let names: BTreeSet<_> = client.nodes().into_iter().filter_map(|n| n.name).collect();
    assert!(names.iter().eq(["a", "b"]));
    let mut asked = BTreeSet::new();
    let end = Instant::now() + SOON;
    while asked.len() < 2 {
        assert!(Instant::now() < end, "only {asked:?} get calls");
        asked.insert(who(&client).await);
    }

    let stopped = Instant::now();
    a.stop().await;
    nodes_are(&client, "one node", |n| n.len() == 1).await;
    assert!(stopped.elapsed() < Duration::from_secs(1), "{:?}", stopped.elapsed());
    for _ in 0..20 {
        assert_eq!(who(&client).await, "b");
    }
    b.stop().await;
    nodes_are(&client, "no node", |n| n.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_start_with_many_servers_connect_once_to_each() {
    const NODES: usize = 20;
    let url = fresh_registry();
    let peers: Arc<Mutex<Vec<BTreeSet<SocketAddr>>>> = Arc::new(Mutex::new(vec![BTreeSet::new(); NODES]));
    let starting: Vec<_> = (0..NODES)
        .map(|n| {
            let peers = peers.clone();
            let note = move |context: Context, ()| {
                peers.lock()[n].insert(context.peer);
                async { Ok::<_, RpcError>(()) }
            };
            let server = Server::builder().with(Method::with_context("note", note)).registry(&url).unwrap();
            tokio::spawn(Node::start(server))
        })
        .collect();
    // At the same time as the servers.
    let round_robin = || rpc_client::balance::policy("round_robin").unwrap();
    let first = Client::builder().policy(round_robin()).connect(&url).await.unwrap();
    let mut nodes = Vec::new();
    for node in starting {
        nodes.push(node.await.unwrap());
    }
    let second = Client::builder().policy(round_robin()).connect(&url).await.unwrap();
    for client in [&first, &second] {
        connected(client, NODES).await;
        let listed: BTreeSet<_> = client.nodes().iter().map(|n| n.node).collect();
        assert_eq!(listed, nodes.iter().map(|n| n.addr).collect());
        for _ in 0..3 * NODES {
            client.call::<_, ()>("note", &()).await.unwrap();
        }
    }
    for peers in &*peers.lock() {
        assert_eq!(peers.len(), 2, "one connection of each client");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_succeed_while_nodes_come_and_go_at_random() {
    let seed = cluster::seed();
    let mut random = Random::new(seed);
    let url = fresh_registry();
    let mut nodes = vec![Node::start(named("first").registry(&url).unwrap()).await];
    let clients = [Client::connect(&url).await.unwrap(), Client::connect(&url).await.unwrap()];
    for client in &clients {
        connected(client, 1).await;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let count = Arc::new(AtomicUsize::new(0));
    let calling: Vec<_> = (0..8)
        .map(|n| {
            let (client, stop, count) = (clients[n % 2].clone(), stop.clone(), count.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    client.call::<_, String>("who", &()).await?;
                    count.fetch_add(1, Ordering::SeqCst);
                }
                Ok::<_, rpc_client::Error>(())
            })
        })
        .collect();
    for step in 0..30 {
        let before = count.load(Ordering::SeqCst);
        match random.below(3) {
            0 if nodes.len() > 1 => nodes.swap_remove(random.below(nodes.len())).kill().await,
            1 if nodes.len() > 1 => nodes.swap_remove(random.below(nodes.len())).stop().await,
            _ => nodes.push(Node::start(named(&format!("n{step}")).registry(&url).unwrap()).await),
        }
        // The clients are to have noticed before the last one they know of goes.
        for client in &clients {
            connected(client, nodes.len()).await;
        }
        until("calls", SOON, || {
            count.load(Ordering::SeqCst) > before + 20 || calling.iter().any(|task| task.is_finished())
        })
        .await;
    }
    stop.store(true, Ordering::SeqCst);
    for task in calling {
        task.await.unwrap().unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_servers_that_advertise_one_address_the_second_waits() {
    let url = fresh_registry();
    let first = Node::start(named("first").registry(&url).unwrap()).await;
    // The second listens elsewhere and claims the address of the first.
    let server = named("second").registry(&url).unwrap().advertise(first.addr).bind(any_port()).await.unwrap();
    let mut status = server.registration().unwrap();
    let conflict = |s: &RegistrationStatus| matches!(s, RegistrationStatus::Conflict { .. });
    let seen = timeout(SOON, status.wait_for(conflict)).await.unwrap().unwrap().clone();
    assert!(format!("{seen:?}").contains(&first.addr.to_string()), "{seen:?}");
    let client = Client::connect(&url).await.unwrap();
    connected(&client, 1).await;
    assert_eq!(who(&client).await, "first");
    first.stop().await;
    let registered = |s: &RegistrationStatus| *s == RegistrationStatus::Registered;
    timeout(SOON, status.wait_for(registered)).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_that_cannot_be_read_are_shown_and_harm_nobody() {
    let node = Node::start(named("a")).await;
    let (dead, _held) = cluster::dead_address();
    let mut malformed = entry_of(dead, "");
    malformed.malformed = Some("it is no JSON".into());
    let registry = Puppet::new();
    registry.list([entry(&node), malformed]);
    let client = Client::builder().connect_to(registry.clone()).unwrap();
    nodes_are(&client, "both listed", |n| n.len() == 2 && n.iter().any(|n| n.connected)).await;
    let shown = client.nodes().into_iter().find(|n| n.node == dead).unwrap();
    assert_eq!(shown.state, "malformed");
    assert_eq!(shown.trouble.as_deref(), Some("it is no JSON"));
    assert!(!shown.connected);
    for _ in 0..20 {
        assert_eq!(who(&client).await, "a");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ipv6_works_like_ipv4() {
    let url = fresh_registry();
    let v6 = Node::start_at((Ipv6Addr::LOCALHOST, 0).into(), named("six").registry(&url).unwrap()).await;
    assert!(v6.addr.is_ipv6());
    let client = Client::connect(&url).await.unwrap();
    connected(&client, 1).await;
    assert_eq!(who(&client).await, "six");
    let direct = Client::connect(&format!("static:{}", v6.addr)).await.unwrap();
    connected(&direct, 1).await;
    assert_eq!(who(&direct).await, "six");
}

#[tokio::test]
async fn an_url_that_cannot_work_is_refused_at_once_and_says_why() {
    for (url, says) in [
        ("", "scheme"),
        ("nonsense", "scheme"),
        ("http://127.0.0.1:1", "unknown scheme `http`"),
        ("zk:", "//"),
        ("zk://", "host"),
        ("zk://h:x/ns", "port"),
        ("zk://h/a//b", "path"),
        ("zk://h/ns?session=soon", "session"),
        ("zk://h/ns?sesion=1s", "sesion"),
        ("static:localhost:1", "ip:port"),
        ("static:127.0.0.1", "ip:port"),
        ("mem:", "name"),
        ("mem:a?b=c", "b"),
    ] {
        let error = Client::connect(url).await.err().unwrap_or_else(|| panic!("{url} is taken"));
        assert!(matches!(error.kind(), ErrorKind::Config(_)), "{url}: {error:?}");
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_that_way_says_so() {
    let taken = Node::start(named("a")).await;
    let error = named("b").bind(taken.addr).await.err().unwrap();
    assert!(matches!(error.kind(), ErrorKind::Config(_)), "{error:?}");
    assert!(error.to_string().contains(&taken.addr.to_string()), "{error}");
    let everywhere = named("c").registry("zk://127.0.0.1:1/ns").unwrap().bind("0.0.0.0:0").await.err().unwrap();
    assert!(everywhere.to_string().contains("advertise"), "{everywhere}");
    assert!(named("d").registry("nonsense").is_err());
    let fixed = named("e").registry("static:127.0.0.1:1").unwrap().bind(any_port()).await.unwrap();
    let status = fixed.registration().unwrap().borrow().clone();
    assert!(matches!(status, RegistrationStatus::Refused { .. }), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_ensemble_fails_calls_at_their_deadline_and_says_which() {
    let (dead, _held) = cluster::dead_address();
    let url = format!("zk://{dead}/ns");
    let config = ClientConfig { call_timeout: Duration::from_millis(300), ..ClientConfig::default() };
    let client = Client::builder().config(config).connect(&url).await.unwrap();
    let began = Instant::now();
    let error = client.call::<_, String>("who", &()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::RegistryUnreachable { .. }), "{error:?}");
    assert!((300..3000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    let state = error.registry().unwrap();
    assert_eq!((state.url.as_str(), state.list_age_ms), (url.as_str(), None));
    let closing = Instant::now();
    client.close(Duration::from_secs(1)).await;
    assert!(closing.elapsed() < Duration::from_secs(4), "{:?}", closing.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_is_shown_with_its_age_and_the_state_of_each_connection() {
    let registry = Puppet::new();
    let node = Node::start(named("a")).await;
    let client = Client::builder().connect_to(registry.clone()).unwrap();
    assert_eq!(client.registry_state().list_age_ms, None);
    registry.list([entry(&node)]);
    connected(&client, 1).await;
    let began = Instant::now();
    sleep(Duration::from_millis(50)).await;
    let state = client.registry_state();
    assert_eq!((state.listed, state.usable), (1, 1));
    assert!(state.list_age_ms.is_some_and(|age| (50..10_000).contains(&age)), "{state:?}");
    let shown = &client.nodes()[0];
    assert_eq!((shown.node, shown.id.as_str(), shown.state.as_str()), (node.addr, node.incarnation.as_str(), "up"));
    assert_eq!((shown.connected, shown.connection), (true, ConnectionState::Connected));
    assert!(began.elapsed() < SOON);
}
