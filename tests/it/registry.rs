//! The registries without ZooKeeper: the conformance suite, and what each promises beyond it.

use std::any::Any;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rpc_core::registry::{Health, Member, Members, RegistrationStatus, Registry, UpdateError, Version, open};
use rpc_core::{BoxFuture, ErrorKind, NodeRecord};
use rpc_tests::conformance::{Outside, Subject};
use rpc_tests::process::{Process, SOON};
use tempfile::TempDir;
use tokio::time::Instant;

rpc_tests::registry_conformance!(memory, super::memory_subject);
rpc_tests::registry_conformance!(local, super::local_subject);
rpc_tests::registry_outside_conformance!(local_outside, super::local_subject);

async fn memory_subject() -> Subject {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let url = format!("mem:conformance-{}", NAMES.fetch_add(1, Ordering::Relaxed));
    Subject { open: Box::new(move || registry(&url)), outside: None, patience: SOON }
}

async fn local_subject() -> Subject {
    let dir = Arc::new(TempDir::new().unwrap());
    let outside = LocalOutside(dir.clone());
    Subject { open: Box::new(move || local(dir.path())), outside: Some(Box::new(outside)), patience: SOON }
}

/// Works on the files.
struct LocalOutside(Arc<TempDir>);

impl Outside for LocalOutside {
    fn plant(&self, name: &str, payload: &[u8]) -> BoxFuture<'_, Box<dyn Any + Send>> {
        let cluster = self.0.path().join(".cluster");
        fs::create_dir_all(cluster.join("locks")).unwrap();
        // Nobody clears the lock file away between making and locking it.
        let write = File::options().write(true).create(true).truncate(false).open(cluster.join("write")).unwrap();
        write.lock().unwrap();
        let lock = File::create(cluster.join("locks").join(name)).unwrap();
        lock.lock().unwrap();
        fs::write(self.0.path().join(name), payload).unwrap();
        Box::pin(std::future::ready(Box::new(lock) as Box<dyn Any + Send>))
    }

    fn erase(&self, name: &str) -> BoxFuture<'_, ()> {
        fs::remove_file(self.0.path().join(name)).unwrap();
        Box::pin(std::future::ready(()))
    }

    fn overwrite(&self, name: &str, payload: &[u8]) -> BoxFuture<'_, ()> {
        fs::write(self.0.path().join(name), payload).unwrap();
        Box::pin(std::future::ready(()))
    }
}

fn registry(url: &str) -> Arc<dyn Registry> {
    open(&url.parse().unwrap()).unwrap()
}

fn local(dir: &Path) -> Arc<dyn Registry> {
    registry(&local_url(dir))
}

fn local_url(dir: &Path) -> String {
    format!("local:{}", dir.display())
}

fn addr(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

async fn listed(registry: &dyn Registry, good: impl Fn(&Members) -> bool) -> Arc<Members> {
    let mut members = registry.members();
    let found = tokio::time::timeout(SOON, members.wait_for(|members| members.is_known() && good(members))).await;
    found.expect("in time").unwrap().clone()
}

async fn healthy(registry: &dyn Registry, good: impl Fn(&Health) -> bool) -> Health {
    let mut health = registry.health();
    let found = tokio::time::timeout(SOON, health.wait_for(|health| good(health))).await;
    found.expect("in time").unwrap().clone()
}

/// Moves whatever it is to where an entry is, which may come back meanwhile.
fn take_place(obstruction: &Path, entry: &Path) {
    while fs::rename(obstruction, entry).is_err() {
        let _ = fs::remove_file(entry);
    }
}

/// Starts the helper process.
fn registrant(arguments: &[&str]) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_registrant"));
    command.args(arguments);
    Process::start(command)
}

async fn node_process(dir: &Path, addr: SocketAddr) -> Process {
    let process = registrant(&["node", &local_url(dir), &addr.to_string()]);
    process.stdout_line("registered", SOON).await;
    process
}

#[tokio::test]
async fn a_fixed_list_is_known_at_once_and_takes_nothing() {
    let registry = registry("static:127.0.0.1:1,[::1]:2,127.0.0.1:1");
    let members = registry.members().borrow().clone();
    assert!(members.is_known() && registry.health().borrow().is_live());
    assert_eq!(members.nodes.keys().copied().collect::<Vec<_>>(), [addr(1), "[::1]:2".parse().unwrap()]);
    let Member { record, malformed, .. } = &members.nodes[&addr(1)];
    assert_eq!((record.response_time_us, record.id.as_str(), malformed), (0, "", &None));

    let capabilities = registry.capabilities();
    assert!(!capabilities.register && !capabilities.write_back && !capabilities.coordination);
    // A server that is in the list is told what takes entries, one that is not that it is not.
    for (port, why) in [(1, "use local: or zk://"), (3, "does not list 127.0.0.1:3")] {
        let refused = registry.register(addr(port), NodeRecord::new());
        let RegistrationStatus::Refused { reason } = refused.status().borrow().clone() else { panic!("{refused:?}") };
        assert!(reason.contains("static:127.0.0.1:1") && reason.contains(why), "{reason}");
    }
    assert!(registry.coordination().is_none());
    assert_eq!(registry.read(addr(1)).await.unwrap().unwrap().addr, addr(1));
    assert_eq!(registry.read(addr(3)).await, Ok(None));
    let update = registry.update(addr(1), Version(0), NodeRecord::new()).await;
    assert!(matches!(update, Err(UpdateError::Refused(_))), "{update:?}");
}

#[tokio::test]
async fn options_that_a_backend_does_not_know_are_refused() {
    for url in ["mem:a?session=1s", "static:127.0.0.1:1?x=1", "local:/nowhere?x=1"] {
        let error = open(&url.parse().unwrap()).err().expect(url);
        assert!(matches!(error.kind(), ErrorKind::Config(reason) if reason.contains("unknown option")), "{error}");
    }
}

#[tokio::test]
async fn names_in_memory_are_apart_and_end_with_their_last_handle() {
    let (a, b) = (registry("mem:apart-a"), registry("mem:apart-b"));
    let _registration = a.register(addr(1), NodeRecord::new());
    listed(&*a, |members| members.nodes.len() == 1).await;
    assert!(b.members().borrow().nodes.is_empty());
    a.close(SOON).await;
    drop(a);
    assert!(registry("mem:apart-a").members().borrow().nodes.is_empty());
}

#[tokio::test]
async fn a_killed_server_is_gone_within_a_second() {
    let dir = TempDir::new().unwrap();
    let client = local(dir.path());
    let server = node_process(dir.path(), addr(1)).await;
    let others = node_process(dir.path(), addr(2)).await;
    listed(&*client, |members| members.nodes.len() == 2).await;
    let killed = Instant::now();
    server.kill();
    listed(&*client, |members| !members.nodes.contains_key(&addr(1))).await;
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    assert!(listed(&*client, |_| true).await.nodes.contains_key(&addr(2)));

    // What it left is cleared away, and a successor has the address at once.
    while dir.path().join("127.0.0.1:1").exists() {
        assert!(killed.elapsed() < SOON);
        tokio::task::yield_now().await;
    }
    let _again = node_process(dir.path(), addr(1)).await;
    listed(&*client, |members| members.nodes.contains_key(&addr(1))).await;
    drop(others);
}

#[tokio::test]
async fn a_successor_takes_over_the_entry_of_a_killed_server() {
    let dir = TempDir::new().unwrap();
    // Nobody watches: the entry stays until the successor comes.
    let server = node_process(dir.path(), addr(1)).await;
    server.kill();
    server.finished(SOON).await;
    assert!(dir.path().join("127.0.0.1:1").exists());
    let registry = local(dir.path());
    let record = NodeRecord::new();
    let registration = registry.register(addr(1), record.clone());
    let mut status = registration.status();
    let end = status.wait_for(|status| !matches!(status, RegistrationStatus::Pending { .. })).await.unwrap().clone();
    assert_eq!(end, RegistrationStatus::Registered, "a dead process is no conflict");
    assert_eq!(registry.read(addr(1)).await.unwrap().unwrap().record.id, record.id);
}

#[tokio::test]
async fn a_paused_server_keeps_its_entry() {
    let dir = TempDir::new().unwrap();
    let client = local(dir.path());
    let server = node_process(dir.path(), addr(1)).await;
    listed(&*client, |members| members.nodes.len() == 1).await;
    server.pause();
    let rival = client.register(addr(1), NodeRecord::new());
    let conflict = |status: &RegistrationStatus| matches!(status, RegistrationStatus::Conflict { .. });
    tokio::time::timeout(SOON, rival.status().wait_for(conflict)).await.unwrap().unwrap();
    assert!(client.read(addr(1)).await.unwrap().is_some());
    server.kill();
    let registered = |status: &RegistrationStatus| *status == RegistrationStatus::Registered;
    tokio::time::timeout(SOON, rival.status().wait_for(registered)).await.unwrap().unwrap();
}

#[tokio::test]
async fn processes_that_update_one_entry_lose_nothing() {
    let dir = TempDir::new().unwrap();
    let registry = local(dir.path());
    let _registration = registry.register(addr(1), NodeRecord::new());
    listed(&*registry, |members| members.nodes.len() == 1).await;
    let count = || registrant(&["count", &local_url(dir.path()), "127.0.0.1:1", "100"]);
    let writers = [count(), count(), count()];
    for writer in &writers {
        writer.stdout_line("done", SOON).await;
    }
    assert_eq!(registry.read(addr(1)).await.unwrap().unwrap().record.response_time_us, 300);
    listed(&*registry, |members| members.nodes[&addr(1)].record.response_time_us == 300).await;
}

#[tokio::test]
async fn another_process_leads_within_a_second_when_the_leader_is_killed() {
    let dir = TempDir::new().unwrap();
    let lead = || registrant(&["lead", &local_url(dir.path())]);
    let leader = lead();
    leader.stdout_line("leading 1", SOON).await;
    let other = lead();
    other.stdout_line("waiting", SOON).await;
    let registry = local(dir.path());
    let mut candidate = registry.coordination().unwrap().elect("job");
    let killed = Instant::now();
    leader.kill();
    tokio::select! {
        // Slots go on where the dead leader was.
        line = other.stdout_line("leading", SOON) => assert_eq!(line, "leading 2"),
        lease = candidate.wait_for(Option::is_some) => {
            let lease = lease.unwrap().clone().unwrap();
            assert_eq!(lease.claim(1).await, Ok(false));
            assert_eq!(lease.claim(2).await, Ok(true));
        }
    }
    // Half a second between two tries, and as much again for a busy machine.
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
}

#[tokio::test]
async fn a_lease_whose_file_was_deleted_writes_nothing() {
    let dir = TempDir::new().unwrap();
    let registry = local(dir.path());
    let mut candidate = registry.coordination().unwrap().elect("job");
    let lease = candidate.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    fs::remove_dir_all(dir.path().join(".cluster/jobs")).unwrap();
    fs::create_dir(dir.path().join(".cluster/jobs")).unwrap();
    assert_eq!(lease.claim(1).await, Err(UpdateError::LeaseLost));
    // It notices, and takes part anew.
    let anew = tokio::time::timeout(SOON, async {
        loop {
            let lease = candidate.wait_for(Option::is_some).await.unwrap().clone().unwrap();
            if lease.claim(1).await == Ok(true) {
                return;
            }
            candidate.changed().await.unwrap();
        }
    });
    anew.await.expect("it leads again");
}

/// A pipe that nobody writes into must not be waited for, and what a link leads to is not ours.
#[tokio::test]
async fn whatever_takes_the_place_of_an_entry_is_replaced() {
    let dir = TempDir::new().unwrap();
    let (server, client) = (local(dir.path()), local(dir.path()));
    let record = NodeRecord::new();
    let _registration = server.register(addr(1), record.clone());
    let ours = |members: &Members| members.nodes.get(&addr(1)).is_some_and(|member| member.record.id == record.id);
    listed(&*client, ours).await;
    let (entry, elsewhere) = (dir.path().join("127.0.0.1:1"), dir.path().join(".elsewhere"));
    fs::write(&elsewhere, record.to_json()).unwrap();
    let pipe = |at: &Path| assert!(Command::new("mkfifo").arg(at).status().unwrap().success());
    let link = |at: &Path| std::os::unix::fs::symlink(&elsewhere, at).unwrap();
    let directory = |at: &Path| fs::create_dir(at).unwrap();
    for obstacle in [&directory as &dyn Fn(&Path), &link, &pipe] {
        let obstruction = dir.path().join(".obstruction");
        obstacle(&obstruction);
        take_place(&obstruction, &entry);
        let replaced = async {
            while !fs::symlink_metadata(&entry).is_ok_and(|there| there.is_file()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(SOON, replaced).await.expect("the entry comes back");
        listed(&*client, ours).await;
    }
    assert_eq!(fs::read(&elsewhere).unwrap(), record.to_json());
}

#[tokio::test]
async fn a_directory_with_something_in_it_in_place_of_an_entry_is_not_removed() {
    let dir = TempDir::new().unwrap();
    let (server, client) = (local(dir.path()), local(dir.path()));
    let entry = dir.path().join("127.0.0.1:1");
    fs::create_dir(&entry).unwrap();
    fs::write(entry.join("precious"), "").unwrap();
    let registration = server.register(addr(1), NodeRecord::new());
    let in_the_way = |status: &RegistrationStatus| matches!(status, RegistrationStatus::Pending { trouble: Some(trouble) } if trouble.contains("127.0.0.1:1"));
    tokio::time::timeout(SOON, registration.status().wait_for(in_the_way)).await.unwrap().unwrap();
    fs::remove_file(entry.join("precious")).unwrap();
    listed(&*client, |members| members.nodes.len() == 1).await;

    // The same to a server that was announced before.
    let occupied = dir.path().join(".occupied");
    fs::create_dir(&occupied).unwrap();
    fs::write(occupied.join("precious"), "").unwrap();
    take_place(&occupied, &entry);
    tokio::time::timeout(SOON, registration.status().wait_for(in_the_way)).await.unwrap().unwrap();
    assert!(entry.join("precious").exists());
    fs::remove_file(entry.join("precious")).unwrap();
    let registered = |status: &RegistrationStatus| *status == RegistrationStatus::Registered;
    tokio::time::timeout(SOON, registration.status().wait_for(registered)).await.unwrap().unwrap();
    listed(&*client, |members| members.nodes.len() == 1).await;
}

#[tokio::test]
async fn a_directory_that_was_deleted_is_made_and_filled_again() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("ns");
    let (server, client) = (local(&root), local(&root));
    let _registrations: Vec<_> = (1..=3).map(|port| server.register(addr(port), NodeRecord::new())).collect();
    listed(&*client, |members| members.nodes.len() == 3).await;
    fs::remove_dir_all(&root).unwrap();
    listed(&*server, |members| members.nodes.len() < 3).await;
    listed(&*server, |members| members.nodes.len() == 3).await;
    listed(&*client, |members| members.nodes.len() == 3).await;

    // The new directory is watched like the old one.
    listed(&*client, |_| true).await;
    let began = Instant::now();
    let process = node_process(&root, addr(4)).await;
    listed(&*client, |members| members.nodes.len() == 4).await;
    process.kill();
    listed(&*client, |members| members.nodes.len() == 3).await;
    assert!(began.elapsed() < SOON);
}

#[tokio::test]
async fn a_directory_that_cannot_be_had_is_refused_at_once() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "in the way").unwrap();
    for root in [file.clone(), file.join("ns")] {
        let error = open(&local_url(&root).parse().unwrap()).err().expect("it is no directory");
        assert!(matches!(error.kind(), ErrorKind::Config(_)), "{error:?}");
        assert!(error.to_string().contains(&root.display().to_string()), "{error}");
    }
    // Not even root can make a directory here.
    let registry = local(Path::new("/sys/rpc"));
    let refused = |status: &RegistrationStatus| matches!(status, RegistrationStatus::Refused { .. });
    let registration = registry.register(addr(1), NodeRecord::new());
    let mut status = registration.status();
    let status = tokio::time::timeout(SOON, status.wait_for(refused)).await.unwrap().unwrap().clone();
    assert!(format!("{status:?}").contains("cannot create the directory /sys/rpc"), "{status:?}");
}

#[tokio::test]
async fn a_directory_that_was_lost_is_tried_for_ever() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("ns");
    let registry = local(&root);
    let _registration = registry.register(addr(1), NodeRecord::new());
    listed(&*registry, |members| members.nodes.len() == 1).await;

    // The last list stands, and says since when.
    let aside = dir.path().join("aside");
    fs::rename(&root, &aside).unwrap();
    fs::write(&root, "in the way").unwrap();
    let health = healthy(&*registry, |health| health.trouble().is_some()).await;
    assert!(matches!(health, Health::Stale { .. }), "{health:?}");
    assert_eq!(registry.members().borrow().nodes.len(), 1);
    fs::remove_file(&root).unwrap();
    fs::rename(&aside, &root).unwrap();
    healthy(&*registry, Health::is_live).await;
    assert_eq!(registry.members().borrow().nodes.len(), 1);
}

#[tokio::test]
async fn only_addresses_of_this_machine_are_accepted() {
    let dir = TempDir::new().unwrap();
    let registry = local(dir.path());
    for addr in ["10.0.0.1:80", "0.0.0.0:80", "[2001:db8::1]:80", "[::]:80"] {
        let refused = registry.register(addr.parse().unwrap(), NodeRecord::new());
        let RegistrationStatus::Refused { reason } = refused.status().borrow().clone() else { panic!("{addr}") };
        assert!(reason.contains(addr) && reason.contains("zk://"), "{reason}");
    }
    for addr in ["127.3.2.1:80", "[::1]:80", "[::ffff:127.0.0.1]:81"] {
        let registration = registry.register(addr.parse().unwrap(), NodeRecord::new());
        let registered = |status: &RegistrationStatus| *status == RegistrationStatus::Registered;
        tokio::time::timeout(SOON, registration.status().wait_for(registered)).await.expect(addr).unwrap();
    }
}

#[tokio::test]
async fn subdirectories_are_other_namespaces() {
    let dir = TempDir::new().unwrap();
    let (outer, inner) = (local(dir.path()), local(&dir.path().join("orders")));
    let _outer = outer.register(addr(1), NodeRecord::new());
    let _inner = inner.register(addr(2), NodeRecord::new());
    let outer = listed(&*outer, |members| !members.nodes.is_empty()).await;
    let inner = listed(&*inner, |members| !members.nodes.is_empty()).await;
    assert_eq!(outer.nodes.keys().collect::<Vec<_>>(), [&addr(1)]);
    assert_eq!(inner.nodes.keys().collect::<Vec<_>>(), [&addr(2)]);
    assert!(outer.misnamed.is_empty() && inner.misnamed.is_empty());
}

#[tokio::test]
async fn the_list_is_confirmed_each_second_and_bursts_are_read_seldom() {
    let dir = TempDir::new().unwrap();
    let (server, client) = (local(dir.path()), local(dir.path()));
    let _registration = server.register(addr(1), NodeRecord::new());
    let first = listed(&*client, |members| members.nodes.len() == 1).await.as_of.unwrap();
    let mut lists = client.members();
    lists.mark_unchanged();
    let confirmed = async {
        while lists.borrow().as_of.unwrap() < first + Duration::from_secs(2) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, confirmed).await.expect("the list is read without events as well");
    assert!(!lists.has_changed().unwrap(), "that nothing changed is no news");

    let began = Instant::now();
    let mut read = 0;
    for value in 1..=200 {
        let member = server.read(addr(1)).await.unwrap().unwrap();
        server.update(addr(1), member.version, member.record.with_response_time(value)).await.unwrap();
        read += u128::from(lists.has_changed().unwrap());
        lists.mark_unchanged();
    }
    let most = began.elapsed().as_millis() / 50 + 2;
    assert!(read <= most, "{read} lists in {:?}", began.elapsed());
    listed(&*client, |members| members.nodes[&addr(1)].record.response_time_us == 200).await;
}

#[tokio::test]
async fn the_default_directory_is_the_users_own() {
    let dir = TempDir::new().unwrap();
    let place = |variable: &'static str, value: PathBuf| {
        let addr = addr(1).to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_registrant"));
        command.args(["node", "local:", &addr]).env("XDG_RUNTIME_DIR", "").env("TMPDIR", "/nowhere");
        command.env(variable, value);
        Process::start(command)
    };
    let runtime = place("XDG_RUNTIME_DIR", dir.path().to_owned());
    runtime.stdout_line("registered", SOON).await;
    assert!(dir.path().join("rpc/127.0.0.1:1").exists());
    let temporary = place("TMPDIR", dir.path().to_owned());
    temporary.stdout_line("registered", SOON).await;
    let user = rustix::process::getuid().as_raw();
    assert!(dir.path().join(format!("rpc-{user}/127.0.0.1:1")).exists());
}
