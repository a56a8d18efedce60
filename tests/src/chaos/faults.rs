//! Makes happen what the plan says.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::plan::{Clients, Fault, Lane, Plan, Step};
use super::stage::Stage;
use crate::link::{Line, Link};
use crate::process::SOON;

/// Goes through the plan. Nothing begins after `duration`; what has begun is ended in good order.
pub(super) async fn happen(stage: &Stage, plan: &Plan, duration: Duration) {
    let end = Instant::now() + duration;
    let [one, two] = &plan.servers;
    tokio::join!(
        lane(stage, one, end),
        lane(stage, two, end),
        steps(stage, &plan.ensemble, end),
        steps(stage, &plan.clients, end)
    );
}

async fn lane(stage: &Stage, lane: &Lane, end: Instant) {
    for step in &lane.steps {
        if !begins(stage, step, end).await {
            return;
        }
        match step.fault {
            Fault::Roll => {
                for &server in &lane.members {
                    restart(stage, server).await;
                }
            }
            fault => happens(stage, fault).await,
        }
    }
}

async fn steps(stage: &Stage, steps: &[Step], end: Instant) {
    for step in steps {
        if !begins(stage, step, end).await {
            return;
        }
        stage.notes.disturbed();
        happens(stage, step.fault).await;
        stage.notes.calmed();
    }
}

async fn begins(stage: &Stage, step: &Step, end: Instant) -> bool {
    sleep(step.pause).await;
    let begins = Instant::now() < end;
    if begins {
        stage.notes.say(&step.fault.to_string());
    }
    begins
}

async fn happens(stage: &Stage, fault: Fault) {
    match fault {
        Fault::Kill { server, down } => {
            let killed = async {
                stage.kill(server).await;
                sleep(down).await;
                stage.start(server).await;
                stage.recovered(server).await;
            };
            stage.unwell(server, killed).await;
        }
        Fault::Hang { server, held } => {
            let hung = async {
                let process = stage.servers[server].process.lock().clone();
                process.pause();
                sleep(held).await;
                process.resume();
                stage.recovered(server).await;
            };
            stage.unwell(server, hung).await;
        }
        Fault::Restart { server } => restart(stage, server).await,
        Fault::Roll => {}
        Fault::Stall { server, clients, held } => cable(stage, server, clients, held, Line::stall).await,
        Fault::Sever { server, clients, held } => cable(stage, server, clients, held, Line::sever).await,
        Fault::Slow { server, clients, delay, held } => {
            let lines = || clients.iter().map(|client| &stage.servers[server].switch.lines[client]);
            lines().for_each(|line| line.delay(delay));
            sleep(held).await;
            lines().for_each(|line| line.delay(Duration::ZERO));
            stage.recovered(server).await;
        }
        Fault::ServerAlone { server, held } => {
            alone(&stage.servers[server].ensemble, held).await;
            stage.recovered(server).await;
        }
        Fault::ClientHangs { client, held } => {
            let process = &stage.clients[client].process;
            process.pause();
            sleep(held).await;
            process.resume();
        }
        Fault::ClientAlone { client, held } => alone(&stage.clients[client].ensemble, held).await,
        Fault::LeaderKilled { down } => {
            if let Some(leader) = leader(stage).await {
                ensemble_killed(stage, &[leader], down, false).await;
            }
        }
        Fault::FollowerKilled { down } => {
            if let Some(leader) = leader(stage).await {
                ensemble_killed(stage, &[(leader + 1) % stage.zk.len()], down, false).await;
            }
        }
        Fault::LeaderHangs { held } => {
            if let Some(leader) = leader(stage).await {
                ensemble_hangs(stage, &[leader], held).await;
            }
        }
        Fault::EnsembleKilled { down } => ensemble_killed(stage, &all(stage), down, false).await,
        Fault::EnsembleEmptied { down } => ensemble_killed(stage, &all(stage), down, true).await,
        Fault::EnsembleHangs { held } => ensemble_hangs(stage, &all(stage), held).await,
    }
}

/// In good order: no call may fail by it.
async fn restart(stage: &Stage, server: usize) {
    stage.terminate(server).await;
    stage.start(server).await;
    stage.recovered(server).await;
}

async fn cable(stage: &Stage, server: usize, clients: Clients, held: Duration, spoil: fn(&Line)) {
    let spoiled = async {
        let lines: Vec<&Line> = clients.iter().map(|client| &stage.servers[server].switch.lines[client]).collect();
        lines.iter().for_each(|line| spoil(line));
        sleep(held).await;
        lines.iter().for_each(|line| line.resume());
        stage.recovered(server).await;
    };
    stage.unwell(server, spoiled).await;
}

async fn alone(ensemble: &[Link], held: Duration) {
    ensemble.iter().for_each(|link| link.stall());
    sleep(held).await;
    ensemble.iter().for_each(|link| link.resume());
}

fn all(stage: &Stage) -> Vec<usize> {
    (0..stage.zk.len()).collect()
}

async fn ensemble_killed(stage: &Stage, servers: &[usize], down: Duration, wiped: bool) {
    servers.iter().for_each(|&n| stage.zk.kill(n));
    if wiped {
        servers.iter().for_each(|&n| stage.zk.wipe(n));
    }
    sleep(down).await;
    join_all(servers.iter().map(|&n| stage.zk.start(n))).await;
    leader(stage).await;
}

async fn ensemble_hangs(stage: &Stage, servers: &[usize], held: Duration) {
    servers.iter().for_each(|&n| stage.zk.pause(n));
    sleep(held).await;
    servers.iter().for_each(|&n| stage.zk.resume(n));
    leader(stage).await;
}

/// The leader of the ensemble, once there is one.
async fn leader(stage: &Stage) -> Option<usize> {
    let end = Instant::now() + SOON;
    while Instant::now() < end {
        for n in 0..stage.zk.len() {
            if stage.zk.ask(n, "srvr").await.contains("Mode: leader") {
                return Some(n);
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
    stage.notes.say("no server of the ensemble leads");
    None
}
