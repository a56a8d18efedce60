//! The integration tests: one binary, one module for each subject.
#![allow(clippy::unwrap_used, reason = "nothing but tests is in here")]

mod acceptance;
mod balance;
mod call;
mod chaos;
mod cli;
mod corpora;
mod deadline;
mod decisions;
mod discovery;
mod doctor;
mod errors;
mod failover;
mod few_files;
mod flood;
mod leaks;
mod limits;
mod overload;
mod protocol;
mod readme;
mod registry;
mod reliability;
mod security;
mod security_commands;
mod slow_peers;
mod targets;
mod tidy;
mod unheard;
mod wire;
mod zookeeper;
mod zookeeper_auth;
mod zookeeper_tls;
mod zookeeper_trouble;
