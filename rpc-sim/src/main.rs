//! The command `rpc-sim`.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use rpc_client::balance::POLICIES;
use rpc_sim::policies::{ANCHORS, PolicyName};
use rpc_sim::runner::run_all;
use rpc_sim::scenario::Scenario;
use rpc_sim::table::{Results, markdown, ms};

/// Simulates balancing policies on virtual time.
#[derive(Debug, Parser)]
#[command(name = "rpc-sim", version)]
struct Args {
    /// Names of standard scenarios, or files (see the README), separated by commas.
    #[arg(long, value_delimiter = ',')]
    scenario: Vec<String>,
    /// All standard scenarios.
    #[arg(long, conflicts_with = "scenario")]
    all: bool,
    /// Lists scenarios and policies.
    #[arg(long)]
    list: bool,
    /// Policies, separated by commas, with options after a colon, as in `prequal:q=0.6,sync`.
    #[arg(long, default_value = "fastest,prequal:q=0.6,sync,p2c,least_in_flight,round_robin,oracle")]
    policies: String,
    /// How many seeds; their results are merged.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed_base: u64,
    /// Share of each scenario's duration that is simulated.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Threads; as many as there are cores by default.
    #[arg(long)]
    threads: Option<usize>,
    /// The form of the results.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
    Markdown,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    if args.list {
        return list();
    }
    ensure!(args.seeds > 0, "--seeds must be at least 1");
    ensure!(args.scale > 0.0, "--scale must be positive");
    let mut scenarios = scenarios(args)?;
    scenarios.iter_mut().for_each(|s| s.duration_s = s.warmup_s + (s.duration_s - s.warmup_s) * args.scale);
    let policies = PolicyName::parse_list(&args.policies)?;
    let seeds: Vec<u64> = (args.seed_base..).take(args.seeds as usize).collect();
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let outcomes = run_all(&scenarios, &policies, &seeds, threads);
    let results: Vec<Results> = scenarios
        .iter()
        .zip(outcomes)
        .map(|(scenario, outcomes)| Results {
            scenario: scenario.name.clone(),
            warning: scenario.warning(),
            policies: policies
                .iter()
                .map(|p| p.as_str().to_owned())
                .zip(outcomes.iter().map(|o| o.figures()))
                .collect(),
        })
        .collect();
    let mut out = std::io::stdout().lock();
    for warning in results.iter().filter_map(|r| r.warning.as_ref()) {
        writeln!(std::io::stderr(), "warning: {warning}")?;
    }
    match args.format {
        Format::Text => results.iter().try_for_each(|r| writeln!(out, "{}", r.text()))?,
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&results)?)?,
        Format::Markdown => {
            writeln!(out, "{}", markdown(&results, "p99 ms", |f| ms(f.p99_ms)))?;
            writeln!(out, "{}", markdown(&results, "p99.9 ms", |f| ms(f.p999_ms)))?;
            writeln!(out, "{}", markdown(&results, "p50 ms", |f| ms(f.p50_ms)))?;
            writeln!(out, "{}", markdown(&results, "failed %", |f| format!("{:.3}", f.failed_percent)))?;
            let cost = |f: &rpc_sim::outcome::Figures| format!("{:.2} + {:.3}", f.probes_per_call, f.refusals_per_call);
            writeln!(out, "{}", markdown(&results, "probes + refusals per call", cost))?;
        }
    }
    Ok(())
}

fn scenarios(args: &Args) -> Result<Vec<Scenario>> {
    let standard = Scenario::standard()?;
    if args.all {
        return Ok(standard);
    }
    ensure!(!args.scenario.is_empty(), "name a --scenario, or --all; --list shows what there is");
    let find = |name: &String| {
        if let Some(scenario) = standard.iter().find(|s| s.name == *name) {
            return Ok(scenario.clone());
        }
        let path = Path::new(name);
        ensure!(path.exists(), "no scenario and no file `{name}`; --list shows the standard scenarios");
        Scenario::read(path)
    };
    args.scenario.iter().map(find).collect()
}

fn list() -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "scenarios:")?;
    for scenario in Scenario::standard()? {
        let by_design = if scenario.overloaded { " (overloaded by design)" } else { "" };
        writeln!(out, "  {:<12} {}{by_design}", scenario.name, scenario.about)?;
    }
    writeln!(out, "policies:")?;
    let policies = POLICIES.iter().map(|(name, about, _)| (*name, *about));
    policies.chain(ANCHORS.iter().copied()).try_for_each(|(name, about)| writeln!(out, "  {name:<21} {about}"))?;
    Ok(())
}
