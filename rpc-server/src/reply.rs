//! Where the answer to one request goes.

use rpc_core::RpcError;
use rpc_core::protocol::code;
use rpc_core::wire::{EncodeError, Id, LoadText, put_error, put_result};
use serde::Serialize;

use crate::load::Account;

/// Where the answer to one request goes. A notification is never answered.
pub(crate) struct Reply<'a> {
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) id: Option<&'a Id<'a>>,
    /// Longest message that may be written.
    pub(crate) limit: usize,
    /// Told how the request ended; gives the load report to send along.
    pub(crate) account: &'a mut Account,
}

impl Reply<'_> {
    pub(crate) fn result<R: Serialize>(&mut self, result: &R) {
        let load = self.account.end(true);
        let Some(id) = self.id else { return };
        if let Err(error) = put_result(self.out, id, load.as_ref().map(LoadText::as_bytes), result, self.limit) {
            put_error(self.out, id, load.as_ref().map(LoadText::as_bytes), &unwritable(&error), self.limit);
        }
    }

    pub(crate) fn error(&mut self, error: &RpcError) {
        let load = self.account.end(error.code != code::INTERNAL_ERROR);
        if let Some(id) = self.id {
            put_error(self.out, id, load.as_ref().map(LoadText::as_bytes), error, self.limit);
        }
    }

    /// The call was never started, so that its time says nothing about those that are.
    pub(crate) fn refuse(&mut self, error: &RpcError) {
        self.account.refuse();
        if let Some(id) = self.id {
            put_error(self.out, id, None, error, self.limit);
        }
    }

    pub(crate) fn outcome<R: Serialize>(&mut self, outcome: Result<R, RpcError>) {
        match outcome {
            Ok(result) => self.result(&result),
            Err(error) => self.error(&error),
        }
    }
}

fn unwritable(error: &EncodeError) -> RpcError {
    match error {
        EncodeError::TooLarge { size, limit } => {
            let message = format!("the reply has {size} bytes, the limit is {limit}");
            let data = serde_json::json!({"what": "reply", "size": size, "limit": limit,
                "hint": "ask for less, or raise the limit on both sides"});
            RpcError::new(code::TOO_LARGE, message).with_data(&data)
        }
        EncodeError::Json(reason) => RpcError::internal(format!("the result is no JSON: {reason}")),
        EncodeError::NotStructured(_) => RpcError::internal("the result is no JSON"),
    }
}
