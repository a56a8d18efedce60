//! Misfortune of every kind: a short run of `rpc_tests::chaos`.

use std::time::Duration;

use rpc_tests::chaos::{Options, run};
use rpc_tests::cluster;

async fn every_rule_holds(seed: u64) {
    let program = env!("CARGO_BIN_EXE_chaos").into();
    let report = run(&Options { seed, duration: Duration::from_secs(6), rate: 120, program }).await;
    let all = report.violations.join("\n");
    assert!(report.violations.is_empty(), "seed {seed}, logs {:?}:\n{all}", report.logs);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_known_misfortune_breaks_no_rule() {
    every_rule_holds(20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_other_misfortune_does() {
    every_rule_holds(cluster::seed()).await;
}
