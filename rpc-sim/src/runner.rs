//! Many runs, on several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::outcome::Outcome;
use crate::policies::PolicyName;
use crate::scenario::Scenario;
use crate::simulation::Simulation;

/// Runs every scenario with every policy and every seed. The outcomes are in the order of the
/// scenarios and, within one, of the policies; seeds are merged.
pub fn run_all(scenarios: &[Scenario], policies: &[PolicyName], seeds: &[u64], threads: usize) -> Vec<Vec<Outcome>> {
    let runs = scenarios.len() * policies.len() * seeds.len();
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<Option<Outcome>>> = Mutex::new(vec![None; runs]);
    let work = || {
        loop {
            let run = next.fetch_add(1, Ordering::Relaxed);
            if run >= runs {
                return;
            }
            let (scenario, rest) = (run / (policies.len() * seeds.len()), run % (policies.len() * seeds.len()));
            let (policy, seed) = (rest / seeds.len(), rest % seeds.len());
            let outcome = Simulation::new(&scenarios[scenario], &policies[policy], seeds[seed]).run();
            outcomes.lock().expect("no run panics while it stores its outcome")[run] = Some(outcome);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, runs.max(1)) {
            scope.spawn(work);
        }
    });
    let outcomes = outcomes.into_inner().expect("no run panics while it stores its outcome");
    let mut outcomes = outcomes.into_iter().map(|outcome| outcome.expect("every run was made"));
    let mut merged = || {
        let mut all = Outcome::default();
        outcomes.by_ref().take(seeds.len()).for_each(|outcome| all.merge(&outcome));
        all
    };
    scenarios.iter().map(|_| policies.iter().map(|_| merged()).collect()).collect()
}
