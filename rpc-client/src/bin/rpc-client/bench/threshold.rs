//! `--threshold`: what must be so.

use std::time::Duration;

use rpc_core::LatencySummary;
use rpc_core::registry::parse_duration;

/// A bound of one number of the report.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Threshold {
    /// As it was written.
    pub(super) text: String,
    metric: Metric,
    relation: Relation,
    bound: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Metric {
    P50,
    P90,
    P99,
    P999,
    Max,
    /// Number of calls that failed.
    Errors,
    /// The same in per cent of all.
    ErrorPercent,
    Rps,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Relation {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The numbers that thresholds are about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) latency: LatencySummary,
    pub(super) calls: u64,
    pub(super) ok: u64,
    pub(super) rps: f64,
}

/// Reads `p99<50ms`, `errors<0.1%`, `errors<=0` or `rps>1000`.
pub(crate) fn parse(text: &str) -> Result<Threshold, String> {
    let relations = [
        ("<=", Relation::LessOrEqual),
        (">=", Relation::GreaterOrEqual),
        ("<", Relation::Less),
        (">", Relation::Greater),
    ];
    let found = relations.iter().find_map(|(sign, relation)| Some((text.split_once(sign)?, *relation)));
    let ((name, bound), relation) = found.ok_or_else(|| format!("`{text}` has no <, <=, > or >="))?;
    let (name, bound) = (name.trim(), bound.trim());
    let (metric, bound) = match name {
        "errors" => match bound.strip_suffix('%') {
            Some(percent) => (Metric::ErrorPercent, number(percent)?),
            None => (Metric::Errors, number(bound)?),
        },
        "rps" => (Metric::Rps, number(bound)?),
        _ => {
            let metric = latency_metric(name)
                .ok_or_else(|| format!("`{name}` is none of p50, p90, p99, p999, max, errors, rps"))?;
            (metric, micros(parse_duration(bound)?))
        }
    };
    Ok(Threshold { text: text.to_owned(), metric, relation, bound })
}

fn latency_metric(name: &str) -> Option<Metric> {
    Some(match name {
        "p50" => Metric::P50,
        "p90" => Metric::P90,
        "p99" => Metric::P99,
        "p999" | "p99.9" => Metric::P999,
        "max" => Metric::Max,
        _ => return None,
    })
}

fn number(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err(format!("`{text}` is no number from 0 up")),
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

impl Threshold {
    /// Whether it is so. Latencies of no successful call at all meet no bound.
    pub(super) fn is_met(&self, numbers: &Numbers) -> bool {
        let Numbers { latency, calls, ok, rps } = *numbers;
        let failed = (calls - ok) as f64;
        let actual = match self.metric {
            Metric::P50 => latency.p50 as f64,
            Metric::P90 => latency.p90 as f64,
            Metric::P99 => latency.p99 as f64,
            Metric::P999 => latency.p999 as f64,
            Metric::Max => latency.max as f64,
            Metric::Errors => failed,
            Metric::ErrorPercent => 100.0 * failed / (calls.max(1)) as f64,
            Metric::Rps => rps,
        };
        let has_value = ok > 0 || matches!(self.metric, Metric::Errors | Metric::ErrorPercent | Metric::Rps);
        has_value
            && match self.relation {
                Relation::Less => actual < self.bound,
                Relation::LessOrEqual => actual <= self.bound,
                Relation::Greater => actual > self.bound,
                Relation::GreaterOrEqual => actual >= self.bound,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_compared_in_their_unit() {
        let latency = LatencySummary { p50: 1_000, p90: 2_000, p99: 50_000, p999: 60_000, max: 70_000 };
        let numbers = Numbers { latency, calls: 1000, ok: 999, rps: 500.0 };
        for (text, met) in [
            ("p99<50ms", false),
            ("p99<=50ms", true),
            ("p50 < 1.5ms", true),
            ("p99.9<61ms", true),
            ("max>1s", false),
            ("errors<0.1%", false),
            ("errors<=0.1%", true),
            ("errors<2", true),
            ("rps>=500", true),
        ] {
            assert_eq!(parse(text).unwrap().is_met(&numbers), met, "{text}");
        }
        let nothing = Numbers { latency: LatencySummary::default(), calls: 3, ok: 0, rps: 0.0 };
        assert!(!parse("p99<1s").unwrap().is_met(&nothing));
    }

    #[test]
    fn what_is_no_bound_is_refused_with_the_reason() {
        for (text, reason) in [
            ("p99", "no <"),
            ("p98<1ms", "none of"),
            ("p99<50", "no duration"),
            ("errors<many", "no number"),
            ("rps>-1", "no number"),
            ("", "no <"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
