//! What `fastest` promises, one promise a test. How it does under load is tested in the simulator.

use super::*;
use crate::balance::LoadReport;
use crate::balance::testing::{Nodes, pick_id, share, view_of};

const METHOD: u32 = 7;
const RTT: Duration = Duration::from_micros(200);

fn report(in_flight: u32, service_us: f64) -> LoadReport {
    LoadReport { method: METHOD, in_flight, service_us, concurrency: 2.0, errors: 0.0, latency_us: service_us }
}

/// A cluster of reporting nodes, and the policy that has been told of it.
fn cluster(nodes: &[u64]) -> (Nodes, Fastest, Instant) {
    let mut view = view_of(nodes);
    view.0.iter_mut().for_each(|node| node.reports = true);
    let mut policy = Fastest::new();
    policy.observe(&Event::Members { nodes: &view.0.iter().map(|n| n.id).collect::<Vec<_>>() });
    (view, policy, Instant::now())
}

fn answer(policy: &mut Fastest, node: u64, now: Instant, report: LoadReport) {
    policy.observe(&Event::ProbeAnswer { node: NodeId(node), now, round_trip: RTT, report });
}

fn decide(policy: &mut Fastest, view: &Nodes, now: Instant, seed: u64, probed: u32) -> Decision {
    policy.decide(view, &Pick { method: METHOD, key: None, now, seed, excluded: &[], probed })
}

/// The shares of the nodes in a thousand calls that leave no trace.
fn sends(policy: &mut Fastest, view: &Nodes, now: Instant) -> Vec<f64> {
    let mut counts = vec![0.0; view.0.len()];
    for seed in 0..1000 {
        if let Decision::Send { index, .. } = decide(policy, view, now, seed, 1) {
            counts[index] += 0.001;
        }
    }
    counts
}

#[test]
fn without_reports_the_registry_counts_until_there_is_an_own_measurement() {
    let mut view = view_of(&[1, 2]);
    (view.0[0].registry_us, view.0[1].registry_us) = (9000, 2000);
    assert_eq!(pick_id(&mut Fastest::new(), &view, &[]), Some(2));
    (view.0[0].latency_us, view.0[1].latency_us) = (Some(1000.0), Some(5000.0));
    assert_eq!(pick_id(&mut Fastest::new(), &view, &[]), Some(1));
}

#[test]
fn with_nothing_known_the_calls_are_shared() {
    let share = share(&mut Fastest::new(), &view_of(&[1, 2, 3]), 20_000, |id| id == 2);
    assert!((0.31..0.36).contains(&share), "{share}");
}

#[test]
fn a_cold_client_waits_for_probes_and_a_warm_one_does_not() {
    let (view, mut policy, now) = cluster(&[1, 2, 3, 4]);
    let Decision::Probe { indices, wait_for } = decide(&mut policy, &view, now, 1, 0) else { panic!("it must ask") };
    assert_eq!((indices.len(), wait_for), (3, 2));
    (1..=4).for_each(|node| answer(&mut policy, node, now, report(0, 20_000.0)));
    let mut waits = |seed| matches!(decide(&mut policy, &view, now, seed, 0), Decision::Probe { wait_for: 1.., .. });
    assert_eq!((0..100).filter(|&seed| waits(seed)).count(), 0);
}

#[test]
fn when_all_known_nodes_have_a_queue_it_looks_for_others() {
    let (view, mut policy, now) = cluster(&[1, 2, 3, 4]);
    (1..=2).for_each(|node| answer(&mut policy, node, now, report(9, 20_000.0)));
    assert!(matches!(decide(&mut policy, &view, now, 1, 0), Decision::Probe { wait_for: 2, .. }));
}

#[test]
fn now_and_then_it_probes_a_node_without_waiting() {
    let (view, mut policy, now) = cluster(&[1, 2, 3, 4]);
    (1..=4).for_each(|node| answer(&mut policy, node, now, report(0, 20_000.0)));
    let mut probes = |seed| matches!(decide(&mut policy, &view, now, seed, 0), Decision::Probe { wait_for: 0, .. });
    let count = (0..1000).filter(|&seed| probes(seed)).count();
    assert!((200..300).contains(&count), "{count}");
}

#[test]
fn equal_nodes_share_the_calls_and_slower_or_busier_ones_get_none() {
    let (view, mut policy, now) = cluster(&[1, 2, 3, 4]);
    answer(&mut policy, 1, now, report(0, 20_000.0));
    answer(&mut policy, 2, now, report(0, 20_900.0));
    answer(&mut policy, 3, now, report(0, 30_000.0));
    answer(&mut policy, 4, now, report(4, 20_000.0));
    let shares = sends(&mut policy, &view, now);
    assert!((0.45..0.55).contains(&shares[0]) && (0.45..0.55).contains(&shares[1]), "{shares:?}");
}

#[test]
fn what_was_sent_counts_before_it_is_reported() {
    let (view, mut policy, now) = cluster(&[1, 2]);
    answer(&mut policy, 1, now, report(0, 20_000.0));
    answer(&mut policy, 2, now, report(0, 30_000.0));
    assert!(sends(&mut policy, &view, now)[0] > 0.99);
    (0..4).for_each(|_| policy.observe(&Event::Sent { node: NodeId(1), now }));
    assert_eq!(sends(&mut policy, &view, now)[0], 0.0);
}

#[test]
fn a_node_that_fails_fast_is_avoided() {
    let (mut view, mut policy, now) = cluster(&[1, 2]);
    answer(&mut policy, 1, now, LoadReport { errors: 0.3, ..report(0, 10_000.0) });
    answer(&mut policy, 2, now, report(0, 20_000.0));
    assert_eq!(sends(&mut policy, &view, now)[0], 0.0, "by its own account");
    answer(&mut policy, 1, now, report(0, 10_000.0));
    view.0[0].failure = 0.3;
    assert_eq!(sends(&mut policy, &view, now)[0], 0.0, "by what this client saw");
}

#[test]
fn a_silent_node_is_out_until_it_answers_and_nobody_waits_for_it() {
    let (view, mut policy, now) = cluster(&[1, 2]);
    answer(&mut policy, 1, now, report(0, 20_000.0));
    policy.observe(&Event::ProbeSilent { node: NodeId(2), now });
    for seed in 0..100 {
        match decide(&mut policy, &view, now, seed, 0) {
            Decision::Send { index, .. } => assert_eq!(index, 0),
            Decision::Probe { indices, wait_for } => assert_eq!((indices, wait_for), (vec![0], 0)),
            Decision::NoNode => panic!("there are two"),
        }
    }
    answer(&mut policy, 2, now, report(0, 5_000.0));
    assert!(sends(&mut policy, &view, now)[1] > 0.99);
}

#[test]
fn of_two_silent_nodes_the_one_that_others_found_quick_is_called() {
    let (mut view, mut policy, now) = cluster(&[1, 2]);
    (view.0[0].registry_us, view.0[1].registry_us) = (300_000, 1_000);
    (1..=2).for_each(|node| policy.observe(&Event::ProbeSilent { node: NodeId(node), now }));
    assert!(sends(&mut policy, &view, now)[1] > 0.99);
}

#[test]
fn a_bound_needs_a_second_node_and_refusals_left() {
    let (view, mut policy, now) = cluster(&[1, 2]);
    answer(&mut policy, 1, now, report(0, 20_000.0));
    let bound = |policy: &mut Fastest| match decide(policy, &view, now, 1, 1) {
        Decision::Send { bound, .. } => bound,
        Decision::Probe { .. } | Decision::NoNode => panic!("it has probed"),
    };
    assert_eq!(bound(&mut policy), None);
    answer(&mut policy, 2, now, report(0, 60_000.0));
    let second = report(0, 60_000.0).expected_us();
    assert!(bound(&mut policy).is_some_and(|b| b >= 1.9 * second && b < 2.1 * second));
    for _ in 0..40 {
        policy.observe(&Event::Refused { node: NodeId(1), now, report: Some(report(0, 20_000.0)) });
    }
    assert_eq!(bound(&mut policy), None);
}

#[test]
fn weights_shift_the_calls() {
    let (mut view, mut policy, now) = cluster(&[1, 2]);
    view.0[1].weight = 200;
    (1..=2).for_each(|node| answer(&mut policy, node, now, report(0, 20_000.0)));
    assert!(sends(&mut policy, &view, now)[1] > 0.99);
}

#[test]
fn a_node_that_happens_to_get_the_long_calls_is_not_slow() {
    const LONG: u32 = 8;
    let (view, mut policy, now) = cluster(&[1, 2]);
    for node in [1, 2] {
        answer(&mut policy, node, now, report(0, 20_000.0));
    }
    let node = NodeId(1);
    for _ in 0..50 {
        let report = Some(LoadReport { method: LONG, ..report(0, 400_000.0) });
        policy.observe(&Event::Reply { node, now, latency: RTT, ok: true, report });
    }
    let shares = sends(&mut policy, &view, now);
    assert!((0.45..0.55).contains(&shares[0]), "{shares:?}");
}

#[test]
fn a_node_that_is_slow_at_one_method_is_expected_to_be_slow_at_others() {
    const OTHER: u32 = 8;
    let (view, mut policy, now) = cluster(&[1, 2]);
    for _ in 0..50 {
        for (node, service_us) in [(1, 10_000.0), (2, 20_000.0)] {
            answer(&mut policy, node, now, report(0, service_us));
        }
    }
    let node = NodeId(1);
    let report = Some(LoadReport { method: OTHER, ..report(0, 500_000.0) });
    policy.observe(&Event::Reply { node, now, latency: RTT, ok: true, report });
    let pick = Pick { method: OTHER, key: None, now, seed: 3, excluded: &[], probed: 1 };
    let Decision::Send { index, .. } = policy.decide(&view, &pick) else { panic!("it has probed") };
    assert_eq!(index, 0, "twice as fast at the only method that both have answered");
}

#[test]
fn servers_that_do_not_name_the_method_are_compared_as_they_are() {
    let (view, mut policy, now) = cluster(&[1, 2]);
    for (node, service_us) in [(1, 10_000.0), (2, 20_000.0)] {
        answer(&mut policy, node, now, LoadReport { method: 0, ..report(0, service_us) });
    }
    assert!(sends(&mut policy, &view, now)[0] > 0.99);
}

#[test]
fn a_difference_that_may_be_noise_is_none() {
    let (view, mut policy, now) = cluster(&[1, 2]);
    for _ in 0..50 {
        answer(&mut policy, 1, now, report(0, 20_000.0));
        answer(&mut policy, 2, now, report(0, 24_000.0));
    }
    let shares = sends(&mut policy, &view, now);
    assert!((0.45..0.55).contains(&shares[0]), "{shares:?}");
}

#[test]
fn until_a_server_knows_itself_the_registry_tells_how_it_compares() {
    let (mut view, mut policy, now) = cluster(&[1, 2, 3]);
    (view.0[0].registry_us, view.0[1].registry_us, view.0[2].registry_us) = (30_000, 300_000, 33_000);
    (1..=3).for_each(|node| answer(&mut policy, node, now, report(0, 0.0)));
    let shares = sends(&mut policy, &view, now);
    assert!(shares[1] == 0.0 && (0.45..0.55).contains(&shares[0]), "{shares:?}");
    // Once it has answered, its own account counts.
    (1..=3).for_each(|node| answer(&mut policy, node, now, report(0, 20_000.0)));
    let shares = sends(&mut policy, &view, now);
    assert!(shares.iter().all(|share| (0.28..0.39).contains(share)), "{shares:?}");
}
