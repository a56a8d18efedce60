//! Scenario files of the simulator.

use rpc_sim::policies::PolicyName;
use rpc_sim::scenario::Scenario;
use rpc_sim::simulation::Simulation;

/// Most calls, clients and servers of a run that is worth its time here.
const CALLS_MAX: f64 = 100.0;
const PARTIES_MAX: usize = 16;

/// An accepted scenario has finite figures and can be run to its end; a small one is. A refused one says why.
pub fn scenario(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let scenario = match Scenario::from_json(text) {
        Ok(scenario) => scenario,
        Err(error) => return assert!(!format!("{error:#}").is_empty()),
    };
    for figure in [scenario.capacity_cores(), scenario.calls_per_s(), scenario.work.mean_ms(), scenario.utilization()] {
        assert!(figure.is_finite() && figure > 0.0, "{figure}");
    }
    let _ = scenario.warning();
    let servers: usize = scenario.servers.iter().map(|group| group.count).sum();
    let bursts = scenario.load.bursts.as_ref().map_or(1.0, |bursts| bursts.factor.max(1.0));
    let calls = scenario.calls_per_s() * bursts * scenario.duration_s;
    if calls <= CALLS_MAX && servers <= PARTIES_MAX && scenario.clients.count <= PARTIES_MAX {
        let policy = PolicyName::parse("fastest").expect("it is a policy");
        let figures = Simulation::new(&scenario, &policy, 1).run().figures();
        assert!((0.0..=100.0).contains(&figures.failed_percent), "{figures:?}");
    }
}
