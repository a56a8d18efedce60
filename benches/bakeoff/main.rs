//! The policies on real processes: servers whose work is timed waiting, clients that call them
//! through the public API, and what goes wrong in practice. `docs/BALANCING.md` has the results.
//!
//! Calls come at random times (Poisson) that do not depend on the answers, and a latency is from
//! the time when a call was due. All policies get the same calls in the same round; they take turns.

mod child;
mod client;
mod figures;
mod report;
mod run;
mod scenario;
mod server;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};

use self::figures::Tally;
use self::report::Results;
use self::scenario::{SCENARIOS, Scenario};

/// Compare balancing policies on real processes
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    args: Args,
}

#[derive(Subcommand)]
enum Part {
    /// One server, as the comparison starts it
    #[command(hide = true)]
    Server(server::Args),
    /// One process of clients, as the comparison starts it
    #[command(hide = true)]
    Client(client::Args),
}

#[derive(clap::Args)]
struct Args {
    /// Scenarios to run, such as R1,R3 or R1-90 [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    scenarios: Vec<String>,
    /// Policies to compare
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "fastest,p2c,least_in_flight,round_robin,prequal"
    )]
    policies: Vec<String>,
    /// Length of a run; its first second does not count
    #[arg(long, value_name = "S", default_value_t = 20.0)]
    seconds: f64,
    /// Runs of each policy
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u64,
    /// Seed of the first round
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Output for people, or one JSON object a scenario
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Text,
    Json,
}

// One thread: children are told to die with the thread that started them.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    match cli.part {
        Some(Part::Server(args)) => server::run(args).await.map(|()| ExitCode::SUCCESS),
        Some(Part::Client(args)) => client::run(args).await.map(|()| ExitCode::SUCCESS),
        None => tokio::select! {
            outcome = compare(cli.args) => outcome,
            // Dropping what runs ends the children and removes their directory.
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(130)),
        },
    }
}

async fn compare(args: Args) -> Result<ExitCode> {
    if args.seconds <= 1.0 || args.rounds == 0 {
        bail!("a run takes more than the one second that does not count, and there is at least one round");
    }
    if let Some(unknown) = args.policies.iter().find(|name| rpc_client::balance::policy(name).is_none()) {
        bail!("there is no policy `{unknown}`");
    }
    let mut all = Vec::new();
    for scenario in chosen(&args.scenarios)? {
        let results = one(scenario, &args).await.with_context(|| scenario.name)?;
        let text = match args.format {
            Format::Text => results.text(),
            Format::Json => serde_json::to_string(&results)?,
        };
        writeln!(std::io::stdout(), "{text}")?;
        all.push(results);
    }
    let (passed, summary) = report::summary(&all);
    if args.format == Format::Text {
        writeln!(std::io::stdout(), "{summary}")?;
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn chosen(names: &[String]) -> Result<Vec<&'static Scenario>> {
    let is = |scenario: &Scenario, name: &String| scenario.name == name || scenario.family() == name;
    if let Some(unknown) = names.iter().find(|name| !SCENARIOS.iter().any(|scenario| is(scenario, name))) {
        let known: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        bail!("there is no scenario `{unknown}`, but {}", known.join(", "));
    }
    let wanted = |scenario: &&Scenario| names.is_empty() || names.iter().any(|name| is(scenario, name));
    Ok(SCENARIOS.iter().filter(wanted).collect())
}

/// A run is made again if more than one in a hundred calls of a process went out later than this:
/// the machine was busy with something else, and its figures are not about the policy.
const LATE_MAX: Duration = Duration::from_millis(15);

/// But no more often than this.
const AGAIN_MAX: usize = 3;

/// All rounds of all policies in one scenario.
async fn one(scenario: &'static Scenario, args: &Args) -> Result<Results> {
    let policies = scenario.policies(&args.policies);
    let mut tallies: Vec<Tally> = policies.iter().map(|_| Tally::default()).collect();
    for round in 0..args.rounds {
        for at in 0..policies.len() {
            // Another one begins each round, so that no policy always follows the same.
            let at = (at + round as usize) % policies.len();
            let policy = &policies[at];
            for again in 0..=AGAIN_MAX {
                let seed = args.seed + round;
                let outcome = run::run(scenario, policy, args.seconds, seed).await.context(policy.clone())?;
                if outcome.late_p99() <= LATE_MAX || again == AGAIN_MAX {
                    tallies[at].add(scenario, &outcome, again);
                    break;
                }
            }
        }
    }
    let figures = policies.iter().zip(&tallies).map(|(policy, tally)| tally.figures(policy)).collect();
    Ok(Results::new(scenario, figures))
}
