//! The server binary (being written).
fn main() {}
