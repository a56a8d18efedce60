//! Writes measured response times back into the registry.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rpc_core::Deadline;
use rpc_core::registry::{Member, Members, Registry, UpdateError, Version};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use crate::balance::Random;
use crate::recent_latencies::RecentLatencies;
use crate::write_back::{INTERVAL_MAX, INTERVAL_MIN, Pace, is_due};

/// How often the nodes with new latencies are looked at. It bounds how late a write is.
const TICK: Duration = Duration::from_millis(50);

/// A write, with the reading before it, is given up after this time. Backends bound each operation by 2 s.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Writes in flight to all nodes together, so that a client with a thousand nodes does not flood a
/// registry that just came back.
const WRITES_MAX: usize = 64;

/// Tries of one write when others change the entry in between.
const TRIES: usize = 3;

/// Flushes that may wait at a time; more wait for a place in the queue.
const FLUSHES_MAX: usize = 4;

/// Writes the response times that this client measures into the registry, in the background and at a
/// bounded rate. The call path only records latencies, in [`NodeSamples`].
///
/// One task owns all writing; it ends when the reporter is dropped. Without the capability
/// `write_back` there is no task and recording does nothing.
#[derive(Debug)]
pub(crate) struct Reporter {
    nodes: Arc<Nodes>,
    flushes: mpsc::Sender<oneshot::Sender<()>>,
    task: Option<AbortOnDropHandle<()>>,
}

/// The latencies of one incarnation of one node. The call path holds it and records into it.
#[derive(Debug)]
pub(crate) struct NodeSamples {
    addr: SocketAddr,
    incarnation: String,
    /// None if nothing is ever written.
    wake: Option<Arc<Notify>>,
    state: Mutex<SamplesState>,
}

#[derive(Debug)]
struct SamplesState {
    latencies: RecentLatencies,
    plan: Plan,
}

/// When to write next. Only the reporter's task uses it.
#[derive(Debug, Default)]
struct Plan {
    /// The version that the jitter was drawn for.
    version: Option<Version>,
    jitter: f64,
    not_before: Option<Instant>,
    writing: bool,
}

/// All nodes with samples, by address and incarnation.
#[derive(Debug, Default)]
struct Nodes {
    by_incarnation: Mutex<BTreeMap<(SocketAddr, String), Arc<NodeSamples>>>,
    wake: Arc<Notify>,
}

impl Reporter {
    /// Starts the task. `interval` is brought into the range that keeps entries in use from expiring;
    /// `seed` is any random number, another one in each client.
    pub(crate) fn spawn(registry: &Arc<dyn Registry>, interval: Duration, seed: u64) -> Self {
        let nodes = Arc::<Nodes>::default();
        let (flushes, flush_rx) = mpsc::channel(FLUSHES_MAX);
        let task = registry.capabilities().write_back.then(|| {
            let work = Work {
                members: registry.members(),
                registry: registry.clone(),
                nodes: nodes.clone(),
                interval: interval.clamp(INTERVAL_MIN, INTERVAL_MAX),
                random: Random::new(seed),
                writes: JoinSet::new(),
            };
            AbortOnDropHandle::new(tokio::spawn(work.run(flush_rx)))
        });
        Self { nodes, flushes, task }
    }

    /// Where to record the latencies of this incarnation of a node. The same for equal arguments, if anything is written.
    pub(crate) fn node(&self, addr: SocketAddr, incarnation: &str) -> Arc<NodeSamples> {
        let samples = |wake| {
            let state = SamplesState { latencies: RecentLatencies::new(Instant::now()), plan: Plan::default() };
            Arc::new(NodeSamples { addr, incarnation: incarnation.to_owned(), wake, state: Mutex::new(state) })
        };
        if self.task.is_none() {
            // Nobody would ever clear them away.
            return samples(None);
        }
        let key = (addr, incarnation.to_owned());
        let mut nodes = self.nodes.by_incarnation.lock();
        nodes.entry(key).or_insert_with(|| samples(Some(self.nodes.wake.clone()))).clone()
    }

    /// Delivers what was measured of nodes whose response time is unknown, and waits for the writes
    /// under way, until `deadline`. For clients that end after a call or two.
    pub(crate) async fn flush(&self, deadline: Deadline) {
        if self.task.is_none() {
            return;
        }
        let (done, answer) = oneshot::channel();
        let flushed = async { self.flushes.send(done).await.is_ok() && answer.await.is_ok() };
        if !tokio::time::timeout_at(deadline.instant(), flushed).await.unwrap_or(false) {
            debug!("measured response times were not all delivered in time");
        }
    }
}

impl NodeSamples {
    /// Records the latency of a call that succeeded, send to reply. One short lock and a few
    /// additions. Failed calls are not recorded: they say nothing of how fast the node answers.
    pub(crate) fn record(&self, now: Instant, latency: Duration) {
        let Some(wake) = &self.wake else { return };
        let mut state = self.state.lock();
        let first = state.latencies.since(now).is_none();
        state.latencies.record(now, latency);
        drop(state);
        if first {
            wake.notify_one();
        }
    }

    /// Whether the entry is the one that was measured, and can be written.
    fn is_of(&self, entry: &Member) -> bool {
        entry.record.id == self.incarnation && entry.malformed.is_none()
    }

    /// The response time to write into `entry`, if it is time. A flush only looks for unknown ones.
    fn due(&self, entry: &Member, now: Instant, pace: Pace, flush: bool) -> Option<u64> {
        let mut state = self.state.lock();
        let since = state.latencies.since(now)?;
        let unknown = entry.response_time_us(now) == 0;
        // The median costs a walk over the buckets, so it is not asked for in vain.
        if !unknown && (flush || entry.age(now) < pace.interval) {
            return None;
        }
        let median_us = state.latencies.median_us(now)?;
        (flush || is_due(entry, median_us, since, now, pace)).then_some(median_us)
    }
}

/// What the task owns.
struct Work {
    registry: Arc<dyn Registry>,
    members: watch::Receiver<Arc<Members>>,
    nodes: Arc<Nodes>,
    interval: Duration,
    random: Random,
    writes: JoinSet<()>,
}

impl Work {
    async fn run(mut self, mut flushes: mpsc::Receiver<oneshot::Sender<()>>) {
        let wake = self.nodes.wake.clone();
        let mut flushed: Vec<oneshot::Sender<()>> = Vec::new();
        // Clients that start together do not look at the same moments.
        let mut look_at = Instant::now() + TICK.mul_f64(self.random.unit());
        let mut idle = true;
        loop {
            tokio::select! {
                () = wake.notified(), if idle => idle = false,
                () = tokio::time::sleep_until(look_at), if !idle => {
                    idle = !self.look(false);
                    look_at = Instant::now() + TICK;
                }
                Some(done) = flushes.recv() => {
                    self.look(true);
                    flushed.push(done);
                }
                Some(written) = self.writes.join_next(), if !self.writes.is_empty() => {
                    if let Err(error) = written {
                        debug!(%error, "a write of a response time failed");
                    }
                }
                else => return,
            }
            if self.writes.is_empty() {
                for done in flushed.drain(..) {
                    // Whoever asked may have stopped waiting.
                    let _ = done.send(());
                }
            }
        }
    }

    /// Starts the writes that are due. Whether there is anything left to write, now or later.
    fn look(&mut self, flush: bool) -> bool {
        let now = Instant::now();
        let members = self.members.borrow_and_update().clone();
        let mut pending = false;
        let mut nodes = self.nodes.by_incarnation.lock();
        nodes.retain(|_, node| {
            let sampled = node.state.lock().latencies.since(now).is_some();
            pending |= sampled;
            // The pool lets go of a node that left; what was measured of it may still be delivered.
            sampled || Arc::strong_count(node) > 1
        });
        for node in nodes.values() {
            let Some(entry) = members.nodes.get(&node.addr).filter(|entry| node.is_of(entry)) else { continue };
            if self.writes.len() >= WRITES_MAX {
                break;
            }
            let Some(jitter) = start(node, entry, now, flush, &mut self.random) else { continue };
            let pace = Pace { interval: self.interval, jitter };
            if node.due(entry, now, pace, flush).is_none() {
                continue;
            }
            node.state.lock().plan.writing = true;
            let (registry, node) = (self.registry.clone(), node.clone());
            self.writes.spawn(async move {
                let written = tokio::time::timeout(WRITE_TIMEOUT, write(&*registry, &node, pace, flush)).await;
                let plan = &mut node.state.lock().plan;
                plan.writing = false;
                // Also after a failure: a registry in trouble is not asked more often than a healthy one.
                plan.not_before = Some(Instant::now() + pace.interval);
                if written.is_err() {
                    debug!(node = %node.addr, "the registry did not answer a write of a response time");
                }
            });
        }
        pending
    }
}

/// The jitter for this version of the entry, unless the node is being written or has to wait.
fn start(node: &NodeSamples, entry: &Member, now: Instant, flush: bool, random: &mut Random) -> Option<f64> {
    let plan = &mut node.state.lock().plan;
    if plan.version != Some(entry.version) {
        plan.version = Some(entry.version);
        plan.jitter = random.unit();
    }
    let waiting = !flush && plan.not_before.is_some_and(|at| now < at);
    (!plan.writing && !waiting).then_some(plan.jitter)
}

/// Reads the entry again, and writes it if it is still due. Whoever loses a race to another client
/// finds a fresh entry then and leaves it.
async fn write(registry: &dyn Registry, node: &NodeSamples, pace: Pace, flush: bool) {
    for _ in 0..TRIES {
        let entry = match registry.read(node.addr).await {
            Ok(Some(entry)) if node.is_of(&entry) => entry,
            Ok(_) => return,
            Err(error) => return debug!(node = %node.addr, %error, "the entry could not be read"),
        };
        let Some(median_us) = node.due(&entry, Instant::now(), pace, flush) else { return };
        let record = entry.record.with_response_time(median_us);
        match registry.update(node.addr, entry.version, record).await {
            Ok(()) => return node.state.lock().latencies.clear(),
            Err(UpdateError::Changed) => {}
            Err(error) => return debug!(node = %node.addr, %error, "the response time was not written"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use rpc_core::registry::{RESPONSE_TIME_VALID, Registration};
    use rpc_core::{NodeRecord, NodeState};

    use super::*;
    use crate::slow_registry::SlowRegistry;
    use crate::write_back::INTERVAL;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn addr(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn shared(registry: &Arc<SlowRegistry>) -> Arc<dyn Registry> {
        registry.clone()
    }

    async fn register(registry: &SlowRegistry, port: u16) -> (Registration, String) {
        let record = NodeRecord::new();
        let id = record.id.clone();
        let registration = registry.register(addr(port), record);
        let mut members = registry.members();
        members.wait_for(|members| members.nodes.contains_key(&addr(port))).await.unwrap();
        (registration, id)
    }

    fn response_time(registry: &SlowRegistry, port: u16) -> u64 {
        registry.members().borrow().nodes[&addr(port)].record.response_time_us
    }

    /// Records `latency` every `every` for `long`, and checks `check` each time.
    async fn traffic(samples: &NodeSamples, latency: Duration, every: Duration, long: Duration, check: impl Fn()) {
        let end = Instant::now() + long;
        while Instant::now() < end {
            samples.record(Instant::now(), latency);
            tokio::time::sleep(every).await;
            check();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_measurement_arrives_within_half_a_second() {
        let registry = SlowRegistry::open("mem:first-measurement", ms(2));
        let (_registration, id) = register(&registry, 1).await;
        let reporter = Reporter::spawn(&shared(&registry), INTERVAL, 1);
        let samples = reporter.node(addr(1), &id);
        samples.record(Instant::now(), ms(7));
        let mut members = registry.members();
        let known = members.wait_for(|members| members.nodes[&addr(1)].record.response_time_us != 0);
        tokio::time::timeout(ms(500), known).await.expect("in time").unwrap();
        assert!(response_time(&registry, 1).abs_diff(7_000) <= 7_000 / 64);
    }

    #[tokio::test(start_paused = true)]
    async fn a_minute_of_steady_traffic_shows_no_unknown_value_and_few_writes() {
        let registry = SlowRegistry::open("mem:steady-traffic", ms(2));
        let (_registration, id) = register(&registry, 1).await;
        let reporter = Reporter::spawn(&shared(&registry), INTERVAL, 2);
        let samples = reporter.node(addr(1), &id);
        for (every, writes_max) in [(ms(20), 25), (ms(1000), 25)] {
            traffic(&samples, ms(5), every, ms(1000), || {}).await;
            let before = registry.updates.load(Ordering::Relaxed);
            traffic(&samples, ms(5), every, ms(60_000), || {
                let members = registry.members().borrow().clone();
                let entry = &members.nodes[&addr(1)];
                assert_ne!(entry.response_time_us(Instant::now()), 0);
                assert!(entry.age(Instant::now()) < ms(4000), "rewritten before it is 4 s old");
            })
            .await;
            // An unmoved value is refreshed every 2.5 to 3.5 s.
            let writes = registry.updates.load(Ordering::Relaxed) - before;
            assert!((15..=writes_max).contains(&writes), "{writes} writes in 60 s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn eight_busy_clients_write_at_most_twice_per_node_and_interval() {
        const NODES: u16 = 5;
        let registry = SlowRegistry::open("mem:eight-clients", ms(3));
        let mut nodes = Vec::new();
        for port in 1..=NODES {
            nodes.push(register(&registry, port).await);
        }
        let reporters: Vec<_> = (0..8).map(|seed| Reporter::spawn(&shared(&registry), INTERVAL, seed)).collect();
        let mut random = Random::new(9);
        let start = Instant::now();
        while start.elapsed() < ms(60_000) {
            for reporter in &reporters {
                for port in 1..=NODES {
                    // The latencies swing, so that each client always has something new to say.
                    let swing = if (start.elapsed().as_millis() / 700).is_multiple_of(2) { 5 } else { 50 };
                    let latency = ms(swing).mul_f64(0.5 + random.unit());
                    reporter.node(addr(port), &nodes[usize::from(port) - 1].1).record(Instant::now(), latency);
                }
            }
            tokio::time::sleep(ms(10)).await;
        }
        let updates = registry.updates.load(Ordering::Relaxed);
        let per_second = f64::from(updates) / 60.0;
        assert!(per_second <= 2.0 * f64::from(NODES), "{per_second} writes/s, failed ones included");
        assert!(per_second >= 0.5 * f64::from(NODES), "{per_second} writes/s: the values are kept up to date");
        let lost = registry.lost.load(Ordering::Relaxed);
        assert!(lost * 10 <= updates, "{lost} of {updates} writes lost a race");
    }

    #[tokio::test(start_paused = true)]
    async fn a_restarted_node_does_not_inherit_the_measurement_of_its_predecessor() {
        let registry = SlowRegistry::open("mem:incarnations", ms(2));
        let (old, old_id) = register(&registry, 1).await;
        let reporter = Reporter::spawn(&shared(&registry), INTERVAL, 3);
        let samples = reporter.node(addr(1), &old_id);
        assert!(old.withdraw(PATIENCE).await);
        let (_new, new_id) = register(&registry, 1).await;
        traffic(&samples, ms(5), ms(100), ms(5_000), || {}).await;
        reporter.flush(Deadline::after(Instant::now(), PATIENCE)).await;
        assert_eq!(response_time(&registry, 1), 0);
        reporter.node(addr(1), &new_id).record(Instant::now(), ms(9));
        reporter.flush(Deadline::after(Instant::now(), PATIENCE)).await;
        assert_ne!(response_time(&registry, 1), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_ends_after_one_call_delivers_its_measurement() {
        let registry = SlowRegistry::open("mem:one-call", ms(20));
        let (_registration, id) = register(&registry, 1).await;
        let reporter = Reporter::spawn(&shared(&registry), INTERVAL, 4);
        reporter.node(addr(1), &id).record(Instant::now(), ms(30));
        let start = Instant::now();
        reporter.flush(Deadline::after(start, PATIENCE)).await;
        assert!(response_time(&registry, 1).abs_diff(30_000) <= 30_000 / 64);
        assert!(start.elapsed() < ms(100), "it waits for no interval: {:?}", start.elapsed());
        // Now it is known, so there is nothing to deliver.
        reporter.node(addr(1), &id).record(Instant::now(), ms(300));
        reporter.flush(Deadline::after(Instant::now(), PATIENCE)).await;
        assert!(response_time(&registry, 1) < 31_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_ends_at_its_deadline_when_the_registry_hangs() {
        let registry = SlowRegistry::open("mem:hanging", Duration::from_secs(3600));
        let (_registration, id) = register(&registry, 1).await;
        let reporter = Reporter::spawn(&shared(&registry), INTERVAL, 5);
        let samples = reporter.node(addr(1), &id);
        samples.record(Instant::now(), ms(30));
        let start = Instant::now();
        reporter.flush(Deadline::after(start, ms(200))).await;
        assert!(start.elapsed() < ms(250));
        // Nor is it asked again and again.
        traffic(&samples, ms(5), ms(10), ms(60_000), || {}).await;
        let reads = registry.reads.load(Ordering::Relaxed);
        assert!(reads <= 15, "{reads} readings in a minute");
    }

    #[tokio::test(start_paused = true)]
    async fn what_others_wrote_into_the_entry_is_kept() {
        let registry = SlowRegistry::open("mem:keeps-the-rest", ms(2));
        let (registration, id) = register(&registry, 1).await;
        let reporter = Reporter::spawn(&shared(&registry), INTERVAL, 6);
        let samples = reporter.node(addr(1), &id);
        samples.record(Instant::now(), ms(30));
        assert!(registration.set_state(NodeState::Draining, PATIENCE).await);
        traffic(&samples, ms(30), ms(100), ms(3_000), || {}).await;
        let members = registry.members().borrow().clone();
        let record = &members.nodes[&addr(1)].record;
        assert_eq!((record.state, record.id.as_str()), (NodeState::Draining, id.as_str()));
        assert_ne!(record.response_time_us, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_measurement_is_not_delivered_late() {
        let registry = SlowRegistry::open("mem:late", ms(2));
        let reporter = Reporter::spawn(&shared(&registry), INTERVAL, 7);
        let record = NodeRecord::new();
        reporter.node(addr(1), &record.id).record(Instant::now(), ms(30));
        tokio::time::sleep(RESPONSE_TIME_VALID).await;
        let _registration = registry.register(addr(1), record);
        tokio::time::sleep(PATIENCE).await;
        assert_eq!(response_time(&registry, 1), 0);
    }

    #[tokio::test]
    async fn without_write_back_nothing_is_kept_and_nothing_waits() {
        let registry = rpc_core::registry::open(&"static:127.0.0.1:1".parse().unwrap()).unwrap();
        let reporter = Reporter::spawn(&registry, INTERVAL, 8);
        let samples = reporter.node(addr(1), "");
        samples.record(Instant::now(), ms(30));
        assert!(samples.state.lock().latencies.since(Instant::now()).is_none());
        assert_eq!(reporter.nodes.by_incarnation.lock().len(), 0);
        reporter.flush(Deadline::after(Instant::now(), Duration::from_secs(3600))).await;
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_left_are_forgotten() {
        let registry = SlowRegistry::open("mem:forgotten", ms(2));
        let reporter = Reporter::spawn(&shared(&registry), INTERVAL, 9);
        for i in 0..100 {
            reporter.node(addr(1), &format!("{i}")).record(Instant::now(), ms(1));
        }
        tokio::time::sleep(RESPONSE_TIME_VALID * 2).await;
        assert_eq!(reporter.nodes.by_incarnation.lock().len(), 0);
    }
}
