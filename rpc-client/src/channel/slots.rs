//! Calls that wait on one connection, by id. Pure: no I/O, no clock.

use std::task::Waker;

use rpc_core::LoadReport;
use rpc_core::protocol::IN_FLIGHT_MAX;
use tokio::time::Instant;

/// Ids count up by this for each call; the remainder is the slot, so that a reply finds its slot
/// without a map and an id is never used twice on a connection.
const STEP: u64 = IN_FLIGHT_MAX as u64;

/// The table of calls in flight.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    /// The first free slot. Each has the next: a list of their own would be one more place in memory for every call.
    free: Option<u16>,
    taken: usize,
    sequence: u64,
    waiting: usize,
}

#[derive(Debug)]
struct Slot {
    id: u64,
    state: State,
    waker: Option<Waker>,
    /// Where its frame ends in the stream of bytes sent.
    frame_end: u64,
    deadline: Instant,
    /// Whether it may go to another node when this one falls silent.
    movable: bool,
}

#[derive(Debug)]
enum State {
    Free { next: Option<u16> },
    Waiting,
    Done(Answer),
    Failed(Failure),
}

/// A reply as it arrived.
#[derive(Debug)]
pub(crate) struct Answer {
    /// JSON text of the result or the error object.
    pub(crate) body: Vec<u8>,
    /// Whether it is a result.
    pub(crate) ok: bool,
    /// When the read that brought it returned.
    pub(crate) received: Instant,
    /// The node's load, if it came along.
    pub(crate) load: Option<LoadReport>,
}

/// Why a call in flight ends without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Its deadline passed.
    Deadline,
    /// The node has fallen silent; the call may go elsewhere.
    Silent,
    /// The connection closed. Unless `sent`, the server cannot have started the call.
    Closed {
        /// Whether the whole request had left.
        sent: bool,
    },
}

impl Slots {
    /// The id that the next call is to have on the wire; `None` if all slots are taken.
    #[inline]
    pub(crate) fn next_id(&self) -> Option<u64> {
        let index = self.free.map_or(self.slots.len(), usize::from);
        (index < IN_FLIGHT_MAX).then(|| (self.sequence + 1) * STEP + index as u64)
    }

    /// The request with the [next id](Self::next_id) is written, and its frame ends at `frame_end`; `waker` is woken when
    /// the call ends.
    #[inline]
    pub(crate) fn insert(&mut self, id: u64, frame_end: u64, deadline: Instant, movable: bool, waker: Waker) {
        let new = Slot { id, state: State::Waiting, waker: Some(waker), frame_end, deadline, movable };
        match self.slots.get_mut((id % STEP) as usize) {
            Some(slot) => {
                if let State::Free { next } = slot.state {
                    self.free = next;
                }
                *slot = new;
            }
            None => self.slots.push(new),
        }
        self.sequence += 1;
        self.taken += 1;
        self.waiting += 1;
    }

    /// Whether no slot is free.
    pub(crate) fn is_full(&self) -> bool {
        self.taken == IN_FLIGHT_MAX
    }

    /// Frees its memory, if no call is in the table.
    pub(crate) fn release(&mut self) -> bool {
        let unused = self.taken() == 0;
        if unused {
            // The sequence goes on: ids stay unique.
            self.slots = Vec::new();
            self.free = None;
        }
        unused
    }

    /// Calls in the table: those that wait for a reply, and those whose callers have yet to take theirs.
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    /// Calls that wait for a reply.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    fn slot(&mut self, id: u64) -> Option<&mut Slot> {
        let slot = self.slots.get_mut((id % STEP) as usize)?;
        (slot.id == id && !matches!(slot.state, State::Free { .. })).then_some(slot)
    }

    /// Has `waker` woken when the call ends.
    pub(crate) fn set_waker(&mut self, id: u64, waker: &Waker) {
        if let Some(slot) = self.slot(id) {
            match &mut slot.waker {
                Some(old) => old.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
        }
    }

    /// Hands over a reply. `Err` gives it back if nobody waits for it; otherwise there may be
    /// somebody to wake.
    pub(crate) fn deliver(&mut self, id: u64, answer: Answer) -> Result<Option<Waker>, Answer> {
        match self.slot(id) {
            Some(slot) if matches!(slot.state, State::Waiting) => {
                slot.state = State::Done(answer);
                let waker = slot.waker.take();
                self.waiting -= 1;
                Ok(waker)
            }
            _ => Err(answer),
        }
    }

    /// Takes the outcome of a call, and with it the call out of the table.
    pub(crate) fn take(&mut self, id: u64) -> Option<Result<Answer, Failure>> {
        let next = self.free;
        let slot = self.slot(id)?;
        let outcome = match std::mem::replace(&mut slot.state, State::Free { next }) {
            State::Done(answer) => Ok(answer),
            State::Failed(failure) => Err(failure),
            other @ (State::Waiting | State::Free { .. }) => {
                slot.state = other;
                return None;
            }
        };
        self.freed(id);
        Some(outcome)
    }

    fn freed(&mut self, id: u64) {
        self.free = Some((id % STEP) as u16);
        self.taken -= 1;
    }

    /// Takes a call out of the table whatever its state. `true` if its reply is still to come.
    pub(crate) fn remove(&mut self, id: u64) -> bool {
        let next = self.free;
        let Some(slot) = self.slot(id) else { return false };
        let was_waiting = matches!(slot.state, State::Waiting);
        slot.state = State::Free { next };
        slot.waker = None;
        self.freed(id);
        self.waiting -= usize::from(was_waiting);
        was_waiting
    }

    /// Ends the waiting calls that `failure` finds one for; their wakers go to `wake`.
    fn fail_where(&mut self, wake: &mut Vec<Waker>, failure: impl Fn(&Slot) -> Option<Failure>) {
        for slot in self.slots.iter_mut().filter(|s| matches!(s.state, State::Waiting)) {
            if let Some(failure) = failure(slot) {
                slot.state = State::Failed(failure);
                wake.extend(slot.waker.take());
                self.waiting -= 1;
            }
        }
    }

    /// Ends the calls whose deadline is over and returns the next deadline.
    pub(crate) fn expire(&mut self, now: Instant, wake: &mut Vec<Waker>) -> Option<Instant> {
        self.fail_where(wake, |slot| (slot.deadline <= now).then_some(Failure::Deadline));
        self.slots.iter().filter(|s| matches!(s.state, State::Waiting)).map(|s| s.deadline).min()
    }

    /// Ends the calls that may go to another node.
    pub(crate) fn fail_movable(&mut self, wake: &mut Vec<Waker>) {
        self.fail_where(wake, |slot| slot.movable.then_some(Failure::Silent));
    }

    /// Ends all calls. Those whose frame ends after `written` bytes were not sent.
    pub(crate) fn fail_all(&mut self, written: u64, wake: &mut Vec<Waker>) {
        self.fail_where(wake, |slot| Some(Failure::Closed { sent: slot.frame_end <= written }));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answer(now: Instant) -> Answer {
        Answer { body: vec![1], ok: true, received: now, load: None }
    }

    fn insert(slots: &mut Slots, frame_end: u64, deadline: Instant) -> Option<u64> {
        let id = slots.next_id()?;
        slots.insert(id, frame_end, deadline, false, Waker::noop().clone());
        Some(id)
    }

    #[tokio::test]
    async fn a_late_reply_never_reaches_another_call() {
        let now = Instant::now();
        let mut slots = Slots::default();
        let first = insert(&mut slots, 1, now).unwrap();
        assert!(slots.remove(first));
        let second = insert(&mut slots, 2, now).unwrap();
        assert_eq!(first % STEP, second % STEP);
        assert!(slots.deliver(first, answer(now)).is_err());
        assert!(slots.take(second).is_none());
        assert!(slots.deliver(second, answer(now)).is_ok());
        assert!(slots.deliver(second, answer(now)).is_err(), "a second reply to one call");
        assert!(slots.take(second).unwrap().is_ok());
        assert_eq!(slots.waiting(), 0);
    }

    #[tokio::test]
    async fn the_table_has_a_limit_and_frees_its_slots() {
        let now = Instant::now();
        let mut slots = Slots::default();
        let ids: Vec<u64> = (0..IN_FLIGHT_MAX).map(|_| insert(&mut slots, 0, now).unwrap()).collect();
        assert!(slots.is_full());
        assert_eq!(insert(&mut slots, 0, now), None);
        slots.remove(ids[7]);
        assert!(!slots.is_full());
        assert!(insert(&mut slots, 0, now).is_some());
    }

    #[tokio::test]
    async fn what_had_not_left_is_unsent() {
        let now = Instant::now();
        let mut slots = Slots::default();
        let sent = insert(&mut slots, 10, now).unwrap();
        let unsent = insert(&mut slots, 20, now).unwrap();
        slots.fail_all(19, &mut Vec::new());
        assert_eq!(slots.take(sent).unwrap().unwrap_err(), Failure::Closed { sent: true });
        assert_eq!(slots.take(unsent).unwrap().unwrap_err(), Failure::Closed { sent: false });
    }

    proptest! {
        #[test]
        fn ids_count_up_and_nothing_is_lost(steps in prop::collection::vec(0u8..5, 1..400)) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _guard = runtime.enter();
            let now = Instant::now();
            let mut slots = Slots::default();
            let (mut alive, mut last) = (Vec::new(), 0);
            for step in steps {
                match step {
                    0..=2 => {
                        let id = insert(&mut slots, 0, now).unwrap();
                        prop_assert!(id > last);
                        last = id;
                        alive.push(id);
                    }
                    3 => { if let Some(id) = alive.pop() { prop_assert!(slots.remove(id)); } }
                    _ => if !alive.is_empty() {
                        let id = alive.remove(0);
                        prop_assert!(slots.deliver(id, answer(now)).is_ok());
                        prop_assert!(slots.take(id).unwrap().is_ok());
                    }
                }
                prop_assert_eq!(slots.waiting(), alive.len());
            }
        }
    }
}
