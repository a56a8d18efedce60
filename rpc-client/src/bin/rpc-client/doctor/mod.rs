//! `rpc-client doctor`

mod certificates;
mod finding;
mod limits;
mod nodes;
mod registry;

use std::time::Duration;

use rpc_core::protocol::CALL_TIMEOUT;
use serde::Serialize;

use self::finding::{Finding, Level};
use crate::common::{self, Common, Format};
use crate::failure::Failure;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  rpc-client doctor
  rpc-client doctor --registry zk://10.0.0.1:2181/shop/orders
  rpc-client doctor --format json | jq '.findings[] | select(.level == \"problem\")'

Looks at the configuration, the registry, every listed node and what answers at its address, the
addresses, certificates, and the limits of this machine. Nothing is changed, and no method is called. Each line is
one finding; what is not ok says what follows from it, and what mends it.

Exit codes: 0 no problem (there may be warnings), 1 at least one problem, 2 usage.";

/// Find out what is wrong, and how to mend it
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Time to reach the registry [default: 5s]
    #[arg(long, value_name = "T", value_parser = common::duration, allow_hyphen_values = true)]
    timeout: Option<Duration>,
}

/// Everything that was found, as `--format json` shows it.
#[derive(Serialize)]
struct Report<'a> {
    registry: &'a str,
    healthy: bool,
    findings: &'a [Finding],
}

/// Exit code when there is a problem.
const PROBLEM: u8 = 1;

pub(crate) async fn run(args: Args, common: Common) -> Result<u8, Failure> {
    let mut findings = registry::configuration(&common);
    findings.extend(certificates::files(&common));
    match common.open() {
        Err(error) => findings.push(registry::unusable(&error, &common)),
        Ok(registry) => {
            let timeout = args.timeout.unwrap_or(CALL_TIMEOUT);
            let members = registry::list(&*registry, timeout, &mut findings).await;
            if let Some(members) = &members {
                findings.extend(nodes::addresses(members, registry.url()));
                match common.config() {
                    Ok(config) => {
                        findings.extend(nodes::answers(members, &config, &common, registry.url()).await);
                        findings.extend(certificates::of_nodes(members, &config).await);
                    }
                    Err(error) => findings.push(registry::unusable(&error, &common)),
                }
                findings.extend(limits::open_files(members.nodes.len()));
            }
            registry.close(timeout).await;
        }
    }
    let healthy = findings.iter().all(|finding| finding.level != Level::Problem);
    match common.format {
        Format::Json => output::json(&Report { registry: &common.registry, healthy, findings: &findings })?,
        Format::Text => {
            let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
            output::line(&lines.join("\n"))?;
        }
    }
    Ok(if healthy { 0 } else { PROBLEM })
}
