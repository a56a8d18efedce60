//! What a failed attempt means for its node and its call.

use std::net::SocketAddr;

use rpc_core::protocol::code;
use rpc_core::{Attempt, ErrorKind, NotRepeated, RpcError};

use crate::call::REPEATS_MAX;

/// Refusals by one node that a call takes. With the pauses between them that is some five seconds.
pub(crate) const PER_NODE_MAX: usize = 16;

/// Whether a call that `node` did not start, for this reason and after these attempts, is not to be
/// sent there again: asking once more cannot help, or was tried often enough.
pub(crate) fn is_for_good(kind: &ErrorKind, node: SocketAddr, before: &[Attempt]) -> bool {
    let never = matches!(kind, ErrorKind::Remote { error, .. } if error.code == code::INCOMPATIBLE_VERSION);
    never || before.iter().filter(|attempt| attempt.node == node).count() + 1 >= PER_NODE_MAX
}

/// Whether an error reply speaks against its node.
pub(crate) fn is_failure(error: &RpcError) -> bool {
    matches!(error.code, code::INTERNAL_ERROR | code::DEADLINE_EXCEEDED)
}

/// Why a call that may have run is not repeated, or was in vain: whether it might be, whether it is,
/// and how often it was before.
pub(crate) fn not_repeated(may_repeat: bool, repeat: bool, repeats: usize) -> NotRepeated {
    match (may_repeat, repeat) {
        (_, true) => NotRepeated::NoOtherNode,
        (true, false) => NotRepeated::NoBudget,
        (false, false) if repeats >= REPEATS_MAX => NotRepeated::OftenEnough,
        (false, false) => NotRepeated::NotIdempotent,
    }
}
