//! `rpc-client`: calls, shows and measures the servers of a registry.

mod bench;
mod call;
mod common;
mod completions;
mod decision;
mod doctor;
mod explain;
mod failure;
mod few;
mod log;
mod methods;
mod next;
mod nodes;
mod one_call;
mod output;
mod params;
mod pretty;
mod screen;
mod security;
mod table;
mod units;

use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use rpc_core::open_files;

use crate::common::Common;
use crate::failure::Failure;

/// Exit code of a command that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

const EXAMPLES: &str = "\
Examples:
  rpc-client nodes                             the servers, and how fast they are
  rpc-client call echo '{\"hi\":1}' --explain    call the fastest one, and see why it was chosen
  rpc-client bench echo -n 2000                how fast they answer, and who answers how often
  rpc-client doctor                            what is wrong, and how to mend it
  rpc-client nodes --registry zk://10.0.0.1:2181/shop/orders

Results go to standard output, everything else to standard error.

Exit codes: 0 ok, 1 other, 2 usage, 3 configuration, 4 registry unreachable, 5 no usable node,
6 deadline, 7 the server answered with an error, 8 connection, 9 a threshold was missed (bench),
130 interrupted.";

/// Calls the servers of a registry, each call on the one that will answer soonest.
#[derive(Parser)]
#[command(name = "rpc-client", version, after_help = EXAMPLES)]
struct Args {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Call(call::Args),
    Nodes(nodes::Args),
    Methods(methods::Args),
    Doctor(doctor::Args),
    Bench(bench::Args),
    Completions(completions::Args),
}

fn main() -> ExitCode {
    let args = arguments();
    log::init();
    let common = args.common.clone();
    ExitCode::from(run(args).unwrap_or_else(|failure| failure.report(&common)))
}

/// Options of every command that do nothing for some: their help leaves them out.
const IDLE: [(&str, &[&str]); 4] = [
    ("nodes", &["policy"]),
    ("methods", &["policy"]),
    ("doctor", &["policy"]),
    ("completions", &["registry", "policy", "format", "tls_ca", "tls_cert", "tls_key", "tls_name", "token_file"]),
];

pub(crate) fn command() -> clap::Command {
    let mut command = Args::command();
    // Only then do the commands have the options of all.
    command.build();
    command.mut_subcommands(|subcommand| {
        let idle =
            IDLE.iter().find(|(name, _)| *name == subcommand.get_name()).map_or(&[] as &[&str], |(_, idle)| *idle);
        subcommand.mut_args(|arg| if idle.contains(&arg.get_id().as_str()) { arg.hide(true) } else { arg })
    })
}

fn arguments() -> Args {
    let matches = command().get_matches();
    let mut args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    args.common.is_from_environment = matches.value_source("registry") == Some(ValueSource::EnvVariable);
    args
}

fn run(args: Args) -> Result<u8, Failure> {
    open_files::check().map_err(|few| Failure::machine(few, open_files::mend()))?;
    // One call is done sooner without threads that have to be started.
    let mut builder = match &args.command {
        Command::Bench(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder.enable_all().build().map_err(|e| Failure::other(format!("cannot start: {e}")))?;
    let outcome = runtime.block_on(async {
        let common = args.common;
        match args.command {
            Command::Call(args) => interruptible(call::run(args, common)).await,
            Command::Nodes(args) => interruptible(nodes::run(args, common)).await,
            Command::Methods(args) => interruptible(methods::run(args, common)).await,
            Command::Doctor(args) => interruptible(doctor::run(args, common)).await,
            // It reports what it has when it is interrupted.
            Command::Bench(args) => bench::run(args, common).await,
            Command::Completions(args) => completions::run(&args),
        }
    });
    // What still runs in the background has nothing to tell any more.
    runtime.shutdown_background();
    outcome
}

async fn interruptible(command: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    tokio::select! {
        biased;
        outcome = command => outcome,
        _ = tokio::signal::ctrl_c() => Ok(INTERRUPTED),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }
}
