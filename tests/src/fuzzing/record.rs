//! What lies in the registry about a node.

use rpc_core::NodeRecord;
use serde_json::{Map, Value};

/// A record that was read and is written again means the same, keeps what this version does not know, and does not change
/// however often that happens. What cannot be read says why.
pub fn record(data: &[u8]) {
    let record = match NodeRecord::from_json(data) {
        Ok(record) => record,
        Err(reason) => return assert!(!reason.is_empty()),
    };
    let written = record.to_json();
    let again = NodeRecord::from_json(&written).expect("what was written can be read");
    assert_eq!(again, record);
    assert_eq!(again.to_json(), written);

    let given: Map<String, Value> = serde_json::from_slice(data).expect("a record is an object");
    let kept: Map<String, Value> = serde_json::from_slice(&written).expect("a record is written as an object");
    for (name, value) in &given {
        let rewritten = match name.as_str() {
            "response_time_us" => value.as_u64().unwrap_or(0).into(),
            "meta" if value.as_object().is_some_and(Map::is_empty) => continue,
            _ => value.clone(),
        };
        assert_eq!(kept.get(name), Some(&rewritten), "{name}");
    }
    let measured = record.with_response_time(7);
    assert_eq!(measured.with_response_time(record.response_time_us), record);
    assert_eq!(NodeRecord::from_json(&measured.to_json()).as_ref(), Ok(&measured));
}
