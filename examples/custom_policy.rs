//! A balancing policy of one's own, used by a real client: `cargo run --example custom_policy`.
//!
//! One node takes all calls and the others are spares, as suits a service whose nodes keep a cache
//! that only one of them should have to fill.

use std::net::SocketAddr;

use rpc_client::balance::{Pick, Policy, View};
use rpc_client::{CallOptions, Client};
use rpc_server::{RpcError, Server};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The usable node with the lowest address. Nodes that drain, hang or fail too often are not in
/// the view; those that this very call has tried already are excluded.
struct PrimaryAndSpares;

impl Policy for PrimaryAndSpares {
    fn pick(&mut self, view: &dyn View, pick: &Pick<'_>) -> Option<usize> {
        let untried = (0..view.len()).filter(|index| !pick.is_excluded(view.node(*index).id));
        untried.min_by_key(|index| view.node(*index).addr)
    }
}

const REGISTRY: &str = "mem:custom_policy";

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it is a program")]
async fn main() -> anyhow::Result<()> {
    let mut servers = [start().await?, start().await?, start().await?];
    servers.sort_by_key(|server| server.addr);
    let [primary, spare, last] = servers;

    let client = Client::builder().policy(Box::new(PrimaryAndSpares)).connect(REGISTRY).await?;
    client.ready(std::time::Duration::from_secs(5)).await;
    for _ in 0..5 {
        let node = call(&client).await?;
        println!("{node} answered, the primary");
        anyhow::ensure!(node == primary.addr, "{node} is a spare");
    }

    primary.stop().await?;
    let node = call(&client).await?;
    println!("{node} answered, a spare: the primary is gone");
    anyhow::ensure!(node == spare.addr, "{node} is not the first spare");

    spare.stop().await?;
    last.stop().await
}

/// Calls, and says who answered.
async fn call(client: &Client) -> anyhow::Result<SocketAddr> {
    Ok(client.call_detailed("work", &(), &CallOptions::new()).await?.node)
}

struct Running {
    addr: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

async fn start() -> anyhow::Result<Running> {
    let work = |(): ()| async { Ok::<_, RpcError>(()) };
    let server = Server::builder().method("work", work).registry(REGISTRY)?.bind("127.0.0.1:0").await?;
    let addr = server.local_addr();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(async { drop(stopped.await) }));
    Ok(Running { addr, stop, serving })
}

impl Running {
    /// Has it finish what it has and waits for it to end.
    async fn stop(self) -> anyhow::Result<()> {
        drop(self.stop);
        Ok(self.serving.await?)
    }
}
