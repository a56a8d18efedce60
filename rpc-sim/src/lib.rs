//! Simulates the client's balancing policies: the real policy, node state, breaker and load meter,
//! on virtual time, with simulated servers and network. The same seed gives the same result.
//!
//! `README.md` of this crate describes the command and the keys of a scenario;
//! `docs/BALANCING.md` has the results.
//!
//! A run is one loop over an agenda ([`agenda`]): the client's side of a call is in `calling`,
//! the server's in `serving`, what happens to servers in [`changes`].

pub mod agenda;
pub mod anchors;
mod calling;
pub mod changes;
mod check;
pub mod client;
pub mod clock;
pub mod outcome;
pub mod policies;
pub mod published;
pub mod runner;
pub mod scenario;
pub mod server;
mod serving;
pub mod simulation;
pub mod slab;
pub mod table;
pub mod work;
