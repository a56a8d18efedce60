//! How long certificates are valid.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use rpc_client::{ClientConfig, certificate};
use rpc_core::registry::Members;
use rpc_core::reloaded;
use x509_parser::parse_x509_certificate;
use x509_parser::pem::Pem;

use super::finding::{Finding, Level};
use super::nodes::AT_A_TIME;
use crate::common::Common;

/// Before this time is left somebody should know: certificates are often renewed by hand.
const SOON: Duration = Duration::from_hours(14 * 24);

const CHECK: &str = "expiry";

/// The certificates in the files of the command line.
pub(super) fn files(common: &Common) -> Vec<Finding> {
    let now = today();
    let of = |(option, path): (&'static str, &Path)| {
        let text = reloaded::read(path).ok()?;
        // Of several the first to end; what cannot be read at all was told when it was to be used.
        let ends = Pem::iter_from_buffer(&text).filter_map(|block| end(&block.ok()?.contents)).min()?;
        let mend = format!("replace {} with a renewed one; what runs takes it without a restart", path.display());
        let consequence = match option {
            "--tls-ca" => "no server is believed by it",
            _ => "no server that asks for certificates lets this client in",
        };
        Some(judge(ends, now, option, consequence, mend))
    };
    common.certificates().filter_map(of).collect()
}

/// The certificates that the listed nodes show.
pub(super) async fn of_nodes(members: &Members, config: &ClientConfig) -> Vec<Finding> {
    let asked = members.nodes.keys().map(|addr| async move { Some((*addr, certificate(*addr, config).await?)) });
    let shown: Vec<Option<(SocketAddr, Vec<u8>)>> =
        futures_util::stream::iter(asked).buffered(AT_A_TIME).collect().await;
    let now = today();
    let of = |(addr, der): (SocketAddr, Vec<u8>)| {
        let mend = format!("replace the files of --tls-cert and --tls-key at the server {addr}; it needs no restart");
        Some(judge(end(&der)?, now, addr, "no client that connects believes this node", mend))
    };
    shown.into_iter().flatten().filter_map(of).collect()
}

#[expect(clippy::disallowed_methods, reason = "certificates end by the wall clock, on every machine by its own")]
fn today() -> SystemTime {
    SystemTime::now()
}

/// When a certificate ends.
fn end(der: &[u8]) -> Option<SystemTime> {
    let (_, certificate) = parse_x509_certificate(der).ok()?;
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or_default();
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

fn judge(ends: SystemTime, now: SystemTime, about: impl ToString + Copy, consequence: &str, mend: String) -> Finding {
    let days = |duration: Duration| match duration.as_secs() / 86_400 {
        0 => "less than a day".to_owned(),
        1 => "1 day".to_owned(),
        days => format!("{days} days"),
    };
    match ends.duration_since(now) {
        Err(over) => {
            let fact = format!("the certificate expired {} ago", days(over.duration()));
            Finding::bad(Level::Problem, CHECK, about, [fact, consequence.to_owned(), mend])
        }
        Ok(left) if left < SOON => {
            let fact = format!("the certificate expires in {}", days(left));
            Finding::bad(Level::Warning, CHECK, about, [fact, format!("then {consequence}"), mend])
        }
        Ok(left) => Finding::ok(CHECK, about, format!("the certificate is valid for {}", days(left))),
    }
}
