//! `rpc-client methods`

use std::net::SocketAddr;
use std::time::Duration;

use rpc_client::CallOptions;
use rpc_core::printable;
use rpc_core::protocol::{CALL_TIMEOUT, DISCOVER};
use serde::{Deserialize, Serialize};

use crate::common::{self, Common, Format, Role};
use crate::failure::Failure;
use crate::one_call::{Called, OneCall};
use crate::table::table;
use crate::{output, params};

const EXAMPLES: &str = "\
Examples:
  rpc-client methods
  rpc-client methods --format json | jq -r '.methods[].name'

An idempotent method is repeated on another node when its node fails.";

/// List the methods that the servers offer
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Time for everything [default: 5s]
    #[arg(long, value_name = "T", value_parser = common::duration, allow_hyphen_values = true)]
    timeout: Option<Duration>,
}

/// The part of an OpenRPC document that is shown.
#[derive(Deserialize)]
struct Document {
    methods: Vec<MethodDocument>,
}

#[derive(Deserialize)]
struct MethodDocument {
    name: String,
    #[serde(default)]
    summary: String,
    #[serde(default, rename = "x-idempotent")]
    idempotent: bool,
}

/// The methods as `--format json` shows them.
#[derive(Serialize)]
struct Output {
    node: SocketAddr,
    methods: Vec<Method>,
}

#[derive(Serialize)]
struct Method {
    name: String,
    idempotent: bool,
    summary: String,
}

pub(crate) async fn run(args: Args, common: Common) -> Result<u8, Failure> {
    let call = OneCall {
        role: Role::Observer,
        method: DISCOVER,
        params: &params::read(None)?,
        options: CallOptions::new().idempotent(),
        timeout: args.timeout.unwrap_or(CALL_TIMEOUT),
        needs_all: false,
    };
    let Called { outcome, client, .. } = call.make(&common).await?;
    let reply = outcome?;
    let document: Document = serde_json::from_str(reply.result.get())
        .map_err(|e| Failure::other(format!("{} describes its methods in another way: {e}", reply.node)))?;
    let method = |m: MethodDocument| Method { name: m.name, idempotent: m.idempotent, summary: m.summary };
    let methods: Vec<Method> = document.methods.into_iter().map(method).collect();
    let shown = match common.format {
        Format::Json => output::json(&Output { node: reply.node, methods }),
        Format::Text => {
            let is = |idempotent| if idempotent { "yes" } else { "no" }.to_owned();
            let rows: Vec<_> = methods
                .into_iter()
                .map(|m| [printable(&m.name).into_owned(), is(m.idempotent), printable(&m.summary).into_owned()])
                .collect();
            output::line(&table(["METHOD", "IDEMPOTENT", "SUMMARY"], &rows, 3))
        }
    };
    common::close(client).await;
    shown.map(|()| 0)
}
