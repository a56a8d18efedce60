//! Who runs, who waits, who is refused. Pure: the time is an argument.

use std::collections::BTreeMap;
use std::time::Duration;

use rpc_core::Deadline;
use tokio::time::Instant;

use super::come_back::ComeBack;
use super::limit::Limit;

/// The calls of a server that run and those that wait, first come, first served.
///
/// The queue is as long as the limit unless told otherwise: an admitted call then waits about as long
/// as one call takes. With so short a queue, order makes little difference; first come, first served
/// starves nobody. When the queue is full, calls whose time is over go first, then the newest, which
/// is the one that arrives. (Last come, first served keeps the wait short in *long* queues: see
/// Maurer, "Fail at Scale", ACM Queue 2015.)
///
/// `T` is what is told when a waiting call is decided.
#[derive(Debug)]
pub(super) struct Gate<T> {
    limit: Limit,
    queue_max: Option<usize>,
    running: usize,
    queue: BTreeMap<u64, Queued<T>>,
    next: u64,
    /// No deadline in the queue is earlier. It may be the deadline of one that has left.
    earliest: Option<Deadline>,
    come_back: ComeBack,
    refused: u64,
}

#[derive(Debug)]
struct Queued<T> {
    deadline: Option<Deadline>,
    turn: T,
}

/// What becomes of a call that arrives.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// It runs. [`Gate::leave`] is owed.
    Run,
    /// It waits, and will be among the decided, unless [`Gate::give_up`] comes first.
    Wait(u64),
    /// There is no room.
    Refuse(Refusal),
}

/// Why there is no room, and when there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) running: usize,
    pub(super) queued: usize,
    pub(super) retry_after: Duration,
}

/// What becomes of a call that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It runs. [`Gate::leave`] is owed.
    Run,
    /// Its caller's time is over.
    Expired,
}

/// The calls decided by a step, to be told outside of the lock.
pub(super) type Decided<T> = Vec<(T, Verdict)>;

impl<T> Gate<T> {
    pub(super) fn new(limit: Limit, queue_max: Option<usize>) -> Self {
        Self {
            limit,
            queue_max,
            running: 0,
            queue: BTreeMap::new(),
            next: 0,
            earliest: None,
            come_back: ComeBack::default(),
            refused: 0,
        }
    }

    /// A call arrives; `turn` is needed if it has to wait.
    pub(super) fn enter(
        &mut self,
        now: Instant,
        deadline: Option<Deadline>,
        decided: &mut Decided<T>,
        turn: impl FnOnce() -> T,
    ) -> Entered {
        let limit = self.limit.now(now);
        // The limit may have grown while calls wait.
        self.admit(now, limit, decided);
        if self.running < limit {
            self.running += 1;
            self.limit.began(self.running);
            return Entered::Run;
        }
        self.limit.found_full();
        if self.queue.len() >= self.queue_max.unwrap_or(limit) {
            self.drop_expired(now, decided);
        }
        let queued = self.queue.len();
        if queued >= self.queue_max.unwrap_or(limit) {
            self.refused += 1;
            let retry_after = self.come_back.after(now, limit, queued);
            return Entered::Refuse(Refusal { running: self.running, queued, retry_after });
        }
        let ticket = self.next;
        self.next += 1;
        self.queue.insert(ticket, Queued { deadline, turn: turn() });
        self.earliest = [self.earliest, deadline].into_iter().flatten().min();
        Entered::Wait(ticket)
    }

    /// A call that ran since `began` has ended; `answered` unless it was given up.
    pub(super) fn leave(&mut self, now: Instant, began: Instant, answered: bool, decided: &mut Decided<T>) {
        self.running = self.running.saturating_sub(1);
        if answered {
            self.come_back.ended(now.saturating_duration_since(began));
        }
        self.limit.ended(now, began, answered);
        let limit = self.limit.now(now);
        self.admit(now, limit, decided);
    }

    /// A call that waits is not wanted any more.
    pub(super) fn give_up(&mut self, ticket: u64) {
        self.queue.remove(&ticket);
    }

    /// Whether calls wait.
    pub(super) fn is_crowded(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Calls that found no room so far.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    fn admit(&mut self, now: Instant, limit: usize, decided: &mut Decided<T>) {
        while self.running < limit {
            let Some((_, next)) = self.queue.pop_first() else { return };
            if next.deadline.is_some_and(|deadline| deadline.is_over(now)) {
                decided.push((next.turn, Verdict::Expired));
                continue;
            }
            self.running += 1;
            self.limit.began(self.running);
            decided.push((next.turn, Verdict::Run));
        }
    }

    fn drop_expired(&mut self, now: Instant, decided: &mut Decided<T>) {
        if !self.earliest.is_some_and(|deadline| deadline.is_over(now)) {
            return;
        }
        let expired = self.queue.extract_if(.., |_, q| q.deadline.is_some_and(|deadline| deadline.is_over(now)));
        decided.extend(expired.map(|(_, queued)| (queued.turn, Verdict::Expired)));
        self.earliest = self.queue.values().filter_map(|queued| queued.deadline).min();
    }
}
