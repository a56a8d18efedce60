//! Whether the entry of a node is still its own.

use std::fs;
use std::io;
use std::path::Path;

use super::directory::explain;
use super::writer::{PAYLOAD_BYTES_MAX, read};
use crate::NodeRecord;

/// What others put in place of an entry is told no longer than this.
const FOUND_CHARS_MAX: usize = 200;

/// What is in the place of a node's entry.
pub(super) enum Entry {
    /// The record of this incarnation, with what others wrote into it.
    Own(NodeRecord),
    /// Nothing, or something else, which this says.
    Foreign(String),
}

impl Entry {
    /// Looks at the entry at `path`, which should be that of `own`.
    ///
    /// # Errors
    /// Those that say nothing about the entry, such as no free file descriptor.
    pub(super) fn look(path: &Path, own: &NodeRecord) -> io::Result<Self> {
        let there = match fs::symlink_metadata(path) {
            Ok(there) => there.file_type(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self::missing()),
            Err(e) => return Err(explain("look at", path, &e)),
        };
        if there.is_dir() {
            return Ok(Self::Foreign("a directory".to_owned()));
        }
        // What a link leads to may be changed by others, and not by us.
        if !there.is_file() {
            return Ok(Self::Foreign("no regular file".to_owned()));
        }
        match read(path) {
            Ok(Some((_, payload))) => Ok(Self::of(&payload, own)),
            Ok(None) => Ok(Self::missing()),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                Ok(Self::Foreign("a file that may not be read".to_owned()))
            }
            Err(e) => Err(explain("read", path, &e)),
        }
    }

    fn missing() -> Self {
        Self::Foreign("nothing".to_owned())
    }

    fn of(payload: &[u8], own: &NodeRecord) -> Self {
        let found = match NodeRecord::from_json(payload) {
            _ if payload.len() as u64 > PAYLOAD_BYTES_MAX => format!("more than {PAYLOAD_BYTES_MAX} bytes"),
            Ok(there) if there.id == own.id => return Self::Own(there),
            Ok(there) if there.id.is_empty() => "a record without an id".to_owned(),
            Ok(there) => format!("the record of id {}", there.id),
            Err(reason) => format!("a malformed record: {reason}"),
        };
        Self::Foreign(found.chars().take(FOUND_CHARS_MAX).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeState;

    fn found(payload: &[u8], own: &NodeRecord) -> String {
        match Entry::of(payload, own) {
            Entry::Own(there) => panic!("{there:?}"),
            Entry::Foreign(found) => found,
        }
    }

    #[test]
    fn what_others_wrote_into_our_record_is_no_damage() {
        let own = NodeRecord::new();
        let mut written = NodeRecord { state: NodeState::Draining, ..own.with_response_time(7) };
        for _ in 0..2 {
            assert!(matches!(Entry::of(&written.to_json(), &own), Entry::Own(there) if there == written));
            // As the expiry job does.
            written = written.with_response_time(0);
        }
    }

    #[test]
    fn what_is_not_ours_is_told_and_not_at_length() {
        let (own, other) = (NodeRecord::new(), NodeRecord::new());
        assert_eq!(found(&other.to_json(), &own), format!("the record of id {}", other.id));
        assert_eq!(found(b"{}", &own), "a record without an id");
        assert!(found(b"trash", &own).starts_with("a malformed record: "));
        let long = NodeRecord { id: "x".repeat(100_000), ..NodeRecord::new() };
        assert_eq!(found(&long.to_json(), &own).chars().count(), FOUND_CHARS_MAX);
        let mut padded = own.to_json();
        padded.resize(PAYLOAD_BYTES_MAX as usize + 1, b' ');
        assert!(found(&padded, &own).starts_with("more than "));
    }
}
