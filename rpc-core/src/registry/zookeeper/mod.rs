//! `zk://host:port,host:port/namespace`, or `zk+tls://` and the same: a ZooKeeper ensemble.
//!
//! Nodes are ephemeral znodes named `ip:port` directly under the namespace; what the clients need
//! to agree lies beside it, under `<namespace>.cluster`.
//!
//! The crate `zookeeper_client`, which only this folder names, leaves to us: new sessions after
//! expiry, deadlines, limits on what is sent, and the conclusion to draw from an unknown outcome.
//! Its persistent watches are silently lost at a reconnect, and a one-shot watch on the same path
//! kills them; so only one-shot watches are used here.
//!
//! - `session`: one task owns the session and rebuilds it. `diagnosis` finds out why it cannot.
//! - `secure`: what TLS needs.
//! - `registration`: one task per registered node keeps it there.
//! - `members`: one task keeps the list, with `table` as its state.
//! - `coordination`: one task per job takes part in the election.

mod coordination;
mod diagnosis;
mod failure;
mod members;
mod registration;
#[cfg(feature = "zookeeper-tls")]
mod secure;
mod session;
mod table;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use zookeeper_client::{Acl, Acls, CreateMode, CreateOptions, Permission};

use self::coordination::Elections;
use self::failure::Failure;
use self::members::{Follower, ReadRequest};
#[cfg(feature = "zookeeper-tls")]
use self::secure::Secure;
use self::session::{Keeper, Link, Session};
use super::{
    Capabilities, Coordination, Health, Member, Members, Registration, Registry, RegistryUrl, Target, UpdateError,
    Version,
};
use crate::secret::Secret;
use crate::{BoxFuture, Error, ErrorKind, NodeRecord};

/// How long a session outlives its client. The servers allow 2 to 20 of their ticks, 4 s to 40 s
/// by default; below twice the time of an election with a hung leader, every one of these would
/// expire all sessions.
const SESSION_DEFAULT: Duration = Duration::from_secs(10);

/// Silence after which the next server is tried. Measured with a hung leader: writes work again
/// after 3.1 s, against 4-8 s with the crate's own choice (two fifths of the session timeout).
const CONNECT_DEFAULT: Duration = Duration::from_secs(1);

/// Limit for one operation. They take about a millisecond; an election takes half a second.
const OPERATION_DEFAULT: Duration = Duration::from_secs(2);

/// Longest payload written. The servers cut the connection at 1 MiB without saying why.
const PAYLOAD_BYTES_MAX: usize = 64 * 1024;

/// Reads that may wait for the task that keeps the list.
const READS_QUEUED_MAX: usize = 64;

/// The variable that holds `user:password` for the ensemble.
const AUTH: &str = "RPC_ZK_AUTH";

/// Options of a URL, and those that only TLS has.
const OPTIONS: &[&str] = &["session", "connect", "op", "allow_loopback", "auth_file"];
const TLS_OPTIONS: &[&str] = &["ca_file", "cert_file", "key_file"];

/// With credentials: whoever has the same may do everything, and others may look.
static OWNED: [Acl; 2] =
    [Acl::new_const(Permission::ALL, "auth", ""), Acl::new_const(Permission::READ, "world", "anyone")];

/// A ZooKeeper ensemble as a registry.
pub(super) struct ZooKeeperRegistry {
    url: RegistryUrl,
    shared: Arc<Shared>,
    members: watch::Receiver<Arc<Members>>,
    health: watch::Receiver<Health>,
    reads: mpsc::Sender<ReadRequest>,
    elections: Arc<Elections>,
}

/// What the URL says.
#[derive(Debug)]
struct Options {
    /// `host:port,host:port`.
    servers: String,
    hosts: usize,
    /// Before each of them, for the crate.
    scheme: &'static str,
    #[cfg(feature = "zookeeper-tls")]
    tls: Option<Secure>,
    namespace: String,
    session: Duration,
    connect: Duration,
    op: Duration,
    loopback: bool,
    /// `user:password`.
    auth: Option<Secret>,
}

/// What the tasks share.
#[derive(Debug)]
struct Shared {
    options: Arc<Options>,
    link: watch::Receiver<Link>,
    /// All tasks but the session's.
    tasks: TaskTracker,
    closing: CancellationToken,
    close_by: OnceLock<Instant>,
    ended: CancellationToken,
}

impl ZooKeeperRegistry {
    /// Begins to connect and returns at once; [`Registry::health`] tells how far it is.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for another kind of URL, or options that are unknown or malformed.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(super) fn open(url: &RegistryUrl) -> Result<Self, Error> {
        let options = Arc::new(Options::read(url)?);
        let (link_tx, link) = watch::channel(Link::Down { trouble: None });
        let shared = Arc::new(Shared {
            options: options.clone(),
            link,
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
            close_by: OnceLock::new(),
            ended: CancellationToken::new(),
        });
        let (reads, read_rx) = mpsc::channel(READS_QUEUED_MAX);
        let (follower, members, health) = Follower::new(shared.clone(), read_rx);
        shared.tasks.spawn(follower.run());
        tokio::spawn(Keeper::new(options, shared.clone(), link_tx).run());
        let elections = Arc::new(Elections::new(shared.clone()));
        Ok(Self { url: url.clone(), shared, members, health, reads, elections })
    }
}

impl Registry for ZooKeeperRegistry {
    fn url(&self) -> &RegistryUrl {
        &self.url
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { register: true, write_back: true, coordination: true }
    }

    fn register(&self, addr: SocketAddr, record: NodeRecord) -> Registration {
        if self.shared.closing.is_cancelled() {
            return Registration::refused("the registry is closed".into());
        }
        match self.shared.options.refusal(addr, &record) {
            Some(reason) => Registration::refused(reason),
            None => registration::spawn(&self.shared, addr, record),
        }
    }

    fn members(&self) -> watch::Receiver<Arc<Members>> {
        self.members.clone()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    fn read(&self, addr: SocketAddr) -> BoxFuture<'_, Result<Option<Member>, UpdateError>> {
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            let asked = async {
                self.reads.send(ReadRequest { addr, answer }).await.ok()?;
                answered.await.ok()
            };
            match timeout(self.shared.options.op, asked).await {
                Ok(Some(outcome)) => outcome,
                Ok(None) => Err(UpdateError::Unknown("the registry is closed".into())),
                Err(_) => Err(UpdateError::Unknown("it could not be read in time".into())),
            }
        })
    }

    fn update(&self, addr: SocketAddr, version: Version, record: NodeRecord) -> BoxFuture<'_, Result<(), UpdateError>> {
        Box::pin(async move {
            let session = self.shared.session()?;
            let set = async |path: String, data: Vec<u8>, version| {
                session.bounded(session.client.set_data(&path, &data, Some(version))).await
            };
            self.shared.update(&session, addr, version, &record, set).await
        })
    }

    fn coordination(&self) -> Option<Arc<dyn Coordination>> {
        Some(self.elections.clone())
    }

    fn close(&self, timeout: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.shared.close(Instant::now() + timeout);
            let _ = tokio::time::timeout(timeout, self.shared.ended.cancelled()).await;
        })
    }
}

impl Drop for ZooKeeperRegistry {
    fn drop(&mut self) {
        self.shared.close(Instant::now() + self.shared.options.op);
    }
}

impl Shared {
    fn close(&self, by: Instant) {
        let _ = self.close_by.set(by);
        self.tasks.close();
        self.closing.cancel();
    }

    fn close_by(&self) -> Instant {
        *self.close_by.get_or_init(|| Instant::now() + self.options.op)
    }

    /// The session, if it is connected now.
    fn session(&self) -> Result<Session, UpdateError> {
        match &*self.link.borrow() {
            Link::Up(session) => Ok(session.clone()),
            other => Err(other.unknown()),
        }
    }

    /// Replaces a record with `set`, a compare-and-set on the znode's version.
    ///
    /// ZooKeeper counts versions from 0 again when a znode is created anew, so the version alone
    /// would let a late writer overwrite a new incarnation. Therefore the znode is looked at first.
    async fn update<F>(
        &self,
        session: &Session,
        addr: SocketAddr,
        version: Version,
        record: &NodeRecord,
        set: impl FnOnce(String, Vec<u8>, i32) -> F,
    ) -> Result<(), UpdateError>
    where
        F: Future<Output = Result<zookeeper_client::Stat, Failure>>,
    {
        let data = record.to_json();
        if let Some(reason) = too_long(data.len()) {
            return Err(UpdateError::Refused(reason));
        }
        let path = self.options.node(addr);
        let stat = session.bounded(session.client.check_stat(&path)).await?.ok_or(UpdateError::Changed)?;
        if table::version(&stat) != version {
            return Err(UpdateError::Changed);
        }
        let written = set(path, data, stat.version).await?;
        if written.czxid != stat.czxid {
            // It was created anew between the two requests. Its owner sees the foreign record and
            // puts its own back.
            return Err(UpdateError::Changed);
        }
        Ok(())
    }
}

impl Options {
    fn read(url: &RegistryUrl) -> Result<Self, Error> {
        let Target::ZooKeeper { tls, hosts, namespace } = &url.target else {
            return Err(ErrorKind::Config(format!("`{url}` is no zk:// URL")).into());
        };
        let bad = |what: String| Error::from(ErrorKind::Config(format!("registry URL `{url}`: {what}")));
        if let Some(option) = TLS_OPTIONS.iter().find(|option| !tls && url.options.contains_key(**option)) {
            return Err(bad(format!("option `{option}` is for TLS, with which the URL begins zk+tls://")));
        }
        url.only_options(&[OPTIONS, if *tls { TLS_OPTIONS } else { &[] }].concat())?;
        let duration = |key: &str, default| match url.duration_option(key, default)? {
            Duration::ZERO => Err(bad(format!("option `{key}` must be longer than 0"))),
            duration => Ok(duration),
        };
        let allowed = match url.options.get("allow_loopback").map(String::as_str) {
            None | Some("false") => false,
            Some("true") => true,
            Some(other) => return Err(bad(format!("option `allow_loopback`: `{other}` is neither true nor false"))),
        };
        Ok(Self {
            servers: hosts.join(","),
            hosts: hosts.len(),
            scheme: if *tls { "tcp+tls://" } else { "tcp://" },
            #[cfg(feature = "zookeeper-tls")]
            tls: if *tls { Some(Secure::read(url, hosts)?) } else { None },
            namespace: namespace.clone(),
            session: duration("session", SESSION_DEFAULT)?,
            connect: duration("connect", CONNECT_DEFAULT)?,
            op: duration("op", OPERATION_DEFAULT)?,
            auth: credentials(url).map_err(bad)?,
            loopback: allowed || hosts.iter().all(|host| is_loopback(host)),
        })
    }

    /// What the crate connects to.
    fn connect_string(&self) -> String {
        let servers: Vec<_> = self.servers.split(',').map(|server| format!("{}{server}", self.scheme)).collect();
        servers.join(",")
    }

    /// How long one attempt to connect may take: every server once, and some patience. The crate
    /// would go on for a whole session timeout, with ever longer pauses.
    fn attempt(&self) -> Duration {
        let rounds = u32::try_from(self.hosts + 1).unwrap_or(u32::MAX);
        self.connect.saturating_mul(rounds).max(self.connect + Duration::from_secs(1))
    }

    /// How znodes are created. The right to delete one is that of its directory, so both have the same.
    fn create(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(self.acls())
    }

    fn acls(&self) -> Acls<'static> {
        match self.auth {
            Some(_) => Acls::new(&OWNED),
            None => Acls::anyone_all(),
        }
    }

    fn node(&self, addr: SocketAddr) -> String {
        format!("{}/{addr}", self.namespace)
    }

    fn job(&self, job: &str) -> String {
        format!("{}.cluster/jobs/{job}", self.namespace)
    }

    /// Why a node can never be registered under this address, if so.
    fn refusal(&self, addr: SocketAddr, record: &NodeRecord) -> Option<String> {
        if addr.ip().is_unspecified() || addr.port() == 0 {
            return Some(format!("nobody can connect to {addr}: announce the address and port that clients reach"));
        }
        if addr.ip().is_loopback() && !self.loopback {
            return Some(format!(
                "{addr} is reached from this machine only, but the ZooKeeper at {} serves other machines too: \
                 announce an address that they reach, or add `allow_loopback=true` to the URL",
                self.servers
            ));
        }
        too_long(record.to_json().len())
    }
}

/// `user:password` from the file that the URL names, or from the environment.
fn credentials(url: &RegistryUrl) -> Result<Option<Secret>, String> {
    let (secret, place) = match url.options.get("auth_file") {
        Some(path) => (Secret::read(path.as_ref())?, path.as_str()),
        None => match std::env::var(AUTH) {
            Ok(text) if !text.is_empty() => (Secret::new(text), AUTH),
            _ => return Ok(None),
        },
    };
    match secret.expose().split_once(':') {
        Some((user, password)) if !user.is_empty() && !password.is_empty() => Ok(Some(secret)),
        _ => Err(format!("{place} does not hold user:password")),
    }
}

fn too_long(length: usize) -> Option<String> {
    (length > PAYLOAD_BYTES_MAX)
        .then(|| format!("the record has {length} bytes, the limit is {PAYLOAD_BYTES_MAX}: shorten `meta`"))
}

/// The name or address in `host:port`, without the brackets of IPv6.
fn host(server: &str) -> &str {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn is_loopback(server: &str) -> bool {
    let host = host(server);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> Result<Options, Error> {
        Options::read(&url.parse().unwrap())
    }

    #[test]
    fn addresses_that_nobody_can_reach_are_refused_with_the_way_out() {
        let refusal = |url: &str, addr: &str| options(url).unwrap().refusal(addr.parse().unwrap(), &NodeRecord::new());
        for addr in ["0.0.0.0:1", "[::]:1", "127.0.0.1:0"] {
            assert!(refusal("zk://localhost", addr).unwrap().contains("nobody can connect"), "{addr}");
        }
        for addr in ["127.0.0.1:1", "[::1]:1"] {
            assert!(refusal("zk://10.0.0.1", addr).unwrap().contains("`allow_loopback=true`"), "{addr}");
            assert!(refusal("zk://localhost,10.0.0.1", addr).is_some(), "{addr}");
            for url in ["zk://localhost,127.0.0.1:1", "zk://[::1]:2181", "zk://10.0.0.1?allow_loopback=true"] {
                assert_eq!(refusal(url, addr), None, "{url} {addr}");
            }
        }
        assert_eq!(refusal("zk://10.0.0.1", "10.0.0.2:1"), None);
    }

    #[test]
    fn options_that_cannot_work_are_refused() {
        for (url, reason) in [
            ("zk://h?session=0s", "longer than 0"),
            ("zk://h?op=fast", "no duration"),
            ("zk://h?allow_loopback=yes", "neither true nor false"),
            ("zk://h?retries=3", "unknown option `retries`"),
            ("zk://h?ca_file=/ca.pem", "`ca_file` is for TLS"),
            ("mem:x", "no zk:// URL"),
        ] {
            let error = options(url).unwrap_err().to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }

    #[test]
    fn a_long_record_is_refused_before_the_servers_cut_the_connection() {
        let mut record = NodeRecord::new();
        record.meta.insert("x".into(), "y".repeat(PAYLOAD_BYTES_MAX).into());
        let refusal = options("zk://localhost").unwrap().refusal("127.0.0.1:1".parse().unwrap(), &record);
        assert!(refusal.unwrap().contains("the limit is 65536"));
    }
}
