//! Results for people and for programs.

use std::fmt::Write as _;

use serde::Serialize;

use crate::outcome::Figures;

/// The results of one scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Its name.
    pub scenario: String,
    /// What a reader must know.
    pub warning: Option<String>,
    /// Policy and figures, in the order asked for.
    pub policies: Vec<(String, Figures)>,
}

impl Results {
    /// A table of all figures.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{:<24} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7} {:>7}\n",
            self.scenario, "p50 ms", "p90", "p99", "p99.9", "failed%", "imbal.", "top%", "probes", "refused"
        );
        for (policy, f) in &self.policies {
            let _ = writeln!(
                text,
                "  {policy:<22} {:>8} {:>8} {:>8} {:>8} {:>8.3} {:>7.2} {:>7.1} {:>7.2} {:>7.3}",
                ms(f.p50_ms),
                ms(f.p90_ms),
                ms(f.p99_ms),
                ms(f.p999_ms),
                f.failed_percent,
                f.imbalance,
                f.top_share_percent,
                f.probes_per_call,
                f.refusals_per_call
            );
        }
        text
    }
}

/// One figure of all scenarios, a row each, as Markdown.
pub fn markdown(results: &[Results], title: &str, figure: impl Fn(&Figures) -> String) -> String {
    let Some(first) = results.first() else { return String::new() };
    let mut text = format!("| {title} |");
    first.policies.iter().for_each(|(name, _)| {
        let _ = write!(text, " {name} |");
    });
    text += "\n|---|";
    text += &"---|".repeat(first.policies.len());
    for result in results {
        let _ = write!(text, "\n| {} |", result.scenario);
        result.policies.iter().for_each(|(_, figures)| {
            let _ = write!(text, " {} |", figure(figures));
        });
    }
    text + "\n"
}

/// Milliseconds in four significant digits.
pub fn ms(value: f64) -> String {
    match value {
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}
