//! The client (being written).

pub mod balance;
pub mod breaker;
pub mod node_load;
pub mod removal_doubt;
pub mod retry_budget;
