//! Policies by name: those of the client, and those that exist for comparison only.

use anyhow::{Result, bail};
use rpc_client::balance::{self, Fastest, FastestSettings, POLICIES, Policy};

use crate::anchors::{Cubic, WeightedRoundRobin, pooled_cubic, pooled_linear};

/// The comparisons that only the simulator has: name and what it does.
pub const ANCHORS: &[(&str, &str)] = &[
    ("oracle", "knows the state of every server at the moment: what no policy can beat by much"),
    ("c3", "C3's cubic score over all nodes, from replies alone (NSDI 2015, without rate control)"),
    ("c3:pool", "C3's score over a pool of asynchronous probes"),
    ("linear", "latency plus calls in flight, over a pool of asynchronous probes (Prequal's comparison)"),
    ("weighted_round_robin", "in turn, by the speed that each node reports (after gRFC A58)"),
];

/// A policy's name that is known to be good.
#[derive(Clone, Debug)]
pub struct PolicyName(String);

impl PolicyName {
    /// Checks a name.
    ///
    /// # Errors
    /// Lists the names there are.
    pub fn parse(name: &str) -> Result<Self> {
        let tuned = name.strip_prefix("fastest:").is_some_and(|options| fastest(options).is_some());
        if !tuned && !ANCHORS.iter().any(|(known, _)| *known == name) && balance::policy(name).is_none() {
            let known = POLICIES.iter().map(|(n, ..)| *n).chain(ANCHORS.iter().map(|(n, _)| *n));
            bail!("no policy `{name}`; there are: {}", known.collect::<Vec<_>>().join(", "));
        }
        Ok(Self(name.to_owned()))
    }

    /// Checks a list of names separated by commas. A piece that is no policy belongs to the options
    /// of the one before: `prequal:q=0.6,sync,p2c` are two.
    ///
    /// # Errors
    /// Names the one that is not known.
    pub fn parse_list(list: &str) -> Result<Vec<Self>> {
        let mut names: Vec<String> = Vec::new();
        for piece in list.split(',').filter(|piece| !piece.is_empty()) {
            match names.last_mut() {
                Some(last) if last.contains(':') && Self::parse(piece).is_err() => *last += &format!(",{piece}"),
                _ => names.push(piece.to_owned()),
            }
        }
        names.iter().map(|name| Self::parse(name)).collect()
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A policy with nothing learnt, for one of so many clients; none for the oracle.
    pub fn make(&self, clients: usize) -> Option<Box<dyn Policy>> {
        match self.0.as_str() {
            "oracle" => None,
            "c3" => Some(Box::new(Cubic::new(clients))),
            "c3:pool" => Some(pooled_cubic()),
            "linear" => Some(pooled_linear()),
            "weighted_round_robin" => Some(Box::new(WeightedRoundRobin::default())),
            name => match name.strip_prefix("fastest:") {
                Some(options) => fastest(options),
                None => balance::policy(name),
            },
        }
    }
}

/// `fastest` with other settings, for ablations: `bound=3+refusals=0`.
fn fastest(options: &str) -> Option<Box<dyn Policy>> {
    let mut settings = FastestSettings::default();
    for option in options.split(['+', ',']).filter(|o| !o.is_empty()) {
        let (key, value) = option.split_once('=')?;
        let value: f64 = value.parse().ok()?;
        match key {
            "background_probes" => settings.background_probes = value,
            "probes" => settings.probes = value as usize,
            "cold_round_trip" => settings.cold_round_trip = value,
            "queue_round_trip" => settings.queue_round_trip = value,
            "queue" => settings.queue = value,
            "bound" => settings.bound = value,
            "refusals" => settings.refusals = value,
            "noise" => settings.noise = value,
            "tie" => settings.tie = value,
            "fade" => settings.fade = value,
            _ => return None,
        }
    }
    Some(Box::new(Fastest::tuned(settings)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_policy_can_be_made() {
        for (name, ..) in POLICIES {
            assert!(PolicyName::parse(name).unwrap().make(10).is_some(), "{name}");
        }
        for (name, _) in ANCHORS {
            assert_eq!(PolicyName::parse(name).unwrap().make(10).is_none(), *name == "oracle", "{name}");
        }
        let list = PolicyName::parse_list("prequal:q=0.6,sync,p2c").unwrap();
        assert_eq!(list.iter().map(PolicyName::as_str).collect::<Vec<_>>(), ["prequal:q=0.6,sync", "p2c"]);
        assert!(PolicyName::parse_list("prequal:q=0.6,snyc,p2c").is_err());
        assert!(PolicyName::parse("fast").unwrap_err().to_string().contains("fastest"));
    }
}
