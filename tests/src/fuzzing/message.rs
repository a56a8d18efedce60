//! The message parser: what is matched by hand against what serde reads.

use rpc_core::wire::{
    Id, Incoming, Request, RequestMeta, Response, exact_result, parse, parse_any, parse_element, peek_id, put_error,
    put_notification, put_request, put_result,
};
use rpc_core::{LoadReport, RpcError};
use serde_json::Value;
use serde_json::value::RawValue;

/// Both readers accept the same messages and read the same from them, and what was read can be written so that it is read
/// again. The params and the result of the usual spelling count as read where whoever takes them has found them to be JSON.
pub fn message(data: &[u8]) {
    let exact = parse_any(data);
    match (parse(data), &exact) {
        (Incoming::Request(quick), exact) => same_request(&quick, exact),
        (Incoming::Response(quick), exact) => same_response(&quick, exact),
        (Incoming::Batch(quick), Incoming::Batch(exact)) => assert_eq!(quick.len(), exact.len()),
        (Incoming::Invalid(quick), Incoming::Invalid(exact)) => {
            assert_eq!((quick.id, quick.error.code), (exact.id.clone(), exact.error.code));
        }
        (quick, exact) => panic!("{quick:?} is {exact:?}"),
    }
    same_id_in_the_head(data, &exact);
    match &exact {
        Incoming::Request(request) => written_request(request),
        Incoming::Response(response) => {
            same_load(data, response);
            written_response(response);
        }
        Incoming::Batch(elements) => elements.iter().for_each(|element| same_element(element)),
        Incoming::Invalid(invalid) => assert!(!invalid.error.message.is_empty()),
    }
}

/// The text as one JSON value without space around it.
fn json(text: &[u8]) -> Option<&[u8]> {
    serde_json::from_slice::<&RawValue>(text).ok().map(|value| value.get().as_bytes())
}

fn same_request(quick: &Request<'_>, exact: &Incoming<'_>) {
    let params = quick.params.map(json);
    match exact {
        Incoming::Request(exact) => {
            assert_eq!((&quick.id, &quick.method), (&exact.id, &exact.method));
            match params {
                Some(None) => assert_ne!(quick.params, exact.params),
                params => {
                    assert_eq!(params.flatten(), exact.params);
                    assert_eq!(quick.meta, exact.meta);
                }
            }
        }
        exact => assert_eq!(params, Some(None), "{quick:?} is {exact:?}"),
    }
}

fn same_response(quick: &Response<'_>, exact: &Incoming<'_>) {
    let result = match quick.body {
        Ok(body) => json(body).map(<[u8]>::to_vec).or_else(|| exact_result(body)),
        Err(_) => None,
    };
    match exact {
        Incoming::Response(exact) => {
            assert_eq!(quick.id, exact.id);
            assert_eq!(result.as_deref(), exact.body.ok());
            if let (Err(quick), Err(exact)) = (quick.body, exact.body) {
                assert_eq!(quick, exact);
            }
            // Where more follows the result, the load may be in it. It is passed over.
            if quick.body.is_ok_and(|body| json(body).is_some()) {
                assert_eq!(quick.load, exact.load);
            }
        }
        exact => assert!(result.is_none(), "{quick:?} is {exact:?}"),
    }
}

/// The load report is what the message's JSON says.
fn same_load(data: &[u8], response: &Response<'_>) {
    let once = |name: &[u8]| data.windows(name.len()).filter(|bytes| *bytes == name).count() == 1;
    // Escaped names and names given twice are serde's business.
    if !once(b"\"load\"") || !once(b"\"meta\"") || data.contains(&b'\\') {
        return;
    }
    let Ok(message) = serde_json::from_slice::<Value>(data) else { return };
    let load = message.get("meta").and_then(|meta| meta.get("load")).and_then(Value::as_array);
    let numbers: Option<Vec<u64>> = load.map(|load| load.iter().take(6).map_while(Value::as_u64).collect());
    let whole = numbers.filter(|numbers| numbers.len() >= load.map_or(0, |load| load.len().clamp(5, 6)));
    assert_eq!(response.load.is_some(), whole.is_some(), "{message:?}");
    if let (Some(LoadReport { in_flight, service_us, .. }), Some(numbers)) = (response.load, whole) {
        assert_eq!(u64::from(in_flight), numbers[0].min(u64::from(u32::MAX)));
        assert_eq!(service_us, numbers[1] as f64);
    }
}

/// The beginning of a message that is too long to be kept tells its id.
fn same_id_in_the_head(data: &[u8], exact: &Incoming<'_>) {
    let Some(peeked) = peek_id(&data[..data.len().min(64)]) else { return };
    match exact {
        Incoming::Request(request) => assert_eq!(request.id, Some(Id::Number(peeked))),
        Incoming::Response(response) => assert_eq!(response.id, Some(peeked)),
        Incoming::Batch(_) => panic!("a batch has no id"),
        Incoming::Invalid(_) => {}
    }
}

fn same_element(element: &RawValue) {
    if element.get().starts_with('[') {
        return assert!(matches!(parse_element(element), Incoming::Invalid(_)));
    }
    match (parse_element(element), parse_any(element.get().as_bytes())) {
        (Incoming::Request(one), Incoming::Request(other)) => equal(&one, &other),
        (Incoming::Response(one), Incoming::Response(other)) => assert_eq!((one.id, one.body), (other.id, other.body)),
        (Incoming::Invalid(one), Incoming::Invalid(other)) => {
            assert_eq!((one.id, one.error.code), (other.id, other.error.code));
        }
        (one, other) => panic!("{one:?} is {other:?}"),
    }
}

fn equal(one: &Request<'_>, other: &Request<'_>) {
    assert_eq!((&one.id, &one.method, one.params), (&other.id, &other.method, other.params));
    assert_eq!(one.meta, other.meta);
}

/// One frame, without its length.
fn framed(put: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out);
    let message = out.split_off(4);
    assert_eq!(u32::from_be_bytes([out[0], out[1], out[2], out[3]]) as usize, message.len());
    message
}

fn raw(text: &[u8]) -> &RawValue {
    serde_json::from_slice(text).expect("serde has read it as a value")
}

fn written_request(request: &Request<'_>) {
    let params = request.params.map(raw);
    let message = framed(|out| {
        match request.id {
            Some(Id::Number(id)) => put_request(out, id, &request.method, &request.meta, &params, usize::MAX),
            _ => put_notification(out, &request.method, &params, usize::MAX),
        }
        .expect("what was read can be written");
    });
    for read in [parse(&message), parse_any(&message)] {
        let Incoming::Request(again) = read else { panic!("{read:?}") };
        let (id, meta) = match request.id {
            Some(Id::Number(_)) => (request.id.clone(), request.meta.clone()),
            _ => (None, RequestMeta::default()),
        };
        equal(&again, &Request { id, method: request.method.clone(), params: request.params, meta });
    }
    if let Some(id) = &request.id {
        answered(id, request.params.unwrap_or(b"null"));
    }
}

/// Answers carry any id, and any JSON as the result or the data of an error.
fn answered(id: &Id<'_>, value: &[u8]) {
    let number = match id {
        Id::Number(number) => Some(*number),
        Id::Other(text) => text.parse().ok(),
    };
    let result = framed(|out| put_result(out, id, None, raw(value), usize::MAX).expect("JSON is written"));
    let error = RpcError::new(7, "an error").with_data(&raw(value));
    let failure = framed(|out| put_error(out, id, None, &error, usize::MAX));
    for (message, ok) in [(result, true), (failure, false)] {
        for read in [parse(&message), parse_any(&message)] {
            let Incoming::Response(response) = read else { panic!("{read:?}") };
            assert_eq!((response.id, response.body.is_ok()), (number, ok));
            match response.body {
                Ok(body) => assert_eq!(body, value),
                Err(body) => {
                    let error: RpcError = serde_json::from_slice(body).expect("an error object was written");
                    let data = error.data.as_ref().map_or("null", |data| data.get());
                    assert_eq!((error.code, data.as_bytes()), (7, value));
                }
            }
        }
    }
}

fn written_response(response: &Response<'_>) {
    if let (Some(id), Ok(body)) = (response.id, response.body) {
        answered(&Id::Number(id), body);
    }
}
