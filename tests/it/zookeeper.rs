//! The `zk://` backend on a real ZooKeeper, in and out of trouble.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpc_core::NodeRecord;
use rpc_core::registry::{self, Members, Registration, RegistrationStatus, Registry};
use rpc_tests::zk::{SESSION, ZooKeeper};
use tokio::sync::watch;
use tokio::time::timeout;
use zookeeper_client::{Acls, Client, CreateMode};

/// Time for what takes milliseconds on an idle machine.
const SOON: Duration = Duration::from_secs(20);

fn open(url: &str) -> Arc<dyn Registry> {
    registry::open(&url.parse().unwrap()).unwrap()
}

fn addr(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

async fn raw(zk: &ZooKeeper) -> Client {
    Client::connector().with_session_timeout(SESSION).connect(&zk.servers()).await.unwrap()
}

/// Waits until the value of a watch satisfies `found`; says what it was otherwise.
async fn wait_for<T: Clone + std::fmt::Debug>(
    what: &str,
    within: Duration,
    watch: &mut watch::Receiver<T>,
    found: impl FnMut(&T) -> bool,
) -> T {
    let waited = timeout(within, watch.wait_for(found)).await.map(|value| value.unwrap().clone());
    waited.unwrap_or_else(|_| panic!("no {what} within {within:?}: {:?}", &*watch.borrow()))
}

/// Waits until the list holds exactly these nodes.
async fn listed(registry: &dyn Registry, addrs: &[SocketAddr]) -> Arc<Members> {
    let exactly = |members: &Arc<Members>| members.is_known() && members.nodes.keys().eq(addrs.iter());
    wait_for(&format!("list of {addrs:?}"), SOON, &mut registry.members(), exactly).await
}

async fn registered(registration: &Registration) {
    let is = |status: &RegistrationStatus| *status == RegistrationStatus::Registered;
    wait_for("registration", SOON, &mut registration.status(), is).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_program_sees_the_documented_znode() {
    let zk = ZooKeeper::standalone().await;
    let registry = open(&zk.url("shop/orders"));
    let record = NodeRecord::new();
    let registration = registry.register(addr(8898), record.clone());
    registered(&registration).await;

    let client = raw(&zk).await;
    let (data, stat) = client.get_data("/shop/orders/127.0.0.1:8898").await.unwrap();
    assert_ne!(stat.ephemeral_owner, 0, "it is not ephemeral");
    let json: serde_json::Value = serde_json::from_slice(&data).unwrap();
    assert_eq!(json["v"], 1);
    assert_eq!(json["id"], record.id);
    assert_eq!(json["response_time_us"], 0);
    assert_eq!(json["weight"], 100);
    assert_eq!(json["state"], "up");
    assert!(json["started_ms"].is_u64());
    assert_eq!(client.list_children("/shop/orders").await.unwrap(), ["127.0.0.1:8898"]);

    assert!(registration.withdraw(SOON).await);
    assert_eq!(client.list_children("/shop/orders").await.unwrap(), [] as [&str; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_put_into_the_namespace_is_shown_as_it_is() {
    let zk = ZooKeeper::standalone().await;
    let client = raw(&zk).await;
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.mkdir("/ns", &persistent).await.unwrap();
    client.create("/ns/readme", b"", &persistent).await.unwrap();
    client.create("/ns/[::1]:2", b"{", &persistent).await.unwrap();
    client.create("/ns/127.0.0.1:1", br#"{"response_time_us":-1,"zone":"a"}"#, &persistent).await.unwrap();

    let registry = open(&zk.url("ns"));
    let v6: SocketAddr = "[::1]:2".parse().unwrap();
    let list = listed(&*registry, &[addr(1), v6]).await;
    assert_eq!(list.misnamed, ["readme"]);
    assert!(list.nodes[&v6].malformed.is_some());
    assert_eq!(list.nodes[&addr(1)].malformed, None);
    assert_eq!(list.nodes[&addr(1)].record.response_time_us, 0);

    let seen = &list.nodes[&addr(1)];
    registry.update(addr(1), seen.version, seen.record.with_response_time(9)).await.unwrap();
    let (data, _) = client.get_data("/ns/127.0.0.1:1").await.unwrap();
    let json: serde_json::Value = serde_json::from_slice(&data).unwrap();
    assert_eq!((&json["response_time_us"], &json["zone"]), (&9.into(), &"a".into()));
}
