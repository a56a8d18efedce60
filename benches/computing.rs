//! Whether handlers that compute hold up their neighbours on the same connection.
//!
//! Sends calls at a fixed rate over one connection, first all of them cheap, then with one in a hundred
//! to a method that burns 20 ms of CPU. The latency of a cheap call counts from the moment at which it was to be
//! sent, so that a generator that falls behind hides nothing.

use std::time::Duration;

use clap::Parser;
use rpc_client::{CallOptions, Client};
use rpc_core::LatencyRecorder;
use rpc_server::{Method, RpcError, Server};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

#[derive(Clone, Copy, Parser)]
struct Options {
    /// Calls a second.
    #[arg(long, default_value_t = 500)]
    rate: u32,
    /// One call in this many computes.
    #[arg(long, default_value_t = 100)]
    one_in: u64,
    /// CPU time that it burns, in milliseconds.
    #[arg(long, default_value_t = 20)]
    burn: u64,
    /// Length of each run.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Worker threads of the server.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Also run with a method that computes without being declared so.
    #[arg(long)]
    undeclared: bool,
}

/// Keeps the CPU busy.
fn burn(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

fn server(burning: Duration) -> rpc_server::ServerBuilder {
    let work = move |()| async move {
        burn(burning);
        Ok::<_, RpcError>(())
    };
    Server::builder()
        .method("quick", |(a, b): (i64, i64)| async move { Ok::<_, RpcError>(a + b) })
        .with(Method::new("declared", work).computes())
        .with(Method::new("undeclared", work))
}

/// Latencies of the quick calls, and how many calls failed.
async fn run(client: &Client, options: &Options, computing: Option<&'static str>) -> (LatencyRecorder, u64) {
    let period = Duration::from_secs(1) / options.rate;
    let calls = (options.seconds * f64::from(options.rate)) as u64;
    let one_in = options.one_in.max(1);
    let started = Instant::now();
    let mut under_way = JoinSet::new();
    for n in 0..calls {
        let due = started + period * n as u32;
        sleep_until(due).await;
        let client = client.clone();
        under_way.spawn(async move {
            match computing.filter(|_| n % one_in == one_in / 2) {
                Some(method) => {
                    let patient = CallOptions::new().timeout(Duration::from_secs(60));
                    client.call_with::<_, ()>(method, &(), &patient).await.map(|()| None)
                }
                None => client.call::<_, i64>("quick", &(1, 2)).await.map(|_| Some(due.elapsed())),
            }
        });
    }
    let (mut latencies, mut errors) = (LatencyRecorder::new(), 0);
    while let Some(joined) = under_way.join_next().await {
        match joined {
            Ok(Ok(latency)) => latency.into_iter().for_each(|l| latencies.record(l)),
            Ok(Err(_)) | Err(_) => errors += 1,
        }
    }
    (latencies, errors)
}

#[expect(clippy::print_stdout, reason = "the results")]
fn show(name: &str, latencies: &LatencyRecorder, errors: u64, base: &LatencyRecorder) {
    let ms = |latencies: &LatencyRecorder, quantile| latencies.quantile_us(quantile) as f64 / 1e3;
    let (p50, p99) = (ms(latencies, 0.5), ms(latencies, 0.99));
    let quiet = ms(base, 0.99);
    println!(
        "{name:10}  p50 {p50:7.3} ms  p99 {p99:7.3} ms  p99 is {:+.3} ms, {:.2} times the run without  errors {errors}",
        p99 - quiet,
        p99 / quiet
    );
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    let serving = tokio::runtime::Builder::new_multi_thread().worker_threads(options.threads).enable_all().build()?;
    let server = serving.block_on(server(Duration::from_millis(options.burn)).bind("127.0.0.1:0"))?;
    let url = format!("static:{}", server.local_addr());
    serving.spawn(server.serve(std::future::pending()));
    let calling = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    calling.block_on(async {
        let client = Client::connect(&url).await?;
        client.ready(Duration::from_secs(5)).await;
        run(&client, &Options { seconds: 0.5, ..options }, None).await;
        let (base, errors) = run(&client, &options, None).await;
        show("without", &base, errors, &base);
        let methods = ["declared", "undeclared"];
        for method in methods.into_iter().take(1 + usize::from(options.undeclared)) {
            let (latencies, errors) = run(&client, &options, Some(method)).await;
            show(method, &latencies, errors, &base);
        }
        Ok(())
    })
}
