//! What the tests share.

pub mod binaries;
pub mod cluster;
pub mod conformance;
pub mod link;
pub mod load;
pub mod process;
pub mod puppet;
pub mod raw;
pub mod shell_blocks;
pub mod zk;
