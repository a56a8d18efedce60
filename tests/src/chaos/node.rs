//! The server processes: they note each call that they begin in a file, which survives kill -9.

use std::fs::File;
use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rpc_server::{Method, RpcError, Server, ServerUsage};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::{Params, Reply, tell};

/// How a server is started.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NodeArguments {
    pub(super) registry: String,
    pub(super) bind: SocketAddr,
    pub(super) advertise: Option<SocketAddr>,
    pub(super) ledger: PathBuf,
}

/// What a server says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NodeSays {
    /// Its incarnation, as soon as it listens.
    Incarnation(String),
    /// The answer to any line of input.
    Usage(ServerUsage),
}

/// Serves until SIGTERM.
pub(super) async fn run(arguments: NodeArguments) {
    let ledger = Ledger::open(&arguments.ledger);
    let mut terminated = signal(SignalKind::terminate()).expect("the signal can be caught");
    let mut server = Server::builder()
        .with(method("once", &ledger))
        .with(method("safe", &ledger).idempotent())
        .registry(&arguments.registry)
        .expect("a registry URL");
    if let Some(addr) = arguments.advertise {
        server = server.advertise(addr);
    }
    let server = server.bind(arguments.bind).await.expect("the address is free");
    tell(&NodeSays::Incarnation(server.incarnation().to_owned()));
    let usage = server.usage();
    let mut asked = listen();
    let answering = async {
        while asked.recv().await.is_some() {
            tell(&NodeSays::Usage(usage()));
        }
        // Nobody is there any more to stop it.
        std::process::exit(1)
    };
    tokio::select! {
        () = server.serve(async { terminated.recv().await.unwrap_or_default() }) => {}
        () = answering => {}
    }
}

fn method(name: &str, ledger: &Arc<Ledger>) -> Method {
    let ledger = ledger.clone();
    Method::new(name, move |Params { number, ms, filling }: Params| {
        let noted = ledger.note(number);
        async move {
            noted?;
            if ms > 0 {
                sleep(Duration::from_millis(ms)).await;
            }
            Ok::<_, RpcError>(Reply { number, filling })
        }
    })
}

/// The calls that were begun, by number.
struct Ledger(File);

impl Ledger {
    fn open(path: &Path) -> Arc<Self> {
        let file = File::options().create(true).append(true).open(path);
        Arc::new(Self(file.expect("the directory of the run is writable")))
    }

    fn note(&self, number: u64) -> Result<(), RpcError> {
        // One write, at the end of the file: whole or not at all.
        let written = (&self.0).write_all(format!("{number}\n").as_bytes());
        written.map_err(|e| RpcError::internal(format!("the ledger: {e}")))
    }
}

/// The lines of the standard input, as they come.
pub(super) fn listen() -> mpsc::Receiver<String> {
    let (lines, heard) = mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    });
    heard
}
