//! The node with the fewest calls.

use super::{Pick, Policy, Score, View};

/// Calls the node on which the fewest calls of this client wait; among equals any one, by chance.
/// Looks at every node.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastInFlight;

impl Policy for LeastInFlight {
    fn pick(&mut self, view: &dyn View, pick: &Pick<'_>) -> Option<usize> {
        let mut random = pick.random();
        let mut best = None;
        let mut least = u32::MAX;
        let mut equals = 0;
        for index in 0..view.len() {
            let in_flight = view.in_flight(index);
            if (in_flight > least && best.is_some()) || pick.is_excluded(view.id(index)) {
                continue;
            }
            if in_flight < least || best.is_none() {
                (best, least, equals) = (Some(index), in_flight, 1);
                continue;
            }
            // Keeping the k-th equal with probability 1/k makes all of them equally likely.
            equals += 1;
            if random.below(equals) == 0 {
                best = Some(index);
            }
        }
        best
    }

    fn scores(&self, view: &dyn View, pick: &Pick<'_>) -> Vec<Score> {
        let usable = (0..view.len()).map(|i| (i, view.node(i))).filter(|(_, node)| !pick.is_excluded(node.id));
        let score = |index, cost| Score { index, cost, terms: vec![("in_flight", cost)] };
        usable.map(|(index, node)| score(index, f64::from(node.in_flight))).collect()
    }

    fn copy(&self) -> Option<Box<dyn Policy>> {
        Some(Box::new(*self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::testing::{pick_id, share, view_of};

    #[test]
    fn takes_the_node_with_the_fewest_calls() {
        let mut view = view_of(&[1, 2, 3]);
        for (node, in_flight) in view.0.iter_mut().zip([4, 2, u32::MAX]) {
            node.in_flight = in_flight;
        }
        assert_eq!(pick_id(&mut LeastInFlight, &view, &[]), Some(2));
    }

    #[test]
    fn equals_share_the_calls() {
        let share = share(&mut LeastInFlight, &view_of(&[1, 2, 3, 4]), 20_000, |id| id == 4);
        assert!((0.23..0.27).contains(&share), "{share}");
    }
}
