//! The task behind a registration.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::blocking;
use super::directory::{Directory, is_at, is_permanent};
use super::entry::Entry;
use super::writer::{Announced, Writer};
use crate::NodeRecord;
use crate::registry::registration::answer;
use crate::registry::{Members, RegistrationCommand, RegistrationStatus, publish};
use crate::seldom::Seldom;

/// A reader that probes a lock holds it for some microseconds. Only an address that is taken this
/// many times in a row belongs to somebody.
const CONFLICTS_DOUBTED: u32 = 5;
const DOUBT_INTERVAL: Duration = Duration::from_millis(5);

/// An entry is looked after this often even without events; trouble and conflicts are tried again.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Keeps a node announced: whatever happened, the directory is made to say what it should.
pub(super) struct Announcer {
    pub(super) dir: Arc<Directory>,
    pub(super) addr: SocketAddr,
    pub(super) record: NodeRecord,
    pub(super) status: watch::Sender<RegistrationStatus>,
    pub(super) members: watch::Receiver<Arc<Members>>,
}

impl Announcer {
    /// Runs until the node is withdrawn. Readers believe the lock alone, so that the node is gone
    /// as soon as this ends, even if its files could not be deleted.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<RegistrationCommand>, stop: CancellationToken) {
        let mut lock: Option<Arc<File>> = None;
        let mut unanswered: Vec<oneshot::Sender<()>> = Vec::new();
        let mut conflicts = 0;
        let mut was_announced = false;
        let mut damage = Seldom::default();
        let withdrawn = loop {
            let outcome = self.announce(&mut lock, &mut damage).await;
            conflicts = if matches!(outcome, Ok(false)) { conflicts + 1 } else { 0 };
            let announced = matches!(outcome, Ok(true));
            was_announced |= announced;
            if let Err(error) = &outcome
                && is_permanent(error)
                && !was_announced
            {
                let reason = format!("{error}; make that possible, or name another directory with local:DIR");
                publish(&self.status, RegistrationStatus::Refused { reason });
                return;
            }
            if announced {
                unanswered.drain(..).for_each(answer);
            }
            let doubted = (1..CONFLICTS_DOUBTED).contains(&conflicts);
            if !doubted {
                self.show(outcome);
            }
            let pause = if doubted { DOUBT_INTERVAL } else { CHECK_INTERVAL };
            tokio::select! {
                command = commands.recv() => match command {
                    Some(RegistrationCommand::SetState(state, done)) => {
                        self.record.state = state;
                        unanswered.push(done);
                    }
                    Some(RegistrationCommand::Withdraw(done)) => break Some(done),
                    None => break None,
                },
                () = stop.cancelled() => break None,
                // Deleted or overwritten from outside, or free at last.
                () = not_listed(&mut self.members, self.addr, &self.record.id) => {}
                () = tokio::time::sleep(pause) => {}
            }
        };
        self.withdraw(lock).await;
        publish(&self.status, RegistrationStatus::Withdrawn);
        withdrawn.into_iter().for_each(answer);
    }

    /// Makes the entry if it is missing or not ours, and writes the state if that is new. Whether
    /// the entry is ours then. Whoever holds the lock is the one process that the address belongs to,
    /// so that two of them never write in turn.
    async fn announce(&self, lock: &mut Option<Arc<File>>, damage: &mut Seldom) -> io::Result<bool> {
        let (dir, addr, record, held) = (self.dir.clone(), self.addr, self.record.clone(), lock.clone());
        let announced = blocking(move || {
            if let Some(held) = held.as_deref()
                && is_at(held, &dir.lock(addr))?
                && matches!(Entry::look(&dir.node(addr), &record)?, Entry::Own(there) if there.state == record.state)
            {
                return Ok(Announced::Again);
            }
            dir.prepare()?;
            Writer::lock(&dir)?.announce(addr, &record, held.as_deref())
        });
        Ok(match announced.await? {
            Announced::New(file) => {
                if lock.is_some() {
                    tell(damage, self.addr, "nothing that was locked");
                }
                *lock = Some(Arc::new(file));
                true
            }
            Announced::Again => true,
            Announced::PutRight { found } => {
                tell(damage, self.addr, &found);
                true
            }
            Announced::Conflict => {
                *lock = None;
                false
            }
        })
    }

    async fn withdraw(&self, lock: Option<Arc<File>>) {
        let Some(lock) = lock else { return };
        let (dir, addr) = (self.dir.clone(), self.addr);
        if let Err(error) = blocking(move || Writer::lock(&dir)?.withdraw(addr, &lock)).await {
            tracing::debug!(node = %self.addr, %error, "withdrawn, but the files stay");
        }
    }

    fn show(&self, outcome: io::Result<bool>) {
        let status = match outcome {
            Ok(true) => RegistrationStatus::Registered,
            Ok(false) => RegistrationStatus::Conflict {
                detail: format!("a live process holds {}", self.dir.lock(self.addr).display()),
            },
            Err(error) => RegistrationStatus::Pending { trouble: Some(error.to_string()) },
        };
        publish(&self.status, status);
    }
}

/// Says what was found in place of an entry that has been written anew.
fn tell(damage: &mut Seldom, node: SocketAddr, found: &str) {
    if let Some(times) = damage.count(Instant::now()) {
        tracing::warn!(%node, ?found, times, "others changed this server's entry; it was written anew");
    }
}

/// Returns when a new list does not have `addr` with this `id`; never once there will be no more
/// lists.
async fn not_listed(members: &mut watch::Receiver<Arc<Members>>, addr: SocketAddr, id: &str) {
    while members.changed().await.is_ok() {
        if members.borrow_and_update().nodes.get(&addr).is_none_or(|member| member.record.id != id) {
            return;
        }
    }
    std::future::pending().await
}
