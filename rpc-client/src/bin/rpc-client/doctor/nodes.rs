//! The listed nodes, and what answers at their addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use futures_util::StreamExt;
use rpc_client::{ClientConfig, GreetError, Greeting, greet};
use rpc_core::open_files;
use rpc_core::protocol::code;
use rpc_core::registry::{Member, Members, RegistryUrl, Target};
use rpc_core::tls::Distrust;
use rpc_core::{NodeState, micros};

use super::finding::{Finding, Level};
use crate::common::Common;

/// Nodes that are asked at the same time.
pub(super) const AT_A_TIME: usize = 64;

/// What the list itself says: names, payloads and addresses that cannot be right.
pub(super) fn addresses(members: &Members, url: &RegistryUrl) -> Vec<Finding> {
    let mut findings: Vec<Finding> = members.misnamed.iter().map(|name| misnamed(name, url)).collect();
    for member in members.nodes.values() {
        if let Some(reason) = &member.malformed {
            let said = [
                format!("its entry cannot be read: {reason}"),
                "the node is called, but whoever answers there counts as it, and its weight and name are unknown"
                    .into(),
                format!("restart the server at {}, or {}", member.addr, delete(&member.addr.to_string(), url)),
            ];
            findings.push(Finding::bad(Level::Problem, "entry", member.addr, said));
        }
        findings.extend(address(member.addr, url));
    }
    findings.extend(twice(members));
    findings
}

fn misnamed(name: &str, url: &RegistryUrl) -> Finding {
    let said = ["the name of this entry is no IP:PORT".into(), "nobody calls it".into(), delete(name, url)];
    Finding::bad(Level::Warning, "entry", name, said)
}

/// The command that deletes an entry.
fn delete(name: &str, url: &RegistryUrl) -> String {
    match &url.target {
        Target::ZooKeeper { tls: true, namespace, .. } => format!("delete {namespace}/{name} from ZooKeeper"),
        Target::ZooKeeper { hosts, namespace, .. } => {
            format!("zkCli.sh -server {} delete {namespace}/{name}", hosts[0])
        }
        Target::Local(Some(dir)) => format!("rm '{}'", dir.join(name).display()),
        Target::Local(None) | Target::Static(_) | Target::Memory(_) => format!("take {name} out of the list"),
    }
}

/// An address that others cannot reach, whatever listens there.
fn address(addr: SocketAddr, url: &RegistryUrl) -> Option<Finding> {
    let advertise = || format!("start that server with --advertise IP:{}", addr.port());
    if addr.ip().is_unspecified() {
        let said = [
            format!("{addr} is no address that anybody can connect to"),
            "nobody reaches this node".into(),
            advertise(),
        ];
        return Some(Finding::bad(Level::Problem, "address", addr, said));
    }
    let Target::ZooKeeper { hosts, .. } = &url.target else { return None };
    let serves_others = !hosts.iter().all(|host| is_loopback(host));
    if addr.ip().to_canonical().is_loopback() && serves_others {
        let said = [
            format!("{addr} is a loopback address, in a registry that other machines use"),
            "on every other machine it is another program, or nobody".into(),
            advertise(),
        ];
        return Some(Finding::bad(Level::Problem, "address", addr, said));
    }
    None
}

fn is_loopback(host: &str) -> bool {
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Nodes that are listed under two addresses.
fn twice(members: &Members) -> Vec<Finding> {
    let mut by_id: BTreeMap<&str, Vec<SocketAddr>> = BTreeMap::new();
    for member in members.nodes.values().filter(|member| !member.record.id.is_empty()) {
        by_id.entry(&member.record.id).or_default().push(member.addr);
    }
    let of = |(id, addrs): (&str, Vec<SocketAddr>)| {
        let listed: Vec<String> = addrs.iter().map(ToString::to_string).collect();
        let said = [
            format!("one instance ({id}) is listed at {}", listed.join(" and ")),
            "it gets the calls of two nodes".into(),
            "give each server its own --advertise, and delete the entry that is not its".into(),
        ];
        Finding::bad(Level::Problem, "duplicate", addrs[0], said)
    };
    by_id.into_iter().filter(|(_, addrs)| addrs.len() > 1).map(of).collect()
}

/// Compares every listed node with what answers at its address.
pub(super) async fn answers(
    members: &Members,
    config: &ClientConfig,
    common: &Common,
    url: &RegistryUrl,
) -> Vec<Finding> {
    let asked = members.nodes.values().map(|member| async move {
        match greet(member.addr, config).await {
            Ok(greeting) => answer(member, &greeting, url),
            Err(GreetError::NotSecure(reason)) => distrust(member.addr, &reason, common),
            Err(error) => silence(member.addr, &error, url),
        }
    });
    futures_util::stream::iter(asked).buffered(AT_A_TIME).collect().await
}

fn answer(member: &Member, greeting: &Greeting, url: &RegistryUrl) -> Finding {
    let addr = member.addr;
    let (listed, there) = (&member.record.id, &greeting.incarnation);
    if !listed.is_empty() && !there.is_empty() && listed != there {
        let said = [
            format!("another instance answers than the one that is listed ({there} and not {listed})"),
            "clients send it no calls".into(),
            format!("restart the server at {addr}: it registers anew; or {}", delete(&addr.to_string(), url)),
        ];
        return Finding::bad(Level::Problem, "incarnation", addr, said);
    }
    if member.record.state == NodeState::Draining {
        return Finding::bad(Level::Warning, "state", addr, leaving("it is draining".into()));
    }
    let us = u64::try_from(greeting.elapsed.as_micros()).unwrap_or(u64::MAX);
    Finding::ok("node", addr, format!("the listed node answers, in {}", micros(us)))
}

fn leaving(fact: String) -> [String; 3] {
    [fact, "it takes no new calls".into(), "nothing, if it is being stopped; otherwise restart it".into()]
}

/// One side does not believe the certificate of the other.
fn distrust(addr: SocketAddr, error: &std::io::Error, common: &Common) -> Finding {
    let reason = error.get_ref().and_then(|reason| reason.downcast_ref());
    let mend = match reason {
        Some(Distrust::Expired) => {
            format!("replace the files of --tls-cert and --tls-key at the server {addr}; it needs no restart")
        }
        Some(Distrust::NotYet) => "date   # says whether the clock of this machine is right".into(),
        Some(Distrust::Name { presented, .. }) if !presented.is_empty() => {
            format!("give --tls-name {}, or the server a certificate for {}", presented[0], addr.ip())
        }
        Some(Distrust::Authority) => {
            format!("openssl s_client -connect {addr} </dev/null   # says who issued it: give that one's with --tls-ca")
        }
        Some(Distrust::Wanted) => {
            "give --tls-cert and --tls-key, issued by an authority in the file of that server's --tls-client-ca".into()
        }
        Some(Distrust::Refused(_)) => {
            let own = common.certificates().find(|(option, _)| *option == "--tls-cert");
            let file = own.map_or("FILE".into(), |(_, path)| path.display().to_string());
            format!(
                "openssl x509 -noout -issuer -enddate -in '{file}'   # renew it, or have it issued by an authority in \
                 the file of that server's --tls-client-ca"
            )
        }
        _ => "look at the certificates on both sides: --tls-ca, --tls-name and --tls-cert".into(),
    };
    let (check, fact, follows) = match reason {
        Some(Distrust::Wanted | Distrust::Refused(_)) => {
            ("credentials", "it does not let this client in", "calls with these options fail")
        }
        _ => ("certificate", "it is not believed", NO_CALLS),
    };
    Finding::bad(Level::Problem, check, addr, [format!("{fact}: {error}"), follows.into(), mend])
}

/// What follows for a node that clients cannot use.
const NO_CALLS: &str = "it gets no calls, and each client finds that out by itself";

/// What it means that nobody at `addr` said hello.
fn silence(addr: SocketAddr, error: &GreetError, url: &RegistryUrl) -> Finding {
    let none = || NO_CALLS.to_owned();
    let listening = |what: &str| format!("ss -ltnp 'sport = :{}'   # on its machine {what}", addr.port());
    let (level, check, said) = match error {
        GreetError::NoConnection(error) if open_files::are_used_up(error) => {
            let fact = format!("this client has too few open files to ask it: {error}");
            let follows = "nothing is said about the node; clients started here cannot connect with all";
            (Level::Problem, "open_files", [fact, follows.into(), open_files::mend()])
        }
        GreetError::NoConnection(_) => {
            let mend = format!("start the server again, or {}", delete(&addr.to_string(), url));
            (Level::Problem, "connect", [format!("nobody answers: {error}"), none(), mend])
        }
        GreetError::Silent(_) => {
            let mend =
                listening("names the process: restart it, or raise its ulimit -n if its log says `cannot accept`");
            (Level::Problem, "silent", [format!("it does not answer: {error}"), none(), mend])
        }
        GreetError::Refused(answer) if answer.code == code::DRAINING => {
            (Level::Warning, "state", leaving(format!("it is about to stop: {error}")))
        }
        GreetError::Refused(answer) if answer.code == code::INCOMPATIBLE_VERSION => {
            let (fact, follows) =
                (format!("it speaks another version: {error}"), "clients like this one cannot call it");
            let mend = "bring this client and that server to the same version";
            (Level::Problem, "version", [fact, follows.into(), mend.into()])
        }
        GreetError::Refused(answer) if matches!(answer.code, code::UNAUTHENTICATED | code::TLS_REQUIRED) => {
            let fact = format!("it does not take clients without credentials: {error}");
            let mend = "give --tls-ca, --token-file or RPC_TOKEN, as the servers ask for";
            (Level::Problem, "credentials", [fact, "calls with these options fail".into(), mend.into()])
        }
        GreetError::Refused(answer) if answer.code == code::OVERLOADED => {
            let follows = "clients that are connected call it, and others do not";
            let mend = "start another server, or give this one a higher ulimit -n or connections_max";
            (Level::Warning, "full", [format!("it is full: {error}"), follows.into(), mend.into()])
        }
        GreetError::Refused(_) => {
            let fact = format!("it refuses clients like this one: {error}");
            (Level::Problem, "refused", [fact, none(), "the server's log says more".into()])
        }
        _ => {
            let mend = listening("names the program; give the server another --port");
            (Level::Problem, "program", [format!("something else than a node answers: {error}"), none(), mend])
        }
    };
    Finding::bad(level, check, addr, said)
}
