//! The server (being written).
