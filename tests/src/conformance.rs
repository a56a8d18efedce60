//! What every registry backend has to do: one suite, run for each backend with
//! [`registry_conformance!`](crate::registry_conformance) and, where entries can be changed behind
//! its back, [`registry_outside_conformance!`](crate::registry_outside_conformance).
//!
//! Several handles on one registry stand for several processes. All waiting is for a condition, at
//! most as long as the subject's patience.

use std::any::Any;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpc_core::registry::{Health, Lease, Member, Members, Registration, RegistrationStatus, Registry};
use rpc_core::registry::{UpdateError, Version};
use rpc_core::{BoxFuture, NodeRecord, NodeState};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A registry to be tested.
pub struct Subject {
    /// Opens one more handle on it. It is empty at first.
    pub open: Box<dyn Fn() -> Arc<dyn Registry> + Send + Sync>,
    /// Changes it behind the backend's back.
    pub outside: Option<Box<dyn Outside>>,
    /// The longest wait for anything, the death of a session included.
    pub patience: Duration,
}

/// Somebody else who has access to where the entries are kept.
pub trait Outside: Send + Sync {
    /// Makes a live entry of any name with any payload. It lives as long as what is returned.
    fn plant(&self, name: &str, payload: &[u8]) -> BoxFuture<'_, Box<dyn Any + Send>>;

    /// Deletes the entry of this name.
    fn erase(&self, name: &str) -> BoxFuture<'_, ()>;

    /// Writes over the entry of this name, whoever owns it.
    fn overwrite(&self, name: &str, payload: &[u8]) -> BoxFuture<'_, ()>;
}

/// Makes a module `$module` with one test for each case; `$subject` is the path of an async
/// function that returns a fresh [`Subject`].
#[macro_export]
macro_rules! registry_conformance {
    ($module:ident, $subject:path) => {
        $crate::conformance_tests! { $module, $subject;
            a_registered_node_is_listed_as_it_registered
            an_empty_registry_is_known_and_live
            a_new_state_is_seen_by_others
            a_withdrawn_node_is_gone_and_may_come_back
            a_dropped_registration_is_gone
            a_closed_handle_withdraws_its_nodes
            a_dropped_handle_withdraws_its_nodes
            an_address_has_one_owner
            many_nodes_at_once_are_all_listed
            ipv6_addresses_work
            a_missing_entry_is_none
            an_update_needs_the_version_that_was_read
            rewriting_the_same_value_is_a_change
            concurrent_updates_are_never_lost
            a_node_stays_listed_while_it_is_rewritten
            one_leads_at_a_time_and_another_follows
            a_slot_is_claimed_once
            a_lost_lease_writes_nothing
        }
    };
}

/// The cases that need a subject with an [`Outside`].
#[macro_export]
macro_rules! registry_outside_conformance {
    ($module:ident, $subject:path) => {
        $crate::conformance_tests! { $module, $subject;
            a_malformed_payload_is_listed_as_such
            a_name_that_is_no_address_is_listed_as_such
            an_entry_deleted_from_outside_comes_back
            an_entry_overwritten_from_outside_is_put_right
        }
    };
}

/// One test for each of these cases.
#[macro_export]
macro_rules! conformance_tests {
    ($module:ident, $subject:path; $($case:ident)*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    $crate::conformance::$case(&$subject().await).await;
                }
            )*
        }
    };
}

impl Subject {
    fn open(&self) -> Arc<dyn Registry> {
        (self.open)()
    }

    fn outside(&self) -> &dyn Outside {
        self.outside.as_deref().expect("this case is for subjects that can be changed from outside")
    }

    /// Waits for a value that satisfies `good`.
    async fn wait<T: Clone>(&self, what: &str, values: &mut watch::Receiver<T>, good: impl FnMut(&T) -> bool) -> T {
        match tokio::time::timeout(self.patience, values.wait_for(good)).await {
            Ok(Ok(value)) => return value.clone(),
            Ok(Err(_)) => panic!("{what}: no more values"),
            Err(_) => {}
        }
        panic!("{what}: not within {:?}", self.patience)
    }

    /// Waits for a list that satisfies `good`.
    async fn list(&self, what: &str, registry: &dyn Registry, good: impl Fn(&Members) -> bool) -> Arc<Members> {
        self.wait(what, &mut registry.members(), |members| members.is_known() && good(members)).await
    }

    /// Closes a handle, which must not take all of its time.
    async fn close(&self, registry: &dyn Registry) {
        let closed = tokio::time::timeout(self.patience, registry.close(2 * self.patience)).await;
        closed.unwrap_or_else(|_| panic!("not closed within {:?}", self.patience));
    }

    async fn listed(&self, registry: &dyn Registry, addr: SocketAddr) -> Member {
        self.entry("a node appears", registry, addr, |_| true).await
    }

    /// Waits for an entry that satisfies `good`.
    async fn entry(
        &self,
        what: &str,
        registry: &dyn Registry,
        addr: SocketAddr,
        good: impl Fn(&Member) -> bool,
    ) -> Member {
        let members = self.list(what, registry, |members| members.nodes.get(&addr).is_some_and(&good)).await;
        members.nodes[&addr].clone()
    }

    async fn gone(&self, registry: &dyn Registry, addr: SocketAddr) {
        self.list("a node disappears", registry, |members| !members.nodes.contains_key(&addr)).await;
    }

    async fn status(&self, registration: &Registration, good: impl Fn(&RegistrationStatus) -> bool) {
        self.wait("a registration's status", &mut registration.status(), |status| good(status)).await;
    }

    async fn register(&self, registry: &dyn Registry, addr: SocketAddr, record: &NodeRecord) -> Registration {
        let registration = registry.register(addr, record.clone());
        self.status(&registration, is_registered).await;
        registration
    }

    async fn read(&self, registry: &dyn Registry, addr: SocketAddr) -> Member {
        registry.read(addr).await.expect("the registry answers").expect("the entry is there")
    }

    async fn lead(&self, candidate: &mut watch::Receiver<Option<Arc<dyn Lease>>>) -> Arc<dyn Lease> {
        self.wait("a leader", candidate, Option::is_some).await.expect("it was waited for")
    }
}

fn is_registered(status: &RegistrationStatus) -> bool {
    *status == RegistrationStatus::Registered
}

fn addr(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// A record as a later version might write it.
fn record() -> NodeRecord {
    let mut record = NodeRecord::new();
    record.weight = 250;
    record.meta.insert("name".into(), "one".into());
    record.unknown.insert("zone".into(), serde_json::json!({ "rack": 7 }));
    record
}

/// Another handle sees every member of the record, those unknown to this version included.
pub async fn a_registered_node_is_listed_as_it_registered(subject: &Subject) {
    let (server, client) = (subject.open(), subject.open());
    let registration = subject.register(&*server, addr(1), &record()).await;
    assert_eq!(server.capabilities(), client.capabilities());
    let first = subject.listed(&*client, addr(1)).await;
    assert_eq!(first.record.meta["name"], "one");

    let updated = first.record.with_response_time(1234);
    client.update(addr(1), first.version, updated.clone()).await.expect("nobody else writes");
    let seen =
        subject.entry("the response time", &*server, addr(1), |member| member.record.response_time_us == 1234).await;
    assert_eq!(seen.record, updated);
    assert_eq!((seen.addr, &seen.malformed), (addr(1), &None));
    assert_eq!(seen.record.unknown["zone"]["rack"], 7);
    assert!(server.members().borrow().misnamed.is_empty());
    assert!(registration.withdraw(subject.patience).await);
}

/// An empty list is an answer, and a closed handle says that it is closed.
pub async fn an_empty_registry_is_known_and_live(subject: &Subject) {
    let registry = subject.open();
    let members = subject.list("an empty list", &*registry, |_| true).await;
    assert!(members.nodes.is_empty() && members.misnamed.is_empty());
    let mut health = registry.health();
    subject.wait("health", &mut health, Health::is_live).await;
    subject.close(&*registry).await;
    subject.wait("health", &mut health, |health| *health == Health::Closed).await;
    let refused = registry.register(addr(1), record());
    assert!(matches!(&*refused.status().borrow(), RegistrationStatus::Refused { .. }), "{refused:?}");
}

/// The state is written into the entry, and what others wrote there stays.
pub async fn a_new_state_is_seen_by_others(subject: &Subject) {
    let (server, client) = (subject.open(), subject.open());
    let registration = subject.register(&*server, addr(1), &record()).await;
    let member = subject.listed(&*client, addr(1)).await;
    client.update(addr(1), member.version, member.record.with_response_time(77)).await.expect("nobody else writes");

    assert!(registration.set_state(NodeState::Draining, subject.patience).await);
    let seen = subject.entry("the state", &*client, addr(1), |member| member.record.state == NodeState::Draining).await;
    assert_eq!(seen.record.response_time_us, 77);
    assert_eq!(seen.record.unknown["zone"]["rack"], 7);
    assert!(registration.set_state(NodeState::Up, subject.patience).await);
    assert_eq!(subject.read(&*client, addr(1)).await.record.state, NodeState::Up);
}

/// Withdrawing returns once the entry is gone; the same address then starts afresh.
pub async fn a_withdrawn_node_is_gone_and_may_come_back(subject: &Subject) {
    let (server, client) = (subject.open(), subject.open());
    let registration = subject.register(&*server, addr(1), &record()).await;
    let old = subject.listed(&*client, addr(1)).await;
    client.update(addr(1), old.version, old.record.with_response_time(77)).await.expect("nobody else writes");

    let mut status = registration.status();
    assert!(registration.withdraw(subject.patience).await);
    subject.wait("the end", &mut status, |status| *status == RegistrationStatus::Withdrawn).await;
    assert_eq!(client.read(addr(1)).await, Ok(None));
    subject.gone(&*client, addr(1)).await;

    let _again = subject.register(&*server, addr(1), &record()).await;
    let new = subject.listed(&*client, addr(1)).await;
    assert_ne!((&new.record.id, new.version), (&old.record.id, old.version));
    assert_eq!(new.record.response_time_us, 0, "a fresh node is unknown");
}

/// Dropping is withdrawing, in the background.
pub async fn a_dropped_registration_is_gone(subject: &Subject) {
    let (server, client) = (subject.open(), subject.open());
    let registration = subject.register(&*server, addr(1), &record()).await;
    subject.listed(&*client, addr(1)).await;
    drop(registration);
    subject.gone(&*client, addr(1)).await;
}

/// Closing returns once the nodes are withdrawn.
pub async fn a_closed_handle_withdraws_its_nodes(subject: &Subject) {
    let (server, client) = (subject.open(), subject.open());
    let _registration = subject.register(&*server, addr(1), &record()).await;
    subject.listed(&*client, addr(1)).await;
    subject.close(&*server).await;
    assert_eq!(client.read(addr(1)).await, Ok(None));
    subject.gone(&*client, addr(1)).await;
}

/// The tasks of a handle end with it.
pub async fn a_dropped_handle_withdraws_its_nodes(subject: &Subject) {
    let (server, client) = (subject.open(), subject.open());
    let _registration = subject.register(&*server, addr(1), &record()).await;
    subject.listed(&*client, addr(1)).await;
    drop(server);
    subject.gone(&*client, addr(1)).await;
}

/// Two live processes cannot both have an address: one is told so, and gets it when it is free.
pub async fn an_address_has_one_owner(subject: &Subject) {
    let (one, two) = (subject.open(), subject.open());
    let mut registrations =
        vec![subject.register(&*one, addr(1), &record()).await, two.register(addr(1), NodeRecord::new())];
    let conflict = |status: &RegistrationStatus| matches!(status, RegistrationStatus::Conflict { .. });
    let (mut first, mut second) = (registrations[0].status(), registrations[1].status());
    let loser = tokio::time::timeout(subject.patience, async {
        tokio::select! {
            lost = first.wait_for(|status| conflict(status)) => { lost.expect("it is alive"); 0 }
            lost = second.wait_for(|status| conflict(status)) => { lost.expect("it is alive"); 1 }
        }
    });
    let loser = registrations.remove(loser.await.expect("a conflict is reported"));
    assert_eq!(subject.listed(&*one, addr(1)).await.addr, addr(1));

    let winner = registrations.remove(0);
    assert!(winner.withdraw(subject.patience).await);
    subject.status(&loser, is_registered).await;
    subject.listed(&*one, addr(1)).await;
}

/// Nodes that come at the same moment, through several handles, all arrive.
pub async fn many_nodes_at_once_are_all_listed(subject: &Subject) {
    let handles: Vec<_> = (0..4).map(|_| subject.open()).collect();
    let all: BTreeSet<SocketAddr> = (1..=20).map(addr).collect();
    let registrations: Vec<_> =
        all.iter().zip(handles.iter().cycle()).map(|(&addr, handle)| handle.register(addr, record())).collect();
    for handle in &handles {
        subject.list("all nodes", &**handle, |members| members.nodes.keys().eq(&all)).await;
    }
    for registration in &registrations {
        subject.status(registration, is_registered).await;
    }
    drop(registrations);
    for handle in &handles {
        subject.list("no node", &**handle, |members| members.nodes.is_empty()).await;
    }
}

/// An address with colons in it is an address.
pub async fn ipv6_addresses_work(subject: &Subject) {
    let (server, client) = (subject.open(), subject.open());
    let addr: SocketAddr = "[::1]:8898".parse().expect("it is an address");
    let registration = subject.register(&*server, addr, &record()).await;
    let member = subject.listed(&*client, addr).await;
    assert_eq!(client.update(addr, member.version, member.record.with_response_time(5)).await, Ok(()));
    assert_eq!(subject.read(&*server, addr).await.record.response_time_us, 5);
    assert!(registration.withdraw(subject.patience).await);
    assert_eq!(client.read(addr).await, Ok(None));
}

/// No entry is no error when reading, and a change when writing.
pub async fn a_missing_entry_is_none(subject: &Subject) {
    let registry = subject.open();
    subject.list("an empty list", &*registry, |_| true).await;
    assert_eq!(registry.read(addr(1)).await, Ok(None));
    assert_eq!(registry.update(addr(1), Version(1), record()).await, Err(UpdateError::Changed));
    assert_eq!(registry.read(addr(1)).await, Ok(None), "an update makes no entry");
}

/// The second of two writers that read the same version is refused and changes nothing.
pub async fn an_update_needs_the_version_that_was_read(subject: &Subject) {
    let (server, one, two) = (subject.open(), subject.open(), subject.open());
    let _registration = subject.register(&*server, addr(1), &record()).await;
    let member = subject.read(&*one, addr(1)).await;
    assert_eq!(member.version, subject.read(&*one, addr(1)).await.version);
    let seen_by_two = subject.read(&*two, addr(1)).await;

    assert_eq!(one.update(addr(1), member.version, member.record.with_response_time(10)).await, Ok(()));
    let late = two.update(addr(1), seen_by_two.version, seen_by_two.record.with_response_time(20)).await;
    assert_eq!(late, Err(UpdateError::Changed));
    let now = subject.read(&*two, addr(1)).await;
    assert_eq!(now.record.response_time_us, 10);
    assert_eq!(two.update(addr(1), now.version, now.record.with_response_time(20)).await, Ok(()));
    assert_eq!(subject.read(&*one, addr(1)).await.record.response_time_us, 20);
}

/// An entry's age is that of its last write, whether or not the value moved; reading leaves it.
pub async fn rewriting_the_same_value_is_a_change(subject: &Subject) {
    let (server, client) = (subject.open(), subject.open());
    let _registration = subject.register(&*server, addr(1), &record()).await;
    let before = subject.listed(&*client, addr(1)).await;
    assert_eq!(subject.read(&*client, addr(1)).await, before, "reading changes nothing, nor the age");

    assert_eq!(client.update(addr(1), before.version, before.record.clone()).await, Ok(()));
    let after = subject.entry("a new version", &*client, addr(1), |member| member.version != before.version).await;
    assert!(after.changed_at > before.changed_at);
    assert_eq!(after.record, before.record);
    assert_eq!(client.update(addr(1), before.version, record()).await, Err(UpdateError::Changed));
    assert_eq!(subject.read(&*client, addr(1)).await, after);
}

/// Writers that count up an entry by compare-and-set arrive at the sum of what each has added.
pub async fn concurrent_updates_are_never_lost(subject: &Subject) {
    const WRITERS: u64 = 4;
    const WRITES: u64 = 10;
    let server = subject.open();
    let _registration = subject.register(&*server, addr(1), &record()).await;
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let registry = subject.open();
        writers.spawn(async move {
            let mut written = 0;
            while written < WRITES {
                let Ok(Some(member)) = registry.read(addr(1)).await else { continue };
                let next = member.record.with_response_time(member.record.response_time_us + 1);
                match registry.update(addr(1), member.version, next).await {
                    Ok(()) => written += 1,
                    Err(UpdateError::Changed) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        });
    }
    let all = tokio::time::timeout(subject.patience, writers.join_all());
    all.await.expect("somebody gets on at each moment");
    assert_eq!(subject.read(&*server, addr(1)).await.record.response_time_us, WRITERS * WRITES);
}

/// No list, at any moment, lacks a node because its entry is being replaced.
pub async fn a_node_stays_listed_while_it_is_rewritten(subject: &Subject) {
    let (server, client) = (subject.open(), subject.open());
    let _registration = subject.register(&*server, addr(1), &record()).await;
    subject.listed(&*client, addr(1)).await;
    let mut lists = client.members();
    let watching = tokio::spawn(async move {
        while lists.changed().await.is_ok() {
            let members = lists.borrow_and_update().clone();
            let member = members.nodes.get(&addr(1)).expect("it is registered all the time");
            assert_eq!(member.malformed, None);
            if member.record.response_time_us == 30 {
                return;
            }
        }
    });
    for value in 1..=30 {
        let member = subject.read(&*server, addr(1)).await;
        let next = member.record.with_response_time(value);
        server.update(addr(1), member.version, next).await.expect("nobody else writes");
    }
    tokio::time::timeout(subject.patience, watching).await.expect("the last value arrives").expect("it stayed listed");
}

/// A job has one leader, and another one when that leader stops taking part or is closed.
pub async fn one_leads_at_a_time_and_another_follows(subject: &Subject) {
    let handles: Vec<_> = (0..3).map(|_| subject.open()).collect();
    let elect = |at: usize| handles[at].coordination().expect("it is declared").elect("job");
    let mut first = elect(0);
    subject.lead(&mut first).await;
    // Of candidates that come at the same moment, either may lead.
    let mut second = elect(1);
    // Another job is another election.
    let mut other = handles[1].coordination().expect("it is declared").elect("other job");
    subject.lead(&mut other).await;
    assert!(second.borrow().is_none() && first.borrow().is_some());

    drop(first);
    subject.lead(&mut second).await;
    let mut third = elect(2);
    let mut closed = second.clone();
    subject.close(&*handles[1]).await;
    subject.wait("the lease to go", &mut closed, Option::is_none).await;
    subject.lead(&mut third).await;
}

/// Whoever leads, each slot is claimed once, and never one below.
pub async fn a_slot_is_claimed_once(subject: &Subject) {
    let handles: Vec<_> = (0..3).map(|_| subject.open()).collect();
    let mut claimed = Vec::new();
    for (turn, handle) in handles.iter().enumerate() {
        let mut candidate = handle.coordination().expect("it is declared").elect("job");
        let lease = subject.lead(&mut candidate).await;
        for slot in [5, 5, 6 + turn as u64] {
            if lease.claim(slot).await.expect("it leads") {
                claimed.push(slot);
            }
        }
        assert_eq!(lease.claim(1).await, Ok(false));
    }
    assert_eq!(claimed, [5, 6, 7, 8]);
}

/// What a former leader still does has no effect.
pub async fn a_lost_lease_writes_nothing(subject: &Subject) {
    let (server, one, two) = (subject.open(), subject.open(), subject.open());
    let _registration = subject.register(&*server, addr(1), &record()).await;
    let mut former = one.coordination().expect("it is declared").elect("job");
    let old_lease = subject.lead(&mut former).await;
    let member = subject.read(&*one, addr(1)).await;
    old_lease.update(addr(1), member.version, member.record.with_response_time(1)).await.expect("it leads");
    let stale = old_lease.update(addr(1), member.version, member.record.with_response_time(2)).await;
    assert_eq!(stale, Err(UpdateError::Changed), "a lease is no licence to overwrite");

    drop(former);
    let mut latter = two.coordination().expect("it is declared").elect("job");
    let lease = subject.lead(&mut latter).await;
    let member = subject.read(&*two, addr(1)).await;
    let late = old_lease.update(addr(1), member.version, member.record.with_response_time(3)).await;
    assert_eq!(late, Err(UpdateError::LeaseLost));
    assert_eq!(old_lease.claim(100).await, Err(UpdateError::LeaseLost));
    assert_eq!(subject.read(&*two, addr(1)).await.record.response_time_us, 1);
    assert_eq!(lease.claim(100).await, Ok(true));

    subject.close(&*two).await;
    assert!(lease.claim(101).await.is_err());
}

/// A payload that nobody can read harms neither its node nor the others, and can be replaced.
pub async fn a_malformed_payload_is_listed_as_such(subject: &Subject) {
    let registry = subject.open();
    let _healthy = subject.register(&*registry, addr(1), &record()).await;
    let name = addr(2).to_string();
    for payload in ["", "not json", "[1]", "{\"weight\":\"heavy\"}", "{\"v\":1"] {
        let planted = subject.outside().plant(&name, payload.as_bytes()).await;
        let member = subject.listed(&*registry, addr(2)).await;
        assert!(member.malformed.is_some(), "{payload:?}");
        assert_eq!((member.record.response_time_us, member.record.id.as_str()), (0, ""));
        assert!(subject.listed(&*registry, addr(1)).await.malformed.is_none());
        registry.update(addr(2), member.version, record()).await.expect("it can be replaced");
        assert_eq!(subject.read(&*registry, addr(2)).await.malformed, None);
        drop(planted);
        subject.gone(&*registry, addr(2)).await;
    }
}

/// What is no node is told apart, and keeps nobody from the nodes.
pub async fn a_name_that_is_no_address_is_listed_as_such(subject: &Subject) {
    let registry = subject.open();
    let _healthy = subject.register(&*registry, addr(1), &record()).await;
    let _one = subject.outside().plant("localhost:80", b"{}").await;
    let _two = subject.outside().plant("127.0.0.1", b"{}").await;
    let members = subject.list("both names", &*registry, |members| members.misnamed.len() == 2).await;
    let names: BTreeSet<&str> = members.misnamed.iter().map(String::as_str).collect();
    assert_eq!(names, BTreeSet::from(["127.0.0.1", "localhost:80"]));
    assert_eq!(members.nodes.len(), 1);
}

/// A server that lives is announced, whoever deletes its entry.
pub async fn an_entry_deleted_from_outside_comes_back(subject: &Subject) {
    let (server, client) = (subject.open(), subject.open());
    let registration = subject.register(&*server, addr(1), &record()).await;
    assert!(registration.set_state(NodeState::Draining, subject.patience).await);
    let before = subject.read(&*client, addr(1)).await;
    subject.outside().erase(&addr(1).to_string()).await;
    let after = subject.entry("the entry", &*client, addr(1), |member| member.version != before.version).await;
    assert_eq!(after.record, before.record);
    assert!(registration.withdraw(subject.patience).await);
    subject.gone(&*client, addr(1)).await;
}

/// A server that lives is announced as itself, whatever others write over its entry; what its
/// clients wrote there is theirs.
pub async fn an_entry_overwritten_from_outside_is_put_right(subject: &Subject) {
    let (server, client) = (subject.open(), subject.open());
    let (ours, name) = (record(), addr(1).to_string());
    let registration = subject.register(&*server, addr(1), &ours).await;
    assert!(registration.set_state(NodeState::Draining, subject.patience).await);
    for spoiled in [b"trash".to_vec(), Vec::new(), b"{}".to_vec(), NodeRecord::new().to_json()] {
        let before = subject.read(&*client, addr(1)).await;
        subject.outside().overwrite(&name, &spoiled).await;
        let put_right = |member: &Member| member.record.id == ours.id && member.version != before.version;
        let after = subject.entry("our entry", &*client, addr(1), put_right).await;
        assert_eq!((&after.malformed, after.record.state), (&None, NodeState::Draining));
        assert_eq!(after.record.unknown["zone"]["rack"], 7);
    }
    let measured = NodeRecord { state: NodeState::Draining, ..ours.with_response_time(77) };
    let member = subject.read(&*client, addr(1)).await;
    client.update(addr(1), member.version, measured.clone()).await.expect("nobody else writes");
    assert!(registration.set_state(NodeState::Up, subject.patience).await);
    let kept = NodeRecord { state: NodeState::Up, ..measured };
    assert_eq!(subject.read(&*client, addr(1)).await.record, kept);
    assert!(registration.withdraw(subject.patience).await);
    subject.gone(&*client, addr(1)).await;
}
