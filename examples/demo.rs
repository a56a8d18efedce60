//! The main job, to be watched: `cargo run --release -p rpc-examples --example demo`.
//!
//! Three nodes of different speed register in a directory. Two clients send them the same steady
//! load: one sends each request to the node that it expects to answer soonest, the other to each
//! node in turn. Half way the fastest node is taken away, and some seconds later it comes back. It
//! takes 15 seconds and fails if a single request did.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rpc_client::balance::{self, Random};
use rpc_client::{CallOptions, Client};
use rpc_core::LatencyRecorder;
use rpc_server::{RpcError, Server};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// The nodes, and how many milliseconds each works on a request. The first is the fastest.
const NODES: [(&str, u64, u64); 3] = [("quick", 2, 6), ("middling", 15, 35), ("slow", 60, 120)];
const POLICIES: [&str; 2] = ["fastest", "round_robin"];
/// Requests per second of each client: 6000 in all.
const RATE: u64 = 200;
/// When it ends, when the fastest node is taken away, and when it is brought back.
const END_S: u64 = 15;
const AWAY_S: u64 = 6;
const BACK_S: u64 = 10;
const REDRAW: Duration = Duration::from_millis(250);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let directory = std::env::temp_dir().join(format!("rpc-demo-{}", std::process::id()));
    let outcome = run(&format!("local:{}", directory.display())).await;
    drop(std::fs::remove_dir_all(directory));
    outcome
}

async fn run(registry: &str) -> anyhow::Result<()> {
    let mut cluster = Cluster::start(registry).await?;
    let mut loads = Vec::new();
    for policy in POLICIES {
        loads.push(Load::start(registry, policy).await?);
    }
    let mut view = View::new();
    let started = Instant::now();
    for load in &mut loads {
        load.run();
    }
    let mut ticks = tokio::time::interval(REDRAW);
    while started.elapsed().as_secs() < END_S {
        ticks.tick().await;
        match (cluster.is_up(0), started.elapsed().as_secs()) {
            (true, AWAY_S..BACK_S) => cluster.stop(0).await?,
            (false, BACK_S..) => cluster.restart(0).await?,
            _ => {}
        }
        view.show(&cluster, &loads, started.elapsed());
    }
    let (mut requests, mut failed) = (0, Vec::new());
    for load in &mut loads {
        load.finish().await?;
        requests += load.stats().all.latency.len();
        failed.append(&mut load.stats().failed);
    }
    view.end(&cluster, &loads, requests);
    for name in 0..NODES.len() {
        cluster.stop(name).await?;
    }
    anyhow::ensure!(failed.is_empty(), "{} requests failed; the first: {}", failed.len(), failed[0]);
    Ok(())
}

/// The servers. They might as well run on other machines: all goes through the registry and TCP.
struct Cluster {
    registry: String,
    nodes: Vec<Node>,
}

struct Node {
    addr: SocketAddr,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Cluster {
    async fn start(registry: &str) -> anyhow::Result<Self> {
        let mut cluster = Self { registry: registry.to_owned(), nodes: Vec::new() };
        for index in 0..NODES.len() {
            let node = cluster.serve(index, SocketAddr::from(([127, 0, 0, 1], 0))).await?;
            cluster.nodes.push(node);
        }
        Ok(cluster)
    }

    async fn serve(&self, index: usize, addr: SocketAddr) -> anyhow::Result<Node> {
        let (name, from_ms, to_ms) = NODES[index];
        let random = Arc::new(Mutex::new(Random::new(index as u64)));
        let work = move |(): ()| {
            let ms = from_ms as f64 + (to_ms - from_ms) as f64 * lock(&random).unit();
            async move {
                tokio::time::sleep(Duration::from_secs_f64(ms / 1e3)).await;
                Ok::<_, RpcError>(())
            }
        };
        let server = Server::builder().method("work", work).name(name).registry(&self.registry)?.bind(addr).await?;
        let (stop, stopped) = oneshot::channel::<()>();
        let addr = server.local_addr();
        let serving = tokio::spawn(server.serve(async { drop(stopped.await) }));
        Ok(Node { addr, running: Some((stop, serving)) })
    }

    fn is_up(&self, index: usize) -> bool {
        self.nodes[index].running.is_some()
    }

    /// As SIGTERM does: it takes nothing new, finishes what it has, and leaves the registry.
    async fn stop(&mut self, index: usize) -> anyhow::Result<()> {
        if let Some((stop, serving)) = self.nodes[index].running.take() {
            drop(stop);
            serving.await?;
        }
        Ok(())
    }

    async fn restart(&mut self, index: usize) -> anyhow::Result<()> {
        self.nodes[index] = self.serve(index, self.nodes[index].addr).await?;
        Ok(())
    }
}

/// A client and its steady stream of requests.
struct Load {
    policy: &'static str,
    client: Client,
    stats: Arc<Mutex<Stats>>,
    running: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stats {
    all: Answers,
    nodes: BTreeMap<SocketAddr, Answers>,
    failed: Vec<String>,
}

#[derive(Clone, Default)]
struct Answers {
    latency: LatencyRecorder,
    /// Since the table was last drawn anew.
    lately: u64,
}

impl Load {
    async fn start(registry: &str, policy: &'static str) -> anyhow::Result<Self> {
        let chooser = balance::policy(policy).ok_or_else(|| anyhow::anyhow!("no policy {policy}"))?;
        let client = Client::builder().policy(chooser).wait_for_node().connect(registry).await?;
        client.ready(Duration::from_secs(5)).await;
        Ok(Self { policy, client, stats: Arc::default(), running: None })
    }

    fn run(&mut self) {
        let (client, stats) = (self.client.clone(), self.stats.clone());
        self.running = Some(tokio::spawn(async move {
            let mut calls = JoinSet::new();
            let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE as u32);
            // The load is given: a request starts at its time, whatever became of those before it.
            for _ in 0..RATE * END_S {
                ticks.tick().await;
                calls.spawn(request(client.clone(), stats.clone()));
                while calls.try_join_next().is_some() {}
            }
            calls.join_all().await;
        }));
    }

    async fn finish(&mut self) -> anyhow::Result<()> {
        if let Some(running) = self.running.take() {
            running.await?;
        }
        Ok(())
    }

    fn stats(&self) -> MutexGuard<'_, Stats> {
        lock(&self.stats)
    }
}

async fn request(client: Client, stats: Arc<Mutex<Stats>>) {
    let answer = client.call_detailed("work", &(), &CallOptions::new()).await;
    let mut stats = lock(&stats);
    match answer {
        Ok(reply) => {
            stats.all.add(reply.elapsed);
            stats.nodes.entry(reply.node).or_default().add(reply.elapsed);
        }
        Err(error) => stats.failed.push(error.to_string()),
    }
}

impl Answers {
    fn add(&mut self, latency: Duration) {
        self.latency.record(latency);
        self.lately += 1;
    }
}

/// The tables: in place on a terminal, otherwise a line a second and the tables in the end.
struct View {
    in_place: bool,
    drawn: usize,
    last: Duration,
    /// What held when the current second began.
    held: &'static str,
}

impl View {
    fn new() -> Self {
        Self { in_place: std::io::stdout().is_terminal(), drawn: 0, last: Duration::ZERO, held: ALL_UP }
    }

    fn show(&mut self, cluster: &Cluster, loads: &[Load], elapsed: Duration) {
        let is_second = elapsed.as_secs() != self.last.as_secs();
        if self.in_place {
            let text =
                format!("{:>2} s  {:19}\n{}", elapsed.as_secs(), what_holds(cluster, elapsed), tables(cluster, loads));
            self.draw(&text);
        } else if is_second {
            // The answers are those of the second that is over.
            let mut line = format!("{:>2} s  {:19}", elapsed.as_secs(), self.held);
            for load in loads {
                let _ = write!(line, "  | {}: {}", load.policy, shares(cluster, &load.stats()));
            }
            print(&format!("{line}\n"));
        }
        if is_second {
            self.last = elapsed;
            self.held = what_holds(cluster, elapsed);
            for load in loads {
                let mut stats = load.stats();
                stats.all.lately = 0;
                stats.nodes.values_mut().for_each(|node| node.lately = 0);
            }
        }
    }

    fn end(&mut self, cluster: &Cluster, loads: &[Load], requests: u64) {
        let text = format!("{requests} requests answered\n{}", tables(cluster, loads));
        if self.in_place { self.draw(&text) } else { print(&format!("\n{text}")) }
    }

    fn draw(&mut self, text: &str) {
        let up = if self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
        // Lines longer than the terminal are cut, or there would be more of them than counted.
        print(&format!("{up}\r\x1b[?7l{}\x1b[J\x1b[?7h", text.replace('\n', "\x1b[K\n")));
        self.drawn = text.matches('\n').count();
    }
}

const ALL_UP: &str = "all nodes are up";

fn what_holds(cluster: &Cluster, elapsed: Duration) -> &'static str {
    match (cluster.is_up(0), elapsed.as_secs()) {
        (false, _) => "the fastest is away",
        (true, BACK_S..) => "the fastest is back",
        (true, _) => ALL_UP,
    }
}

fn shares(cluster: &Cluster, stats: &Stats) -> String {
    let share = |node: &Node| percent(stats.nodes.get(&node.addr).map_or(0, |a| a.lately), stats.all.lately);
    let shares = cluster.nodes.iter().zip(NODES).map(|(node, (name, ..))| format!("{name} {}", share(node)));
    format!("{:>3} calls, {}", stats.all.lately, shares.collect::<Vec<_>>().join(" "))
}

fn tables(cluster: &Cluster, loads: &[Load]) -> String {
    let mut text = String::new();
    for load in loads {
        let stats = load.stats();
        let what = balance::POLICIES.iter().find(|(name, ..)| *name == load.policy).map_or("", |(_, what, _)| what);
        let _ = writeln!(text, "\n{}: {what}", load.policy);
        let head = ["NODE", "ADDRESS", "STATE", "CALLS", "SHARE", "P50", "P99"];
        row(&mut text, head.map(str::to_owned));
        for (node, (name, ..)) in cluster.nodes.iter().zip(NODES) {
            let state = if node.running.is_some() { "up" } else { "away" };
            let answers = stats.nodes.get(&node.addr).cloned().unwrap_or_default();
            answers_row(&mut text, [name, &node.addr.to_string(), state], &answers, stats.all.latency.len());
        }
        answers_row(&mut text, ["all", "", ""], &stats.all, stats.all.latency.len());
        if !stats.failed.is_empty() {
            let _ = writeln!(text, "{} failed: {}", stats.failed.len(), stats.failed[0]);
        }
    }
    text
}

fn answers_row(text: &mut String, [name, addr, state]: [&str; 3], answers: &Answers, total: u64) {
    let ms = |quantile| match answers.latency.is_empty() {
        true => "-".to_owned(),
        false => format!("{:.1} ms", answers.latency.quantile_us(quantile) as f64 / 1e3),
    };
    let share = percent(answers.latency.len(), total);
    let calls = answers.latency.len().to_string();
    row(text, [name.into(), addr.into(), state.into(), calls, share, ms(0.5), ms(0.99)]);
}

fn row(text: &mut String, [name, addr, state, calls, share, p50, p99]: [String; 7]) {
    let _ = writeln!(text, "  {name:8}  {addr:15}  {state:5}  {calls:>5}  {share:>6}  {p50:>8}  {p99:>8}");
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.0} %", 100.0 * part as f64 / whole.max(1) as f64)
}

/// A reader that went away does not end the demonstration.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

/// A thread that panicked in here has left nothing half done that matters.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
