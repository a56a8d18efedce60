use rpc_server::{RpcError, Server};

async fn add((a, b): (i64, i64)) -> Result<i64, RpcError> {
    Ok(a + b)
}

#[tokio::main]
async fn main() -> Result<(), rpc_server::Error> {
    let server = Server::builder().method("add", add).registry("local:")?.bind("127.0.0.1:0").await?;
    server.serve(async { tokio::signal::ctrl_c().await.unwrap_or_default() }).await;
    Ok(())
}
