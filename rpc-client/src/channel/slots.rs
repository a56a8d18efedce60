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
    free: Vec<u16>,
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
    Free,
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
    /// Takes a slot; `None` if all are taken. The id is the one to put on the wire.
    pub(crate) fn insert(&mut self, frame_end: u64, deadline: Instant, movable: bool) -> Option<u64> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < IN_FLIGHT_MAX => {
                self.slots.push(Slot {
                    id: 0,
                    state: State::Free,
                    waker: None,
                    frame_end: 0,
                    deadline,
                    movable: false,
                });
                (self.slots.len() - 1) as u16
            }
            None => return None,
        };
        self.sequence += 1;
        let id = self.sequence * STEP + u64::from(index);
        let slot = &mut self.slots[usize::from(index)];
        *slot = Slot { id, state: State::Waiting, waker: None, frame_end, deadline, movable };
        self.waiting += 1;
        Some(id)
    }

    /// The frame of `id` is written and ends at `frame_end`; `waker` is woken when the call ends.
    pub(crate) fn sent(&mut self, id: u64, frame_end: u64, waker: Waker) {
        if let Some(slot) = self.slot(id) {
            slot.frame_end = frame_end;
            slot.waker = Some(waker);
        }
    }

    /// Whether no slot is free.
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() == IN_FLIGHT_MAX
    }

    /// Frees its memory, if no call is in the table.
    pub(crate) fn release(&mut self) -> bool {
        let unused = self.taken() == 0;
        if unused {
            // The sequence goes on: ids stay unique.
            self.slots = Vec::new();
            self.free = Vec::new();
        }
        unused
    }

    /// Calls in the table: those that wait for a reply, and those whose callers have yet to take theirs.
    pub(crate) fn taken(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Calls that wait for a reply.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    fn slot(&mut self, id: u64) -> Option<&mut Slot> {
        let slot = self.slots.get_mut((id % STEP) as usize)?;
        (slot.id == id && !matches!(slot.state, State::Free)).then_some(slot)
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
        let slot = self.slot(id)?;
        let outcome = match std::mem::replace(&mut slot.state, State::Free) {
            State::Done(answer) => Ok(answer),
            State::Failed(failure) => Err(failure),
            other @ (State::Waiting | State::Free) => {
                slot.state = other;
                return None;
            }
        };
        self.free.push((id % STEP) as u16);
        Some(outcome)
    }

    /// Takes a call out of the table whatever its state. `true` if its reply is still to come.
    pub(crate) fn remove(&mut self, id: u64) -> bool {
        let Some(slot) = self.slot(id) else { return false };
        let was_waiting = matches!(slot.state, State::Waiting);
        slot.state = State::Free;
        slot.waker = None;
        self.free.push((id % STEP) as u16);
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

    #[tokio::test]
    async fn a_late_reply_never_reaches_another_call() {
        let now = Instant::now();
        let mut slots = Slots::default();
        let first = slots.insert(1, now, false).unwrap();
        assert!(slots.remove(first));
        let second = slots.insert(2, now, false).unwrap();
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
        let ids: Vec<u64> = (0..IN_FLIGHT_MAX).map(|_| slots.insert(0, now, false).unwrap()).collect();
        assert!(slots.is_full());
        assert_eq!(slots.insert(0, now, false), None);
        slots.remove(ids[7]);
        assert!(!slots.is_full());
        assert!(slots.insert(0, now, false).is_some());
    }

    #[tokio::test]
    async fn what_had_not_left_is_unsent() {
        let now = Instant::now();
        let mut slots = Slots::default();
        let sent = slots.insert(10, now, false).unwrap();
        let unsent = slots.insert(20, now, false).unwrap();
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
                        let id = slots.insert(0, now, step == 0).unwrap();
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
