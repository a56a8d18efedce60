//! What every choice reads of every report: a few cache lines, without a branch for each node.

use crate::balance::{NodeId, Random};

/// Reports kept: the most recent ones, one a node. More cost time on every call and gain nothing.
pub(super) const REPORTS_MAX: usize = 16;

/// No node has this identity.
const NOBODY: NodeId = NodeId(u64::MAX);

/// By the place of a report.
pub(super) type Each<T> = [T; REPORTS_MAX];

/// Of each report what does not depend on the call. Unused places cost infinitely much.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Hot {
    pub(super) nodes: Each<NodeId>,
    /// When it came, in microseconds.
    pub(super) at_us: Each<f64>,
    /// Until when the costs are near enough, in microseconds.
    pub(super) until_us: Each<f64>,
    /// Expected time over what the method usually takes.
    pub(super) by_ratio: Each<f64>,
    /// Expected time, in microseconds, of a method that no node has answered.
    pub(super) by_any: Each<f64>,
    /// Places whose costs do not hold any longer, a bit each.
    spoiled: u32,
    /// Until when all other costs are near enough.
    due_us: f64,
}

impl Default for Hot {
    fn default() -> Self {
        Self {
            nodes: [NOBODY; REPORTS_MAX],
            at_us: [f64::NEG_INFINITY; REPORTS_MAX],
            until_us: [f64::INFINITY; REPORTS_MAX],
            by_ratio: [f64::INFINITY; REPORTS_MAX],
            by_any: [f64::INFINITY; REPORTS_MAX],
            spoiled: 0,
            due_us: f64::INFINITY,
        }
    }
}

impl Hot {
    /// The place of a node's report.
    pub(super) fn place(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|&known| known == node)
    }

    /// A report came; its costs are yet to be worked out.
    pub(super) fn set(&mut self, place: usize, node: NodeId, at_us: f64) {
        (self.nodes[place], self.at_us[place]) = (node, at_us);
        self.spoil(place);
    }

    /// The costs do not hold any longer.
    pub(super) fn spoil(&mut self, place: usize) {
        self.until_us[place] = f64::NEG_INFINITY;
        self.spoiled |= 1 << place;
    }

    /// The costs hold until then.
    pub(super) fn worked_out(&mut self, place: usize, until_us: f64, [by_ratio, by_any]: [f64; 2]) {
        self.until_us[place] = until_us;
        self.due_us = self.due_us.min(until_us);
        (self.by_ratio[place], self.by_any[place]) = (by_ratio, by_any);
    }

    /// The places whose costs have to be worked out again: usually the one that was called last.
    pub(super) fn take_due(&mut self, now_us: f64) -> u32 {
        let spoiled = std::mem::take(&mut self.spoiled);
        if now_us < self.due_us {
            return spoiled;
        }
        let later = self.until_us.iter().filter(|&&until_us| until_us > now_us);
        self.due_us = later.fold(f64::INFINITY, |least, &until_us| least.min(until_us));
        within(&self.until_us, now_us)
    }

    /// Takes out one of `len` reports; the last one takes its place.
    pub(super) fn swap_remove(&mut self, place: usize, len: usize) {
        let last = len - 1;
        // Their bits do not move with them.
        self.due_us = f64::NEG_INFINITY;
        let empty = Self::default();
        self.nodes[place] = std::mem::replace(&mut self.nodes[last], NOBODY);
        let values = [
            (&mut self.at_us, empty.at_us[last]),
            (&mut self.until_us, empty.until_us[last]),
            (&mut self.by_ratio, empty.by_ratio[last]),
            (&mut self.by_any, empty.by_any[last]),
        ];
        for (values, unused) in values {
            values[place] = values[last];
            values[last] = unused;
        }
        if place == last {
            self.nodes[last] = NOBODY;
        }
    }

    /// What a call is expected to take at each, in microseconds, given what its method usually takes.
    pub(super) fn expected(&self, usual_us: Option<f64>) -> Each<f64> {
        let (factor, costs) = usual_us.map_or((1.0, &self.by_any), |us| (us, &self.by_ratio));
        let mut expected = *costs;
        expected.iter_mut().for_each(|cost| *cost *= factor);
        expected
    }

    /// How many of the nodes that may be called were heard of after this; no more than `enough` are
    /// counted, of which a busy client finds the first ones.
    pub(super) fn newer(&self, expected: &Each<f64>, than_us: f64, enough: usize) -> usize {
        let newer = expected.iter().zip(&self.at_us).filter(|(us, at_us)| **us < f64::INFINITY && **at_us > than_us);
        newer.take(enough).count()
    }
}

/// The lowest value; infinite if there is none.
pub(super) fn lowest(values: &Each<f64>) -> f64 {
    let lower = |least: f64, value: f64| if value < least { value } else { least };
    // Four at a time: one after the other each comparison would wait for the last one.
    let mut least = [f64::INFINITY; 4];
    for four in values.chunks_exact(4) {
        least.iter_mut().zip(four).for_each(|(least, &value)| *least = lower(*least, value));
    }
    least.into_iter().fold(f64::INFINITY, lower)
}

/// The places whose values are not above `limit`, a bit each.
fn within(values: &Each<f64>, limit: f64) -> u32 {
    let bit = |(place, &value): (usize, &f64)| u64::from(value <= limit) << place;
    values.iter().enumerate().map(bit).fold(0, |all, bit| all | bit) as u32
}

/// Any of the places whose values are not above `limit`, all equally likely.
pub(super) fn any_within(values: &Each<f64>, limit: f64, random: &mut Random) -> Option<usize> {
    let mut places = within(values, limit);
    let count = places.count_ones() as usize;
    if count > 1 {
        for _ in 0..random.below(count) {
            // Without its lowest bit.
            places &= places - 1;
        }
    }
    (count > 0).then(|| places.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(len: usize) -> Hot {
        let mut hot = Hot::default();
        for place in 0..len {
            hot.set(place, NodeId(place as u64), place as f64);
            (hot.until_us[place], hot.by_ratio[place], hot.by_any[place]) = (9.0, 1.0 + place as f64, 2.0);
        }
        hot
    }

    #[test]
    fn what_is_taken_out_leaves_no_gap_and_costs_infinitely_much() {
        for taken in 0..3 {
            let mut hot = filled(3);
            hot.swap_remove(taken, 3);
            assert_eq!(hot.place(NodeId(taken as u64)), None);
            let left = (0..3u64).filter(|&node| node != taken as u64).map(|node| hot.place(NodeId(node)));
            assert!(left.clone().all(|place| place.is_some_and(|place| place < 2)), "{:?}", hot.nodes);
            assert_eq!(hot.expected(Some(1.0)).iter().filter(|us| us.is_finite()).count(), 2);
            assert_eq!(hot.newer(&hot.expected(None), f64::NEG_INFINITY, 3), 2);
        }
    }

    #[test]
    fn costs_are_worked_out_again_once_when_their_time_has_come_or_something_changed() {
        let mut hot = Hot::default();
        (0..3).for_each(|place| hot.set(place, NodeId(place as u64), 0.0));
        assert_eq!(hot.take_due(1.0), 0b111, "they are new");
        (0..3).for_each(|place| hot.worked_out(place, 10.0 + place as f64, [1.0; 2]));
        assert_eq!(hot.take_due(9.0), 0);
        hot.spoil(2);
        assert_eq!(hot.take_due(9.0), 0b100);
        hot.worked_out(2, 12.0, [1.0; 2]);
        assert_eq!(hot.take_due(10.0), 0b001);
        hot.worked_out(0, 20.0, [1.0; 2]);
        assert_eq!(hot.take_due(10.5), 0);
        hot.spoil(2);
        hot.swap_remove(0, 3);
        assert_eq!(hot.take_due(11.0), 0b011, "the last one took the first place, and the second is due");
        (0..2).for_each(|place| hot.worked_out(place, 12.0, [1.0; 2]));
        assert_eq!(hot.take_due(11.0), 0);
    }

    #[test]
    fn any_place_within_the_limit_is_as_likely() {
        let expected = filled(5).expected(Some(10.0));
        assert_eq!(lowest(&expected), 10.0);
        let mut random = Random::new(1);
        let mut counts = [0; REPORTS_MAX];
        (0..3000).filter_map(|_| any_within(&expected, 30.0, &mut random)).for_each(|place| counts[place] += 1);
        assert!(counts[..3].iter().all(|count| (900..1100).contains(count)), "{counts:?}");
        assert_eq!(counts.iter().sum::<i32>(), 3000);
        assert_eq!(any_within(&expected, 9.0, &mut random), None);
    }
}
