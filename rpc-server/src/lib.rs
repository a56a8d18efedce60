//! Serves typed handlers over JSON-RPC 2.0 and registers itself where clients look.
//!
//! ```no_run
//! use rpc_server::{RpcError, Server};
//!
//! async fn add((a, b): (i64, i64)) -> Result<i64, RpcError> {
//!     Ok(a + b)
//! }
//!
//! # async fn run() -> Result<(), rpc_server::Error> {
//! let server = Server::builder().method("add", add).registry("local:")?.bind("127.0.0.1:0").await?;
//! server.serve(async { tokio::signal::ctrl_c().await.unwrap_or_default() }).await;
//! # Ok(())
//! # }
//! ```
//!
//! - [`Server`] binds, registers, accepts and drains.
//! - [`Method`] is a name and a handler: any async function of serde types.
//! - One task per connection reads, polls handlers in place and writes all answers of a read with
//!   one system call.

mod access;
mod admission;
mod computing;
mod config;
mod connection;
mod context;
mod discover;
mod ends;
mod handler;
mod handler_error;
mod links;
mod load;
mod pending;
mod reply;
mod router;
#[cfg(feature = "tls")]
mod secure;
mod server;
mod turn_away;

pub use access::Access;
pub use admission::ConcurrencyLimit;
pub use config::ServerConfig;
pub use context::Context;
pub use handler::Method;
pub use rpc_core::protocol::code;
pub use rpc_core::secret::Secret;
#[cfg(feature = "tls")]
pub use rpc_core::tls::{ServerTls, ServerTlsFiles};
pub use rpc_core::{Deadline, Error, ErrorKind, RpcError, registry};
pub use server::{Server, ServerBuilder, ServerUsage};
