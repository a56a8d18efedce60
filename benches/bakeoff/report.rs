//! Tables and verdicts.

use std::fmt::Write as _;

use serde::Serialize;

use crate::figures::Figures;
use crate::scenario::{HEDGE, Scenario};

/// The policy that is judged.
const JUDGED: &str = "fastest";

/// A p99 no further above the lowest is in the lowest group.
const GROUP: f64 = 1.05;

/// Where it has to be the lowest by itself.
const LOWEST_MIN: usize = 5;

/// Most errors where a server fails fast.
const FAIL_FAST_ERRORS_PERCENT: f64 = 0.5;

/// By how much it has to beat `p2c` on p99.9 where servers freeze.
const FREEZE_RATIO: f64 = 3.0;

/// The results of one scenario.
#[derive(Serialize)]
pub(crate) struct Results {
    pub(crate) scenario: String,
    pub(crate) about: String,
    pub(crate) calls_per_s: f64,
    pub(crate) policies: Vec<Figures>,
    pub(crate) verdict: Option<Verdict>,
    #[serde(skip)]
    odd: std::ops::Range<usize>,
    #[serde(skip)]
    family: &'static str,
}

/// What is judged, without a judgement if there is nothing to compare with.
#[derive(Serialize)]
pub(crate) struct Verdict {
    pub(crate) passed: bool,
    /// Its p99 is within 5 % of the lowest, or within the spread of its own rounds.
    in_lowest_group: bool,
    lowest: bool,
    text: String,
}

impl Results {
    pub(crate) fn new(scenario: &'static Scenario, policies: Vec<Figures>) -> Self {
        let verdict = judge(scenario.family(), &policies);
        Self {
            scenario: scenario.name.to_owned(),
            about: scenario.about.to_owned(),
            calls_per_s: scenario.calls_per_s().round(),
            policies,
            verdict,
            odd: scenario.odd(),
            family: scenario.family(),
        }
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}: {}; {} calls/s\n", self.scenario, self.about, self.calls_per_s);
        let _ = writeln!(
            text,
            "  {:<17}{:>8}{:>8}{:>8}{:>8}{:>10}{:>12}{:>11}{:>8}{:>10}  p99 of each round",
            "policy", "p50 ms", "p99", "ratio", "p99.9", "errors %", "repeated %", "busiest %", "odd %", "late p99"
        );
        let base = self.policies.iter().find(|f| f.policy == JUDGED).map(|f| f.p99_ms);
        for figures in &self.policies {
            let ratio = base.map_or_else(String::new, |base| format!("{:.2}", figures.p99_ms / base));
            let busiest = figures.shares_percent.iter().copied().fold(0.0, f64::max);
            let odd = if self.odd.is_empty() {
                "-".to_owned()
            } else {
                format!("{:.1}", figures.share_percent(self.odd.clone()))
            };
            let rounds: Vec<String> = figures.p99_rounds_ms.iter().map(|ms| format!("{ms:.1}")).collect();
            let _ = write!(
                text,
                "  {:<17}{:>8.1}{:>8.1}{ratio:>8}{:>8.1}{:>10.3}{:>12.2}{busiest:>11.1}{odd:>8}{:>10.2}  {}",
                figures.policy,
                figures.p50_ms,
                figures.p99_ms,
                figures.p999_ms,
                figures.errors_percent,
                figures.repeated_percent,
                figures.late_p99_ms,
                rounds.join(" ")
            );
            let methods: Vec<String> = figures.p99_methods_ms.iter().map(|ms| format!("{ms:.1}")).collect();
            if figures.runs_made_again > 0 {
                let _ = write!(text, "; {} runs made again", figures.runs_made_again);
            }
            text += &if methods.is_empty() { "\n".to_owned() } else { format!("; by method {}\n", methods.join(" ")) };
        }
        if let Some(verdict) = &self.verdict {
            let _ = writeln!(text, "  {}: {}", if verdict.passed { "ok" } else { "MISSED" }, verdict.text);
        }
        text
    }
}

fn judge(family: &str, policies: &[Figures]) -> Option<Verdict> {
    let judged = policies.iter().find(|figures| figures.policy == JUDGED)?;
    // With hedging it is no policy of its own.
    let others = policies.iter().filter(|figures| !figures.policy.starts_with(JUDGED));
    let best = others.min_by(|a, b| a.p99_ms.total_cmp(&b.p99_ms))?;
    let ratio = judged.p99_ms / best.p99_ms;
    let in_lowest_group = ratio <= GROUP || judged.p99_ms - best.p99_ms <= judged.spread_ms();
    let mut passed = in_lowest_group;
    let lowest = ratio < 1.0;
    let place = match (lowest, in_lowest_group) {
        (true, _) => "lowest",
        (false, true) => "in the lowest group",
        (false, false) => "not in the lowest group",
    };
    let mut text = format!("p99 of {JUDGED} is {place}: {ratio:.2} of the next best, {}", best.policy);
    if family == "R3" {
        passed &= judged.errors_percent < FAIL_FAST_ERRORS_PERCENT;
        let _ = write!(text, "; errors {:.3} % (below {FAIL_FAST_ERRORS_PERCENT} %)", judged.errors_percent);
    }
    if family == "R4"
        && let Some(p2c) = policies.iter().find(|figures| figures.policy == "p2c")
    {
        let hedged = policies.iter().find(|figures| figures.policy == format!("{JUDGED}{HEDGE}")).unwrap_or(judged);
        let times = p2c.p999_ms / hedged.p999_ms;
        passed &= times >= FREEZE_RATIO;
        let _ = write!(text, "; p99.9 of {} {times:.2} times better than p2c (at least {FREEZE_RATIO})", hedged.policy);
    }
    Some(Verdict { passed, in_lowest_group, lowest, text })
}

/// The verdict on all scenarios, and whether everything was met.
pub(crate) fn summary(results: &[Results]) -> (bool, String) {
    let judged = results.iter().filter_map(|result| Some((result.family, result.verdict.as_ref()?)));
    let judged: Vec<(&str, &Verdict)> = judged.collect();
    let mut families: Vec<&str> = judged.iter().map(|(family, _)| *family).collect();
    families.dedup();
    // A family counts as a whole.
    let count = |holds: fn(&Verdict) -> bool| {
        let all = |family: &&&str| judged.iter().filter(|(name, _)| name == *family).all(|(_, v)| holds(v));
        families.iter().filter(all).count()
    };
    let (group, lowest) = (count(|v| v.in_lowest_group), count(|v| v.lowest));
    let wanted = LOWEST_MIN.min(families.len());
    let passed = judged.iter().all(|(_, verdict)| verdict.passed) && lowest >= wanted;
    let text = format!(
        "{JUDGED} on p99: in the lowest group in {group} of {} scenarios, lowest in {lowest} (wanted: all, and {wanted})",
        families.len()
    );
    (passed, text)
}
