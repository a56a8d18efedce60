//! A ZooKeeper whose entries belong to those who have the credentials.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rpc_client::CallOptions;
use rpc_core::NodeRecord;
use rpc_core::registry::{self, Member, RegistrationStatus, Registry, UpdateError};
use rpc_tests::binaries;
use rpc_tests::process::{Exit, Process, SOON};
use rpc_tests::zk::{SESSION, ZooKeeper};
use serde_json::Value;
use tokio::time::{Instant, timeout};
use zookeeper_client::{Acl, Acls, Client, CreateMode, Error, Permission};

const AUTH: &str = "orders:correct horse battery staple";

fn secret(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn open(zk: &ZooKeeper, auth: Option<&Path>) -> Arc<dyn Registry> {
    let option = auth.map(|path| format!("&auth_file={}", path.display())).unwrap_or_default();
    registry::open(&format!("{}{option}", zk.url("shop/orders")).parse().unwrap()).unwrap()
}

fn addr(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// What `registry` reads of the node, once it lists it.
async fn listed(registry: &dyn Registry, addr: SocketAddr) -> Member {
    let mut members = registry.members();
    let members = timeout(SOON, members.wait_for(|members| members.nodes.contains_key(&addr))).await;
    members.expect("listed in time").unwrap().nodes[&addr].clone()
}

#[tokio::test]
async fn with_credentials_others_may_look_and_not_touch() {
    let dir = tempfile::tempdir().unwrap();
    let zk = ZooKeeper::standalone().await;
    let auth = secret(dir.path(), "auth", &format!("{AUTH}\n"));
    let owner = open(&zk, Some(&auth));
    let registration = owner.register(addr(1), NodeRecord::new());
    let mut status = registration.status();
    let registered = status.wait_for(|status| matches!(status, RegistrationStatus::Registered));
    timeout(SOON, registered).await.expect("registered in time").unwrap();
    // Another client with the same credentials writes response times and may lead.
    let friend = open(&zk, Some(&auth));
    let member = listed(&*friend, addr(1)).await;
    friend.update(addr(1), member.version, member.record.with_response_time(7)).await.unwrap();
    let mut candidacy = friend.coordination().unwrap().elect("job");
    let lease = timeout(SOON, candidacy.wait_for(Option::is_some)).await.expect("it leads in time");
    let lease = lease.unwrap().clone().unwrap();
    assert!(lease.claim(1).await.unwrap());
    // Others see the same, and change nothing.
    let stranger = open(&zk, None);
    let member = listed(&*stranger, addr(1)).await;
    let refused = stranger.update(addr(1), member.version, member.record.clone()).await.unwrap_err();
    assert!(matches!(&refused, UpdateError::Refused(reason) if reason.contains("RPC_ZK_AUTH")), "{refused:?}");
    let raw = Client::connector().with_session_timeout(SESSION).connect(&zk.servers()).await.unwrap();
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    for path in ["/shop/orders/127.0.0.1:2", "/shop/orders.cluster/x", "/shop/x"] {
        assert_eq!(raw.create(path, b"", &ephemeral).await.unwrap_err(), Error::NoAuth, "{path}");
    }
    for path in ["/shop/orders/127.0.0.1:1", "/shop/orders"] {
        assert_eq!(raw.set_data(path, b"", None).await.unwrap_err(), Error::NoAuth, "{path}");
        assert_eq!(raw.delete(path, None).await.unwrap_err(), Error::NoAuth, "{path}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_reported_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let zk = ZooKeeper::standalone().await;
    let owner = open(&zk, Some(&secret(dir.path(), "auth", AUTH)));
    let _first = owner.register(addr(1), NodeRecord::new());
    listed(&*owner, addr(1)).await;
    let wrong = open(&zk, Some(&secret(dir.path(), "wrong", "orders:wrong horse")));
    let registration = wrong.register(addr(2), NodeRecord::new());
    let mut status = registration.status();
    let told = |status: &RegistrationStatus| matches!(status, RegistrationStatus::Pending { trouble: Some(trouble) } if trouble.contains("RPC_ZK_AUTH"));
    timeout(SOON, status.wait_for(told)).await.expect("told in time").unwrap();
    assert!(!format!("{status:?}").contains("horse"));
}

/// A client of ZooKeeper itself that owns what it creates.
async fn owner(zk: &ZooKeeper) -> Client {
    let connector = Client::connector().with_session_timeout(SESSION).with_auth("digest", AUTH.as_bytes());
    connector.connect(&zk.servers()).await.unwrap()
}

/// What the server has received from all its clients.
async fn packets(zk: &ZooKeeper) -> u64 {
    zk.monitor(0).await["zk_packets_received"].parse().unwrap()
}

#[tokio::test]
async fn a_client_that_may_not_read_the_list_says_so_and_asks_seldom() {
    let dir = tempfile::tempdir().unwrap();
    let zk = ZooKeeper::standalone().await;
    let owner = owner(&zk).await;
    owner.create("/hidden", b"", &CreateMode::Persistent.with_acls(Acls::creator_all())).await.unwrap();
    let wrong = secret(dir.path(), "wrong", "orders:wrong horse");
    let url = format!("{}&auth_file={}", zk.url("hidden"), wrong.display());
    let client = rpc_client::Client::connect(&url).await.unwrap();
    let time = Duration::from_secs(4);
    for _ in 0..2 {
        let (before, started) = (packets(&zk).await, Instant::now());
        let error = client.call_with::<_, Value>("any", &(), &CallOptions::new().timeout(time)).await.unwrap_err();
        assert!(started.elapsed() < time * 2, "{:?}", started.elapsed());
        assert_eq!(error.name(), "registry_unreachable", "{error:?}");
        assert!(format!("{error:?}").contains("ZooKeeper refuses: these credentials may not"), "{error:?}");
        assert!(error.hint().contains("auth_file") && !format!("{error:?}").contains("horse"), "{error:?}");
        // Two looks, two questions of ours, and the signs of life of two sessions.
        let asked = packets(&zk).await - before;
        assert!(asked <= 24, "{asked} requests while one call waited");
    }
    let text = crate::cli::client(&["call", "any", "--timeout", "1s", "--registry", &url]).await.ended_with(4).stderr;
    assert!(text.lines().last().unwrap().contains("RPC_ZK_AUTH"), "{text}");
    let doctor = ["doctor", "--timeout", "1s", "--registry", &url];
    let text = crate::cli::client(&doctor).await.ended_with(1).stdout;
    assert!(text.contains("-> export RPC_ZK_AUTH=user:password") && text.contains("/hidden"), "{text}");
    // Once it may, it does.
    owner.set_acl("/hidden", &[Acl::new_const(Permission::ALL, "world", "anyone")], None).await.unwrap();
    assert!(client.ready(SOON).await, "{:?}", client.registry_state());
}

#[tokio::test]
async fn an_entry_that_may_not_be_read_hides_no_other() {
    let zk = ZooKeeper::standalone().await;
    let registry = open(&zk, None);
    let _registration = registry.register(addr(1), NodeRecord::new());
    listed(&*registry, addr(1)).await;
    let hidden = CreateMode::Persistent.with_acls(Acls::creator_all());
    let owner = owner(&zk).await;
    owner.create("/shop/orders/127.0.0.1:2", b"{}", &hidden).await.unwrap();
    // For those that were there before, and for those that come.
    for registry in [registry.clone(), open(&zk, None)] {
        assert_eq!(listed(&*registry, addr(1)).await.malformed, None);
        let hidden = listed(&*registry, addr(2)).await;
        assert!(hidden.malformed.as_ref().is_some_and(|why| why.contains("RPC_ZK_AUTH")), "{hidden:?}");
        assert!(registry.health().borrow().is_live());
    }
    owner.delete("/shop/orders/127.0.0.1:2", None).await.unwrap();
    let mut members = registry.members();
    let gone = members.wait_for(|members| !members.nodes.contains_key(&addr(2)));
    timeout(SOON, gone).await.expect("noticed in time").unwrap();
}

#[tokio::test]
async fn a_hidden_entry_of_somebody_else_keeps_nobody_from_leading() {
    let zk = ZooKeeper::standalone().await;
    let owner = owner(&zk).await;
    let open_to_all = CreateMode::Persistent.with_acls(Acls::anyone_all());
    owner.mkdir("/shop/orders.cluster/jobs/job", &open_to_all).await.unwrap();
    // One that stands behind all others.
    let hidden = CreateMode::Persistent.with_acls(Acls::creator_all());
    owner.create("/shop/orders.cluster/jobs/job/lock-2147483647", b"", &hidden).await.unwrap();
    let registry = open(&zk, None);
    let mut candidacy = registry.coordination().unwrap().elect("job");
    timeout(SOON, candidacy.wait_for(Option::is_some)).await.expect("it leads in time").unwrap();
}

#[test]
fn credentials_that_are_none_are_refused_without_being_shown() {
    let dir = tempfile::tempdir().unwrap();
    for text in ["", "horse", ":horse", "horse:"] {
        let path = secret(dir.path(), "auth", text);
        let url = format!("zk://127.0.0.1:1/x?auth_file={}", path.display());
        let Err(error) = registry::open(&url.parse().unwrap()) else { panic!("{text} is taken") };
        let error = error.to_string();
        assert!(error.contains("user:password") && !error.contains("horse"), "{error}");
    }
}

/// Runs a server and a call with credentials, after which `path` belongs to these. Returns all that the
/// commands have shown, with everything logged.
pub(crate) async fn shown_by_commands(zk: &ZooKeeper, url: &str, path: &str) -> String {
    let start = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(binaries::path(name));
        command.args(arguments).args(["--registry", url]).env("RPC_ZK_AUTH", AUTH).env("RUST_LOG", "trace");
        Process::start(command)
    };
    let server = start("rpc-server", &["--port", "0"]);
    server.stdout_line("serving ", SOON).await;
    let client = start("rpc-client", &["call", "echo", "[1]"]).finished(SOON).await;
    assert_eq!(client.exit, Some(Exit::Code(0)), "{client:?}");
    let raw = Client::connector().with_session_timeout(SESSION).connect(&zk.servers()).await.unwrap();
    assert_eq!(raw.set_data(path, b"", None).await.unwrap_err(), Error::NoAuth);
    server.terminate();
    let server = server.finished(SOON).await;
    let shown = [client.stdout, client.stderr, server.stdout, server.stderr].concat().join("\n");
    assert!(shown.contains("session"), "the log says something");
    shown
}

#[tokio::test]
async fn the_commands_take_credentials_from_the_environment_and_show_them_nowhere() {
    let zk = ZooKeeper::standalone().await;
    let shown = shown_by_commands(&zk, &zk.url("rpc"), "/rpc").await;
    assert!(!shown.contains("horse"), "{shown}");
    // As bytes, in the way that a packet would be shown.
    assert!(!shown.contains("104, 111, 114, 115, 101"), "{shown}");
}
