//! Calls the node that will answer soonest.
//!
//! ```no_run
//! use rpc_client::Client;
//!
//! # async fn run() -> Result<(), rpc_client::Error> {
//! let client = Client::connect("local:").await?;
//! let sum: i64 = client.call("add", &(1, 2)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`Client`] follows the registry, keeps one connection per node and sends each call to the
//!   node that [`balance`] chooses.
//! - [`CallOptions`] say how long a call may take, whether it may be repeated, and its key.
//! - [`balance::Policy`] is the trait for balancing policies of your own.

pub mod balance;
pub mod breaker;
mod call;
mod channel;
mod client;
mod decisions;
mod ended;
mod expire;
mod greet;
mod hedge;
mod node;
pub mod node_load;
mod options;
mod pool;
mod recent_latencies;
mod refusals;
mod removal_doubt;
mod reply;
mod report;
mod retry_budget;
mod schedule;
mod slots;
#[cfg(test)]
mod slow_registry;
mod snapshot;
mod sync;
mod write_back;

pub use client::{Client, ClientBuilder};
pub use decisions::{DecisionRecord, Filter, Reason, Removed};
#[cfg(feature = "tls")]
pub use greet::certificate;
pub use greet::{GreetError, Greeting, greet};
pub use options::{CallOptions, ClientConfig};
pub use reply::Reply;
pub use rpc_core::protocol::code;
pub use rpc_core::secret::{Secret, Token};
#[cfg(feature = "tls")]
pub use rpc_core::tls::{ClientTls, ClientTlsFiles};
pub use rpc_core::{Attempt, Deadline, Error, ErrorKind, NotRepeated, RegistryState, RpcError, registry};
pub use schedule::Schedule;
pub use snapshot::{ClientUsage, ConnectionState, NodeStatus};
