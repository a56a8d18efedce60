//! `rpc-client bench`

mod load;
mod pace;
mod report;
mod tally;
mod threshold;

use std::io::{self, IsTerminal};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rpc_client::{CallOptions, Client};
use rpc_core::protocol::{CALL_TIMEOUT, IN_FLIGHT_MAX};
use tokio::time::Instant;

use self::load::{Amount, Load};
use self::report::Report;
use self::threshold::Threshold;
use crate::common::{self, Common, Format, Role};
use crate::failure::Failure;
use crate::screen::Screen;
use crate::{INTERRUPTED, output, params};

/// Calls without `-n` and `--duration`: enough for a 99th percentile, over in a moment.
const CALLS_DEFAULT: u64 = 1000;

/// Calls at a time without `-c`.
const CONCURRENCY_DEFAULT: usize = 16;

/// More calls at a time measure the memory of this process and nothing else: each takes some two
/// kilobytes here.
const CONCURRENCY_MAX: i64 = 100_000;

/// How often the progress line is renewed.
const PROGRESS: Duration = Duration::from_millis(200);

/// Nodes that take longer to connect join while calls are running.
const SETTLE: Duration = Duration::from_millis(600);

/// Exit code when a threshold was missed.
const MISSED: u8 = 9;

const EXAMPLES: &str = "\
Examples:
  rpc-client bench echo -n 2000
  rpc-client bench echo '{\"hi\":1}' --duration 10s -c 64 --policy round_robin
  rpc-client bench echo --duration 30s --rps 500 --threshold 'p99<50ms,errors<0.1%'

Without --rps, -c calls are in flight at any time, and a slow server is asked less (closed loop).
With --rps, calls start by the clock whatever comes of those before them, and each latency counts
from the time its call was to start: a call that had to wait for a free one of -c has that wait in
it, so that a stall shows in full (open loop, no coordinated omission).

Latencies are those of calls that succeeded. Errors are counted by name, an application's own by
code. If no call succeeds, the exit code is that of the first error.";

/// Call a method many times and report latencies, errors and who answered
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Name of the method
    method: String,
    /// Params, a JSON array or object: as text, @FILE, or - for standard input
    #[arg(value_name = "JSON|@FILE|-", allow_negative_numbers = true)]
    params: Option<String>,
    /// Calls to make [default: 1000, unless --duration is given]
    #[arg(short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    calls: Option<u64>,
    /// Time during which calls are started, such as 10s
    #[arg(long, value_name = "D", value_parser = common::duration, allow_hyphen_values = true)]
    duration: Option<Duration>,
    /// Calls in flight, with --rps at most [default: 16, with --rps 1024]
    #[arg(short = 'c', value_name = "C", value_parser = clap::value_parser!(u32).range(1..=CONCURRENCY_MAX))]
    concurrency: Option<u32>,
    /// Calls to start per second
    #[arg(long, value_name = "R", value_parser = rate)]
    rps: Option<f64>,
    /// Time of each call, such as 500ms [default: 5s]
    #[arg(long, value_name = "T", value_parser = common::duration, allow_hyphen_values = true)]
    timeout: Option<Duration>,
    /// Calls may run twice without harm, so repeat them when their node fails
    #[arg(long)]
    idempotent: bool,
    /// Exit with 9 if one of these is not so: p50, p90, p99, p999, max, errors, rps; < or >
    #[arg(long, value_name = "p99<50ms,errors<0.1%", value_parser = threshold::parse, value_delimiter = ',')]
    threshold: Vec<Threshold>,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (1e-3..=1e7).contains(&rate) => Ok(rate),
        _ => Err("calls per second are a number from 0.001 to 10000000".into()),
    }
}

impl Args {
    fn amount(&self) -> Amount {
        let calls = match (self.calls, self.duration) {
            (None, None) => Some(CALLS_DEFAULT),
            (calls, _) => calls,
        };
        Amount { calls, duration: self.duration }
    }

    fn options(&self) -> CallOptions {
        let options = CallOptions::new().timeout(self.timeout.unwrap_or(CALL_TIMEOUT));
        if self.idempotent { options.idempotent() } else { options }
    }

    fn concurrency(&self) -> usize {
        let default = if self.rps.is_some() { IN_FLIGHT_MAX } else { CONCURRENCY_DEFAULT };
        let calls = self.amount().calls.and_then(|calls| usize::try_from(calls).ok());
        self.concurrency.map_or(default, |c| c as usize).min(calls.unwrap_or(usize::MAX))
    }
}

pub(crate) async fn run(args: Args, common: Common) -> Result<u8, Failure> {
    let params = params::read(args.params.as_deref())?;
    let client = common.connect(Role::Client)?;
    // One for the whole run: a Ctrl-C between two of them would be lost.
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(interrupt);
    tokio::select! {
        biased;
        _ = &mut interrupt => return Ok(INTERRUPTED),
        settled = common::settle_within(&client, args.timeout.unwrap_or(CALL_TIMEOUT), SETTLE) => settled?,
    }
    let load = Load::new(client.clone(), &args.method, params, args.options(), args.amount(), args.rps);
    let interrupted = drive(&load, args.concurrency(), common.format, interrupt).await;
    let report = Report::of(&load, &args.threshold, interrupted);
    let shown = match common.format {
        Format::Json => output::json(&report),
        Format::Text => output::line(&report.text(&args.method, &common, &client)),
    };
    let first_error = load.first_error();
    close(load, client).await;
    shown?;
    Ok(match first_error {
        _ if interrupted => INTERRUPTED,
        Some(error) if report.ok == 0 => Failure::from(error).note(&common),
        _ if report.is_missed() => MISSED,
        _ => 0,
    })
}

/// Runs the load to its end, or until it is interrupted. `true` if that was it.
async fn drive<I>(load: &Arc<Load>, concurrency: usize, format: Format, mut interrupt: Pin<&mut I>) -> bool
where
    I: Future<Output = io::Result<()>>,
{
    let mut workers = load.start(concurrency);
    let shows = io::stderr().is_terminal() && format == Format::Text;
    let mut screen = Screen::default();
    let mut ticks = tokio::time::interval(PROGRESS);
    let interrupted = loop {
        tokio::select! {
            joined = workers.join_next() => if joined.is_none() { break false },
            _ = &mut interrupt => break true,
            _ = ticks.tick(), if shows => drop(screen.draw(&mut io::stderr(), &load.progress(Instant::now()))),
        }
    };
    load.stop(Instant::now());
    workers.shutdown().await;
    if shows {
        drop(screen.clear(&mut io::stderr()));
    }
    interrupted
}

async fn close(load: Arc<Load>, client: Client) {
    drop(load);
    common::close(client).await;
}
