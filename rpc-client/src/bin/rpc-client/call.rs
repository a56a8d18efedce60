//! `rpc-client call`

use std::net::SocketAddr;
use std::time::Duration;

use rpc_client::{Attempt, CallOptions, Error, Reply};
use rpc_core::protocol::CALL_TIMEOUT;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::common::{self, Common, Format, Role};
use crate::explain::Explanation;
use crate::failure::Failure;
use crate::one_call::{Called, OneCall};
use crate::{output, params, pretty};

const EXAMPLES: &str = "\
Examples:
  rpc-client call echo '{\"hi\":1}'
  rpc-client call sleep '[250]' --timeout 1s --explain
  rpc-client call orders.list @query.json --format json | jq .node
  generate | rpc-client call orders.add - --key customer-17";

/// Call a method and print its result
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Name of the method; `rpc-client methods` lists them
    method: String,
    /// Params, a JSON array or object: as text, @FILE, or - for standard input
    #[arg(value_name = "JSON|@FILE|-", allow_negative_numbers = true)]
    params: Option<String>,
    /// Send equal keys to the same node, if the policy knows about keys
    #[arg(long, value_name = "K")]
    key: Option<String>,
    /// Show what was known of the nodes, how one was chosen, and what was tried
    #[arg(long)]
    explain: bool,
    /// Time for everything, such as 500ms or 10s [default: 5s]
    #[arg(long, value_name = "T", value_parser = common::duration, allow_hyphen_values = true)]
    timeout: Option<Duration>,
    /// It may run twice without harm, so repeat it when its node fails
    #[arg(long)]
    idempotent: bool,
}

impl Args {
    fn options(&self) -> CallOptions {
        let mut options = CallOptions::new();
        if let Some(key) = &self.key {
            options = options.key(key);
        }
        if self.idempotent {
            options = options.idempotent();
        }
        if self.explain {
            options = options.explain();
        }
        options
    }
}

pub(crate) async fn run(args: Args, common: Common) -> Result<u8, Failure> {
    let params = params::read(args.params.as_deref())?;
    let call = OneCall {
        role: Role::OneCall,
        method: &args.method,
        params: &params,
        options: args.options(),
        timeout: args.timeout.unwrap_or(CALL_TIMEOUT),
        // The same key goes to the same node only if the choice is made among the same nodes.
        needs_all: args.key.is_some(),
    };
    let Called { outcome, elapsed, client, hidden } = call.make(&common).await?;
    let latency_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
    let explanation = args.explain.then(|| Explanation::of(&client, &common, hidden));
    let shown = show(outcome, latency_us, explanation, common.format);
    // Its measurement is delivered after the user has the result.
    common::close(client).await;
    shown
}

/// A result as `--format json` shows it.
#[derive(Serialize)]
struct Output<'a> {
    result: &'a RawValue,
    node: SocketAddr,
    latency_us: u64,
    attempts: &'a [Attempt],
    #[serde(skip_serializing_if = "Option::is_none")]
    explain: Option<Explanation>,
}

fn show(
    outcome: Result<Reply, Error>,
    latency_us: u64,
    explanation: Option<Explanation>,
    format: Format,
) -> Result<u8, Failure> {
    let attempts = outcome.as_ref().map_or_else(Error::attempts, |reply| &reply.attempts);
    if let (Some(explanation), Format::Text) = (&explanation, format) {
        output::note(&explanation.text(attempts));
    }
    let reply = match outcome {
        Ok(reply) => reply,
        Err(error) => {
            let (error, explain) = (Box::new(error), explanation.map(Box::new));
            return Err(Failure::Rpc { error, latency_us: Some(latency_us), explain });
        }
    };
    match format {
        Format::Text => output::stream(|out| pretty::write_indented(out, reply.result.get()))?,
        Format::Json => {
            let Reply { result, node, elapsed, attempts } = &reply;
            let latency_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
            output::json(&Output { result, node: *node, latency_us, attempts, explain: explanation })?;
        }
    }
    Ok(0)
}
