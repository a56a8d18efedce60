//! Connections beyond the limit.

use std::net::SocketAddr;
use std::time::Duration;

use rpc_core::RpcError;
use rpc_core::open_files::{OTHER_FILES, OpenFiles};
use rpc_core::protocol::code;
use rpc_core::seldom::Seldom;
use rpc_core::wire::{Id, put_error};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Connections that are being told at once; more are closed without a word. They take half of the
/// files that are kept from connections, at most.
const TURNED_AWAY_MAX: usize = OTHER_FILES as usize / 2;

/// How long one is kept open for that.
const TURN_AWAY_WITHIN: Duration = Duration::from_secs(1);

/// Another server of the service has to take it meanwhile.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The most connections that a server has at a time, and those beyond that are being told so.
#[derive(Debug)]
pub(crate) struct TurnedAway {
    max: usize,
    told: JoinSet<()>,
    logged: Seldom,
}

impl TurnedAway {
    /// For a server that may have `setting` connections, if there are files for so many.
    pub(crate) fn new(setting: usize) -> Self {
        Self { max: most(setting, OpenFiles::of_this_process()), told: JoinSet::new(), logged: Seldom::default() }
    }

    /// The most connections at a time.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Logs that a peer is turned away, unless that is known.
    pub(crate) fn log(&mut self, peer: SocketAddr) {
        if let Some(times) = self.logged.count(Instant::now()) {
            tracing::warn!(%peer, connections = self.max, times, "connection limit reached; closed");
        }
    }

    /// Tells a peer that the server has its connections, and closes.
    pub(crate) fn add(&mut self, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        while self.told.try_join_next().is_some() {}
        if self.told.len() < TURNED_AWAY_MAX {
            self.told.spawn(turn_away(io, self.max));
        }
    }
}

/// A connection for which there is no file would stay unaccepted: its peer would wait for nothing.
fn most(setting: usize, files: Option<OpenFiles>) -> usize {
    let Some(files) = files else { return setting };
    let max = usize::try_from(files.connections()).unwrap_or(usize::MAX);
    if max >= setting {
        return setting;
    }
    let lowered = format!(
        "connections are limited to {max}, not {setting}: only {} open files are allowed (ulimit -n)",
        files.soft
    );
    if files.soft <= OTHER_FILES {
        tracing::warn!("{lowered}, which is too few for a server");
    } else {
        tracing::info!("{lowered}");
    }
    max
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_limit_connections_where_they_are_fewer() {
        let files = |soft| Some(OpenFiles { soft, hard: 4096 });
        assert_eq!(most(65_536, files(1024)), 960);
        assert_eq!(most(500, files(1024)), 500);
        assert_eq!(most(65_536, files(64)), 1);
        assert_eq!(most(65_536, files(u64::MAX)), 65_536);
        assert_eq!(most(65_536, None), 65_536);
    }
}
