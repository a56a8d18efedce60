//! The log, on standard error.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::filter::{Directive, EnvFilter};

/// What is logged when `RUST_LOG` says nothing. The ZooKeeper crate tells each of its steps, and our
/// backend what comes of them.
const LOG_DEFAULT: &str = "info,zookeeper_client=warn";

/// Starts it. Where standard error cannot be written, lines are lost and nothing else: the
/// subscriber's own complaint about it would be a panic.
pub(crate) fn init() {
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let wanted = std::env::var("RUST_LOG").ok().filter(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .log_internal_errors(false)
        .with_target(false)
        .with_env_filter(filter(wanted.as_deref().unwrap_or(LOG_DEFAULT)))
        .with_ansi(colour)
        .init();
}

/// What `wanted` lets through. What is no directive is told and left out; the builder would tell it
/// too, with a panic where standard error cannot be written.
fn filter(wanted: &str) -> EnvFilter {
    let is_directive = |text: &&str| match text.parse::<Directive>() {
        Ok(_) => true,
        Err(error) => {
            let _ = writeln!(io::stderr(), "ignoring `{text}`: {error}");
            false
        }
    };
    let directives: Vec<&str> = wanted.split(',').filter(|text| !text.is_empty()).filter(is_directive).collect();
    EnvFilter::builder().parse_lossy(directives.join(","))
}
