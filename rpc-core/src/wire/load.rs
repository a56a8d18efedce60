//! Load reports as they travel: an array of whole numbers.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::parse::number;
use crate::LoadReport;

/// Numbers in a report.
const NUMBERS: usize = 6;

/// Numbers in a report that must be there: older servers did not name the method.
const NUMBERS_MIN: usize = 5;

/// Longest text of a report: so many numbers of up to twenty digits.
const TEXT_MAX: usize = 2 + NUMBERS * 21;

/// A report as JSON text: calls in flight, idle response time in us, concurrency in hundredths,
/// failures in thousandths, recent response time in us, method as
/// [`method_hash`](crate::load::method_hash) has it. It takes no allocation.
#[derive(Clone, Copy, Debug)]
pub struct LoadText {
    /// The text is at the end.
    bytes: [u8; TEXT_MAX],
    start: u8,
}

impl LoadText {
    /// Spells a report.
    pub fn new(report: &LoadReport) -> Self {
        let numbers = [
            u64::from(report.in_flight),
            report.service_us.ceil() as u64,
            (report.concurrency * 100.0).round() as u64,
            (report.errors * 1000.0).round() as u64,
            report.latency_us.ceil() as u64,
            u64::from(report.method),
        ];
        // From the last digit to the first: no number has to be measured or moved.
        let mut bytes = [b']'; TEXT_MAX];
        let mut start = TEXT_MAX - 1;
        let mut push = |byte| {
            start -= 1;
            bytes[start] = byte;
        };
        for (at, mut number) in numbers.into_iter().enumerate().rev() {
            loop {
                push(b'0' + (number % 10) as u8);
                number /= 10;
                if number == 0 {
                    break;
                }
            }
            push(if at == 0 { b'[' } else { b',' });
        }
        Self { bytes, start: start as u8 }
    }

    /// The text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[usize::from(self.start)..]
    }
}

/// The report at the start of `text`, spelled without spaces, and what follows it. One comes with nearly every reply.
#[inline]
pub(super) fn leading_report(text: &[u8]) -> Option<(LoadReport, &[u8])> {
    let mut rest = text.strip_prefix(b"[")?;
    let mut numbers = [0; NUMBERS];
    let mut count = 0;
    loop {
        let (value, after) = number(rest)?;
        // Further numbers are left to later versions.
        if let Some(place) = numbers.get_mut(count) {
            *place = value;
        }
        count += 1;
        match after {
            [b',', next @ ..] => rest = next,
            [b']', next @ ..] if count >= NUMBERS_MIN => return Some((report(numbers), next)),
            _ => return None,
        }
    }
}

fn report(numbers: [u64; NUMBERS]) -> LoadReport {
    let [in_flight, service_us, concurrency, errors, latency_us, method] = numbers;
    LoadReport {
        method: u32::try_from(method).unwrap_or(0),
        in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX),
        service_us: service_us as f64,
        concurrency: (concurrency as f64 / 100.0).max(0.01),
        errors: (errors as f64 / 1000.0).min(1.0),
        latency_us: latency_us as f64,
    }
}

/// Reads a report in any spelling; what may follow the numbers is left to later versions.
pub fn parse_load(text: &[u8]) -> Option<LoadReport> {
    if let Some((report, [])) = leading_report(text) {
        return Some(report);
    }
    let values: Vec<&RawValue> = serde_json::from_slice(text).ok()?;
    let mut numbers = [0; NUMBERS];
    for (number, value) in numbers.iter_mut().zip(&values) {
        *number = value.get().parse().ok()?;
    }
    (values.len() >= NUMBERS_MIN).then(|| report(numbers))
}

/// The report in a response's `meta`, if there is one.
pub(super) fn load_in_meta(meta: &[u8]) -> Option<LoadReport> {
    #[derive(Deserialize)]
    struct Meta<'a> {
        #[serde(borrow)]
        load: &'a RawValue,
    }
    parse_load(serde_json::from_slice::<Meta<'_>>(meta).ok()?.load.get().as_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_report_survives_the_wire() {
        let report = LoadReport {
            method: 6,
            in_flight: 7,
            service_us: 1234.0,
            concurrency: 2.5,
            errors: 0.125,
            latency_us: 99.0,
        };
        let text = LoadText::new(&report);
        assert_eq!(text.as_bytes(), b"[7,1234,250,125,99,6]");
        assert_eq!(parse_load(text.as_bytes()), Some(report));
        let largest = LoadReport {
            method: u32::MAX,
            in_flight: u32::MAX,
            service_us: 1e300,
            concurrency: 1e300,
            errors: 1.0,
            latency_us: 1e300,
        };
        assert!(parse_load(LoadText::new(&largest).as_bytes()).is_some());
        assert_eq!(load_in_meta(b"{\"load\":[7,1234,250,125,99,6]}"), Some(report));
        assert_eq!(load_in_meta(b"{\"load\":[7,1234,250,125,99,6],\"x\":[{}]}"), Some(report));
        assert_eq!(leading_report(b"[7,1234,250,125,99,6,5]}"), Some((report, &b"}"[..])));
        assert_eq!(load_in_meta(b"{ \"x\": 1, \"load\": [7, 1234, 250, 125, 99, 6, 5] }"), Some(report));
    }

    #[test]
    fn a_report_may_be_longer_or_lack_the_method() {
        let report = parse_load(b"[7,1234,250,125,99]").unwrap();
        assert_eq!((report.in_flight, report.service_us, report.method), (7, 1234.0, 0));
        assert_eq!(parse_load(b"[7,1234,250,125]"), None);
        for wrong in
            ["[7,1234,250,125,99,x]", "[7,1234,250,125,99,]", "[7,1234,,125,99]", "[7 1234,250,125,99]", "7,1,2,3,4]"]
        {
            assert_eq!(parse_load(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(parse_load(b"[7,1234,250,125,18446744073709551616]"), None, "too large");
        assert_eq!(parse_load(b"[07,1234,250,125,99,6]"), None, "no JSON");
        assert!(parse_load(b"[7,1234,250,125,99,6,1,\"x\"]").is_some());
    }

    proptest! {
        #[test]
        fn it_is_what_serde_json_makes_of_it(numbers in proptest::collection::vec(0u64..=u64::from(u32::MAX), 5..8)) {
            let report = parse_load(serde_json::to_string_pretty(&numbers).unwrap().as_bytes()).unwrap();
            let text = LoadText::new(&report);
            let again: Vec<u64> = serde_json::from_slice(text.as_bytes()).unwrap();
            prop_assert_eq!([again[0], again[1], again[4]], [numbers[0], numbers[1], numbers[4]]);
            prop_assert_eq!(again[5], numbers.get(5).copied().unwrap_or(0));
        }

        #[test]
        fn anything_else_is_none_or_finite(text in "[\\[\\]0-9,. a-z-]{0,40}") {
            if let Some(report) = parse_load(text.as_bytes()) {
                prop_assert!(report.service_us.is_finite() && report.concurrency > 0.0 && report.errors <= 1.0);
            }
        }
    }
}
