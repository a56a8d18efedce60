//! The demonstration methods.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rpc_server::{Method, RpcError};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::delay::{Delay, Sleeper};

/// Who this server is. Its address and incarnation are known once it is bound.
pub(crate) struct Identity {
    name: Option<String>,
    started: Instant,
    bound: OnceLock<(SocketAddr, String)>,
}

impl Identity {
    pub(crate) fn new(name: Option<String>) -> Self {
        Self { name, started: Instant::now(), bound: OnceLock::new() }
    }

    /// Sets what is known after binding.
    pub(crate) fn is(&self, node: SocketAddr, id: &str) {
        self.bound.get_or_init(|| (node, id.to_owned()));
    }

    fn info(&self, delay: Delay) -> Value {
        let bound = self.bound.get();
        json!({
            "name": self.name,
            "node": bound.map(|(node, _)| node),
            "id": bound.map(|(_, id)| id),
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_ms": u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "delay_ms": [delay.from.as_secs_f64() * 1e3, delay.to.as_secs_f64() * 1e3],
        })
    }
}

#[derive(Deserialize)]
struct Sleep {
    ms: u64,
}

#[derive(Deserialize)]
struct Fail {
    code: i64,
    #[serde(default = "fail_message")]
    message: String,
}

fn fail_message() -> String {
    "failed as asked".into()
}

/// The methods; each sleeps for `delay` before it answers.
pub(crate) fn all(identity: &Arc<Identity>, delay: Delay) -> Vec<Method> {
    let sleeper = Arc::new(Sleeper::new(delay));
    // Each handler owns its handle on the sleeper.
    let after = move || {
        let sleeper = sleeper.clone();
        async move { sleeper.sleep().await }
    };
    let identity = identity.clone();
    vec![
        Method::raw("echo", {
            let after = after.clone();
            move |_, params: Box<RawValue>| {
                let delayed = after();
                async move {
                    delayed.await;
                    Ok(params)
                }
            }
        })
        .idempotent()
        .summary("returns its params, null without"),
        Method::new("time", {
            let after = after.clone();
            move |(): ()| {
                let delayed = after();
                async move {
                    delayed.await;
                    Ok::<_, RpcError>(json!({ "unix_ms": unix_ms() }))
                }
            }
        })
        .idempotent()
        .summary("the server's clock"),
        Method::new("info", {
            let after = after.clone();
            move |(): ()| {
                let (delayed, identity) = (after(), identity.clone());
                async move {
                    delayed.await;
                    Ok::<_, RpcError>(identity.info(delay))
                }
            }
        })
        .idempotent()
        .summary("who the server is"),
        Method::new("sleep", {
            let after = after.clone();
            move |Sleep { ms }| {
                let delayed = after();
                async move {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    delayed.await;
                    Ok::<_, RpcError>(json!({ "slept_ms": ms }))
                }
            }
        })
        .idempotent()
        .summary("answers after {\"ms\":N} milliseconds"),
        Method::new("fail", move |Fail { code, message }| {
            let delayed = after();
            async move {
                delayed.await;
                Err::<(), _>(RpcError::new(code, message))
            }
        })
        .summary("fails with {\"code\":N,\"message\":TEXT}"),
    ]
}

#[expect(clippy::disallowed_methods, reason = "the method tells the clock; nothing here compares it")]
fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
