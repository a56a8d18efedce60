//! A client that lives for one call.

use std::sync::Arc;
use std::time::Duration;

use rpc_client::{CallOptions, Client, Error, ErrorKind, Reply};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::common::{self, Common, Role};
use crate::failure::Failure;
use crate::few::{Few, Preference};

/// What one call asks for.
pub(crate) struct OneCall<'a> {
    pub(crate) role: Role,
    pub(crate) method: &'a str,
    pub(crate) params: &'a RawValue,
    pub(crate) options: CallOptions,
    /// For everything, connecting included.
    pub(crate) timeout: Duration,
    /// Which node is called depends on all that there are.
    pub(crate) needs_all: bool,
}

/// What came of it.
pub(crate) struct Called {
    pub(crate) outcome: Result<Reply, Error>,
    /// From the beginning to the result or failure.
    pub(crate) elapsed: Duration,
    /// The client that made it, to be closed.
    pub(crate) client: Client,
    /// Listed nodes that it was not connected with.
    pub(crate) hidden: usize,
}

impl OneCall<'_> {
    /// Connects with a few of the nodes and calls one of them; with all if none of these will do.
    pub(crate) async fn make(self, common: &Common) -> Result<Called, Failure> {
        let started = Instant::now();
        let registry = common.open()?;
        if self.needs_all {
            let client = common.client(self.role, registry)?;
            let outcome = self.call(&client, started).await;
            return Ok(Called { outcome, elapsed: started.elapsed(), client, hidden: 0 });
        }
        let preference = match common.policy.as_str() {
            "random" | "round_robin" => Preference::Any,
            _ => Preference::Fast,
        };
        let few = Arc::new(Few::of(registry.clone(), preference));
        let client = common.client(self.role, few.clone())?;
        let outcome = self.call(&client, started).await;
        let hidden = few.hidden();
        if hidden > 0 && outcome.as_ref().is_err_and(others_may_do) {
            let client = common.client(self.role, registry)?;
            let outcome = self.call(&client, started).await;
            return Ok(Called { outcome, elapsed: started.elapsed(), client, hidden: 0 });
        }
        Ok(Called { outcome, elapsed: started.elapsed(), client, hidden })
    }

    async fn call(&self, client: &Client, started: Instant) -> Result<Reply, Error> {
        let left = || self.timeout.saturating_sub(started.elapsed());
        let outcome = match common::settle(client, left()).await {
            Ok(()) => {
                let options = self.options.clone().timeout(left());
                client.call_detailed(self.method, self.params, &options).await
            }
            Err(error) => Err(error),
        };
        // The user set the time for everything, not for the part of it that was left to what failed.
        let timeout = self.timeout;
        outcome.map_err(|error| {
            let kind = match error.kind() {
                ErrorKind::DeadlineExceeded { .. } => ErrorKind::DeadlineExceeded { timeout },
                ErrorKind::RegistryUnreachable { .. } => ErrorKind::RegistryUnreachable { waited: timeout },
                _ => return error,
            };
            Error::from(kind).with_attempts(error.attempts().to_vec()).with_registry(client.registry_state())
        })
    }
}

fn others_may_do(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NoNode | ErrorKind::Transport { sent: false, .. })
}
