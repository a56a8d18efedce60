//! What is simulated: read from JSON. `README.md` lists the keys.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::check::check;
use crate::work::Work;

/// The standard scenarios, as text.
const STANDARD: &[&str] = &[
    include_str!("../scenarios/homog40.json"),
    include_str!("../scenarios/homog70.json"),
    include_str!("../scenarios/homog90.json"),
    include_str!("../scenarios/antag70.json"),
    include_str!("../scenarios/antag90.json"),
    include_str!("../scenarios/paper70.json"),
    include_str!("../scenarios/paper90.json"),
    include_str!("../scenarios/google70.json"),
    include_str!("../scenarios/google90.json"),
    include_str!("../scenarios/hetero.json"),
    include_str!("../scenarios/mixedhw.json"),
    include_str!("../scenarios/fifo90.json"),
    include_str!("../scenarios/heavy.json"),
    include_str!("../scenarios/bimodal.json"),
    include_str!("../scenarios/buoyant.json"),
    include_str!("../scenarios/oneslow.json"),
    include_str!("../scenarios/freeze.json"),
    include_str!("../scenarios/failfast.json"),
    include_str!("../scenarios/joinleave.json"),
    include_str!("../scenarios/lowrate.json"),
    include_str!("../scenarios/shortlived.json"),
    include_str!("../scenarios/oneclient.json"),
    include_str!("../scenarios/skewed.json"),
    include_str!("../scenarios/burst.json"),
    include_str!("../scenarios/tiny.json"),
    include_str!("../scenarios/overload.json"),
    include_str!("../scenarios/async3.json"),
];

/// A scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it shows.
    pub about: String,
    /// How long calls are made.
    pub duration_s: f64,
    /// Calls that begin before this are not counted.
    #[serde(default = "default_warmup_s")]
    pub warmup_s: f64,
    /// When a caller gives up.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: f64,
    /// Whether there is more work than the servers can do, on purpose.
    #[serde(default)]
    pub overloaded: bool,
    /// Who calls.
    pub clients: Clients,
    /// Who answers.
    pub servers: Vec<ServerGroup>,
    /// How many calls there are.
    pub load: Load,
    /// What a call asks for.
    pub work: Work,
    /// Neighbours that take the servers' time.
    pub antagonists: Option<Antagonists>,
    /// A different server stops at regular times.
    pub freezes: Option<Freezes>,
    /// What happens to single servers.
    #[serde(default)]
    pub events: Vec<Incident>,
    /// The network.
    #[serde(default)]
    pub network: Network,
    /// Whether servers send load reports, refuse, and answer probes.
    #[serde(default = "yes")]
    pub reports: bool,
    /// Whether clients take failing servers out ([`rpc_client::breaker`]).
    #[serde(default = "yes")]
    pub breaker: bool,
}

/// Who calls.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clients {
    /// How many.
    pub count: usize,
    /// A client ends after so many calls, and a new one begins in its place.
    pub calls_each: Option<u32>,
    /// The rate of the client of rank k is proportional to 1 / k^skew.
    #[serde(default)]
    pub skew: f64,
}

/// Equal servers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerGroup {
    /// How many.
    pub count: usize,
    /// Requests that it can run at full speed at once.
    pub cores: f64,
    /// The speed of a core.
    #[serde(default = "one")]
    pub speed: f64,
    /// What it does with more requests than cores.
    #[serde(default)]
    pub discipline: Discipline,
    /// The hint that its load meter gets; half of the cores by default.
    pub concurrency: Option<f64>,
    /// What the registry says at the start that it answers in; nothing by default.
    pub published_ms: Option<f64>,
    /// Weight in the registry.
    #[serde(default = "hundred")]
    pub weight: u32,
    /// When it joins.
    #[serde(default)]
    pub joins_s: f64,
    /// When it leaves, answering what it has.
    pub leaves_s: Option<f64>,
    /// For how long after joining it is slow.
    #[serde(default)]
    pub cold_s: f64,
    /// Its speed while it is cold.
    #[serde(default = "one")]
    pub cold_speed: f64,
}

/// What a server does with more requests than cores.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Discipline {
    /// It runs all at once, each more slowly.
    #[default]
    Sharing,
    /// The rest waits in line.
    Queue,
}

/// How many calls there are.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Work that arrives over the mean capacity of the servers that are there at the start.
    pub utilization: Option<f64>,
    /// The capacity that `utilization` relates to, in cores of speed 1, if it is another.
    pub capacity_cores: Option<f64>,
    /// Calls a second of all clients, instead of a utilization.
    pub calls_per_s: Option<f64>,
    /// More calls at regular times.
    pub bursts: Option<Bursts>,
}

/// More calls at regular times.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bursts {
    /// By how much.
    pub factor: f64,
    /// How long.
    pub for_s: f64,
    /// From one beginning to the next.
    pub every_s: f64,
}

/// Neighbours that take the servers' time: each server alternates, at a phase of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Antagonists {
    /// How long it is left alone.
    pub good_s: f64,
    /// How long it is disturbed.
    pub bad_s: f64,
    /// Its speed then is drawn from this range, relative to the usual one.
    pub speed: Option<(f64, f64)>,
    /// Its cores then are drawn from this range.
    pub cores: Option<(f64, f64)>,
}

/// A different server stops at regular times; it answers no probes then.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Freezes {
    /// From one beginning to the next.
    pub every_s: f64,
    /// How long.
    pub for_s: f64,
}

/// What happens to single servers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Incident {
    /// When it begins.
    pub from_s: f64,
    /// When it ends.
    pub to_s: f64,
    /// To whom: indices over all groups.
    pub servers: Vec<usize>,
    /// The speed meanwhile, relative to the usual one; 0 is a standstill.
    pub speed: Option<f64>,
    /// Instead of working it fails every request after this time.
    pub fails_after_ms: Option<f64>,
}

/// The network.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Least time of one way.
    pub one_way_ms: f64,
    /// Mean of what is added, exponentially distributed.
    pub jitter_ms: f64,
}

impl Default for Network {
    fn default() -> Self {
        Self { one_way_ms: 0.15, jitter_ms: 0.03 }
    }
}

impl Scenario {
    /// The standard scenarios, in the order of the documentation.
    ///
    /// # Errors
    /// Names the one that is not well formed.
    pub fn standard() -> Result<Vec<Self>> {
        STANDARD.iter().map(|text| Self::from_json(text)).collect()
    }

    /// Reads a user's scenario.
    ///
    /// # Errors
    /// Says what is wrong with the file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::from_json(&text).with_context(|| path.display().to_string())
    }

    /// Reads and checks a scenario.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn from_json(text: &str) -> Result<Self> {
        let scenario: Self = serde_json::from_str(text)?;
        check(&scenario).with_context(|| format!("scenario {}", scenario.name))?;
        Ok(scenario)
    }

    /// The mean capacity of the servers that are there at the start, in cores of speed 1.
    pub fn capacity_cores(&self) -> f64 {
        let alone = |group: &ServerGroup| group.cores * group.speed;
        let mean = |group: &ServerGroup| {
            let Some(antagonists) = &self.antagonists else { return alone(group) };
            let middle = |(low, high): (f64, f64)| (low + high) / 2.0;
            let bad =
                antagonists.cores.map_or(group.cores, middle) * group.speed * antagonists.speed.map_or(1.0, middle);
            (alone(group) * antagonists.good_s + bad * antagonists.bad_s) / (antagonists.good_s + antagonists.bad_s)
        };
        self.servers.iter().filter(|g| g.joins_s <= 0.0).map(|g| g.count as f64 * mean(g)).sum()
    }

    /// Calls a second of all clients, bursts aside.
    pub fn calls_per_s(&self) -> f64 {
        let by_utilization = |utilization: f64| {
            let cores = self.load.capacity_cores.unwrap_or_else(|| self.capacity_cores());
            utilization * cores / self.work.mean_ms() * 1000.0
        };
        self.load.calls_per_s.or(self.load.utilization.map(by_utilization)).unwrap_or(0.0)
    }

    /// Work that arrives over the mean capacity at the start.
    pub fn utilization(&self) -> f64 {
        let bursts = self.load.bursts.as_ref().map_or(1.0, |b| 1.0 + (b.factor - 1.0) * b.for_s / b.every_s);
        self.calls_per_s() * bursts * self.work.mean_ms() / 1000.0 / self.capacity_cores()
    }

    /// What a reader of the results must know.
    pub fn warning(&self) -> Option<String> {
        let utilization = self.utilization();
        if self.overloaded || utilization >= 1.0 {
            return Some(format!(
                "{}: {:.0} % of the capacity is asked for{}; no balancing can help, calls time out",
                self.name,
                100.0 * utilization,
                if self.overloaded { ", by design" } else { "" }
            ));
        }
        None
    }
}

fn default_warmup_s() -> f64 {
    2.0
}

fn default_timeout_ms() -> f64 {
    5000.0
}

fn one() -> f64 {
    1.0
}

fn hundred() -> u32 {
    100
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_scenarios_are_well_formed_and_only_overload_is_overloaded() {
        let all = Scenario::standard().unwrap();
        assert_eq!(all.len(), 27);
        for scenario in all {
            assert_eq!(scenario.utilization() >= 1.0, scenario.name == "overload", "{}", scenario.name);
            assert_eq!(scenario.warning().is_some(), scenario.name == "overload", "{}", scenario.name);
        }
    }

    #[test]
    fn what_is_wrong_with_a_scenario_is_said() {
        let good = include_str!("../scenarios/homog40.json");
        for (from, to, says) in [
            ("\"clients\"", "\"customers\"", "customers"),
            ("\"utilization\"", "\"calls_per_s\": 1, \"utilization\"", "either"),
            ("\"cores\": 4", "\"cores\": 0", "cores must be"),
            ("\"count\": 100", "\"count\": 9000000000000000000", "count must be"),
            ("\"duration_s\": 20", "\"duration_s\": 1e300", "duration_s must be"),
            ("\"mean_ms\": 20", "\"mean_ms\": -2000", "mean_ms must be"),
            ("\"utilization\": 0.4", "\"utilization\": 1e9", "calls"),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good);
            let error = format!("{:#}", Scenario::from_json(&bad).unwrap_err());
            assert!(error.contains(says), "{error}");
        }
    }
}
