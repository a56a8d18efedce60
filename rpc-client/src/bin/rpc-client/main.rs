//! The command (being written).
fn main() {}
