//! Our entry in a benchmark of RPC frameworks side by side: an echo of `{id, text}` through the
//! public typed API, everything switched on that is on by default.
//!
//! `competitor server` serves until it is killed; `competitor client` drives it, checks every
//! answer, and prints one line of JSON. `benches/README.md` says how to run it beside others.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use rpc_client::{Client, ClientConfig};
use rpc_core::LatencyRecorder;
use rpc_server::{RpcError, Server};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::Instant;

#[derive(Parser)]
#[command(args_override_self = true)]
struct Cli {
    #[command(subcommand)]
    side: Side,
}

#[derive(Subcommand)]
enum Side {
    /// Serve until killed.
    Server(Common),
    /// Drive a server.
    Client(Drive),
    /// Both sides in one thread and a fixed number of calls: nearly the same instructions in every
    /// run, to be counted and not timed.
    Both(Both),
}

#[derive(Args)]
struct Both {
    #[arg(long, default_value_t = 64)]
    concurrency: usize,
    /// Calls of each task.
    #[arg(long, default_value_t = 100)]
    calls: u64,
    #[arg(long, default_value_t = 64)]
    payload: usize,
}

#[derive(Args)]
struct Common {
    /// Where the server listens.
    #[arg(long, default_value = "127.0.0.1:7400")]
    addr: SocketAddr,
    /// Worker threads; 0 is the current_thread runtime.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

#[derive(Args)]
struct Drive {
    #[command(flatten)]
    common: Common,
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Tasks that each keep one call in flight.
    #[arg(long, default_value_t = 1)]
    concurrency: usize,
    /// Bytes of text in each message.
    #[arg(long, default_value_t = 64)]
    payload: usize,
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    #[arg(long, default_value_t = 0.5)]
    warmup: f64,
    /// The server's process, whose CPU time and peak memory are read.
    #[arg(long, default_value_t = 0)]
    server_pid: u32,
    #[arg(long, default_value = "rpc")]
    label: String,
}

#[derive(Clone, Serialize, Deserialize)]
struct Message {
    id: u64,
    text: String,
}

async fn echo(message: Message) -> Result<Message, RpcError> {
    Ok(message)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match Cli::parse().side {
        Side::Server(common) => runtime(common.threads)?.block_on(serve(common.addr)),
        Side::Client(drive) => runtime(drive.common.threads)?.block_on(measure(drive)),
        Side::Both(both) => runtime(0)?.block_on(count(both)),
    }
}

fn runtime(threads: usize) -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = if threads == 0 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(threads);
        builder
    };
    builder.enable_all().build()
}

async fn serve(addr: SocketAddr) -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder().method("echo", echo).bind(addr).await?;
    server.serve(std::future::pending()).await;
    Ok(())
}

fn text(bytes: usize) -> String {
    "The quick brown fox jumps over the lazy dog 0123456789, again. ".chars().cycle().take(bytes).collect()
}

async fn count(both: Both) -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder().method("echo", echo).bind("127.0.0.1:0").await?;
    let client = Client::connect(&format!("static:{}", server.local_addr())).await?;
    tokio::spawn(server.serve(std::future::pending()));
    let mut workers = JoinSet::new();
    for _ in 0..both.concurrency {
        let (client, text) = (client.clone(), text(both.payload));
        workers.spawn(async move {
            for id in 0..both.calls {
                let answer: Message = client.call("echo", &Message { id, text: text.clone() }).await?;
                assert_eq!(answer.id, id);
            }
            Ok::<_, rpc_client::Error>(())
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    Ok(())
}

const WARMING_UP: u8 = 0;
const MEASURING: u8 = 1;
const STOPPING: u8 = 2;

/// What the workers share.
struct Run {
    phase: AtomicU8,
    ids: AtomicU64,
    text: String,
}

struct Outcome {
    latencies: LatencyRecorder,
    errors: u64,
}

async fn measure(drive: Drive) -> Result<(), Box<dyn std::error::Error>> {
    let config = ClientConfig { connections_per_node: drive.connections, ..ClientConfig::default() };
    let client = Client::builder().config(config).connect(&format!("static:{}", drive.common.addr)).await?;
    let text = text(drive.payload);
    // The first call waits for the server to be there.
    while client.call::<_, Message>("echo", &Message { id: 0, text: String::new() }).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let run = Arc::new(Run { phase: AtomicU8::new(WARMING_UP), ids: AtomicU64::new(0), text });
    let mut workers = JoinSet::new();
    for _ in 0..drive.concurrency {
        workers.spawn(work(client.clone(), run.clone()));
    }
    tokio::time::sleep(Duration::from_secs_f64(drive.warmup)).await;
    let me = std::process::id();
    let before = (cpu_seconds(me), cpu_seconds(drive.server_pid), machine_seconds(), Instant::now());
    run.phase.store(MEASURING, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs_f64(drive.seconds)).await;
    run.phase.store(STOPPING, Ordering::Relaxed);
    let client_cpu = cpu_seconds(me) - before.0;
    let server_cpu = cpu_seconds(drive.server_pid) - before.1;
    let foreign = (machine_seconds() - before.2 - client_cpu - server_cpu).max(0.0);
    let seconds = before.3.elapsed().as_secs_f64();
    let mut latencies = LatencyRecorder::new();
    let mut errors = 0;
    while let Some(outcome) = workers.join_next().await {
        let outcome = outcome?;
        latencies.merge(&outcome.latencies);
        errors += outcome.errors;
    }
    print(&drive, &latencies, errors, seconds, (client_cpu, server_cpu, foreign));
    Ok(())
}

async fn work(client: Client, run: Arc<Run>) -> Outcome {
    let mut outcome = Outcome { latencies: LatencyRecorder::new(), errors: 0 };
    // Ids in blocks, so that the workers do not share a hot counter.
    let mut id = run.ids.fetch_add(1 << 32, Ordering::Relaxed);
    while run.phase.load(Ordering::Relaxed) != STOPPING {
        id += 1;
        let start = Instant::now();
        let answer = client.call::<_, Message>("echo", &Message { id, text: run.text.clone() }).await;
        let took = start.elapsed();
        match answer {
            Ok(message) if message.id == id && message.text.len() == run.text.len() => {
                if run.phase.load(Ordering::Relaxed) == MEASURING {
                    outcome.latencies.record(took);
                }
            }
            _ => outcome.errors += 1,
        }
    }
    outcome
}

#[expect(clippy::print_stdout, reason = "the line of results")]
fn print(drive: &Drive, latencies: &LatencyRecorder, errors: u64, seconds: f64, cpu: (f64, f64, f64)) {
    let us = |quantile| latencies.quantile_us(quantile) as f64;
    println!(
        "{}",
        serde_json::json!({
            "framework": drive.label, "connections": drive.connections, "concurrency": drive.concurrency,
            "payload": drive.payload, "threads": drive.common.threads, "requests": latencies.len(),
            "rps": (latencies.len() as f64 / seconds).round(), "p50_us": us(0.5), "p90_us": us(0.9),
            "p99_us": us(0.99), "p999_us": us(0.999), "max_us": us(1.0), "client_cpu_s": cpu.0,
            "server_cpu_s": cpu.1, "foreign_cpu_s": cpu.2, "seconds": seconds,
            "server_peak_rss_kib": peak_rss_kib(drive.server_pid), "errors": errors,
        })
    );
}

/// User and system time of a process so far. The kernel counts in hundredths of a second.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The command, in parentheses, may hold spaces.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

/// User and system time of everything on the machine.
fn machine_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = stat.lines().next().unwrap_or_default();
    first.split_whitespace().skip(1).take(3).filter_map(|f| f.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn peak_rss_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|v| v.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
