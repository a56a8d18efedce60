//! The limits against a queueing model: a server whose calls need one of a few permits that the limit
//! does not know of, under open-loop load.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::time::Duration;

use tokio::time::Instant;

use super::ConcurrencyLimit;
use super::gate::{Decided, Entered, Gate, Verdict};
use super::limit::Limit;

/// A splitmix64 generator.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Times {
    Constant,
    Exponential,
}

/// A stretch of the run.
#[derive(Clone, Copy)]
struct Phase {
    seconds: f64,
    calls_per_second: f64,
    /// What a call takes once it has its permit.
    mean: f64,
    times: Times,
}

/// What came of a phase.
#[derive(Debug)]
struct Outcome {
    answered_per_second: f64,
    /// Of the admitted calls, from arrival to answer.
    p99: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Arrival,
    Done(u64),
}

/// Runs `phases` one after the other against a gate in front of `permits`.
fn simulate(limit: ConcurrencyLimit, permits: usize, phases: &[Phase], seed: u64) -> Vec<Outcome> {
    let mut random = Random(seed);
    let start = Instant::now();
    let at = |nanos: u64| start + Duration::from_nanos(nanos);
    let nanos = |seconds: f64| (seconds * 1e9) as u64;
    let mut gate = Gate::<u64>::new(Limit::new(limit).unwrap(), None);
    let mut heap = BinaryHeap::from([Reverse((0, Happening::Arrival))]);
    let (mut arrived, mut began) = (Vec::<u64>::new(), Vec::<u64>::new());
    let (mut busy, mut inner) = (0, VecDeque::new());
    let mut outcomes = Vec::new();
    let mut begins = 0;
    for phase in phases {
        let ends = begins + nanos(phase.seconds);
        let mut latencies = Vec::new();
        while let Some(&Reverse((now, happening))) = heap.peek()
            && now < ends
        {
            heap.pop();
            let mut starting = Vec::new();
            let mut decided = Decided::new();
            match happening {
                Happening::Arrival => {
                    let call = arrived.len() as u64;
                    arrived.push(now);
                    began.push(now);
                    match gate.enter(at(now), None, &mut decided, || call) {
                        Entered::Run => starting.push(call),
                        Entered::Wait(_) | Entered::Refuse(_) => {}
                    }
                    heap.push(Reverse((
                        now + nanos(random.exponential() / phase.calls_per_second),
                        Happening::Arrival,
                    )));
                }
                Happening::Done(call) => {
                    busy -= 1;
                    latencies.push((now - arrived[call as usize]) as f64 / 1e9);
                    gate.leave(at(now), at(began[call as usize]), true, &mut decided);
                }
            }
            starting.extend(decided.into_iter().filter(|(_, v)| *v == Verdict::Run).map(|(call, _)| call));
            for call in starting {
                began[call as usize] = now;
                inner.push_back(call);
            }
            while busy < permits
                && let Some(call) = inner.pop_front()
            {
                busy += 1;
                let factor = if phase.times == Times::Constant { 1.0 } else { random.exponential() };
                heap.push(Reverse((now + nanos(phase.mean * factor).max(1), Happening::Done(call))));
            }
        }
        latencies.sort_by(f64::total_cmp);
        let p99 = latencies.get(latencies.len().saturating_sub(1) * 99 / 100).copied().unwrap_or(0.0);
        outcomes.push(Outcome { answered_per_second: latencies.len() as f64 / phase.seconds, p99 });
        begins = ends;
    }
    outcomes
}

#[expect(clippy::print_stderr, reason = "the test harness shows it with a failure")]
fn seed() -> u64 {
    let seed = RandomState::new().hash_one(std::process::id());
    eprintln!("seed {seed}");
    seed
}

const LIMITS: [(&str, ConcurrencyLimit); 2] =
    [("fixed", ConcurrencyLimit::Fixed(NonZeroUsize::new(8).unwrap())), ("adaptive", ConcurrencyLimit::Adaptive)];

fn phase(seconds: f64, calls_per_second: f64) -> Phase {
    Phase { seconds, calls_per_second, mean: 0.01, times: Times::Constant }
}

#[test]
fn three_times_the_load_costs_neither_answers_nor_time() {
    let seed = seed();
    for (name, limit) in LIMITS {
        for times in [Times::Constant, Times::Exponential] {
            let [usual, load] = [720.0, 2400.0].map(|rate| Phase { times, ..phase(60.0, rate) });
            // First long enough for the adaptive limit to settle.
            let outcomes = simulate(limit, 8, &[Phase { seconds: 30.0, ..usual }, usual, load], seed);
            let (usual, load) = (&outcomes[1], &outcomes[2]);
            assert!(load.answered_per_second >= 0.9 * 800.0, "{name}: {outcomes:?}");
            assert!(load.p99 <= 2.0 * usual.p99, "{name}: {outcomes:?}");
        }
    }
}

#[test]
fn ten_minutes_of_overload_does_not_move_the_adaptive_limit_away() {
    let outcomes = simulate(
        ConcurrencyLimit::Adaptive,
        8,
        &[phase(60.0, 1600.0), phase(600.0, 1600.0), phase(60.0, 1600.0)],
        seed(),
    );
    let (first, last) = (&outcomes[0], &outcomes[2]);
    assert!(last.p99 < 1.5 * first.p99 && last.answered_per_second > 0.9 * 800.0, "{outcomes:?}");
}

#[test]
fn the_adaptive_limit_follows_a_server_that_slows_down_and_recovers() {
    let slow = |seconds| Phase { mean: 0.05, ..phase(seconds, 1600.0) };
    let phases = [phase(30.0, 1600.0), slow(30.0), slow(60.0), phase(10.0, 1600.0), phase(60.0, 1600.0)];
    let outcomes = simulate(ConcurrencyLimit::Adaptive, 8, &phases, seed());
    let (slow, after) = (&outcomes[2], &outcomes[4]);
    assert!(slow.answered_per_second > 0.85 * 160.0 && slow.p99 < 0.05 * 5.0, "{outcomes:?}");
    assert!(after.answered_per_second > 0.9 * 800.0 && after.p99 < 0.01 * 5.0, "{outcomes:?}");
}

#[test]
fn the_adaptive_limit_grows_to_what_the_server_can_run() {
    let outcomes = simulate(ConcurrencyLimit::Adaptive, 500, &[phase(4.0, 80_000.0), phase(2.0, 80_000.0)], seed());
    assert!(outcomes[1].answered_per_second > 0.9 * 50_000.0 && outcomes[1].p99 < 0.04, "{outcomes:?}");
}
