//! The client processes: a steady load, and what came of each call.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rpc_client::balance::{Random, policy};
use rpc_client::{CallOptions, Client, ClientConfig, ClientUsage, Error, NodeStatus};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::node::listen;
use super::{CALL, Params, Reply, clock_ms, tell};

/// How a client is started.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CallerArguments {
    pub(super) registry: String,
    pub(super) number: u64,
    pub(super) seed: u64,
    /// Calls a second.
    pub(super) rate: u32,
    pub(super) policy: String,
    pub(super) connections_per_node: usize,
    pub(super) outcomes: PathBuf,
}

/// What a client says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CallerSays {
    /// Whenever something changed, and now and then.
    Look(Look),
    /// All its calls have ended, and what came of them is in the file.
    Ended,
}

/// What a client knows and holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Look {
    pub(super) at_ms: u64,
    pub(super) nodes: Vec<NodeStatus>,
    /// Why the registry cannot be read, if so.
    pub(super) trouble: Option<String>,
    pub(super) usage: ClientUsage,
    /// Calls that the program itself waits for.
    pub(super) waiting: usize,
}

/// What came of a call.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) number: u64,
    pub(super) began_ms: u64,
    pub(super) ended_ms: u64,
    pub(super) end: End,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum End {
    Ok,
    /// The program dropped the call.
    Dropped,
    /// The reply was to another call, or damaged.
    Wrong(String),
    Failed {
        /// It was not started anywhere, as the error says.
        unsent: bool,
        /// The node of the last attempt.
        node: Option<SocketAddr>,
        text: String,
    },
}

/// Whether the call with this number may run twice.
pub(super) fn is_safe(number: u64) -> bool {
    number.is_multiple_of(2)
}

/// Calls until told to stop by a line of input.
pub(super) async fn run(arguments: CallerArguments) {
    let config = ClientConfig { connections_per_node: arguments.connections_per_node, ..ClientConfig::default() };
    let policy = policy(&arguments.policy).expect("a policy's name");
    let client = Client::builder().config(config).policy(policy).connect(&arguments.registry).await;
    let client = client.expect("a registry URL");
    let mut told = listen();
    let calls = Arc::new(Calls::default());
    let showing = tokio::spawn(show(client.clone(), calls.clone()));
    // The first line starts the load, the second ends it.
    told.recv().await;
    tokio::select! {
        never = load(&client, &arguments, &calls) => match never {},
        _ = told.recv() => {}
    }
    let mut left = std::mem::take(&mut *calls.tasks.lock());
    while left.join_next().await.is_some() {}
    let mut file = BufWriter::new(File::create(&arguments.outcomes).expect("the directory of the run is writable"));
    for outcome in calls.outcomes.lock().iter() {
        serde_json::to_writer(&mut file, outcome).expect("plain data");
        file.write_all(b"\n").expect("the directory of the run is writable");
    }
    file.flush().expect("the directory of the run is writable");
    tell(&CallerSays::Ended);
    // What is held is shown until the end of the input.
    while told.recv().await.is_some() {}
    showing.abort();
}

#[derive(Default)]
struct Calls {
    tasks: Mutex<JoinSet<()>>,
    outcomes: Mutex<Vec<Outcome>>,
}

/// What a client knows is told so often although nothing changed.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Tells what the client knows, on each change but at most fifty times a second.
async fn show(client: Client, calls: Arc<Calls>) {
    let mut changed = client.nodes_changed();
    loop {
        tell(&CallerSays::Look(Look {
            at_ms: clock_ms(),
            nodes: client.nodes(),
            trouble: client.registry_state().trouble,
            usage: client.usage(),
            waiting: calls.tasks.lock().len(),
        }));
        sleep(Duration::from_millis(20)).await;
        let _ = timeout(LOOK_AGAIN, changed.changed()).await;
    }
}

/// Begins calls at a fixed rate, whatever comes of them.
async fn load(client: &Client, arguments: &CallerArguments, calls: &Arc<Calls>) -> std::convert::Infallible {
    let mut random = Random::new(arguments.seed ^ arguments.number);
    let mut pace = interval(Duration::from_secs(1) / arguments.rate);
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut number = arguments.number * 1_000_000_000;
    loop {
        pace.tick().await;
        number += 2;
        let number = number + random.below(2) as u64;
        let length = if random.below(50) == 0 { random.below(200_000) } else { random.below(100) };
        let ms = match random.below(10) {
            0..5 => 0,
            5..9 => random.below(20) as u64,
            _ => random.below(300) as u64,
        };
        let params = Params { number, ms, filling: "x".repeat(length) };
        let patience = (random.below(10) == 0).then(|| Duration::from_millis(random.below(20) as u64));
        let (client, done) = (client.clone(), calls.clone());
        let mut tasks = calls.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            let outcome = call(&client, &params, patience).await;
            done.outcomes.lock().push(outcome);
        });
    }
}

async fn call(client: &Client, params: &Params, patience: Option<Duration>) -> Outcome {
    let method = if is_safe(params.number) { "safe" } else { "once" };
    let options = CallOptions::new().timeout(CALL);
    let began_ms = clock_ms();
    let called = client.call_with::<_, Reply>(method, params, &options);
    let end = match patience {
        None => judge(params, called.await),
        Some(patience) => match timeout(patience, called).await {
            Ok(outcome) => judge(params, outcome),
            Err(_) => End::Dropped,
        },
    };
    Outcome { number: params.number, began_ms, ended_ms: clock_ms(), end }
}

fn judge(params: &Params, outcome: Result<Reply, Error>) -> End {
    match outcome {
        Ok(reply) if reply.number == params.number && reply.filling == params.filling => End::Ok,
        Ok(reply) => End::Wrong(format!("{} with {} bytes", reply.number, reply.filling.len())),
        Err(error) => {
            let node = error.attempts().last().map(|attempt| attempt.node);
            let unsent = error.is_unsent();
            let registry = error.registry().map(|r| format!("{r:?}")).unwrap_or_default();
            let text = format!("{error}; {:?}; {registry}", error.attempts());
            End::Failed { unsent, node, text }
        }
    }
}
