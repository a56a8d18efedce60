//! `local:`, `zk://`, `zk+tls://`, `static:` and `mem:` URLs.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::{Error, ErrorKind};

/// Which registry to use, and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryUrl {
    text: String,
    /// The backend.
    pub target: Target,
    /// `?key=value` options. Each backend takes those it knows and refuses the others.
    pub options: BTreeMap<String, String>,
}

/// The backend that a URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `local:[DIR]`: a directory on this machine. Without a directory, the user's own.
    Local(Option<PathBuf>),
    /// `zk://host:port,host:port/namespace`, or `zk+tls://` and the same.
    ZooKeeper {
        /// Whether the servers are spoken to in TLS only.
        tls: bool,
        /// `host:port` pairs; without TLS the port is 2181 where the URL has none.
        hosts: Vec<String>,
        /// Path of the namespace, with a leading slash; `/rpc` where the URL has none.
        namespace: String,
    },
    /// `static:ip:port,ip:port`: a fixed list.
    Static(Vec<SocketAddr>),
    /// `mem:NAME`: within this process.
    Memory(String),
}

impl Default for RegistryUrl {
    /// `local:`
    fn default() -> Self {
        Self { text: "local:".into(), target: Target::Local(None), options: BTreeMap::new() }
    }
}

impl FromStr for RegistryUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if holds_secret(text) {
            // Not shown, since it ends up in logs.
            return Err(ErrorKind::Config(NO_SECRETS.into()).into());
        }
        parse(text).map_err(|reason| ErrorKind::Config(format!("registry URL `{text}`: {reason}")).into())
    }
}

impl fmt::Display for RegistryUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

const FORMS: &str =
    "local:[DIR], zk://host:port,…/namespace, zk+tls://host:port,…/namespace, static:ip:port,… or mem:NAME";

const NO_SECRETS: &str = "registry URL: URLs are shown and logged, so they hold no password; \
    put `user:password` into RPC_ZK_AUTH, or into a file and its path into the option `auth_file`";

const NONE: &str = "it is for the command rpc-server, which then registers nowhere; its clients take static:ip:port,…";

/// Whether somebody has put a password into a URL, as `user:password@host` or an option.
fn holds_secret(text: &str) -> bool {
    let (body, query) = text.split_once('?').unwrap_or((text, ""));
    let authority = body
        .strip_prefix("zk://")
        .or_else(|| body.strip_prefix("zk+tls://"))
        .map(|rest| rest.split('/').next().unwrap_or(rest));
    let secret = |pair: &str| ["auth=", "password=", "pass=", "token="].iter().any(|key| pair.starts_with(key));
    authority.is_some_and(|hosts| hosts.contains('@')) || query.split('&').any(secret)
}

fn parse(text: &str) -> Result<RegistryUrl, String> {
    let (body, query) = text.split_once('?').unwrap_or((text, ""));
    let mut options = BTreeMap::new();
    for pair in query.split('&').filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| format!("option `{pair}` has no value"))?;
        if options.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(format!("option `{key}` is given twice"));
        }
    }
    if body == "none" {
        return Err(NONE.into());
    }
    let (scheme, rest) = body.split_once(':').ok_or_else(|| format!("no scheme; the forms are {FORMS}"))?;
    let target = match scheme {
        "local" => Target::Local((!rest.is_empty()).then(|| PathBuf::from(rest))),
        "zk" => zookeeper(rest, false)?,
        "zk+tls" => zookeeper(rest, true)?,
        "static" => Target::Static(addresses(rest)?),
        "mem" if rest.is_empty() => return Err("mem: needs a name, as in mem:test".into()),
        "mem" => Target::Memory(rest.to_owned()),
        other => return Err(format!("unknown scheme `{other}`; the forms are {FORMS}")),
    };
    Ok(RegistryUrl { text: text.to_owned(), target, options })
}

/// Port of a ZooKeeper without TLS. For TLS there is none that is usual.
const PORT: &str = "2181";

fn zookeeper(rest: &str, tls: bool) -> Result<Target, String> {
    let rest = rest.strip_prefix("//").ok_or("zk: and zk+tls: are followed by //host:port")?;
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let hosts =
        hosts.split(',').map(|host| host_and_port(host, (!tls).then_some(PORT))).collect::<Result<Vec<_>, _>>()?;
    let path = path.trim_end_matches('/');
    let namespace = format!("/{}", if path.is_empty() { "rpc" } else { path });
    let parts_are_names = !namespace[1..].split('/').any(|part| matches!(part, "" | "." | ".."));
    if !parts_are_names || !namespace.encode_utf16().all(zookeeper_allows) {
        return Err(format!("`{namespace}` is no ZooKeeper path"));
    }
    Ok(Target::ZooKeeper { tls, hosts, namespace })
}

/// What ZooKeeper allows in a path, by its documentation: no control characters, surrogates or private use, nor the last
/// sixteen of the basic plane. Anything else would be refused at every attempt to register.
fn zookeeper_allows(unit: u16) -> bool {
    !matches!(unit, 0..=0x1f | 0x7f..=0x9f | 0xd800..=0xf8ff | 0xfff0..=0xffff)
}

fn host_and_port(text: &str, usual_port: Option<&str>) -> Result<String, String> {
    // `[::1]:2181`, `[::1]`, `host:2181` and `host`: a colon after the last bracket is the port's.
    let tail = text.rfind(']').map_or(0, |at| at + 1);
    let (host, port) = match text[tail..].rfind(':') {
        Some(colon) => (&text[..tail + colon], Some(&text[tail + colon + 1..])),
        None => (text, usual_port),
    };
    if host.is_empty() {
        return Err("a host is missing".into());
    }
    if host.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(format!("`{host}` is no host"));
    }
    let port = port.ok_or_else(|| format!("`{host}` needs a port, the `secureClientPort` of the server"))?;
    let port: NonZeroU16 = port.parse().map_err(|_| format!("`{port}` is no port"))?;
    Ok(format!("{host}:{port}"))
}

fn addresses(rest: &str) -> Result<Vec<SocketAddr>, String> {
    let one = |text: &str| match text.parse::<SocketAddr>() {
        Ok(addr) if addr.port() == 0 => Err(format!("`{text}`: nobody can be reached at port 0")),
        Ok(addr) => Ok(addr),
        Err(_) => Err(no_address(text)),
    };
    let addrs: Vec<SocketAddr> = rest.split(',').filter(|a| !a.is_empty()).map(one).collect::<Result<_, _>>()?;
    if addrs.is_empty() {
        return Err("static: needs the addresses of nodes, as in static:10.0.0.7:8898,10.0.0.8:8898".into());
    }
    Ok(addrs)
}

/// Why `text` is no address of a node.
fn no_address(text: &str) -> String {
    let named = text.rsplit_once(':').filter(|(host, port)| !host.contains(':') && port.parse::<u16>().is_ok());
    match named {
        Some((host, port)) => {
            format!(
                "`{text}` is no ip:port: host names are not resolved here; write the IP address of {host}, as in 10.0.0.7:{port}"
            )
        }
        None => format!("`{text}` is no ip:port (IPv6 as in [::1]:8898)"),
    }
}

impl RegistryUrl {
    /// `local:` with this directory.
    pub(crate) fn local(dir: &std::path::Path) -> Self {
        let text = format!("local:{}", dir.display());
        Self { text, target: Target::Local(Some(dir.to_owned())), options: BTreeMap::new() }
    }

    /// Takes the option `key` as a duration such as `10s` or `500ms`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the value is no duration.
    pub fn duration_option(&self, key: &str, default: Duration) -> Result<Duration, Error> {
        let Some(value) = self.options.get(key) else { return Ok(default) };
        parse_duration(value)
            .map_err(|reason| ErrorKind::Config(format!("registry URL `{self}`: option `{key}`: {reason}")).into())
    }

    /// Refuses options other than `known`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] naming the first unknown one.
    pub fn only_options(&self, known: &[&str]) -> Result<(), Error> {
        match self.options.keys().find(|k| !known.contains(&k.as_str())) {
            None => Ok(()),
            Some(key) => Err(ErrorKind::Config(format!(
                "registry URL `{self}`: unknown option `{key}`; known are: {}",
                if known.is_empty() { "none".to_owned() } else { known.join(", ") }
            ))
            .into()),
        }
    }
}

/// The registry URL in the variable `RPC_REGISTRY`, `local:` without it: for programs that are
/// configured as our commands are. Nothing else here reads the environment.
pub fn url_from_environment() -> String {
    let url = std::env::var("RPC_REGISTRY").ok().filter(|url| !url.is_empty());
    url.unwrap_or_else(|| "local:".to_owned())
}

/// Reads `250us`, `500ms`, `10s` or `2m`.
///
/// # Errors
/// Says which forms are understood.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let unit = match &text[digits..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return Err(format!("`{text}` is no duration; write 250us, 500ms, 10s or 2m")),
    };
    let number: f64 = text[..digits].parse().map_err(|_| format!("`{text}` does not begin with a number"))?;
    Duration::try_from_secs_f64(number * unit).map_err(|_| format!("`{text}` is out of range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        text.parse::<RegistryUrl>().unwrap().target
    }

    #[test]
    fn each_form_is_read() {
        assert_eq!(target("local:"), Target::Local(None));
        assert_eq!(target("local:/tmp/x"), Target::Local(Some("/tmp/x".into())));
        assert_eq!(target("mem:a"), Target::Memory("a".into()));
        assert_eq!(
            target("static:[::1]:1,127.0.0.1:2"),
            Target::Static(vec!["[::1]:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()])
        );
        let zk = |hosts: &[&str], namespace: &str| Target::ZooKeeper {
            tls: false,
            hosts: hosts.iter().map(|h| (*h).to_owned()).collect(),
            namespace: namespace.into(),
        };
        assert_eq!(target("zk://h"), zk(&["h:2181"], "/rpc"));
        assert_eq!(
            target("zk://a:1,[::1]:2,[::2]/shop/orders/"),
            zk(&["a:1", "[::1]:2", "[::2]:2181"], "/shop/orders")
        );
        let hosts = vec!["a:1".into(), "[::1]:2".into()];
        assert_eq!(target("zk+tls://a:1,[::1]:2"), Target::ZooKeeper { tls: true, hosts, namespace: "/rpc".into() });
        let url: RegistryUrl = "zk://h/ns?session=10s&connect=500ms".parse().unwrap();
        assert_eq!(url.duration_option("session", Duration::ZERO).unwrap(), Duration::from_secs(10));
        assert_eq!(url.duration_option("connect", Duration::ZERO).unwrap(), Duration::from_millis(500));
        assert!(url.only_options(&["session"]).unwrap_err().to_string().contains("`connect`"));
    }

    #[test]
    fn a_password_in_a_url_is_refused_and_not_repeated() {
        for text in [
            "zk://me:horse@h/rpc",
            "zk+tls://me:horse@h:1/rpc",
            "zk://h/rpc?auth=me:horse",
            "zk://h?session=1s&password=horse",
        ] {
            let error = text.parse::<RegistryUrl>().unwrap_err().to_string();
            assert!(error.contains("RPC_ZK_AUTH") && !error.contains("horse"), "{error}");
        }
    }

    #[test]
    fn what_is_no_url_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "no scheme"),
            ("zk", "no scheme"),
            ("http://x", "unknown scheme `http`"),
            ("zk:h", "//host:port"),
            ("zk://", "host is missing"),
            ("zk://h:x/n", "`x` is no port"),
            ("zk+tls:h", "//host:port"),
            ("zk+tls://", "host is missing"),
            ("zk+tls://a:1,b", "`b` needs a port, the `secureClientPort`"),
            ("zk://h, g", "` g` is no host"),
            ("zk://h\n", "is no host"),
            ("zk://h/a//b", "no ZooKeeper path"),
            ("zk://h/a\0", "no ZooKeeper path"),
            ("zk://h/\u{1f600}", "no ZooKeeper path"),
            ("static:localhost:1", "host names are not resolved"),
            ("static:", "needs the addresses"),
            ("static:127.0.0.1:1,127.0.0.1:0", "`127.0.0.1:0`: nobody can be reached at port 0"),
            ("zk://h:0/n", "`0` is no port"),
            ("none", "its clients take static:ip:port"),
            ("mem:", "needs a name"),
            ("local:?a", "no value"),
        ] {
            let error = text.parse::<RegistryUrl>().unwrap_err();
            assert!(error.to_string().contains(reason), "{text}: {error}");
        }
    }
}
