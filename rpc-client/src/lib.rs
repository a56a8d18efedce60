//! The client (being written).

pub mod balance;
pub mod breaker;
pub mod expire;
pub mod node_load;
pub mod recent_latencies;
pub mod removal_doubt;
pub mod report;
pub mod retry_budget;
pub mod schedule;
mod slots;
#[cfg(test)]
mod slow_registry;
pub mod write_back;
