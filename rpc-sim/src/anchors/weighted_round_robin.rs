//! Round robin by the speed that each node reports (after gRFC A58).

use std::time::Duration;

use rpc_client::balance::{Event, NodeId, Pick, Policy, View};
use tokio::time::Instant;

/// How often weights are made anew.
const PERIOD: Duration = Duration::from_secs(1);

/// A weight is within this factor of the mean.
const SPREAD: f64 = 10.0;

/// Earliest deadline first over weights = what a node can do at once / its service time, averaged
/// over the replies of the last period. A node without a weight has the mean one.
#[derive(Clone, Debug, Default)]
pub struct WeightedRoundRobin {
    /// By the number of the node, which is small here.
    nodes: Vec<Turn>,
    mean_weight: f64,
    now_turn: f64,
    weighed_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    next: f64,
    weight: Option<f64>,
    answers: f64,
    capacity: f64,
}

impl WeightedRoundRobin {
    fn weigh(&mut self, now: Instant) {
        if self.weighed_at.is_some_and(|at| now.saturating_duration_since(at) < PERIOD) {
            return;
        }
        let first = self.weighed_at.is_none();
        self.weighed_at = Some(now);
        if first {
            return;
        }
        for turn in self.nodes.iter_mut().filter(|turn| turn.answers > 0.0) {
            turn.weight = Some(turn.capacity / turn.answers);
            (turn.answers, turn.capacity) = (0.0, 0.0);
        }
        let weights: Vec<f64> = self.nodes.iter().filter_map(|turn| turn.weight).collect();
        if !weights.is_empty() {
            self.mean_weight = weights.iter().sum::<f64>() / weights.len() as f64;
        }
    }

    fn turn(&mut self, node: NodeId) -> &mut Turn {
        let place = node.0 as usize;
        if place >= self.nodes.len() {
            self.nodes.resize(place + 1, Turn::default());
        }
        &mut self.nodes[place]
    }

    fn weight(&self, turn: &Turn) -> f64 {
        let mean = if self.mean_weight > 0.0 { self.mean_weight } else { 1.0 };
        turn.weight.unwrap_or(mean).clamp(mean / SPREAD, mean * SPREAD)
    }
}

impl Policy for WeightedRoundRobin {
    fn pick(&mut self, view: &dyn View, pick: &Pick<'_>) -> Option<usize> {
        self.weigh(pick.now);
        let mut random = pick.random();
        let mut best: Option<(usize, NodeId, f64)> = None;
        for index in 0..view.len() {
            let id = view.id(index);
            let turn = *self.turn(id);
            // A node that joins, or all at the start, begin somewhere within one round.
            let next = if turn.next == 0.0 { self.now_turn + random.unit() / self.weight(&turn) } else { turn.next };
            self.turn(id).next = next;
            if !pick.is_excluded(id) && best.is_none_or(|(_, _, soonest)| next < soonest) {
                best = Some((index, id, next));
            }
        }
        let (index, id, next) = best?;
        self.now_turn = self.now_turn.max(next);
        let turn = *self.turn(id);
        self.turn(id).next = self.now_turn + 1.0 / self.weight(&turn);
        Some(index)
    }

    fn observe(&mut self, event: &Event<'_>) {
        let Event::Reply { node, ok: true, report: Some(report), .. } = event else { return };
        let turn = self.turn(*node);
        turn.answers += 1.0;
        turn.capacity += report.concurrency / report.service_us.max(1.0);
    }

    fn observes(&self) -> bool {
        true
    }
}
