//! Frames and envelopes: the only code that touches the bytes of the protocol.
//!
//! A frame is a length and a JSON-RPC 2.0 message ([`FrameBuffer`] takes them apart). The usual
//! spelling of a message, the one that this module writes, is matched byte by byte; any other
//! spelling of the same JSON goes through serde. Params and results stay where they lie in the
//! read buffer until they are parsed, once, into the handler's or caller's type.

mod encode;
mod first_byte;
mod frame;
mod json;
mod load;
mod parse;
mod spare;

pub use encode::{
    EncodeError, LoadBytes, begin_frame, end_frame, put_error, put_notification, put_request, put_result,
};
pub use first_byte::{NotAFrame, Spoken, spoken};
pub use frame::{Frame, FrameBuffer};
pub use json::{read_json, write_json};
pub use load::{LoadText, parse_load};
pub use parse::{
    Id, Incoming, Invalid, Request, RequestMeta, Response, exact_result, parse, parse_any, parse_element, peek_id,
};
pub use spare::{give_body, give_write_buffer, take_body, take_write_buffer};
