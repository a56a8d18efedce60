//! `rpc-client doctor`, on real processes with real trouble.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use rpc_core::NodeRecord;
use rpc_tests::certificates::Authority;
use rpc_tests::cluster::{any_port, dead_address};
use rpc_tests::process::SOON;
use rpc_tests::zk::{SESSION, ZooKeeper};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::cli::{Ran, client, registry, serve, start};

/// What the doctor finds, as JSON; and how it ends.
async fn doctor(url: &str, code: i32) -> Vec<Value> {
    let arguments = ["doctor", "--registry", url, "--format", "json", "--timeout", "3s"];
    let report = client(&arguments).await.ended_with(code).json();
    assert_eq!(report["healthy"], json!(code == 0), "{report}");
    let findings = report["findings"].as_array().unwrap().clone();
    for finding in &findings {
        let is_ok = finding["level"] == "ok";
        for member in ["consequence", "mend"] {
            assert_eq!(
                finding[member].is_null(),
                is_ok,
                "what is not ok says what follows and what mends it: {finding}"
            );
        }
        assert!(!finding["fact"].as_str().unwrap().is_empty(), "{finding}");
    }
    findings
}

/// The one finding of this check about this.
#[track_caller]
fn found<'a>(findings: &'a [Value], check: &str, about: &str) -> &'a Value {
    let wanted = |finding: &&Value| finding["check"] == check && finding["about"].as_str().unwrap().contains(about);
    let found: Vec<&Value> = findings.iter().filter(wanted).collect();
    assert_eq!(found.len(), 1, "{check} about {about}: {findings:#?}");
    found[0]
}

/// A program of another protocol, that says so.
async fn other_program() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind(any_port()).await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"SSH-2.0-something\r\n").await;
        }
    });
    addr
}

#[tokio::test]
async fn a_healthy_registry_has_no_problems() {
    let (_dir, url) = registry();
    let (_server, addr) = serve(&[], &url).await;
    let findings = doctor(&url, 0).await;
    assert!(findings.iter().all(|finding| finding["level"] != "problem"), "{findings:#?}");
    assert!(found(&findings, "node", &addr)["fact"].as_str().unwrap().contains("the listed node answers"));
    assert!(found(&findings, "registry", "local:")["fact"].as_str().unwrap().contains("1 node listed"));
    found(&findings, "latency", "local:");
    found(&findings, "open_files", "limits");
    let text = client(&["doctor", "--registry", &url]).await.ended_with(0);
    assert_eq!(text.stdout.lines().count(), findings.len(), "one line each:\n{}", text.stdout);
}

#[tokio::test]
async fn an_empty_registry_and_a_hanging_server_are_found() {
    let (_dir, url) = registry();
    let findings = doctor(&url, 1).await;
    assert!(found(&findings, "nodes", "local:")["mend"].as_str().unwrap().starts_with("rpc-server "));
    let (server, addr) = serve(&[], &url).await;
    server.pause();
    let findings = doctor(&url, 1).await;
    assert!(found(&findings, "silent", &addr)["mend"].as_str().unwrap().contains("ss -ltnp"));
    server.resume();
    doctor(&url, 0).await;
}

#[tokio::test]
async fn a_url_that_cannot_work_is_a_finding_and_says_where_it_came_from() {
    for url in ["mem:x", "static:", "static:localhost:80", "http://x"] {
        let findings = doctor(url, 1).await;
        assert!(findings.iter().any(|f| f["check"] == "url" && f["level"] == "problem"), "{url}: {findings:#?}");
    }
    let mut command = crate::cli::command("rpc-client", &["doctor", "--registry", "static:127.0.0.1:1"]);
    command.env("RPC_REGISTRY", "local:/elsewhere");
    let text = crate::cli::finish(&rpc_tests::process::Process::start(command)).await;
    assert!(text.stdout.contains("RPC_REGISTRY is local:/elsewhere"), "{}", text.stdout);
}

#[tokio::test]
async fn each_listed_node_is_compared_with_what_answers_there() {
    let zookeeper = ZooKeeper::standalone().await;
    let url = zookeeper.url("ns");
    let (_healthy, addr) = serve(&[], &url).await;
    let unregistered = start("rpc-server", &["--port", "0", "--registry", "none"]);
    let line = unregistered.stdout_line("serving ", SOON).await;
    let another: SocketAddr = line.strip_prefix("serving ").unwrap().parse().unwrap();
    let ((dead, _held), program) = (dead_address(), other_program().await);
    let broken = dead_address();
    let tool = Client::connector().with_session_timeout(SESSION).connect(&zookeeper.servers()).await.unwrap();
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let payload = |id: &str| NodeRecord { id: id.to_owned(), ..NodeRecord::new() }.to_json();
    for (name, payload) in [
        (another.to_string(), payload("gone")),
        (dead.to_string(), payload("twice")),
        (program.to_string(), payload("twice")),
        (broken.0.to_string(), b"{\"weight\":".to_vec()),
        ("0.0.0.0:80".into(), payload("nowhere")),
        ("read\u{202e}me".into(), Vec::new()),
    ] {
        tool.create(&format!("/ns/{name}"), &payload, &persistent).await.unwrap();
    }
    let findings = doctor(&url, 1).await;
    let level = |check: &str, about: &str| found(&findings, check, about)["level"].clone();
    assert_eq!(level("node", &addr), "ok");
    assert_eq!(level("incarnation", &another.to_string()), "problem");
    assert_eq!(level("connect", &dead.to_string()), "problem");
    assert_eq!(level("program", &program.to_string()), "problem");
    assert_eq!(level("entry", &broken.0.to_string()), "problem");
    assert_eq!(level("address", "0.0.0.0:80"), "problem");
    assert_eq!(level("entry", "read"), "warning");
    let duplicate = findings.iter().find(|f| f["check"] == "duplicate").expect("one instance is listed twice");
    assert!(duplicate["fact"].as_str().unwrap().contains(&dead.to_string()), "{duplicate}");
    let text = client(&["doctor", "--registry", &url]).await.ended_with(1);
    assert!(!text.stdout.contains('\u{202e}'), "{}", text.stdout);
    assert!(text.stdout.contains(&format!("delete /ns/{another}")), "{}", text.stdout);

    zookeeper.kill(0);
    let findings = doctor(&url, 1).await;
    let down = found(&findings, "registry", "zk://");
    assert!(down["fact"].as_str().unwrap().contains("no list of nodes"), "{down}");
    assert!(down["mend"].as_str().unwrap().contains("echo srvr | nc 127.0.0.1"), "{down}");
}

#[expect(clippy::disallowed_methods, reason = "certificates end by the wall clock")]
fn today() -> SystemTime {
    SystemTime::now()
}

#[tokio::test]
async fn certificates_that_end_or_are_not_believed_are_told_with_what_mends_it() {
    let (authority, other) = (Authority::new(), Authority::new());
    let days = |days: u64| Some(today() + Duration::from_secs(days * 86_400 + 3_600));
    let long_ago = Some(today() - Duration::from_secs(3 * 86_400 + 3_600));
    let ca = authority.file();
    for (issued, check, level, fact, mend) in [
        (authority.issue("valid", &["127.0.0.1"]), "expiry", "ok", "is valid for", None),
        (
            authority.issue_until("ending", &["127.0.0.1"], days(5)),
            "expiry",
            "warning",
            "in 5 days",
            Some("no restart"),
        ),
        (
            authority.issue_until("expired", &["127.0.0.1"], long_ago),
            "certificate",
            "problem",
            "expired",
            Some("--tls-cert"),
        ),
        (
            authority.issue("misnamed", &["a.test"]),
            "certificate",
            "problem",
            "but for a.test",
            Some("--tls-name a.test"),
        ),
        (other.issue("node", &["127.0.0.1"]), "certificate", "problem", "by none of", Some("--tls-ca")),
    ] {
        let (_dir, url) = registry();
        let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
        let (cert, key) = (path(&issued.cert), path(&issued.key));
        let (_server, addr) = serve(&["--tls-cert", &cert, "--tls-key", &key], &url).await;
        let ca = path(&ca);
        let arguments =
            ["doctor", "--registry", &url, "--format", "json", "--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
        let ran = client(&arguments).await.ended_with(i32::from(level == "problem")).json();
        let findings = ran["findings"].as_array().unwrap();
        let finding = found(findings, check, &addr);
        assert_eq!(finding["level"], level, "{finding}");
        assert!(finding["fact"].as_str().unwrap().contains(fact), "{finding}");
        assert_eq!(finding["mend"].is_string(), mend.is_some(), "{finding}");
        assert!(mend.is_none_or(|mend| finding["mend"].as_str().unwrap().contains(mend)), "{finding}");
        assert_eq!(found(findings, "expiry", "--tls-ca")["level"], "ok");
        found(findings, "expiry", "--tls-cert");
    }
}

#[tokio::test]
async fn a_server_that_refuses_the_clients_certificate_is_told_with_what_mends_it() {
    let (authority, other) = (Authority::new(), Authority::new());
    let long_ago = Some(today() - Duration::from_secs(3 * 86_400));
    let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let (node, ca) = (authority.issue("node", &["127.0.0.1"]), path(&authority.file()));
    let (_dir, url) = registry();
    let (cert, key) = (path(&node.cert), path(&node.key));
    let (_server, addr) = serve(&["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca], &url).await;
    let doctor = ["doctor", "--registry", &url, "--format", "json", "--tls-ca", &ca];
    for (own, fact, mend) in [
        (None, "got none", "give --tls-cert and --tls-key"),
        (Some(other.issue("client", &["a.test"])), "alert DecryptError", "openssl x509 -noout -issuer -enddate -in "),
        (Some(authority.issue_until("expired", &["a.test"], long_ago)), "CertificateExpired", "openssl x509 -noout"),
    ] {
        let own = own.map(|own| [path(&own.cert), path(&own.key)]);
        let own: Vec<&str> = own.iter().flat_map(|[cert, key]| ["--tls-cert", cert, "--tls-key", key]).collect();
        let ran = client(&[&doctor[..], &own].concat()).await.ended_with(1).json();
        let finding = found(ran["findings"].as_array().unwrap(), "credentials", &addr);
        assert_eq!(finding["level"], "problem", "{finding}");
        assert!(finding["fact"].as_str().unwrap().contains(fact), "{finding}");
        let said = finding["mend"].as_str().unwrap();
        assert!(said.starts_with(mend), "{finding}");
        assert!(own.is_empty() || said.contains(own[1]), "it names the file: {finding}");
    }
}

#[tokio::test]
async fn names_and_messages_of_servers_cannot_command_the_terminal() {
    let (_dir, url) = registry();
    let (_server, _) = serve(&["--name", "evil\x1b[2J"], &url).await;
    let shown = |ran: Ran| ran.stdout + &ran.stderr;
    let nodes = shown(client(&["nodes", "--registry", &url]).await.ended_with(0));
    let fail = r#"{"code":7,"message":"a\u001b[31mb\u009b0m"}"#;
    let error = shown(client(&["call", "fail", fail, "--registry", &url]).await.ended_with(7));
    let result = shown(client(&["call", "echo", "[\"\u{9b}1A\"]", "--registry", &url]).await.ended_with(0));
    for text in [nodes, error, result] {
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }
}
