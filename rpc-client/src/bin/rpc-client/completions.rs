//! `rpc-client completions`

use clap_complete::Shell;

use crate::failure::Failure;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  source <(rpc-client completions bash)
  rpc-client completions fish > ~/.config/fish/completions/rpc-client.fish";

/// Print completions for a shell
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    // Into memory first: the generator panics when it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command(), "rpc-client", &mut script);
    output::line(String::from_utf8_lossy(&script).trim_end())?;
    Ok(0)
}
