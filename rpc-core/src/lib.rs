//! What the client and the server share: the wire, errors, deadlines, node records and the
//! registries that servers register in and clients watch.
//!
//! Nothing here knows of a client or a server. I/O happens in `net`, `tls`, `reloaded`, `secret`,
//! `open_files` and under `registry` only; everything else is pure and takes the time and random numbers it needs as
//! arguments.

pub mod backoff;
mod deadline;
mod error;
mod latency;
pub mod load;
pub mod net;
mod node_record;
pub mod open_files;
pub mod protocol;
pub mod registry;
pub mod reloaded;
pub mod secret;
pub mod seldom;
#[cfg(feature = "tls")]
pub mod tls;
pub mod wire;

pub use deadline::{Deadline, whole_ms};
pub use error::{Attempt, Error, ErrorKind, NO_VALID_ANSWER, NotRepeated, RegistryState, RpcError};
pub use error::{attempts_text, micros, millis, printable};
pub use latency::{LatencyRecorder, LatencySummary};
pub use load::{LoadMeter, LoadReport};
pub use node_record::{NodeRecord, NodeState};

/// A future behind a pointer, as object-safe traits return it.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;
