//! The JSON writer and reader of the wire, against serde_json.

use std::collections::BTreeMap;

use rpc_core::wire::{read_json, write_json};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A message of the usual shape.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Fields {
    text: String,
    #[serde(default)]
    number: Option<f64>,
    #[serde(default)]
    list: Vec<(u64, Box<str>)>,
}

/// What is read is what serde_json reads, with the same complaint; what is written is what it writes.
pub fn json(data: &[u8]) {
    if let Some(value) = same_read::<Value>(data) {
        same_written(&value);
    }
    if let Some(fields) = same_read::<Fields>(data) {
        same_written(&fields);
    }
    let text = String::from_utf8_lossy(data);
    same_written(&text);
    same_written(&BTreeMap::from([(&text, text.chars().next())]));
}

fn same_read<T>(text: &[u8]) -> Option<T>
where
    T: serde::de::DeserializeOwned + std::fmt::Debug + PartialEq,
{
    let ours = read_json::<T>(text).map_err(|error| error.to_string());
    assert_eq!(ours, serde_json::from_slice::<T>(text).map_err(|error| error.to_string()));
    ours.ok()
}

fn same_written<T: Serialize>(value: &T) {
    let mut ours = b"before".to_vec();
    write_json(&mut ours, value).expect("serde_json writes it as well");
    let theirs = serde_json::to_vec(value).expect("texts and numbers are written");
    assert_eq!(ours.strip_prefix(b"before"), Some(&theirs[..]));
}
