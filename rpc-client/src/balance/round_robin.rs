//! Each node in turn.

use std::collections::{HashMap, VecDeque};

use super::{NodeId, Pick, Policy, Random, View};

/// Calls the node whose last turn is longest ago. When nodes leave, the others keep their order;
/// nodes that join come after those that were there. It begins anywhere, or clients started
/// together would go round in step.
#[derive(Clone, Debug, Default)]
pub struct RoundRobin {
    /// All nodes, the next one in front. The index in the view is checked before it is used.
    queue: VecDeque<(usize, NodeId)>,
}

impl RoundRobin {
    /// Nobody had a turn yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn take(&mut self, view: &dyn View, pick: &Pick<'_>) -> Taken {
        if self.queue.len() != view.len() {
            return Taken::OutOfDate;
        }
        for place in 0..self.queue.len() {
            let (index, id) = self.queue[place];
            if view.node(index).id != id {
                return Taken::OutOfDate;
            }
            if !pick.is_excluded(id) {
                self.queue.remove(place);
                self.queue.push_back((index, id));
                return Taken::Node(index);
            }
        }
        Taken::Nothing
    }

    fn follow_membership(&mut self, view: &dyn View, random: &mut Random) {
        let first = self.queue.is_empty();
        let mut joined: Vec<(usize, NodeId)> = (0..view.len()).map(|i| (i, view.node(i).id)).collect();
        let mut index_of: HashMap<NodeId, usize> = joined.iter().map(|&(index, id)| (id, index)).collect();
        let mut queue = VecDeque::with_capacity(view.len());
        for (_, id) in self.queue.drain(..) {
            if let Some(index) = index_of.remove(&id) {
                queue.push_back((index, id));
            }
        }
        joined.retain(|(index, id)| index_of.get(id) == Some(index));
        queue.extend(joined);
        if first && !queue.is_empty() {
            queue.rotate_left(random.below(queue.len()));
        }
        self.queue = queue;
    }
}

enum Taken {
    Node(usize),
    Nothing,
    OutOfDate,
}

impl Policy for RoundRobin {
    fn pick(&mut self, view: &dyn View, pick: &Pick<'_>) -> Option<usize> {
        match self.take(view, pick) {
            Taken::Node(index) => return Some(index),
            Taken::Nothing => return None,
            Taken::OutOfDate => self.follow_membership(view, &mut pick.random()),
        }
        match self.take(view, pick) {
            Taken::Node(index) => Some(index),
            Taken::Nothing | Taken::OutOfDate => None,
        }
    }

    fn copy(&self) -> Option<Box<dyn Policy>> {
        Some(Box::new(self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::testing::{ids, pick_id, view_of};

    fn turns(policy: &mut RoundRobin, nodes: &[u64], count: usize) -> Vec<u64> {
        (0..count).map(|_| pick_id(policy, &view_of(nodes), &[]).unwrap()).collect()
    }

    /// The nodes in the order of their turns, with the policy about to begin a round.
    fn begin(policy: &mut RoundRobin, nodes: &[u64]) -> Vec<u64> {
        turns(policy, nodes, nodes.len())
    }

    fn without(nodes: &[u64], gone: u64) -> Vec<u64> {
        nodes.iter().copied().filter(|&n| n != gone).collect()
    }

    #[test]
    fn goes_round() {
        let mut policy = RoundRobin::new();
        let mut order = begin(&mut policy, &[1, 2, 3]);
        assert_eq!(turns(&mut policy, &[1, 2, 3], 3), order);
        order.sort_unstable();
        assert_eq!(order, [1, 2, 3]);
        assert_eq!(pick_id(&mut RoundRobin::new(), &view_of(&[]), &[]), None);
        assert_eq!(turns(&mut RoundRobin::new(), &[5], 3), [5, 5, 5]);
    }

    #[test]
    fn clients_that_start_together_begin_anywhere() {
        let first = |seed| {
            let pick = Pick { method: 1, key: None, now: tokio::time::Instant::now(), seed, excluded: &[], probed: 0 };
            RoundRobin::new().pick(&view_of(&[1, 2, 3, 4]), &pick).unwrap()
        };
        let starts: std::collections::HashSet<usize> = (0..50).map(first).collect();
        assert_eq!(starts.len(), 4);
    }

    #[test]
    fn removing_the_last_called_node_skips_and_repeats_nobody() {
        let mut policy = RoundRobin::new();
        let order = begin(&mut policy, &[1, 2, 3, 4]);
        turns(&mut policy, &[1, 2, 3, 4], 2);
        let left = without(&[1, 2, 3, 4], order[1]);
        assert_eq!(turns(&mut policy, &left, 4), [order[2], order[3], order[0], order[2]]);
    }

    #[test]
    fn removing_the_next_node_skips_and_repeats_nobody_else() {
        let mut policy = RoundRobin::new();
        let order = begin(&mut policy, &[1, 2, 3, 4]);
        turns(&mut policy, &[1, 2, 3, 4], 1);
        let left = without(&[1, 2, 3, 4], order[1]);
        assert_eq!(turns(&mut policy, &left, 3), [order[2], order[3], order[0]]);
    }

    #[test]
    fn a_node_that_joins_anywhere_in_the_order_is_called_once_a_round() {
        let mut policy = RoundRobin::new();
        let order = begin(&mut policy, &[10, 20, 30]);
        turns(&mut policy, &[10, 20, 30], 2);
        let mut round = turns(&mut policy, &[5, 10, 20, 30], 4);
        assert_eq!(round[0], order[2], "the round that was begun goes on");
        round.sort_unstable();
        assert_eq!(round, [5, 10, 20, 30]);
    }

    #[test]
    fn one_node_replaced_by_another_at_the_same_place_is_noticed() {
        let mut policy = RoundRobin::new();
        begin(&mut policy, &[1, 2, 3]);
        let mut round = turns(&mut policy, &[1, 7, 3], 3);
        assert_eq!(round[2], 7);
        round.sort_unstable();
        assert_eq!(round, [1, 3, 7]);
    }

    #[test]
    fn an_excluded_node_keeps_its_turn() {
        let mut policy = RoundRobin::new();
        let order = begin(&mut policy, &[1, 2, 3]);
        let view = view_of(&[1, 2, 3]);
        assert_eq!(pick_id(&mut policy, &view, &ids(&[order[0]])), Some(order[1]));
        assert_eq!(pick_id(&mut policy, &view, &[]), Some(order[0]));
        assert_eq!(pick_id(&mut policy, &view, &ids(&[1, 2, 3])), None);
    }
}
