//! Why none of the servers takes us: the crate says no more than "timeout", after ten seconds.

use std::io;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::Options;
use crate::net;

/// The one question that every ZooKeeper answers without a session, unless its operator forbids it.
const QUESTION: &[u8] = b"srvr\n";

/// As much of the answer as tells what it is.
const ANSWER_BYTES_MAX: u64 = 64;

/// First byte of a TLS record that says what went wrong.
const TLS_ALERT: u8 = 0x15;

/// The reason of each server.
pub(super) async fn of(options: &Options) -> String {
    let reasons = options.servers.split(',').map(async |server| format!("{server}: {}", reason(options, server).await));
    join_all(reasons).await.join("; ")
}

async fn reason(options: &Options, server: &str) -> String {
    let addrs = match timeout(options.connect, lookup_host(server)).await {
        Err(_) => return "the name is not resolved in time".into(),
        Ok(Err(e)) => return e.to_string(),
        Ok(Ok(addrs)) => addrs,
    };
    let mut dialled = Err(io::Error::other("the name has no address"));
    for addr in addrs {
        dialled = net::dial(addr, options.connect).await;
        if dialled.is_ok() {
            break;
        }
    }
    let stream = match dialled {
        Ok(stream) => stream,
        Err(e) => return e.to_string(),
    };
    #[cfg(feature = "zookeeper-tls")]
    if let Some(tls) = &options.tls {
        return tls.reason(stream, super::host(server), options.connect).await;
    }
    match ask(stream, options.connect).await {
        Ok(answer) if answer.first().is_none_or(|first| *first == TLS_ALERT) => SECURE.into(),
        Ok(answer) => meaning(&answer),
        Err(e) if e.kind() == io::ErrorKind::TimedOut => SILENT.into(),
        Err(_) => SECURE.into(),
    }
}

const SECURE: &str = "it closes the connection: if that is the port of its TLS, the URL begins zk+tls://";

/// For a server that accepts a connection and says nothing.
pub(super) const SILENT: &str = "it accepts connections but gives no session (no quorum, or no ZooKeeper?)";

/// What the server answers to a question that needs no session; nothing if it hangs up.
///
/// # Errors
/// `TimedOut` after `patience`, or what became of the connection.
pub(super) async fn ask(mut io: impl AsyncRead + AsyncWrite + Unpin, patience: Duration) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let asked = async {
        io.write_all(QUESTION).await?;
        io.flush().await?;
        (&mut io).take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await
    };
    match timeout(patience, asked).await {
        // What came before the connection broke is an answer as well.
        Ok(Err(e)) if answer.is_empty() => Err(e),
        Ok(_) => Ok(answer),
        Err(_) if answer.is_empty() => Err(io::ErrorKind::TimedOut.into()),
        Err(_) => Ok(answer),
    }
}

/// What an answer says about the server.
pub(super) fn meaning(answer: &[u8]) -> String {
    let answer = String::from_utf8_lossy(answer);
    if answer.contains("not currently serving") {
        return "it is a ZooKeeper, but the ensemble has no quorum".into();
    }
    if answer.starts_with("Zookeeper") || answer.starts_with("srvr is not executed") {
        return "it is a ZooKeeper, but it gives no session".into();
    }
    "what answers there is no ZooKeeper".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_server_says_tells_what_it_is() {
        for (says, means) in [
            ("This ZooKeeper instance is not currently serving requests\n", "no quorum"),
            (
                "Zookeeper version: 3.8.0-${mvngit.commit.id}, built on 2022-02-25 08:49 UTC\nLatency",
                "gives no session",
            ),
            ("srvr is not executed because it is not in the whitelist.\n", "gives no session"),
            ("HTTP/1.1 400 Bad Request\r\n", "no ZooKeeper"),
        ] {
            let (ours, mut theirs) = tokio::io::duplex(1024);
            theirs.write_all(says.as_bytes()).await.unwrap();
            theirs.shutdown().await.unwrap();
            let answer = ask(ours, Duration::from_secs(10)).await.unwrap();
            assert!(meaning(&answer).contains(means), "{says}: {}", meaning(&answer));
        }
    }
}
