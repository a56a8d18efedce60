//! Registry URLs.

use std::time::Duration;

use rpc_core::registry::{RegistryUrl, Target, parse_duration};

/// A URL that is accepted is shown as it was given, means the same when it is spelled out, and names what ZooKeeper
/// accepts. A refused one says why.
pub fn url(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let url: RegistryUrl = match text.parse() {
        Ok(url) => url,
        Err(error) => return assert!(error.to_string().contains("registry URL")),
    };
    assert_eq!(url.to_string(), text);
    let spelled = spelled_out(&url);
    let again: RegistryUrl = spelled.parse().unwrap_or_else(|error| panic!("{spelled}: {error}"));
    assert_eq!((&again.target, &again.options), (&url.target, &url.options), "{spelled}");
    if let Target::ZooKeeper { hosts, namespace, .. } = &url.target {
        assert!(!hosts.is_empty());
        assert!(is_zookeeper_path(namespace), "{namespace:?}");
        assert!(!hosts.iter().any(|host| host.contains(|c: char| c.is_whitespace() || c.is_control())), "{hosts:?}");
    }
    for (key, value) in &url.options {
        let read = url.duration_option(key, Duration::ZERO);
        assert_eq!(read.as_ref().ok(), parse_duration(value).as_ref().ok());
        if let Some(exact) = whole_duration(value) {
            assert_eq!(read.ok(), Some(exact), "{value}");
        }
    }
    let known: Vec<&str> = url.options.keys().map(String::as_str).collect();
    assert!(url.only_options(&known).is_ok());
    assert_eq!(url.only_options(&[]).is_ok(), known.is_empty());
}

fn spelled_out(url: &RegistryUrl) -> String {
    let target = match &url.target {
        Target::Local(None) => "local:".to_owned(),
        Target::Local(Some(dir)) => format!("local:{}", dir.display()),
        Target::ZooKeeper { tls, hosts, namespace } => {
            format!("zk{}://{}{namespace}", if *tls { "+tls" } else { "" }, hosts.join(","))
        }
        Target::Static(addrs) => {
            format!("static:{}", addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
        }
        Target::Memory(name) => format!("mem:{name}"),
    };
    let options: Vec<String> = url.options.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if options.is_empty() { target } else { format!("{target}?{}", options.join("&")) }
}

/// The rules of ZooKeeper's `PathUtils.validatePath`.
fn is_zookeeper_path(path: &str) -> bool {
    let allowed = |unit: u16| !matches!(unit, 0..=0x1f | 0x7f..=0x9f | 0xd800..=0xf8ff | 0xfff0..=0xffff);
    let mut parts = path.strip_prefix('/').into_iter().flat_map(|rest| rest.split('/')).peekable();
    parts.peek().is_some() && parts.all(|p| !matches!(p, "" | "." | "..")) && path.encode_utf16().all(allowed)
}

/// A whole number, up to six digits, of one of the units.
fn whole_duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).filter(|digits| (1..=6).contains(digits))?;
    let n: u64 = text[..digits].parse().ok()?;
    match &text[digits..] {
        "us" => Some(Duration::from_micros(n)),
        "ms" => Some(Duration::from_millis(n)),
        "s" => Some(Duration::from_secs(n)),
        "m" => Some(Duration::from_secs(60 * n)),
        _ => None,
    }
}
