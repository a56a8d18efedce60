//! The state behind the list of nodes: what was last read of each, and when it changed.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;
use zookeeper_client::Stat;

use crate::NodeRecord;
use crate::registry::{Member, Members, Version};

/// What ZooKeeper says about one content of a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stamp {
    /// The transaction that wrote this content. No other content has the same, unless the ensemble
    /// lost all its data and counts from 0 again; the times tell these apart.
    mzxid: i64,
    mtime: i64,
    /// The transaction that created the znode.
    czxid: i64,
    ctime: i64,
    /// Writes since then. This is what ZooKeeper compares in a compare-and-set.
    pub(super) version: i32,
}

impl Stamp {
    /// Whether this content is the one that `version` stands for.
    pub(super) fn names(self, version: Version) -> bool {
        self.outward() == version
    }

    /// Whether both are contents of one znode, not of one that was created anew.
    pub(super) fn same_znode(self, other: Self) -> bool {
        (self.czxid, self.ctime) == (other.czxid, other.ctime)
    }

    fn outward(self) -> Version {
        // A version has 64 bits. That two contents of one entry meet in a hash of that length is
        // less likely than that the memory which holds them fails.
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        Version(hasher.finish())
    }
}

impl From<&Stat> for Stamp {
    fn from(stat: &Stat) -> Self {
        let Stat { mzxid, mtime, czxid, ctime, version, .. } = *stat;
        Self { mzxid, mtime, czxid, ctime, version }
    }
}

/// The stamps of all znodes as last read, for those who write.
#[derive(Clone, Debug, Default)]
pub(super) struct Stamps(Arc<Mutex<HashMap<SocketAddr, Stamp>>>);

impl Stamps {
    pub(super) fn of(&self, addr: SocketAddr) -> Option<Stamp> {
        self.0.lock().get(&addr).copied()
    }
}

/// All nodes as last read. Owned by the task that keeps the list.
#[derive(Debug)]
pub(super) struct Table {
    nodes: BTreeMap<SocketAddr, Member>,
    misnamed: Vec<String>,
    stamps: Stamps,
}

impl Table {
    pub(super) fn new(stamps: Stamps) -> Self {
        Self { nodes: BTreeMap::new(), misnamed: Vec::new(), stamps }
    }

    /// Takes in the names of all znodes; returns the nodes that were not known before.
    pub(super) fn list(&mut self, names: Vec<String>) -> Vec<SocketAddr> {
        let mut listed = BTreeMap::new();
        self.misnamed.clear();
        for name in names {
            match address(&name) {
                Some(addr) => drop(listed.insert(addr, ())),
                None => self.misnamed.push(name),
            }
        }
        self.misnamed.sort_unstable();
        self.nodes.retain(|addr, _| listed.contains_key(addr));
        self.stamps.0.lock().retain(|addr, _| listed.contains_key(addr));
        listed.into_keys().filter(|addr| !self.nodes.contains_key(addr)).collect()
    }

    /// Takes in what was read of one znode at `now`.
    pub(super) fn put(&mut self, addr: SocketAddr, data: &[u8], stamp: Stamp, now: Instant) {
        self.stamps.0.lock().insert(addr, stamp);
        let version = stamp.outward();
        if self.nodes.get(&addr).is_some_and(|known| known.version == version) {
            return;
        }
        let (record, malformed) = match NodeRecord::from_json(data) {
            Ok(record) => (record, None),
            Err(reason) => (NodeRecord::unreadable(), Some(reason)),
        };
        self.nodes.insert(addr, Member { addr, record, malformed, version, changed_at: now });
    }

    /// Takes in that there is no such znode.
    pub(super) fn remove(&mut self, addr: SocketAddr) {
        self.stamps.0.lock().remove(&addr);
        self.nodes.remove(&addr);
    }

    pub(super) fn get(&self, addr: SocketAddr) -> Option<&Member> {
        self.nodes.get(&addr)
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.nodes.keys().copied()
    }

    /// The list to publish, confirmed at `now`.
    pub(super) fn snapshot(&self, now: Instant) -> Members {
        Members { nodes: self.nodes.clone(), misnamed: self.misnamed.clone(), as_of: Some(now) }
    }
}

/// The address that a znode is named after. `127.0.0.1:08898` is none: a node has one name.
fn address(name: &str) -> Option<SocketAddr> {
    name.parse().ok().filter(|addr: &SocketAddr| addr.to_string() == name)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn stamp(mzxid: i64, czxid: i64, version: i32) -> Stamp {
        Stamp { mzxid, mtime: 0, czxid, ctime: 0, version }
    }

    fn addr() -> SocketAddr {
        "127.0.0.1:1".parse().unwrap()
    }

    #[test]
    fn the_time_of_a_change_moves_only_with_the_content() {
        let mut table = Table::new(Stamps::default());
        let start = Instant::now();
        let later = start + Duration::from_secs(3);
        table.put(addr(), b"{}", stamp(7, 7, 0), start);
        table.put(addr(), b"{}", stamp(7, 7, 0), later);
        assert_eq!(table.get(addr()).unwrap().changed_at, start);
        table.put(addr(), b"{}", stamp(8, 7, 1), later);
        assert_eq!(table.get(addr()).unwrap().changed_at, later);
    }

    #[test]
    fn a_znode_created_anew_never_has_an_old_version() {
        let stamps = Stamps::default();
        let mut table = Table::new(stamps.clone());
        let now = Instant::now();
        table.put(addr(), b"{}", stamp(7, 7, 0), now);
        let old = table.get(addr()).unwrap().version;
        table.put(addr(), b"{}", stamp(9, 9, 0), now);
        assert!(!stamps.of(addr()).unwrap().names(old));
        // All data lost: everything is numbered as before.
        table.put(addr(), b"{}", Stamp { mtime: 1, ctime: 1, ..stamp(7, 7, 0) }, now);
        assert!(!stamps.of(addr()).unwrap().names(old));
        table.remove(addr());
        assert_eq!(stamps.of(addr()), None);
    }

    #[test]
    fn names_that_are_no_address_are_kept_apart() {
        let mut table = Table::new(Stamps::default());
        let names = ["[::1]:2", "127.0.0.1:01", "readme", "127.0.0.1:1", "localhost:1"];
        let fresh = table.list(names.map(str::to_owned).to_vec());
        assert_eq!(fresh, [addr(), "[::1]:2".parse().unwrap()]);
        assert_eq!(table.snapshot(Instant::now()).misnamed, ["127.0.0.1:01", "localhost:1", "readme"]);
    }

    #[test]
    fn a_malformed_payload_is_a_node_with_a_reason() {
        let mut table = Table::new(Stamps::default());
        table.put(addr(), b"{", stamp(1, 1, 0), Instant::now());
        let member = table.get(addr()).unwrap();
        assert!(member.malformed.is_some());
        assert_eq!(member.record.response_time_us, 0);
    }
}
