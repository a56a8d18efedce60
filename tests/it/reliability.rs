//! That `docs/RELIABILITY.md` names proofs that exist.

use std::collections::BTreeSet;

use crate::tidy::rust_files;

#[test]
fn every_proof_that_is_named_is_a_test() {
    let text = include_str!("../../docs/RELIABILITY.md");
    let mut tests = BTreeSet::new();
    for (_, text) in ["tests", "rpc-core", "rpc-client", "rpc-server"].iter().flat_map(|dir| rust_files(dir)) {
        for (_, after) in text.lines().filter_map(|line| line.trim_start().split_once("fn ")) {
            tests.extend(after.split(['(', '<']).next().map(str::to_owned));
        }
    }
    // Between two backticks, a name of at least four words in small letters is that of a test.
    let is_test = |name: &&str| name.matches('_').count() >= 3 && !name.contains(char::is_uppercase);
    let named: Vec<&str> = text.split('`').skip(1).step_by(2).filter(is_test).collect();
    let missing: Vec<_> = named.iter().filter(|name| !tests.contains(**name)).collect();
    assert!(named.len() > 30, "{named:?}");
    assert!(missing.is_empty(), "there are no such tests: {missing:?}");
}
