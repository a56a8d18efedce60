//! The `zk://` backend on a real ZooKeeper, in and out of trouble.

use std::any::Any;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rpc_core::registry::{
    self, Health, Lease, Member, Members, Registration, RegistrationStatus, Registry, UpdateError,
};
use rpc_core::{BoxFuture, NodeRecord, NodeState};
use rpc_tests::conformance::{Outside, Subject};
use rpc_tests::process::{Process, SOON};
use rpc_tests::zk::{SESSION, ZooKeeper};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use zookeeper_client::{Acls, Client, CreateMode};

rpc_tests::registry_conformance!(suite, super::subject);
rpc_tests::registry_outside_conformance!(outside_suite, super::subject);

/// What a registry needs at most to come back after the ensemble did: the crate's own attempts are
/// 3.2 s apart by then, ours 2 s.
const RECOVERY: Duration = Duration::from_secs(5);

async fn subject() -> Subject {
    let zk = Arc::new(ZooKeeper::standalone().await);
    let outside = Another { client: raw(&zk).await, _zk: zk.clone() };
    Subject { open: Box::new(move || open(&zk.url("ns"))), outside: Some(Box::new(outside)), patience: SOON }
}

/// Another program that uses the same ZooKeeper.
struct Another {
    client: Client,
    _zk: Arc<ZooKeeper>,
}

/// An entry that lives as long as this.
struct Planted {
    client: Client,
    path: String,
}

impl Outside for Another {
    fn plant(&self, name: &str, payload: &[u8]) -> BoxFuture<'_, Box<dyn Any + Send>> {
        let (path, payload) = (format!("/ns/{name}"), payload.to_vec());
        Box::pin(async move {
            let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
            self.client.create(&path, &payload, &ephemeral).await.unwrap();
            Box::new(Planted { client: self.client.clone(), path }) as Box<dyn Any + Send>
        })
    }

    fn erase(&self, name: &str) -> BoxFuture<'_, ()> {
        let path = format!("/ns/{name}");
        Box::pin(async move { self.client.delete(&path, None).await.unwrap() })
    }

    fn overwrite(&self, name: &str, payload: &[u8]) -> BoxFuture<'_, ()> {
        let (path, payload) = (format!("/ns/{name}"), payload.to_vec());
        Box::pin(async move {
            self.client.set_data(&path, &payload, None).await.unwrap();
        })
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        // The crate sends a request when it is made, whether or not anybody waits for the answer.
        drop(self.client.delete(&self.path, None));
    }
}

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

async fn member(registry: &dyn Registry, addr: SocketAddr, found: impl Fn(&Member) -> bool) -> Member {
    let mut members = registry.members();
    let seen = |members: &Arc<Members>| members.nodes.get(&addr).is_some_and(&found);
    wait_for("such a member", SOON, &mut members, seen).await.nodes[&addr].clone()
}

async fn live(registry: &dyn Registry, within: Duration) {
    wait_for("live registry", within, &mut registry.health(), Health::is_live).await;
}

async fn stale(registry: &dyn Registry) {
    wait_for("stale registry", SOON, &mut registry.health(), |h| matches!(h, Health::Stale { .. })).await;
}

async fn registered(registration: &Registration) {
    let is = |status: &RegistrationStatus| *status == RegistrationStatus::Registered;
    wait_for("registration", SOON, &mut registration.status(), is).await;
}

/// Starts the helper process.
fn registrant(arguments: &[&str]) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_registrant"));
    command.args(arguments);
    Process::start(command)
}

/// Waits until the client declares its session over, after 1.4 times the timeout.
async fn session_lost(registration: &Registration) {
    let lost = |status: &RegistrationStatus| matches!(status, RegistrationStatus::Pending { .. });
    wait_for("lost session", SESSION * 3, &mut registration.status(), lost).await;
}

/// Polls what has no watch.
async fn eventually<T>(what: &str, within: Duration, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + within;
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(Instant::now() < end, "no {what} within {within:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The owner and the payload of a znode, as another program sees them.
async fn znode(client: &Client, path: &str) -> Option<(i64, NodeRecord)> {
    let (data, stat) = client.get_data(path).await.ok()?;
    Some((stat.ephemeral_owner, NodeRecord::from_json(&data).unwrap()))
}

/// Whether the node was missing from any list that was published.
struct Presence(tokio::task::JoinHandle<()>);

impl Presence {
    /// Begins to look at every list.
    fn of(registry: &dyn Registry, addr: SocketAddr) -> Self {
        let mut members = registry.members();
        Self(tokio::spawn(async move {
            loop {
                let list = members.borrow_and_update().clone();
                if !list.nodes.contains_key(&addr) || members.changed().await.is_err() {
                    return;
                }
            }
        }))
    }

    fn assert_unbroken(&self) {
        assert!(!self.0.is_finished(), "the node was missing from a list");
        self.0.abort();
    }
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

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_within_the_session_timeout_changes_nothing() {
    let zk = ZooKeeper::standalone().await;
    let (server, watcher) = (open(&zk.url("ns")), open(&zk.url("ns")));
    let registration = server.register(addr(1), NodeRecord::new());
    let mut tries = 0;
    let (before, presence) = loop {
        let before = listed(&*watcher, &[addr(1)]).await.nodes[&addr(1)].clone();
        let presence = Presence::of(&*watcher, addr(1));
        let cut = Instant::now();
        zk.kill(0);
        stale(&*watcher).await;
        zk.start(0).await;
        live(&*watcher, RECOVERY).await;
        live(&*server, RECOVERY).await;
        let took = cut.elapsed();
        registered(&registration).await;
        let after = watcher.read(addr(1)).await.unwrap().unwrap();
        if took < SESSION / 2 {
            assert_eq!(after.version, before.version, "the entry was written or created anew");
            break (before, presence);
        }
        // On a busy machine ZooKeeper may be away for longer than this is about.
        tries += 1;
        assert!(tries < 10, "no restart took less than {:?}", SESSION / 2);
    };
    presence.assert_unbroken();

    // Watches must have survived the reconnect.
    let client = raw(&zk).await;
    client.set_data("/ns/127.0.0.1:1", &before.record.with_response_time(7).to_json(), None).await.unwrap();
    member(&*watcher, addr(1), |m| m.record.response_time_us == 7).await;
    let second = server.register(addr(2), NodeRecord::new());
    listed(&*watcher, &[addr(1), addr(2)]).await;
    assert!(second.withdraw(SOON).await);
    listed(&*watcher, &[addr(1)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_beyond_the_session_timeout_is_not_seen_in_the_list() {
    let zk = ZooKeeper::standalone().await;
    let (server, watcher) = (open(&zk.url("ns")), open(&zk.url("ns")));
    let record = NodeRecord::new();
    let registration = server.register(addr(1), record.clone());
    let before = listed(&*watcher, &[addr(1)]).await.nodes[&addr(1)].clone();
    let presence = Presence::of(&*watcher, addr(1));

    zk.kill(0);
    session_lost(&registration).await;
    zk.start(0).await;
    live(&*watcher, RECOVERY).await;
    registered(&registration).await;
    // Taken over from the dead session, so it stays when that expires.
    let after = member(&*watcher, addr(1), |m| m.version != before.version).await;
    assert_eq!(after.record.id, record.id);
    let client = raw(&zk).await;
    let (owner, _) = znode(&client, "/ns/127.0.0.1:1").await.unwrap();
    eventually("end of all dead sessions", SESSION * 3, async || (zk.sessions(0).await <= 3).then_some(())).await;
    assert_eq!(znode(&client, "/ns/127.0.0.1:1").await.unwrap().0, owner);
    presence.assert_unbroken();
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_register_again_after_all_data_was_lost() {
    let zk = ZooKeeper::standalone().await;
    let (server, watcher) = (open(&zk.url("ns")), open(&zk.url("ns")));
    let registration = server.register(addr(1), NodeRecord::new());
    let before = listed(&*watcher, &[addr(1)]).await.nodes[&addr(1)].version;
    zk.kill(0);
    zk.wipe(0);
    stale(&*watcher).await;
    zk.start(0).await;
    let back = Instant::now();
    member(&*watcher, addr(1), |m| m.version != before).await;
    assert!(back.elapsed() < RECOVERY, "it took {:?}", back.elapsed());
    registered(&registration).await;
    live(&*watcher, SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_server_is_noticed_and_survived() {
    let zk = ZooKeeper::standalone().await;
    let (server, watcher) = (open(&zk.url("ns")), open(&zk.url("ns")));
    let registration = server.register(addr(1), NodeRecord::new());
    let before = listed(&*watcher, &[addr(1)]).await.nodes[&addr(1)].version;
    let presence = Presence::of(&*watcher, addr(1));

    zk.pause(0);
    stale(&*watcher).await;
    assert!(matches!(watcher.read(addr(1)).await, Err(UpdateError::Unknown(_))));
    zk.resume(0);
    live(&*watcher, RECOVERY).await;
    registered(&registration).await;
    assert_eq!(watcher.read(addr(1)).await.unwrap().unwrap().version, before);

    zk.pause(0);
    session_lost(&registration).await;
    zk.resume(0);
    live(&*watcher, RECOVERY).await;
    registered(&registration).await;
    // It depends on what ZooKeeper does first when it wakes, expire or answer: the entry may have
    // been gone for a moment, but it is back.
    member(&*watcher, addr(1), |m| m.version != before).await;
    drop(presence);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_ensemble_is_reported_and_waited_for() {
    let zk = ZooKeeper::standalone().await;
    zk.kill(0);
    let registry = open(&zk.url("ns"));
    let registration = registry.register(addr(1), NodeRecord::new());
    let says_why =
        |health: &Health| health.trouble().is_some_and(|t| t.contains("refused") && t.contains(&zk.servers()));
    wait_for("reason", Duration::from_secs(2), &mut registry.health(), says_why).await;
    let says_why = |status: &RegistrationStatus| matches!(status, RegistrationStatus::Pending { trouble: Some(_) });
    wait_for("reason", SOON, &mut registration.status(), says_why).await;
    assert!(!registry.members().borrow().is_known());
    assert!(!registration.set_state(NodeState::Draining, Duration::from_millis(1)).await);
    // Closing does not wait for an ensemble that never was there.
    let other = open(&zk.url("ns"));
    let pending = other.register(addr(2), NodeRecord::new());
    let closed = timeout(Duration::from_secs(5), other.close(SOON)).await;
    assert!(closed.is_ok() && *other.health().borrow() == Health::Closed);
    assert_eq!(*pending.status().borrow(), RegistrationStatus::Withdrawn);

    zk.start(0).await;
    registered(&registration).await;
    let list = listed(&*registry, &[addr(1)]).await;
    // What was asked for meanwhile is not forgotten.
    assert_eq!(list.nodes[&addr(1)].record.state, NodeState::Draining);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_others_spoil_is_put_right() {
    let zk = ZooKeeper::standalone().await;
    let (server, watcher) = (open(&zk.url("ns")), open(&zk.url("ns")));
    let record = NodeRecord::new();
    let registration = server.register(addr(1), record.clone());
    registered(&registration).await;
    let client = raw(&zk).await;
    let path = "/ns/127.0.0.1:1";
    let (owner, _) = znode(&client, path).await.unwrap();
    let ours = async || znode(&client, path).await.filter(|(o, r)| *o == owner && r.id == record.id).map(drop);

    // Deleted.
    client.delete(path, None).await.unwrap();
    eventually("entry", SOON, ours).await;
    // Created anew by a tool, which owns it from then on.
    for mode in [CreateMode::Ephemeral, CreateMode::Persistent] {
        let mut tool = client.new_multi_writer();
        tool.add_delete(path, None).unwrap();
        tool.add_create(path, &record.to_json(), &mode.with_acls(Acls::anyone_all())).unwrap();
        tool.commit().await.unwrap();
        eventually("entry taken over", SOON, ours).await;
    }
    // Overwritten.
    for garbage in [NodeRecord::new().to_json(), b"garbage".to_vec()] {
        client.set_data(path, &garbage, None).await.unwrap();
        eventually("entry with our record", SOON, async || {
            let (data, _) = client.get_data(path).await.ok()?;
            (NodeRecord::from_json(&data).ok()?.id == record.id).then_some(())
        })
        .await;
    }
    // The whole namespace deleted.
    client.delete(path, None).await.unwrap();
    eventually("empty namespace or entry", SOON, async || {
        let _ = client.delete(path, None).await;
        client.delete("/ns", None).await.ok()
    })
    .await;
    eventually("entry", SOON, ours).await;
    listed(&*watcher, &[addr(1)]).await;
    registered(&registration).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_process_disappears_and_its_successor_takes_over_at_once() {
    let zk = ZooKeeper::standalone().await;
    let watcher = open(&zk.url("ns"));
    let one = registrant(&["node", &zk.url("ns"), "127.0.0.1:1"]);
    let two = registrant(&["node", &zk.url("ns"), "127.0.0.1:2"]);
    listed(&*watcher, &[addr(1), addr(2)]).await;
    let presence = Presence::of(&*watcher, addr(1));

    one.kill();
    two.kill();
    let died = Instant::now();
    let successor = open(&zk.url("ns"));
    let record = NodeRecord::new();
    let registration = successor.register(addr(1), record.clone());
    member(&*watcher, addr(1), |m| m.record.id == record.id).await;
    assert!(died.elapsed() < SESSION, "it waited for the dead session: {:?}", died.elapsed());

    listed(&*watcher, &[addr(1)]).await;
    assert!(died.elapsed() < SESSION * 2, "the dead node stayed for {:?}", died.elapsed());
    registered(&registration).await;
    presence.assert_unbroken();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_live_processes_with_one_address_are_told_so() {
    let zk = ZooKeeper::standalone().await;
    fight(&zk, open(&zk.url("ns")), open(&zk.url("ns"))).await;
    // Within one process they have the same session.
    let both = open(&zk.url("ns"));
    fight(&zk, both.clone(), both).await;
}

async fn fight(zk: &ZooKeeper, one: Arc<dyn Registry>, two: Arc<dyn Registry>) {
    let first = one.register(addr(1), NodeRecord::new());
    registered(&first).await;
    let second = two.register(addr(1), NodeRecord::new());
    let (mut of_first, mut of_second) = (first.status(), second.status());
    let conflict = |status: &RegistrationStatus| matches!(status, RegistrationStatus::Conflict { .. });
    let told = async {
        tokio::select! {
            status = wait_for("conflict", SOON, &mut of_first, conflict) => status,
            status = wait_for("conflict", SOON, &mut of_second, conflict) => status,
        }
    };
    let RegistrationStatus::Conflict { detail } = told.await else { unreachable!("that was waited for") };
    assert!(detail.contains("127.0.0.1:1"), "{detail}");
    // The fight is over: the entry has one owner, who is not disturbed.
    let writes = zk.transactions(0).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(zk.transactions(0).await <= writes + 1);
    // The other gets it as soon as it is free.
    let (loser, winner) = match &*of_first.borrow() {
        RegistrationStatus::Conflict { .. } => (first, second),
        _ => (second, first),
    };
    assert!(winner.withdraw(SOON).await);
    registered(&loser).await;
    assert!(loser.withdraw(SOON).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ensemble_that_loses_its_leader_keeps_sessions_and_lists() {
    let zk = ZooKeeper::ensemble().await;
    let (server, watcher) = (open(&zk.url("ns")), open(&zk.url("ns")));
    let registration = server.register(addr(1), NodeRecord::new());
    registered(&registration).await;
    listed(&*watcher, &[addr(1)]).await;
    let presence = Presence::of(&*watcher, addr(1));
    let created = znode(&raw(&zk).await, "/ns/127.0.0.1:1").await.unwrap();

    let leader = zk.leader().await;
    zk.kill(leader);
    eventually("update", SOON, async || {
        let seen = watcher.read(addr(1)).await.ok()??;
        watcher.update(addr(1), seen.version, seen.record.with_response_time(5)).await.ok()
    })
    .await;
    member(&*server, addr(1), |m| m.record.response_time_us == 5).await;
    registered(&registration).await;
    let second = server.register(addr(2), NodeRecord::new());
    listed(&*watcher, &[addr(1), addr(2)]).await;
    registered(&second).await;
    assert_eq!(znode(&raw(&zk).await, "/ns/127.0.0.1:1").await.unwrap().0, created.0, "the session was lost");
    presence.assert_unbroken();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ensemble_with_a_hung_leader_or_without_a_quorum_is_waited_for() {
    let zk = ZooKeeper::ensemble().await;
    let url = format!("zk://{}/ns?session=10s", zk.servers());
    let (server, watcher) = (open(&url), open(&url));
    let registration = server.register(addr(1), NodeRecord::new());
    registered(&registration).await;
    listed(&*watcher, &[addr(1)]).await;
    let presence = Presence::of(&*watcher, addr(1));
    let write = async |value| {
        eventually("update", SOON, async || {
            let seen = watcher.read(addr(1)).await.ok()??;
            watcher.update(addr(1), seen.version, seen.record.with_response_time(value)).await.ok()
        })
        .await;
    };

    let leader = zk.leader().await;
    zk.pause(leader);
    write(5).await;
    zk.resume(leader);
    eventually("third server", SOON, async || zk.ask(leader, "srvr").await.contains("Mode: ").then_some(())).await;

    zk.kill(0);
    zk.kill(1);
    stale(&*watcher).await;
    tokio::join!(zk.start(0), zk.start(1));
    live(&*watcher, RECOVERY).await;
    write(6).await;
    member(&*server, addr(1), |m| m.record.response_time_us == 6).await;
    registered(&registration).await;
    presence.assert_unbroken();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_nodes_register_at_once_in_a_namespace_that_does_not_exist() {
    let zk = ZooKeeper::standalone().await;
    let watcher = open(&zk.url("deep/down/here"));
    // Known and empty: a namespace that is missing is no error.
    listed(&*watcher, &[]).await;
    let servers: Vec<_> = (0..30).map(|_| open(&zk.url("deep/down/here"))).collect();
    let all: Vec<_> = (1..=60).map(addr).collect();
    let registrations: Vec<_> = all
        .iter()
        .zip(servers.iter().cycle())
        .map(|(addr, server)| server.register(*addr, NodeRecord::new()))
        .collect();
    listed(&*watcher, &all).await;
    for registration in &registrations {
        registered(registration).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_leaves_neither_entries_nor_sessions() {
    let zk = ZooKeeper::standalone().await;
    let client = raw(&zk).await;
    let registry = open(&zk.url("ns"));
    let registration = registry.register(addr(1), NodeRecord::new());
    let mut leadership = registry.coordination().unwrap().elect("job");
    let rival = open(&zk.url("ns"));
    let mut candidacy = rival.coordination().unwrap().elect("job");
    registered(&registration).await;
    let led = timeout(SOON, async {
        tokio::select! {
            lease = leadership.wait_for(Option::is_some) => lease.unwrap().clone(),
            lease = candidacy.wait_for(Option::is_some) => lease.unwrap().clone(),
        }
    });
    let lease = led.await.unwrap();
    let started = Instant::now();
    registry.close(SOON).await;
    rival.close(SOON).await;
    assert!(started.elapsed() < Duration::from_secs(5), "closing took {:?}", started.elapsed());
    assert_eq!(*registry.health().borrow(), Health::Closed);
    assert_eq!(client.list_children("/ns").await.unwrap(), [] as [&str; 0]);
    // A lease that somebody still holds keeps nothing open.
    eventually("end of the sessions", SOON, async || (zk.sessions(0).await == 1).then_some(())).await;
    assert_eq!(lease.unwrap().claim(1).await, Err(UpdateError::LeaseLost));

    // Dropping is closing, without the wait.
    let registry = open(&zk.url("ns"));
    let registration = registry.register(addr(2), NodeRecord::new());
    registered(&registration).await;
    drop(registry);
    eventually("end of the session", SOON, async || (zk.sessions(0).await == 1).then_some(())).await;
    assert_eq!(client.list_children("/ns").await.unwrap(), [] as [&str; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_version_never_matches_an_entry_that_was_created_anew() {
    let zk = ZooKeeper::standalone().await;
    let (server, watcher) = (open(&zk.url("ns")), open(&zk.url("ns")));
    let old = server.register(addr(1), NodeRecord::new());
    let seen = listed(&*watcher, &[addr(1)]).await.nodes[&addr(1)].clone();
    assert!(old.withdraw(SOON).await);
    let record = NodeRecord::new();
    let new = server.register(addr(1), record.clone());
    registered(&new).await;
    // To ZooKeeper both have the version 0.
    let outcome = watcher.update(addr(1), seen.version, seen.record.with_response_time(9)).await;
    assert_eq!(outcome, Err(UpdateError::Changed));
    let now = watcher.read(addr(1)).await.unwrap().unwrap();
    assert_eq!((now.record.id.as_str(), now.record.response_time_us), (record.id.as_str(), 0));

    let mut long = now.record.clone();
    long.meta.insert("x".into(), "y".repeat(70_000).into());
    assert!(matches!(watcher.update(addr(1), now.version, long).await, Err(UpdateError::Refused(_))));
    watcher.update(addr(1), now.version, now.record.with_response_time(9)).await.unwrap();
    assert!(new.set_state(NodeState::Draining, SOON).await);
    let drained = watcher.read(addr(1)).await.unwrap().unwrap().record;
    assert_eq!((drained.state, drained.response_time_us), (NodeState::Draining, 9));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_writes_is_read_at_a_bounded_rate() {
    let zk = ZooKeeper::standalone().await;
    let watcher = open(&zk.url("ns"));
    let client = raw(&zk).await;
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.mkdir("/ns/127.0.0.1:1", &persistent).await.unwrap();
    listed(&*watcher, &[addr(1)]).await;
    let mut members = watcher.members();
    let lists = tokio::spawn(async move {
        let mut count = 0;
        while timeout(Duration::from_secs(1), members.changed()).await.is_ok() {
            count += 1;
        }
        count
    });
    let started = Instant::now();
    let mut writes = 0u64;
    while started.elapsed() < Duration::from_secs(2) {
        writes += 1;
        let record = NodeRecord::new().with_response_time(writes);
        client.set_data("/ns/127.0.0.1:1", &record.to_json(), None).await.unwrap();
    }
    member(&*watcher, addr(1), |m| m.record.response_time_us == writes).await;
    let lists = lists.await.unwrap();
    assert!(lists <= 45, "{writes} writes within 2 s led to {lists} lists");
    assert!(lists >= 10, "{writes} writes within 2 s led to {lists} lists");
}

/// Who holds a lease at the moment.
fn leaders(candidates: &[Candidacy]) -> Vec<usize> {
    (0..candidates.len()).filter(|n| candidates[*n].borrow().is_some()).collect()
}

type Candidacy = watch::Receiver<Option<Arc<dyn Lease>>>;

async fn leading(candidacy: &mut Candidacy, within: Duration) -> Arc<dyn Lease> {
    let lease = timeout(within, candidacy.wait_for(Option::is_some)).await;
    lease.unwrap_or_else(|_| panic!("not leading within {within:?}")).unwrap().clone().unwrap()
}

async fn not_leading(candidacy: &mut Candidacy) {
    let left = timeout(SOON, candidacy.wait_for(Option::is_none)).await;
    drop(left.expect("the lease is withdrawn").unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_candidate_leads_when_the_leader_is_killed() {
    let zk = ZooKeeper::standalone().await;
    let leader = registrant(&["lead", &zk.url("ns")]);
    leader.stdout_line("leading 1", SOON).await;
    let registries = [open(&zk.url("ns")), open(&zk.url("ns"))];
    let mut candidates = registries.each_ref().map(|registry| registry.coordination().unwrap().elect("job"));
    leader.kill();
    let died = Instant::now();
    let next = eventually("leader", SOON, async || leaders(&candidates).first().copied()).await;
    assert!(died.elapsed() < SESSION * 2, "it took {:?}", died.elapsed());
    let lease = leading(&mut candidates[next], SOON).await;
    // What an earlier leader has claimed stays claimed.
    assert_eq!(lease.claim(1).await, Ok(false));
    assert_eq!(lease.claim(5).await, Ok(true));
    assert_eq!(lease.claim(5).await, Ok(false));
    assert_eq!(lease.claim(4).await, Ok(false));
    assert_eq!(leaders(&candidates), [next]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_withdrawn_when_it_is_in_doubt() {
    let zk = ZooKeeper::standalone().await;
    let (one, two) = (open(&zk.url("ns")), open(&zk.url("ns")));
    let mut first = one.coordination().unwrap().elect("job");
    let lease = leading(&mut first, SOON).await;
    let mut second = two.coordination().unwrap().elect("job");
    let client = raw(&zk).await;
    let locks = async || {
        let names = client.list_children("/ns.cluster/jobs/job").await.unwrap();
        let mut locks: Vec<_> = names.into_iter().filter(|name| name.starts_with("lock-")).collect();
        locks.sort();
        locks
    };
    eventually("second candidate", SOON, async || (locks().await.len() == 2).then_some(())).await;

    // Cut off for a moment: in doubt, then leading again with the same lock.
    let before = locks().await;
    zk.kill(0);
    not_leading(&mut first).await;
    assert!(matches!(lease.claim(1).await, Err(UpdateError::Unknown(_))));
    zk.start(0).await;
    let lease = leading(&mut first, RECOVERY).await;
    assert_eq!(locks().await[0], before[0]);
    assert!(second.borrow().is_none());

    // The lock is taken away: the old lease writes nothing any more.
    let registration = one.register(addr(1), NodeRecord::new());
    let seen = listed(&*one, &[addr(1)]).await.nodes[&addr(1)].clone();
    client.delete(&format!("/ns.cluster/jobs/job/{}", before[0]), None).await.unwrap();
    let outcome = lease.update(addr(1), seen.version, seen.record.with_response_time(1)).await;
    assert_eq!(outcome, Err(UpdateError::LeaseLost));
    assert_eq!(lease.claim(9).await, Err(UpdateError::LeaseLost));
    let lease = leading(&mut second, SOON).await;
    lease.update(addr(1), seen.version, seen.record.with_response_time(2)).await.unwrap();
    assert_eq!(lease.update(addr(1), seen.version, seen.record.clone()).await, Err(UpdateError::Changed));
    assert!(registration.withdraw(SOON).await);

    // Resigning makes room at once; both candidacies of one registry are the same.
    let again = two.coordination().unwrap().elect("job");
    assert!(again.borrow().is_some());
    drop(second);
    assert!(again.borrow().is_some());
    eventually("candidate", SOON, async || (locks().await.len() == 2).then_some(())).await;
    drop((again, lease));
    leading(&mut first, SESSION / 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_long_outage_there_is_one_leader_again() {
    let zk = ZooKeeper::standalone().await;
    let registries: Vec<_> = (0..3).map(|_| open(&zk.url("ns"))).collect();
    let mut candidates: Vec<_> = registries.iter().map(|r| r.coordination().unwrap().elect("job")).collect();
    let registrations: Vec<_> =
        registries.iter().zip(1..).map(|(r, n)| r.register(addr(n), NodeRecord::new())).collect();
    listed(&*registries[0], &[addr(1), addr(2), addr(3)]).await;
    let leader = eventually("leader", SOON, async || leaders(&candidates).first().copied()).await;
    let lease = leading(&mut candidates[leader], SOON).await;
    zk.pause(0);
    not_leading(&mut candidates[leader]).await;
    for registration in &registrations {
        session_lost(registration).await;
    }
    zk.resume(0);
    let next = eventually("leader", SESSION * 2, async || leaders(&candidates).first().copied()).await;
    let successor = leading(&mut candidates[next], SOON).await;
    assert_eq!(successor.claim(1).await, Ok(true));
    assert!(matches!(lease.claim(2).await, Err(UpdateError::LeaseLost)), "a lease of a dead session claims");
    assert_eq!(leaders(&candidates), [next]);
}
