//! The node that is expected to answer soonest.

use super::sample::{self, Drawn};
use super::{NodeView, Pick, Policy, View, cost};

/// Calls the better of two nodes by expected time: the own response time, or the registry's as
/// long as there is none of our own, times the calls in flight. With two nodes it sees both.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fastest;

impl Policy for Fastest {
    fn pick(&mut self, view: &dyn View, pick: &Pick<'_>) -> Option<usize> {
        match sample::two(view, pick, &mut pick.random()) {
            Drawn::Nothing => None,
            Drawn::One(only) => Some(only.index),
            Drawn::Two(a, b) => Some(if cheaper(&b.node, &a.node) { b.index } else { a.index }),
        }
    }

    fn copy(&self) -> Option<Box<dyn Policy>> {
        Some(Box::new(*self))
    }
}

fn cheaper(a: &NodeView, b: &NodeView) -> bool {
    let known_a = cost::latency_us(a.latency_us, a.registry_us);
    let known_b = cost::latency_us(b.latency_us, b.registry_us);
    let latency_a = known_a.or(known_b).unwrap_or(1.0);
    let latency_b = known_b.or(known_a).unwrap_or(1.0);
    cost::expected(a, latency_a) < cost::expected(b, latency_b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::testing::{pick_id, share, view_of};

    #[test]
    fn the_registry_counts_until_there_is_an_own_measurement() {
        let mut view = view_of(&[1, 2]);
        (view.0[0].registry_us, view.0[1].registry_us) = (9000, 2000);
        assert_eq!(pick_id(&mut Fastest, &view, &[]), Some(2));
        (view.0[0].latency_us, view.0[1].latency_us) = (Some(1000.0), Some(5000.0));
        assert_eq!(pick_id(&mut Fastest, &view, &[]), Some(1));
    }

    #[test]
    fn with_nothing_known_the_calls_are_shared() {
        let share = share(&mut Fastest, &view_of(&[1, 2, 3]), 20_000, |id| id == 2);
        assert!((0.31..0.36).contains(&share), "{share}");
    }
}
