//! What will happen when.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use crate::clock::Nanos;
use crate::slab::Key;

/// Something that happens at a moment.
#[derive(Clone, Copy, Debug)]
pub enum Happening {
    /// A client makes its next call.
    Call {
        /// Index of the client.
        client: u32,
    },
    /// A request reaches its server.
    Arrival {
        /// Number of the attempt.
        attempt: u32,
    },
    /// The next request of a server ends, if nothing happened to it meanwhile.
    Completion {
        /// Index of the server.
        server: u32,
        /// [`crate::server::Server::generation`] when it was scheduled.
        generation: u32,
    },
    /// A server fails a request.
    Failure {
        /// Number of the attempt.
        attempt: u32,
    },
    /// A reply reaches its client.
    Reply {
        /// Number of the attempt.
        attempt: u32,
    },
    /// A caller gives up, if it still waits.
    Timeout {
        /// The call.
        call: Key,
    },
    /// A probe reaches its server.
    ProbeArrival {
        /// The probe.
        probe: Key,
    },
    /// The answer of a probe reaches its client.
    ProbeAnswer {
        /// The probe.
        probe: Key,
    },
    /// A probe is given up, if it was not answered.
    ProbeSilence {
        /// The probe.
        probe: Key,
    },
    /// Something happens to a server.
    Change {
        /// Index into the planned changes.
        change: u32,
    },
}

/// What will happen, soonest first; at the same moment in the order of planning.
#[derive(Debug, Default)]
pub struct Agenda {
    heap: BinaryHeap<Entry>,
    /// Timeouts of calls and of probes. Each kind lasts as long for all, so they come in the order of
    /// planning. In the heap they would be most of it, and slow it down.
    timeouts: [VecDeque<Entry>; 2],
    planned: u64,
}

#[derive(Debug)]
struct Entry {
    at: Nanos,
    order: u64,
    happening: Happening,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.cmp(&self.at).then(other.order.cmp(&self.order))
    }
}

impl Agenda {
    /// Plans something.
    pub fn add(&mut self, at: Nanos, happening: Happening) {
        self.planned += 1;
        let entry = Entry { at, order: self.planned, happening };
        let queue = match happening {
            Happening::Timeout { .. } => &mut self.timeouts[0],
            Happening::ProbeSilence { .. } => &mut self.timeouts[1],
            _ => return self.heap.push(entry),
        };
        queue.push_back(entry);
    }

    /// What happens next.
    pub fn take_next(&mut self) -> Option<(Nanos, Happening)> {
        let mut soonest = self.heap.peek();
        let mut from = None;
        for (queue, entries) in self.timeouts.iter().enumerate() {
            if entries.front() > soonest {
                (soonest, from) = (entries.front(), Some(queue));
            }
        }
        let entry = match from {
            Some(queue) => self.timeouts[queue].pop_front(),
            None => self.heap.pop(),
        };
        entry.map(|entry| (entry.at, entry.happening))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_soonest_comes_first_and_at_one_moment_what_was_planned_first() {
        let mut agenda = Agenda::default();
        let call = crate::slab::Slab::new().insert(());
        agenda.add(30, Happening::Timeout { call });
        agenda.add(30, Happening::Call { client: 0 });
        agenda.add(10, Happening::ProbeSilence { probe: call });
        agenda.add(20, Happening::Call { client: 1 });
        agenda.add(40, Happening::Timeout { call });
        let order: Vec<String> =
            std::iter::from_fn(|| agenda.take_next()).map(|(at, what)| format!("{at} {what:?}")).collect();
        let kinds: Vec<&str> = order.iter().map(|text| text.split([' ', '{']).nth(1).unwrap_or_default()).collect();
        assert_eq!(kinds, ["ProbeSilence", "Call", "Timeout", "Call", "Timeout"], "{order:?}");
    }
}
