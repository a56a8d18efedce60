//! Messages in their usual spelling.

use serde::Serialize;

use super::json::{write_json, write_string};
use super::parse::{Id, RequestMeta};
use crate::RpcError;
use crate::protocol::LENGTH_BYTES;

/// Why a request was not written. The buffer is as it was before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// JSON-RPC allows an array, an object, or nothing.
    #[error("params must be an array or an object, not {0}")]
    NotStructured(&'static str),
    /// The value cannot be written as JSON.
    #[error("{0}")]
    Json(String),
    /// The message would be longer than the limit.
    #[error("{size} bytes are more than the limit of {limit}")]
    TooLarge {
        /// Bytes of the message.
        size: usize,
        /// The limit.
        limit: usize,
    },
}

/// The part of a response's `meta` that carries the server's load, already spelled as JSON.
pub type LoadBytes<'a> = Option<&'a [u8]>;

/// Starts a frame and returns where it starts. Write the message, then call [`end_frame`].
#[inline]
pub fn begin_frame(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    start
}

/// Ends the frame that starts at `start`, or takes it back if the message exceeds `limit`.
///
/// # Errors
/// [`EncodeError::TooLarge`].
#[inline]
pub fn end_frame(out: &mut Vec<u8>, start: usize, limit: usize) -> Result<(), EncodeError> {
    let size = out.len() - start - LENGTH_BYTES;
    if size > limit {
        out.truncate(start);
        return Err(EncodeError::TooLarge { size, limit });
    }
    let length = (size as u32).to_be_bytes();
    out[start..start + LENGTH_BYTES].copy_from_slice(&length);
    Ok(())
}

/// Writes a framed request. Params that serialise to `null` are left out.
///
/// # Errors
/// Params that cannot be sent, or a message over `limit`; `out` is then as before.
#[inline]
pub fn put_request<P: Serialize + ?Sized>(
    out: &mut Vec<u8>,
    id: u64,
    method: &str,
    meta: &RequestMeta<'_>,
    params: &P,
    limit: usize,
) -> Result<(), EncodeError> {
    let start = begin_frame(out);
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    put_number(out, id);
    put_call(out, start, method, meta, params, limit)
}

/// Writes a framed notification: a request that is not answered.
///
/// # Errors
/// As [`put_request`].
pub fn put_notification<P: Serialize + ?Sized>(
    out: &mut Vec<u8>,
    method: &str,
    params: &P,
    limit: usize,
) -> Result<(), EncodeError> {
    let start = begin_frame(out);
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\"");
    put_call(out, start, method, &RequestMeta::default(), params, limit)
}

#[inline]
fn put_call<P: Serialize + ?Sized>(
    out: &mut Vec<u8>,
    start: usize,
    method: &str,
    meta: &RequestMeta<'_>,
    params: &P,
    limit: usize,
) -> Result<(), EncodeError> {
    out.extend_from_slice(b",\"method\":");
    write_string(out, method);
    put_meta(out, meta);
    if let Err(error) = put_params(out, params) {
        out.truncate(start);
        return Err(error);
    }
    out.push(b'}');
    end_frame(out, start, limit)
}

#[inline]
fn put_params<P: Serialize + ?Sized>(out: &mut Vec<u8>, params: &P) -> Result<(), EncodeError> {
    let before = out.len();
    out.extend_from_slice(b",\"params\":");
    let at = out.len();
    write_json(out, params).map_err(|e| EncodeError::Json(e.to_string()))?;
    match out[at] {
        b'{' | b'[' => Ok(()),
        b'n' => {
            out.truncate(before);
            Ok(())
        }
        b'"' => Err(EncodeError::NotStructured("a string")),
        b't' | b'f' => Err(EncodeError::NotStructured("a boolean")),
        _ => Err(EncodeError::NotStructured("a number")),
    }
}

#[inline]
fn put_meta(out: &mut Vec<u8>, meta: &RequestMeta<'_>) {
    if meta.is_empty() {
        return;
    }
    out.extend_from_slice(b",\"meta\":{");
    let first = out.len();
    let name = |out: &mut Vec<u8>, name: &[u8]| {
        if out.len() > first {
            out.push(b',');
        }
        out.extend_from_slice(name);
    };
    if let Some(ms) = meta.timeout_ms {
        name(out, b"\"timeout_ms\":");
        put_number(out, ms);
    }
    if meta.attempt > 0 {
        name(out, b"\"attempt\":");
        put_number(out, u64::from(meta.attempt));
    }
    if let Some(bound) = meta.bound_us {
        name(out, b"\"bound_us\":");
        put_number(out, bound);
    }
    if let Some(key) = &meta.key {
        name(out, b"\"key\":");
        write_string(out, key);
    }
    if let Some(trace) = &meta.traceparent {
        name(out, b"\"traceparent\":");
        write_string(out, trace);
    }
    out.push(b'}');
}

/// Writes a framed response with a result. When the result cannot be written, or the message
/// exceeds `limit`, the error says so and `out` is as before.
///
/// # Errors
/// As [`put_request`].
#[inline]
pub fn put_result<R: Serialize + ?Sized>(
    out: &mut Vec<u8>,
    id: &Id<'_>,
    load: LoadBytes<'_>,
    result: &R,
    limit: usize,
) -> Result<(), EncodeError> {
    let start = begin_frame(out);
    put_response_head(out, id, load);
    out.extend_from_slice(b",\"result\":");
    if let Err(error) = write_json(out, result) {
        out.truncate(start);
        return Err(EncodeError::Json(error.to_string()));
    }
    out.push(b'}');
    end_frame(out, start, limit)
}

/// Writes a framed response with an error. An error whose data exceed `limit` goes without them.
pub fn put_error(out: &mut Vec<u8>, id: &Id<'_>, load: LoadBytes<'_>, error: &RpcError, limit: usize) {
    let start = begin_frame(out);
    put_response_head(out, id, load);
    out.extend_from_slice(b",\"error\":");
    serde_json::to_writer(&mut *out, error).expect("a number, a string and raw JSON always serialise");
    out.push(b'}');
    if end_frame(out, start, limit).is_err() {
        // Short enough for any limit that lets a request through.
        let short = RpcError::new(error.code, "the error message is longer than the limit");
        let start = begin_frame(out);
        put_response_head(out, id, None);
        out.extend_from_slice(b",\"error\":");
        serde_json::to_writer(&mut *out, &short).expect("a number and a string always serialise");
        out.push(b'}');
        let _ = end_frame(out, start, usize::MAX);
    }
}

#[inline]
fn put_response_head(out: &mut Vec<u8>, id: &Id<'_>, load: LoadBytes<'_>) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    match id {
        Id::Number(n) => put_number(out, *n),
        Id::Other(text) => out.extend_from_slice(text.as_bytes()),
    }
    if let Some(load) = load {
        out.extend_from_slice(b",\"meta\":{\"load\":");
        out.extend_from_slice(load);
        out.push(b'}');
    }
}

#[inline]
fn put_number(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}
