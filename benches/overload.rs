//! A server under three times the load that it can carry: what it still answers, and how fast.
//!
//! The service has 8 permits and holds each for 10 ms, so it answers 800 calls a second at most. Its
//! concurrency limit is 8, or finds itself. Calls arrive by chance, at 90 % of capacity and then at
//! 300 %, whether earlier ones have ended or not; a call has one second, in which the client comes
//! back after refusals as it was told.
//!
//! What the service really does is measured first, by 8 callers without a server. With the runtime's own
//! timer (`--runtime-timer`), which counts in whole milliseconds, 10 ms take 11, and it does less.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use rpc_client::{CallOptions, Client, ClientConfig};
use rpc_core::LatencyRecorder;
use rpc_server::{ConcurrencyLimit, RpcError, Server, ServerConfig};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

const PERMITS: usize = 8;
const HELD: Duration = Duration::from_millis(10);
const CAPACITY: f64 = PERMITS as f64 * 1e3 / HELD.as_millis() as f64;

/// Shares of the capacity that are offered.
const USUAL: f64 = 0.9;
const OVERLOAD: f64 = 3.0;

/// What has to hold under overload.
const GOODPUT_MIN: f64 = 0.9;
const P99_MAX: f64 = 2.0;

const CALL_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Parser)]
struct Args {
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Seconds before the first.
    #[arg(long, default_value_t = 3.0)]
    warmup: f64,
    /// Decides when calls arrive.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Hold the permits by the runtime's timer, and compare with what the service then does.
    #[arg(long)]
    runtime_timer: bool,
}

/// What is called: permits, each held for the same time.
#[derive(Clone)]
struct Service {
    permits: Arc<Semaphore>,
    runtime_timer: bool,
}

impl Service {
    fn new(args: &Args) -> Self {
        Self { permits: Arc::new(Semaphore::new(PERMITS)), runtime_timer: args.runtime_timer }
    }

    async fn work(self) -> Result<(), RpcError> {
        let permit = self.permits.acquire_owned().await.map_err(|e| RpcError::internal(e.to_string()))?;
        if self.runtime_timer {
            tokio::time::sleep(HELD).await;
            drop(permit);
            return Ok(());
        }
        let slept = tokio::task::spawn_blocking(move || {
            std::thread::sleep(HELD);
            drop(permit);
        });
        slept.await.map_err(|e| RpcError::internal(e.to_string()))
    }

    /// Calls a second that it does for as many callers as it has permits, each with the next call at once.
    async fn measure(self, seconds: f64) -> Result<f64, Box<dyn std::error::Error>> {
        let mut callers = JoinSet::new();
        let begun = Instant::now();
        for _ in 0..PERMITS {
            let service = self.clone();
            callers.spawn(async move {
                let mut done = 0.0;
                while begun.elapsed().as_secs_f64() < seconds {
                    service.clone().work().await?;
                    done += 1.0;
                }
                Ok::<f64, RpcError>(done)
            });
        }
        let mut done = 0.0;
        while let Some(caller) = callers.join_next().await {
            done += caller??;
        }
        Ok(done / begun.elapsed().as_secs_f64())
    }
}

struct Outcome {
    answered: f64,
    /// Refused attempts a second.
    refused: f64,
    failed: f64,
    /// Attempts that were admitted, and whole calls, refusals included.
    admitted: LatencyRecorder,
    whole: LatencyRecorder,
}

#[expect(clippy::print_stdout, reason = "the report")]
fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let args = Args::parse();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let measured = runtime()?.block_on(Service::new(&args).measure(args.warmup))?;
    let capacity = if args.runtime_timer { measured } else { CAPACITY };
    println!(
        "seed {}; capacity {capacity:.0}/s, of the service alone {measured:.0}/s; rates per second, times in ms",
        args.seed
    );
    println!("limit     offered  answered  refused  failed  p50 admitted  p99 admitted  p99 whole call");
    let mut kept = true;
    let fixed = ConcurrencyLimit::Fixed(NonZeroUsize::new(PERMITS).ok_or("permits")?);
    for (name, limit) in [("fixed", fixed), ("adaptive", ConcurrencyLimit::Adaptive)] {
        let (usual, overload) = runtime()?.block_on(run(&args, limit, capacity))?;
        for (share, outcome) in [(USUAL, &usual), (OVERLOAD, &overload)] {
            let ms = |recorder: &LatencyRecorder, quantile| recorder.quantile_us(quantile) as f64 / 1e3;
            println!(
                "{name:<8} {:>8.0} {:>9.0} {:>8.0} {:>7.0} {:>13.1} {:>13.1} {:>15.1}",
                share * capacity,
                outcome.answered,
                outcome.refused,
                outcome.failed,
                ms(&outcome.admitted, 0.5),
                ms(&outcome.admitted, 0.99),
                ms(&outcome.whole, 0.99),
            );
        }
        let goodput = overload.answered / capacity;
        let ratio = overload.admitted.quantile_us(0.99) as f64 / usual.admitted.quantile_us(0.99) as f64;
        let verdict = goodput >= GOODPUT_MIN && ratio <= P99_MAX;
        kept &= verdict;
        let word = if verdict { "kept" } else { "MISSED" };
        println!("{name:<8} goodput {:.1} % of capacity, p99 {ratio:.2} times the usual: {word}", goodput * 100.0);
    }
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn run(
    args: &Args,
    limit: ConcurrencyLimit,
    capacity: f64,
) -> Result<(Outcome, Outcome), Box<dyn std::error::Error>> {
    let service = Service::new(args);
    let server = Server::builder()
        .config(ServerConfig { concurrency: limit, ..ServerConfig::default() })
        .method("work", move |(): ()| service.clone().work())
        .bind("127.0.0.1:0")
        .await?;
    let config = ClientConfig { connections_per_node: 4, ..ClientConfig::default() };
    let client = Client::builder().config(config).connect(&format!("static:{}", server.local_addr())).await?;
    tokio::spawn(server.serve(std::future::pending()));
    client.ready(CALL_TIMEOUT).await;
    offer(&client, USUAL * capacity, args.warmup, args.seed).await?;
    let usual = offer(&client, USUAL * capacity, args.seconds, args.seed + 1).await?;
    // The first second shows the change; what is judged is what lasts.
    offer(&client, OVERLOAD * capacity, args.warmup, args.seed + 2).await?;
    let overload = offer(&client, OVERLOAD * capacity, args.seconds, args.seed + 3).await?;
    Ok((usual, overload))
}

/// Calls at this rate for so many seconds, and what came of them.
async fn offer(
    client: &Client,
    per_second: f64,
    seconds: f64,
    seed: u64,
) -> Result<Outcome, Box<dyn std::error::Error>> {
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut calls = JoinSet::new();
    let start = Instant::now();
    let mut at = 0.0;
    loop {
        at += exponential(&mut random) / per_second;
        if at >= seconds {
            break;
        }
        let due = start + Duration::from_secs_f64(at);
        sleep_until(due).await;
        let client = client.clone();
        calls.spawn(async move {
            let options = CallOptions::new().timeout(CALL_TIMEOUT);
            let outcome = client.call_detailed("work", &(), &options).await;
            (outcome, due.elapsed(), start.elapsed().as_secs_f64() < seconds)
        });
    }
    let mut outcome = Outcome {
        answered: 0.0,
        refused: 0.0,
        failed: 0.0,
        admitted: LatencyRecorder::new(),
        whole: LatencyRecorder::new(),
    };
    while let Some(ended) = calls.join_next().await {
        let (result, took, in_time) = ended?;
        match result {
            // Those that ended after the load had would count as more than a server can do under it.
            Ok(_) if !in_time => {}
            Ok(reply) => {
                outcome.answered += 1.0;
                outcome.refused += reply.attempts.len() as f64 - 1.0;
                outcome.whole.record(took);
                let admitted = reply.attempts.last().map_or(0, |attempt| attempt.elapsed_us);
                outcome.admitted.record(Duration::from_micros(admitted));
            }
            Err(error) => {
                outcome.failed += 1.0;
                outcome.refused += error.attempts().len() as f64;
            }
        }
    }
    outcome.answered /= seconds;
    outcome.refused /= seconds;
    outcome.failed /= seconds;
    Ok(outcome)
}

/// Exponentially distributed with mean 1: what lies between arrivals by chance.
fn exponential(random: &mut u64) -> f64 {
    *random = random.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *random;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    let unit = ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64;
    -(1.0 - unit).ln()
}
