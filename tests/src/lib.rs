//! What the tests share.

pub mod binaries;
pub mod conformance;
pub mod process;
pub mod raw;
pub mod shell_blocks;
pub mod zk;
