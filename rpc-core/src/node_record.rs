//! What the registry holds about a node.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// The payload of a node's registry entry: one JSON object. Members that this version does not
/// know are kept when the record is written again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Version of the format.
    #[serde(default = "format_version")]
    pub v: u32,
    /// The incarnation: a UUID made anew each time the server starts. Empty in a foreign record.
    #[serde(default)]
    pub id: String,
    /// How long the node took to answer lately, in microseconds, as some client measured it.
    /// 0 is *unknown*, never "fastest"; a negative or malformed value is read as unknown.
    #[serde(default, deserialize_with = "unknown_if_malformed")]
    pub response_time_us: u64,
    /// Relative capacity, 100 by default.
    #[serde(default = "default_weight")]
    pub weight: u32,
    /// Whether the node takes new calls.
    #[serde(default)]
    pub state: NodeState,
    /// When the node started, in milliseconds since the Unix epoch by its own clock. For people:
    /// nothing is computed from it.
    #[serde(default)]
    pub started_ms: u64,
    /// Labels, such as `name`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub meta: Map<String, Value>,
    /// Members that this version does not know.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// Whether a node takes new calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It takes calls.
    #[default]
    Up,
    /// It answers what it has and takes nothing new.
    Draining,
}

const fn format_version() -> u32 {
    1
}

const fn default_weight() -> u32 {
    100
}

fn unknown_if_malformed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Ok(Value::deserialize(deserializer)?.as_u64().unwrap_or(0))
}

impl NodeRecord {
    /// The record of a fresh node: response time unknown, a new incarnation.
    pub fn new() -> Self {
        Self {
            v: format_version(),
            id: uuid::Uuid::new_v4().to_string(),
            response_time_us: 0,
            weight: default_weight(),
            state: NodeState::Up,
            started_ms: unix_ms(),
            meta: Map::new(),
            unknown: Map::new(),
        }
    }

    /// Reads a registry payload.
    ///
    /// # Errors
    /// Says what is wrong with it: not JSON, not an object, a member of the wrong type.
    pub fn from_json(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|e| e.to_string())
    }

    /// The registry payload.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("maps with string keys and numbers always serialise")
    }

    /// The record that stands for a payload nobody can read: usable, but unknown in every respect.
    pub fn unreadable() -> Self {
        Self { id: String::new(), started_ms: 0, ..Self::new() }
    }

    /// The same record with another response time.
    pub fn with_response_time(&self, response_time_us: u64) -> Self {
        Self { response_time_us, ..self.clone() }
    }
}

impl Default for NodeRecord {
    fn default() -> Self {
        Self::new()
    }
}

#[expect(clippy::disallowed_methods, reason = "shown to people, never compared with another clock")]
fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_members_survive_a_rewrite() {
        let text = r#"{"v":1,"id":"a","response_time_us":7,"zone":"b","meta":{"name":"x"}}"#;
        let record = NodeRecord::from_json(text.as_bytes()).unwrap();
        let again: Value = serde_json::from_slice(&record.with_response_time(9).to_json()).unwrap();
        assert_eq!(again["zone"], "b");
        assert_eq!(again["meta"]["name"], "x");
        assert_eq!(again["response_time_us"], 9);
    }

    #[test]
    fn numbers_of_unknown_members_do_not_drift() {
        for number in ["99999999999940319102", "0.1", "1e300", "5e-324"] {
            let text = format!(r#"{{"x":{number}}}"#);
            let record = NodeRecord::from_json(text.as_bytes()).unwrap();
            assert_eq!(record.unknown["x"].as_f64(), number.parse().ok());
            assert_eq!(NodeRecord::from_json(&record.to_json()).unwrap(), record);
        }
    }

    #[test]
    fn a_negative_or_malformed_response_time_is_unknown() {
        for value in ["-1", "1.5", "\"fast\"", "null", "[]", "99999999999999999999999"] {
            let text = format!(r#"{{"response_time_us":{value}}}"#);
            assert_eq!(NodeRecord::from_json(text.as_bytes()).unwrap().response_time_us, 0, "{value}");
        }
    }

    #[test]
    fn what_is_no_record_is_an_error_with_a_reason() {
        for text in ["", "{", "[]", "17", r#"{"weight":"heavy"}"#, "\u{0}"] {
            assert!(!NodeRecord::from_json(text.as_bytes()).unwrap_err().is_empty(), "{text}");
        }
    }
}
