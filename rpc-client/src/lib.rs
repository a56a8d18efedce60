//! The client (being written).

pub mod balance;
