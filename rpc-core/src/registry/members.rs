//! The list of nodes at a moment.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::NodeRecord;

/// An age after which a response time counts as unknown, whether or not the expiry job has reset
/// the entry yet.
pub const RESPONSE_TIME_VALID: Duration = Duration::from_secs(5);

/// Version of an entry, given by the backend. Two different contents of one entry never have the
/// same version; nothing else follows from comparing them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version(pub u64);

/// One registry entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// The node's address, which is also the entry's name.
    pub addr: SocketAddr,
    /// Its payload; [`NodeRecord::unreadable`] if that is malformed.
    pub record: NodeRecord,
    /// What is wrong with the payload, if it is malformed.
    pub malformed: Option<String>,
    /// The version to hand to [`super::Registry::update`].
    pub version: Version,
    /// When this process first saw this version, by its own monotonic clock. Clocks of two
    /// machines are never compared.
    pub changed_at: Instant,
}

impl Member {
    /// The response time in microseconds at `now`; 0 if it is unknown or out of date.
    pub fn response_time_us(&self, now: Instant) -> u64 {
        if self.age(now) > RESPONSE_TIME_VALID { 0 } else { self.record.response_time_us }
    }

    /// How long ago the entry last changed, as seen here.
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.changed_at)
    }
}

/// All entries of a registry at a moment. Published whole; never changed after that.
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// The nodes by address.
    pub nodes: BTreeMap<SocketAddr, Member>,
    /// Entries whose name is no address.
    pub misnamed: Vec<String>,
    /// When the list was last confirmed by the registry; none before the first read.
    pub as_of: Option<Instant>,
}

/// The address that an entry is named after. `127.0.0.1:08898` is none, as a node has one name; nor
/// is one with port 0, at which nobody can be reached.
pub(super) fn address(name: &str) -> Option<SocketAddr> {
    name.parse().ok().filter(|addr: &SocketAddr| addr.to_string() == name && addr.port() != 0)
}

impl Members {
    /// Whether a list was ever read. An empty list that was read is an answer.
    pub fn is_known(&self) -> bool {
        self.as_of.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_as_we_spell_them_name_a_node() {
        for name in ["127.0.0.1:1", "[::1]:8898", "127.0.0.1:65535"] {
            assert!(address(name).is_some(), "{name}");
        }
        for name in
            ["", "127.0.0.1", "127.0.0.1:01", "::1:80", "[0:0::1]:1", "localhost:1", "127.0.0.1:1~", "127.0.0.1:70000"]
        {
            assert!(address(name).is_none(), "{name}");
        }
        assert!(address("127.0.0.1:0").is_none());
    }
}
