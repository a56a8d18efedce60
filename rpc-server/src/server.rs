//! Binding, accepting, draining.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rpc_core::load::{CONCURRENCY_PER_PERMIT, method_hash};
use rpc_core::protocol::{self, code};
use rpc_core::registry::{Registration, RegistrationStatus, Registry, RegistryUrl, Target};
use rpc_core::reloaded::LOOK_EVERY;
use rpc_core::seldom::Seldom;
use rpc_core::wire::{LoadText, Request};
use rpc_core::{Error, ErrorKind, NodeRecord, NodeState, RpcError, net, registry};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::access::{Access, Caller};
use crate::admission::{Admission, ConcurrencyLimit};
use crate::config::ServerConfig;
use crate::connection::Connection;
use crate::context::Call;
use crate::discover;
use crate::ends::Ends;
use crate::handler::{BoxInvocation, Method};
use crate::handler_error::unfit_params;
use crate::links::{Links, signal};
use crate::load::Load;
use crate::router::Router;
use crate::turn_away::TurnedAway;

/// The registry has this long to confirm that the node is draining: clients that connect later
/// learn of it there, all others by `rpc.goaway`.
const ANNOUNCE_DRAIN: Duration = Duration::from_secs(2);

/// While draining, all connections are told again after this time, for those accepted since.
const GOAWAY_AGAIN: Duration = Duration::from_secs(1);

/// Pause after a failed `accept`, such as too many open files: it will not get better at once.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Composes a [`Server`].
#[derive(Default)]
#[must_use = "a builder does nothing before `bind`"]
pub struct ServerBuilder {
    router: Router,
    config: ServerConfig,
    registry: Option<RegistryChoice>,
    advertise: Option<SocketAddr>,
    name: Option<String>,
}

enum RegistryChoice {
    Url(RegistryUrl),
    Open(Arc<dyn Registry>),
}

impl ServerBuilder {
    /// Adds a method from an async function of its params; see [`Method::new`]. A method of the
    /// same name is replaced. The empty name and names that begin with `rpc.`, which belong to the protocol, are
    /// refused by [`ServerBuilder::bind`].
    pub fn method<P, F, Fut, R, E>(self, name: impl Into<String>, function: F) -> Self
    where
        P: serde::de::DeserializeOwned + Send + 'static,
        F: Fn(P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: serde::Serialize + Send + 'static,
        E: Into<RpcError> + Send + 'static,
    {
        self.with(Method::new(name, function))
    }

    /// Adds a method. One of the same name is replaced; for names that are refused see [`ServerBuilder::method`].
    pub fn with(mut self, method: Method) -> Self {
        self.router.add(method);
        self
    }

    /// The registry to register in. Without one the server is found by nobody but those who know
    /// its address.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if it is no registry URL.
    pub fn registry(mut self, url: &str) -> Result<Self, Error> {
        self.registry = Some(RegistryChoice::Url(url.parse()?));
        Ok(self)
    }

    /// The same with a registry that is open already.
    pub fn open_registry(mut self, registry: Arc<dyn Registry>) -> Self {
        self.registry = Some(RegistryChoice::Open(registry));
        self
    }

    /// The address to register, where it differs from the one bound: behind address translation,
    /// or when bound to all interfaces. Port 0 is the port bound.
    pub fn advertise(mut self, addr: SocketAddr) -> Self {
        self.advertise = Some(addr);
        self
    }

    /// A label shown with the node, kept in the record's `meta.name`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Limits and times.
    pub fn config(mut self, config: ServerConfig) -> Self {
        self.config = config;
        self
    }

    /// Listens on `addr` (port 0 picks a free port) and begins to register. Connections wait until
    /// [`Server::serve`] is called, so call it at once.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the address cannot be bound or would be no use to clients, the
    /// registry URL has an option that does not exist, a method has a name by which it could not be
    /// called, or a limit is one that nothing works with.
    pub async fn bind(self, addr: impl tokio::net::ToSocketAddrs) -> Result<Server, Error> {
        if let Some(reason) = self.router.uncallable() {
            return Err(config(reason));
        }
        self.config.check()?;
        let addr = resolve(addr).await?;
        let listener = net::bind(addr).map_err(|e| config(format!("cannot listen on {addr}: {e}")))?;
        let bound = listener.local_addr().map_err(|e| config(format!("cannot listen on {addr}: {e}")))?;
        let registry = match self.registry {
            None => None,
            Some(RegistryChoice::Open(registry)) => Some(registry),
            Some(RegistryChoice::Url(url)) => Some(registry::open(&url)?),
        };
        let advertised = match (self.advertise, &registry) {
            (Some(addr), _) if addr.port() == 0 => SocketAddr::new(addr.ip(), bound.port()),
            (Some(addr), _) => addr,
            (None, Some(registry)) => advertised(bound, registry.url())?,
            (None, None) => bound,
        };
        let permits = self.config.permits.unwrap_or_else(|| match self.config.concurrency {
            ConcurrencyLimit::Fixed(limit) => limit.get(),
            _ => cores(),
        });
        if permits == 0 {
            return Err(config("permits must be at least 1".into()));
        }
        let concurrency = permits as f64 * CONCURRENCY_PER_PERMIT;
        let mut record = NodeRecord::new();
        if let Some(name) = &self.name {
            record.meta.insert("name".into(), name.clone().into());
        }
        let shared = Shared {
            incarnation: record.id.clone(),
            title: self.name.unwrap_or_else(|| "rpc-server".into()),
            router: self.router,
            admission: Admission::new(self.config.concurrency, self.config.queue_max),
            config: self.config,
            draining: AtomicBool::new(false),
            load: Arc::new(Load::new(concurrency)),
            ends: Ends::default(),
        };
        warn_if_open(bound, &shared.config);
        let registration = registry.as_ref().map(|registry| registry.register(advertised, record));
        let links = Arc::new(Links::new(&shared.config));
        Ok(Server { listener, bound, advertised, registry, registration, links, shared: Arc::new(shared) })
    }
}

/// A server that listens and registers.
pub struct Server {
    listener: TcpListener,
    bound: SocketAddr,
    advertised: SocketAddr,
    registry: Option<Arc<dyn Registry>>,
    registration: Option<Registration>,
    links: Arc<Links>,
    pub(crate) shared: Arc<Shared>,
}

/// What a server holds at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerUsage {
    /// Open connections.
    pub connections: usize,
    /// Calls in progress: those whose handlers have begun and not answered, and those that wait for
    /// their turn.
    pub calls: usize,
    /// Connections that were turned away so far, since there were as many as there may be.
    pub connections_refused: u64,
    /// Calls that were refused so far, since there was no room for them to wait.
    pub calls_refused: u64,
}

/// What all connections of a server share.
pub(crate) struct Shared {
    pub(crate) config: ServerConfig,
    pub(crate) incarnation: String,
    title: String,
    router: Router,
    /// None without a limit to the calls that run at once.
    admission: Option<Arc<Admission>>,
    draining: AtomicBool,
    pub(crate) load: Arc<Load>,
    pub(crate) ends: Ends,
}

impl Server {
    /// Starts composing a server.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// The address that the socket is bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.bound
    }

    /// The address that clients are told.
    pub fn advertised_addr(&self) -> SocketAddr {
        self.advertised
    }

    /// The incarnation: a UUID made anew for each server, also in its registry record.
    pub fn incarnation(&self) -> &str {
        &self.shared.incarnation
    }

    /// How far the registration is, now and later; `None` without a registry.
    pub fn registration(&self) -> Option<watch::Receiver<RegistrationStatus>> {
        self.registration.as_ref().map(Registration::status)
    }

    /// Tells, now and while the server serves, what it holds: for metrics, and to find leaks.
    pub fn usage(&self) -> impl Fn() -> ServerUsage + Send + Sync + 'static {
        let (links, load, admission) = (self.links.clone(), self.shared.load.clone(), self.shared.admission.clone());
        move || ServerUsage {
            connections: links.len(),
            calls: load.in_flight() as usize,
            connections_refused: links.refused(),
            calls_refused: admission.as_ref().map_or(0, |admission| admission.refused()),
        }
    }

    /// Serves until `shutdown` is ready, then drains: tells the registry and the clients, answers
    /// what it has, for up to [`ServerConfig::drain_timeout`], deletes its entry and closes.
    ///
    /// # Cancellation
    /// Dropping the future closes all connections at once and withdraws in the background.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) {
        let links = self.links.clone();
        let mut connections = JoinSet::new();
        let mut turned_away = TurnedAway::new(self.shared.config.connections_max);
        let mut failures = Seldom::default();
        let accept = async {
            loop {
                let joined = connections.len();
                tokio::select! {
                    accepted = net::accept(&self.listener) => match accepted {
                        Ok(accepted) => self.shared.take(accepted, &links, &mut connections, &mut turned_away),
                        Err(error) => {
                            if let Some(times) = failures.count(Instant::now()) {
                                tracing::warn!(%error, times, "cannot accept");
                            }
                            tokio::time::sleep(ACCEPT_RETRY).await;
                        }
                    },
                    Some(_) = connections.join_next(), if joined > 0 => {}
                }
            }
        };
        let sweep = links.sweep_for_ever(self.shared.admission.as_deref());
        let run = async { tokio::join!(accept, sweep, self.shared.refresh_for_ever(&links)) };
        tokio::pin!(run, shutdown);
        tokio::select! {
            _ = &mut run => {}
            () = &mut shutdown => {}
        }
        tracing::info!(addr = %self.advertised, "draining");
        let drained = async {
            if let Some(registration) = &self.registration {
                registration.set_state(NodeState::Draining, ANNOUNCE_DRAIN).await;
            }
            self.shared.draining.store(true, Ordering::Relaxed);
            let drained = async {
                loop {
                    links.tell_all(signal::GOAWAY);
                    // Those who connect meanwhile have as long to say something.
                    if tokio::time::timeout(GOAWAY_AGAIN, links.all_closed()).await.is_ok() {
                        return;
                    }
                }
            };
            tokio::time::timeout(self.shared.config.drain_timeout, drained).await.is_ok()
        };
        // Connections are still accepted meanwhile: what arrives is refused in good order.
        let in_time = tokio::select! {
            in_time = drained => in_time,
            _ = &mut run => false,
        };
        let left = links.len();
        if let Some(registration) = self.registration {
            registration.withdraw(ANNOUNCE_DRAIN).await;
        }
        if let Some(registry) = self.registry {
            registry.close(ANNOUNCE_DRAIN).await;
        }
        match in_time {
            true => tracing::info!(addr = %self.advertised, "drained"),
            false => {
                tracing::warn!(addr = %self.advertised, connections = left, "not drained in time; closed what was left")
            }
        }
    }
}

impl Shared {
    /// Serves a connection, or turns it away.
    fn take(
        self: &Arc<Self>,
        (stream, peer): (net::Stream, SocketAddr),
        links: &Arc<Links>,
        connections: &mut JoinSet<()>,
        turned_away: &mut TurnedAway,
    ) {
        if links.len() >= turned_away.max() {
            links.refuse();
            turned_away.log(peer);
            // Without a handshake, which is more work than it is worth, it could not read a word.
            #[cfg(feature = "tls")]
            if self.config.tls.is_some() {
                return;
            }
            return turned_away.add(stream);
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = self.config.tls.clone() {
            connections.spawn(crate::secure::serve(tls, stream, peer, self.clone(), links.add()));
            return;
        }
        connections.spawn(Connection::new(stream, net::is_broken, peer, &[], self.clone(), links.add()));
    }

    /// Starts a call, or says why it is not.
    #[inline]
    pub(crate) fn start(&self, call: &Call<'_>, leaving: bool) -> Result<BoxInvocation, RpcError> {
        call.caller.permit(&call.request.method)?;
        if leaving || self.is_draining() {
            return Err(self.draining());
        }
        let Some(method) = self.router.get(&call.request.method) else {
            return Err(self.router.not_found(&call.request.method));
        };
        if call.request.meta.timeout_ms == Some(0) {
            return Err(RpcError::new(code::DEADLINE_EXCEEDED, "the caller's time was over on arrival"));
        }
        if let Some(bound) = call.request.meta.bound_us
            && self.load.report(method_hash(&call.request.method)).expected_us() > bound as f64
        {
            return Err(RpcError::new(code::REFUSED, "the server is more loaded than the caller wants"));
        }
        match &self.admission {
            None => method.start(call, self.config.message_bytes_max),
            Some(admission) => admission.start(method, call, self.config.message_bytes_max),
        }
    }

    /// Looks at the files of certificates and rules, so that what is wrong with them is told in time
    /// and who is no longer let in has to go.
    async fn refresh_for_ever(&self, links: &Links) {
        let mut rules = self.config.access.as_ref().map(Access::current);
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            #[cfg(feature = "tls")]
            if let Some(tls) = &self.config.tls {
                tls.refresh();
            }
            let Some(access) = &self.config.access else { continue };
            let now = access.current();
            if rules.as_ref().is_none_or(|before| !Arc::ptr_eq(before, &now)) {
                rules = Some(now);
                links.tell_all(signal::RULES);
            }
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn draining(&self) -> RpcError {
        RpcError::new(code::DRAINING, "the server is about to stop")
    }

    /// Answers the protocol's own methods that need nothing of the connection.
    pub(crate) fn reserved(&self, request: &Request<'_>, caller: &Caller) -> Result<serde_json::Value, RpcError> {
        caller.permit(&request.method)?;
        match &*request.method {
            protocol::PING => Ok(serde_json::Value::Null),
            protocol::PROBE => {
                let load = self.probe(request)?;
                Ok(serde_json::from_slice(load.as_bytes()).expect("an array of numbers is JSON"))
            }
            protocol::DISCOVER => {
                let methods = self.router.sorted().filter(|method| caller.permit(&method.name).is_ok());
                Ok(discover::document(&self.title, methods))
            }
            // A connection answers these itself, unless they come in a batch.
            alone @ (protocol::HELLO | protocol::CANCEL) => {
                let message = format!("`{alone}` is a message of its own, not part of a batch");
                Err(RpcError::new(code::METHOD_NOT_FOUND, message))
            }
            other => Err(RpcError::new(code::METHOD_NOT_FOUND, format!("no method `{other}`"))),
        }
    }

    /// The load, and how long the method takes whose hash is the param.
    pub(crate) fn probe(&self, request: &Request<'_>) -> Result<LoadText, RpcError> {
        let (method,) = match request.params {
            None => (0,),
            Some(params) => {
                serde_json::from_slice(params).map_err(|e| unfit_params(format!("{}: {e}", protocol::PROBE), "."))?
            }
        };
        Ok(LoadText::new(&self.load.report(method)))
    }

    pub(crate) fn idempotent(&self) -> Vec<&str> {
        self.router.sorted().filter(|m| m.idempotent).map(|m| m.name.as_str()).collect()
    }
}

/// Says loudly what a server that others can reach lets them do.
fn warn_if_open(bound: SocketAddr, config: &ServerConfig) {
    if bound.ip().is_loopback() {
        return;
    }
    #[cfg(feature = "tls")]
    let (encrypted, mutual) = (config.tls.is_some(), config.tls.as_ref().is_some_and(|tls| tls.is_mutual()));
    #[cfg(not(feature = "tls"))]
    let (encrypted, mutual) = (false, false);
    if config.access.is_none() && !mutual {
        tracing::warn!(addr = %bound, "ANYBODY who can reach this address may call every method: set a token, or TLS with a client CA");
    }
    if !encrypted {
        tracing::warn!(addr = %bound, "NOT ENCRYPTED: whoever is on the network between can read and change calls: set a TLS certificate");
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

async fn resolve(addr: impl tokio::net::ToSocketAddrs) -> Result<SocketAddr, Error> {
    let mut addrs = tokio::net::lookup_host(addr).await.map_err(|e| config(format!("no such address: {e}")))?;
    addrs.next().ok_or_else(|| config("the name has no address".into()))
}

/// The address to register for a socket bound to `bound`.
fn advertised(bound: SocketAddr, registry: &RegistryUrl) -> Result<SocketAddr, Error> {
    if !bound.ip().is_unspecified() {
        return Ok(bound);
    }
    let loopback: IpAddr = if bound.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    match registry.target {
        Target::Local(_) | Target::Memory(_) => Ok(SocketAddr::new(loopback, bound.port())),
        Target::ZooKeeper { .. } | Target::Static(_) => Err(config(format!(
            "{bound} is bound to every interface, so clients need to be told one address: advertise IP:PORT"
        ))),
    }
}

fn config(reason: String) -> Error {
    ErrorKind::Config(reason).into()
}
