//! What must hold for the simulator itself.

use rpc_sim::outcome::Outcome;
use rpc_sim::policies::PolicyName;
use rpc_sim::scenario::Scenario;
use rpc_sim::simulation::Simulation;

fn scenario(name: &str, duration_s: f64) -> Scenario {
    let mut all = Scenario::standard().expect("they are well formed").into_iter();
    let found = all.find(|s| s.name == name).expect("it is a standard scenario");
    Scenario { duration_s, ..found }
}

fn run(scenario: &Scenario, policy: &str, seed: u64) -> Outcome {
    Simulation::new(scenario, &PolicyName::parse(policy).expect("it is a policy"), seed).run()
}

#[test]
fn the_same_seed_gives_the_same_result_and_another_one_does_not() {
    let scenario = scenario("failfast", 4.0);
    for policy in ["fastest", "prequal", "p2c", "round_robin"] {
        let [first, again, other] = [1, 1, 2].map(|seed| format!("{:?}", run(&scenario, policy, seed).figures()));
        assert_eq!(first, again, "{policy}");
        assert_ne!(first, other, "{policy}");
    }
}

/// One server of four workers at 70 %: the mean wait is known from theory (Erlang C).
#[test]
fn a_queue_waits_as_long_as_theory_says() {
    let text = r#"{"name": "mm4", "about": "", "duration_s": 400, "warmup_s": 10, "clients": {"count": 5},
        "servers": [{"count": 1, "cores": 4, "discipline": "queue"}], "load": {"utilization": 0.7},
        "work": {"kind": "exponential", "mean_ms": 20}, "network": {"one_way_ms": 0.0, "jitter_ms": 0.0}}"#;
    let outcome = run(&Scenario::from_json(text).unwrap(), "random", 3);
    // Erlang C of 2.8 erlang on 4 workers: 0.4287 wait, 20 ms / (4 - 2.8) each on average.
    let waits = 0.4287 * (20.0 / (4.0 - 2.8));
    let mean_ms = mean_ms(&outcome);
    assert!((mean_ms / (20.0 + waits) - 1.0).abs() < 0.05, "{mean_ms}");
}

fn mean_ms(outcome: &Outcome) -> f64 {
    (0..1000).map(|i| outcome.latency.quantile_us((f64::from(i) + 0.5) / 1000.0) as f64 / 1e6).sum()
}

/// Published: about 95 % of the calls succeed by turns, 99 % by least loaded, 99.9 % by peak EWMA.
#[test]
fn buoyants_experiment_has_its_published_result() {
    let scenario = scenario("buoyant", 60.0);
    let failed = |policy| run(&scenario, policy, 1).figures().failed_percent;
    assert!((4.0..5.5).contains(&failed("round_robin")));
    assert!((0.5..1.5).contains(&failed("least_in_flight")));
    assert!(failed("p2c") < 0.3);
}

#[test]
fn the_published_design_herds_and_knowing_everything_is_best() {
    let scenario = scenario("homog70", 4.0);
    let [shortest, random, oracle] = ["shortest", "random", "oracle"].map(|policy| run(&scenario, policy, 1).figures());
    assert!(shortest.failed_percent > 10.0, "{shortest:?}");
    assert!(oracle.p99_ms < 0.75 * random.p99_ms, "{oracle:?} {random:?}");
    assert!(oracle.failed_percent == 0.0 && oracle.probes_per_call == 0.0);
}
