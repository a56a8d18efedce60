//! Two random choices by peak EWMA.

use super::sample::{self, Drawn};
use super::{NodeView, Pick, Policy, Score, View, cost};

/// Draws two different nodes and calls the one whose response time times its calls in flight is
/// lower (Mitzenmacher, "The power of two choices in randomized load balancing", 2001; peak EWMA
/// as in Finagle). An unknown node counts as equal to the other one.
#[derive(Clone, Copy, Debug, Default)]
pub struct TwoChoices;

impl Policy for TwoChoices {
    fn pick(&mut self, view: &dyn View, pick: &Pick<'_>) -> Option<usize> {
        match sample::two(view, pick, &mut pick.random()) {
            Drawn::Nothing => None,
            Drawn::One(only) => Some(only),
            Drawn::Two(a, b) => Some(if cheaper(&view.node(b), &view.node(a)) { b } else { a }),
        }
    }

    fn scores(&self, view: &dyn View, pick: &Pick<'_>) -> Vec<Score> {
        let Drawn::Two(a, b) = sample::two(view, pick, &mut pick.random()) else { return Vec::new() };
        let (node_a, node_b) = (view.node(a), view.node(b));
        let (latency_a, latency_b) = latencies(&node_a, &node_b);
        vec![cost::score(a, &node_a, latency_a), cost::score(b, &node_b, latency_b)]
    }

    fn copy(&self) -> Option<Box<dyn Policy>> {
        Some(Box::new(*self))
    }
}

fn cheaper(a: &NodeView, b: &NodeView) -> bool {
    let (latency_a, latency_b) = latencies(a, b);
    cost::expected(a, latency_a) < cost::expected(b, latency_b)
}

fn latencies(a: &NodeView, b: &NodeView) -> (f64, f64) {
    let (known_a, known_b) = (cost::latency_us(a.latency_us, 0), cost::latency_us(b.latency_us, 0));
    // Neither best nor worst: the first would flood a new node, the second starve it.
    (known_a.or(known_b).unwrap_or(1.0), known_b.or(known_a).unwrap_or(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::testing::{share, view_of};

    fn first_share(change: impl Fn(&mut NodeView, &mut NodeView)) -> f64 {
        let mut view = view_of(&[1, 2]);
        let (a, b) = view.0.split_at_mut(1);
        change(&mut a[0], &mut b[0]);
        share(&mut TwoChoices, &view, 2000, |id| id == 1)
    }

    #[test]
    fn compares_the_expected_time() {
        let both = |a: &mut NodeView, b: &mut NodeView| (a.latency_us, b.latency_us) = (Some(1e3), Some(5e3));
        assert_eq!(first_share(both), 1.0);
        let busy = |a: &mut NodeView, b: &mut NodeView| {
            both(a, b);
            a.in_flight = 9;
        };
        assert_eq!(first_share(busy), 0.0);
        let failing = |a: &mut NodeView, b: &mut NodeView| {
            both(a, b);
            a.failure = 0.5;
        };
        assert_eq!(first_share(failing), 0.0);
        let heavy = |a: &mut NodeView, b: &mut NodeView| {
            both(a, b);
            b.weight = 1000;
        };
        assert_eq!(first_share(heavy), 0.0);
    }

    #[test]
    fn an_unknown_node_is_neither_flooded_nor_starved() {
        let share = first_share(|a, _| a.latency_us = Some(1e3));
        assert!((0.45..0.55).contains(&share), "{share}");
        assert_eq!(first_share(|a, _| (a.latency_us, a.in_flight) = (Some(1e3), 1)), 0.0);
        assert_eq!(first_share(|_, b| (b.latency_us, b.in_flight) = (None, 1)), 1.0);
    }
}
