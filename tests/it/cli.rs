//! The commands as people and scripts use them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rpc_client::{CallOptions, Client, Error};
use rpc_server::{Method, RpcError, Server, ServerBuilder};
use rpc_tests::binaries;
use rpc_tests::cluster::{Node, any_port, dead_address, nodes_are};
use rpc_tests::process::{Exit, Process, SOON, Seen};
use rpc_tests::zk::ZooKeeper;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How a command ended, and what it wrote.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// The one JSON object on standard output.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.stdout.lines().count(), 1, "one line: {}", self.stdout);
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{}: {e}", self.stdout))
    }

    #[track_caller]
    pub(crate) fn ended_with(self, code: i32) -> Self {
        assert_eq!(self.code, code, "\nstdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }
}

fn ran(seen: &Seen) -> Ran {
    let Some(Exit::Code(code)) = seen.exit else { panic!("{seen:?}") };
    Ran { code, stdout: seen.stdout.join("\n"), stderr: seen.stderr.join("\n") }
}

pub(crate) fn command(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(binaries::path(name));
    command.args(arguments);
    for variable in ["RPC_REGISTRY", "RPC_ADVERTISE", "RUST_LOG", "NO_COLOR", "COLUMNS"] {
        command.env_remove(variable);
    }
    command
}

pub(crate) fn start(name: &str, arguments: &[&str]) -> Process {
    Process::start(command(name, arguments))
}

pub(crate) async fn finish(process: &Process) -> Ran {
    ran(&process.finished(SOON).await)
}

pub(crate) async fn client(arguments: &[&str]) -> Ran {
    finish(&start("rpc-client", arguments)).await
}

/// Runs a shell script in which `rpc-client` and `rpc-server` are ours; `$1` and so on are `arguments`.
pub(crate) async fn shell(script: &str, arguments: &[&str]) -> Ran {
    let mut command = Command::new("bash");
    let path = format!("{}:{}", binaries::directory().display(), std::env::var("PATH").unwrap());
    command.args(["-c", script, "bash"]).args(arguments).env("PATH", path).env_remove("RPC_REGISTRY");
    finish(&Process::start(command)).await
}

/// Calls of a method that never answers: how many have begun, and how many of them are left.
#[derive(Clone)]
struct Hanging(Arc<watch::Sender<(u32, u32)>>);

impl Hanging {
    fn new() -> Self {
        Self(Arc::new(watch::Sender::new((0, 0))))
    }

    async fn until(&self, condition: impl FnMut(&(u32, u32)) -> bool) {
        let mut counts = self.0.subscribe();
        tokio::time::timeout(SOON, counts.wait_for(condition)).await.expect("in time").unwrap();
    }
}

struct Hangs(Hanging);

impl Drop for Hangs {
    fn drop(&mut self) {
        self.0.0.send_modify(|(_, left)| *left -= 1);
    }
}

fn server(hanging: &Hanging) -> ServerBuilder {
    let hanging = hanging.clone();
    let hang = move |(): ()| {
        let hanging = hanging.clone();
        async move {
            hanging.0.send_modify(|(begun, left)| (*begun, *left) = (*begun + 1, *left + 1));
            let _hangs = Hangs(hanging);
            std::future::pending::<Result<(), RpcError>>().await
        }
    };
    let fail = |code: i64| async move { Err::<(), _>(RpcError::new(code, "as asked").with_data(&json!([1]))) };
    Server::builder()
        .with(Method::raw("echo", |_, params| async move { Ok(params) }).idempotent().summary("gives it back"))
        .method("fail", move |(code,): (i64,)| fail(code))
        .method("hang", hang)
}

/// A server in this process, the methods that hang on it, and the URL of a list that has it.
async fn node() -> (Node, Hanging, String) {
    let hanging = Hanging::new();
    let node = Node::start(server(&hanging)).await;
    let url = format!("static:{}", node.addr);
    (node, hanging, url)
}

/// A registry of its own in a directory.
pub(crate) fn registry() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("local:{}", dir.path().join("nodes").display());
    (dir, url)
}

/// The command `rpc-server`, registered; and its address.
pub(crate) async fn serve(arguments: &[&str], url: &str) -> (Process, String) {
    let process = start("rpc-server", &[arguments, &["--port", "0", "--registry", url]].concat());
    let line = process.stdout_line("serving ", SOON).await;
    let addr = line.split(' ').nth(1).unwrap().to_owned();
    assert_eq!(line, format!("serving {addr} in {url}"));
    (process, addr)
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap_or_else(|| panic!("{value}")).keys().map(String::as_str).collect()
}

#[tokio::test]
async fn help_is_as_it_was_reviewed() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("help");
    let pages: [(&str, &[&str]); 8] = [
        ("rpc-server", &[]),
        ("rpc-client", &[]),
        ("rpc-client", &["call"]),
        ("rpc-client", &["nodes"]),
        ("rpc-client", &["methods"]),
        ("rpc-client", &["bench"]),
        ("rpc-client", &["doctor"]),
        ("rpc-client", &["completions"]),
    ];
    let mut known = BTreeSet::new();
    for (name, command) in pages {
        let file = golden.join([&[name], command].concat().join("-") + ".txt");
        let help = finish(&start(name, &[command, &["--help"]].concat())).await.ended_with(0).stdout + "\n";
        if std::env::var_os("UPDATE_HELP").is_some() {
            std::fs::write(&file, &help).unwrap();
        }
        let expected = std::fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(help, expected, "{}: if it is meant, UPDATE_HELP=1 rewrites it", file.display());
        known.insert(file);
    }
    let files: BTreeSet<PathBuf> = std::fs::read_dir(golden).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files, known);
}

#[tokio::test]
async fn a_result_is_pretty_for_people_and_whole_for_programs() {
    let (node, _, url) = node().await;
    let params = r#"{"b":1,"a":[1.50]}"#;
    let text = client(&["call", "echo", params, "--registry", &url]).await.ended_with(0);
    assert_eq!(text.stdout, "{\n  \"b\": 1,\n  \"a\": [\n    1.50\n  ]\n}");
    assert_eq!(text.stderr, "");
    let json = client(&["call", "echo", params, "--registry", &url, "--format", "json"]).await.ended_with(0).json();
    assert_eq!(keys(&json), BTreeSet::from(["result", "node", "latency_us", "attempts"]));
    assert_eq!((&json["result"], &json["node"]), (&json!({"a":[1.5],"b":1}), &json!(node.addr)));
    assert!(json["latency_us"].as_u64().unwrap() > 0);
    assert_eq!(json["attempts"].as_array().unwrap().len(), 1);
    assert_eq!(json["attempts"][0]["outcome"], "ok");
}

#[tokio::test]
async fn params_come_as_text_from_a_file_or_from_standard_input() {
    let (_node, _, url) = node().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("params.json");
    std::fs::write(&file, "[\n 7 ]\n").unwrap();
    let file = format!("@{}", file.display());
    assert_eq!(client(&["call", "echo", &file, "--registry", &url]).await.ended_with(0).stdout, "[\n  7\n]");
    let piped = shell("echo '{\"x\":\"y\"}' | rpc-client call echo - --registry $1 --format json", &[&url]).await;
    assert_eq!(piped.ended_with(0).json()["result"], json!({"x":"y"}));
    assert_eq!(client(&["call", "echo", "--registry", &url]).await.ended_with(0).stdout, "null");
}

#[tokio::test]
async fn a_wrong_command_line_ends_with_2_and_the_rule() {
    let (_node, _, url) = node().await;
    for (arguments, said) in [
        (&["call", "echo", "5"] as &[&str], "a number"),
        (&["call", "echo", "-5"], "a number"),
        (&["call", "echo", "\"x\""], "array or object"),
        (&["call", "echo", "{"], "no JSON"),
        (&["call", "echo", "[] []"], "no JSON"),
        (&["call", "echo", "@/does/not/exist"], "/does/not/exist"),
        (&["bench", "echo", "true"], "a boolean"),
        (&["bench", "echo", "-n", "0"], "0"),
        (&["bench", "echo", "-c", "4294967295"], "100000"),
        (&["bench", "echo", "--rps", "fast"], "number"),
        (&["bench", "echo", "--threshold", "p98<1ms"], "p999"),
        (&["call", "echo", "--timeout", "5"], "500ms"),
        (&["call", "echo", "--timeout", "0ms"], "no time"),
        (&["call", "echo", "--timeout", "-1s"], "`-1s`"),
        (&["call", "echo", "--policy", "slowest"], "round_robin"),
        (&["call", "echo", "--format", "xml"], "json"),
        (&["call"], "METHOD"),
        (&["shout"], "shout"),
        (&[], "Usage"),
    ] {
        let ran = client(&[arguments, &["--registry", &url]].concat()).await.ended_with(2);
        assert!(ran.stderr.contains(said), "{arguments:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "");
    }
    let json = client(&["call", "echo", "5", "--registry", &url, "--format", "json"]).await.ended_with(2).json();
    assert_eq!(json["error"]["name"], "usage");
    assert!(json["error"]["hint"].as_str().unwrap().contains("array or object"), "{json}");
}

#[tokio::test]
async fn a_url_that_is_none_ends_with_3() {
    for url in ["http://x", "zk://", "static:localhost", "static:", "mem:x", "local:?x=1", "zk://h/a?session=soon"] {
        let ran = client(&["nodes", "--registry", url]).await.ended_with(3);
        assert!(ran.stderr.contains(url) && ran.stderr.contains("next: "), "{}", ran.stderr);
        finish(&start("rpc-server", &["--port", "0", "--registry", url])).await.ended_with(3);
    }
}

#[tokio::test]
async fn a_directory_that_cannot_be_one_ends_with_3_at_once_and_looking_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    // Built before the clock runs.
    binaries::directory();
    // Nothing can be made in the last, though looking there finds only that it is not there.
    for (path, looking) in [(file.clone(), 3), (file.join("below"), 3), ("/proc/rpc".into(), 5)] {
        let url = format!("local:{}", path.display());
        let (began, ran) = (tokio::time::Instant::now(), client(&["call", "echo", "--registry", &url]).await);
        let ran = ran.ended_with(looking);
        assert!(began.elapsed() < Duration::from_secs(4), "not after the timeout");
        assert!(looking == 5 || ran.stderr.contains("cannot "), "{}", ran.stderr);
        assert!(ran.stderr.contains(path.to_str().unwrap()), "{}", ran.stderr);
        let ran = finish(&start("rpc-server", &["--port", "0", "--registry", &url])).await.ended_with(3);
        assert!(ran.stderr.contains(path.to_str().unwrap()), "{}", ran.stderr);
    }
    let nowhere = dir.path().join("no/where");
    let url = format!("local:{}", nowhere.display());
    client(&["nodes", "--registry", &url]).await.ended_with(0);
    client(&["call", "echo", "--registry", &url]).await.ended_with(5);
    client(&["bench", "echo", "-n", "1", "--registry", &url]).await.ended_with(5);
    client(&["doctor", "--registry", &url]).await.ended_with(1);
    assert!(!nowhere.exists() && !dir.path().join("no").exists(), "who only looks makes nothing");
}

#[tokio::test]
async fn an_unreachable_registry_ends_with_4_after_the_timeout() {
    let (dead, _held) = dead_address();
    let url = format!("zk://{dead}/rpc");
    for arguments in [&["call", "echo"] as &[&str], &["nodes"], &["methods"], &["bench", "echo"]] {
        let arguments = [arguments, &["--timeout", "600ms", "--registry", &url]].concat();
        let ran = client(&arguments).await.ended_with(4);
        assert!(ran.stderr.contains("600 ms") && ran.stderr.contains("Connection refused"), "{}", ran.stderr);
        let json = client(&[&arguments[..], &["--format", "json"]].concat()).await.ended_with(4).json();
        assert_eq!(json["error"]["name"], "registry_unreachable");
        assert_eq!(json["registry"]["url"], url);
    }
}

#[tokio::test]
async fn no_node_ends_with_5_and_says_where_was_looked() {
    let (_dir, url) = registry();
    let ran = client(&["call", "echo", "--registry", &url]).await.ended_with(5);
    for said in ["no usable node (no_node)", &url, "0 nodes listed", "next: start a server"] {
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
    client(&["bench", "echo", "-n", "3", "--registry", &url]).await.ended_with(5);
    client(&["methods", "--registry", &url]).await.ended_with(5);
    let listing = client(&["nodes", "--registry", &url]).await.ended_with(0);
    assert!(listing.stdout.is_empty() && listing.stderr.contains("no nodes"), "{}", listing.stderr);

    let (dead, _held) = dead_address();
    let url = format!("static:{dead}");
    let json = client(&["call", "echo", "--registry", &url, "--format", "json"]).await.ended_with(5).json();
    assert_eq!(json["attempts"][0]["node"], json!(dead), "what stands in the way is told");
    assert!(json["attempts"][0]["outcome"].as_str().unwrap().contains("refused"), "{json}");
}

#[tokio::test]
async fn a_call_that_takes_too_long_ends_with_6() {
    let (_node, hanging, url) = node().await;
    let ran = client(&["call", "hang", "--timeout", "150ms", "--registry", &url]).await.ended_with(6);
    assert!(ran.stderr.contains("no answer within 150 ms (deadline_exceeded)"), "{}", ran.stderr);
    assert!(ran.stderr.contains("--timeout"), "{}", ran.stderr);
    hanging.until(|(_, left)| *left == 0).await;
}

#[tokio::test]
async fn an_error_of_the_server_ends_with_7_and_is_shown_whole() {
    let (node, _, url) = node().await;
    let ran = client(&["call", "fail", "[42]", "--registry", &url]).await.ended_with(7);
    assert!(ran.stderr.starts_with("error: as asked (application, code 42)\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains(&format!("from: {}", node.addr)) && ran.stderr.contains("data: [1]"), "{}", ran.stderr);
    let json = client(&["call", "fail", "[42]", "--registry", &url, "--format", "json"]).await.ended_with(7).json();
    assert_eq!(keys(&json), BTreeSet::from(["error", "node", "latency_us", "attempts", "registry"]));
    let error = &json["error"];
    assert_eq!(keys(error), BTreeSet::from(["code", "name", "message", "data", "hint"]));
    assert_eq!((&error["code"], &error["message"], &error["data"]), (&json!(42), &json!("as asked"), &json!([1])));
    let near = client(&["call", "ecco", "--registry", &url]).await.ended_with(7);
    assert!(
        near.stderr.contains("did you mean `echo`") && near.stderr.contains("rpc-client methods"),
        "{}",
        near.stderr
    );
    let params = client(&["call", "fail", "{\"code\":1}", "--registry", &url]).await.ended_with(7);
    assert!(params.stderr.contains("(invalid_params, code -32602)"), "{}", params.stderr);
}

#[tokio::test]
async fn a_lost_connection_ends_with_8() {
    let (node, hanging, url) = node().await;
    let process = start("rpc-client", &["call", "hang", "--registry", &url]);
    hanging.until(|(begun, _)| *begun == 1).await;
    node.kill().await;
    let ran = finish(&process).await.ended_with(8);
    assert!(ran.stderr.contains("(transport)") && ran.stderr.contains("the call may have run"), "{}", ran.stderr);
}

#[tokio::test]
async fn ctrl_c_ends_a_call_with_130_and_takes_it_back() {
    let (_node, hanging, url) = node().await;
    let process = start("rpc-client", &["call", "hang", "--timeout", "60s", "--registry", &url]);
    hanging.until(|(begun, _)| *begun == 1).await;
    process.signal(Signal::INT);
    finish(&process).await.ended_with(130);
    hanging.until(|(_, left)| *left == 0).await;
}

#[tokio::test]
async fn explain_shows_the_registry_every_node_and_every_attempt() {
    let (node, _, url) = node().await;
    let (dead, _held) = dead_address();
    let url = format!("{url},{dead}");
    let ran = client(&["call", "echo", "--explain", "--registry", &url]).await.ended_with(0);
    assert_eq!(ran.stdout, "null", "the result stays alone on standard output");
    let lines: Vec<&str> = ran.stderr.lines().collect();
    let line = |start: &str| lines.iter().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{lines:?}"));
    assert!(line("registry").contains("2 nodes listed, 1 usable"), "{lines:?}");
    assert!(line("policy").contains("fastest"));
    assert!(line("tried").contains(&format!("#1 {}  ok", node.addr)), "{lines:?}");
    let refused = |line: &&&str| line.contains(&dead.to_string()) && line.contains("refused");
    assert_eq!(lines.iter().filter(refused).count(), 1, "{lines:?}");
    let ran = client(&["call", "echo", "--explain", "--registry", &url, "--format", "json"]).await.ended_with(0);
    let json = ran.json();
    let left_out: Vec<bool> =
        json["explain"]["nodes"].as_array().unwrap().iter().map(|n| n["left_out"].is_null()).collect();
    assert_eq!(left_out.iter().filter(|candidate| **candidate).count(), 1, "{json}");
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_each_decision_with_its_terms_and_what_the_filters_removed() {
    let (_dir, url) = registry();
    let (hanging, mut nodes) = (Hanging::new(), Vec::new());
    for _ in 0..3 {
        nodes.push(Node::start(server(&hanging).registry(&url).unwrap()).await);
    }
    // Before the time begins that the server has for draining: this may build them first.
    binaries::path("rpc-client");
    let leaves = nodes.pop().unwrap();
    let (left, addrs) = (leaves.addr, nodes.iter().map(|node| node.addr.to_string()).collect::<Vec<_>>());
    let busy = Client::connect(&format!("static:{left}")).await.unwrap();
    let hangs = tokio::spawn(async move { busy.call::<_, ()>("hang", &()).await });
    hanging.until(|(begun, _)| *begun == 1).await;
    let leaving = tokio::spawn(leaves.stop());
    let observer = Client::connect(&url).await.unwrap();
    nodes_are(&observer, "draining", |nodes| nodes.iter().any(|n| n.state == "draining")).await;

    // On a busy machine one of the two may not be connected in time.
    let arguments = ["call", "echo", "--explain", "--registry", &url, "--format", "json"];
    let (json, last) = loop {
        let json = client(&arguments).await.ended_with(0).json();
        let last = json["explain"]["decisions"].as_array().unwrap().last().unwrap().clone();
        if last["usable"] == json!(2) {
            break (json, last);
        }
    };
    assert_eq!((&last["decision"], &last["nodes"]), (&json!("send"), &json!([json["node"]])), "{json}");
    let removed = last["removed"].as_array().unwrap();
    assert_eq!(removed.len(), 1, "{json}");
    assert_eq!((&removed[0]["node"], &removed[0]["filter"]), (&json!(left), &json!("draining")), "{json}");
    assert_eq!(last["outcome"]["outcome"], json!("ok"), "{json}");
    assert!(last["list_version"].is_u64() && last["list_age_ms"].is_u64(), "{json}");
    let compared = last["candidates"].as_array().unwrap();
    assert!(!compared.is_empty() && compared.iter().all(|c| addrs.contains(&c["node"].as_str().unwrap().to_owned())));
    assert!(compared.iter().all(|c| c["cost"].is_f64() && !c["terms"].as_object().unwrap().is_empty()), "{json}");

    let text = client(&["call", "echo", "--explain", "--registry", &url]).await.ended_with(0).stderr;
    let line = text.lines().find(|line| line.contains("send to")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains(" usable, ") && line.contains(" left out"), "{text}");
    assert!(text.lines().any(|line| line.contains(&left.to_string()) && line.contains("draining")), "{text}");
    hangs.abort();
    leaving.await.unwrap();
}

#[tokio::test]
async fn explain_shows_why_a_call_failed() {
    let (node, _, url) = node().await;
    let (dead, _held) = dead_address();
    let arguments = ["call", "fail", "[1]", "--explain", "--registry", &url, "--format", "json"];
    let json = client(&arguments).await.ended_with(7).json();
    let decisions = json["explain"]["decisions"].as_array().unwrap();
    assert_eq!(decisions.last().unwrap()["nodes"], json!([node.addr]), "{json}");
    assert!(decisions.last().unwrap()["outcome"]["outcome"].as_str().unwrap().contains("as asked"), "{json}");
    let url = format!("static:{dead}");
    let arguments = ["call", "echo", "--timeout", "1s", "--explain", "--registry", &url, "--format", "json"];
    let json = client(&arguments).await.ended_with(5).json();
    let last = json["explain"]["decisions"].as_array().unwrap().last().cloned().unwrap();
    assert_eq!((&last["decision"], &last["removed"][0]["node"]), (&json!("no_node"), &json!(dead)), "{json}");
}

#[tokio::test]
async fn one_call_connects_with_few_of_many_nodes_and_with_all_if_need_be() {
    let (live, _, mut url) = node().await;
    let dead: Vec<_> = (0..20).map(|_| dead_address()).collect();
    for (addr, _) in &dead {
        url = format!("{url},{addr}");
    }
    // The live one is among the first eight by chance, or found when those would not do.
    for _ in 0..4 {
        let ran = client(&["call", "echo", "--registry", &url, "--format", "json"]).await.ended_with(0);
        assert_eq!(ran.json()["node"], json!(live.addr));
    }
    let mut nodes = Vec::new();
    for _ in 0..12 {
        nodes.push(node().await.0);
    }
    let url = format!("static:{}", nodes.iter().map(|node| node.addr.to_string()).collect::<Vec<_>>().join(","));
    let json =
        client(&["call", "echo", "--explain", "--registry", &url, "--format", "json"]).await.ended_with(0).json();
    let explain = &json["explain"];
    assert_eq!((explain["nodes"].as_array().unwrap().len(), &explain["not_considered"]), (8, &json!(4)), "{explain}");
    let arguments = ["call", "echo", "--key", "k", "--explain", "--registry", &url, "--format", "json"];
    let json = client(&arguments).await.ended_with(0).json();
    assert_eq!(json["explain"]["nodes"].as_array().unwrap().len(), 12, "a key is placed among all");
}

#[tokio::test]
async fn methods_are_listed() {
    let (node, _, url) = node().await;
    let text = client(&["methods", "--registry", &url]).await.ended_with(0).stdout;
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["METHOD", "IDEMPOTENT", "SUMMARY"]);
    assert_eq!(rows[1], ["echo", "yes", "gives", "it", "back"]);
    assert_eq!(rows[2][..2], ["fail", "no"]);
    let json = client(&["methods", "--registry", &url, "--format", "json"]).await.ended_with(0).json();
    assert_eq!(json["node"], json!(node.addr));
    assert_eq!(json["methods"][0], json!({"name":"echo","idempotent":true,"summary":"gives it back"}));
}

#[tokio::test]
async fn nodes_are_listed_and_watched() {
    let (_dir, url) = registry();
    let watching = start("rpc-client", &["nodes", "--watch", "--registry", &url]);
    let (server, addr) = serve(&["--name", "blue"], &url).await;
    watching.stdout_line(&format!("+ {addr} blue up"), SOON).await;
    let text = client(&["nodes", "--registry", &url]).await.ended_with(0).stdout;
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NODE", "NAME", "STATE", "RESPONSE", "TIME", "CONNECTION"]);
    assert_eq!(rows[1], [&addr, "blue", "up", "unknown", "connected"]);
    let json = client(&["nodes", "--registry", &url, "--format", "json"]).await.ended_with(0).json();
    assert_eq!(json["registry"], url);
    assert!(json["fresh_ms"].is_u64(), "{json}");
    let node = &json["nodes"][0];
    let expected = BTreeSet::from(["node", "id", "state", "response_time_us", "age_ms", "connected"]);
    assert!(keys(node).is_superset(&expected), "{node}");
    assert_eq!((&node["node"], &node["state"], &node["connected"]), (&json!(addr), &json!("up"), &json!(true)));

    // One call is enough for others to know the node, although its client is gone.
    client(&["call", "echo", "--registry", &url]).await.ended_with(0);
    let json = client(&["nodes", "--registry", &url, "--format", "json"]).await.ended_with(0).json();
    assert!(json["nodes"][0]["response_time_us"].as_u64().unwrap() > 0, "{json}");

    server.terminate();
    watching.stdout_line(&format!("- {addr}"), SOON).await;
    watching.signal(Signal::INT);
    finish(&watching).await.ended_with(130);
}

#[tokio::test]
async fn a_bench_reports_what_it_measured() {
    let (node, _, url) = node().await;
    let arguments = ["bench", "echo", "[1]", "-n", "500", "-c", "4", "--registry", &url];
    let text = client(&arguments).await.ended_with(0);
    for said in ["calls    500 in", "errors   none", "p99.9", &node.addr.to_string(), "100.0 %"] {
        assert!(text.stdout.contains(said), "{said}:\n{}", text.stdout);
    }
    assert_eq!(text.stderr, "", "no progress but on a terminal");
    let json = client(&[&arguments[..], &["--format", "json"]].concat()).await.ended_with(0).json();
    let expected = BTreeSet::from(["calls", "ok", "errors", "rps", "latency_us", "nodes"]);
    assert!(keys(&json).is_superset(&expected), "{json}");
    assert_eq!((&json["calls"], &json["ok"], &json["errors"]), (&json!(500), &json!(500), &json!({})));
    let latency = &json["latency_us"];
    assert_eq!(keys(latency), BTreeSet::from(["p50", "p90", "p99", "p999", "max"]));
    assert!(0 < latency["p50"].as_u64().unwrap() && latency["p50"].as_u64() <= latency["max"].as_u64(), "{json}");
    let of_node = &json["nodes"][node.addr.to_string()];
    assert_eq!(keys(of_node), BTreeSet::from(["calls", "errors", "p50_us", "p99_us"]));
    assert_eq!(of_node["calls"], 500);
}

#[tokio::test]
async fn a_bench_counts_errors_by_name_and_checks_thresholds() {
    let (node, _, url) = node().await;
    let json = &["--registry", &url, "--format", "json"];
    let all_fail = client(&[&["bench", "fail", "[42]", "-n", "20"], &json[..]].concat()).await.ended_with(7);
    let report = all_fail.json();
    assert_eq!(report["errors"], json!({"42": 20}));
    assert_eq!(report["nodes"][node.addr.to_string()]["errors"], 20);
    let arguments = ["bench", "echo", "-n", "50", "--registry", &url, "--threshold", "p50<1us,errors<1%"];
    let missed = client(&arguments).await.ended_with(9);
    assert!(
        missed.stdout.contains("MISSED p50<1us") && missed.stdout.contains("met    errors<1%"),
        "{}",
        missed.stdout
    );
    client(&["bench", "echo", "-n", "50", "--registry", &url, "--threshold", "max<60s,errors<=0,rps>0"])
        .await
        .ended_with(0);
}

#[tokio::test]
async fn a_bench_lasts_as_long_as_asked() {
    let (_node, _, url) = node().await;
    let arguments = ["bench", "echo", "--duration", "300ms", "-c", "2", "--registry", &url, "--format", "json"];
    let json = client(&arguments).await.ended_with(0).json();
    assert!(json["elapsed_ms"].as_u64().unwrap() >= 300, "{json}");
    let arguments = ["bench", "echo", "--duration", "500ms", "--rps", "100", "--registry", &url, "--format", "json"];
    let json = client(&arguments).await.ended_with(0).json();
    assert_eq!(json["calls"], 50, "the load is given, and all of it is made: {json}");
}

#[tokio::test]
async fn an_open_loop_shows_a_stall_in_full() {
    let calls = Arc::new(AtomicU64::new(0));
    // One call of 200 takes a second; the others would be quick, had they not to wait for it.
    let stall = move |(): ()| {
        let number = calls.fetch_add(1, Ordering::Relaxed);
        async move {
            if number == 50 {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Ok::<_, RpcError>(())
        }
    };
    let node = Node::start(Server::builder().method("stall", stall)).await;
    let url = format!("static:{}", node.addr);
    let arguments = ["bench", "stall", "-n", "200", "--rps", "200", "-c", "1", "--registry", &url, "--format", "json"];
    let json = client(&arguments).await.ended_with(0).json();
    // 150 calls were due during the stall or after it, each a little less late than the one before.
    assert!(json["latency_us"]["p50"].as_u64().unwrap() > 100_000, "{json}");
    assert!(json["nodes"][node.addr.to_string()]["p50_us"].as_u64().unwrap() < 100_000, "the node was quick: {json}");
}

#[tokio::test]
async fn ctrl_c_ends_a_bench_with_130_and_the_report_so_far() {
    let (_node, hanging, url) = node().await;
    let arguments = ["bench", "hang", "-c", "3", "--timeout", "60s", "--registry", &url, "--format", "json"];
    let process = start("rpc-client", &arguments);
    hanging.until(|(begun, _)| *begun == 3).await;
    process.signal(Signal::INT);
    let json = finish(&process).await.ended_with(130).json();
    assert_eq!((&json["calls"], &json["interrupted"]), (&json!(0), &json!(true)));
    hanging.until(|(_, left)| *left == 0).await;
}

#[tokio::test]
async fn nobody_reading_is_no_error() {
    let (_node, _, url) = node().await;
    for arguments in [
        &["call", "echo"] as &[&str],
        &["nodes"],
        &["nodes", "--watch"],
        &["methods"],
        &["bench", "echo", "-n", "1"],
        &["completions", "zsh"],
        &["call", "ecco", "--format", "json"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = command("rpc-client", &[arguments, &["--registry", &url]].concat());
        command.stdout(writer).stderr(Stdio::piped());
        let child = tokio::process::Command::from(command).kill_on_drop(true).spawn().unwrap();
        let output = tokio::time::timeout(SOON, child.wait_with_output()).await.expect("it ends").unwrap();
        let expected = if arguments.contains(&"ecco") { 7 } else { 0 };
        assert_eq!(output.status.code(), Some(expected), "{arguments:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[tokio::test]
async fn completions_are_made_for_each_shell() {
    for name in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = client(&["completions", name]).await.ended_with(0).stdout;
        assert!(script.contains("bench") && script.contains("registry"), "{name}");
    }
    shell("source <(rpc-client completions bash) && complete -p rpc-client", &[]).await.ended_with(0);
}

#[tokio::test]
async fn a_server_tells_who_it_is_and_drains_when_told_to_stop() {
    let (_dir, url) = registry();
    let (server, addr) = serve(&["--name", "green"], &url).await;
    let info = client(&["call", "info", "--registry", &url, "--format", "json"]).await.ended_with(0).json();
    let info = &info["result"];
    assert_eq!((&info["name"], &info["node"], &info["pid"]), (&json!("green"), &json!(addr), &json!(server.id())));
    let nodes = client(&["nodes", "--registry", &url, "--format", "json"]).await.ended_with(0).json();
    assert_eq!(info["id"], nodes["nodes"][0]["id"]);
    assert!(info["uptime_ms"].is_u64() && info["version"].is_string(), "{info}");
    let echoed = client(&["call", "echo", "--registry", &url]).await.ended_with(0);
    assert_eq!(echoed.stdout, "null");
    let time = client(&["call", "time", "--registry", &url, "--format", "json"]).await.ended_with(0).json();
    assert!(time["result"]["unix_ms"].as_u64().unwrap() > 1_700_000_000_000, "{time}");
    let fail =
        client(&["call", "fail", "{\"code\":7,\"message\":\"no luck\"}", "--registry", &url]).await.ended_with(7);
    assert!(fail.stderr.contains("no luck (application, code 7)"), "{}", fail.stderr);

    let (client, call) = busy(&addr, 1500).await;
    server.terminate();
    server.stderr_line("draining", SOON).await;
    assert_eq!(call.await.unwrap().unwrap(), json!({"slept_ms":1500}), "what it had is still answered");
    drop(client);
    let ran = finish(&server).await.ended_with(0);
    assert_eq!(ran.stdout.lines().count(), 1, "{}", ran.stdout);
    assert!(!ran.stderr.contains('\x1b'), "no colour in a pipe: {}", ran.stderr);
}

/// A call that the server at `addr` is handling, for `ms` milliseconds.
pub(crate) async fn busy(addr: &str, ms: u64) -> (Client, JoinHandle<Result<Value, Error>>) {
    let client = Client::connect(&format!("static:{addr}")).await.unwrap();
    let options = CallOptions::new().timeout(Duration::from_secs(60));
    let (caller, sleep) = (client.clone(), json!({ "ms": ms }));
    let call = tokio::spawn(async move { caller.call_with("sleep", &sleep, &options).await });
    nodes_are(&client, "call in flight", |nodes| nodes.iter().any(|node| node.in_flight == 1)).await;
    // Requests of a connection are taken in order: once this is answered, the one before has begun.
    client.call::<_, Value>("time", &()).await.unwrap();
    (client, call)
}

#[tokio::test]
async fn a_second_signal_ends_a_server_at_once() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let (_dir, url) = registry();
        let (server, addr) = serve(&[], &url).await;
        let (_client, call) = busy(&addr, 60_000).await;
        server.signal(signal);
        server.stderr_line("draining", SOON).await;
        server.signal(signal);
        finish(&server).await.ended_with(code);
        call.await.unwrap().expect_err("it was cut off");
    }
}

#[tokio::test]
async fn a_port_in_use_ends_a_server_with_3() {
    let (_dir, url) = registry();
    let taken = std::net::TcpListener::bind(any_port()).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ran = finish(&start("rpc-server", &["--port", &port, "--registry", &url])).await.ended_with(3);
    assert!(ran.stderr.contains(&format!("127.0.0.1:{port}")) && ran.stderr.contains("in use"), "{}", ran.stderr);
    assert!(ran.stderr.contains("--port (0 picks a free one)"), "{}", ran.stderr);
    assert_eq!(ran.stdout, "");
}

#[tokio::test]
async fn an_address_that_the_registry_refuses_ends_a_server_with_3() {
    let (_dir, url) = registry();
    let elsewhere = ["--port", "0", "--advertise", "10.1.2.3:99", "--registry", &url];
    let ran = finish(&start("rpc-server", &elsewhere)).await.ended_with(3);
    assert!(ran.stderr.contains("10.1.2.3:99") && ran.stderr.contains("zk://"), "{}", ran.stderr);
    let unlisted = ["--port", "0", "--registry", "static:127.0.0.1:1"];
    let ran = finish(&start("rpc-server", &unlisted)).await.ended_with(3);
    assert!(ran.stderr.contains("static:127.0.0.1:1 does not list 127.0.0.1:"), "{}", ran.stderr);
    let (server, _) = serve(&["--advertise", "127.0.0.1:1"], "static:127.0.0.1:1").await;
    server.terminate();
    finish(&server).await.ended_with(0);
}

#[tokio::test]
async fn a_server_without_a_registry_serves_static_clients() {
    let server = start("rpc-server", &["--port", "0", "--registry", "none"]);
    let line = server.stdout_line("serving ", SOON).await;
    let url = format!("static:{}", line.strip_prefix("serving ").unwrap());
    client(&["call", "echo", "--registry", &url]).await.ended_with(0);
    server.terminate();
    let ran = finish(&server).await.ended_with(0);
    assert!(ran.stderr.lines().last().unwrap().contains("drained"), "{}", ran.stderr);
}

#[tokio::test]
async fn dead_nodes_are_shown_as_such() {
    let (dead, _held) = dead_address();
    let text = client(&["nodes", "--registry", &format!("static:{dead}")]).await.ended_with(0).stdout;
    let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..4], [&dead.to_string(), "-", "unreachable", "-"], "{text}");
}

#[tokio::test]
async fn two_servers_with_one_address_are_told_so() {
    let (_dir, url) = registry();
    let (first, addr) = serve(&[], &url).await;
    let second = start("rpc-server", &["--port", "0", "--advertise", &addr, "--registry", &url]);
    let line = second.stderr_line("belongs to another server", SOON).await;
    assert!(line.contains(&addr) && line.contains("--advertise"), "{line}");
    assert!(second.seen().stdout.is_empty());
    first.terminate();
    finish(&first).await.ended_with(0);
    second.stdout_line(&format!("serving {addr}"), SOON).await;
}

#[tokio::test]
async fn registry_and_address_come_from_the_environment_too() {
    let (_dir, url) = registry();
    let mut command = command("rpc-server", &["--port", "0"]);
    command.env("RPC_REGISTRY", &url).env("RPC_ADVERTISE", "127.0.0.1:7");
    let server = Process::start(command);
    server.stdout_line(&format!("serving 127.0.0.1:7 in {url}"), SOON).await;
    let mut command = self::command("rpc-client", &["nodes", "--format", "json"]);
    command.env("RPC_REGISTRY", &url);
    let nodes = finish(&Process::start(command)).await.ended_with(0).json();
    assert_eq!(nodes["nodes"][0]["node"], "127.0.0.1:7");
}

#[tokio::test]
async fn port_0_is_advertised_as_the_port_that_was_free() {
    let (_dir, url) = registry();
    let (_server, addr) = serve(&["--advertise", "127.0.0.1:0"], &url).await;
    assert!(!addr.ends_with(":0"), "{addr}");
    client(&["call", "echo", "[1]", "--registry", &url]).await.ended_with(0);
}

#[tokio::test]
async fn a_delay_is_added_to_each_answer() {
    let (_dir, url) = registry();
    let (_server, addr) = serve(&["--delay", "20ms-60ms"], &url).await;
    let arguments = ["bench", "echo", "-n", "40", "-c", "1", "--registry", &url, "--format", "json"];
    let json = client(&arguments).await.ended_with(0).json();
    let (p50, max) = (json["latency_us"]["p50"].as_u64().unwrap(), json["latency_us"]["max"].as_u64().unwrap());
    // Of 40 uniform draws the median is over 25 ms, and the longest at least 10 ms longer, but once in 10^7.
    assert!(p50 > 25_000 && max > p50 + 10_000, "{json}");
    assert_eq!(json["nodes"][&addr]["calls"], 40);
    let wrong = finish(&start("rpc-server", &["--port", "0", "--delay", "60ms-20ms"])).await.ended_with(2);
    assert!(wrong.stderr.contains("ends before it begins"), "{}", wrong.stderr);
}

#[tokio::test]
async fn a_server_accepts_while_the_registry_is_away_and_registers_when_it_comes() {
    let zookeeper = ZooKeeper::standalone().await;
    zookeeper.kill(0);
    let url = zookeeper.url("late");
    let server = start("rpc-server", &["--port", "0", "--registry", &url]);
    let line = server.stderr_line("accepting calls", SOON).await;
    let addr = line.split("addr=").nth(1).unwrap().trim().to_owned();
    server.stderr_line("not registered yet", SOON).await;
    client(&["call", "echo", "--registry", &format!("static:{addr}")]).await.ended_with(0);
    assert!(server.seen().stdout.is_empty());
    zookeeper.start(0).await;
    server.stdout_line(&format!("serving {addr} in {url}"), SOON).await;
    client(&["call", "echo", "--registry", &url]).await.ended_with(0);
    server.terminate();
    let ran = finish(&server).await.ended_with(0);
    let said = ran.stderr.lines().filter(|line| line.contains("not registered yet"));
    let reasons: Vec<&str> = said.map(|line| line.split("not registered yet").nth(1).unwrap()).collect();
    assert!(reasons.windows(2).all(|pair| pair[0] != pair[1]), "each reason is said once: {reasons:?}");
    let nodes = client(&["nodes", "--registry", &url, "--format", "json"]).await.ended_with(0).json();
    assert_eq!(nodes["nodes"], json!([]), "it left the registry");
}
