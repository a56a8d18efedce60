//! JSON for people.

/// `json`, which is valid, with line breaks and indentation. Nothing else changes: the order of
/// members and the spelling of numbers are the sender's.
pub(crate) fn indented(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let mut depth = 0;
    let mut chars = json.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                out.push(c);
                string(&mut chars, &mut out);
            }
            '{' | '[' => {
                out.push(c);
                while chars.next_if(|c| c.is_ascii_whitespace()).is_some() {}
                if let Some(close) = chars.next_if(|c| matches!(c, '}' | ']')) {
                    out.push(close);
                } else {
                    depth += 1;
                    new_line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth -= 1;
                new_line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => out.push(c),
        }
    }
    out
}

/// Copies the rest of a string, its closing quote included.
fn string(chars: &mut impl Iterator<Item = char>, out: &mut String) {
    while let Some(c) = chars.next() {
        out.push(c);
        match c {
            '"' => return,
            '\\' => out.extend(chars.next()),
            _ => {}
        }
    }
}

fn new_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth));
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
