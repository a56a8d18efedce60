//! What choosing a node costs, for every policy, by the number of nodes and of threads that choose.
//!
//! A pick here is what the client does for one: the policy behind its lock decides, and hears of what was sent. The
//! nodes have what nodes of a busy client have: measured latencies, calls in flight and load reports, and one probe of
//! each was answered, without which `fastest` would let every call wait for probes, and decide twice. With
//! several threads the time is that of all of them together, divided by their picks.
#![allow(missing_docs, reason = "criterion makes public functions")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use parking_lot::Mutex;
use rpc_client::balance::{Decision, Event, LoadReport, NodeId, NodeView, POLICIES, Pick, Policy, Random, View};
use rpc_client::node_load::NodeLoad;
use tokio::time::Instant;

const NODES: [u64; 3] = [3, 30, 1000];
const THREADS: [u64; 2] = [1, 4];

/// Picks between two replies with a load report. At 100,000 calls a second on one connection, a read
/// brings about as many answers, and one report.
const REPORT_EVERY: u64 = 16;

/// What a probe takes.
const ROUND_TRIP: Duration = Duration::from_micros(100);

struct Node {
    id: NodeId,
    addr: SocketAddr,
    reports: bool,
    in_flight: AtomicU32,
    /// Short and nearly never contended, as in the client.
    load: Mutex<NodeLoad>,
    report: LoadReport,
    since: Instant,
}

struct Nodes(Vec<Node>);

struct NodesView<'a> {
    nodes: &'a Nodes,
    now: Instant,
}

impl Nodes {
    fn new(count: u64) -> Self {
        let since = Instant::now();
        let node = |n: u64| {
            let mut load = NodeLoad::new();
            load.reply(since, Duration::from_micros(200 + n % 97 * 10), true);
            let in_flight = (n % 5) as u32;
            Node {
                id: NodeId(n),
                addr: (Ipv4Addr::from_bits(0x0a00_0001 + n as u32), 8898).into(),
                reports: true,
                in_flight: AtomicU32::new(in_flight),
                load: Mutex::new(load),
                report: LoadReport {
                    method: 1,
                    in_flight: in_flight + 1,
                    service_us: (150 + n % 89 * 10) as f64,
                    concurrency: 4.0,
                    errors: 0.0,
                    latency_us: 200.0,
                },
                since,
            }
        };
        Self((0..count).map(node).collect())
    }
}

impl View for NodesView<'_> {
    fn len(&self) -> usize {
        self.nodes.0.len()
    }

    fn id(&self, index: usize) -> NodeId {
        self.nodes.0[index].id
    }

    fn reports(&self, index: usize) -> bool {
        self.nodes.0[index].reports
    }

    fn in_flight(&self, index: usize) -> u32 {
        self.nodes.0[index].in_flight.load(Ordering::Relaxed)
    }

    fn node(&self, index: usize) -> NodeView {
        let node = &self.nodes.0[index];
        let load = node.load.lock();
        NodeView {
            id: node.id,
            addr: node.addr,
            weight: 100,
            in_flight: node.in_flight.load(Ordering::Relaxed),
            latency_us: load.latency_us(self.now),
            registry_us: 300,
            failure: load.failure(self.now),
            reports: node.reports,
            report: Some((node.report, self.now.saturating_duration_since(node.since))),
            usable_for: self.now.saturating_duration_since(node.since),
        }
    }
}

/// What the threads share.
struct Client {
    nodes: Nodes,
    policy: Mutex<Box<dyn Policy>>,
    observes: bool,
    seeds: AtomicU64,
}

impl Client {
    fn new(policy: Box<dyn Policy>, nodes: u64) -> Self {
        let nodes = Nodes::new(nodes);
        let observes = policy.observes();
        let client = Self { nodes, policy: Mutex::new(policy), observes, seeds: AtomicU64::new(1) };
        let ids: Vec<NodeId> = client.nodes.0.iter().map(|n| n.id).collect();
        client.observe(&Event::Members { nodes: &ids });
        let now = Instant::now();
        for node in &client.nodes.0 {
            client.report(node, now);
            client.observe(&Event::ProbeAnswer { node: node.id, now, round_trip: ROUND_TRIP, report: node.report });
        }
        client
    }

    fn observe(&self, event: &Event<'_>) {
        if self.observes {
            self.policy.lock().observe(event);
        }
    }

    fn report(&self, node: &Node, now: Instant) {
        let latency = Duration::from_micros(200);
        self.observe(&Event::Reply { node: node.id, now, latency, ok: true, report: Some(node.report) });
    }

    fn pick(&self, now: Instant) -> usize {
        let view = NodesView { nodes: &self.nodes, now };
        let seed = Random::new(self.seeds.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed)).next_u64();
        let mut pick = Pick { method: 1, key: None, now, seed, excluded: &[], probed: 0 };
        loop {
            let decision = self.policy.lock().decide(&view, &pick);
            match decision {
                Decision::Send { index, .. } => {
                    self.observe(&Event::Sent { node: self.nodes.0[index].id, now });
                    return index;
                }
                // Sending it is not part of the choice, nor is its answer.
                Decision::Probe { .. } => pick.probed += 1,
                Decision::NoNode => return 0,
            }
        }
    }

    fn pick_many(&self, count: u64) {
        let mut now = Instant::now();
        for n in 0..count {
            let index = self.pick(now);
            if n % REPORT_EVERY == 0 {
                now = Instant::now();
                self.report(&self.nodes.0[index], now);
            }
        }
    }

    fn time(&self, threads: u64, picks: u64) -> Duration {
        let started = Instant::now();
        if threads == 1 {
            self.pick_many(picks);
        } else {
            thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| self.pick_many(picks.div_ceil(threads)));
                }
            });
        }
        started.elapsed()
    }
}

fn picks(criterion: &mut Criterion) {
    for (name, _, make) in POLICIES {
        let mut group = criterion.benchmark_group(*name);
        for (nodes, threads) in NODES.iter().flat_map(|&n| THREADS.map(|t| (n, t))) {
            let client = Client::new(make(), nodes);
            let id = BenchmarkId::new(format!("{nodes} nodes"), format!("{threads} threads"));
            group.bench_function(id, |bencher| bencher.iter_custom(|picks| client.time(threads, picks)));
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500))
        .sample_size(20);
    targets = picks
}
criterion_main!(benches);
