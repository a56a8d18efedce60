//! The state behind the list of nodes: what was last read of each, and when it changed.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;

use tokio::time::Instant;
use zookeeper_client::Stat;

use crate::NodeRecord;
use crate::registry::members::address;
use crate::registry::{Member, Members, Version};

/// The version of an entry that ZooKeeper describes so.
///
/// The transaction that wrote a content (`mzxid`) tells it from every other, unless the ensemble lost
/// all its data and counts from 0 again; the times tell these apart. A version has 64 bits: that two
/// contents of one entry meet in a hash of that length is not to be expected in the lifetime of a
/// cluster.
pub(super) fn version(stat: &Stat) -> Version {
    let mut hasher = DefaultHasher::new();
    (stat.mzxid, stat.mtime, stat.czxid, stat.ctime, stat.version).hash(&mut hasher);
    Version(hasher.finish())
}

/// All nodes as last read. Owned by the task that keeps the list.
#[derive(Debug, Default)]
pub(super) struct Table {
    nodes: BTreeMap<SocketAddr, Member>,
    misnamed: Vec<String>,
}

impl Table {
    /// Takes in the names of all znodes; returns the nodes that were not known before.
    pub(super) fn list(&mut self, names: Vec<String>) -> Vec<SocketAddr> {
        let mut listed = BTreeSet::new();
        self.misnamed.clear();
        for name in names {
            match address(&name) {
                Some(addr) => drop(listed.insert(addr)),
                None => self.misnamed.push(name),
            }
        }
        self.misnamed.sort_unstable();
        self.nodes.retain(|addr, _| listed.contains(addr));
        listed.into_iter().filter(|addr| !self.nodes.contains_key(addr)).collect()
    }

    /// Takes in what was read of one znode at `now`.
    pub(super) fn put(&mut self, addr: SocketAddr, data: &[u8], version: Version, now: Instant) {
        if self.nodes.get(&addr).is_some_and(|known| known.version == version) {
            return;
        }
        let (record, malformed) = match NodeRecord::from_json(data) {
            Ok(record) => (record, None),
            Err(reason) => (NodeRecord::unreadable(), Some(reason)),
        };
        self.nodes.insert(addr, Member { addr, record, malformed, version, changed_at: now });
    }

    /// Takes in that one znode is there, and may not be read for this reason.
    pub(super) fn put_hidden(&mut self, addr: SocketAddr, reason: String, now: Instant) {
        if self.nodes.get(&addr).is_some_and(|known| known.malformed.as_ref() == Some(&reason)) {
            return;
        }
        let (record, malformed) = (NodeRecord::unreadable(), Some(reason));
        // No content that is read has this version, so the next that is counts as a change.
        self.nodes.insert(addr, Member { addr, record, malformed, version: Version(0), changed_at: now });
    }

    /// Takes in that there is no such znode.
    pub(super) fn remove(&mut self, addr: SocketAddr) {
        self.nodes.remove(&addr);
    }

    pub(super) fn get(&self, addr: SocketAddr) -> Option<&Member> {
        self.nodes.get(&addr)
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.nodes.keys().copied()
    }

    /// Whether `members` holds the same.
    pub(super) fn is_in(&self, members: &Members) -> bool {
        members.is_known() && self.nodes == members.nodes && self.misnamed == members.misnamed
    }

    /// The list to publish, confirmed at `now`.
    pub(super) fn snapshot(&self, now: Instant) -> Members {
        Members { nodes: self.nodes.clone(), misnamed: self.misnamed.clone(), as_of: Some(now) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn addr() -> SocketAddr {
        "127.0.0.1:1".parse().unwrap()
    }

    #[test]
    fn the_time_of_a_change_moves_only_with_the_content() {
        let mut table = Table::default();
        let start = Instant::now();
        let later = start + Duration::from_secs(3);
        table.put(addr(), b"{}", Version(7), start);
        table.put(addr(), b"{}", Version(7), later);
        assert_eq!(table.get(addr()).unwrap().changed_at, start);
        table.put(addr(), b"{}", Version(8), later);
        assert_eq!(table.get(addr()).unwrap().changed_at, later);
    }

    #[test]
    fn a_znode_created_anew_never_has_an_old_version() {
        let stat = Stat {
            czxid: 7,
            mzxid: 7,
            pzxid: 7,
            ctime: 1000,
            mtime: 1000,
            version: 0,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: 1,
            data_length: 2,
            num_children: 0,
        };
        assert_eq!(version(&stat), version(&Stat { ephemeral_owner: 2, ..stat }));
        assert_ne!(version(&stat), version(&Stat { mzxid: 8, version: 1, ..stat }));
        assert_ne!(version(&stat), version(&Stat { mzxid: 9, czxid: 9, ..stat }));
        // All data lost: everything is numbered as before.
        assert_ne!(version(&stat), version(&Stat { ctime: 2000, mtime: 2000, ..stat }));
    }

    #[test]
    fn names_that_are_no_address_are_kept_apart() {
        let mut table = Table::default();
        let names = ["[::1]:2", "127.0.0.1:01", "readme", "127.0.0.1:1", "localhost:1"];
        let fresh = table.list(names.map(str::to_owned).to_vec());
        assert_eq!(fresh, [addr(), "[::1]:2".parse().unwrap()]);
        assert_eq!(table.snapshot(Instant::now()).misnamed, ["127.0.0.1:01", "localhost:1", "readme"]);
    }

    #[test]
    fn a_malformed_payload_is_a_node_with_a_reason() {
        let mut table = Table::default();
        table.put(addr(), b"{", Version(1), Instant::now());
        let member = table.get(addr()).unwrap();
        assert!(member.malformed.is_some());
        assert_eq!(member.record.response_time_us, 0);
    }
}
