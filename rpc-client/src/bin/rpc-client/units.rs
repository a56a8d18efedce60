//! Numbers for people.

/// Microseconds with three digits: `45 µs`, `1.25 ms`, `2.10 s`.
pub(crate) fn micros(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => three_digits(us as f64 / 1e3, "ms"),
        _ => seconds(us as f64 / 1e6),
    }
}

/// Milliseconds: `12 ms`, `3.40 s`, `5 min`.
pub(crate) fn millis(ms: u64) -> String {
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

/// `1 node`, `2 nodes`.
pub(crate) fn nodes(count: usize) -> String {
    if count == 1 { "1 node".into() } else { format!("{count} nodes") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_the_unit() {
        let shown: Vec<String> = [0, 45, 1_250, 12_500, 999_000, 2_100_000, 300_000_000].map(micros).into();
        assert_eq!(shown, ["0 µs", "45 µs", "1.25 ms", "12.5 ms", "999 ms", "2.10 s", "5 min"]);
        assert_eq!([7, 1_500, 90_000, 8_000_000].map(millis), ["7 ms", "1.50 s", "90.0 s", "2 h"]);
        assert_eq!([1, 2].map(nodes), ["1 node", "2 nodes"]);
    }
}
