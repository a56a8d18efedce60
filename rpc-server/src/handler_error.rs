//! Errors that say whether the handler ran.

use std::ops::RangeInclusive;

use rpc_core::RpcError;
use rpc_core::protocol::{self, code};

/// JSON-RPC 2.0 reserves these codes; those in use are in [`protocol::ERROR_CODES`].
const RESERVED: RangeInclusive<i64> = -32768..=-32000;

/// The error to send for one that a handler returned: the same, unless its code would promise that
/// the call was not started. Clients believe that promise and send the call elsewhere, so only this
/// crate, which knows, may give it.
#[cold]
pub(crate) fn from_handler(error: RpcError) -> RpcError {
    let honest = match protocol::error_code(error.code) {
        Some(_) => !error.is_unstarted(),
        None => !RESERVED.contains(&error.code),
    };
    if honest {
        return error;
    }
    let message = format!("the handler was answered with {}: {}", error.name(), error.message);
    RpcError::new(code::UPSTREAM, message).with_data(&serde_json::json!({ "upstream": error }))
}

/// The error for params that no handler has seen. That is in its data, for a handler may give
/// the code too.
#[cold]
pub(crate) fn unfit_params(message: impl Into<String>, path: &str) -> RpcError {
    RpcError::invalid_params(message).with_data(&serde_json::json!({ "path": path, "started": false }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_cannot_say_that_it_did_not_run() {
        for known in protocol::ERROR_CODES {
            let sent = from_handler(RpcError::new(known.code, "said").with_data(&[1]));
            assert!(!sent.is_unstarted(), "{}", known.name);
            if !known.started {
                assert_eq!(sent.code, code::UPSTREAM);
                let data: serde_json::Value = serde_json::from_str(sent.data.unwrap().get()).unwrap();
                let original = serde_json::json!({ "code": known.code, "message": "said", "data": [1] });
                assert_eq!(data["upstream"], original);
            }
        }
        for (theirs, sent) in [(-32050, code::UPSTREAM), (-32099, code::UPSTREAM), (-31999, -31999), (-32769, -32769)] {
            assert_eq!(from_handler(RpcError::new(theirs, "")).code, sent, "{theirs}");
        }
        assert_eq!(from_handler(RpcError::new(0, "")).code, 0);
        assert_eq!(from_handler(RpcError::invalid_params("no such room")).code, code::INVALID_PARAMS);
        assert!(unfit_params("params", ".").is_unstarted());
        assert_eq!(from_handler(unfit_params("passed on", ".")).code, code::UPSTREAM);
    }
}
