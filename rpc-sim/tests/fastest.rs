//! What the default policy promises in situations of its own; how it does in the standard scenarios is
//! in `docs/BALANCING.md`.

use rpc_sim::outcome::Outcome;
use rpc_sim::policies::PolicyName;
use rpc_sim::scenario::Scenario;
use rpc_sim::simulation::Simulation;

const SEEDS: [u64; 3] = [101, 102, 103];

fn run(scenario: &str, policy: &str, seed: u64) -> Outcome {
    let scenario = Scenario::from_json(scenario).expect("it is well formed");
    Simulation::new(&scenario, &PolicyName::parse(policy).expect("it is a policy"), seed).run()
}

/// Ten calls of each of fifty clients that know the registry only; one of five servers is 20 times
/// slower.
fn fifty_new_clients(reports: bool, registry: bool, seed: u64) -> Outcome {
    let published = |ms: f64| if registry { format!(r#", "published_ms": {ms}"#) } else { String::new() };
    let text = format!(
        r#"{{"name": "new", "about": "", "duration_s": 1, "warmup_s": 0, "reports": {reports},
        "clients": {{"count": 50}}, "load": {{"calls_per_s": 500}},
        "servers": [{{"count": 4, "cores": 4{}}}, {{"count": 1, "cores": 4, "speed": 0.05{}}}],
        "work": {{"kind": "normal", "mean_ms": 20, "deviation_ms": 5}}}}"#,
        published(20.0),
        published(400.0)
    );
    run(&text, "fastest", seed)
}

#[test]
fn the_registry_keeps_new_clients_from_a_slow_server_and_from_herding() {
    let us = |outcome: &Outcome, quantile| outcome.latency.quantile_us(quantile);
    for seed in SEEDS {
        let blind = fifty_new_clients(false, false, seed);
        for reports in [false, true] {
            let told = fifty_new_clients(reports, true, seed);
            let (p95, p95_blind) = (us(&told, 0.95), us(&blind, 0.95));
            assert!(3 * p95 <= p95_blind, "seed {seed}, reports: {reports}, {p95} us instead of {p95_blind} us");
            let figures = told.figures();
            assert!(figures.top_share_percent < 40.0, "seed {seed}, reports: {reports}, {figures:?}");
        }
    }
    // Reports alone keep most calls away, but not those of before the slow server has answered.
    let slow = |registry| SEEDS.iter().map(|&seed| fifty_new_clients(true, registry, seed).answered[4]).sum::<u64>();
    let (told, untold) = (slow(true), slow(false));
    assert!(3 * told <= 2 * untold, "seeds {SEEDS:?}: {told} calls to the slow server instead of {untold}");
}

/// One call in 21 takes 20 times longer and has a key that belongs to the first of two equal
/// servers.
#[test]
fn a_server_that_gets_the_long_calls_keeps_its_share_of_the_others() {
    let text = r#"{"name": "keys", "about": "", "duration_s": 120, "clients": {"count": 5},
        "servers": [{"count": 2, "cores": 32}], "load": {"calls_per_s": 100}, "work": {"kind": "mix", "of": [
            {"share": 20, "work": {"kind": "normal", "mean_ms": 10, "deviation_ms": 3}},
            {"share": 1, "work": {"kind": "normal", "mean_ms": 200, "deviation_ms": 60}, "server": 0}]}}"#;
    let share = |policy, seed| {
        let answered = run(text, policy, seed).answered;
        answered[0] as f64 / answered.iter().sum::<u64>() as f64
    };
    for seed in SEEDS {
        let fastest = share("fastest", seed);
        assert!((0.45..0.55).contains(&fastest), "seed {seed}: {fastest}");
    }
    let by_response_times = share("p2c", SEEDS[0]);
    assert!(by_response_times < 0.2, "{by_response_times}");
}

/// Servers that wait instead of computing run any number of calls at once, whatever their hint says.
#[test]
fn servers_that_only_wait_leave_the_calls_to_the_fastest() {
    for seed in SEEDS {
        let outcome = run(include_str!("../scenarios/async3.json"), "fastest", seed);
        let share = outcome.answered[0] as f64 / outcome.answered.iter().sum::<u64>() as f64;
        assert!(share > 0.75, "seed {seed}: {share}");
    }
}
