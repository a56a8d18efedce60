//! Params from the command line, a file or standard input.

use std::fs::File;
use std::io::{self, ErrorKind, Read};

use rpc_core::protocol::MESSAGE_BYTES_CEILING;
use serde_json::value::RawValue;

use crate::failure::Failure;

const RULE: &str = "params are a JSON array or object: write [5] for one value, {\"ms\":5} for a named one";

/// Reads params: JSON text, `@FILE`, or `-` for standard input. Without any, `null`, which is sent
/// as no params at all.
///
/// # Errors
/// The file cannot be read, or what is there cannot be params.
pub(crate) fn read(argument: Option<&str>) -> Result<Box<RawValue>, Failure> {
    let (text, from) = match argument {
        None => ("null".to_owned(), String::new()),
        Some("-") => {
            let text = whole(std::io::stdin())
                .map_err(|e| Failure::usage(format!("cannot read standard input: {e}"), RULE))?;
            (text, " from standard input".into())
        }
        Some(argument) => match argument.strip_prefix('@') {
            Some(file) => {
                let text = File::open(file).and_then(whole).map_err(|e| {
                    Failure::usage(format!("cannot read `{file}`: {e}"), "@FILE names a file with JSON")
                })?;
                (text, format!(" in `{file}`"))
            }
            None => (argument.to_owned(), String::new()),
        },
    };
    parse(&text).map_err(|reason| Failure::usage(format!("the params{from} {reason}"), RULE))
}

/// All that `input` has, unless that is more than any message can carry.
fn whole(input: impl Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    input.take(MESSAGE_BYTES_CEILING as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MESSAGE_BYTES_CEILING {
        let reason = format!("it has more than the {MESSAGE_BYTES_CEILING} bytes of the longest message");
        return Err(io::Error::new(ErrorKind::FileTooLarge, reason));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8"))
}

fn parse(text: &str) -> Result<Box<RawValue>, String> {
    let value: Box<RawValue> = serde_json::from_str(text.trim()).map_err(|e| format!("are no JSON: {e}"))?;
    let scalar = match value.get().as_bytes()[0] {
        b'[' | b'{' => return Ok(value),
        b'n' => return Ok(value),
        b'"' => "a string",
        b't' | b'f' => "a boolean",
        _ => "a number",
    };
    Err(format!("are {scalar}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_objects_and_nothing_are_params() {
        for good in ["[]", " {\"a\":1}\n", "null", "[1,\"x\"]"] {
            assert_eq!(parse(good).unwrap().get(), good.trim());
        }
        for (bad, reason) in [
            ("5", "a number"),
            ("-1", "a number"),
            ("\"x\"", "a string"),
            ("true", "a boolean"),
            ("", "no JSON"),
            ("{", "no JSON"),
            ("{} {}", "no JSON"),
            ("hello", "no JSON"),
        ] {
            assert!(parse(bad).unwrap_err().contains(reason), "{bad}");
        }
    }
}
