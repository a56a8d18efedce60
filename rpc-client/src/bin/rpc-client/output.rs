//! Standard output and standard error.

use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write};

use serde::Serialize;

use crate::failure::Failure;

/// Writes `text` and a line end to standard output.
///
/// # Errors
/// [`Failure::BrokenPipe`] when nobody reads it.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    stream(|out| out.write_all(text.as_bytes()))
}

/// Lets `write` write to standard output, and ends the line.
///
/// # Errors
/// As [`line`].
pub(crate) fn stream(write: impl FnOnce(&mut BufWriter<StdoutLock<'_>>) -> io::Result<()>) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    let written = write(&mut out).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
    // What could not be written is not tried again when the buffer goes.
    drop(out.into_parts());
    written.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::BrokenPipe,
        _ => Failure::other(format!("cannot write to standard output: {error}")),
    })
}

/// Writes a value as one line of JSON.
///
/// # Errors
/// As [`line`].
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    line(&serde_json::to_string(value).map_err(|e| Failure::other(format!("the output is no JSON: {e}")))?)
}

/// Writes a line to standard error. If that is gone, there is nobody to tell.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
