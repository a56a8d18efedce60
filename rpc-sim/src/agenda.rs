//! What will happen when.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

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
        self.heap.push(Entry { at, order: self.planned, happening });
    }

    /// What happens next.
    pub fn take_next(&mut self) -> Option<(Nanos, Happening)> {
        self.heap.pop().map(|entry| (entry.at, entry.happening))
    }
}
