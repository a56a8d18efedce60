//! What a call may cost, counted and not timed, in the steady state with 64 calls in flight.
//!
//! The limits are what the code needs today: they fail as soon as somebody adds an allocation. A
//! binary of its own, since counting replaces the global allocator.
#![allow(clippy::unwrap_used, reason = "nothing but tests is in here")]

use std::sync::mpsc::{Receiver, Sender, channel};

use allocation_counter::measure;
use futures_util::future::join_all;
use rpc_client::{Client, ClientConfig};
use rpc_server::{RpcError, Server, ServerBuilder};
use rpc_tests::cluster::{SOON, any_port, connected, fresh_registry};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

const IN_FLIGHT: usize = 64;

/// Calls that each of them makes before counting begins: buffers and tables have their size then.
const WARM_UP: usize = 200;

const CALLS_EACH: usize = 500;

/// How often they are counted.
const COUNTS: usize = 3;

const CALLS: f64 = (IN_FLIGHT * CALLS_EACH) as f64;

/// What does not belong to single calls (the list of callers, a growing buffer, the background
/// tasks), as a share of the number of calls.
const UNRELATED: f64 = 0.02;

/// Calls of which one is recorded, with copies of all that its choice read.
const SAMPLE: f64 = 64.0;

/// Allocations of a record, by the number of nodes.
const RECORD_OF_ONE: f64 = 6.0;
const RECORD_OF_THREE: f64 = 17.0;

/// Servers on a thread of their own, which counts its allocations between two signals.
struct Servers {
    signals: mpsc::Sender<()>,
    ready: Receiver<()>,
    allocations: Receiver<u64>,
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

impl Servers {
    fn start(builders: Vec<ServerBuilder>) -> Self {
        let (signals, signalled) = mpsc::channel(1);
        let (ready_tx, ready) = channel();
        let (allocations_tx, allocations) = channel();
        std::thread::spawn(move || serve(builders, signalled, &ready_tx, &allocations_tx));
        ready.recv().unwrap();
        Self { signals, ready, allocations }
    }

    fn begin(&self) {
        self.signals.blocking_send(()).unwrap();
        self.ready.recv().unwrap();
    }

    fn end(&self) -> u64 {
        self.signals.blocking_send(()).unwrap();
        self.allocations.recv().unwrap()
    }
}

fn serve(
    builders: Vec<ServerBuilder>,
    mut signalled: mpsc::Receiver<()>,
    ready: &Sender<()>,
    allocations: &Sender<u64>,
) {
    let runtime = runtime();
    for builder in builders {
        let server = runtime.block_on(builder.bind(any_port())).unwrap();
        runtime.spawn(server.serve(std::future::pending()));
    }
    ready.send(()).unwrap();
    while runtime.block_on(signalled.recv()).is_some() {
        // No call is under way: the first one waits until the runtime goes on below.
        ready.send(()).unwrap();
        let info = measure(|| runtime.block_on(signalled.recv()).unwrap());
        allocations.send(info.count_total).unwrap();
    }
}

/// Allocations per call on the client and on the server, with `nodes` servers to choose from.
fn allocations_per_call(method: &str, nodes: usize) -> (f64, f64) {
    let url = fresh_registry();
    let builder = || {
        Server::builder()
            .method("add", |(a, b): (u64, u64)| async move { Ok::<_, RpcError>(a + b) })
            .method("later", |(a, b): (u64, u64)| async move {
                tokio::task::yield_now().await;
                Ok::<_, RpcError>(a + b)
            })
            .registry(&url)
            .unwrap()
    };
    let servers = Servers::start((0..nodes).map(|_| builder()).collect());
    let runtime = runtime();
    let config = ClientConfig { call_timeout: SOON, ..ClientConfig::default() };
    let client = runtime.block_on(async {
        let client = Client::builder().config(config).connect(&url).await.unwrap();
        connected(&client, nodes).await;
        client
    });
    let call_many = |calls: usize| {
        runtime.block_on(join_all((0..IN_FLIGHT).map(|_| async {
            for n in 0..calls as u64 {
                assert_eq!(client.call::<_, u64>(method, &(n, 1)).await.unwrap(), n + 1);
            }
        })));
    };
    call_many(WARM_UP);
    // What others make the machine do only adds: connections that look dead, more probes. The least of
    // several counts is what calls need.
    (0..COUNTS)
        .map(|_| {
            servers.begin();
            let info = measure(|| call_many(CALLS_EACH));
            (info.count_total as f64 / CALLS, servers.end() as f64 / CALLS)
        })
        .reduce(|least, now| (least.0.min(now.0), least.1.min(now.1)))
        .unwrap()
}

fn assert_budget((client, server): (f64, f64), client_max: u32, record: f64, server_max: u32) {
    let within = |spent: f64, max: f64| spent <= max + UNRELATED;
    let client_limit = f64::from(client_max) + record / SAMPLE;
    assert!(within(client, client_limit), "{client} allocations a call on the client, {client_limit} allowed");
    assert!(within(server, f64::from(server_max)), "{server} allocations a call on the server, {server_max} allowed");
}

#[test]
fn a_call_allocates_nothing_on_the_client_and_the_handlers_future_on_the_server() {
    assert_budget(allocations_per_call("add", 1), 0, RECORD_OF_ONE, 1);
}

/// Every call in flight lies in memory with its future: with many of them its size decides what is in the
/// cache.
#[test]
fn the_future_of_a_call_is_small() {
    let client = runtime().block_on(Client::connect(&fresh_registry())).unwrap();
    let bytes = size_of_val(&client.call::<_, u64>("add", &(1, 2)));
    assert!(bytes <= 1024, "{bytes} bytes");
}

/// One call in four sends a probe in the background, which is a task of its own.
#[test]
fn choosing_among_nodes_allocates_for_its_probes_only() {
    assert_budget(allocations_per_call("add", 3), 1, RECORD_OF_THREE, 1);
}

#[test]
fn a_handler_that_waits_allocates_nothing_more() {
    assert_budget(allocations_per_call("later", 1), 0, RECORD_OF_ONE, 1);
}
