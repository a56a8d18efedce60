//! Views for the policies' tests, and what holds for every policy of the table.

use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;

use super::{Decision, Event, LoadReport, NodeId, NodeView, POLICIES, Pick, Policy, View, policy, record};

/// Nodes in the order given.
#[derive(Clone, Debug)]
pub(super) struct Nodes(pub(super) Vec<NodeView>);

impl View for Nodes {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn node(&self, index: usize) -> NodeView {
        self.0[index]
    }
}

pub(super) fn node(id: u64) -> NodeView {
    NodeView {
        id: NodeId(id),
        addr: SocketAddr::from(([10, 0, 0, 1], 8000)),
        weight: 100,
        in_flight: 0,
        latency_us: None,
        registry_us: 0,
        failure: 0.0,
        reports: false,
        report: None,
        usable_for: Duration::from_secs(60),
    }
}

pub(super) fn view_of(nodes: &[u64]) -> Nodes {
    Nodes(nodes.iter().map(|&id| node(id)).collect())
}

pub(super) fn ids(nodes: &[u64]) -> Vec<NodeId> {
    nodes.iter().copied().map(NodeId).collect()
}

pub(super) fn pick_id(policy: &mut dyn Policy, view: &Nodes, excluded: &[NodeId]) -> Option<u64> {
    let pick = Pick { method: 1, key: None, now: Instant::now(), seed: 1, excluded, probed: 0 };
    policy.pick(view, &pick).map(|index| view.0[index].id.0)
}

/// The share of `count` picks that chose a node for which `wanted` holds.
pub(super) fn share(policy: &mut dyn Policy, view: &Nodes, count: u64, wanted: impl Fn(u64) -> bool) -> f64 {
    let hit = |seed| {
        let pick = Pick { method: 1, key: None, now: Instant::now(), seed, excluded: &[], probed: 0 };
        wanted(view.0[policy.pick(view, &pick).expect("no node is excluded")].id.0)
    };
    (0..count).map(hit).filter(|&hit| hit).count() as f64 / count as f64
}

fn any_time_us() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), Just(f64::MAX), Just(f64::MIN_POSITIVE), 1.0..1e7]
}

fn any_share() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), Just(1.0), 0.0..1.0]
}

fn any_count() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(u32::MAX), 0u32..100]
}

fn any_report() -> impl Strategy<Value = LoadReport> {
    (0u32..100, any_count(), any_time_us(), any_time_us(), any_share(), any_time_us()).prop_map(
        |(method, in_flight, service_us, concurrency, errors, latency_us)| LoadReport {
            method,
            in_flight,
            service_us,
            concurrency,
            errors,
            latency_us,
        },
    )
}

fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(Duration::ZERO), Just(Duration::MAX), (0u64..10_000_000).prop_map(Duration::from_micros)]
}

fn any_node() -> impl Strategy<Value = NodeView> {
    let load = (any_count(), any_count(), proptest::option::of(any_time_us()), any_share(), any::<bool>());
    let registry = prop_oneof![Just(0), Just(u64::MAX), 1u64..10_000_000];
    let report = proptest::option::of((any_report(), any_duration()));
    (load, registry, report, any_duration(), 8000u16..8003).prop_map(
        |((weight, in_flight, latency_us, failure, reports), registry_us, report, usable_for, port)| NodeView {
            id: NodeId(0),
            addr: SocketAddr::from(([10, 0, 0, 1], port)),
            weight,
            in_flight,
            latency_us,
            registry_us,
            failure,
            reports,
            report,
            usable_for,
        },
    )
}

/// A change of the world or something that happened, to be applied to all nodes in view.
#[derive(Clone, Debug)]
enum Step {
    Nodes(Vec<NodeView>, u64),
    Pick { seed: u64, exclude_every: usize },
    Event { kind: u8, place: usize, ok: bool, report: LoadReport, time: Duration },
    Wait(Duration),
}

fn any_step() -> impl Strategy<Value = Step> {
    let nodes = prop_oneof![
        proptest::collection::vec(any_node(), 0..6),
        proptest::collection::vec(any_node(), 20..21),
        any_node().prop_map(|n| vec![n; 1000]),
    ];
    prop_oneof![
        1 => (nodes, 0u64..20).prop_map(|(nodes, first_id)| Step::Nodes(nodes, first_id)),
        6 => (any::<u64>(), 0usize..4).prop_map(|(seed, exclude_every)| Step::Pick { seed, exclude_every }),
        6 => (0u8..5, 0usize..30, any::<bool>(), any_report(), any_duration())
            .prop_map(|(kind, place, ok, report, time)| Step::Event { kind, place, ok, report, time }),
        1 => (0u64..20_000_000).prop_map(|us| Step::Wait(Duration::from_micros(us))),
    ]
}

fn observe(policy: &mut dyn Policy, view: &Nodes, now: Instant, step: &Step) {
    let Step::Event { kind, place, ok, report, time } = *step else { return };
    // Also nodes that left, whose replies still arrive.
    let node = view.0.get(place).map_or(NodeId(place as u64), |n| n.id);
    policy.observe(&match kind {
        0 => Event::Sent { node, now },
        1 => Event::Reply { node, now, latency: time, ok, report: ok.then_some(report) },
        2 => Event::Refused { node, now, report: Some(report) },
        3 => Event::ProbeAnswer { node, now, round_trip: time, report },
        _ => Event::ProbeSilent { node, now },
    });
}

/// Asks until the policy sends, as a client does, and checks all that it says on the way, and that
/// each decision can be made again from its record.
fn decide(policy: &mut dyn Policy, view: &Nodes, pick: &Pick<'_>) {
    for probed in 0..3 {
        let recorded = record(policy, view, &Pick { probed, ..*pick });
        if let Some(replay) = &recorded.replay {
            assert_eq!(replay.decide().as_ref(), Some(&recorded.decision), "a replay differs");
        }
        for candidate in &recorded.candidates {
            assert!(!candidate.score.cost.is_nan() && view.0[candidate.score.index].id == candidate.node.id);
            assert!(!pick.is_excluded(candidate.node.id), "compares an excluded node");
        }
        match recorded.decision {
            Decision::Probe { indices, wait_for } => {
                assert!(!indices.is_empty() && wait_for <= indices.len());
                for index in indices {
                    policy.observe(&Event::ProbeSilent { node: view.0[index].id, now: pick.now });
                }
            }
            Decision::Send { index, bound } => {
                assert!(!pick.is_excluded(view.0[index].id), "sends to an excluded node");
                assert!(bound.is_none_or(|b| b.is_finite() && b >= 0.0), "{bound:?}");
                return;
            }
            Decision::NoNode => {
                assert!(view.0.iter().all(|n| pick.is_excluded(n.id)), "finds none although there is one");
                return;
            }
        }
    }
    panic!("asks for probes again and again");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_policy_sends_to_a_node_in_view_that_is_not_excluded_and_would_again(
        steps in proptest::collection::vec(any_step(), 1..50),
    ) {
        for (name, _, _) in POLICIES {
            let mut policy = policy(name).expect("it is in the table");
            let mut view = Nodes(Vec::new());
            let mut now = Instant::now();
            for step in &steps {
                match step {
                    Step::Nodes(nodes, first_id) => {
                        view.0.clone_from(nodes);
                        let members: Vec<NodeId> = (*first_id..).map(NodeId).take(nodes.len()).collect();
                        view.0.iter_mut().zip(&members).for_each(|(node, id)| node.id = *id);
                        policy.observe(&Event::Members { nodes: &members });
                    }
                    Step::Pick { seed, exclude_every } => {
                        let excluded: Vec<NodeId> = match exclude_every {
                            0 => Vec::new(),
                            // A call does not get to try a thousand nodes.
                            every => view.0.iter().step_by(*every).map(|n| n.id).take(20).collect(),
                        };
                        let pick = Pick { method: 1, key: None, now, seed: *seed, excluded: &excluded, probed: 0 };
                        decide(policy.as_mut(), &view, &pick);
                    }
                    Step::Event { .. } => observe(policy.as_mut(), &view, now, step),
                    Step::Wait(time) => now += *time,
                }
            }
        }
    }
}

#[test]
fn the_table_has_each_name_once_and_the_default() {
    let mut names: Vec<&str> = POLICIES.iter().map(|(name, _, _)| *name).collect();
    assert!(names.contains(&super::POLICY_DEFAULT));
    assert!(policy("no such policy").is_none());
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), POLICIES.len());
}
