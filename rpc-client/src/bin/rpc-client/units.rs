//! Numbers for people.

pub(crate) use rpc_core::{micros, millis};

/// `1 node`, `2 nodes`.
pub(crate) fn nodes(count: usize) -> String {
    if count == 1 { "1 node".into() } else { format!("{count} nodes") }
}
