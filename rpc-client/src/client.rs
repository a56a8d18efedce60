//! The client: where registry, pool and calls come together.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use rpc_core::protocol::check_message_limit;
use rpc_core::registry::{Health, Members, Registry};
use rpc_core::{Deadline, Error, RegistryState, registry};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::balance::{self, Policy};
use crate::decisions::{DecisionRecord, Decisions};
use crate::expire::ExpiryJob;
use crate::pool::Pool;
use crate::report::Reporter;
use crate::retry_budget::SharedBudget;
use crate::snapshot::{ClientUsage, NodeStatus};
use crate::{CallOptions, ClientConfig, Reply};

/// Calls the servers of one registry. A handle: clones are cheap and share everything. When the
/// last one is dropped, all connections close.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) config: ClientConfig,
    pub(crate) pool: Pool,
    pub(crate) budget: SharedBudget,
    pub(crate) decisions: Decisions,
    pub(crate) registry: Arc<dyn Registry>,
    reporter: Option<Arc<Reporter>>,
    _expiry: Option<ExpiryJob>,
    members: watch::Receiver<Arc<Members>>,
    pub(crate) health: watch::Receiver<Health>,
}

/// Composes a [`Client`].
#[derive(Default)]
#[must_use = "a builder does nothing before `connect`"]
pub struct ClientBuilder {
    config: ClientConfig,
    policy: Option<Box<dyn Policy>>,
}

impl ClientBuilder {
    /// Limits and times.
    pub fn config(mut self, config: ClientConfig) -> Self {
        self.config = config;
        self
    }

    /// Calls wait, within their time, for a first node; see [`ClientConfig::wait_for_node`].
    pub fn wait_for_node(mut self) -> Self {
        self.config.wait_for_node = true;
        self
    }

    /// The balancing policy, `fastest` by default. [`balance::policy`] finds the built-in ones by
    /// name.
    pub fn policy(mut self, policy: Box<dyn Policy>) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Opens the registry and begins to follow it. Returns as soon as the URL is found to be
    /// valid; calls wait, within their time, for the first list.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Config`] if it is no registry URL, or has options that do not exist, or
    /// [`ClientConfig::message_bytes_max`] is out of its bounds.
    pub async fn connect(self, url: &str) -> Result<Client, Error> {
        check_message_limit(self.config.message_bytes_max)?;
        let registry = registry::open(&url.parse()?)?;
        self.connect_to(registry)
    }

    /// The same with a registry that is open already.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Config`] if [`ClientConfig::message_bytes_max`] is out of its bounds.
    pub fn connect_to(self, registry: Arc<dyn Registry>) -> Result<Client, Error> {
        check_message_limit(self.config.message_bytes_max)?;
        let policy = self
            .policy
            .unwrap_or_else(|| balance::policy(balance::POLICY_DEFAULT).expect("the default policy is in the table"));
        // Seeded by the standard library's own randomness: clients must not choose in step.
        let seed = RandomState::new().hash_one(std::process::id());
        let config = self.config;
        let reporter = config.write_back.then(|| Arc::new(Reporter::spawn(&registry, config.write_interval, seed)));
        let schedule = config.expiry.as_ref().filter(|_| config.write_back);
        let expiry = schedule.and_then(|schedule| ExpiryJob::spawn(&registry, schedule));
        let pool = Pool::new(&registry, policy, config.clone(), reporter.clone(), seed);
        let members = registry.members();
        let health = registry.health();
        let budget = SharedBudget::new(Instant::now());
        let decisions = Decisions::default();
        let inner = Inner { config, pool, budget, decisions, reporter, registry, members, health, _expiry: expiry };
        Ok(Client { inner: Arc::new(inner) })
    }
}

impl Client {
    /// A client with default options; see [`ClientBuilder::connect`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Config`] if it is no registry URL.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// Starts composing a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Calls `method` and waits for its result. `params` must serialise to a JSON array, an
    /// object, or `null` for none. A tuple is an array, so that one value is a tuple of one:
    ///
    /// ```no_run
    /// # async fn run(client: rpc_client::Client) -> Result<(), rpc_client::Error> {
    /// let price: f64 = client.call("price", &("tea",)).await?;
    /// // `&"tea"` would be a string, which JSON-RPC does not allow as params, and fails at run time.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`crate::ErrorKind`].
    ///
    /// # Cancellation
    /// Dropping the future takes the call back: the handler is dropped at its next await.
    pub async fn call<P, R>(&self, method: &str, params: &P) -> Result<R, Error>
    where
        P: Serialize + ?Sized,
        R: DeserializeOwned,
    {
        self.inner.call(method, params, CallOptions::NONE).await?.into_result(&self.inner)
    }

    /// [`Client::call`] with options.
    ///
    /// # Errors
    /// See [`crate::ErrorKind`].
    pub async fn call_with<P, R>(&self, method: &str, params: &P, options: &CallOptions) -> Result<R, Error>
    where
        P: Serialize + ?Sized,
        R: DeserializeOwned,
    {
        self.inner.call(method, params, options).await?.into_result(&self.inner)
    }

    /// [`Client::call`] whose result comes with who gave it, how long it took and what was tried.
    ///
    /// # Errors
    /// See [`crate::ErrorKind`].
    pub async fn call_detailed<P>(&self, method: &str, params: &P, options: &CallOptions) -> Result<Reply, Error>
    where
        P: Serialize + ?Sized,
    {
        self.inner.call(method, params, options).await?.into_reply(&self.inner)
    }

    /// Sends a notification: a call that is not answered. Returns when it is on its way; whether
    /// it arrives, and what comes of it, is not told.
    ///
    /// # Errors
    /// When there is no node to send it to in time, or it cannot be written.
    pub async fn notify<P: Serialize + ?Sized>(&self, method: &str, params: &P) -> Result<(), Error> {
        self.inner.notify(method, params).await
    }

    /// The nodes that the registry lists, and where this client stands with each.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        let now = Instant::now();
        self.inner.pool.snapshot().all.iter().map(|listed| listed.status(now)).collect()
    }

    /// Entries of the registry whose name is no address, and which are therefore no nodes.
    pub fn misnamed(&self) -> Vec<String> {
        self.inner.members.borrow().misnamed.clone()
    }

    /// Told whenever [`Client::nodes`] may have changed. The number only counts.
    pub fn nodes_changed(&self) -> watch::Receiver<u64> {
        self.inner.pool.published()
    }

    /// The registry and how fresh its list is.
    pub fn registry_state(&self) -> RegistryState {
        self.inner.registry_state()
    }

    /// What this client and its clones hold at the moment: for metrics, and to find leaks.
    pub fn usage(&self) -> ClientUsage {
        self.inner.pool.snapshot().usage()
    }

    /// The last 256 decisions about where to send calls that were recorded, the oldest first: of
    /// calls that asked for it ([`CallOptions::explain`]), that were repeated, refused or failed, and
    /// of one in 64 others.
    pub fn decisions(&self) -> Vec<Arc<DecisionRecord>> {
        self.inner.decisions.all()
    }

    /// Waits until the list was read and every node in it is connected or has failed once, or
    /// `timeout` is over. `true` if so.
    pub async fn ready(&self, timeout: Duration) -> bool {
        let mut published = self.inner.pool.published();
        let settled = async {
            loop {
                let snapshot = self.inner.pool.snapshot();
                if snapshot.known && snapshot.all.iter().all(|l| l.is_settled()) {
                    return;
                }
                if published.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(timeout, settled).await.is_ok()
    }

    /// Delivers what is still to be written back to the registry, within `timeout`, and ends all
    /// background work. Calls made afterwards fail.
    pub async fn close(self, timeout: Duration) {
        let deadline = Deadline::after(Instant::now(), timeout);
        if let Some(reporter) = &self.inner.reporter {
            reporter.flush(deadline).await;
        }
        self.inner.pool.close().await;
        self.inner.registry.close(deadline.remaining(Instant::now())).await;
    }
}

impl Inner {
    pub(crate) fn registry_state(&self) -> RegistryState {
        let now = Instant::now();
        let snapshot = self.pool.snapshot();
        let age = self.list_age(now);
        let health = self.health.borrow();
        RegistryState {
            url: self.registry.url().to_string(),
            list_age_ms: age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
            listed: snapshot.all.len(),
            usable: snapshot.usable.len(),
            trouble: health.trouble().map(str::to_owned),
            refused: health.is_refusal(),
        }
    }

    /// How long ago the registry confirmed its list; none before the first one.
    pub(crate) fn list_age(&self, now: Instant) -> Option<Duration> {
        self.members.borrow().as_of.map(|at| now.saturating_duration_since(at))
    }

    /// An error with all that is known about why.
    pub(crate) fn error(&self, kind: rpc_core::ErrorKind, attempts: Vec<rpc_core::Attempt>) -> Error {
        Error::from(kind).with_attempts(attempts).with_registry(self.registry_state())
    }
}
