//! The README keeps its word: its commands work, and its table has every default.

use std::fmt::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use rpc_tests::shell_blocks;

use crate::tidy::{code, rust_files};

fn readme() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).unwrap()
}

/// The section that starts a ZooKeeper.
const ON_ZOOKEEPER: &str = "The same on ZooKeeper";

#[tokio::test]
async fn its_commands_work() {
    let mut broken = String::new();
    for section in shell_blocks::sections(&readme()).iter().filter(|section| section.heading != ON_ZOOKEEPER) {
        if let Err(reason) = shell_blocks::run(section).await {
            writeln!(broken, "{reason}").unwrap();
        }
    }
    assert!(broken.is_empty(), "\n{broken}");
}

/// With other ports, and a tenth of the delays. What stays unrun is for production: it names machines that nobody has.
#[tokio::test]
async fn its_commands_work_on_zookeeper() {
    let port = port_for_zookeeper().to_string();
    let mut text = readme();
    for (of_readme, of_test) in [
        ("2181", &*port),
        ("--port 8898", "--port 0"),
        ("--port 8899", "--port 0"),
        ("0ms-1000ms", "0ms-100ms"),
        ("0ms-3000ms", "0ms-300ms"),
    ] {
        assert!(text.contains(of_readme), "{of_readme}");
        text = text.replace(of_readme, of_test);
    }
    let sections = shell_blocks::sections(&text);
    let section = sections.iter().find(|section| section.heading == ON_ZOOKEEPER).unwrap();
    let log = shell_blocks::run(section).await.unwrap_or_else(|reason| panic!("{reason}"));
    let registry = format!("zk://127.0.0.1:{port}/rpc");
    let serving: Vec<_> = log.lines().filter_map(|line| line.strip_prefix("serving ")?.split_once(" in ")).collect();
    let [(first, of_first), (second, of_second)] = serving[..] else { panic!("{log}") };
    assert_eq!((of_first, of_second), (&*registry, &*registry), "{log}");
    let (_, printed) = log.split_once("+ rpc-client nodes").unwrap();
    let (nodes, report) = printed.split_once("+ rpc-client bench").unwrap();
    for node in [first, second] {
        assert_eq!(row(nodes, node)[2], "up", "{log}");
    }
    assert!(report.contains("errors   none"), "{log}");
    assert!(row(report, first)[1].parse::<f64>().unwrap() > 50.0, "the quicker one gets most calls: {log}");
}

/// The cells of the row that a table has for `node`.
fn row<'a>(table: &'a str, node: &str) -> Vec<&'a str> {
    let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.find(|cells| cells.first() == Some(&node)).unwrap_or_else(|| panic!("{node} has no row: {table}"))
}

/// A free port below those that the system gives to whoever asks for any: nobody has it until ZooKeeper does.
fn port_for_zookeeper() -> u16 {
    let start = 20_000 + (std::process::id() % 10_000) as u16;
    (start..32_000).find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()).unwrap()
}

/// The programs of the section about one's own: compiled here, as they stand in the README.
#[path = "../own_program/client.rs"]
#[expect(dead_code, reason = "it is compiled, not run")]
mod own_client;
#[path = "../own_program/server.rs"]
#[expect(dead_code, reason = "it is compiled, not run")]
mod own_server;

#[test]
fn its_programs_are_those_that_compile() {
    let readme = readme();
    for (language, file) in [("toml", "Cargo.toml.txt"), ("rust,no_run", "server.rs"), ("rust,no_run", "client.rs")] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("own_program").join(file);
        let block = format!("```{language}\n{}```\n", std::fs::read_to_string(path).unwrap());
        assert!(readme.contains(&block), "README.md is to have tests/own_program/{file} as it is:\n{block}");
    }
}

/// Facts of the wire that are no defaults; docs/PROTOCOL.md has them.
const NOT_OPTIONS: &[&str] = &["protocol::LENGTH_BYTES", "protocol::PROTOCOL_VERSION"];

/// A default or limit that users meet: a public constant that is a number or a time, or any that
/// calls itself a default.
fn constant(line: &str) -> Option<&str> {
    let (public, rest) = match line.strip_prefix("pub const ") {
        Some(rest) => (true, rest),
        None => (false, line.strip_prefix("const ")?),
    };
    let (name, rest) = rest.split_once(": ")?;
    let kind = rest.split(" = ").next()?;
    let is_value = ["Duration", "usize", "u32", "u64", "f64"].contains(&kind);
    ((public && is_value) || name.ends_with("_DEFAULT")).then_some(name)
}

#[test]
fn its_table_has_every_default() {
    let readme = readme();
    // The commands tell theirs with `--help`.
    let files = ["rpc-core/src", "rpc-server/src", "rpc-client/src"].into_iter().flat_map(rust_files);
    let files = files.filter(|(path, _)| !path.contains("/src/bin/"));
    let mut found = Vec::new();
    for (path, text) in files {
        let module = path.trim_end_matches(".rs").trim_end_matches("/mod").rsplit('/').next().unwrap();
        let names = code(&path, &text).into_iter().filter_map(|(_, line)| constant(line));
        found.extend(names.map(|name| format!("{module}::{name}")));
    }
    assert!(found.iter().any(|name| name == "protocol::CALL_TIMEOUT"), "{found:?}");
    found.retain(|name| !NOT_OPTIONS.contains(&&**name) && !readme.contains(&format!("`{name}`")));
    assert!(found.is_empty(), "README.md lacks rows for {found:#?}");
}
