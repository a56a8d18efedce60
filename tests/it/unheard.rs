//! Servers whose log or announcement cannot be written: a full disk, or a reader that is gone.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};

use rpc_client::{Client, ConnectionState};
use rpc_tests::cluster::nodes_are;
use rpc_tests::process::SOON;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::process::Child;

use crate::cli::{busy, command, registry};

/// Where one of the outputs of a server goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    Works,
    /// As a disk without space.
    Full,
    /// A pipe that nobody reads any more.
    Unread,
}

impl Output {
    fn stdio(self) -> Stdio {
        match self {
            Self::Works => Stdio::null(),
            Self::Full => OpenOptions::new().write(true).open("/dev/full").unwrap().into(),
            Self::Unread => {
                let (reader, writer) = std::io::pipe().unwrap();
                drop(reader);
                writer.into()
            }
        }
    }
}

const CASES: [(Output, Output); 5] = [
    (Output::Works, Output::Full),
    (Output::Works, Output::Unread),
    (Output::Full, Output::Works),
    (Output::Unread, Output::Works),
    (Output::Unread, Output::Full),
];

fn start(mut command: Command, stdout: impl Into<Stdio>, stderr: impl Into<Stdio>) -> Child {
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    tokio::process::Command::from(command).kill_on_drop(true).spawn().unwrap()
}

fn terminate(server: &Child) {
    let id = i32::try_from(server.id().expect("it runs")).unwrap();
    kill_process(Pid::from_raw(id).unwrap(), Signal::TERM).unwrap();
}

async fn ended(server: &mut Child) -> ExitStatus {
    tokio::time::timeout(SOON, server.wait()).await.expect("it ends").unwrap()
}

/// The address of the one server of a registry, and a client that is connected with it.
async fn find(url: &str) -> (String, Client) {
    let client = Client::connect(url).await.unwrap();
    nodes_are(&client, "connected", |nodes| nodes.iter().any(|node| node.connection == ConnectionState::Connected))
        .await;
    (client.nodes()[0].node.to_string(), client)
}

/// It answers, and what it has at SIGTERM is answered before it ends as documented.
async fn serves_and_drains(mut server: Child, url: &str, case: &str) {
    let (addr, client) = find(url).await;
    assert_eq!(client.call::<_, Value>("echo", &(1,)).await.unwrap(), json!([1]), "{case}");
    let (_caller, call) = busy(&addr, 1000).await;
    terminate(&server);
    assert_eq!(call.await.unwrap().unwrap(), json!({"slept_ms":1000}), "{case}");
    assert_eq!(ended(&mut server).await.code(), Some(0), "{case}");
}

#[tokio::test]
async fn a_server_whose_outputs_cannot_be_written_serves_and_drains() {
    for (stdout, stderr) in CASES {
        let (_dir, url) = registry();
        let mut command = command("rpc-server", &["--port", "0", "--registry", &url]);
        // With a directive that is none, of which the log has to complain.
        command.env("RUST_LOG", "debug,rpc_server=loud");
        let server = start(command, stdout.stdio(), stderr.stdio());
        serves_and_drains(server, &url, &format!("stdout {stdout:?}, stderr {stderr:?}")).await;
    }
}

#[tokio::test]
async fn a_server_without_standard_output_or_error_serves_and_drains() {
    for closed in [">&-", "2>&-", ">&- 2>&-"] {
        let (_dir, url) = registry();
        let served = command("rpc-server", &["--port", "0", "--registry", &url]);
        let mut command = Command::new("bash");
        command
            .args(["-c", &format!("exec \"$@\" {closed}"), "bash"])
            .arg(served.get_program())
            .args(served.get_args());
        let server = start(command, Stdio::null(), Stdio::null());
        serves_and_drains(server, &url, closed).await;
    }
}

#[tokio::test]
async fn a_reader_of_the_log_that_leaves_takes_no_call_with_it() {
    let (_dir, url) = registry();
    let (reader, writer) = std::io::pipe().unwrap();
    let server = start(command("rpc-server", &["--port", "0", "--registry", &url]), Stdio::null(), writer);
    let mut reader = BufReader::new(reader);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.contains("accepting calls"), "{line}");
    drop(reader);
    serves_and_drains(server, &url, "a reader that leaves").await;
}

#[tokio::test]
async fn a_second_signal_ends_a_server_at_once_that_nobody_hears() {
    for (stdout, stderr) in CASES {
        let (_dir, url) = registry();
        let command = command("rpc-server", &["--port", "0", "--registry", &url]);
        let mut server = start(command, stdout.stdio(), stderr.stdio());
        let (addr, client) = find(&url).await;
        let (_caller, call) = busy(&addr, 60_000).await;
        terminate(&server);
        nodes_are(&client, "draining", |nodes| nodes.iter().all(|node| node.state == "draining")).await;
        terminate(&server);
        assert_eq!(ended(&mut server).await.code(), Some(143), "stdout {stdout:?}, stderr {stderr:?}");
        call.await.unwrap().expect_err("it was cut off");
    }
}

#[tokio::test]
async fn errors_that_cannot_be_written_keep_their_exit_codes() {
    let unknown = ["call", "echo", "--registry", "http://x"];
    let none = ["call", "echo", "--registry", "static:127.0.0.1:1", "--timeout", "500ms"];
    for (name, arguments, code) in [
        ("rpc-server", &["--port", "0", "--registry", "http://x"][..], 3),
        ("rpc-server", &["--port", "much"], 2),
        ("rpc-client", &unknown, 3),
        ("rpc-client", &none, 5),
        ("rpc-client", &["call"], 2),
    ] {
        for stderr in [Output::Full, Output::Unread] {
            let mut command = command(name, arguments);
            command.env("RUST_LOG", "trace,loud=loud");
            let mut process = start(command, Stdio::null(), stderr.stdio());
            assert_eq!(ended(&mut process).await.code(), Some(code), "{name} {arguments:?}, stderr {stderr:?}");
        }
    }
}
