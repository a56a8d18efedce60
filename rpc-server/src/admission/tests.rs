//! The gate: who gets in, in any order of events.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::time::Duration;

use proptest::prelude::*;
use rpc_core::Deadline;
use tokio::time::Instant;

use super::ConcurrencyLimit;
use super::come_back::RETRY_AFTER_MAX;
use super::gate::{Decided, Entered, Gate, Verdict};
use super::limit::Limit;

fn fixed(limit: usize, queue_max: Option<usize>) -> Gate<u64> {
    let limit = ConcurrencyLimit::Fixed(NonZeroUsize::new(limit).unwrap());
    Gate::new(Limit::new(limit).unwrap(), queue_max)
}

#[test]
fn expired_calls_make_room_and_the_newest_is_refused() {
    let now = Instant::now();
    let mut gate = fixed(1, Some(2));
    let mut decided = Decided::new();
    let mut enter = |gate: &mut Gate<u64>, ms, timeout_ms, name| {
        let at = now + Duration::from_millis(ms);
        let deadline = Some(Deadline::after(now, Duration::from_millis(timeout_ms)));
        gate.enter(at, deadline, &mut decided, || name)
    };
    assert_eq!(enter(&mut gate, 0, 100, 1), Entered::Run);
    assert_eq!(enter(&mut gate, 0, 10, 2), Entered::Wait(0));
    assert_eq!(enter(&mut gate, 0, 100, 3), Entered::Wait(1));
    assert!(matches!(enter(&mut gate, 9, 100, 4), Entered::Refuse(refusal) if refusal.queued == 2));
    assert_eq!(enter(&mut gate, 10, 100, 5), Entered::Wait(2), "the place of 2, whose time is over");
    gate.leave(now + Duration::from_millis(20), now, true, &mut decided);
    assert_eq!(decided, [(2, Verdict::Expired), (3, Verdict::Run)]);
}

#[derive(Clone, Debug)]
enum Step {
    Enter { timeout_ms: Option<u64> },
    Leave(prop::sample::Index),
    GiveUp(prop::sample::Index),
    Wait { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::option::of(0u64..50).prop_map(|timeout_ms| Step::Enter { timeout_ms }),
        3 => any::<prop::sample::Index>().prop_map(Step::Leave),
        1 => any::<prop::sample::Index>().prop_map(Step::GiveUp),
        2 => (0u64..20).prop_map(|ms| Step::Wait { ms }),
    ]
}

proptest! {
    #[test]
    fn the_gate_keeps_its_limits_and_loses_nobody(
        limit in 1usize..5, queue_max in prop::option::of(0usize..5), steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut gate = fixed(limit, queue_max);
        let mut now = Instant::now();
        let mut running = BTreeMap::new();
        // Tickets of those that wait, by name; names count up in arrival order.
        let mut waiting = BTreeMap::new();
        let mut deadlines = BTreeMap::new();
        let mut last_admitted = 0;
        for (name, step) in (1u64..).zip(steps) {
            let mut decided = Decided::new();
            match step {
                Step::Wait { ms } => now += Duration::from_millis(ms),
                Step::Enter { timeout_ms } => {
                    let deadline = timeout_ms.map(|ms| Deadline::after(now, Duration::from_millis(ms)));
                    deadlines.insert(name, deadline);
                    match gate.enter(now, deadline, &mut decided, || name) {
                        Entered::Run => { running.insert(name, now); }
                        Entered::Wait(ticket) => { waiting.insert(name, ticket); }
                        Entered::Refuse(refusal) => {
                            prop_assert_eq!((refusal.running, refusal.queued), (limit, queue_max.unwrap_or(limit)));
                            prop_assert!(!refusal.retry_after.is_zero() && refusal.retry_after <= RETRY_AFTER_MAX);
                        }
                    }
                }
                Step::Leave(index) => if !running.is_empty() {
                    let name = *index.get(&running.keys().copied().collect::<Vec<_>>());
                    let began = running.remove(&name).unwrap();
                    gate.leave(now, began, true, &mut decided);
                }
                Step::GiveUp(index) => if !waiting.is_empty() {
                    let name = *index.get(&waiting.keys().copied().collect::<Vec<_>>());
                    gate.give_up(waiting.remove(&name).unwrap());
                }
            }
            let mut seen = BTreeSet::new();
            for (name, verdict) in decided {
                prop_assert!(seen.insert(name) && waiting.remove(&name).is_some(), "{} was not waiting", name);
                let over = deadlines[&name].is_some_and(|deadline| deadline.is_over(now));
                prop_assert_eq!(verdict == Verdict::Expired, over);
                if verdict == Verdict::Run {
                    prop_assert!(name > last_admitted, "{} after {}", name, last_admitted);
                    last_admitted = name;
                    running.insert(name, now);
                }
            }
            prop_assert!(running.len() <= limit && waiting.len() <= queue_max.unwrap_or(limit));
            prop_assert!(running.len() == limit || waiting.is_empty(), "a free place and somebody waiting");
            prop_assert_eq!(gate.is_crowded(), !waiting.is_empty());
        }
    }
}
