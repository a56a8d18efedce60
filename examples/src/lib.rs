//! The examples are the files beside `src`.

/// The Rust code of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
