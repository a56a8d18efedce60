//! Connections beyond the limit.

use std::time::Duration;

use rpc_core::RpcError;
use rpc_core::protocol::code;
use rpc_core::wire::{Id, put_error};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;

/// Connections that are being told at once; more are closed without a word.
const TURNED_AWAY_MAX: usize = 64;

/// How long one is kept open for that.
const TURN_AWAY_WITHIN: Duration = Duration::from_secs(1);

/// Another server of the service has to take it meanwhile.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Connections that are being told that there is no room for them.
#[derive(Debug, Default)]
pub(crate) struct TurnedAway(JoinSet<()>);

impl TurnedAway {
    /// Tells a peer that the server has its `connections`, and closes.
    pub(crate) fn add(&mut self, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, connections: usize) {
        while self.0.try_join_next().is_some() {}
        if self.0.len() < TURNED_AWAY_MAX {
            self.0.spawn(turn_away(io, connections));
        }
    }
}

async fn turn_away(mut io: impl AsyncRead + AsyncWrite + Unpin, connections: usize) {
    let data = serde_json::json!({ "connections": connections, "retry_after_ms": RETRY_AFTER.as_millis() as u64 });
    let message = format!("the server has its {connections} connections");
    let mut out = Vec::new();
    put_error(&mut out, &Id::NULL, None, &RpcError::new(code::OVERLOADED, message).with_data(&data), usize::MAX);
    let told = async {
        io.write_all(&out).await?;
        io.shutdown().await?;
        // Closing with bytes unread would reset the connection, and the peer may lose what it was told.
        let mut unread = [0; 512];
        while io.read(&mut unread).await? > 0 {}
        Ok::<_, std::io::Error>(())
    };
    // Whether it took it or not: it is not served.
    let _ = tokio::time::timeout(TURN_AWAY_WITHIN, told).await;
}
