//! What happens to the servers, planned from the scenario before it runs.

use rpc_client::balance::Random;

use crate::clock::{Nanos, milliseconds, seconds};
use crate::scenario::{Antagonists, Scenario, ServerGroup};
use crate::server::Condition;

/// Something that happens to a server.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// When.
    pub at: Nanos,
    /// To which one.
    pub server: usize,
    /// What.
    pub what: What,
}

/// What happens to a server.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// It joins.
    Join,
    /// It leaves.
    Leave,
    /// Its speed while it is cold, relative to the usual one.
    Cold(f64),
    /// Neighbours leave it this speed and, if so, these cores.
    Antagonist(f64, Option<f64>),
    /// An incident leaves it this speed.
    Incident(f64),
    /// It fails requests after this time, or no longer.
    Fails(Option<Nanos>),
    /// It stops, or goes on.
    Frozen(bool),
}

/// All influences on one server at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Influences {
    usual: Condition,
    cold: f64,
    antagonist: (f64, Option<f64>),
    incident: f64,
    frozen: bool,
}

impl Influences {
    /// None.
    pub fn none(group: &ServerGroup) -> Self {
        Self {
            usual: Condition { cores: group.cores, speed: group.speed },
            cold: 1.0,
            antagonist: (1.0, None),
            incident: 1.0,
            frozen: false,
        }
    }

    /// One of them changes.
    pub fn apply(&mut self, what: What) {
        match what {
            What::Cold(speed) => self.cold = speed,
            What::Antagonist(speed, cores) => self.antagonist = (speed, cores),
            What::Incident(speed) => self.incident = speed,
            What::Frozen(frozen) => self.frozen = frozen,
            What::Join | What::Leave | What::Fails(_) => {}
        }
    }

    /// What the server can do under all of them.
    pub fn condition(&self) -> Condition {
        let speed = self.usual.speed * self.cold * self.antagonist.0 * self.incident;
        Condition { cores: self.antagonist.1.unwrap_or(self.usual.cores), speed: if self.frozen { 0.0 } else { speed } }
    }
}

/// The groups' servers one by one.
pub fn servers(scenario: &Scenario) -> impl Iterator<Item = &ServerGroup> {
    scenario.servers.iter().flat_map(|group| std::iter::repeat_n(group, group.count))
}

/// Plans everything that will happen to the servers.
pub fn plan(scenario: &Scenario, random: &mut Random) -> Vec<Change> {
    let mut changes = Vec::new();
    let count = servers(scenario).count();
    for (server, group) in servers(scenario).enumerate() {
        let mut add = |s: f64, what| changes.push(Change { at: seconds(s), server, what });
        if group.joins_s > 0.0 {
            add(group.joins_s, What::Join);
        }
        if let Some(leaves_s) = group.leaves_s {
            add(leaves_s, What::Leave);
        }
        if group.cold_s > 0.0 {
            add(group.joins_s, What::Cold(group.cold_speed));
            add(group.joins_s + group.cold_s, What::Cold(1.0));
        }
        if let Some(antagonists) = &scenario.antagonists {
            disturb(antagonists, scenario.duration_s, random, &mut add);
        }
    }
    if let Some(freezes) = &scenario.freezes {
        let times = (scenario.duration_s / freezes.every_s) as usize;
        for time in 0..times {
            let (from_s, server) = (freezes.every_s * time as f64, time % count);
            changes.push(Change { at: seconds(from_s), server, what: What::Frozen(true) });
            changes.push(Change { at: seconds(from_s + freezes.for_s), server, what: What::Frozen(false) });
        }
    }
    for incident in &scenario.events {
        for &server in &incident.servers {
            let mut add = |s: f64, what| changes.push(Change { at: seconds(s), server, what });
            if let Some(speed) = incident.speed {
                add(incident.from_s, What::Incident(speed));
                add(incident.to_s, What::Incident(1.0));
            }
            if let Some(ms) = incident.fails_after_ms {
                add(incident.from_s, What::Fails(Some(milliseconds(ms))));
                add(incident.to_s, What::Fails(None));
            }
        }
    }
    changes
}

fn disturb(antagonists: &Antagonists, duration_s: f64, random: &mut Random, add: &mut impl FnMut(f64, What)) {
    let within = |range: (f64, f64), random: &mut Random| range.0 + (range.1 - range.0) * random.unit();
    let cycle_s = antagonists.good_s + antagonists.bad_s;
    // The cycles of the servers are out of step, and the first one has begun before the start.
    let mut bad_from_s = antagonists.good_s - cycle_s * random.unit();
    while bad_from_s < duration_s {
        let speed = antagonists.speed.map_or(1.0, |range| within(range, random));
        let cores = antagonists.cores.map(|range| within(range, random));
        if bad_from_s + antagonists.bad_s > 0.0 {
            add(bad_from_s, What::Antagonist(speed, cores));
            add(bad_from_s + antagonists.bad_s, What::Antagonist(1.0, None));
        }
        bad_from_s += cycle_s;
    }
}
