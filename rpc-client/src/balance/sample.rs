//! Drawing usable nodes at random without looking at all of them.

use super::{NodeView, Pick, Random, View};

/// Draws before all nodes are looked at. With half of the nodes excluded, all draws miss once in
/// 65,000 picks.
const DRAWS_MAX: u32 = 16;

/// A node and its place in the view.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// Index in the view.
    pub(super) index: usize,
    /// The node itself.
    pub(super) node: NodeView,
}

/// What was drawn.
#[expect(clippy::large_enum_variant, reason = "lives for one pick, which is not to allocate")]
#[derive(Clone, Copy, Debug)]
pub(super) enum Drawn {
    /// Every node is excluded, or there is none.
    Nothing,
    /// The index of the only node that may be chosen.
    One(usize),
    /// Two different nodes.
    Two(Candidate, Candidate),
}

/// The index of a node, uniformly, among those that are not excluded.
pub(super) fn one(view: &dyn View, pick: &Pick<'_>, random: &mut Random) -> Option<usize> {
    match view.len() {
        0 => None,
        // The usual first attempt of a call does without looking at the node.
        len if pick.excluded.is_empty() => Some(random.below(len)),
        _ => draw(view, pick, random, None).map(|candidate| candidate.index),
    }
}

/// Two different nodes, uniformly, if there are two that are not excluded.
pub(super) fn two(view: &dyn View, pick: &Pick<'_>, random: &mut Random) -> Drawn {
    if pick.excluded.is_empty() {
        return match view.len() {
            0 => Drawn::Nothing,
            1 => Drawn::One(0),
            len => {
                let first = random.below(len);
                let other = random.below(len - 1);
                Drawn::Two(at(view, first), at(view, other + usize::from(other >= first)))
            }
        };
    }
    let Some(first) = draw(view, pick, random, None) else { return Drawn::Nothing };
    match draw(view, pick, random, Some(first.index)) {
        Some(second) => Drawn::Two(first, second),
        None => Drawn::One(first.index),
    }
}

/// Indices of up to `count` different nodes that may be chosen and answer probes.
pub(super) fn several(view: &dyn View, pick: &Pick<'_>, random: &mut Random, count: usize) -> Vec<usize> {
    let mut drawn = Vec::with_capacity(count);
    // Enough to find three of four in a cluster as small as that, most of the time.
    for _ in 0..count * 4 {
        if drawn.len() == count.min(view.len()) {
            break;
        }
        let candidate = at(view, random.below(view.len()));
        let usable = candidate.node.reports && !pick.is_excluded(candidate.node.id);
        if usable && !drawn.contains(&candidate.index) {
            drawn.push(candidate.index);
        }
    }
    drawn
}

fn draw(view: &dyn View, pick: &Pick<'_>, random: &mut Random, not: Option<usize>) -> Option<Candidate> {
    let len = view.len();
    // Draws among a handful of nodes miss often; looking at all of them is then cheaper.
    if len > DRAWS_MAX as usize {
        for _ in 0..DRAWS_MAX {
            let candidate = at(view, random.below(len));
            if Some(candidate.index) != not && !pick.is_excluded(candidate.node.id) {
                return Some(candidate);
            }
        }
    }
    let left = || (0..len).filter(|&i| Some(i) != not).map(|i| at(view, i)).filter(|c| !pick.is_excluded(c.node.id));
    match left().count() {
        0 => None,
        count => left().nth(random.below(count)),
    }
}

fn at(view: &dyn View, index: usize) -> Candidate {
    Candidate { index, node: view.node(index) }
}
