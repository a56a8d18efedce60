//! A ZooKeeper that is spoken to in TLS.

use std::path::Path;
use std::sync::Arc;

use rpc_core::NodeRecord;
use rpc_core::registry::{self, Health, RegistrationStatus, Registry};
use rpc_tests::binaries;
use rpc_tests::certificates::{Authority, Issued};
use rpc_tests::process::{Exit, SOON};
use rpc_tests::zk::{Tls, ZooKeeper};
use tokio::time::timeout;

use crate::zookeeper_auth::shown_by_commands;

fn open(url: &str) -> Arc<dyn Registry> {
    registry::open(&url.parse().unwrap()).unwrap()
}

/// Waits until `registry` says that it has no session for this reason.
///
/// # Errors
/// What it says instead.
async fn says(registry: &dyn Registry, reason: &str) -> Result<(), Option<String>> {
    let mut health = registry.health();
    let told = |health: &Health| health.trouble().is_some_and(|trouble| trouble.contains(reason));
    let told = timeout(SOON, health.wait_for(told)).await.map(|told| drop(told.unwrap()));
    told.map_err(|_| registry.health().borrow().trouble().map(str::to_owned))
}

/// Registers a node and waits until it is there.
async fn register(registry: &dyn Registry) -> registry::Registration {
    let registration = registry.register(([127, 0, 0, 1], 1).into(), NodeRecord::new());
    let mut status = registration.status();
    let registered = status.wait_for(|status| matches!(status, RegistrationStatus::Registered));
    timeout(SOON, registered).await.expect("registered in time").unwrap();
    registration
}

#[tokio::test]
async fn the_commands_meet_through_tls_with_certificates_and_credentials_and_show_neither() {
    let authority = Authority::new();
    let zk = ZooKeeper::with_tls(3, Tls { authority: &authority, wants_certificate: true }).await;
    let own = authority.issue("node", &["node.shop.internal"]);
    let url = zk.tls_url("shop/orders", &authority, Some(&own));
    let shown = shown_by_commands(&zk, &url, "/shop/orders").await;
    let key = std::fs::read_to_string(&own.key).unwrap();
    let key = key.lines().nth(1).expect("PEM text has a second line");
    assert!(!shown.contains("horse") && !shown.contains(key), "{shown}");
}

#[tokio::test]
async fn a_refusal_says_what_to_change() {
    let (authority, other) = (Authority::new(), Authority::new());
    let zk = ZooKeeper::with_tls(1, Tls { authority: &authority, wants_certificate: true }).await;
    let own = authority.issue("client", &["client.shop.internal"]);
    let foreign = other.issue("client", &["client.shop.internal"]);
    let good = zk.tls_url("ns", &authority, Some(&own));
    let cases = [
        ("wrong authority", zk.tls_url("ns", &other, Some(&own)), "none of the authorities in `ca_file`"),
        ("no certificate", zk.tls_url("ns", &authority, None), "`cert_file` and `key_file`"),
        ("foreign certificate", zk.tls_url("ns", &authority, Some(&foreign)), "does not believe"),
        ("another name", good.replace("127.0.0.1", "localhost"), "for other names"),
        ("plaintext", format!("zk://{}/ns", zk.tls_servers()), "begins zk+tls://"),
        ("port without TLS", good.replace(&zk.tls_servers(), &zk.servers()), "is that the port of its TLS?"),
    ];
    for (what, url, reason) in &cases {
        let registry = open(url);
        let told = says(&*registry, reason).await;
        assert!(told.is_ok(), "{what}: {told:?}");
        assert!(!registry.health().borrow().is_live(), "{what}");
    }
    // The commands say the same.
    let ran = binaries::start("rpc-client", ["nodes", "--registry", &cases[0].1]).finished(SOON).await;
    assert_eq!(ran.exit, Some(Exit::Code(4)), "{ran:?}");
    assert!(ran.stderr.join("\n").contains(cases[0].2), "{ran:?}");
}

#[tokio::test]
async fn certificates_may_be_replaced_and_need_not_be_asked_for() {
    let authority = Authority::new();
    let zk = ZooKeeper::with_tls(1, Tls { authority: &authority, wants_certificate: false }).await;
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    std::fs::copy(Authority::new().file(), &ca).unwrap();
    let url = zk.tls_url("ns", &authority, None);
    let registry = open(&url.replace(&authority.file().display().to_string(), &ca.display().to_string()));
    says(&*registry, "`ca_file`").await.expect("the wrong authority is told");
    let replace = |authority: &Authority| {
        // As programs replace files: at once.
        let next = dir.path().join("next.pem");
        std::fs::copy(authority.file(), &next).unwrap();
        std::fs::rename(&next, &ca).unwrap();
    };
    replace(&authority);
    let _registration = register(&*registry).await;
    // The servers get certificates of another authority while the client is connected.
    let mut health = registry.health();
    let successor = Authority::new();
    replace(&successor);
    zk.kill(0);
    timeout(SOON, health.wait_for(|health| !health.is_live())).await.expect("noticed in time").unwrap();
    zk.certify(0, &successor);
    zk.start(0).await;
    timeout(SOON, health.wait_for(Health::is_live)).await.expect("connected in time").unwrap();
}

#[tokio::test]
async fn files_and_options_that_cannot_work_are_refused_by_name() {
    let authority = Authority::new();
    let (own, second) = (authority.issue("own", &["a"]), authority.issue("second", &["b"]));
    let dir = authority.directory();
    let ca = authority.file();
    let nonsense = dir.join("store.p12");
    std::fs::write(&nonsense, [0x30, 0x82, 0xff]).unwrap();
    let url = |host: &str, ca: &Path, own: &Issued| {
        let [ca, cert, key] = [ca, &own.cert, &own.key].map(|path| path.display().to_string());
        format!("zk+tls://{host}/ns?ca_file={ca}&cert_file={cert}&key_file={key}")
    };
    let with = |cert: &Path, key: &Path| Issued { cert: cert.to_owned(), key: key.to_owned() };
    let missing = dir.join("missing.pem");
    for (url, reasons) in [
        (url("h:1", &missing, &own), ["`ca_file`", "cannot read", "missing.pem"]),
        (url("h:1", &nonsense, &own), ["`ca_file`", "store.p12", "no Java store"]),
        (url("h:1", &own.key, &own), ["`ca_file`", "own.key", "certificate"]),
        (url("h:1", &ca, &with(&missing, &own.key)), ["`cert_file`", "cannot read", "missing.pem"]),
        (url("h:1", &ca, &with(&own.key, &own.key)), ["`cert_file`", "own.key", "no certificate"]),
        (url("h:1", &ca, &with(&own.cert, &own.cert)), ["`key_file`", "own.pem", "no private key"]),
        (url("h:1", &ca, &with(&own.cert, &second.key)), ["`key_file`", "second.key", "KeyMismatch"]),
        (url("h ost:1", &ca, &own), ["h ost", "no host", "zk+tls"]),
        (url("h%6fst:1", &ca, &own), ["`h%6fst`", "no certificate can be for it", "DNS"]),
        ("zk+tls://h:1/ns".into(), ["`ca_file`", "PEM", "authorities"]),
        (format!("zk+tls://h:1?ca_file={}&cert_file=x", ca.display()), ["`cert_file`", "`key_file`", "together"]),
        (format!("zk+tls://h?ca_file={}", ca.display()), ["`h`", "needs a port", "secureClientPort"]),
    ] {
        let error = match url.parse() {
            Ok(url) => registry::open(&url).err().unwrap_or_else(|| panic!("{url} is taken")),
            Err(error) => error,
        };
        let error = error.to_string();
        assert!(reasons.iter().all(|reason| error.contains(reason)), "{url}: {error}");
    }
    open(&url("h:1", &ca, &own));
}
