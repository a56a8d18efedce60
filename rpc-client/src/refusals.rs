//! How often one call asks a node that does not take it.

use std::net::SocketAddr;

use rpc_core::protocol::code;
use rpc_core::{Attempt, ErrorKind};

/// Refusals by one node that a call takes. With the pauses between them that is some five seconds.
pub(crate) const PER_NODE_MAX: usize = 16;

/// Whether a call that `node` did not start, for this reason and after these attempts, is not to be
/// sent there again: asking once more cannot help, or was tried often enough.
pub(crate) fn is_for_good(kind: &ErrorKind, node: SocketAddr, before: &[Attempt]) -> bool {
    let never = matches!(kind, ErrorKind::Remote { error, .. } if error.code == code::INCOMPATIBLE_VERSION);
    never || before.iter().filter(|attempt| attempt.node == node).count() + 1 >= PER_NODE_MAX
}
