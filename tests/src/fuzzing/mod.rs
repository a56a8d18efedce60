//! What holds for any bytes: the bodies of the fuzz targets in `tests/fuzz`. Each panics where what it says does not
//! hold. `it/corpora.rs` runs them on the corpora and on the golden messages.

mod frame;
mod json;
mod message;
mod record;
mod scenario;
mod url;

pub use frame::frame;
pub use json::json;
pub use message::message;
pub use record::record;
pub use scenario::scenario;
pub use url::url;

/// One fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: that of its binary, its corpus and its dictionary.
    pub name: &'static str,
    /// Its body.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "frame", run: frame },
    Target { name: "json", run: json },
    Target { name: "message", run: message },
    Target { name: "record", run: record },
    Target { name: "scenario", run: scenario },
    Target { name: "url", run: url },
];
