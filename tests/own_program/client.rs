use std::time::Duration;

use rpc_client::{CallOptions, Client};

#[tokio::main]
async fn main() -> Result<(), rpc_client::Error> {
    let client = Client::connect("local:").await?;
    let sum: i64 = client.call("add", &(1, 2)).await?;
    let once_more = CallOptions::new().timeout(Duration::from_millis(200)).idempotent();
    let same: i64 = client.call_with("add", &(1, 2), &once_more).await?;
    assert_eq!(sum, same);
    Ok(())
}
