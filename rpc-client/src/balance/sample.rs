//! Drawing usable nodes at random without looking at all of them.

use super::{Pick, Random, View};

/// Draws before all nodes are looked at. With half of the nodes excluded, all draws miss once in
/// 65,000 picks.
const DRAWS_MAX: u32 = 16;

/// Indices that were drawn.
#[derive(Clone, Copy, Debug)]
pub(super) enum Drawn {
    /// Every node is excluded, or there is none.
    Nothing,
    /// The only node that may be chosen.
    One(usize),
    /// Two different nodes.
    Two(usize, usize),
}

/// The index of a node, uniformly, among those that are not excluded.
pub(super) fn one(view: &dyn View, pick: &Pick<'_>, random: &mut Random) -> Option<usize> {
    match view.len() {
        0 => None,
        // The usual first attempt of a call does without looking at the node.
        len if pick.excluded.is_empty() => Some(random.below(len)),
        _ => draw(view, pick, random, None),
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
                Drawn::Two(first, other + usize::from(other >= first))
            }
        };
    }
    let Some(first) = draw(view, pick, random, None) else { return Drawn::Nothing };
    match draw(view, pick, random, Some(first)) {
        Some(second) => Drawn::Two(first, second),
        None => Drawn::One(first),
    }
}

/// Indices of up to `count` different nodes that may be chosen and answer probes.
pub(super) fn several(view: &dyn View, pick: &Pick<'_>, random: &mut Random, count: usize) -> Vec<usize> {
    let len = view.len();
    let mut drawn = Vec::with_capacity(count);
    // Enough to find three of four in a cluster as small as that, most of the time.
    for _ in 0..count * 4 {
        if drawn.len() == count.min(len) {
            break;
        }
        let index = random.below(len);
        let excluded = || !pick.excluded.is_empty() && pick.is_excluded(view.id(index));
        if !drawn.contains(&index) && view.reports(index) && !excluded() {
            drawn.push(index);
        }
    }
    drawn
}

fn draw(view: &dyn View, pick: &Pick<'_>, random: &mut Random, not: Option<usize>) -> Option<usize> {
    let len = view.len();
    let may = |index: usize| Some(index) != not && !pick.is_excluded(view.id(index));
    // Draws among a handful of nodes miss often; looking at all of them is then cheaper.
    if len > DRAWS_MAX as usize {
        for _ in 0..DRAWS_MAX {
            let index = random.below(len);
            if may(index) {
                return Some(index);
            }
        }
    }
    let left = || (0..len).filter(|&index| may(index));
    match left().count() {
        0 => None,
        count => left().nth(random.below(count)),
    }
}
