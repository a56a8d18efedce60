//! Any node.

use super::{Pick, Policy, View, sample};

/// Calls a node chosen uniformly at random.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomChoice;

impl Policy for RandomChoice {
    fn pick(&mut self, view: &dyn View, pick: &Pick<'_>) -> Option<usize> {
        sample::one(view, pick, &mut pick.random())
    }

    fn copy(&self) -> Option<Box<dyn Policy>> {
        Some(Box::new(*self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::testing::{share, view_of};

    #[test]
    fn all_nodes_get_the_same_share_beyond_ten_thousand_too() {
        let nodes: Vec<u64> = (0..20_000).collect();
        let upper_half = share(&mut RandomChoice, &view_of(&nodes), 20_000, |id| id >= 10_000);
        assert!((0.48..0.52).contains(&upper_half), "{upper_half}");
        let first_of_three = share(&mut RandomChoice, &view_of(&[1, 2, 3]), 20_000, |id| id == 1);
        assert!((0.32..0.35).contains(&first_of_three), "{first_of_three}");
    }
}
