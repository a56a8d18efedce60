//! One run: servers, clients, and what happens to the servers meanwhile.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use tokio::time::Instant;

use crate::child::Child;
use crate::client::{self, Report};
use crate::scenario::{Scenario, Script, Shape};
use crate::server;

/// What a run costs in time beyond the calls, at most: servers end by themselves after it.
const AROUND_S: f64 = 90.0;

/// What came of a run.
pub(crate) struct Outcome {
    pub(crate) reports: Vec<Report>,
    /// The servers' ports, in their order.
    pub(crate) ports: Vec<u16>,
}

impl Outcome {
    /// The 99th percentile of how late calls went out, of the worst process.
    pub(crate) fn late_p99(&self) -> Duration {
        Duration::from_micros(self.reports.iter().map(|report| report.late_p99_us).max().unwrap_or(0))
    }
}

struct Run {
    scenario: &'static Scenario,
    seconds: f64,
    registry: String,
    /// None while it is not there.
    servers: Vec<Option<Child>>,
    addrs: Vec<SocketAddr>,
}

/// Runs `scenario` with one policy. All processes have ended when it returns.
pub(crate) async fn run(scenario: &'static Scenario, policy: &str, seconds: f64, seed: u64) -> Result<Outcome> {
    let directory = tempfile::tempdir().context("a directory for the registry")?;
    let registry = format!("local:{}", directory.path().display());
    let mut run = Run { scenario, seconds, registry, servers: Vec::new(), addrs: Vec::new() };
    for server in 0..scenario.servers {
        run.start(server).await?;
    }
    let seeds = (0..scenario.processes as u64).map(|process| seed * 1000 + process);
    let arguments = seeds.map(|seed| client::Args::of(&run.registry, scenario, policy, seconds, seed));
    let mut clients = arguments.map(|arguments| Child::start(&arguments)).collect::<Result<Vec<_>>>()?;
    for client in &mut clients {
        client.says("ready").await?;
    }
    for client in &mut clients {
        client.go().await?;
    }
    let reports = async {
        let mut reports = Vec::new();
        for client in &mut clients {
            let line = client.line(Duration::from_secs_f64(seconds)).await?;
            reports.push(serde_json::from_str(&line).context("a report of a client")?);
        }
        Ok(reports)
    };
    let (reports, ()) = tokio::try_join!(reports, run.play())?;
    for child in clients.into_iter().chain(run.servers.into_iter().flatten()) {
        child.kill().await?;
    }
    Ok(Outcome { reports, ports: run.addrs.iter().map(SocketAddr::port).collect() })
}

impl Run {
    /// Starts a server; one that was there before gets its address again.
    async fn start(&mut self, server: usize) -> Result<()> {
        let addr = self.addrs.get(server).copied().unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let (permits, shape) = (self.scenario.permits, self.scenario.shape(server));
        let at_most = self.seconds + AROUND_S;
        let mut child = Child::start(&server::Args::of(&self.registry, addr, permits, shape, at_most))?;
        let addr = child.says("serving").await?.parse()?;
        if server == self.addrs.len() {
            self.addrs.push(addr);
            self.servers.push(None);
        }
        self.servers[server] = Some(child);
        Ok(())
    }

    async fn play(&mut self) -> Result<()> {
        let started = Instant::now();
        let third = |thirds: f64| started + Duration::from_secs_f64(self.seconds * thirds / 3.0);
        let (first, second) = (third(1.0), third(2.0));
        match self.scenario.script {
            Script::Steady | Script::FailFast | Script::Halves => Ok(()),
            Script::Slow(times) => {
                tokio::time::sleep_until(first).await;
                server::reshape(self.addrs[0], Shape { speed: 1.0 / times, fails: false }).await?;
                tokio::time::sleep_until(second).await;
                server::reshape(self.addrs[0], self.scenario.shape(0)).await
            }
            Script::Freeze { every, stopped } => self.freeze(started, every, stopped).await,
            Script::Restart => {
                tokio::time::sleep_until(first).await;
                if let Some(server) = self.servers[0].take() {
                    server.kill().await?;
                }
                tokio::time::sleep_until(second).await;
                self.start(0).await
            }
            Script::Join(count, _) => {
                tokio::time::sleep_until(first).await;
                for server in self.scenario.servers..self.scenario.servers + count {
                    self.start(server).await?;
                }
                Ok(())
            }
        }
    }

    async fn freeze(&self, started: Instant, every: Duration, stopped: Duration) -> Result<()> {
        let end = started + Duration::from_secs_f64(self.seconds);
        let mut at = started + every / 2;
        for server in self.servers.iter().flatten().cycle() {
            if at + stopped > end {
                break;
            }
            tokio::time::sleep_until(at).await;
            server.signal(Signal::STOP)?;
            tokio::time::sleep_until(at + stopped).await;
            server.signal(Signal::CONT)?;
            at += every;
        }
        Ok(())
    }
}
