//! The security options of the commands, and what they tell people.

use std::path::Path;
use std::process::Command;

use rpc_tests::binaries;
use rpc_tests::certificates::Authority;
use rpc_tests::process::{Exit, Process, SOON};

const TOKEN: &str = "correct horse battery staple";

fn start(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Process {
    let mut command = Command::new(binaries::path(name));
    command.args(arguments);
    for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("RPC_") || variable == "RUST_LOG")
    {
        command.env_remove(variable);
    }
    command.envs(environment.iter().copied());
    Process::start(command)
}

/// A server in a registry of its own; and the registry's URL.
async fn serve(dir: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> (Process, String) {
    let url = format!("local:{}", dir.join("nodes").display());
    let server = start("rpc-server", &[&["--port", "0", "--registry", &url], arguments].concat(), environment);
    server.stdout_line("serving ", SOON).await;
    (server, url)
}

/// Exit code and everything that the client wrote.
async fn client(arguments: &[&str], environment: &[(&str, &str)]) -> (i32, String) {
    let seen = start("rpc-client", arguments, environment).finished(SOON).await;
    let Some(Exit::Code(code)) = seen.exit else { panic!("{seen:?}") };
    (code, [seen.stdout, seen.stderr].concat().join("\n"))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test]
async fn certificates_are_files_and_the_name_can_be_given() {
    let authority = Authority::new();
    let (node, own) = (authority.issue("node", &["orders.test"]), authority.issue("own", &["billing.test"]));
    let ca = authority.file();
    let options = ["--tls-cert", text(&node.cert), "--tls-key", text(&node.key), "--tls-client-ca", text(&ca)];
    let (_server, url) = serve(authority.directory(), &options, &[]).await;
    let call = ["call", "echo", "[1]", "--registry", &url];
    let with = [
        "--tls-ca",
        text(&ca),
        "--tls-name",
        "orders.test",
        "--tls-cert",
        text(&own.cert),
        "--tls-key",
        text(&own.key),
    ];
    let (code, output) = client(&[&call[..], &with].concat(), &[]).await;
    assert_eq!(code, 0, "{output}");
    let environment = [
        ("RPC_TLS_CA", text(&ca)),
        ("RPC_TLS_NAME", "orders.test"),
        ("RPC_TLS_CERT", text(&own.cert)),
        ("RPC_TLS_KEY", text(&own.key)),
    ];
    let (code, output) = client(&call, &environment).await;
    assert_eq!(code, 0, "{output}");
    let (code, output) = client(&call, &[]).await;
    assert!(code == 7 && output.contains("tls_required") && output.contains("--tls-ca"), "{code}: {output}");
    let (code, output) = client(&[&call[..], &with[..4]].concat(), &[]).await;
    assert!(code == 5 && output.contains("CertificateRequired"), "{code}: {output}");
    let (code, output) = client(&[&call[..], &with[2..]].concat(), &[]).await;
    assert!(code == 3 && output.contains("--tls-ca"), "{code}: {output}");
    let (code, output) = client(&[&call[..], &["--tls-ca", "/nonexistent.pem"]].concat(), &[]).await;
    assert!(code == 3 && output.contains("/nonexistent.pem"), "{code}: {output}");
}

#[tokio::test]
async fn tokens_come_from_files_or_the_environment_and_are_shown_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    let loud = ("RUST_LOG", "trace");
    let (server, url) = serve(dir.path(), &["--token-file", text(&file)], &[loud]).await;
    let call = ["call", "echo", "[1]", "--registry", &url];
    let mut shown = String::new();
    for (arguments, environment) in [
        (&["--token-file", text(&file)][..], &[loud][..]),
        (&[], &[loud, ("RPC_TOKEN", TOKEN)]),
        (&[], &[loud, ("RPC_TOKEN_FILE", text(&file))]),
    ] {
        let (code, output) = client(&[&call[..], arguments].concat(), environment).await;
        assert_eq!(code, 0, "{output}");
        shown += &output;
    }
    let (code, output) = client(&call, &[("RPC_TOKEN", "wrong horse battery staple")]).await;
    assert!(code == 7 && output.contains("unauthenticated") && output.contains("RPC_TOKEN"), "{code}: {output}");
    shown += &output;
    let (code, output) = client(&call, &[("RPC_TOKEN", "short horse")]).await;
    assert!(code == 3 && output.contains("at least 16"), "{code}: {output}");
    shown += &output;
    let short = start("rpc-server", &["--port", "0", "--registry", "none"], &[("RPC_TOKEN", "short horse")]);
    let output = short.finished(SOON).await.stderr.join("\n");
    assert!(output.contains("at least 16") && output.contains("next: set RPC_TOKEN to a longer one"), "{output}");
    shown += &output;
    let (code, output) = client(&["call", "--help"], &[("RPC_TOKEN", TOKEN)]).await;
    assert_eq!(code, 0);
    shown += &output;
    server.terminate();
    let seen = server.finished(SOON).await;
    shown += &[seen.stdout, seen.stderr].concat().join("\n");
    assert!(shown.contains("rpc"), "the log says something");
    assert!(!shown.contains("horse"), "{shown}");
}

#[tokio::test]
async fn an_access_file_is_checked_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("access.json");
    std::fs::write(&file, r#"{"tokens":[{"name":"a","token":"a horse, too long to guess"}]}"#).unwrap();
    let server = start("rpc-server", &["--port", "0", "--registry", "none", "--access-file", text(&file)], &[]);
    let seen = server.finished(SOON).await;
    let output = seen.stderr.join("\n");
    assert_eq!(seen.exit, Some(Exit::Code(3)));
    assert!(output.contains("missing field `methods`") && output.contains("access.json"), "{output}");
    assert!(!output.contains("horse"), "{output}");
}

#[tokio::test]
async fn a_server_that_others_can_reach_warns_until_it_is_secured() {
    let authority = Authority::new();
    let node = authority.issue("node", &["127.0.0.1"]);
    let tls = ["--tls-cert", text(&node.cert), "--tls-key", text(&node.key)];
    let token = [("RPC_TOKEN", TOKEN)];
    for (bind, arguments, environment, anybody, plain) in [
        ("127.0.0.1", &[][..], &[][..], false, false),
        ("0.0.0.0", &[], &[], true, true),
        ("0.0.0.0", &[], &token, false, true),
        ("0.0.0.0", &tls, &[], true, false),
        ("0.0.0.0", &tls, &token, false, false),
    ] {
        let arguments = [&["--bind", bind][..], arguments].concat();
        let (server, _) = serve(authority.directory(), &arguments, environment).await;
        let log = server.seen().stderr.join("\n");
        assert_eq!(log.contains("ANYBODY"), anybody, "{arguments:?}: {log}");
        assert_eq!(log.contains("NOT ENCRYPTED"), plain, "{arguments:?}: {log}");
    }
}

#[tokio::test]
async fn files_without_an_end_are_read_to_a_limit_only() {
    let authority = Authority::new();
    let key = authority.issue("node", &["127.0.0.1"]).key;
    let server = ["--port", "0", "--registry", "none"];
    for options in [
        &["--token-file", "/dev/zero"][..],
        &["--access-file", "/dev/zero"],
        &["--tls-cert", "/dev/zero", "--tls-key", text(&key)],
    ] {
        let seen = start("rpc-server", &[&server[..], options].concat(), &[]).finished(SOON).await;
        let output = seen.stderr.join("\n");
        assert_eq!(seen.exit, Some(Exit::Code(3)), "{output}");
        assert!(output.contains("cannot read /dev/zero: it is longer than 4194304 bytes"), "{output}");
    }
    let call = ["call", "echo", "--registry", "static:127.0.0.1:1"];
    let (code, output) = client(&[&call[..], &["--token-file", "/dev/zero"]].concat(), &[]).await;
    assert!(code == 3 && output.contains("it is longer than 4194304 bytes"), "{code}: {output}");
    let (code, output) = client(&[&call[..], &["@/dev/zero"]].concat(), &[]).await;
    assert!(code == 2 && output.contains("it has more than the 16777215 bytes"), "{code}: {output}");
    let mut endless = Command::new("bash");
    let path = binaries::path("rpc-client");
    endless.args(["-c", "exec \"$@\" - </dev/zero", "bash"]).arg(path).args(call).env_remove("RPC_REGISTRY");
    let seen = Process::start(endless).finished(SOON).await;
    let output = seen.stderr.join("\n");
    assert_eq!(seen.exit, Some(Exit::Code(2)), "{output}");
    assert!(output.contains("standard input: it has more than the 16777215 bytes"), "{output}");
}
