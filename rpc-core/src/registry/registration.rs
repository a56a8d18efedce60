//! The handle that keeps a node announced.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::NodeState;

/// Keeps a node announced until it is withdrawn or dropped. Dropping withdraws as well, in the
/// background; only [`Registration::withdraw`] waits for it.
#[derive(Debug)]
pub struct Registration {
    status: watch::Receiver<RegistrationStatus>,
    commands: mpsc::Sender<RegistrationCommand>,
}

/// How far a registration is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistrationStatus {
    /// Not in the registry yet, or not any more; it is being tried for ever.
    Pending {
        /// What stands in the way, once that is known.
        trouble: Option<String>,
    },
    /// In the registry.
    Registered,
    /// Another live process keeps taking this address. It is tried again, slowly.
    Conflict {
        /// What was seen.
        detail: String,
    },
    /// This registry will never accept the address.
    Refused {
        /// Why, and the way out.
        reason: String,
    },
    /// Withdrawn.
    Withdrawn,
}

/// What the owner of a [`Registration`] asks of the task behind it. The task answers through the
/// sender when the registry has confirmed, and treats a closed channel as `Withdraw`.
#[derive(Debug)]
pub enum RegistrationCommand {
    /// Write this state into the entry, by compare-and-set.
    SetState(NodeState, oneshot::Sender<()>),
    /// Delete the entry and end.
    Withdraw(oneshot::Sender<()>),
}

/// Says that a command was carried out. Whoever asked may have stopped waiting.
pub(super) fn answer(done: oneshot::Sender<()>) {
    let _ = done.send(());
}

impl Registration {
    /// For backends: a handle, and the two ends that its task works with.
    pub fn channel() -> (Self, watch::Sender<RegistrationStatus>, mpsc::Receiver<RegistrationCommand>) {
        // Two commands are the most there ever are: draining, then withdraw.
        let (commands, command_rx) = mpsc::channel(2);
        let (status_tx, status) = watch::channel(RegistrationStatus::Pending { trouble: None });
        (Self { status, commands }, status_tx, command_rx)
    }

    /// For backends: a registration that will never be one.
    pub fn refused(reason: String) -> Self {
        let (registration, status, _) = Self::channel();
        status.send_replace(RegistrationStatus::Refused { reason });
        registration
    }

    /// How far it is, now and later.
    pub fn status(&self) -> watch::Receiver<RegistrationStatus> {
        self.status.clone()
    }

    /// Writes `state` into the entry. `true` once the registry has confirmed it, `false` when
    /// `timeout` passed first (it is then still being tried).
    pub async fn set_state(&self, state: NodeState, timeout: Duration) -> bool {
        self.ask(timeout, |done| RegistrationCommand::SetState(state, done)).await
    }

    /// Deletes the entry. `true` once the registry has confirmed it, `false` when `timeout`
    /// passed first.
    pub async fn withdraw(self, timeout: Duration) -> bool {
        self.ask(timeout, RegistrationCommand::Withdraw).await
    }

    async fn ask(&self, timeout: Duration, command: impl FnOnce(oneshot::Sender<()>) -> RegistrationCommand) -> bool {
        let (done, answer) = oneshot::channel();
        let asked = async { self.commands.send(command(done)).await.is_ok() && answer.await.is_ok() };
        tokio::time::timeout(timeout, asked).await.unwrap_or(false)
    }
}
