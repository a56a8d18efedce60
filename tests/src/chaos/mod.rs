//! Misfortune of every kind for real processes, and what must hold whatever happens.
//!
//! Five servers, four clients and an ensemble of three ZooKeeper servers, all of them processes, with
//! every connection among them but those within the ensemble going through a cable that can be
//! pulled. A `Plan` that follows from a seed says what goes wrong; `judge` holds the rules:
//!
//! - Every idempotent call succeeds: at most two of the five servers are unwell at a time.
//! - Every other call runs at most once. It fails only if it was at a server that was killed, hung
//!   or cut off; not because servers restart in good order, lose ZooKeeper, or ZooKeeper is gone.
//! - Every reply belongs to its call. What is said not to have been started was not.
//! - A server that is well again is used by all clients within the time of a session and 8 s.
//! - After as much quiet all clients list the servers that there are, and no others. When the calls
//!   have ended, neither clients nor servers hold anything of them.

mod caller;
mod faults;
mod judge;
mod node;
mod plan;
mod stage;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::node::NodeArguments;
use self::plan::Plan;
use self::stage::Stage;
use crate::process::Process;

/// Servers and clients of a run.
const SERVERS: usize = 5;
const CLIENTS: usize = 4;

/// The time of each call.
const CALL: Duration = Duration::from_secs(5);

/// The longest time that a client is stopped. Its calls are to succeed all the same.
const CLIENT_HANGS_MAX: Duration = Duration::from_secs(2);

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// What goes wrong follows from it.
    pub seed: u64,
    /// How long things go wrong.
    pub duration: Duration,
    /// Calls a second, of all clients together.
    pub rate: u32,
    /// The program whose `main` calls [`play`].
    pub program: PathBuf,
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The rules that did not hold, each with what was seen.
    pub violations: Vec<String>,
    /// What happened, in numbers.
    pub summary: String,
    /// Where the logs of the processes are, if there are violations.
    pub logs: Option<PathBuf>,
}

/// Plays the part of a server or a client, if the arguments of this process say so.
pub async fn play(arguments: &[String]) -> bool {
    let [role, json] = arguments else { return false };
    match role.as_str() {
        "node" => node::run(serde_json::from_str(json).expect("arguments of a server")).await,
        "caller" => caller::run(serde_json::from_str(json).expect("arguments of a client")).await,
        _ => return false,
    }
    true
}

/// A server process for other tests: it registers in `registry`, serves `once` and `safe` with params
/// such as `{"number":7,"ms":0,"filling":""}`, which it returns without `ms`, and writes the number of
/// each call that it begins into `ledger`. `safe` may be repeated. SIGTERM drains it.
///
/// # Panics
/// When it cannot be started.
pub fn server(program: &Path, registry: &str, bind: SocketAddr, ledger: &Path) -> Process {
    let arguments = NodeArguments { registry: registry.to_owned(), bind, advertise: None, ledger: ledger.to_owned() };
    Process::start_listening(command(program, "node", &arguments))
}

/// How often each call was begun by servers that wrote these ledgers, by number.
pub fn begun(ledgers: impl IntoIterator<Item = PathBuf>) -> BTreeMap<u64, usize> {
    judge::read_ledgers(ledgers.into_iter())
}

fn command(program: &Path, role: &str, arguments: &impl Serialize) -> Command {
    let mut command = Command::new(program);
    command.arg(role).arg(serde_json::to_string(arguments).expect("plain data"));
    command
}

/// Makes a run.
///
/// # Panics
/// When it cannot be made, for want of ZooKeeper or otherwise.
pub async fn run(options: &Options) -> Report {
    let plan = Plan::new(options.seed, options.duration);
    show(&format!("seed {}, {:?}, {} calls/s\n{plan}", options.seed, options.duration, options.rate));
    let stage = Stage::set(options).await;
    faults::happen(&stage, &plan, options.duration).await;
    stage.end(&plan.gone).await
}

#[expect(clippy::print_stdout, reason = "the user of the program, or the reader of a failed test, wants to follow it")]
fn show(text: &str) {
    println!("{text}");
}

/// Says something to the process that started this one.
fn tell<T: Serialize>(what: &T) {
    show(&serde_json::to_string(what).expect("plain data"));
}

/// Milliseconds on a clock that all processes of the machine share.
fn clock_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

/// Params of both methods.
#[derive(Debug, Serialize, Deserialize)]
struct Params {
    number: u64,
    /// The handler takes this long.
    ms: u64,
    filling: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Reply {
    number: u64,
    filling: String,
}
