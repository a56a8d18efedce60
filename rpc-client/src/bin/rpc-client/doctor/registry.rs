//! The configuration, and the registry itself.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rpc_client::Error;
use rpc_core::registry::{Members, Registry, RegistryUrl, Target};
use rpc_core::{micros, millis};
use tokio::time::Instant;

use super::finding::{Finding, Level};
use crate::common::Common;
use crate::{next, units};

/// An operation that takes longer is told: the list then follows changes late.
const SLOW: Duration = Duration::from_millis(500);

/// Where the URL comes from.
pub(super) fn configuration(common: &Common) -> Vec<Finding> {
    let variable = std::env::var("RPC_REGISTRY").ok().filter(|value| !value.is_empty());
    let about = "configuration";
    let from = match (&variable, common.is_from_environment) {
        (_, true) => "from RPC_REGISTRY",
        (None, false) if common.registry == "local:" => "the default",
        (_, false) => "from --registry",
    };
    let url = Finding::ok("url", about, format!("registry URL {}, {from}", common.registry));
    match variable {
        Some(other) if !common.is_from_environment && other != common.registry => {
            let said = [
                format!("RPC_REGISTRY is {other}, and --registry {}", common.registry),
                "commands without --registry use another registry than this one".into(),
                format!("export RPC_REGISTRY='{}', or unset RPC_REGISTRY", common.registry),
            ];
            vec![url, Finding::bad(Level::Warning, "url", about, said)]
        }
        _ => vec![url],
    }
}

/// A URL that cannot work.
pub(super) fn unusable(error: &Error, common: &Common) -> Finding {
    let said = [error.to_string(), "no node can be found".into(), next::step(error, common)];
    Finding::bad(Level::Problem, "url", "configuration", said)
}

/// Reads the list of nodes; none if that was not possible in time.
pub(super) async fn list(
    registry: &dyn Registry,
    timeout: Duration,
    findings: &mut Vec<Finding>,
) -> Option<Arc<Members>> {
    let url = registry.url();
    let started = Instant::now();
    let mut lists = registry.members();
    let known = tokio::time::timeout(timeout, lists.wait_for(|list| list.is_known())).await;
    let reached = started.elapsed();
    let members = match known {
        Ok(Ok(list)) => list.clone(),
        Ok(Err(_)) | Err(_) => {
            let health = registry.health().borrow().clone();
            let trouble = health.trouble().map(|trouble| format!(": {trouble}")).unwrap_or_default();
            let said = [
                format!("no list of nodes within {}{trouble}", ms(timeout)),
                "clients that start now find no node; those that run go on with the list they have".into(),
                unreachable(url, health.is_refusal()),
            ];
            findings.push(Finding::bad(Level::Problem, "registry", url, said));
            return None;
        }
    };
    let age = members.as_of.map_or(Duration::ZERO, |at| at.elapsed());
    let count = units::nodes(members.nodes.len());
    let fact = format!("reached in {}; {count} listed, as of {} ago", ms(reached), ms(age));
    findings.push(Finding::ok("registry", url, fact));
    findings.extend(latency(registry, &members).await);
    if members.nodes.is_empty() {
        let said = [
            "no node is listed".into(),
            "every call fails with no_node".into(),
            format!("rpc-server --port 0 --registry '{url}'"),
        ];
        findings.push(Finding::bad(Level::Problem, "nodes", url, said));
    }
    Some(members)
}

/// How long the registry takes for one operation.
async fn latency(registry: &dyn Registry, members: &Members) -> Option<Finding> {
    let url = registry.url();
    if matches!(url.target, Target::Static(_)) {
        return None;
    }
    let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let addr = members.nodes.keys().next().copied().unwrap_or(nobody);
    let started = Instant::now();
    let read = registry.read(addr).await;
    let took = started.elapsed();
    Some(match read {
        Err(error) => {
            let said = [
                format!("an entry could not be read: {error}"),
                "clients go on with the list they have, which may be out of date".into(),
                unreachable(url, false),
            ];
            Finding::bad(Level::Problem, "latency", url, said)
        }
        Ok(_) if took > SLOW => {
            let said = [
                format!("reading one entry took {}", ms(took)),
                "nodes that come and go are noticed late".into(),
                slow(url),
            ];
            Finding::bad(Level::Warning, "latency", url, said)
        }
        Ok(_) => {
            let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            Finding::ok("latency", url, format!("reading one entry took {}", micros(us)))
        }
    })
}

fn unreachable(url: &RegistryUrl, refused: bool) -> String {
    match &url.target {
        Target::ZooKeeper { namespace, .. } if refused => {
            format!("export RPC_ZK_AUTH=user:password   # of somebody whom the ACL of {namespace} lets read")
        }
        Target::ZooKeeper { tls: true, .. } => "start ZooKeeper with TLS there, or correct --registry".into(),
        Target::ZooKeeper { hosts, .. } => format!(
            "{}   # says nothing unless ZooKeeper serves there: start it, or correct --registry",
            ask(&hosts[0])
        ),
        Target::Local(_) => "make the directory usable, or name another with --registry local:DIR".into(),
        Target::Static(_) | Target::Memory(_) => "correct --registry".into(),
    }
}

/// The command that asks a ZooKeeper how it is.
fn ask(server: &str) -> String {
    let (host, port) = server.rsplit_once(':').unwrap_or((server, "2181"));
    format!("echo srvr | nc {host} {port}")
}

fn slow(url: &RegistryUrl) -> String {
    match &url.target {
        Target::ZooKeeper { tls: true, .. } => "look at the load of ZooKeeper and at the way to it".into(),
        Target::ZooKeeper { hosts, .. } => {
            format!("{}   # its line Latency says whether ZooKeeper or the way to it is slow", ask(&hosts[0]))
        }
        Target::Local(_) | Target::Static(_) | Target::Memory(_) => {
            "look at the load of this machine and its disk".into()
        }
    }
}

fn ms(duration: Duration) -> String {
    millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
