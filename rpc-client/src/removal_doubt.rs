//! Which removals from the list of nodes are believed.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

/// Unannounced removals within this time count together.
pub(crate) const WINDOW: Duration = Duration::from_secs(5);

/// Decides which nodes to keep although the registry does not list them any more.
///
/// A registry that restarts empty, or that lost the sessions of the servers, takes healthy nodes off
/// the list all at once. The servers put themselves back within seconds; until then calls must
/// go on. The rule:
///
/// * A node that *announced* its leaving (it was draining, or said goaway) is gone at once.
/// * A node whose connection is not alive is gone at once.
/// * Other removals are believed, unless by them at least two nodes and more than half of the list
///   have left unannounced within [`WINDOW`], or the list is left empty. Then all unannounced
///   removals of this list are doubted. Those believed earlier in the window stay believed.
/// * A doubted node is kept until it is listed again (then it is an ordinary node), or it announces
///   its leaving, or its connection closes or is refused. Time alone does not end the doubt:
///   what answers is used.
#[derive(Clone, Debug, Default)]
pub(crate) struct RemovalDoubt {
    listed: BTreeSet<SocketAddr>,
    doubted: BTreeSet<SocketAddr>,
    /// Unannounced removals within the window, believed or not, oldest first.
    vanished: VecDeque<(Instant, SocketAddr)>,
}

impl RemovalDoubt {
    /// Starts with an empty list.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Takes a new list and returns the nodes to keep beside it.
    ///
    /// `announced` says of a node whether it announced its leaving; `alive` whether its connection is
    /// open, or is being opened for the first time and has not been refused.
    pub(crate) fn apply(
        &mut self,
        now: Instant,
        list: impl IntoIterator<Item = SocketAddr>,
        announced: impl Fn(SocketAddr) -> bool,
        alive: impl Fn(SocketAddr) -> bool,
    ) -> &BTreeSet<SocketAddr> {
        let list: BTreeSet<SocketAddr> = list.into_iter().collect();
        self.vanished.retain(|&(at, node)| now.saturating_duration_since(at) <= WINDOW && !list.contains(&node));
        let unannounced: Vec<SocketAddr> =
            self.listed.difference(&list).copied().filter(|&node| !announced(node)).collect();
        self.vanished.extend(unannounced.iter().map(|&node| (now, node)));
        if !unannounced.is_empty() && self.is_doubtful(&list) {
            self.doubted.extend(unannounced);
        }
        self.doubted.retain(|&node| !list.contains(&node) && !announced(node) && alive(node));
        self.listed = list;
        &self.doubted
    }

    /// The connection of a node closed or was refused, or the node announced its leaving. `true` if the
    /// node was kept by doubt alone, and is gone now.
    pub(crate) fn believe(&mut self, node: SocketAddr) -> bool {
        self.doubted.remove(&node)
    }

    #[cfg(test)]
    /// The nodes that are kept although they are not listed.
    pub(crate) fn doubted(&self) -> &BTreeSet<SocketAddr> {
        &self.doubted
    }

    fn is_doubtful(&self, list: &BTreeSet<SocketAddr>) -> bool {
        let vanished = self.vanished.len();
        let before = list.len() + vanished;
        list.is_empty() || (vanished >= 2 && vanished * 2 > before)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn nodes(ports: &[u16]) -> BTreeSet<SocketAddr> {
        ports.iter().map(|&port| node(port)).collect()
    }

    fn with(now: Instant, ports: &[u16]) -> RemovalDoubt {
        let mut doubt = RemovalDoubt::new();
        assert!(doubt.apply(now, nodes(ports), |_| false, |_| true).is_empty());
        doubt
    }

    /// Applies a list while nobody announced anything and all connections are alive.
    fn apply(doubt: &mut RemovalDoubt, now: Instant, ports: &[u16]) -> BTreeSet<SocketAddr> {
        doubt.apply(now, nodes(ports), |_| false, |_| true).clone()
    }

    #[test]
    fn a_registry_that_comes_back_empty_takes_no_node_away() {
        let now = Instant::now();
        let mut doubt = with(now, &[1, 2, 3]);
        assert_eq!(apply(&mut doubt, now, &[]), nodes(&[1, 2, 3]));
        // The servers put themselves back, one after the other.
        assert_eq!(apply(&mut doubt, now + WINDOW * 9, &[2]), nodes(&[1, 3]));
        assert_eq!(apply(&mut doubt, now + WINDOW * 10, &[1, 2, 3]), nodes(&[]));
    }

    #[test]
    fn single_removals_are_believed() {
        let now = Instant::now();
        let mut doubt = with(now, &[1, 2, 3, 4]);
        assert_eq!(apply(&mut doubt, now, &[2, 3, 4]), nodes(&[]));
        assert_eq!(apply(&mut doubt, now, &[3, 4]), nodes(&[]), "two of four is not more than half");
        let mut pair = with(now, &[1, 2]);
        assert_eq!(apply(&mut pair, now, &[2]), nodes(&[]), "one of two is believed");
    }

    #[test]
    fn the_last_one_is_doubted() {
        let now = Instant::now();
        let mut doubt = with(now, &[1, 2]);
        apply(&mut doubt, now, &[2]);
        assert_eq!(apply(&mut doubt, now + WINDOW * 2, &[]), nodes(&[2]));
    }

    #[test]
    fn more_than_half_within_the_window_is_doubted_even_one_after_the_other() {
        let now = Instant::now();
        let mut doubt = with(now, &[1, 2, 3, 4]);
        apply(&mut doubt, now, &[2, 3, 4]);
        apply(&mut doubt, now + WINDOW / 4, &[3, 4]);
        assert_eq!(apply(&mut doubt, now + WINDOW / 2, &[4]), nodes(&[3]));

        let mut slow = with(now, &[1, 2, 3, 4]);
        apply(&mut slow, now, &[2, 3, 4]);
        apply(&mut slow, now + WINDOW * 2, &[3, 4]);
        assert_eq!(apply(&mut slow, now + WINDOW * 4, &[4]), nodes(&[]), "at leisure it is a scale-down");
    }

    #[test]
    fn a_node_that_said_so_is_gone_at_once() {
        let now = Instant::now();
        let mut doubt = with(now, &[1, 2, 3]);
        let kept = doubt.apply(now, [], |n| n == node(1) || n == node(2), |_| true).clone();
        assert_eq!(kept, nodes(&[3]), "the last one did not announce it");
        // It says goaway while it is doubted.
        let kept = doubt.apply(now, [], |n| n == node(3), |_| true).clone();
        assert_eq!(kept, nodes(&[]));
    }

    #[test]
    fn a_clean_shutdown_of_everything_is_believed() {
        let now = Instant::now();
        let mut doubt = with(now, &[1, 2, 3]);
        assert!(doubt.apply(now, [], |_| true, |_| true).is_empty());
    }

    #[test]
    fn a_doubted_node_goes_when_its_connection_does() {
        let now = Instant::now();
        let mut doubt = with(now, &[1, 2, 3]);
        let kept = doubt.apply(now, [], |_| false, |n| n != node(1)).clone();
        assert_eq!(kept, nodes(&[2, 3]), "1 has no connection any more");
        assert!(doubt.believe(node(2)));
        assert!(!doubt.believe(node(2)), "known already");
        assert_eq!(doubt.doubted(), &nodes(&[3]));
        assert!(!doubt.believe(node(9)));
    }

    #[test]
    fn a_node_that_flaps_counts_once() {
        let now = Instant::now();
        let mut doubt = with(now, &[1, 2, 3, 4]);
        for _ in 0..5 {
            assert_eq!(apply(&mut doubt, now, &[2, 3, 4]), nodes(&[]));
            assert_eq!(apply(&mut doubt, now, &[1, 2, 3, 4]), nodes(&[]));
        }
    }

    proptest! {
        #[test]
        fn what_is_kept_was_listed_is_alive_and_said_nothing(
            steps in prop::collection::vec(
                (0u64..8_000, prop::collection::btree_set(0u16..8, 0..8),
                 prop::collection::btree_set(0u16..8, 0..4), prop::collection::btree_set(0u16..8, 4..8)),
                1..30,
            ),
        ) {
            let mut now = Instant::now();
            let mut doubt = RemovalDoubt::new();
            let mut used = BTreeSet::new();
            for (wait_ms, list, announced, alive) in steps {
                now += Duration::from_millis(wait_ms);
                let list: BTreeSet<_> = list.into_iter().map(node).collect();
                let announced = |n: SocketAddr| announced.contains(&n.port());
                let alive = |n: SocketAddr| alive.contains(&n.port());
                let kept = doubt.apply(now, list.iter().copied(), announced, alive).clone();
                prop_assert!(kept.is_disjoint(&list));
                prop_assert!(kept.is_subset(&used), "nothing comes back from the dead");
                prop_assert!(kept.iter().all(|&n| !announced(n) && alive(n)));
                if list.is_empty() {
                    prop_assert!(used.iter().all(|&n| kept.contains(&n) || announced(n) || !alive(n)));
                }
                used = list.union(&kept).copied().collect();
            }
        }
    }
}
