//! What a failed attempt means for its node and its call.

use std::net::SocketAddr;
use std::time::Duration;

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

/// Least time for one more attempt, and its greatest part of the time that the call had.
const ATTEMPT_MIN: Duration = Duration::from_millis(5);
const ATTEMPT_PART: u32 = 10;

/// Whether an answer can be expected in the time `left`, when the last one took `before`. If not, asking
/// again would turn the reason why a call was refused into a bare deadline, and leave open whether it ran.
pub(crate) fn is_time_enough(left: Duration, before: Option<Duration>, timeout: Duration) -> bool {
    let usual = before.map_or(Duration::ZERO, |before| before.saturating_mul(2).max(ATTEMPT_MIN));
    left > usual.min(timeout / ATTEMPT_PART)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_asked_again_who_cannot_answer_in_time() {
        let ms = Duration::from_millis;
        let enough = |left, before: Option<u64>, timeout| is_time_enough(ms(left), before.map(ms), ms(timeout));
        assert!(!enough(0, None, 400) && enough(1, None, 400), "the first attempt may take whatever is left");
        assert!(!enough(5, Some(0), 400) && enough(6, Some(0), 400));
        assert!(!enough(24, Some(12), 400) && enough(25, Some(12), 400));
        assert!(!enough(40, Some(300), 400) && enough(41, Some(300), 400), "what took long before may be quick now");
        assert!(!enough(1, Some(1), 10) && enough(2, Some(1), 10));
    }
}
