//! The names, numbers and limits of the protocol. `docs/PROTOCOL.md` states them for people.

use std::time::Duration;

use crate::{Error, ErrorKind};

/// Version spoken in `rpc.hello`. A peer that speaks another major version is refused.
pub const PROTOCOL_VERSION: u32 = 1;

/// Bytes before each message: its length as a big-endian `u32`.
pub const LENGTH_BYTES: usize = 4;

/// Longest message either side accepts by default. The first byte of a frame must be 0, which
/// keeps every limit below 16 MiB and leaves the other values for other protocols on the port.
pub const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Upper bound of every configured message limit: the first length byte stays 0.
pub const MESSAGE_BYTES_CEILING: usize = 16 * 1024 * 1024 - 1;

/// Lower bound of every message limit: hello with an incarnation, its answer, and each error of the
/// protocol's own with its data and a load report take up to about 450 bytes. A node that names a lower one in
/// its answer to hello is not used.
pub const MESSAGE_BYTES_FLOOR: usize = 512;

/// Calls that may wait on one connection. Slots are numbered below it, so it is also the factor
/// by which our client's ids count up (`sequence * 1024 + slot`).
pub const IN_FLIGHT_MAX: usize = 1024;

/// Requests in one batch; more are refused as an invalid request.
pub const BATCH_MAX: usize = 100;

/// The time a call has when the caller says nothing.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The time to open a connection and say hello on it.
pub const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// Methods beginning so belong to the protocol.
pub const RESERVED_PREFIX: &str = "rpc.";
/// First request on a connection: version, features, the incarnation the caller means to reach.
pub const HELLO: &str = "rpc.hello";
/// Answered with `null` at once, also while handlers compute.
pub const PING: &str = "rpc.ping";
/// Notification from the caller: the request with this id is no longer wanted.
pub const CANCEL: &str = "rpc.cancel";
/// Notification from the server: it takes no further requests on this connection.
pub const GOAWAY: &str = "rpc.goaway";
/// Answered at once with the server's load report alone.
pub const PROBE: &str = "rpc.probe";
/// Answered with an OpenRPC document of the server's methods.
pub const DISCOVER: &str = "rpc.discover";

/// Features that a peer may name in `rpc.hello`.
pub mod feature {
    /// The peer answers `rpc.ping` requests from the other side.
    pub const PING: &str = "ping";
    /// The peer understands the notification `rpc.goaway`.
    pub const GOAWAY: &str = "goaway";
    /// The server sends load reports in the `meta` of responses, and answers `rpc.probe`; the
    /// client wants them.
    pub const LOAD: &str = "load";
}

/// An error code of the protocol, with what it promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode {
    /// The number on the wire.
    pub code: i64,
    /// The stable name, for people and programs.
    pub name: &'static str,
    /// Whether the request may have begun to run. If not, sending it elsewhere is always safe.
    pub started: bool,
    /// Whether another attempt, on another node, can help.
    pub retry: bool,
}

/// Whether messages can be limited to so many bytes.
///
/// # Errors
/// [`ErrorKind::Config`] if it is outside of [`MESSAGE_BYTES_FLOOR`] to [`MESSAGE_BYTES_CEILING`].
pub fn check_message_limit(bytes: usize) -> Result<(), Error> {
    if (MESSAGE_BYTES_FLOOR..=MESSAGE_BYTES_CEILING).contains(&bytes) {
        return Ok(());
    }
    let reason = format!(
        "message_bytes_max must be {MESSAGE_BYTES_FLOOR}, which the protocol's own messages take, to {MESSAGE_BYTES_CEILING}, not {bytes}"
    );
    Err(ErrorKind::Config(reason).into())
}

macro_rules! error_codes {
    ($($(#[$doc:meta])* $constant:ident = $code:literal, $name:literal, started: $started:literal, retry: $retry:literal;)*) => {
        /// The codes by name.
        pub mod code {
            $($(#[$doc])* pub const $constant: i64 = $code;)*
        }
        /// Every code of the protocol. All other integers belong to applications.
        pub const ERROR_CODES: &[ErrorCode] = &[
            $(ErrorCode { code: $code, name: $name, started: $started, retry: $retry },)*
        ];
    };
}

error_codes! {
    /// The message is not JSON.
    PARSE_ERROR = -32700, "parse_error", started: false, retry: false;
    /// The JSON is not a request.
    INVALID_REQUEST = -32600, "invalid_request", started: false, retry: false;
    /// The server has no such method.
    METHOD_NOT_FOUND = -32601, "method_not_found", started: false, retry: false;
    /// The params do not fit the method.
    INVALID_PARAMS = -32602, "invalid_params", started: true, retry: false;
    /// The handler failed in a way it did not foresee, such as a panic.
    INTERNAL_ERROR = -32603, "internal_error", started: true, retry: false;
    /// The time that the caller allowed is over.
    DEADLINE_EXCEEDED = -32000, "deadline_exceeded", started: true, retry: false;
    /// The caller took the request back.
    CANCELLED = -32001, "cancelled", started: true, retry: false;
    /// The server is about to stop and takes nothing new.
    DRAINING = -32002, "draining", started: false, retry: true;
    /// The server has as much work as it can hold.
    OVERLOADED = -32003, "overloaded", started: false, retry: true;
    /// The request asked for a node less loaded than this one is now.
    REFUSED = -32004, "refused", started: false, retry: true;
    /// The request or its reply is longer than the limit.
    TOO_LARGE = -32005, "too_large", started: true, retry: false;
    /// Another incarnation than the one asked for answers at this address.
    WRONG_INCARNATION = -32006, "wrong_incarnation", started: false, retry: true;
    /// The peer speaks another version of the protocol.
    INCOMPATIBLE_VERSION = -32007, "incompatible_version", started: false, retry: true;
    /// The server speaks TLS only, and closes the connection.
    TLS_REQUIRED = -32008, "tls_required", started: false, retry: true;
    /// The caller has not said who it is, or is not believed.
    UNAUTHENTICATED = -32009, "unauthenticated", started: false, retry: true;
    /// The caller may not call this method.
    PERMISSION_DENIED = -32010, "permission_denied", started: false, retry: false;
    /// The handler called another service, and passed on what that failed with.
    UPSTREAM = -32011, "upstream", started: true, retry: false;
}

/// The protocol's error code with this number.
pub fn error_code(code: i64) -> Option<&'static ErrorCode> {
    ERROR_CODES.iter().find(|e| e.code == code)
}
