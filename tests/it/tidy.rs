//! The rules of the project that a program can check: who imports whom, how long things get, and
//! that documents name what the code has.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Longest file and function, in lines, tests not counted.
const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;

/// Most packages that embedding `rpc-client` without default features may bring, itself included.
const EMBEDDED_PACKAGES_MAX: usize = 80;

/// The workspace packages that each package may import. Those not listed may import all.
const IMPORTS: &[(&str, &[&str])] = &[
    ("rpc-core", &[]),
    ("rpc-server", &["rpc-core"]),
    ("rpc-client", &["rpc-core"]),
    ("rpc-sim", &["rpc-client", "rpc-core"]),
];

/// Where the sources of our packages lie that the containment rules hold for.
const SOURCES: &[&str] = &["rpc-core/src", "rpc-server/src", "rpc-client/src", "rpc-sim/src"];

/// `rpc-sim` is a program as a whole.
const BINARIES: &[&str] = &["rpc-server/src/bin/", "rpc-client/src/bin/", "rpc-sim/src/"];

/// Words that may appear below these paths only.
const CONTAINED: &[(&str, &[&str])] = &[
    ("zookeeper_client", &["rpc-core/src/registry/zookeeper"]),
    ("tokio_cron_scheduler", &["rpc-client/src/schedule.rs"]),
    ("hdrhistogram", &["rpc-core/src/latency.rs"]),
    ("rustls", &["rpc-core/src/tls"]),
    ("tokio_rustls", &["rpc-core/src/tls"]),
    ("webpki", &["rpc-core/src/tls"]),
    ("sha2", &["rpc-server/src/access.rs"]),
    ("subtle", &["rpc-server/src/access.rs"]),
    ("TcpStream", &["rpc-core/src/net.rs"]),
    ("x509_parser", &["rpc-client/src/bin/rpc-client/doctor/certificates.rs"]),
    ("clap", BINARIES),
    ("clap_complete", BINARIES),
    ("anyhow", BINARIES),
    ("comfy_table", BINARIES),
    ("tracing_subscriber", BINARIES),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}

/// The path and text of every Rust file below `directory`, paths relative to the root.
pub(crate) fn rust_files(directory: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut pending = vec![root().join(directory)];
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
            pending.extend(entries.filter(|p: &PathBuf| !p.ends_with("target")));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            found.push((path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned(), text));
        }
    }
    assert!(!found.is_empty(), "no Rust files below {directory}");
    found
}

/// The numbered lines of `text` before its unit tests; none of a file that holds tests only.
pub(crate) fn code<'a>(path: &str, text: &'a str) -> Vec<(usize, &'a str)> {
    if path.ends_with("/testing.rs") || path.ends_with("/tests.rs") {
        return Vec::new();
    }
    let lines: Vec<&str> = text.lines().collect();
    let tests =
        lines.windows(2).position(|w| w[0] == "#[cfg(test)]" && w[1].starts_with("mod ") && w[1].ends_with('{'));
    lines[..tests.unwrap_or(lines.len())].iter().enumerate().map(|(index, line)| (index + 1, *line)).collect()
}

/// Whether `line` names `word` as a whole identifier, outside of comments and strings.
fn names(line: &str, word: &str) -> bool {
    let identifier = |c: char| c.is_alphanumeric() || c == '_';
    let mut code = line.split('"').step_by(2).flat_map(|code| code.split(|c| !identifier(c)));
    !line.trim_start().starts_with("//") && code.any(|part| part == word)
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(root()).output().expect("cargo runs the tests");
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn check(broken: &str) {
    assert!(broken.is_empty(), "\n{broken}");
}

#[test]
fn packages_import_only_what_they_may() {
    let metadata = run(env!("CARGO"), &["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let ours: BTreeSet<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    let mut broken = String::new();
    for &(package, allowed) in IMPORTS {
        let manifest = packages.iter().find(|p| p["name"] == package).expect(package);
        for dependency in manifest["dependencies"].as_array().unwrap() {
            let name = dependency["name"].as_str().unwrap();
            if ours.contains(name) && !allowed.contains(&name) {
                writeln!(broken, "{package} may not import {name}").unwrap();
            }
        }
    }
    check(&broken);
}

#[test]
fn third_party_crates_stay_in_their_place() {
    let mut broken = String::new();
    for (path, text) in SOURCES.iter().flat_map(|directory| rust_files(directory)) {
        for (number, line) in code(&path, &text) {
            for (word, places) in CONTAINED {
                if names(line, word) && !places.iter().any(|place| path.starts_with(place)) {
                    writeln!(broken, "{path}:{number}: {word} belongs to {}", places.join(", ")).unwrap();
                }
            }
        }
    }
    check(&broken);
}

#[test]
fn time_is_tokios_and_no_test_is_ignored() {
    let mut broken = String::new();
    for (path, text) in rust_files(".") {
        for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line)) {
            if line.contains("std::time::") && names(line, "Instant") {
                writeln!(broken, "{path}:{number}: use tokio::time::Instant").unwrap();
            }
            if line.trim_start().starts_with("#[ignore") {
                writeln!(broken, "{path}:{number}: no test is ignored").unwrap();
            }
        }
    }
    check(&broken);
}

/// The name and length of each function with a body; relies on the layout that rustfmt makes.
fn functions<'a>(lines: &[(usize, &'a str)]) -> Vec<(&'a str, usize)> {
    let mut found = Vec::new();
    for (index, (_, line)) in lines.iter().enumerate() {
        let Some((before, after)) = line.trim_start().split_once("fn ") else { continue };
        let qualifiers = ["pub", "pub(crate)", "pub(super)", "const", "async"];
        if !before.split_whitespace().all(|word| qualifiers.contains(&word)) {
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        let last = lines[index..].iter().position(|(_, l)| {
            l.strip_prefix(indent)
                .is_some_and(|l| l.starts_with('}') || (!l.starts_with(' ') && l.ends_with([';', '}'])))
        });
        found.push((after.split(['(', '<']).next().unwrap(), last.unwrap_or(0) + 1));
    }
    found
}

#[test]
fn files_and_functions_stay_short() {
    let mut broken = String::new();
    for (path, text) in SOURCES.iter().chain(&["examples", "benches"]).flat_map(|directory| rust_files(directory)) {
        let lines = code(&path, &text);
        if lines.len() > FILE_LINES_MAX {
            writeln!(broken, "{path} has {} lines, the limit is {FILE_LINES_MAX}", lines.len()).unwrap();
        }
        for (name, length) in functions(&lines).into_iter().filter(|(_, length)| *length > FUNCTION_LINES_MAX) {
            writeln!(broken, "{path}: {name} has {length} lines, the limit is {FUNCTION_LINES_MAX}").unwrap();
        }
    }
    check(&broken);
}

#[test]
fn embedding_the_client_stays_light() {
    let tree = ["tree", "--package", "rpc-client", "--no-default-features", "--edges", "normal", "--prefix", "none"];
    let tree = run(env!("CARGO"), &tree);
    let packages: BTreeSet<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(packages.contains("tokio"), "{tree}");
    let heavy = [
        "zookeeper-client",
        "clap",
        "comfy-table",
        "anyhow",
        "crossterm",
        "console",
        "indicatif",
        "tracing-subscriber",
        "rustls",
        "ring",
    ];
    for name in heavy {
        assert!(!packages.contains(name), "{name} came along:\n{tree}");
    }
    assert!(packages.len() <= EMBEDDED_PACKAGES_MAX, "{} packages:\n{tree}", packages.len());
}
