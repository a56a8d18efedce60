//! The one task that owns the ZooKeeper session and rebuilds it for ever.
//!
//! A client of the crate dies for good when its session expires, and it declares that by itself
//! 1.4 session timeouts after the last byte from a server. It also retries ever more slowly. So
//! this task makes new clients: at once when the old one is dead, and beside the old one when that
//! has been cut off for [`REPLACE_AFTER`]. Nodes registered by the old session are taken over by
//! the new one (see `registration`), so a change of sessions is not seen from outside.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout, timeout_at};
use tracing::{error, info, warn};
use zookeeper_client as zk;
use zookeeper_client::{Client, SessionState};

use super::failure::Failure;
use super::{Options, Shared, diagnosis};
use crate::backoff;
use crate::registry::{Trouble, UpdateError};

/// First pause between attempts to connect.
const RETRY_FIRST: Duration = Duration::from_millis(100);

/// Longest pause between attempts to connect: recovery is noticed within this time, and a thousand
/// clients make no more than a few hundred attempts per second.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Pause after the servers refused the client's credentials. Repeating them helps only once
/// somebody has changed the servers.
const RETRY_AUTH: Duration = Duration::from_secs(30);

/// A client that is cut off for this long gets a rival. The crate itself tries after 0.1, 0.3, 0.7
/// and 1.5 s, then after 3.1, 6.3 s and so on; an election takes about half a second.
const REPLACE_AFTER: Duration = Duration::from_secs(2);

/// How long a new client waits for the old one once the servers are back: the old one keeps its
/// session, its watches and its lease, so it is preferred.
const REPLACE_GRACE: Duration = Duration::from_millis(300);

/// How long the session of a replaced client is kept once it is connected again, so that the nodes
/// it registered are taken over and not deleted with it.
const RETIRE_AFTER: Duration = Duration::from_secs(2);

/// Silence after which the reason is looked for.
const DIAGNOSE_AFTER: Duration = Duration::from_millis(300);

/// The state of the connection with ZooKeeper.
#[derive(Clone, Debug)]
pub(super) enum Link {
    /// No session.
    Down {
        /// Why, once that is known.
        trouble: Option<Trouble>,
    },
    /// A session, connected.
    Up(Session),
    /// A session that is cut off and may come back as it was.
    Broken {
        /// Why no server answers, once that is known.
        trouble: Option<Trouble>,
    },
    /// Closed for good.
    Closed,
}

impl Link {
    /// Why there is no connection.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        match self {
            Self::Down { trouble } => trouble.clone(),
            Self::Up(_) => None,
            Self::Broken { trouble } => {
                Some(trouble.clone().unwrap_or_else(|| "the connection with ZooKeeper is lost".into()))
            }
            Self::Closed => Some("closed".into()),
        }
    }

    /// How an operation ends that finds no connection.
    pub(super) fn unknown(&self) -> UpdateError {
        UpdateError::Unknown(self.trouble().map_or_else(|| "not connected yet".into(), |trouble| trouble.to_string()))
    }
}

/// A connected session. Not to be kept beyond one round of work: a later one may have replaced it.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    deadline: Duration,
}

impl Session {
    /// What ZooKeeper notes as the owner of an ephemeral znode.
    pub(super) fn id(&self) -> i64 {
        self.client.session_id().0
    }

    /// Waits for an operation, but not for ever: requests queue without limit while the client is
    /// cut off, and a server without a quorum takes requests that it cannot serve.
    pub(super) async fn bounded<T, E: Into<zk::Error>>(
        &self,
        operation: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Failure> {
        match timeout(self.deadline, operation).await {
            Ok(outcome) => outcome.map_err(|e| Failure::from(e.into())),
            Err(_) => Err(Failure::Unknown(format!("no answer within {} ms", self.deadline.as_millis()))),
        }
    }
}

/// Waits for a connected session; none once the registry is closed.
pub(super) async fn connected(link: &mut watch::Receiver<Link>) -> Option<Session> {
    let link = link.wait_for(|link| matches!(link, Link::Up(_) | Link::Closed)).await.ok()?;
    match &*link {
        Link::Up(session) => Some(session.clone()),
        Link::Down { .. } | Link::Broken { .. } | Link::Closed => None,
    }
}

/// The task that owns the session.
pub(super) struct Keeper {
    options: Arc<Options>,
    shared: Arc<Shared>,
    link: watch::Sender<Link>,
}

/// How the reign of a client ended.
enum End {
    Dead,
    ReplacedBy(Client),
    Closing,
}

impl Keeper {
    pub(super) fn new(options: Arc<Options>, shared: Arc<Shared>, link: watch::Sender<Link>) -> Self {
        Self { options, shared, link }
    }

    /// Keeps a session until the registry is closed, then waits for the other tasks, ends the
    /// session and waits until ZooKeeper has confirmed it.
    pub(super) async fn run(self) {
        let mut next = None;
        let last = loop {
            let client = match next.take() {
                Some(client) => client,
                None => match self.connect().await {
                    Some(client) => client,
                    None => break None,
                },
            };
            info!(session = %client.session_id(), timeout_ms = client.session_timeout().as_millis(), "ZooKeeper session established");
            match self.reign(&client).await {
                End::Closing => break Some(client),
                End::Dead => {
                    self.link.send_replace(Link::Down { trouble: Some("the ZooKeeper session is over".into()) });
                }
                End::ReplacedBy(successor) => {
                    self.retire(client);
                    next = Some(successor);
                }
            }
        };
        self.end(last).await;
    }

    async fn end(self, client: Option<Client>) {
        let by = self.shared.close_by();
        if client.is_none() {
            // Nothing can be confirmed any more: the tasks see it and end.
            self.link.send_replace(Link::Closed);
        }
        let _ = timeout_at(by, self.shared.tasks.wait()).await;
        self.link.send_replace(Link::Closed);
        if let Some(client) = client {
            let mut states = client.state_watcher();
            // The last handle ends the session; dropping has no confirmation, the state has.
            drop(client);
            let _ = timeout_at(by, async { while !states.changed().await.is_terminated() {} }).await;
        }
        self.shared.ended.cancel();
    }

    /// Publishes `client` and follows its state.
    async fn reign(&self, client: &Client) -> End {
        let mut states = client.state_watcher();
        let mut state = states.state();
        loop {
            if state.is_terminated() {
                match state {
                    SessionState::AuthFailed => error!("ZooKeeper refuses this client's credentials"),
                    _ => warn!(session = %client.session_id(), %state, "ZooKeeper session is over"),
                }
                return End::Dead;
            }
            let broken = state == SessionState::Disconnected;
            self.link.send_replace(match broken {
                false => Link::Up(Session { client: client.clone(), deadline: self.options.op }),
                true => Link::Broken { trouble: None },
            });
            tokio::select! {
                () = self.shared.closing.cancelled() => return End::Closing,
                next = states.changed() => state = next,
                successor = self.successor(), if broken => {
                    let Some(successor) = successor else { return End::Closing };
                    match timeout(REPLACE_GRACE, states.changed()).await {
                        Ok(next) if !next.is_terminated() => state = next,
                        _ => return End::ReplacedBy(successor),
                    }
                }
            }
        }
    }

    async fn successor(&self) -> Option<Client> {
        sleep(REPLACE_AFTER).await;
        self.connect().await
    }

    /// Keeps a replaced client until nothing depends on its session any more.
    fn retire(&self, client: Client) {
        info!(session = %client.session_id(), "ZooKeeper session replaced by a new one");
        let closing = self.shared.closing.clone();
        self.shared.tasks.spawn(async move {
            let mut states = client.state_watcher();
            let over = async {
                while states.peek_state() == SessionState::Disconnected {
                    states.changed().await;
                }
                sleep(RETIRE_AFTER).await;
            };
            tokio::select! {
                () = closing.cancelled() => {}
                () = over => {}
            }
        });
    }

    /// Connects, however long it takes; none when the registry is being closed.
    async fn connect(&self) -> Option<Client> {
        let mut attempt = 0;
        loop {
            let failure = tokio::select! {
                () = self.shared.closing.cancelled() => return None,
                outcome = timeout(self.options.attempt(), self.connect_once()) => match outcome {
                    Ok(Ok(client)) => return Some(client),
                    Ok(Err(failure)) => failure,
                    Err(_) => zk::Error::Timeout,
                },
            };
            let mut pause = backoff::full_jitter(attempt, RETRY_FIRST, RETRY_MAX, random());
            if failure == zk::Error::AuthFailed {
                error!(servers = %self.options.servers, "ZooKeeper refuses this client's credentials");
                self.explain(Trouble::Refused("ZooKeeper refuses this client's credentials".into()));
                pause = RETRY_AUTH;
            }
            attempt += 1;
            tokio::select! {
                () = self.shared.closing.cancelled() => return None,
                () = sleep(pause) => {}
            }
        }
    }

    async fn connect_once(&self) -> Result<Client, zk::Error> {
        // Never eager: an eager client gives up on the first refusal.
        let mut connector = Client::connector()
            .with_session_timeout(self.options.session)
            .with_connection_timeout(self.options.connect);
        if let Some(auth) = &self.options.auth {
            connector = connector.with_auth("digest", auth.expose().as_bytes());
        }
        #[cfg(feature = "zookeeper-tls")]
        if let Some(tls) = &self.options.tls {
            connector = connector.with_tls(tls.options());
        }
        let servers = self.options.connect_string();
        let connecting = connector.connect(&servers);
        tokio::pin!(connecting);
        tokio::select! {
            outcome = &mut connecting => return outcome,
            () = sleep(DIAGNOSE_AFTER) => {}
        }
        tokio::select! {
            outcome = &mut connecting => return outcome,
            reasons = diagnosis::of(&self.options) => self.explain(Trouble::Unreachable(reasons)),
        }
        connecting.await
    }

    /// Publishes why no server answers.
    fn explain(&self, trouble: Trouble) {
        self.link.send_if_modified(|link| match link {
            Link::Down { trouble: known } | Link::Broken { trouble: known } => {
                let news = known.as_ref() != Some(&trouble);
                if news {
                    warn!(%trouble, "not connected with ZooKeeper");
                    *known = Some(trouble);
                }
                news
            }
            Link::Up(_) | Link::Closed => false,
        });
    }
}

/// 64 random bits, for jitter.
pub(super) fn random() -> u64 {
    let bits = uuid::Uuid::new_v4().as_u128();
    // Six bits of a random UUID are fixed, none at the same place in both halves.
    ((bits >> 64) ^ bits) as u64
}
