//! Keeps one connection to one node.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rpc_core::RpcError;
use rpc_core::backoff::full_jitter;
use rpc_core::protocol::code;
use rpc_core::registry::Health;
use tokio::sync::{mpsc, watch};

use crate::ClientConfig;
use crate::balance::{NodeId, Random};
use crate::channel::{Channel, DialError, DialOptions, Status, dial};
use crate::node::Node;

/// First pause before a node is tried again; it doubles, with full jitter.
const RECONNECT_FIRST: Duration = Duration::from_millis(50);

/// Longest pause before a node is tried again.
const RECONNECT_MAX: Duration = Duration::from_secs(10);

/// What a connector reports.
pub(super) struct Report {
    pub(super) node: NodeId,
    pub(super) index: usize,
    pub(super) what: What,
}

/// Why there is no connection.
#[derive(Clone)]
pub(super) struct Trouble {
    pub(super) reason: Arc<str>,
    /// What the node answered, if trying again will not change it.
    pub(super) refusal: Option<RpcError>,
}

impl From<DialError> for Trouble {
    fn from(error: DialError) -> Self {
        let reason = error.to_string().into();
        let refusal = match error {
            DialError::Refused(error) if matches!(error.code, code::UNAUTHENTICATED | code::TLS_REQUIRED) => {
                Some(error)
            }
            _ => None,
        };
        Self { reason, refusal }
    }
}

pub(super) enum What {
    Connected(Arc<Channel>),
    Failed(Trouble),
    Status(Status),
}

pub(super) struct Connector {
    pub(super) node: Arc<Node>,
    /// Which of the node's connections it keeps.
    pub(super) index: usize,
    pub(super) config: ClientConfig,
    pub(super) health: watch::Receiver<Health>,
    pub(super) reports: mpsc::Sender<Report>,
    pub(super) random: Random,
}

impl Connector {
    /// Connects, watches and connects again, until the node said goodbye: a restarted one is another
    /// incarnation, which the list will tell. While the registry cannot be reached nobody tells, and
    /// whoever comes after the node at its address is taken for its successor.
    pub(super) async fn run(mut self) {
        // `gone`: the incarnation that said goodbye.
        let (mut attempt, mut gone) = (0, None);
        loop {
            if gone.is_some() && self.health.wait_for(is_lost).await.is_err() {
                return;
            }
            let options = DialOptions {
                patience: self.config.connect_timeout,
                incarnation: self.incarnation(),
                message_bytes_max: self.config.message_bytes_max,
                random: self.random.next_u64(),
                token: self.config.token.clone(),
                #[cfg(feature = "tls")]
                tls: self.config.tls.clone(),
            };
            match dial(self.node.addr, &options).await {
                Ok(channel) if gone.as_ref() == Some(&channel.peer.incarnation) => {}
                Ok(channel) => {
                    attempt = 0;
                    let (status, incarnation) = (channel.status(), channel.peer.incarnation.clone());
                    if gone.is_some() {
                        self.node.succeeded();
                    }
                    self.report(What::Connected(Arc::new(channel))).await;
                    if self.follow(status).await == Goodbye::Said && self.node.incarnation.is_some() {
                        gone = Some(incarnation);
                    }
                }
                Err(error) => {
                    tracing::debug!(node = %self.node.addr, attempt, %error, "cannot connect");
                    self.report(What::Failed(error.into())).await;
                }
            }
            let pause = full_jitter(attempt, RECONNECT_FIRST, RECONNECT_MAX, self.random.next_u64());
            attempt = attempt.saturating_add(1);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.node.hurry.notified() => {}
            }
        }
    }

    /// The incarnation to insist on. While the registry cannot be reached its list may be out of
    /// date, and whoever answers at a listed address will do.
    fn incarnation(&self) -> Option<String> {
        if is_lost(&self.health.borrow()) { None } else { self.node.incarnation.clone() }
    }

    /// Reports the changes of a connection until it is closed or its last user is gone.
    async fn follow(&self, mut status: watch::Receiver<Status>) -> Goodbye {
        let mut goodbye = Goodbye::NotSaid;
        while status.changed().await.is_ok() {
            let now = status.borrow_and_update().clone();
            if now == Status::Leaving {
                goodbye = Goodbye::Said;
                self.node.left.store(true, Ordering::Relaxed);
            }
            let closed = matches!(now, Status::Closed(_));
            self.report(What::Status(now)).await;
            if closed {
                break;
            }
        }
        if goodbye == Goodbye::Said && self.node.incarnation.is_none() {
            // The list cannot tell a restarted node from the one that left.
            self.node.left.store(false, Ordering::Relaxed);
        }
        goodbye
    }

    async fn report(&self, what: What) {
        // The keeper is gone only when the whole pool is, and then this task is about to be.
        let _ = self.reports.send(Report { node: self.node.id, index: self.index, what }).await;
    }
}

/// Whether the list that there is may be out of date. The first one comes a moment before the registry is said to be
/// live.
fn is_lost(health: &Health) -> bool {
    match health {
        Health::Live | Health::Connecting { .. } => false,
        Health::Stale { .. } | Health::Closed => true,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Goodbye {
    Said,
    NotSaid,
}
