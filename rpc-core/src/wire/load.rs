//! Load reports as they travel: an array of whole numbers.

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
    bytes: [u8; TEXT_MAX],
    len: u8,
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
        let mut text = Self { bytes: [0; TEXT_MAX], len: 0 };
        let mut digits = itoa::Buffer::new();
        for (at, number) in numbers.into_iter().enumerate() {
            text.push(if at == 0 { b"[" } else { b"," });
            text.push(digits.format(number).as_bytes());
        }
        text.push(b"]");
        text
    }

    fn push(&mut self, bytes: &[u8]) {
        let start = usize::from(self.len);
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }

    /// The text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Reads a report; further numbers are left to later versions.
pub fn parse_load(text: &[u8]) -> Option<LoadReport> {
    let inner = text.trim_ascii().strip_prefix(b"[")?.strip_suffix(b"]")?;
    let mut numbers = [0u64; NUMBERS];
    let mut fields = inner.split(|b| *b == b',');
    for (place, number) in numbers.iter_mut().enumerate() {
        match fields.next() {
            Some(field) => *number = std::str::from_utf8(field).ok()?.trim().parse().ok()?,
            None if place >= NUMBERS_MIN => {}
            None => return None,
        }
    }
    let [in_flight, service_us, concurrency, errors, latency_us, method] = numbers;
    Some(LoadReport {
        method: u32::try_from(method).unwrap_or(0),
        in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX),
        service_us: service_us as f64,
        concurrency: (concurrency as f64 / 100.0).max(0.01),
        errors: (errors as f64 / 1000.0).min(1.0),
        latency_us: latency_us as f64,
    })
}

/// The report in a response's `meta`, if there is one.
pub fn load_in_meta(meta: &[u8]) -> Option<LoadReport> {
    // As this side writes it, or as any other spelling of the same JSON.
    let usual = meta.strip_prefix(b"{\"load\":").and_then(|rest| rest.strip_suffix(b"}")).and_then(parse_load);
    if usual.is_some() {
        return usual;
    }
    #[derive(serde::Deserialize)]
    struct Meta<'a> {
        #[serde(borrow)]
        load: &'a serde_json::value::RawValue,
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
        assert_eq!(load_in_meta(b"{ \"x\": 1, \"load\": [7, 1234, 250, 125, 99, 6, 5] }"), Some(report));
    }

    #[test]
    fn a_report_may_be_longer_or_lack_the_method() {
        let report = parse_load(b"[7,1234,250,125,99]").unwrap();
        assert_eq!((report.in_flight, report.service_us, report.method), (7, 1234.0, 0));
        assert_eq!(parse_load(b"[7,1234,250,125]"), None);
        assert_eq!(parse_load(b"[7,1234,250,125,99,x]"), None);
        assert!(parse_load(b"[7,1234,250,125,99,6,1,\"x\"]").is_some());
    }

    proptest! {
        #[test]
        fn anything_else_is_none_or_finite(text in "[\\[\\]0-9,. a-z-]{0,40}") {
            if let Some(report) = parse_load(text.as_bytes()) {
                prop_assert!(report.service_us.is_finite() && report.concurrency > 0.0 && report.errors <= 1.0);
            }
        }
    }
}
