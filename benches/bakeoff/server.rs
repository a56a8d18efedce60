//! A server whose work is waiting: it takes permits and time, and next to no processor.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rpc_client::Client;
use rpc_server::{Method, RpcError, Server, ServerConfig};
use tokio::sync::Semaphore;

use crate::child;
use crate::scenario::{SCENARIOS, Shape};

/// How long a server that is to fail takes for it.
const FAILS_AFTER: Duration = Duration::from_micros(500);

/// Takes on another shape.
const BECOME: &str = "become";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    registry: String,
    #[arg(long)]
    addr: SocketAddr,
    #[arg(long)]
    permits: usize,
    #[arg(long)]
    speed: f64,
    #[arg(long)]
    fails: bool,
    /// It ends by itself after so many seconds.
    #[arg(long)]
    at_most: f64,
}

impl Args {
    /// The arguments that start such a server.
    pub(crate) fn of(registry: &str, addr: SocketAddr, permits: usize, shape: Shape, at_most: f64) -> Vec<String> {
        let mut arguments = vec![
            "server".to_owned(),
            format!("--registry={registry}"),
            format!("--addr={addr}"),
            format!("--permits={permits}"),
            format!("--speed={}", shape.speed),
            format!("--at-most={at_most}"),
        ];
        if shape.fails {
            arguments.push("--fails".to_owned());
        }
        arguments
    }
}

struct Worker {
    permits: Semaphore,
    /// The bits of a float.
    speed: AtomicU64,
    fails: AtomicBool,
}

impl Worker {
    async fn work(&self, ms: f64) -> Result<(), RpcError> {
        if self.fails.load(Ordering::Relaxed) {
            wait(FAILS_AFTER).await;
            return Err(RpcError::internal("told to fail"));
        }
        let permit = self.permits.acquire().await.map_err(|e| RpcError::internal(e.to_string()))?;
        wait(Duration::from_secs_f64(ms / 1e3 / f64::from_bits(self.speed.load(Ordering::Relaxed)))).await;
        drop(permit);
        Ok(())
    }
}

/// On a thread, where waiting is exact to some 50 us: the runtime's timers go by milliseconds.
async fn wait(duration: Duration) {
    // It neither panics nor is aborted.
    let _ = tokio::task::spawn_blocking(move || std::thread::sleep(duration)).await;
}

pub(crate) async fn run(args: Args) -> Result<()> {
    child::die_with_parent()?;
    let worker = Arc::new(Worker {
        permits: Semaphore::new(args.permits),
        speed: AtomicU64::new(args.speed.to_bits()),
        fails: AtomicBool::new(args.fails),
    });
    let config = ServerConfig { permits: Some(args.permits), ..ServerConfig::default() };
    let mut builder = Server::builder().config(config).registry(&args.registry)?;
    for method in SCENARIOS.iter().flat_map(|scenario| scenario.methods) {
        let worker = worker.clone();
        builder = builder.with(Method::new(method.name, move |(ms,): (f64,)| {
            let worker = worker.clone();
            async move { worker.work(ms).await }
        }));
    }
    let server = builder.method(BECOME, move |(speed, fails): (f64, bool)| {
        worker.speed.store(speed.to_bits(), Ordering::Relaxed);
        worker.fails.store(fails, Ordering::Relaxed);
        std::future::ready(Ok::<_, RpcError>(()))
    });
    let server = server.bind(args.addr).await?;
    let mut status = server.registration().context("it has a registry")?;
    let addr = server.advertised_addr();
    let serving = tokio::spawn(server.serve(tokio::time::sleep(Duration::from_secs_f64(args.at_most))));
    status.wait_for(|status| *status == rpc_core::registry::RegistrationStatus::Registered).await?;
    writeln!(std::io::stdout(), "serving {addr}")?;
    Ok(serving.await?)
}

/// Gives the server at `addr` another shape.
pub(crate) async fn reshape(addr: SocketAddr, shape: Shape) -> Result<()> {
    let client = Client::connect(&format!("static:{addr}")).await?;
    client.call::<_, ()>(BECOME, &(shape.speed, shape.fails)).await?;
    client.close(Duration::from_secs(1)).await;
    Ok(())
}
