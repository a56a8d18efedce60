//! The time of a call, on its way through several servers.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rpc_client::{CallOptions, Client, ClientConfig, ErrorKind};
use rpc_core::Deadline;
use rpc_core::protocol::code;
use rpc_server::{Context, Method, RpcError, Server, ServerBuilder};
use rpc_tests::cluster::{Node, SOON, connected, until};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// Counts the handlers that run.
#[derive(Clone, Default)]
struct Running(Arc<AtomicUsize>);

impl Running {
    fn enter(&self) -> impl Drop + use<> {
        struct Guard(Arc<AtomicUsize>);
        impl Drop for Guard {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.0.fetch_add(1, Ordering::SeqCst);
        Guard(self.0.clone())
    }

    async fn are(&self, count: usize) {
        until(&format!("{count} handlers"), SOON, || self.0.load(Ordering::SeqCst) == count).await;
    }
}

/// `rest` tells how many milliseconds the handler has; `hang` never answers.
fn last(running: &Running) -> ServerBuilder {
    let rest = Method::with_context("rest", |context: Context, ()| async move {
        let deadline = context.deadline.expect("our clients say how long they wait");
        assert_eq!(Deadline::current(), Some(deadline));
        Ok::<_, RpcError>(deadline.remaining_ms(Instant::now()))
    });
    let running = running.clone();
    let hang = Method::new("hang", move |()| {
        let entered = running.enter();
        async move {
            let _entered = entered;
            pending::<Result<u64, RpcError>>().await
        }
    });
    Server::builder().with(rest).with(hang)
}

/// `forward` waits so many milliseconds and then calls a method of the next server, asking for a
/// minute; `alone` does so in a task of its own.
fn first(next: &Client, running: &Running) -> ServerBuilder {
    let minute = CallOptions::new().timeout(Duration::from_secs(60));
    let forward = {
        let (next, running, minute) = (next.clone(), running.clone(), minute.clone());
        move |(ms, method): (u64, String)| {
            let (next, minute, entered) = (next.clone(), minute.clone(), running.enter());
            async move {
                let _entered = entered;
                sleep(Duration::from_millis(ms)).await;
                let called = next.call_with::<_, u64>(&method, &(), &minute).await;
                called.map_err(|error| RpcError::new(1, format!("{}: {error}", error.name())))
            }
        }
    };
    let next = next.clone();
    let alone = move |()| {
        let (next, minute) = (next.clone(), minute.clone());
        async move {
            let task = tokio::spawn(async move { next.call_with::<_, u64>("rest", &(), &minute).await });
            task.await.expect("it does not panic").map_err(|error| RpcError::internal(error.to_string()))
        }
    };
    Server::builder().method("forward", forward).method("alone", alone)
}

async fn client_of(node: &Node) -> Client {
    let client = Client::connect(&format!("static:{}", node.addr)).await.unwrap();
    connected(&client, 1).await;
    client
}

/// Two servers in a row and a client of the first.
async fn chain(running: &Running) -> (Node, Node, Client) {
    let second = Node::start(last(running)).await;
    let between = client_of(&second).await;
    let front = Node::start(first(&between, running)).await;
    let client = client_of(&front).await;
    (second, front, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_in_a_handler_has_what_is_left_of_its_callers_time() {
    let running = Running::default();
    let (_second, _front, client) = chain(&running).await;
    let limit = CallOptions::new().timeout(Duration::from_secs(10));
    let rest: u64 = client.call_with("forward", &(300, "rest"), &limit).await.unwrap();
    assert!((5_000..=9_700).contains(&rest), "{rest} ms of 10 s are left after 300 ms");
    // A task of its own does not end with the handler, so it is on its own.
    let rest: u64 = client.call_with("alone", &(), &limit).await.unwrap();
    assert!(rest > 50_000, "{rest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_all_calls_of_the_chain() {
    let running = Running::default();
    let (_second, _front, client) = chain(&running).await;
    let limit = CallOptions::new().timeout(Duration::from_millis(700));
    let call = client.call_with::<_, u64>("forward", &(0, "hang"), &limit);
    let (outcome, ()) = tokio::join!(call, running.are(2));
    let error = outcome.unwrap_err();
    // Whichever of the two clients was first to notice.
    let ended = match error.kind() {
        ErrorKind::DeadlineExceeded { .. } => true,
        ErrorKind::Remote { error, .. } => error.message.starts_with("deadline_exceeded"),
        _ => false,
    };
    assert!(ended, "{error:?}");
    running.are(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_call_ends_all_calls_of_the_chain() {
    let running = Running::default();
    let (_second, _front, client) = chain(&running).await;
    let call = tokio::spawn(async move { client.call::<_, u64>("forward", &(0, "hang")).await });
    running.are(2).await;
    call.abort();
    let began = Instant::now();
    running.are(0).await;
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_time_left_is_not_sent() {
    let begun = Arc::new(AtomicUsize::new(0));
    let count = begun.clone();
    let server = Server::builder().method("count", move |()| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, RpcError>(()) }
    });
    let node = Node::start(server).await;
    let client = client_of(&node).await;
    let over = Deadline::after(Instant::now(), Duration::ZERO);
    let call = client.call::<_, ()>("count", &());
    tokio::pin!(call);
    let within = std::future::poll_fn(|cx| Deadline::within(Some(over), || call.as_mut().poll(cx)));
    let error = timeout(SOON, within).await.unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DeadlineExceeded { .. }), "{error:?}");
    assert_eq!(begun.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_waited_too_long_for_a_thread_is_not_run() {
    // The blocking pool of this runtime has 512 threads, all of which are taken.
    let (open, opened) = watch::channel(false);
    let (held, ran) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let hold = {
        let held = held.clone();
        move |()| {
            let (held, mut opened) = (held.clone(), opened.clone());
            async move {
                held.fetch_add(1, Ordering::SeqCst);
                opened.wait_for(|open| *open).await.map_err(|e| RpcError::internal(e.to_string()))?;
                Ok::<_, RpcError>(())
            }
        }
    };
    let run = {
        let ran = ran.clone();
        move |()| {
            let ran = ran.clone();
            async move { Ok::<_, RpcError>(ran.fetch_add(1, Ordering::SeqCst)) }
        }
    };
    let methods = Server::builder().with(Method::new("hold", hold).computes()).with(Method::new("run", run).computes());
    let node = Node::start(methods).await;
    let config = ClientConfig { call_timeout: SOON * 2, ..ClientConfig::default() };
    let client = Client::builder().config(config).connect(&format!("static:{}", node.addr)).await.unwrap();
    connected(&client, 1).await;
    let holding: Vec<_> = (0..512)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<_, ()>("hold", &()).await })
        })
        .collect();
    until("full pool", SOON, || held.load(Ordering::SeqCst) == 512).await;
    // A caller that does not take its request back.
    let mut peer = rpc_tests::raw::RawPeer::connect(node.addr).await;
    peer.send(r#"{"jsonrpc":"2.0","id":1,"method":"run","params":[],"meta":{"timeout_ms":50}}"#).await;
    let began = Instant::now();
    let answer = peer.receive_json().await;
    assert_eq!(answer["error"]["code"], code::DEADLINE_EXCEEDED, "{answer}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    open.send_replace(true);
    for call in holding {
        call.await.unwrap().unwrap();
    }
    assert_eq!(client.call::<_, usize>("run", &()).await.unwrap(), 0, "only this one has run");
}
