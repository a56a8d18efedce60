//! JSON for people.

use std::io::{self, Write};

/// Deeper values stay on one line: with indentation the output would grow with the square of the
/// depth.
const DEPTH_MAX: usize = 16;

/// Writes `json`, which is valid, with line breaks and indentation. Nothing else changes, the order of
/// members and the spelling of numbers are the sender's; but control characters are escaped, which
/// a terminal would obey.
///
/// # Errors
/// When `out` cannot be written.
pub(crate) fn write_indented(out: &mut impl Write, json: &str) -> io::Result<()> {
    let mut depth = 0;
    let mut chars = json.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => string(&mut chars, out)?,
            '{' | '[' => {
                write!(out, "{c}")?;
                while chars.next_if(|c| c.is_ascii_whitespace()).is_some() {}
                if let Some(close) = chars.next_if(|c| matches!(c, '}' | ']')) {
                    write!(out, "{close}")?;
                } else {
                    depth += 1;
                    new_line(out, depth, "")?;
                }
            }
            '}' | ']' => {
                depth -= 1;
                if depth < DEPTH_MAX {
                    new_line(out, depth, "")?;
                }
                write!(out, "{c}")?;
            }
            ',' => {
                out.write_all(b",")?;
                new_line(out, depth, " ")?;
            }
            ':' => out.write_all(b": ")?,
            c if c.is_ascii_whitespace() => {}
            c => write!(out, "{c}")?,
        }
    }
    Ok(())
}

/// Copies the rest of a string, its closing quote included.
fn string(chars: &mut impl Iterator<Item = char>, out: &mut impl Write) -> io::Result<()> {
    out.write_all(b"\"")?;
    while let Some(c) = chars.next() {
        match c {
            '"' => return out.write_all(b"\""),
            '\\' => {
                out.write_all(b"\\")?;
                if let Some(c) = chars.next() {
                    write!(out, "{c}")?;
                }
            }
            // JSON lets these through: DEL, and the control characters above it.
            c if c.is_control() => write!(out, "\\u{:04x}", u32::from(c))?,
            c => write!(out, "{c}")?,
        }
    }
    Ok(())
}

/// Begins a line, or goes on with `instead` where it is too deep for one.
fn new_line(out: &mut impl Write, depth: usize, instead: &str) -> io::Result<()> {
    const SPACES: &str = "                                ";
    if depth > DEPTH_MAX {
        return out.write_all(instead.as_bytes());
    }
    write!(out, "\n{}", &SPACES[..2 * depth])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indented(json: &str) -> String {
        let mut out = Vec::new();
        write_indented(&mut out, json).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn only_white_space_changes() {
        let json = r#"{"b":[1,{}, [ ],2.50], "a":"x, \"{y}\\" ,"n":123456789012345678901234567890}"#;
        let expected = "{
  \"b\": [
    1,
    {},
    [],
    2.50
  ],
  \"a\": \"x, \\\"{y}\\\\\",
  \"n\": 123456789012345678901234567890
}";
        assert_eq!(indented(json), expected);
        assert_eq!(indented("null"), "null");
    }

    #[test]
    fn deep_values_take_no_more_than_their_share() {
        let deep = format!("{}1,2{}", "[".repeat(20_000), "]".repeat(20_000));
        let shown = indented(&deep);
        assert!(shown.len() < deep.len() + 4 * 1024, "{} bytes", shown.len());
        let again: String = shown.split_whitespace().collect();
        assert_eq!(again, deep);
        assert!(shown.contains("[[[1, 2]]]"));
    }

    #[test]
    fn a_terminal_is_not_commanded() {
        assert_eq!(indented("[\"a\u{9b}2J\u{7f}\"]"), "[\n  \"a\\u009b2J\\u007f\"\n]");
    }
}
