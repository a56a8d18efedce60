//! Errors for people, in several lines.

use std::borrow::Cow;
use std::fmt::Write;

use super::{Attempt, Error, ErrorKind, NotRepeated, RegistryState};

/// Attempts that are shown one by one; of more, the first and the last.
const ATTEMPTS_SHOWN: usize = 4;

pub(super) fn of(error: &Error, next: &str) -> String {
    let mut text = match error.kind() {
        ErrorKind::Remote { node, error: answer } => {
            let data =
                answer.data.as_ref().map(|data| format!("\n  data: {}", printable(data.get()))).unwrap_or_default();
            let message = printable(&answer.message);
            format!("{message} ({}, code {})\n  from: {node}{data}", answer.name(), answer.code)
        }
        _ => format!("{} ({})", printable(&error.to_string()), error.name()),
    };
    // Writing to a String cannot fail.
    for (number, line) in attempts(error.attempts()).into_iter().enumerate() {
        let _ = write!(text, "\n  {} {line}", if number == 0 { "tried:" } else { "      " });
    }
    if let Some(why) = error.not_repeated() {
        let _ = write!(text, "\n  not repeated: {}", why.text());
    }
    if let Some(state) = error.registry() {
        let _ = write!(text, "\n  registry: {state}");
    }
    let _ = write!(text, "\n  next: {next}");
    text
}

impl NotRepeated {
    /// The reason in words.
    fn text(self) -> &'static str {
        match self {
            Self::NotIdempotent => "nobody declared that it may run twice",
            Self::OftenEnough => "it was already, as often as a call is",
            Self::NoBudget => "the budget of repeats is used up",
            Self::NoOtherNode => "there was no other node",
        }
    }
}

/// One line for each attempt; of many, the first ones and the last.
pub fn attempts(attempts: &[Attempt]) -> Vec<String> {
    let line = |(number, attempt): (usize, &Attempt)| {
        let Attempt { node, elapsed_us, outcome } = attempt;
        let took = if *elapsed_us == 0 { String::new() } else { format!("  ({})", micros(*elapsed_us)) };
        format!("#{} {node}  {}{took}", number + 1, printable(outcome))
    };
    let mut numbered = attempts.iter().enumerate();
    if attempts.len() <= ATTEMPTS_SHOWN {
        return numbered.map(line).collect();
    }
    let first = ATTEMPTS_SHOWN - 1;
    let mut lines: Vec<String> = numbered.clone().take(first).map(line).collect();
    let left_out = &attempts[first..attempts.len() - 1];
    if !left_out.is_empty() {
        let alike = left_out.iter().all(|a| attempts[..first].iter().any(|shown| shown.outcome == a.outcome));
        lines.push(format!("… {} more{}", left_out.len(), if alike { " like these" } else { "" }));
    }
    lines.extend(numbered.next_back().map(line));
    lines
}

impl std::fmt::Display for RegistryState {
    /// The registry and how fresh its list is, in one line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes = if self.listed == 1 { "node" } else { "nodes" };
        write!(f, "{}: ", printable(&self.url))?;
        match self.list_age_ms {
            Some(ms) => write!(f, "list {} old, {} {nodes} listed, {} usable", millis(ms), self.listed, self.usable)?,
            None => f.write_str("no list yet")?,
        }
        match &self.trouble {
            Some(trouble) => write!(f, "; {}", printable(trouble)),
            None => Ok(()),
        }
    }
}

/// Text of another program for a terminal: control characters, which could move the cursor or
/// rewrite lines, and marks that turn the direction of writing are escaped.
pub fn printable(text: &str) -> Cow<'_, str> {
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let bad = |c: char| c.is_control() || turns(c);
    if !text.chars().any(bad) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if bad(c) { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    Cow::Owned(escaped)
}

/// Microseconds with three digits: `45 µs`, `1.25 ms`, `2.10 s`.
pub fn micros(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => three_digits(us as f64 / 1e3, "ms"),
        _ => seconds(us as f64 / 1e6),
    }
}

/// Milliseconds: `12 ms`, `3.40 s`, `5 min`.
pub fn millis(ms: u64) -> String {
    if ms < 1_000 { format!("{ms} ms") } else { seconds(ms as f64 / 1e3) }
}

fn seconds(s: f64) -> String {
    match s {
        ..120.0 => three_digits(s, "s"),
        120.0..7_200.0 => format!("{:.0} min", s / 60.0),
        _ => format!("{:.0} h", s / 3_600.0),
    }
}

fn three_digits(value: f64, unit: &str) -> String {
    let digits = match value {
        ..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_the_unit() {
        let shown: Vec<String> = [0, 45, 1_250, 12_500, 999_000, 2_100_000, 300_000_000].map(micros).into();
        assert_eq!(shown, ["0 µs", "45 µs", "1.25 ms", "12.5 ms", "999 ms", "2.10 s", "5 min"]);
        assert_eq!([7, 1_500, 90_000, 8_000_000].map(millis), ["7 ms", "1.50 s", "90.0 s", "2 h"]);
    }

    #[test]
    fn text_of_others_cannot_command_a_terminal() {
        assert_eq!(printable("plain, ünd 日本"), "plain, ünd 日本");
        assert_eq!(printable("\x1b[2J\r\n\u{9b}1A\u{202e}x"), "\\u{1b}[2J\\r\\n\\u{9b}1A\\u{202e}x");
    }

    #[test]
    fn of_many_attempts_the_first_and_the_last_are_shown() {
        let attempt = |n: u64| Attempt { node: ([127, 0, 0, 1], 1).into(), elapsed_us: n, outcome: "refused".into() };
        let of = |count: u64| attempts(&(0..count).map(attempt).collect::<Vec<_>>());
        assert_eq!((of(0).len(), of(1).len(), of(4).len()), (0, 1, 4));
        let many = of(58);
        assert_eq!(many.len(), 5);
        assert!(of(1)[0].ends_with("  refused"), "nothing was sent, so nothing took a time: {:?}", of(1));
        assert!(many[2].starts_with("#3 ") && many[4].starts_with("#58 "), "{many:?}");
        assert_eq!(many[3], "… 54 more like these");
    }

    #[test]
    fn debug_is_the_whole_report() {
        let state = RegistryState {
            url: "mem:x".into(),
            list_age_ms: Some(1500),
            listed: 2,
            usable: 0,
            trouble: Some("gone\x1b".into()),
            refused: false,
        };
        let tried = Attempt { node: ([127, 0, 0, 1], 1).into(), elapsed_us: 5, outcome: "lost".into() };
        let node = tried.node;
        let kind = ErrorKind::Transport { node, sent: true, reason: "the connection closed".into() };
        let error = Error::from(kind).with_attempts(vec![tried]).with_registry(state);
        let text = format!("{:?}", error.with_not_repeated(Some(NotRepeated::NoBudget)));
        let expected = [
            "connection to 127.0.0.1:1 failed: the connection closed (transport)",
            "  tried: #1 127.0.0.1:1  lost  (5 µs)",
            "  not repeated: the budget of repeats is used up",
            "  registry: mem:x: list 1.50 s old, 2 nodes listed, 0 usable; gone\\u{1b}",
            "  next: the call may have run; so many calls fail",
        ];
        for (line, start) in text.lines().zip(expected) {
            assert!(line.starts_with(start), "{line}\n{start}");
        }
        assert_eq!(text.lines().count(), 5);
    }
}
