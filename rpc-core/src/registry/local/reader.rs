//! The list of nodes, as the directory has it. Everything here blocks.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::directory::{Directory, FileId, explain};
use super::watcher::{Wake, Watcher};
use super::writer::{PAYLOAD_BYTES_MAX, Writer, is_held, read, version_of};
use crate::NodeRecord;
use crate::registry::members::address;
use crate::registry::{Member, Members, Version};

/// Reads the directory and publishes the list.
pub(super) struct Reader {
    dir: Arc<Directory>,
    members: watch::Sender<Arc<Members>>,
    wake: Arc<Wake>,
    /// Held during each read, so that a slow one never replaces what a later one has published.
    /// Only threads for blocking work wait for it.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The open lock files. Opening one for each probe would be an event for everybody who
    /// watches the directory, and a storm if all of them did so.
    locks: HashMap<SocketAddr, (FileId, File)>,
    watcher: Option<Watcher>,
}

impl Reader {
    pub(super) fn new(dir: Arc<Directory>, wake: Arc<Wake>) -> Self {
        Self { dir, members: watch::Sender::default(), wake, state: Mutex::default() }
    }

    pub(super) fn members(&self) -> watch::Receiver<Arc<Members>> {
        self.members.subscribe()
    }

    /// Reads everything, publishes it, and removes what dead processes left.
    pub(super) fn read_all(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        let Some(directories) = self.dir.ids()? else {
            // No server was here yet, so there are no nodes.
            *state = State::default();
            self.publish(Members { as_of: Some(Instant::now()), ..Members::default() });
            return Ok(());
        };
        // Watching comes first, so that no change falls between.
        if !state.watcher.as_ref().is_some_and(|watcher| watcher.is_on(directories)) {
            state.watcher = Some(Watcher::new(&self.dir, directories, self.wake.clone()));
        }
        let mut next = Members { as_of: Some(Instant::now()), ..Members::default() };
        let mut dead = Vec::new();
        for file in fs::read_dir(self.dir.root()).map_err(|e| explain("read the directory", self.dir.root(), &e))? {
            let file = file?;
            let name = file.file_name();
            let name = name.to_string_lossy();
            // Subdirectories are other namespaces.
            if name.starts_with('.') || file.file_type()?.is_dir() {
                continue;
            }
            match address(&name) {
                None => next.misnamed.push(name.into_owned()),
                Some(addr) => match self.look(addr, &mut state) {
                    Ok(Some(member)) => drop(next.nodes.insert(addr, member)),
                    Ok(None) => dead.push(addr),
                    // One entry that cannot be read does not keep us from the others.
                    Err(error) => drop(next.nodes.insert(addr, unreadable(addr, Version(0), error.to_string()))),
                },
            }
        }
        next.misnamed.sort();
        state.locks.retain(|addr, _| next.nodes.contains_key(addr));
        self.publish(next);
        drop(state);
        self.sweep(&dead);
        Ok(())
    }

    /// Whether a server has made the directory, so that changes are told.
    pub(super) fn is_watching(&self) -> bool {
        self.state.lock().watcher.is_some()
    }

    /// Reads one entry, and publishes the list with it.
    pub(super) fn read_one(&self, addr: SocketAddr) -> io::Result<Option<Member>> {
        let mut state = self.state.lock();
        let member = self.look(addr, &mut state)?;
        let mut next = Members::clone(&self.members.borrow());
        if next.is_known() {
            match &member {
                Some(member) => drop(next.nodes.insert(addr, member.clone())),
                None => drop(next.nodes.remove(&addr)),
            }
            self.publish(next);
        }
        Ok(member)
    }

    /// Reads one entry unless the version published last still stands. None if its node is dead.
    fn look(&self, addr: SocketAddr, state: &mut State) -> io::Result<Option<Member>> {
        if !self.is_live(addr, state)? {
            return Ok(None);
        }
        let path = self.dir.node(addr);
        let known = self.members.borrow().nodes.get(&addr).cloned();
        if let (Some(known), Ok(metadata)) = (known, fs::metadata(&path))
            && known.version == version_of(metadata.modified()?)
        {
            return Ok(Some(known));
        }
        Ok(read(&path)?.map(|(version, payload)| member(addr, version, &payload)))
    }

    fn is_live(&self, addr: SocketAddr, state: &mut State) -> io::Result<bool> {
        let path = self.dir.lock(addr);
        let there = match fs::metadata(&path) {
            Ok(metadata) => FileId::of(&metadata),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(e),
        };
        match state.locks.get(&addr) {
            Some((id, lock)) if *id == there => is_held(lock),
            Some(_) | None => {
                let lock = match File::open(&path) {
                    Ok(lock) => lock,
                    Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
                    Err(e) => return Err(explain("open", &path, &e)),
                };
                let held = is_held(&lock)?;
                state.locks.insert(addr, (FileId::of(&lock.metadata()?), lock));
                Ok(held)
            }
        }
    }

    /// Publishes a list. Those who wait are woken only if it says something new; that it was
    /// confirmed is no news.
    fn publish(&self, next: Members) {
        self.members.send_if_modified(|members| {
            let news = !members.is_known() || !same(members, &next);
            *members = Arc::new(next);
            news
        });
    }

    /// Removes what dead processes left. If that fails, or another process is at it, the next
    /// read tries again.
    fn sweep(&self, dead: &[SocketAddr]) {
        if dead.is_empty() {
            return;
        }
        let swept = match Writer::try_lock(&self.dir) {
            Ok(Some(writer)) => dead.iter().try_for_each(|&addr| writer.sweep(addr)),
            Ok(None) => Ok(()),
            Err(e) => Err(e),
        };
        if let Err(error) = swept {
            tracing::debug!(%error, directory = %self.dir.root().display(), "dead entries stay");
        }
    }
}

fn member(addr: SocketAddr, version: Version, payload: &[u8]) -> Member {
    if payload.len() as u64 > PAYLOAD_BYTES_MAX {
        return unreadable(addr, version, format!("it is longer than {PAYLOAD_BYTES_MAX} bytes"));
    }
    match NodeRecord::from_json(payload) {
        Ok(record) => Member { addr, record, malformed: None, version, changed_at: Instant::now() },
        Err(reason) => unreadable(addr, version, reason),
    }
}

fn unreadable(addr: SocketAddr, version: Version, reason: String) -> Member {
    let record = NodeRecord::unreadable();
    Member { addr, record, malformed: Some(reason), version, changed_at: Instant::now() }
}

fn same(a: &Members, b: &Members) -> bool {
    let versions = |members: &Members| members.nodes.values().map(|m| (m.addr, m.version)).collect::<Vec<_>>();
    a.misnamed == b.misnamed && versions(a) == versions(b)
}
