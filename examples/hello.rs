//! The smallest server and client, in one file: `cargo run --example hello`.

use rpc_client::Client;
use rpc_server::{RpcError, Server};

async fn greet((name,): (String,)) -> Result<String, RpcError> {
    Ok(format!("hello, {name}"))
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it is a program")]
async fn main() -> anyhow::Result<()> {
    // In one process. Between processes: "local:" on one machine, "zk://host:2181" across many.
    let registry = "mem:hello";

    let server = Server::builder().method("greet", greet).registry(registry)?.bind("127.0.0.1:0").await?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(async { drop(stopped.await) }));

    let client = Client::builder().wait_for_node().connect(registry).await?;
    let greeting: String = client.call("greet", &("world",)).await?;
    println!("{greeting}");

    drop(stop);
    serving.await?;
    Ok(())
}
