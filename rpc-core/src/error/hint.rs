//! What to do about an error, for whoever wrote the program.

use super::{Error, ErrorKind, NO_VALID_ANSWER, NotRepeated, RegistryState, RpcError};
use crate::protocol::code;

/// How hints begin that say so; no longer true when an earlier attempt may have started the call.
const DID_NOT_RUN: &str = "the call did not run; ";

pub(super) fn of(error: &Error) -> String {
    let hint = match error.kind() {
        ErrorKind::Config(_) => {
            "correct the URL or option; URLs are local:[DIR], zk[+tls]://host:port,…/namespace, static:ip:port,… and mem:NAME"
        }
        ErrorKind::BadRequest(_) => {
            "params are an array (a tuple or list), an object (a struct or map) or nothing: one value is a tuple of one, \
             `&(\"tea\",)` and not `&\"tea\"`"
        }
        ErrorKind::RegistryUnreachable { .. } if error.is_registry_refusal() => {
            "give the client the `user:password` of somebody who may read the entries: with the option `auth_file` of the \
             URL, or with RPC_ZK_AUTH"
        }
        ErrorKind::RegistryUnreachable { .. } => unreachable(scheme(error.registry())),
        ErrorKind::NoNode => match error.registry() {
            Some(state) if state.listed > 0 => {
                "no listed node can be used, and the attempts say why: check that they run and can be reached from here"
            }
            state => no_node(scheme(state)),
        },
        ErrorKind::DeadlineExceeded { .. } => {
            "allow more time with `CallOptions::timeout`, or see with `Client::nodes` which node hangs"
        }
        ErrorKind::Remote { error: answer, .. } if answer.is_unstarted() && !error.is_unsent() => {
            return format!(
                "the call may have run in an earlier attempt; {}",
                remote(answer).trim_start_matches(DID_NOT_RUN)
            );
        }
        ErrorKind::Remote { error, .. } => remote(error),
        ErrorKind::Transport { sent: true, .. } => match error.not_repeated() {
            Some(NotRepeated::OftenEnough) => {
                "the call may have run; it was repeated as often as calls are, so look at the nodes"
            }
            Some(NotRepeated::NoBudget) => {
                "the call may have run; so many calls fail that it was not repeated: look at the nodes, or call less"
            }
            Some(NotRepeated::NoOtherNode) => {
                "the call may have run, and does no harm if it runs twice: call again once a node is back, or start another"
            }
            Some(NotRepeated::NotIdempotent) | None => {
                "the call may have run; if running twice does no harm, declare it so with `Method::idempotent` or \
                 `CallOptions::idempotent`, and it is repeated"
            }
        },
        ErrorKind::Transport { sent: false, .. } if !error.is_unsent() => {
            "the call may have run in an earlier attempt; check that the node listens at that address"
        }
        ErrorKind::Transport { sent: false, .. } => "the call did not run; check that the node listens at that address",
        ErrorKind::Decode { reason, .. } if reason.starts_with(NO_VALID_ANSWER) => {
            "look at what answers at that address: an answer of JSON-RPC 2.0 is UTF-8 and has either a result or an error"
        }
        ErrorKind::Decode { .. } => "ask for the type that the method returns",
        ErrorKind::TooLarge { .. } => "send less, or raise `message_bytes_max` on both sides",
        ErrorKind::Closed => "make a new client",
    };
    hint.to_owned()
}

fn scheme(state: Option<&RegistryState>) -> &str {
    state.and_then(|state| state.url.split_once(':')).map_or("", |(scheme, _)| scheme)
}

fn unreachable(scheme: &str) -> &'static str {
    match scheme {
        "zk" => "check that ZooKeeper runs at these addresses and can be reached from here, or correct them in the URL",
        "zk+tls" => "check that ZooKeeper serves TLS at these addresses, and the files that the URL names",
        "local" => "make the directory usable, or name another one with local:DIR",
        _ => "check that the registry can be reached, or correct its URL",
    }
}

fn no_node(scheme: &str) -> &'static str {
    match scheme {
        "static" => "write the servers' addresses into the URL: static:ip:port,…",
        "mem" => "start a server in this process with the same URL; another process has another list",
        _ => "start a server with the same registry URL, or wait for one with `ClientConfig::wait_for_node`",
    }
}

/// What to do about an answer of the server.
fn remote(error: &RpcError) -> &'static str {
    match error.code {
        code::PARSE_ERROR | code::INVALID_REQUEST => {
            "the server read something else than was sent: look for what lies between"
        }
        code::METHOD_NOT_FOUND => "call a method that the servers have, or add this one with `ServerBuilder::method`",
        code::INVALID_PARAMS => "correct the params; the message names the member that does not fit",
        code::INTERNAL_ERROR => "the handler failed in a way it did not foresee; the server's log says more",
        code::DEADLINE_EXCEEDED => "allow more time with `CallOptions::timeout`",
        code::CANCELLED => "the call was taken back; it may have begun to run",
        code::DRAINING => "the call did not run; the server is about to stop: call again once another is listed",
        code::OVERLOADED | code::REFUSED => {
            "the call did not run; call less, add servers, or allow more time with `CallOptions::timeout`"
        }
        code::TOO_LARGE => "send or ask for less, or raise `message_bytes_max` on both sides",
        code::WRONG_INCARNATION => "another program took the address: the registry's entry will follow",
        code::INCOMPATIBLE_VERSION => "update the older of the two sides; `data.version` is the server's",
        code::TLS_REQUIRED => "give the certificate of the servers' authority with `ClientConfig::tls`",
        code::UNAUTHENTICATED => "give a token that the servers know with `ClientConfig::token`, or a certificate",
        code::PERMISSION_DENIED => "the server's access file says what each caller may call",
        code::UPSTREAM => "a call that the handler made failed; `data.upstream` says how",
        _ if error.is_application() => "the method answered so; what the code means is the application's",
        _ => "the server answered so; its log may say more",
    }
}
