//! Probes: asking nodes for their load.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rpc_core::protocol;
use rpc_core::wire::{RequestMeta, give_body, parse_load};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::Shared;
use crate::balance::Event;
use crate::channel::{Outgoing, waker};
use crate::snapshot::Usable;

/// Probes under way at once; more are not sent. Far above what any policy keeps up, it bounds what
/// a policy gone wild can do.
const PROBES_MAX: usize = 64;

/// A probe that is not answered within four round trips, and at least this time, says that the
/// node is silent.
const PATIENCE_MIN: Duration = Duration::from_millis(5);

/// Times that a policy may ask for probes before it has to choose.
pub(super) const ROUNDS_MAX: u32 = 4;

/// Probes to be sent, as a policy decided.
pub(crate) struct Probes {
    pub(super) targets: Vec<Arc<Usable>>,
    /// What the reports are to be about.
    pub(super) method: u32,
    pub(super) wait_for: usize,
}

impl Probes {
    /// Whether the call waits for an answer.
    pub(crate) fn wait(&self) -> bool {
        self.wait_for > 0
    }
}

impl Shared {
    /// Sends probes whose answers nobody waits for: each tells the policy.
    pub(super) fn send_probes(self: &Arc<Self>, probes: Probes) {
        for target in probes.targets {
            let shared = self.clone();
            // Bounded by its patience, so nobody needs to end it.
            tokio::spawn(async move { shared.probe_one(&target, probes.method).await });
        }
    }

    /// Sends probes and waits for as many answers as the policy wants, or until no more can come.
    /// The others are awaited in the background: each tells the policy, whoever waits.
    pub(super) async fn probe(self: &Arc<Self>, probes: Probes) {
        let total = probes.targets.len();
        let wait_for = probes.wait_for.min(total);
        let progress =
            Arc::new(Progress { answers: AtomicUsize::new(0), ended: AtomicUsize::new(0), enough: Semaphore::new(0) });
        for target in probes.targets {
            let (shared, progress) = (self.clone(), progress.clone());
            tokio::spawn(async move {
                let answered = shared.probe_one(&target, probes.method).await;
                progress.end(answered == Some(true), wait_for, total);
            });
        }
        if wait_for > 0 {
            // Closed never, so this ends when `end` has seen enough.
            drop(progress.enough.acquire().await);
        }
    }

    /// Whether the node answered; `None` if it was not asked.
    pub(super) async fn probe_one(&self, target: &Usable, method: u32) -> Option<bool> {
        if self.probing.fetch_add(1, Ordering::Relaxed) >= PROBES_MAX {
            self.probing.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let waker = waker().await;
        let channel = &target.channels[0];
        let sent = Instant::now();
        let outgoing = Outgoing {
            method: protocol::PROBE,
            meta: RequestMeta::default(),
            params: &[method],
            now: sent,
            deadline: sent + PATIENCE_MIN.max(channel.round_trip() * 4),
            movable: false,
        };
        let outcome = match channel.send(&outgoing, waker) {
            Ok(exchange) => exchange.await,
            Err(error) => Err(error),
        };
        self.probing.fetch_sub(1, Ordering::Relaxed);
        let node = target.node.id;
        let report = outcome.ok().and_then(|answer| {
            let report = parse_load(&answer.body).filter(|_| answer.ok);
            let received = answer.received;
            give_body(answer.body);
            report.map(|report| (report, received))
        });
        match report {
            Some((report, now)) => {
                target.node.reported(now, report);
                let round_trip = now.saturating_duration_since(sent);
                self.observe(&Event::ProbeAnswer { node, now, round_trip, report });
            }
            None => self.observe(&Event::ProbeSilent { node, now: Instant::now() }),
        }
        Some(report.is_some())
    }
}

/// How far a round of probes is.
struct Progress {
    answers: AtomicUsize,
    ended: AtomicUsize,
    /// Gets a permit when nobody needs to wait any longer.
    enough: Semaphore,
}

impl Progress {
    fn end(&self, answered: bool, wait_for: usize, total: usize) {
        let answers = self.answers.fetch_add(usize::from(answered), Ordering::AcqRel) + usize::from(answered);
        let ended = self.ended.fetch_add(1, Ordering::AcqRel) + 1;
        if answers >= wait_for || ended == total {
            self.enough.add_permits(1);
        }
    }
}
