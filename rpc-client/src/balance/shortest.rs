//! The lowest response time in the registry.

use super::{Pick, Policy, Score, View};

/// Calls the node with the lowest response time in the registry; 0, unknown, comes first; among
/// equals the first. For comparison: every client follows the same minimum, whose value changes
/// only after the damage, so they pile onto one node. Looks at every node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shortest;

impl Policy for Shortest {
    fn pick(&mut self, view: &dyn View, pick: &Pick<'_>) -> Option<usize> {
        let usable = (0..view.len()).map(|i| (i, view.node(i))).filter(|(_, node)| !pick.is_excluded(node.id));
        usable.min_by_key(|(_, node)| node.registry_us).map(|(index, _)| index)
    }

    fn scores(&self, view: &dyn View, pick: &Pick<'_>) -> Vec<Score> {
        let usable = (0..view.len()).map(|i| (i, view.node(i))).filter(|(_, node)| !pick.is_excluded(node.id));
        let score = |index, cost| Score { index, cost, terms: vec![("registry_us", cost)] };
        usable.map(|(index, node)| score(index, node.registry_us as f64)).collect()
    }

    fn copy(&self) -> Option<Box<dyn Policy>> {
        Some(Box::new(*self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::testing::{pick_id, view_of};

    #[test]
    fn takes_the_lowest_value_and_the_first_of_equals() {
        let mut view = view_of(&[1, 2, 3, 4]);
        for (node, us) in view.0.iter_mut().zip([9, 5, 5, 7]) {
            node.registry_us = us;
        }
        assert_eq!(pick_id(&mut Shortest, &view, &[]), Some(2));
        view.0[3].registry_us = 0;
        assert_eq!(pick_id(&mut Shortest, &view, &[]), Some(4));
    }
}
