//! What a scenario must be like to be run to its end, in the memory there is.

use std::ops::RangeInclusive;

use anyhow::{Result, ensure};

use crate::scenario::{Scenario, ServerGroup};
use crate::work::Work;

/// Longest time, in seconds. Over a longer one the servers' account of the work done, a sum of fractions of milliseconds,
/// would become too coarse to ever reach the end of a request.
const SECONDS_MAX: f64 = 1e5;

/// Each client keeps a state of each server, so their product bounds the memory.
const CLIENTS_TIMES_SERVERS_MAX: usize = 1_000_000;

/// More calls than these take days.
const CALLS_MAX: f64 = 1e9;

/// What happens to servers is planned before the run.
const CHANGES_MAX: f64 = 1e6;

/// The highest speed of a core; see [`SECONDS_MAX`].
const SPEED_MAX: f64 = 10.0;

const SECONDS: RangeInclusive<f64> = 0.0..=SECONDS_MAX;
const MILLISECONDS: RangeInclusive<f64> = 0.0..=SECONDS_MAX * 1e3;
/// Positive times: a microsecond at least.
const SOME_SECONDS: RangeInclusive<f64> = 1e-6..=SECONDS_MAX;
const SOME_MILLISECONDS: RangeInclusive<f64> = 1e-3..=SECONDS_MAX * 1e3;
const CORES: RangeInclusive<f64> = 1e-3..=1e7;
const SPEED: RangeInclusive<f64> = 1e-3..=SPEED_MAX;
/// Relative to the usual speed.
const SHARE: RangeInclusive<f64> = 0.0..=1.0;

fn within(name: &str, value: f64, range: RangeInclusive<f64>) -> Result<()> {
    ensure!(range.contains(&value), "{name} must be from {} to {}, not {value}", range.start(), range.end());
    Ok(())
}

fn between(name: &str, (low, high): (f64, f64), range: RangeInclusive<f64>) -> Result<()> {
    within(name, low, range.clone())?;
    within(name, high, range)?;
    ensure!(low <= high, "{name} must be a range from low to high");
    Ok(())
}

/// Says what is wrong with a scenario.
pub(crate) fn check(scenario: &Scenario) -> Result<()> {
    let servers = parties(scenario)?;
    within("duration_s", scenario.duration_s, SOME_SECONDS)?;
    within("warmup_s", scenario.warmup_s, SECONDS)?;
    ensure!(scenario.duration_s > scenario.warmup_s, "duration_s must be above warmup_s");
    within("timeout_ms", scenario.timeout_ms, SOME_MILLISECONDS)?;
    within("one_way_ms", scenario.network.one_way_ms, MILLISECONDS)?;
    within("jitter_ms", scenario.network.jitter_ms, MILLISECONDS)?;
    scenario.servers.iter().try_for_each(group)?;
    work(&scenario.work)?;
    if let Work::Mix { of } = &scenario.work {
        let there = |server| server < servers;
        ensure!(of.iter().all(|method| method.server.is_none_or(there)), "a method names a server that is not there");
    }
    load(scenario)?;
    influences(scenario, servers)
}

/// How many servers there are.
fn parties(scenario: &Scenario) -> Result<usize> {
    let clients = scenario.clients.count;
    let servers = scenario.servers.iter().fold(0usize, |sum, group| sum.saturating_add(group.count));
    ensure!(clients > 0 && servers > 0, "there must be clients and servers");
    ensure!(
        clients.saturating_mul(servers) <= CLIENTS_TIMES_SERVERS_MAX,
        "count must be lower: clients times servers are at most {CLIENTS_TIMES_SERVERS_MAX}"
    );
    ensure!(scenario.clients.calls_each != Some(0), "calls_each must be positive");
    within("skew", scenario.clients.skew, 0.0..=10.0)?;
    Ok(servers)
}

fn group(group: &ServerGroup) -> Result<()> {
    within("cores", group.cores, CORES)?;
    within("speed", group.speed, SPEED)?;
    within("cold_speed", group.cold_speed, 1e-3..=1.0)?;
    within("concurrency", group.concurrency.unwrap_or(1.0), CORES)?;
    within("published_ms", group.published_ms.unwrap_or(1.0), SOME_MILLISECONDS)?;
    within("joins_s", group.joins_s, SECONDS)?;
    within("leaves_s", group.leaves_s.unwrap_or(0.0), SECONDS)?;
    within("cold_s", group.cold_s, SECONDS)
}

fn work(of: &Work) -> Result<()> {
    match of {
        Work::Constant { ms } => within("ms", *ms, SOME_MILLISECONDS)?,
        // Of a mean below 0 next to no draw is positive.
        Work::Normal { mean_ms, deviation_ms } => {
            within("mean_ms", *mean_ms, MILLISECONDS)?;
            within("deviation_ms", *deviation_ms, MILLISECONDS)?;
        }
        Work::Exponential { mean_ms } => within("mean_ms", *mean_ms, SOME_MILLISECONDS)?,
        Work::Lognormal { mean_ms, sigma } => {
            within("mean_ms", *mean_ms, SOME_MILLISECONDS)?;
            within("sigma", *sigma, 0.0..=5.0)?;
        }
        Work::Mix { of } => {
            ensure!(!of.is_empty(), "a mix needs methods");
            of.iter().try_for_each(|method| {
                within("share", method.share, 1e-6..=1e6)?;
                work(&method.work)
            })?;
        }
    }
    within("the mean of the work in ms", of.mean_ms(), SOME_MILLISECONDS)
}

fn load(scenario: &Scenario) -> Result<()> {
    let load = &scenario.load;
    ensure!(load.utilization.is_some() != load.calls_per_s.is_some(), "load needs either utilization or calls_per_s");
    within("capacity_cores", load.capacity_cores.unwrap_or(1.0), 1e-3..=1e12)?;
    ensure!(scenario.capacity_cores() > 0.0, "there must be a server at the start");
    let calls_per_s = scenario.calls_per_s();
    ensure!(calls_per_s > 0.0, "there must be calls");
    let mut peak = 1.0;
    if let Some(bursts) = &load.bursts {
        within("factor", bursts.factor, 1e-3..=1e3)?;
        within("every_s", bursts.every_s, SOME_SECONDS)?;
        ensure!(bursts.for_s >= 0.0 && bursts.for_s <= bursts.every_s, "bursts must end before the next");
        peak = bursts.factor.max(1.0);
    }
    let calls = calls_per_s * peak * scenario.duration_s;
    ensure!(calls <= CALLS_MAX, "there must be at most {CALLS_MAX:e} calls, not {calls:e}");
    Ok(())
}

fn influences(scenario: &Scenario, servers: usize) -> Result<()> {
    let mut changes = 0.0;
    if let Some(antagonists) = &scenario.antagonists {
        within("good_s", antagonists.good_s, SOME_SECONDS)?;
        within("bad_s", antagonists.bad_s, SOME_SECONDS)?;
        antagonists.speed.map_or(Ok(()), |range| between("speed of antagonists", range, SHARE))?;
        antagonists.cores.map_or(Ok(()), |range| between("cores of antagonists", range, CORES))?;
        changes += servers as f64 * scenario.duration_s / (antagonists.good_s + antagonists.bad_s);
    }
    if let Some(freezes) = &scenario.freezes {
        within("every_s", freezes.every_s, SOME_SECONDS)?;
        ensure!(freezes.every_s > freezes.for_s && freezes.for_s > 0.0, "freezes must end before the next");
        changes += scenario.duration_s / freezes.every_s;
    }
    ensure!(changes <= CHANGES_MAX, "antagonists and freezes must come less often");
    for incident in &scenario.events {
        ensure!(incident.servers.iter().all(|&server| server < servers), "an event names a server that is not there");
        within("from_s", incident.from_s, SECONDS)?;
        within("to_s", incident.to_s, SECONDS)?;
        ensure!(incident.to_s > incident.from_s, "an event must end after it begins");
        ensure!(incident.speed.is_some() || incident.fails_after_ms.is_some(), "an event must change something");
        within("speed of an event", incident.speed.unwrap_or(1.0), SHARE)?;
        within("fails_after_ms", incident.fails_after_ms.unwrap_or(0.0), MILLISECONDS)?;
    }
    Ok(())
}
