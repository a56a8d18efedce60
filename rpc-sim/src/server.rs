//! A simulated server: cores that its requests share, or workers and a queue.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use rpc_core::LoadMeter;

use crate::clock::{Clock, Nanos};
use crate::scenario::Discipline;

/// A server.
#[derive(Debug)]
pub struct Server {
    /// Whether it is in the registry.
    pub present: bool,
    /// The account that it gives of itself.
    pub meter: LoadMeter,
    /// Requests on their way to it or in it.
    pub assigned: u32,
    /// Requests that it answered within the counted time.
    pub answered: u64,
    /// Instead of working it fails requests after this time.
    pub fails_after: Option<Nanos>,
    /// What arrived while it stood still, in order.
    pub held_up: Vec<u32>,
    /// Which of its scheduled completions is the valid one.
    pub generation: u32,
    condition: Condition,
    discipline: Discipline,
    /// Milliseconds of work that every running request has got since the start.
    progress_ms: f64,
    progressed_to: Nanos,
    running: BinaryHeap<Running>,
    waiting: VecDeque<(u32, f64)>,
}

/// What a server can do at the moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Condition {
    /// Requests that it can run at full speed at once.
    pub cores: f64,
    /// The speed of a core; 0 is a standstill.
    pub speed: f64,
}

/// A running request, which ends when the progress reaches `end_ms`.
#[derive(Debug)]
struct Running {
    end_ms: f64,
    attempt: u32,
}

impl PartialEq for Running {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Running {}

/// Longer than any run, in nanoseconds.
const FOREVER: f64 = 1e18;

impl PartialOrd for Running {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Running {
    /// The one that ends first is the greatest, as the heap yields the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.end_ms.total_cmp(&self.end_ms).then(other.attempt.cmp(&self.attempt))
    }
}

impl Server {
    /// An idle server.
    pub fn new(condition: Condition, discipline: Discipline, concurrency: f64, clock: &Clock) -> Self {
        Self {
            present: false,
            meter: LoadMeter::new(concurrency, clock.instant(0)),
            assigned: 0,
            answered: 0,
            fails_after: None,
            held_up: Vec::new(),
            generation: 0,
            condition,
            discipline,
            progress_ms: 0.0,
            progressed_to: 0,
            running: BinaryHeap::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Whether it stands still.
    pub fn is_frozen(&self) -> bool {
        self.condition.speed <= 0.0
    }

    /// What it can do at the moment.
    pub fn condition(&self) -> Condition {
        self.condition
    }

    /// What it can do changes.
    pub fn change(&mut self, now: Nanos, condition: Condition) {
        self.progress(now);
        self.condition = condition;
    }

    /// A request begins.
    pub fn start(&mut self, now: Nanos, attempt: u32, work_ms: f64) {
        self.progress(now);
        if self.discipline == Discipline::Queue && self.running.len() as f64 >= self.condition.cores {
            self.waiting.push_back((attempt, work_ms));
        } else {
            self.running.push(Running { end_ms: self.progress_ms + work_ms, attempt });
        }
    }

    /// The request that ends now, if one does.
    pub fn complete(&mut self, now: Nanos) -> Option<u32> {
        self.progress(now);
        // The end was scheduled in whole nanoseconds, rounded up.
        let due = self.running.peek().is_some_and(|r| r.end_ms <= self.progress_ms + 1e-6);
        let ended = if due { self.running.pop() } else { None }?;
        if let Some((attempt, work_ms)) = self.waiting.pop_front() {
            self.running.push(Running { end_ms: self.progress_ms + work_ms, attempt });
        }
        Some(ended.attempt)
    }

    /// When the next request ends if nothing else happens.
    pub fn next_completion(&self) -> Option<Nanos> {
        let rate = self.rate();
        let next = self.running.peek()?;
        let left = ((next.end_ms - self.progress_ms).max(0.0) / rate * 1e6).ceil();
        // None of a server that stands still, and of one that might as well.
        (left < FOREVER).then(|| self.progressed_to + left as Nanos)
    }

    /// By how much one more request would be slowed down, compared with a core of speed 1 alone.
    pub fn slowdown_of_one_more(&self) -> f64 {
        let Condition { cores, speed } = self.condition;
        let calls = f64::from(self.assigned) + 1.0;
        // Among those that would not slow it down at all, the emptiest.
        ((calls / cores).max(1.0) + 0.001 * calls / cores) / speed.max(1e-9)
    }

    /// Work that each running request gets per unit of time.
    fn rate(&self) -> f64 {
        let Condition { cores, speed } = self.condition;
        let calls = self.running.len() as f64;
        if calls > cores { speed * cores / calls } else { speed }
    }

    fn progress(&mut self, now: Nanos) {
        self.progress_ms += (now - self.progressed_to) as f64 / 1e6 * self.rate();
        self.progressed_to = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MILLISECOND;

    fn ends(discipline: Discipline, arrivals: &[(Nanos, f64)], slow_from: Option<Nanos>) -> Vec<(u32, Nanos)> {
        let mut server = Server::new(Condition { cores: 2.0, speed: 1.0 }, discipline, 1.0, &Clock::new());
        let mut ended = Vec::new();
        let mut drain = |server: &mut Server, until: Nanos| {
            while let Some(at) = server.next_completion().filter(|&at| at <= until) {
                ended.push((server.complete(at).unwrap(), at / MILLISECOND));
            }
        };
        for (attempt, &(at_ms, work_ms)) in arrivals.iter().enumerate() {
            drain(&mut server, at_ms * MILLISECOND);
            server.start(at_ms * MILLISECOND, attempt as u32, work_ms);
        }
        if let Some(at) = slow_from {
            drain(&mut server, at * MILLISECOND);
            server.change(at * MILLISECOND, Condition { cores: 2.0, speed: 0.5 });
        }
        drain(&mut server, Nanos::MAX);
        ended
    }

    #[test]
    fn cores_are_shared_only_when_there_are_more_requests() {
        assert_eq!(ends(Discipline::Sharing, &[(0, 10.0), (0, 10.0)], None), [(0, 10), (1, 10)]);
        let four = [(0, 10.0), (0, 10.0), (0, 10.0), (0, 10.0)];
        assert!(ends(Discipline::Sharing, &four, None).iter().all(|&(_, at)| at == 20));
        // Two at full speed for 5 ms, then four at half of it for 10 ms, then the later two.
        let late = [(0, 10.0), (0, 10.0), (5, 10.0), (5, 10.0)];
        assert_eq!(ends(Discipline::Sharing, &late, None), [(0, 15), (1, 15), (2, 20), (3, 20)]);
    }

    #[test]
    fn a_queue_is_served_in_order() {
        let four = [(0, 10.0), (0, 20.0), (0, 10.0), (0, 10.0)];
        assert_eq!(ends(Discipline::Queue, &four, None), [(0, 10), (1, 20), (2, 20), (3, 30)]);
    }

    #[test]
    fn a_slower_core_takes_longer_for_what_is_left() {
        assert_eq!(ends(Discipline::Sharing, &[(0, 10.0)], Some(4)), [(0, 16)]);
    }
}
