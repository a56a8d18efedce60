//! A ZooKeeper whose entries belong to those who have the credentials.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rpc_core::NodeRecord;
use rpc_core::registry::{self, Member, RegistrationStatus, Registry, UpdateError};
use rpc_tests::binaries;
use rpc_tests::process::{Exit, Process, SOON};
use rpc_tests::zk::{SESSION, ZooKeeper};
use tokio::time::timeout;
use zookeeper_client::{Acls, Client, CreateMode, Error};

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
