//! What a message says.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::load::{leading_report, load_in_meta};
use crate::protocol::{BATCH_MAX, code};
use crate::{LoadReport, RpcError};

/// A message as it lies in the read buffer.
#[derive(Debug)]
pub enum Incoming<'a> {
    /// A request or notification.
    Request(Request<'a>),
    /// A response.
    Response(Response<'a>),
    /// A batch: each element is to be given to [`parse_element`].
    Batch(Vec<&'a RawValue>),
    /// Something else. It is answered with the error.
    Invalid(Invalid<'a>),
}

/// What cannot be understood, and the answer to it.
#[derive(Debug)]
pub struct Invalid<'a> {
    /// The id of the request, `null` if it has none that can be told.
    pub id: Id<'a>,
    /// `parse_error` or `invalid_request`.
    pub error: RpcError,
}

/// A request, or a notification if it has no id.
#[derive(Debug)]
pub struct Request<'a> {
    /// To be repeated in the response.
    pub id: Option<Id<'a>>,
    /// The method.
    pub method: Cow<'a, str>,
    /// The params as JSON text, unparsed. In the usual spelling they may still turn out not to be
    /// one JSON value; whoever parses them finds out.
    pub params: Option<&'a [u8]>,
    /// Our additions.
    pub meta: RequestMeta<'a>,
}

/// The id of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Id<'a> {
    /// A non-negative integer: what our client uses.
    Number(u64),
    /// Any other id, as JSON text.
    Other(Cow<'a, str>),
}

/// The member `meta` of a request: our additions to JSON-RPC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct RequestMeta<'a> {
    /// The time that remains for the call, in milliseconds.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// 0 for the first attempt.
    #[serde(default)]
    pub attempt: u32,
    /// Refuse the call if it is expected to take longer, in microseconds.
    #[serde(default)]
    pub bound_us: Option<u64>,
    /// The caller's key.
    #[serde(borrow, default)]
    pub key: Option<Cow<'a, str>>,
    /// W3C trace context.
    #[serde(borrow, default)]
    pub traceparent: Option<Cow<'a, str>>,
}

/// A response.
#[derive(Debug)]
pub struct Response<'a> {
    /// The id of the request, if it is one that our client gives.
    pub id: Option<u64>,
    /// The JSON text of the result, or of the error object.
    pub body: Result<&'a [u8], &'a [u8]>,
    /// The load of the server, if it came along.
    pub load: Option<LoadReport>,
}

impl<'a> Id<'a> {
    /// The id that this JSON value is: a string, a number or `null`.
    pub fn of(raw: &'a RawValue) -> Option<Self> {
        let text = raw.get();
        match text.as_bytes()[0] {
            b'"' | b'n' | b'-' | b'0'..=b'9' => Some(match number(text.as_bytes()) {
                Some((n, [])) => Id::Number(n),
                _ => Id::Other(Cow::Borrowed(text)),
            }),
            _ => None,
        }
    }
}

impl Id<'_> {
    /// `null`
    pub const NULL: Id<'static> = Id::Other(Cow::Borrowed("null"));

    /// The same id, not borrowed from the read buffer.
    pub fn into_owned(self) -> Id<'static> {
        match self {
            Id::Number(n) => Id::Number(n),
            Id::Other(text) => Id::Other(Cow::Owned(text.into_owned())),
        }
    }
}

impl RequestMeta<'_> {
    /// The same, not borrowed from the read buffer.
    pub fn into_owned(self) -> RequestMeta<'static> {
        RequestMeta {
            timeout_ms: self.timeout_ms,
            attempt: self.attempt,
            bound_us: self.bound_us,
            key: self.key.map(|key| Cow::Owned(key.into_owned())),
            traceparent: self.traceparent.map(|trace| Cow::Owned(trace.into_owned())),
        }
    }

    /// Whether it says nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.timeout_ms.is_none()
            && self.attempt == 0
            && self.bound_us.is_none()
            && self.key.is_none()
            && self.traceparent.is_none()
    }
}

/// Reads one message.
#[inline]
pub fn parse(message: &[u8]) -> Incoming<'_> {
    match usual(message) {
        Some(incoming) => incoming,
        None => parse_any(message),
    }
}

/// The start that requests and responses share in the usual spelling.
const START: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":";

/// What is around a load report in `meta`.
const LOAD: &[u8] = b",\"meta\":{\"load\":";
const LOAD_END: &[u8] = b"},\"result\":";

#[inline]
fn usual(message: &[u8]) -> Option<Incoming<'_>> {
    let (id, rest) = number(message.strip_prefix(START)?)?;
    if let Some(result) = rest.strip_prefix(b",\"result\":") {
        let body = Ok(result.strip_suffix(b"}")?);
        return Some(Incoming::Response(Response { id: Some(id), body, load: None }));
    }
    if let Some(rest) = rest.strip_prefix(b",\"method\":\"") {
        return usual_request(id, rest);
    }
    let (load, rest) = leading_report(rest.strip_prefix(LOAD)?)?;
    let body = Ok(rest.strip_prefix(LOAD_END)?.strip_suffix(b"}")?);
    Some(Incoming::Response(Response { id: Some(id), body, load: Some(load) }))
}

#[inline]
fn usual_request(id: u64, rest: &[u8]) -> Option<Incoming<'_>> {
    // A character that JSON wants escaped is serde's to refuse.
    let end = rest.iter().position(|&b| b == b'"' || b == b'\\' || !(0x20..0x80).contains(&b))?;
    let method = std::str::from_utf8(&rest[..end]).ok()?;
    let mut rest = rest[end..].strip_prefix(b"\"")?;
    let mut meta = RequestMeta::default();
    if let Some(after) = rest.strip_prefix(b",\"meta\":{\"timeout_ms\":") {
        let (ms, after) = number(after)?;
        // Any further member: leave it to serde.
        rest = after.strip_prefix(b"}")?;
        meta.timeout_ms = Some(ms);
    }
    let params = match rest {
        b"}" => None,
        _ => Some(rest.strip_prefix(b",\"params\":")?.strip_suffix(b"}")?),
    };
    if params.is_some_and(|p| !matches!(p.first(), Some(b'[' | b'{'))) {
        return None;
    }
    Some(Incoming::Request(Request { id: Some(Id::Number(id)), method: Cow::Borrowed(method), params, meta }))
}

/// A JSON integer from 0 up to 19 digits, and what follows it.
#[inline]
pub(super) fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let (mut n, mut digits) = (0u64, 0);
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        // Nineteen digits cannot overflow; more are refused below.
        n = n.wrapping_mul(10).wrapping_add(u64::from(digit));
        digits += 1;
    }
    if digits == 0 || digits > 19 || (digits > 1 && text[0] == b'0') {
        return None;
    }
    // `1.5` and `1e3` are numbers too, but not these.
    match text.get(digits) {
        Some(b'.' | b'e' | b'E') => None,
        _ => Some((n, &text[digits..])),
    }
}

/// The id in the first bytes of a message that was too long to be kept, if it is spelled as usual.
pub fn peek_id(head: &[u8]) -> Option<u64> {
    number(head.strip_prefix(START)?).map(|(id, _)| id)
}

/// The result alone, when further members follow it in `body`: in the usual spelling nobody looked
/// for its end. `None` if it is no JSON, or an error is among those members.
#[cold]
pub fn exact_result(body: &[u8]) -> Option<Vec<u8>> {
    let message = [START, b"0,\"result\":", body, b"}"].concat();
    match parse_any(&message) {
        Incoming::Response(Response { body: Ok(result), .. }) => Some(result.to_vec()),
        Incoming::Response(_) | Incoming::Request(_) | Incoming::Batch(_) | Incoming::Invalid(_) => None,
    }
}

/// Any JSON object that can be a message.
#[derive(Deserialize)]
#[serde(expecting = "a request or an answer of JSON-RPC 2.0")]
struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    meta: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// Tells `null` from a member that is missing.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&'a RawValue>::deserialize(deserializer).map(Some)
}

/// Reads one message in any spelling, through serde: slower than [`parse`], and certain that the
/// params are one JSON value.
#[cold]
pub fn parse_any(message: &[u8]) -> Incoming<'_> {
    let Ok(text) = std::str::from_utf8(message) else {
        return invalid(Id::NULL, code::PARSE_ERROR, "the message is not UTF-8");
    };
    if !text.trim_start_matches(JSON_SPACE).starts_with('[') {
        return object(text);
    }
    match serde_json::from_str::<Vec<&RawValue>>(text) {
        Err(error) => invalid(Id::NULL, code::PARSE_ERROR, &format!("the message is not JSON: {error}")),
        Ok(batch) if batch.is_empty() => invalid(Id::NULL, code::INVALID_REQUEST, "the batch is empty"),
        Ok(batch) if batch.len() > BATCH_MAX => {
            invalid(Id::NULL, code::INVALID_REQUEST, &format!("a batch holds at most {BATCH_MAX} requests"))
        }
        Ok(batch) => Incoming::Batch(batch),
    }
}

const JSON_SPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// Reads one element of a batch; a batch in a batch is invalid.
pub fn parse_element(element: &RawValue) -> Incoming<'_> {
    object(element.get())
}

fn object(text: &str) -> Incoming<'_> {
    let envelope = match serde_json::from_str::<Envelope<'_>>(text) {
        Ok(envelope) => envelope,
        Err(error) => {
            // A member of the wrong shape is reported first, even when the text ends too early.
            return match serde_json::from_str::<serde::de::IgnoredAny>(text) {
                Err(error) => invalid(Id::NULL, code::PARSE_ERROR, &format!("the message is not JSON: {error}")),
                Ok(_) => invalid(Id::NULL, code::INVALID_REQUEST, &format!("the message is no request: {error}")),
            };
        }
    };
    if envelope.method.is_none() && (envelope.result.is_some() || envelope.error.is_some()) {
        return response(&envelope);
    }
    match request(&envelope) {
        Ok(request) => Incoming::Request(request),
        Err(reason) => {
            let id = envelope.id.and_then(Id::of).unwrap_or(Id::NULL);
            invalid(id, code::INVALID_REQUEST, &format!("the message is no request: {reason}"))
        }
    }
}

fn response<'a>(envelope: &Envelope<'a>) -> Incoming<'a> {
    let id = envelope.id.and_then(|raw| raw.get().parse().ok());
    let body = match (envelope.result, envelope.error) {
        // Only one of them is allowed, but some servers send the other as null.
        (Some(result), error) if error.is_none_or(|error| error.get() == "null") => Ok(result.get().as_bytes()),
        (_, error) => Err(error.map_or("null", RawValue::get).as_bytes()),
    };
    Incoming::Response(Response { id, body, load: envelope.meta.and_then(|meta| load_in_meta(meta.get().as_bytes())) })
}

fn request<'a>(envelope: &Envelope<'a>) -> Result<Request<'a>, &'static str> {
    if envelope.jsonrpc.map(RawValue::get) != Some("\"2.0\"") {
        return Err("`jsonrpc` must be \"2.0\"");
    }
    let id = envelope.id.map(|raw| Id::of(raw).ok_or("`id` must be a string, a number or null")).transpose()?;
    let method = envelope.method.ok_or("`method` is missing")?;
    let method = serde_json::from_str::<Text<'a>>(method.get()).map_err(|_| "`method` must be a string")?.0;
    let params = envelope.params.map(|raw| raw.get().as_bytes());
    if params.is_some_and(|p| !matches!(p[0], b'[' | b'{')) {
        return Err("`params` must be an array or an object");
    }
    let meta = match envelope.meta {
        None => RequestMeta::default(),
        Some(raw) => serde_json::from_str(raw.get()).map_err(|_| "`meta` is malformed")?,
    };
    Ok(Request { id, method, params, meta })
}

/// A string that is borrowed unless it has escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

fn invalid<'a>(id: Id<'a>, code: i64, message: &str) -> Incoming<'a> {
    Incoming::Invalid(Invalid { id, error: RpcError::new(code, message) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{begin_frame, end_frame, put_error, put_request, put_result};
    use super::*;

    fn request_of(text: &str) -> Request<'_> {
        match parse(text.as_bytes()) {
            Incoming::Request(request) => request,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn error_of(text: &[u8]) -> (i64, Id<'_>) {
        match parse(text) {
            Incoming::Invalid(invalid) => (invalid.error.code, invalid.id),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_spelling_means_the_same() {
        let usual = r#"{"jsonrpc":"2.0","id":7,"method":"add","meta":{"timeout_ms":50},"params":[1,2]}"#;
        let spaced =
            r#" { "params" : [1,2] , "id" : 7, "method":"\u0061dd","jsonrpc":"2.0","meta":{"timeout_ms":50}} "#;
        for text in [usual, spaced] {
            let request = request_of(text);
            assert_eq!(request.id, Some(Id::Number(7)));
            assert_eq!(request.method, "add");
            assert_eq!(request.params, Some(&b"[1,2]"[..]));
            assert_eq!(request.meta.timeout_ms, Some(50));
        }
    }

    #[test]
    fn ids_of_every_kind_are_kept_as_they_are() {
        for id in ["null", "\"a\"", "-1", "1.50", "1e3", "99999999999999999999", "\"\\u0061\""] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
            assert_eq!(request_of(&text).id, Some(Id::Other(id.into())), "{id}");
        }
        assert_eq!(request_of(r#"{"jsonrpc":"2.0","method":"m"}"#).id, None);
        assert_eq!(request_of(r#"{"jsonrpc":"2.0","id":0,"method":"m"}"#).id, Some(Id::Number(0)));
    }

    #[test]
    fn what_is_no_request_says_why() {
        for (text, code) in [
            (&b""[..], code::PARSE_ERROR),
            (b"{", code::PARSE_ERROR),
            (b"\xff\xfe", code::PARSE_ERROR),
            (b"{\"jsonrpc\":\"2.0\",\"method\":\"foobar, \"params\": \"bar\", \"baz]", code::PARSE_ERROR),
            (b"[1,", code::PARSE_ERROR),
            (b"[]", code::INVALID_REQUEST),
            (b"17", code::INVALID_REQUEST),
            (b"\"x\"", code::INVALID_REQUEST),
            (b"{}", code::INVALID_REQUEST),
            (b"{\"jsonrpc\":\"2.0\",\"method\":1}", code::INVALID_REQUEST),
            (b"{\"method\":\"m\"}", code::INVALID_REQUEST),
            (b"{\"jsonrpc\":\"1.0\",\"method\":\"m\"}", code::INVALID_REQUEST),
            (b"{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"id\":1,\"id\":2}", code::INVALID_REQUEST),
            (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\x01b\"}", code::PARSE_ERROR),
        ] {
            assert_eq!(error_of(text), (code, Id::NULL), "{}", String::from_utf8_lossy(text));
        }
        let with_id = br#"{"jsonrpc":"2.0","id":4,"method":"m","params":"bar"}"#;
        assert_eq!(error_of(with_id).0, code::INVALID_REQUEST);
        let id_of_the_wrong_kind = br#"{"jsonrpc":"2.0","id":[1],"method":"m"}"#;
        assert_eq!(error_of(id_of_the_wrong_kind), (code::INVALID_REQUEST, Id::NULL));
    }

    #[test]
    fn what_is_written_is_read_on_the_short_path() {
        let mut out = Vec::new();
        let meta = RequestMeta { timeout_ms: Some(5000), ..Default::default() };
        put_request(&mut out, 1025, "echo", &meta, &[1], 1000).unwrap();
        assert!(usual(&out[4..]).is_some());
        out.clear();
        put_result(&mut out, &Id::Number(1025), Some(b"[1,2,3,4,5,6]"), &"}", 1000).unwrap();
        let Some(Incoming::Response(response)) = usual(&out[4..]) else { panic!("not usual") };
        assert_eq!(response.load.map(|load| (load.in_flight, load.method)), Some((1, 6)));
        assert_eq!(response.body, Ok(&b"\"}\""[..]));
        assert_eq!(peek_id(&out[4..40]), Some(1025));
    }

    #[test]
    fn a_meta_with_more_than_the_load_ends_where_it_ends() {
        let text = r#"{"jsonrpc":"2.0","id":1,"meta":{"load":[1,2,3,4,5],"x":{"y":1},"result":5},"result":7}"#;
        let Incoming::Response(response) = parse(text.as_bytes()) else { panic!("no response") };
        assert_eq!(response.body, Ok(&b"7"[..]));
        assert_eq!(response.load.map(|load| load.in_flight), Some(1));
    }

    #[test]
    fn members_after_the_result_are_read_as_elsewhere() {
        assert_eq!(exact_result(br#"1 ,"error":null"#).as_deref(), Some(&b"1"[..]));
        for body in [&br#"1,"error":{"code":1,"message":""}"#[..], br#"1,"result":2"#, br#"1,"id":2"#, b"1,", b"1}"] {
            assert_eq!(exact_result(body), None, "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn scalars_are_no_params_and_null_is_none() {
        let mut out = vec![7];
        let meta = RequestMeta::default();
        assert!(put_request(&mut out, 1, "m", &meta, "text", 1000).is_err());
        assert!(put_request(&mut out, 1, "m", &meta, &3, 1000).is_err());
        assert!(put_request(&mut out, 1, "m", &meta, &["x".repeat(2000)], 1000).is_err());
        assert_eq!(out, [7]);
        put_request(&mut out, 1, "m", &meta, &(), 1000).unwrap();
        assert_eq!(&out[5..], br#"{"jsonrpc":"2.0","id":1,"method":"m"}"#);
    }

    #[test]
    fn an_error_over_the_limit_loses_its_data_only() {
        let mut out = Vec::new();
        let error = RpcError::new(5, "no").with_data(&"x".repeat(500));
        put_error(&mut out, &Id::Number(1), None, &error, 200);
        let Incoming::Response(response) = parse(&out[4..]) else { panic!("no response") };
        let got: RpcError = serde_json::from_slice(response.body.unwrap_err()).unwrap();
        assert_eq!((got.code, got.data.is_none()), (5, true));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn near_misses_are_read_as_serde_reads_them(
            at in 0usize..90, with in prop::sample::select(vec!["", " ", "\"", "}", "{", ",", "1", "\\", "null"]), cut in 0usize..4,
        ) {
            let text = r#"{"jsonrpc":"2.0","id":12,"method":"add","meta":{"timeout_ms":50},"params":{"a":[1,"x"]}}"#;
            let at = at.min(text.len());
            let end = (at + cut).min(text.len());
            let changed = format!("{}{}{}", &text[..at], with, &text[end..]);
            if let Some(Incoming::Request(quick)) = usual(changed.as_bytes()) {
                // The short path may accept params that are no JSON; nothing else may differ.
                let params = quick.params.map(serde_json::from_slice::<&RawValue>);
                if !matches!(params, Some(Err(_))) {
                    match parse_any(changed.as_bytes()) {
                        Incoming::Request(slow) => {
                            prop_assert_eq!(quick.id, slow.id);
                            prop_assert_eq!(quick.method, slow.method);
                            prop_assert_eq!(quick.params.map(<[u8]>::trim_ascii), slow.params);
                            prop_assert_eq!(quick.meta, slow.meta);
                        }
                        other => prop_assert!(false, "{} -> {:?}", changed, other),
                    }
                }
            }
        }

        #[test]
        fn any_number_survives(number in any::<f64>()) {
            let mut out = Vec::new();
            put_request(&mut out, 1, "m", &RequestMeta::default(), &[number], 1000).unwrap();
            let Incoming::Request(request) = parse(&out[4..]) else { panic!("no request") };
            prop_assert_eq!(serde_json::from_slice::<[f64; 1]>(request.params.unwrap()).unwrap(), [number]);
        }

        #[test]
        fn any_text_survives(method in ".*", key in ".*", text in ".*") {
            let mut out = Vec::new();
            let meta = RequestMeta { key: Some(key.as_str().into()), attempt: 2, ..Default::default() };
            put_request(&mut out, 9, &method, &meta, &[&text], 1 << 20).unwrap();
            let Incoming::Request(request) = parse(&out[4..]) else { panic!("no request") };
            prop_assert_eq!(&request.method, &method);
            prop_assert_eq!(request.meta, meta);
            prop_assert_eq!(serde_json::from_slice::<[String; 1]>(request.params.unwrap()).unwrap(), [text]);
        }
    }

    #[test]
    fn frames_nest_in_one_buffer() {
        let mut out = Vec::new();
        for message in [&b"a"[..], b"bc"] {
            let start = begin_frame(&mut out);
            out.extend_from_slice(message);
            end_frame(&mut out, start, 10).unwrap();
        }
        assert_eq!(out, [0, 0, 0, 1, b'a', 0, 0, 0, 2, b'b', b'c']);
    }
}
