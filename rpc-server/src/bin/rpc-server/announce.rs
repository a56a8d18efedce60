//! Tells how far the registration is.

use std::io::{self, Write};
use std::net::SocketAddr;

use rpc_core::registry::{RegistrationStatus, Registry};
use tokio::sync::watch;

/// Follows a registration: one line on standard output when the entry is in the registry for the
/// first time, everything else in the log, and nothing twice. Returns when that is over, with the
/// reason if the registry will never take the entry.
pub(crate) async fn follow(
    mut status: watch::Receiver<RegistrationStatus>,
    addr: SocketAddr,
    registry: &dyn Registry,
) -> Option<String> {
    let url = registry.url();
    let mut announced = false;
    let mut said: Option<String> = None;
    loop {
        let now = status.borrow_and_update().clone();
        match now {
            RegistrationStatus::Registered => {
                if !announced {
                    serving(addr, Some(&url.to_string()));
                    announced = true;
                } else if said.is_some() {
                    tracing::info!("registered again");
                }
                said = None;
            }
            RegistrationStatus::Pending { trouble: None } => {}
            RegistrationStatus::Pending { trouble: Some(trouble) } => {
                let still = if announced { "no longer registered" } else { "not registered yet" };
                say(&mut said, format!("{still}: {trouble}; calls are accepted, and it is being tried on"));
            }
            RegistrationStatus::Conflict { detail } => say(
                &mut said,
                format!(
                    "{addr} belongs to another server: {detail}; stop that one, or start this one with its own --advertise A:P"
                ),
            ),
            RegistrationStatus::Refused { reason } => {
                // A fixed list needs no entry from a server that it names already.
                if !registry.members().borrow().nodes.contains_key(&addr) {
                    return Some(reason);
                }
                serving(addr, Some(&url.to_string()));
                return None;
            }
            RegistrationStatus::Withdrawn => return None,
        }
        if status.changed().await.is_err() {
            return None;
        }
    }
}

/// Says where the server is, and in which registry, if it is to be in one.
pub(crate) fn serving(addr: SocketAddr, url: Option<&str>) {
    let place = url.map(|url| format!(" in {url}")).unwrap_or_default();
    let mut out = io::stdout().lock();
    // Whoever started the server may not want to read; it serves all the same.
    let _ = writeln!(out, "serving {addr}{place}").and_then(|()| out.flush());
}

fn say(said: &mut Option<String>, text: String) {
    if said.as_ref() != Some(&text) {
        tracing::warn!("{text}");
        *said = Some(text);
    }
}
