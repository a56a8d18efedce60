//! What to do next at the command line. The library's own hints speak to whoever writes programs.

use rpc_client::{Error, ErrorKind, NotRepeated};
use rpc_core::protocol::code;
use rpc_core::registry::{RegistryUrl, Target};

use crate::common::Common;

/// What to do about `error`, in one sentence.
pub(crate) fn step(error: &Error, common: &Common) -> String {
    let Common { registry: url, .. } = common;
    let target = url.parse::<RegistryUrl>().ok().map(|url| url.target);
    let said = match error.kind() {
        ErrorKind::Config(reason) if !is_about_the_url(reason) => {
            "correct the option or the file that the message names; `rpc-client help` has the options".to_owned()
        }
        // Without options there is nothing wrong with such a URL but its directory.
        ErrorKind::Config(_) if matches!(target, Some(Target::Local(_))) && !url.contains('?') => {
            "make the directory usable, or name another with --registry local:DIR".to_owned()
        }
        ErrorKind::Config(_) => "correct --registry; `rpc-client help` has its forms".to_owned(),
        ErrorKind::BadRequest(_) => {
            "params are a JSON array or object: write [5] for one value, {\"ms\":5} for a named one".to_owned()
        }
        ErrorKind::RegistryUnreachable { .. } if error.is_registry_refusal() => {
            "set RPC_ZK_AUTH to the `user:password` of somebody who may read the entries".to_owned()
        }
        ErrorKind::RegistryUnreachable { .. } => match target {
            Some(Target::Local(_)) => "make the directory usable, or name another with --registry local:DIR".to_owned(),
            _ => format!(
                "check that ZooKeeper runs there, or correct --registry; `rpc-client doctor --registry '{url}'` looks"
            ),
        },
        ErrorKind::NoNode if error.registry().is_some_and(|state| state.listed > 0) => {
            format!("`rpc-client doctor --registry '{url}'` says what is wrong with each listed node")
        }
        ErrorKind::NoNode => format!("start a server: `rpc-server --port 0 --registry '{url}'`"),
        ErrorKind::DeadlineExceeded { .. } => more_time(url),
        ErrorKind::Remote { error: answer, .. }
            if !error.is_unsent() && matches!(answer.code, code::OVERLOADED | code::REFUSED) =>
        {
            "the call may have run in an earlier attempt; call less, add servers, or allow more time with --timeout"
                .to_owned()
        }
        ErrorKind::Remote { error: answer, .. } => match answer.code {
            code::METHOD_NOT_FOUND => format!("`rpc-client methods --registry '{url}'` lists what the servers offer"),
            code::DEADLINE_EXCEEDED => more_time(url),
            code::OVERLOADED | code::REFUSED => {
                "the call did not run; call less, add servers, or allow more time with --timeout".to_owned()
            }
            code::TLS_REQUIRED => "give the certificate of the servers' authority with --tls-ca".to_owned(),
            code::UNAUTHENTICATED => "give a token that the servers know, with --token-file or RPC_TOKEN".to_owned(),
            _ => error.hint(),
        },
        ErrorKind::Transport { sent: true, .. } => match error.not_repeated() {
            Some(NotRepeated::NotIdempotent) | None => {
                "the call may have run; if running twice does no harm, --idempotent repeats it for you".to_owned()
            }
            Some(_) => error.hint(),
        },
        ErrorKind::Transport { sent: false, .. } if !error.is_unsent() => error.hint(),
        ErrorKind::Transport { sent: false, .. } => {
            format!("the call did not run; `rpc-client doctor --registry '{url}'` says what answers at that address")
        }
        ErrorKind::TooLarge { .. } => "send less, or raise the limit on both sides".to_owned(),
        _ => error.hint(),
    };
    match common.is_from_environment && speaks_of_the_url(error) {
        true => format!("{said} (the URL comes from RPC_REGISTRY)"),
        false => said,
    }
}

fn more_time(url: &str) -> String {
    format!("allow more time with --timeout, or see which node hangs with `rpc-client doctor --registry '{url}'`")
}

fn speaks_of_the_url(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Config(reason) => is_about_the_url(reason),
        kind => matches!(kind, ErrorKind::RegistryUnreachable { .. } | ErrorKind::NoNode),
    }
}

/// Whether that is what cannot work, and not a certificate or a token.
fn is_about_the_url(reason: &str) -> bool {
    reason.starts_with("registry URL")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_mended_where_it_was_said() {
        let tls = "TLS needs --tls-ca, the authorities that servers are believed by";
        for (url, reason, next) in [
            ("local:", tls, "correct the option or the file that the message names"),
            ("local:/proc/x", "registry URL `local:/proc/x`: cannot read /proc/x", "make the directory usable"),
            ("local:x?y=1", "registry URL `local:x?y=1`: no option `y`", "correct --registry"),
            ("zk:", "registry URL `zk:`: no hosts", "correct --registry"),
        ] {
            let common = Common::of_registry(url);
            let said = step(&ErrorKind::Config(reason.into()).into(), &common);
            assert!(said.starts_with(next), "{reason}: {said}");
            let mut common = Common::of_registry(url);
            common.is_from_environment = true;
            let said = step(&ErrorKind::Config(reason.into()).into(), &common);
            assert_eq!(said.contains("RPC_REGISTRY"), reason != tls, "{said}");
        }
    }
}
