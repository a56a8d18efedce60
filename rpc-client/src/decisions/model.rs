//! Model checks of the ring of decisions: loom runs them in every order of the threads' steps.
#![allow(clippy::unwrap_used, reason = "nothing but tests is in here")]

use loom::model::Builder;
use loom::thread;

use super::*;

fn record(call: u64) -> DecisionRecord {
    DecisionRecord {
        call,
        method: String::new(),
        at: Instant::now(),
        reason: Reason::Explained,
        list_version: 0,
        list_age: None,
        usable: 0,
        removed: Arc::default(),
        tried: Vec::new(),
        probed: 0,
        candidates: Vec::new(),
        decision: Decision::NoNode,
        nodes: Vec::new(),
        outcome: None,
        replay: None,
    }
}

fn kept(decisions: &Decisions) -> Vec<u64> {
    decisions.all().iter().map(|record| record.call).collect()
}

/// A call that makes two decisions, in a ring that is about to be full. Its number.
fn call(decisions: &Decisions) -> u64 {
    let Trace { call, .. } = decisions.begin(true);
    decisions.push(record(call));
    decisions.push(record(call));
    call
}

/// Two calls record while somebody reads: the calls have different numbers, no reader sees more than
/// fit or any that is out of order, and in the end the last ones are there, all of them.
#[test]
fn the_newest_decisions_are_kept_whoever_records_and_reads() {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 10_000;
    builder.check(|| {
        let decisions = Arc::new(Decisions::default());
        for _ in 0..KEPT - 1 {
            let Trace { call, .. } = decisions.begin(true);
            decisions.push(record(call));
        }
        let callers = [(); 2].map(|()| {
            let decisions = decisions.clone();
            thread::spawn(move || call(&decisions))
        });
        let before = KEPT as u64 - 1;
        let seen = kept(&decisions);
        assert!(seen.len() == KEPT || seen.len() == KEPT - 1, "{seen:?}");
        let old = seen.iter().filter(|&&call| call < before);
        assert!(old.clone().copied().eq(before - old.count() as u64..before), "the newest of the old: {seen:?}");
        let [first, second] = callers.map(|caller| caller.join().unwrap());
        assert_eq!(first + second, before + before + 1, "two numbers that nobody had");
        let mut seen = kept(&decisions);
        let old: Vec<u64> = seen.drain(..KEPT - 4).collect();
        assert_eq!(old, (3..before).collect::<Vec<_>>());
        seen.sort_unstable();
        assert_eq!(seen, [before, before, before + 1, before + 1]);
    });
}
