//! The README keeps its word: its commands work, and its table has every default.

use std::fmt::Write;
use std::path::Path;

use rpc_tests::shell_blocks;

use crate::tidy::{code, rust_files};

fn readme() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).unwrap()
}

#[tokio::test]
async fn its_commands_work() {
    let mut broken = String::new();
    for section in shell_blocks::sections(&readme()) {
        if let Err(reason) = shell_blocks::run(&section).await {
            writeln!(broken, "{reason}").unwrap();
        }
    }
    assert!(broken.is_empty(), "\n{broken}");
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
