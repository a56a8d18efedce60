//! `rpc-client nodes`

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::time::Duration;

use rpc_client::{Client, ConnectionState, NodeStatus};
use rpc_core::printable;
use rpc_core::protocol::CALL_TIMEOUT;
use serde::Serialize;

use crate::common::{self, Common, Format, Role};
use crate::failure::Failure;
use crate::screen::Screen;
use crate::table::table;
use crate::{output, units};

/// Patience for nodes that do not answer: longer than the client's own for connecting, so that
/// each is shown as connected or with what is wrong.
const SETTLE: Duration = Duration::from_millis(1200);

/// Ages move on although nothing happens.
const REDRAW: Duration = Duration::from_secs(1);

/// What an IPv6 address with its port takes.
const NAME_CHARS_MAX: usize = 47;

const EXAMPLES: &str = "\
Examples:
  rpc-client nodes
  rpc-client nodes --watch
  rpc-client nodes --format json | jq '.nodes[] | select(.connected | not)'

A response time is what clients measured lately; unknown is one that nobody measured within 5 s.

Exit code 0 says that the list could be read, also if it is empty or none of its servers can be
reached; `rpc-client doctor` ends with 1 then.";

/// List the servers, their response times, and whether they can be reached
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Go on showing: in place on a terminal, otherwise a line for each change
    #[arg(long)]
    watch: bool,
    /// Time to reach the registry [default: 5s]
    #[arg(long, value_name = "T", value_parser = common::duration, allow_hyphen_values = true)]
    timeout: Option<Duration>,
}

/// The list as `--format json` shows it.
#[derive(Serialize)]
struct Listing {
    registry: String,
    /// Age of the list in milliseconds.
    fresh_ms: Option<u64>,
    /// Why it cannot be brought up to date, if so.
    trouble: Option<String>,
    nodes: Vec<NodeStatus>,
    /// Entries whose name is no address.
    misnamed: Vec<String>,
}

pub(crate) async fn run(args: Args, common: Common) -> Result<u8, Failure> {
    let client = common.connect(Role::Observer)?;
    let timeout = args.timeout.unwrap_or(CALL_TIMEOUT);
    let settled = common::settle_within(&client, timeout, SETTLE).await;
    if !args.watch {
        settled?;
        show(&Listing::of(&client), common.format)?;
        common::close(client).await;
        return Ok(0);
    }
    if let Err(error) = settled {
        let state = error.registry().map(ToString::to_string).unwrap_or_default();
        output::note(&format!("{error}: {state}; waiting for it"));
    }
    if common.format == Format::Text && io::stdout().is_terminal() {
        watch_in_place(&client).await
    } else {
        watch_changes(&client, common.format).await
    }
}

impl Listing {
    fn of(client: &Client) -> Self {
        let state = client.registry_state();
        let nodes = client.nodes();
        Self {
            registry: state.url,
            fresh_ms: state.list_age_ms,
            trouble: state.trouble,
            nodes,
            misnamed: client.misnamed(),
        }
    }

    /// A table; how long entries have been as they are is only known to those who watched them.
    fn table(&self, watched: bool) -> String {
        let node = |node: &NodeStatus| {
            [
                node.node.to_string(),
                node.name.as_deref().map_or("-".into(), |name| printable(name).into_owned()),
                state(node).to_owned(),
                if is_away(node) { "-".into() } else { time(node) },
                if watched { units::millis(node.age_ms) } else { String::new() },
                connection(node.connection).into(),
                node.trouble.as_deref().map_or(String::new(), |trouble| printable(trouble).into_owned()),
            ]
        };
        let misnamed = |name: &String| {
            let since = if watched { "-" } else { "" };
            [&*shortened(name), "-", "malformed", "-", since, "-", "its name is no address"].map(str::to_owned)
        };
        let rows: Vec<_> = self.nodes.iter().map(node).chain(self.misnamed.iter().map(misnamed)).collect();
        table(["NODE", "NAME", "STATE", "RESPONSE TIME", if watched { "FOR" } else { "" }, "CONNECTION", ""], &rows, 7)
    }

    fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.misnamed.is_empty()
    }

    fn none(&self) -> String {
        format!("no nodes in {}; start one with `rpc-server --port 0 --registry {}`", self.registry, self.registry)
    }
}

fn show(listing: &Listing, format: Format) -> Result<(), Failure> {
    if let Some(trouble) = &listing.trouble {
        let age = listing.fresh_ms.map_or_else(|| "of unknown age".into(), |ms| format!("{} old", units::millis(ms)));
        output::note(&format!("{}: {trouble}; the list is {age}", listing.registry));
    }
    match format {
        Format::Json => output::json(listing),
        Format::Text if listing.is_empty() => {
            output::note(&listing.none());
            Ok(())
        }
        Format::Text => output::line(&listing.table(false)),
    }
}

/// A name that is no address, which can be anything, as wide as the widest address at most.
fn shortened(name: &str) -> String {
    let name = printable(name);
    match name.char_indices().nth(NAME_CHARS_MAX - 1) {
        Some((end, last)) if end + last.len_utf8() < name.len() => format!("{}…", &name[..end]),
        _ => name.into_owned(),
    }
}

/// Whether this client cannot reach a node that the registry says is up.
fn is_away(node: &NodeStatus) -> bool {
    let open = matches!(node.connection, ConnectionState::Connected | ConnectionState::Leaving);
    node.state == "up" && !open && node.trouble.is_some()
}

/// What the registry says of a node, unless it is seen not to be so.
fn state(node: &NodeStatus) -> &str {
    if is_away(node) { "unreachable" } else { &node.state }
}

fn time(node: &NodeStatus) -> String {
    if node.response_time_us == 0 { "unknown".into() } else { units::micros(node.response_time_us) }
}

fn connection(state: ConnectionState) -> &'static str {
    match state {
        ConnectionState::Connecting => "connecting",
        ConnectionState::Connected => "connected",
        ConnectionState::Suspect => "suspect",
        ConnectionState::Leaving => "leaving",
        ConnectionState::Ejected => "ejected",
    }
}

async fn watch_in_place(client: &Client) -> Result<u8, Failure> {
    let mut changed = client.nodes_changed();
    let mut screen = Screen::default();
    loop {
        let listing = Listing::of(client);
        let mut text =
            format!("{}, list {} old", listing.registry, units::millis(listing.fresh_ms.unwrap_or_default()));
        if let Some(trouble) = &listing.trouble {
            text.push_str(&format!("\n{trouble}"));
        }
        text.push('\n');
        text.push_str(&if listing.is_empty() { listing.none() } else { listing.table(true) });
        screen.draw(&mut io::stdout().lock(), &text).map_err(|_| Failure::BrokenPipe)?;
        tokio::select! {
            _ = changed.changed() => {}
            () = tokio::time::sleep(REDRAW) => {}
        }
    }
}

async fn watch_changes(client: &Client, format: Format) -> Result<u8, Failure> {
    let mut changed = client.nodes_changed();
    let mut known: BTreeMap<SocketAddr, String> = BTreeMap::new();
    let mut trouble = None;
    let mut is_first = true;
    loop {
        let listing = Listing::of(client);
        let now: BTreeMap<SocketAddr, String> = listing.nodes.iter().map(|node| (node.node, describe(node))).collect();
        let mut lines = Vec::new();
        if listing.trouble != trouble {
            lines.push(format!("! {}: {}", listing.registry, listing.trouble.as_deref().unwrap_or("reached again")));
        }
        lines.extend(known.keys().filter(|node| !now.contains_key(*node)).map(|node| format!("- {node}")));
        for (node, what) in &now {
            match known.get(node) {
                None => lines.push(format!("+ {node} {what}")),
                Some(before) if before != what => lines.push(format!("~ {node} {what}")),
                Some(_) => {}
            }
        }
        match format {
            Format::Text if !lines.is_empty() => output::line(&lines.join("\n"))?,
            Format::Json if !lines.is_empty() || is_first => output::json(&listing)?,
            Format::Text | Format::Json => {}
        }
        (known, trouble, is_first) = (now, listing.trouble, false);
        tokio::select! {
            _ = changed.changed() => {}
            () = tokio::time::sleep(REDRAW) => {}
        }
    }
}

/// What a change is told by.
fn describe(node: &NodeStatus) -> String {
    let name = node.name.as_ref().map(|name| format!("{} ", printable(name))).unwrap_or_default();
    let trouble = node.trouble.as_ref().map(|trouble| format!(": {}", printable(trouble))).unwrap_or_default();
    format!("{name}{}, {}, response time {}{trouble}", state(node), connection(node.connection), time(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_is_no_address_has_its_row_and_leaves_the_columns_as_they_are() {
        let misnamed = vec!["short".to_owned(), "long".repeat(50)];
        let listing = Listing { registry: "local:".into(), fresh_ms: None, trouble: None, nodes: Vec::new(), misnamed };
        for watched in [false, true] {
            let text = listing.table(watched);
            let lines: Vec<&str> = text.lines().collect();
            let column = lines[0].find("CONNECTION").unwrap();
            assert!(column < 100, "{text}");
            for row in &lines[1..] {
                let at = |n: usize| row.chars().skip(n).collect::<String>();
                assert!(at(column).starts_with("-  ") && row.ends_with("its name is no address"), "{text}");
                assert_eq!(row.matches(" -").count(), if watched { 4 } else { 3 }, "{text}");
            }
        }
    }
}
