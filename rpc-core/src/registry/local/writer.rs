//! Changes of the directory. Everything here blocks.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::directory::{Directory, explain, is_at, remove};
use super::entry::Entry;
use crate::NodeRecord;
use crate::registry::{UpdateError, Version};

/// Writers hold the lock for less than a millisecond. One that was stopped meanwhile is waited for
/// this long, which stays below the bound of an operation.
const WRITE_LOCK_WAIT: Duration = Duration::from_millis(1500);
const WRITE_LOCK_POLL: Duration = Duration::from_millis(1);

/// A payload that is longer is not read; ZooKeeper has the same limit.
pub(super) const PAYLOAD_BYTES_MAX: u64 = 1024 * 1024;

/// The right to change the directory: one process at a time has it, for one change.
///
/// The modification time of the locked file is the clock of the namespace. Each write takes the
/// next tick, which becomes the modification time of the payload and thereby its version: two
/// writes never have the same one, however coarse the clock of the file system and whether or not
/// the entry was deleted in between.
pub(super) struct Writer<'a> {
    dir: &'a Directory,
    clock: File,
}

impl<'a> Writer<'a> {
    /// Waits for the right; fails with `TimedOut`.
    pub(super) fn lock(dir: &'a Directory) -> io::Result<Self> {
        let mut waited = Duration::ZERO;
        loop {
            if let Some(writer) = Self::try_lock(dir)? {
                return Ok(writer);
            }
            if waited >= WRITE_LOCK_WAIT {
                let reason = format!("{} is locked by a process that does not go on", dir.write().display());
                return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
            }
            thread::sleep(WRITE_LOCK_POLL);
            waited += WRITE_LOCK_POLL;
        }
    }

    /// None if another process has the right at the moment.
    pub(super) fn try_lock(dir: &'a Directory) -> io::Result<Option<Self>> {
        let path = dir.write();
        let clock = open_lock(&path)?;
        // A directory that was deleted and made anew has another lock.
        let locked = is_locked_by(&clock)? && is_at(&clock, &path)?;
        Ok(locked.then_some(Self { dir, clock }))
    }

    /// Replaces the file at `path`.
    pub(super) fn put(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let new = self.dir.new_file();
        let mut file = File::create(&new)?;
        file.write_all(content)?;
        let mut last = self.clock.metadata()?.modified()?;
        if let Ok(replaced) = fs::metadata(path) {
            // Somebody may have edited it by hand.
            last = last.max(replaced.modified()?);
        }
        let tick = file.metadata()?.modified()?.max(last + Duration::from_nanos(1));
        file.set_modified(tick)?;
        self.clock.set_modified(tick)?;
        fs::rename(&new, path)
    }

    /// Announces a node and returns its lock; none if the address belongs to another live process.
    /// `held` is the lock from the last time, so that a deleted entry is made again.
    pub(super) fn announce(&self, addr: SocketAddr, record: &NodeRecord, held: Option<&File>) -> io::Result<Announced> {
        let path = self.dir.lock(addr);
        let lock = match held {
            Some(held) if is_at(held, &path)? => None,
            Some(_) | None => {
                let lock = open_lock(&path)?;
                if !is_locked_by(&lock)? {
                    return Ok(Announced::Conflict);
                }
                Some(lock)
            }
        };
        let node = self.dir.node(addr);
        match lock {
            // Whatever is there is left from a dead process.
            Some(lock) => self.replace(&node, record).map(|()| Announced::New(lock)),
            None => self.settle(&node, record),
        }
    }

    /// Writes the state and leaves what others wrote, unless the entry is not that of `record`.
    fn settle(&self, node: &Path, record: &NodeRecord) -> io::Result<Announced> {
        match Entry::look(node, record)? {
            Entry::Own(there) if there.state == record.state => Ok(Announced::Again),
            Entry::Own(there) => {
                let record = NodeRecord { state: record.state, ..there };
                self.put(node, &record.to_json()).map(|()| Announced::Again)
            }
            Entry::Foreign(found) => self.replace(node, record).map(|()| Announced::PutRight { found }),
        }
    }

    /// Writes the entry of a node in place of whatever is there.
    fn replace(&self, node: &Path, record: &NodeRecord) -> io::Result<()> {
        // No file can be renamed onto a directory. Only an empty one is nobody's loss.
        if fs::symlink_metadata(node).is_ok_and(|there| there.is_dir()) {
            fs::remove_dir(node)
                .map_err(|e| explain("remove what is in place of the entry, the directory", node, &e))?;
        }
        self.put(node, &record.to_json())
    }

    /// Deletes the entry of a node that holds `lock`.
    pub(super) fn withdraw(&self, addr: SocketAddr, lock: &File) -> io::Result<()> {
        let path = self.dir.lock(addr);
        if is_at(lock, &path)? {
            remove(&self.dir.node(addr))?;
            remove(&path)?;
        }
        Ok(())
    }

    /// Deletes the entry of a node that is dead.
    pub(super) fn sweep(&self, addr: SocketAddr) -> io::Result<()> {
        let path = self.dir.lock(addr);
        // Read-only: closing it is then no event that wakes everybody up.
        let lock = match File::open(&path) {
            Ok(lock) => Some(lock),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        let dead = lock.as_ref().map_or(Ok(true), is_locked_by)?;
        if dead {
            remove(&self.dir.node(addr))?;
            remove(&path)?;
        }
        Ok(())
    }

    /// Replaces the record of an entry that still has `version`.
    pub(super) fn update(
        &self,
        addr: SocketAddr,
        version: Version,
        record: &NodeRecord,
    ) -> io::Result<Result<(), UpdateError>> {
        let node = self.dir.node(addr);
        match fs::metadata(&node) {
            Ok(metadata) if version_of(metadata.modified()?) == version && self.is_live(addr)? => {
                self.put(&node, &record.to_json()).map(Ok)
            }
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            Ok(_) | Err(_) => Ok(Err(UpdateError::Changed)),
        }
    }

    fn is_live(&self, addr: SocketAddr) -> io::Result<bool> {
        match File::open(self.dir.lock(addr)) {
            Ok(lock) => is_held(&lock),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// What became of an announcement.
pub(super) enum Announced {
    /// The address is ours as long as this file is open.
    New(File),
    /// It was ours before, and so was the entry.
    Again,
    /// It was ours before; in place of the entry there was something else.
    PutRight { found: String },
    /// It belongs to another process.
    Conflict,
}

/// Opens a file to lock it, for writing: closing such a file is an event, also when the kernel
/// closes it because the process was killed.
pub(super) fn open_lock(path: &Path) -> io::Result<File> {
    let options = File::options().read(true).write(true).create(true).truncate(false).clone();
    options.open(path).map_err(|e| explain("open", path, &e))
}

/// Tries to take a lock; whether it is ours now.
pub(super) fn is_locked_by(file: &File) -> io::Result<bool> {
    would_block(file.try_lock())
}

/// Whether another process holds the lock.
pub(super) fn is_held(file: &File) -> io::Result<bool> {
    let free = would_block(file.try_lock_shared())?;
    if free {
        file.unlock()?;
    }
    Ok(!free)
}

fn would_block(outcome: Result<(), TryLockError>) -> io::Result<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// Reads a payload and its version; none if there is no such file.
pub(super) fn read(path: &Path) -> io::Result<Option<(Version, Vec<u8>)>> {
    let opened = fs::metadata(path).and_then(|there| match there.is_file() {
        true => File::open(path),
        // Opening a pipe would wait for somebody who writes into it.
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "it is no regular file")),
    });
    let file = match opened {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let version = version_of(file.metadata()?.modified()?);
    let mut payload = Vec::new();
    file.take(PAYLOAD_BYTES_MAX + 1).read_to_end(&mut payload)?;
    Ok(Some((version, payload)))
}

pub(super) fn version_of(modified: SystemTime) -> Version {
    let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
    Version(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
