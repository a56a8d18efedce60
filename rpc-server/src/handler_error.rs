//! Which errors a handler may answer with.

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
        Some(known) => known.started || error.code == code::INVALID_PARAMS,
        None => !RESERVED.contains(&error.code),
    };
    if honest {
        return error;
    }
    let message = format!("the handler was answered with {}: {}", error.name(), error.message);
    RpcError::new(code::UPSTREAM, message).with_data(&serde_json::json!({ "upstream": error }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_cannot_say_that_it_did_not_run() {
        for known in protocol::ERROR_CODES {
            let sent = from_handler(RpcError::new(known.code, "said").with_data(&[1]));
            let started = protocol::error_code(sent.code).unwrap().started;
            assert!(started || sent.code == code::INVALID_PARAMS, "{}", known.name);
            if !known.started && known.code != code::INVALID_PARAMS {
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
    }
}
