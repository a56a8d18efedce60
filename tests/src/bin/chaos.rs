//! `chaos --seed N --duration 60s`: misfortune of every kind for five servers, four clients and three
//! ZooKeeper servers, and the rules that held or did not. See `rpc_tests::chaos`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a program for people")]

use std::process::ExitCode;
use std::time::Duration;

use rpc_core::registry::parse_duration;
use rpc_tests::chaos::{self, Options};
use rpc_tests::cluster;
use tracing_subscriber::filter::EnvFilter;

const USAGE: &str = "usage: chaos [--seed N] [--duration 60s] [--rate 200]";

#[tokio::main]
async fn main() -> ExitCode {
    let filter =
        std::env::var("RUST_LOG").unwrap_or_else(|_| "info,rpc_client::pool=debug,zookeeper_client=warn".into());
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(EnvFilter::builder().parse_lossy(filter))
        .with_ansi(false)
        .init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if chaos::play(&arguments).await {
        return ExitCode::SUCCESS;
    }
    let options = match options(&arguments) {
        Ok(options) => options,
        Err(wrong) => {
            eprintln!("error: {wrong}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let report = chaos::run(&options).await;
    println!("{}", report.summary);
    if report.violations.is_empty() {
        println!("seed {}: every rule held", options.seed);
        return ExitCode::SUCCESS;
    }
    for violation in &report.violations {
        println!("seed {}: VIOLATED: {violation}", options.seed);
    }
    println!("seed {}: {} violations; logs: {:?}", options.seed, report.violations.len(), report.logs);
    ExitCode::FAILURE
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let program = std::env::current_exe().map_err(|e| format!("the path of this program: {e}"))?;
    let (mut seed, mut duration, mut rate) = (None, Duration::from_secs(60), 200);
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { return Err(format!("`{}` has no value", pair[0])) };
        let number = || value.parse::<u64>().map_err(|_| format!("`{value}` is no number"));
        match name.as_str() {
            "--seed" => seed = Some(number()?),
            "--rate" => rate = u32::try_from(number()?).map_err(|e| e.to_string())?,
            "--duration" => duration = parse_duration(value)?,
            _ => return Err(format!("unknown option `{name}`")),
        }
    }
    // Drawing one shows it.
    Ok(Options { seed: seed.unwrap_or_else(cluster::seed), duration, rate, program })
}
