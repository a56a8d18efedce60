//! The answer to `rpc.discover`.

use serde_json::{Value, json};

use crate::Method;

/// An OpenRPC document (<https://spec.open-rpc.org>, version 1.3.2) of the methods. Which of them
/// are idempotent is told by the extension member `x-idempotent`.
pub(crate) fn document<'a>(title: &str, methods: impl Iterator<Item = &'a Method>) -> Value {
    let methods: Vec<Value> = methods
        .map(|method| {
            json!({
                "name": method.name,
                "summary": method.summary,
                "params": [],
                "result": { "name": "result", "schema": true },
                "x-idempotent": method.idempotent,
            })
        })
        .collect();
    json!({
        "openrpc": "1.3.2",
        "info": { "title": title, "version": env!("CARGO_PKG_VERSION") },
        "methods": methods,
    })
}
