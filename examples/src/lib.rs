//! The examples are the files beside `src`.
