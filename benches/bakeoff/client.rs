//! A process of clients. Calls go out when they are due, whatever became of those before them.

use std::io::{BufRead as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use rpc_client::balance::{self, Random};
use rpc_client::{CallOptions, Client, ClientConfig, ErrorKind};
use rpc_core::registry;
use rpc_sim::work::exponential;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::child;
use crate::scenario::{HEDGE, Scenario};

/// Clients have so long to connect with all servers.
const SETTLE: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    registry: String,
    #[arg(long)]
    scenario: String,
    #[arg(long)]
    policy: String,
    #[arg(long)]
    seconds: f64,
    #[arg(long)]
    seed: u64,
}

impl Args {
    /// The arguments that start such a process.
    pub(crate) fn of(registry: &str, scenario: &Scenario, policy: &str, seconds: f64, seed: u64) -> Vec<String> {
        vec![
            "client".to_owned(),
            format!("--registry={registry}"),
            format!("--scenario={}", scenario.name),
            format!("--policy={policy}"),
            format!("--seconds={seconds}"),
            format!("--seed={seed}"),
        ]
    }
}

/// What came of one call.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Record {
    /// When it was due, from the beginning.
    pub(crate) due_us: u32,
    /// From when it was due to its end.
    pub(crate) latency_us: u32,
    pub(crate) end: End,
    pub(crate) method: u8,
    /// Port of the node that answered, 0 for none.
    pub(crate) port: u16,
    pub(crate) attempts: u8,
}

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    Answered,
    TimedOut,
    Failed,
}

/// What a process of clients reports.
#[derive(Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) records: Vec<Record>,
    /// The 99th percentile of how late calls went out: what the machine adds by itself.
    pub(crate) late_p99_us: u64,
    /// The first failure, in words.
    pub(crate) failure: Option<String>,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    child::die_with_parent()?;
    let scenario = Scenario::named(&args.scenario).context("no such scenario")?;
    let clients = connect(&args, scenario)?;
    for client in &clients {
        client.ready(SETTLE).await;
    }
    writeln!(std::io::stdout(), "ready")?;
    std::io::stdin().lock().read_line(&mut String::new())?;
    let runtime = tokio::runtime::Handle::current();
    // A thread of its own: the runtime's timers go by milliseconds, and calls are to be on time.
    let pacing = tokio::task::spawn_blocking(move || pace(&args, scenario, &clients, &runtime));
    let (calls, late_p99_us) = pacing.await?;
    let mut report = Report { records: Vec::with_capacity(calls.len()), late_p99_us, failure: None };
    for call in calls {
        let (record, failure) = call.await?;
        report.records.push(record);
        report.failure = report.failure.or(failure);
    }
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

/// The clients of this process: of one registry, each with connections of its own.
fn connect(args: &Args, scenario: &Scenario) -> Result<Vec<Client>> {
    let registry = registry::open(&args.registry.parse()?)?;
    let client = |index| {
        let mut config = ClientConfig::default();
        if index > 0 {
            // One thread of the job in a process is enough.
            config.expiry = None;
        }
        let name = args.policy.strip_suffix(HEDGE).unwrap_or(&args.policy);
        let policy = balance::policy(name).context("no such policy")?;
        Ok(Client::builder().config(config).policy(policy).connect_to(registry.clone())?)
    };
    (0..scenario.clients / scenario.processes).map(client).collect()
}

type Call = JoinHandle<(Record, Option<String>)>;

/// Sends all calls, each when it is due.
fn pace(
    args: &Args,
    scenario: &'static Scenario,
    clients: &[Client],
    runtime: &tokio::runtime::Handle,
) -> (Vec<Call>, u64) {
    let mut random = Random::new(args.seed);
    let mean_s = scenario.processes as f64 / scenario.calls_per_s();
    let lateness = Arc::new(Mutex::new(rpc_core::LatencyRecorder::new()));
    let options = match (scenario.idempotent, args.policy.ends_with(HEDGE)) {
        (_, true) => CallOptions::new().hedge(),
        (true, false) => CallOptions::new().idempotent(),
        (false, false) => CallOptions::new(),
    };
    let started = Instant::now();
    let mut due = Duration::ZERO;
    let mut calls = Vec::new();
    loop {
        due += Duration::from_secs_f64(mean_s * exponential(&mut random));
        if due.as_secs_f64() >= args.seconds {
            let late_p99_us = lateness.lock().quantile_us(0.99);
            return (calls, late_p99_us);
        }
        let client = clients[random.below(clients.len())].clone();
        let (method, ms) = scenario.draw(&mut random);
        std::thread::sleep((started + due).saturating_duration_since(Instant::now()));
        let (lateness, options) = (lateness.clone(), options.clone());
        calls.push(runtime.spawn(async move {
            lateness.lock().record((started + due).elapsed());
            call(&client, &options, scenario, (method, ms), (started, due)).await
        }));
    }
}

async fn call(
    client: &Client,
    options: &CallOptions,
    scenario: &Scenario,
    (method, ms): (usize, f64),
    (started, due): (Instant, Duration),
) -> (Record, Option<String>) {
    let outcome = client.call_detailed(scenario.methods[method].name, &(ms,), options).await;
    let latency_us = micros((started + due).elapsed());
    let (end, node, attempts) = match &outcome {
        Ok(reply) => (End::Answered, Some(reply.node), reply.attempts.len()),
        Err(error) => {
            let end = match error.kind() {
                ErrorKind::DeadlineExceeded { .. } => End::TimedOut,
                _ => End::Failed,
            };
            (end, error.attempts().last().map(|attempt| attempt.node), error.attempts().len())
        }
    };
    let record = Record {
        due_us: micros(due),
        latency_us,
        end,
        method: method as u8,
        port: node.map_or(0, |node| node.port()),
        attempts: u8::try_from(attempts).unwrap_or(u8::MAX),
    };
    let failure = outcome.err().map(|error| format!("{:.3} s: {error}", due.as_secs_f64()));
    (record, failure)
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}
