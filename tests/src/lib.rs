//! What the tests share.

pub mod binaries;
pub mod certificates;
pub mod chaos;
pub mod cluster;
pub mod conformance;
pub mod fuzzing;
pub mod link;
pub mod load;
pub mod process;
pub mod puppet;
pub mod raw;
pub mod shell_blocks;
mod socket_owner;
pub mod zk;
