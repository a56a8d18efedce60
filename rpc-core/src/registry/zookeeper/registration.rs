//! The task that keeps one node registered.
//!
//! It is level-triggered: it looks at the znode and does what is needed to make it this process's
//! own, again after every event, error, reconnect and new session. What an operation returned never
//! decides anything; the next look does. So it does not matter whether a request without an answer
//! was carried out, and a znode left behind by the process's own dead session is nothing special.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};
use zookeeper_client::{self as zk, CreateMode, OneshotWatcher};

use super::Shared;
use super::failure::Failure;
use super::session::{Link, Session, connected};
use crate::registry::registration::answer;
use crate::registry::{Registration, RegistrationCommand, RegistrationStatus, publish};
use crate::{BoxFuture, NodeRecord};

/// The znode is looked at this often although nothing happened.
const RECHECK: Duration = Duration::from_secs(10);

/// Pause after an operation with an unknown outcome: an election takes about half a second.
const RETRY_UNKNOWN: Duration = Duration::from_millis(300);

/// Pause after ZooKeeper refused, as without the rights: that ends when somebody changes them.
const RETRY_REFUSED: Duration = Duration::from_secs(2);

/// How often the address may be lost to another process per [`LOSSES_WINDOW`]. One loss is a
/// restart that overlaps with its predecessor; more mean two live processes.
const LOSSES_MAX: usize = 2;

/// See [`LOSSES_MAX`].
const LOSSES_WINDOW: Duration = Duration::from_secs(60);

/// Pause before fighting for an address that another live process keeps taking.
const RETRY_CONFLICT: Duration = Duration::from_secs(30);

/// Steps of one round. A node needs three (make the namespace, create, look); more are taken only
/// when others change the znode at the same time.
const STEPS_MAX: usize = 8;

/// Starts the task for one node.
pub(super) fn spawn(shared: &Arc<Shared>, addr: SocketAddr, record: NodeRecord) -> Registration {
    let (registration, status, commands) = Registration::channel();
    let announcer = Announcer {
        addr,
        path: shared.options.node(addr),
        record,
        link: shared.link.clone(),
        shared: shared.clone(),
        status,
        commands,
        to_confirm: Vec::new(),
        watch: None,
        owned: false,
        losses: VecDeque::new(),
    };
    shared.tasks.spawn(announcer.run());
    registration
}

struct Announcer {
    addr: SocketAddr,
    path: String,
    /// What is announced. Others write its response time.
    record: NodeRecord,
    shared: Arc<Shared>,
    link: watch::Receiver<Link>,
    status: watch::Sender<RegistrationStatus>,
    commands: mpsc::Receiver<RegistrationCommand>,
    /// Those who wait for the current state to be in the registry.
    to_confirm: Vec<oneshot::Sender<()>>,
    /// A watch on the znode that has not fired, and the session it belongs to.
    watch: Option<(i64, BoxFuture<'static, ()>)>,
    /// Whether the last look found the znode to be ours.
    owned: bool,
    /// When the address was lost to another process.
    losses: VecDeque<Instant>,
}

/// What a look at the znode asks for.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// It is as it should be.
    Ours,
    /// It is as it should be, but for the state.
    NewState(Box<NodeRecord>),
    /// It belongs to this session but says something else.
    Rewrite { rival: Option<String> },
    /// It belongs to another session.
    TakeOver { rival: Option<String> },
}

/// What ends a pause.
enum Wake {
    Look,
    Withdraw(Option<oneshot::Sender<()>>),
}

impl Announcer {
    async fn run(mut self) {
        loop {
            let link = self.link.borrow_and_update().clone();
            let pause = match link {
                Link::Closed => return self.report(RegistrationStatus::Withdrawn),
                Link::Down { trouble } => {
                    self.owned = false;
                    self.report(RegistrationStatus::Pending { trouble: trouble.map(|trouble| trouble.to_string()) });
                    RECHECK
                }
                // The znode is still there and will be, if the session comes back.
                Link::Broken { .. } => RECHECK,
                Link::Up(session) => match self.settle(&session).await {
                    Ok(pause) => pause,
                    Err(failure) => self.failed(&failure),
                },
            };
            match self.wait(pause).await {
                Wake::Look => {}
                Wake::Withdraw(done) => return self.withdraw(done).await,
            }
        }
    }

    async fn wait(&mut self, pause: Duration) -> Wake {
        let watch = async {
            match &mut self.watch {
                Some((_, watch)) => watch.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.shared.closing.cancelled() => Wake::Withdraw(None),
            command = self.commands.recv() => match command {
                Some(RegistrationCommand::SetState(state, done)) => {
                    self.record.state = state;
                    self.to_confirm.push(done);
                    Wake::Look
                }
                Some(RegistrationCommand::Withdraw(done)) => Wake::Withdraw(Some(done)),
                None => Wake::Withdraw(None),
            },
            _ = self.link.changed() => Wake::Look,
            () = watch => {
                self.watch = None;
                Wake::Look
            }
            () = sleep(pause) => Wake::Look,
        }
    }

    fn failed(&mut self, failure: &Failure) -> Duration {
        match failure {
            Failure::Unknown(_) | Failure::SessionGone(_) => debug!(node = %self.addr, %failure, "not registered yet"),
            Failure::Definite(_) => warn!(node = %self.addr, %failure, "cannot register"),
        }
        self.report(RegistrationStatus::Pending { trouble: Some(failure.to_string()) });
        match failure {
            Failure::Unknown(_) | Failure::SessionGone(_) => RETRY_UNKNOWN,
            Failure::Definite(_) => RETRY_REFUSED,
        }
    }

    fn report(&self, status: RegistrationStatus) {
        publish(&self.status, status);
    }

    /// Makes the znode ours. Returns how long to wait if nothing happens.
    async fn settle(&mut self, session: &Session) -> Result<Duration, Failure> {
        for _ in 0..STEPS_MAX {
            let Some((data, stat)) = self.look(session).await? else {
                self.create(session).await?;
                continue;
            };
            match judge(&self.record, session.id(), &data, stat.ephemeral_owner) {
                Verdict::Ours => {
                    if !std::mem::replace(&mut self.owned, true) {
                        info!(node = %self.addr, path = %self.path, "registered");
                    }
                    self.report(RegistrationStatus::Registered);
                    self.to_confirm.drain(..).for_each(answer);
                    return Ok(RECHECK);
                }
                Verdict::NewState(record) => self.write(session, &record.to_json(), stat.version).await?,
                Verdict::Rewrite { rival: Some(id) } | Verdict::TakeOver { rival: Some(id) }
                    if self.is_fight(Instant::now()) =>
                {
                    self.concede(&id);
                    return Ok(RETRY_CONFLICT);
                }
                Verdict::Rewrite { .. } => self.write(session, &self.fresh(), stat.version).await?,
                Verdict::TakeOver { .. } => self.take_over(session, stat.version).await?,
            }
        }
        Err(Failure::Unknown("others keep changing the entry".into()))
    }

    /// Reads the znode, and watches it unless a watch is there already.
    async fn look(&mut self, session: &Session) -> Result<Option<(Vec<u8>, zk::Stat)>, Failure> {
        let armed = self.watch.as_ref().is_some_and(|(owner, _)| *owner == session.id());
        let found = if armed {
            session.bounded(session.client.get_data(&self.path)).await
        } else {
            session.bounded(session.client.get_and_watch_data(&self.path)).await.map(|(data, stat, watcher)| {
                self.watch = Some((session.id(), changed(watcher)));
                (data, stat)
            })
        };
        match found {
            Ok(found) => Ok(Some(found)),
            Err(failure) if failure.is(&zk::Error::NoNode) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    async fn create(&mut self, session: &Session) -> Result<(), Failure> {
        let data = self.fresh();
        let options = &self.shared.options;
        let ephemeral = options.create(CreateMode::Ephemeral);
        match session.bounded(session.client.create(&self.path, &data, &ephemeral)).await {
            Err(failure) if failure.is(&zk::Error::NoNode) => {
                let directory = options.create(CreateMode::Persistent);
                session.bounded(session.client.mkdir(&options.namespace, &directory)).await
            }
            Err(failure) if failure.is(&zk::Error::NodeExists) => Ok(()),
            other => other.map(drop),
        }
    }

    async fn write(&mut self, session: &Session, data: &[u8], version: i32) -> Result<(), Failure> {
        let written = session.bounded(session.client.set_data(&self.path, data, Some(version))).await;
        changed_meanwhile(written.map(drop))
    }

    /// Replaces the znode in one transaction, so that nobody ever sees the node missing.
    async fn take_over(&mut self, session: &Session, version: i32) -> Result<(), Failure> {
        info!(node = %self.addr, "taking over the entry of another session");
        let mut transaction = session.client.new_multi_writer();
        transaction.add_delete(&self.path, Some(version))?;
        let ephemeral = self.shared.options.create(CreateMode::Ephemeral);
        transaction.add_create(&self.path, &self.fresh(), &ephemeral)?;
        changed_meanwhile(session.bounded(transaction.commit()).await.map(drop))
    }

    /// The payload of a new znode: what another entry held was measured some time ago.
    fn fresh(&self) -> Vec<u8> {
        self.record.with_response_time(0).to_json()
    }

    /// Whether the rival has to be left alone. This process has bound the port, so normally its
    /// rival is dead; but when it strikes back, it is alive.
    fn is_fight(&mut self, now: Instant) -> bool {
        if std::mem::replace(&mut self.owned, false) {
            self.losses.push_back(now);
        }
        while self.losses.front().is_some_and(|loss| now.duration_since(*loss) > LOSSES_WINDOW) {
            self.losses.pop_front();
        }
        self.losses.len() > LOSSES_MAX
            && self.losses.back().is_some_and(|loss| now.duration_since(*loss) < RETRY_CONFLICT)
    }

    fn concede(&mut self, id: &str) {
        let detail = format!(
            "another live process (id {id}) keeps registering {}: two processes announce one address, \
             give each an address of its own",
            self.addr
        );
        warn!(node = %self.addr, rival = id, "another live process keeps taking this address");
        self.report(RegistrationStatus::Conflict { detail });
    }

    /// Deletes the znode if it is ours, and confirms once it is gone.
    async fn withdraw(mut self, done: Option<oneshot::Sender<()>>) {
        self.watch = None;
        while let Some(session) = connected(&mut self.link).await {
            match self.delete(&session).await {
                Ok(()) => {
                    info!(node = %self.addr, "withdrawn");
                    break;
                }
                Err(failure) => {
                    debug!(node = %self.addr, %failure, "not withdrawn yet");
                    sleep(RETRY_UNKNOWN).await;
                }
            }
        }
        self.report(RegistrationStatus::Withdrawn);
        done.into_iter().for_each(answer);
    }

    async fn delete(&mut self, session: &Session) -> Result<(), Failure> {
        loop {
            let (data, stat) = match session.bounded(session.client.get_data(&self.path)).await {
                Err(failure) if failure.is(&zk::Error::NoNode) => return Ok(()),
                other => other?,
            };
            let ours = match judge(&self.record, session.id(), &data, stat.ephemeral_owner) {
                Verdict::Ours | Verdict::NewState(_) | Verdict::Rewrite { rival: None } => true,
                // Overwritten a moment ago, or lost to another registration of this session.
                Verdict::Rewrite { rival: Some(_) } => self.owned,
                // Left behind by an earlier session of this process, or not ours at all.
                Verdict::TakeOver { .. } => {
                    NodeRecord::from_json(&data).is_ok_and(|theirs| theirs.id == self.record.id)
                }
            };
            if !ours {
                return Ok(());
            }
            changed_meanwhile(session.bounded(session.client.delete(&self.path, Some(stat.version))).await)?;
        }
    }
}

/// A write that came too late is no failure: the next look tells what to do.
fn changed_meanwhile(outcome: Result<(), Failure>) -> Result<(), Failure> {
    match outcome {
        Err(Failure::Definite(zk::Error::BadVersion | zk::Error::NoNode | zk::Error::NodeExists)) => Ok(()),
        other => other,
    }
}

fn changed(watcher: OneshotWatcher) -> BoxFuture<'static, ()> {
    // The crate panics in a watcher that is polled while its runtime goes down.
    Box::pin(AssertUnwindSafe(watcher.changed()).catch_unwind().map(drop))
}

/// `rival` is the id of another process, or of another registration in this one.
fn judge(ours: &NodeRecord, session: i64, data: &[u8], owner: i64) -> Verdict {
    let theirs = NodeRecord::from_json(data).ok();
    let same = theirs.as_ref().is_some_and(|theirs| theirs.id == ours.id);
    let rival = theirs.as_ref().filter(|theirs| !same && !theirs.id.is_empty()).map(|theirs| theirs.id.clone());
    match theirs {
        _ if owner != session => Verdict::TakeOver { rival },
        Some(theirs) if same && theirs.state == ours.state => Verdict::Ours,
        Some(theirs) if same => Verdict::NewState(Box::new(NodeRecord { state: ours.state, ..theirs })),
        _ => Verdict::Rewrite { rival },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeState;

    const OURS: i64 = 1;
    const THEIRS: i64 = 2;

    #[test]
    fn the_znode_of_this_session_and_process_is_left_alone() {
        let ours = NodeRecord::new();
        let measured = ours.with_response_time(7);
        assert_eq!(judge(&ours, OURS, &measured.to_json(), OURS), Verdict::Ours);
    }

    #[test]
    fn a_new_state_keeps_the_response_time_that_others_wrote() {
        let ours = NodeRecord { state: NodeState::Draining, ..NodeRecord::new() };
        let stored = NodeRecord { state: NodeState::Up, ..ours.with_response_time(7) };
        let expected = NodeRecord { state: NodeState::Draining, ..stored.clone() };
        assert_eq!(judge(&ours, OURS, &stored.to_json(), OURS), Verdict::NewState(Box::new(expected)));
    }

    #[test]
    fn a_foreign_payload_in_our_znode_is_put_right() {
        let ours = NodeRecord::new();
        let foreign = NodeRecord::new();
        assert_eq!(judge(&ours, OURS, &foreign.to_json(), OURS), Verdict::Rewrite { rival: Some(foreign.id) });
        for garbage in ["{", "{}"] {
            assert_eq!(judge(&ours, OURS, garbage.as_bytes(), OURS), Verdict::Rewrite { rival: None });
        }
    }

    #[test]
    fn the_znode_of_another_session_is_taken_over() {
        let ours = NodeRecord::new();
        let rival = NodeRecord::new();
        let judged = |data: &[u8], owner| judge(&ours, OURS, data, owner);
        // Our own dead session, a malformed entry, a persistent one: nobody to fight with.
        assert_eq!(judged(&ours.to_json(), THEIRS), Verdict::TakeOver { rival: None });
        assert_eq!(judged(b"", THEIRS), Verdict::TakeOver { rival: None });
        assert_eq!(judged(b"{}", 0), Verdict::TakeOver { rival: None });
        assert_eq!(judged(&rival.to_json(), THEIRS), Verdict::TakeOver { rival: Some(rival.id.clone()) });
    }
}
