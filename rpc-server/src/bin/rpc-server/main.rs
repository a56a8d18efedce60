//! `rpc-server`: serves a few demonstration methods and registers itself.

mod announce;
mod delay;
mod log;
mod methods;
mod security;
mod signals;

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use rpc_core::open_files;
use rpc_core::registry::{self, Registry, RegistryUrl, Target};
use rpc_server::{ConcurrencyLimit, Error, ErrorKind, Server, ServerConfig};
use tokio_util::sync::CancellationToken;

use crate::delay::Delay;
use crate::methods::Identity;

const EXAMPLES: &str = "\
Examples:
  rpc-server --port 8898                          serve on one machine; `rpc-client nodes` shows it
  rpc-server --port 0 --delay 5ms-20ms            any free port, each answer 5 to 20 ms late
  rpc-server --port 8898 --registry zk://10.0.0.1,10.0.0.2,10.0.0.3/shop/orders --bind 10.0.0.7
  rpc-server --port 8898 --registry zk://zk/rpc --bind 0.0.0.0 --advertise 10.0.0.7:8898
  rpc-server --port 8898 --registry none          for clients that have static:127.0.0.1:8898

Methods: echo (returns its params), time, info, sleep {\"ms\":N}, fail {\"code\":N,\"message\":TEXT}.

The only line on standard output, `serving IP:PORT in URL`, comes once clients can find the server.
With a static: URL nothing is registered either, but the server checks that the list has it.
SIGTERM or Ctrl-C drains it; a second one ends it at once. RUST_LOG sets what is logged (default: info).

Exit codes: 0 drained, 2 usage, 3 configuration (such as a port in use, or too few open files), 130 or 143 ended by a second signal.";

/// Serves a few demonstration methods and registers itself where clients look.
#[derive(Parser)]
#[command(name = "rpc-server", version, after_help = EXAMPLES)]
struct Args {
    /// Port to listen on; 0 picks a free one
    #[arg(long, value_name = "P")]
    port: u16,
    /// Address to listen on
    #[arg(long, value_name = "A", default_value = "127.0.0.1")]
    bind: IpAddr,
    /// Address that clients are told, where it differs from the one listened on; port 0 for the same port
    #[arg(long, value_name = "A:P", env = "RPC_ADVERTISE")]
    advertise: Option<SocketAddr>,
    /// Registry: local:[DIR] or zk[+tls]://HOST:PORT,…/NAMESPACE; none for clients with a static: list
    #[arg(long, value_name = "URL", env = "RPC_REGISTRY", default_value = "local:")]
    registry: String,
    /// Sleep this long before each answer; of a range, a random time
    #[arg(long, value_name = "0ms-1000ms", value_parser = Delay::parse)]
    delay: Option<Delay>,
    /// Run at most so many calls at once (`auto`: as many as are seen not to slow each other down);
    /// others wait, and then are refused
    #[arg(long, value_name = "N|auto", value_parser = concurrency)]
    concurrency: Option<ConcurrencyLimit>,
    /// Calls that may wait for others to end [default: as many as may run]
    #[arg(long, value_name = "N", requires = "concurrency")]
    queue: Option<usize>,
    /// Label shown with the node
    #[arg(long, value_name = "N")]
    name: Option<String>,
    #[command(flatten)]
    security: security::Security,
}

fn concurrency(text: &str) -> Result<ConcurrencyLimit, String> {
    match text {
        "auto" => Ok(ConcurrencyLimit::Adaptive),
        _ => text.parse().map(ConcurrencyLimit::Fixed).map_err(|_| "a number from 1 on, or `auto`".to_owned()),
    }
}

/// How serving ended.
enum End {
    Drained,
    /// The registry will never take this server.
    Refused(String),
    /// Ended by a second signal, with this exit code.
    Cut(u8),
}

fn main() -> ExitCode {
    let args = Args::parse();
    log::init();
    if let Err(few) = open_files::check() {
        return fail(3, &few, &open_files::mend());
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(3, &format!("cannot start: {error}"), "allow the process more threads and files"),
    };
    match runtime.block_on(run(args)) {
        Ok(End::Drained) => ExitCode::SUCCESS,
        Ok(End::Refused(reason)) => fail(
            3,
            &format!("not registered: {reason}"),
            "correct --registry, --bind or --advertise, and start it again",
        ),
        Ok(End::Cut(code)) => ExitCode::from(code),
        Err(failure) => fail(3, &failure.error.to_string(), &failure.next),
    }
}

/// Writes an error as all our commands do: what is wrong, then what to do.
fn fail(code: u8, what: &str, next: &str) -> ExitCode {
    // Nobody is left to be told if standard error is gone.
    let _ = writeln!(io::stderr(), "error: {what}\n next: {next}");
    ExitCode::from(code)
}

/// Why the server did not start, and what to do.
struct Failure {
    error: Error,
    next: String,
}

async fn run(args: Args) -> Result<End, Failure> {
    let registry = open(&args.registry)
        .map_err(|error| Failure { error, next: "correct --registry (or RPC_REGISTRY), and start it again".into() })?;
    let identity = Arc::new(Identity::new(args.name.clone()));
    let mut config = ServerConfig {
        concurrency: args.concurrency.unwrap_or_default(),
        queue_max: args.queue,
        ..ServerConfig::default()
    };
    args.security.apply(&mut config)?;
    let mut builder = Server::builder().config(config);
    if let Some(registry) = &registry {
        builder = builder.open_registry(registry.clone());
    }
    for method in methods::all(&identity, args.delay.unwrap_or_default()) {
        builder = builder.with(method);
    }
    if let Some(addr) = args.advertise {
        builder = builder.advertise(addr);
    }
    if let Some(name) = args.name {
        builder = builder.name(name);
    }
    // Before anything is announced: a signal must never find the default action in place.
    let mut signals = signals::listen();
    let server = builder.bind((args.bind, args.port)).await.map_err(|error| Failure {
        error,
        next: "correct --port (0 picks a free one), --bind or --advertise, and start it again".into(),
    })?;
    identity.is(server.advertised_addr(), server.incarnation());
    tracing::info!(addr = %server.local_addr(), "accepting calls");
    Ok(serve(server, registry.as_deref(), &mut signals).await)
}

/// The registry of `--registry`; none if the server is not to be registered.
fn open(url: &str) -> Result<Option<Arc<dyn Registry>>, Error> {
    if url == "none" {
        return Ok(None);
    }
    // An empty variable is as good as none.
    let url: RegistryUrl = if url.is_empty() { "local:" } else { url }.parse()?;
    if matches!(url.target, Target::Memory(_)) {
        let reason = "it is known within one process only, in which no client is: use local: or zk://";
        return Err(ErrorKind::Config(format!("registry URL `{url}`: {reason}")).into());
    }
    registry::open(&url).map(Some)
}

async fn serve(server: Server, registry: Option<&dyn Registry>, signals: &mut signals::Signals) -> End {
    let stop = CancellationToken::new();
    let addr = server.advertised_addr();
    let status = server.registration();
    let serving = server.serve(stop.clone().cancelled_owned());
    let mut refused = None;
    let announcing = async {
        if let (Some(status), Some(registry)) = (status, registry) {
            refused = announce::follow(status, addr, registry).await;
            if refused.is_some() {
                stop.cancel();
            }
        } else {
            announce::serving(addr, None);
        }
        std::future::pending().await
    };
    let signalled = async {
        signals.next().await;
        stop.cancel();
        signals.next().await
    };
    let cut: Option<u8> = tokio::select! {
        () = serving => None,
        code = signalled => Some(code),
        never = announcing => never,
    };
    match (cut, refused) {
        (Some(code), _) => End::Cut(code),
        (None, Some(reason)) => End::Refused(reason),
        (None, None) => End::Drained,
    }
}
