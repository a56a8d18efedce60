//! What goes wrong, in which order and for how long: all of it follows from the seed.

use std::fmt;
use std::time::Duration;

use rpc_client::balance::Random;

use super::{CLIENTS, SERVERS};
use crate::zk::SESSION;

/// One misfortune.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// kill -9 of a server, which is started again on its address after a while.
    Kill { server: usize, down: Duration },
    /// SIGSTOP of a server.
    Hang { server: usize, held: Duration },
    /// SIGTERM of a server, which is started again as soon as it has ended.
    Restart { server: usize },
    /// The same for each server of the lane, one after the other.
    Roll,
    /// Nothing passes between a server and some clients.
    Stall { server: usize, clients: Clients, held: Duration },
    /// Connections between a server and some clients break, and cannot be made.
    Sever { server: usize, clients: Clients, held: Duration },
    /// Everything between a server and some clients takes so much longer, each way.
    Slow { server: usize, clients: Clients, delay: Duration, held: Duration },
    /// Nothing passes between a server and ZooKeeper.
    ServerAlone { server: usize, held: Duration },
    /// kill -9 of the leader of the ensemble.
    LeaderKilled { down: Duration },
    /// kill -9 of another server of the ensemble.
    FollowerKilled { down: Duration },
    /// SIGSTOP of the leader of the ensemble.
    LeaderHangs { held: Duration },
    /// kill -9 of the whole ensemble.
    EnsembleKilled { down: Duration },
    /// The same, and it comes back without data.
    EnsembleEmptied { down: Duration },
    /// SIGSTOP of the whole ensemble.
    EnsembleHangs { held: Duration },
    /// SIGSTOP of a client.
    ClientHangs { client: usize, held: Duration },
    /// Nothing passes between a client and ZooKeeper.
    ClientAlone { client: usize, held: Duration },
}

/// Some of the clients, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clients(u32);

impl Clients {
    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        (0..CLIENTS).filter(move |client| self.0 & (1 << client) != 0)
    }
}

/// A fault, and the pause before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) pause: Duration,
    pub(super) fault: Fault,
}

/// The schedule. Its lanes go on at the same time. Two of them are about servers, each about its own,
/// and wait until a server is well again: so at most two servers are unwell at a time.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) servers: [Lane; 2],
    pub(super) ensemble: Vec<Step>,
    pub(super) clients: Vec<Step>,
    /// Servers that are killed in the end and do not come back.
    pub(super) gone: Vec<usize>,
}

/// What happens to some of the servers.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) members: Vec<usize>,
    pub(super) steps: Vec<Step>,
}

impl Plan {
    pub(super) fn new(seed: u64, duration: Duration) -> Self {
        let mut random = Random::new(seed);
        let mut order: Vec<usize> = (0..SERVERS).collect();
        for at in (1..SERVERS).rev() {
            order.swap(at, random.below(at + 1));
        }
        let gone = order.iter().copied().take(random.below(3)).collect();
        let (one, two) = order.split_at(SERVERS.div_ceil(2));
        let servers = [one, two].map(|members| {
            let steps = fill(&mut random, duration, ms(200), ms(1200), |random| server_fault(random, members));
            Lane { members: members.to_vec(), steps }
        });
        let longest = if duration < Duration::from_secs(30) { ms(7000) } else { ms(15_000) };
        let ensemble =
            fill(&mut random, duration, ms(500), ms(4000), |random| ensemble_fault(random, longest.min(duration / 2)));
        let clients = fill(&mut random, duration, ms(500), ms(4000), client_fault);
        Self { servers, ensemble, clients, gone }
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn between(random: &mut Random, from: Duration, to: Duration) -> Duration {
    let width = usize::try_from((to - from).as_millis()).unwrap_or(usize::MAX);
    from + ms(random.below(width + 1) as u64)
}

/// Steps for a lane that may last for `duration`, if nothing took longer than it has to.
fn fill(
    random: &mut Random,
    duration: Duration,
    pause_min: Duration,
    pause_max: Duration,
    mut fault: impl FnMut(&mut Random) -> Fault,
) -> Vec<Step> {
    let (mut steps, mut total) = (Vec::new(), Duration::ZERO);
    while total < duration {
        let step = Step { pause: between(random, pause_min, pause_max), fault: fault(random) };
        total += step.pause + step.fault.lasts();
        steps.push(step);
    }
    steps
}

fn server_fault(random: &mut Random, members: &[usize]) -> Fault {
    let server = members[random.below(members.len())];
    let some = |random: &mut Random| Clients(1 + random.below((1 << CLIENTS) - 1) as u32);
    match random.below(18) {
        0..4 => Fault::Kill { server, down: between(random, ms(0), ms(2500)) },
        4..8 => Fault::Hang { server, held: between(random, ms(50), SESSION) },
        8..10 => Fault::Restart { server },
        10 => Fault::Roll,
        11 | 12 => Fault::Stall { server, clients: some(random), held: between(random, ms(100), ms(4000)) },
        13 | 14 => Fault::Sever { server, clients: some(random), held: between(random, ms(0), ms(3000)) },
        15 | 16 => {
            let delay = between(random, ms(5), ms(100));
            Fault::Slow { server, clients: some(random), delay, held: between(random, ms(500), ms(4000)) }
        }
        _ => Fault::ServerAlone { server, held: between(random, ms(500), ms(8000)) },
    }
}

fn ensemble_fault(random: &mut Random, longest: Duration) -> Fault {
    match random.below(9) {
        0..3 => Fault::LeaderKilled { down: between(random, ms(300), ms(3000)) },
        3 => Fault::FollowerKilled { down: between(random, ms(300), ms(3000)) },
        4 => Fault::LeaderHangs { held: between(random, ms(300), SESSION) },
        5 | 6 => Fault::EnsembleKilled { down: between(random, ms(300), longest) },
        7 => Fault::EnsembleEmptied { down: between(random, ms(300), longest) },
        _ => Fault::EnsembleHangs { held: between(random, ms(300), longest) },
    }
}

fn client_fault(random: &mut Random) -> Fault {
    let client = random.below(CLIENTS);
    match random.below(3) {
        0 => Fault::ClientHangs { client, held: between(random, ms(100), super::CLIENT_HANGS_MAX) },
        _ => Fault::ClientAlone { client, held: between(random, ms(300), ms(8000)) },
    }
}

impl Fault {
    /// How long it lasts at least.
    fn lasts(self) -> Duration {
        match self {
            Self::Kill { down, .. }
            | Self::LeaderKilled { down }
            | Self::FollowerKilled { down }
            | Self::EnsembleKilled { down }
            | Self::EnsembleEmptied { down } => down,
            Self::Hang { held, .. }
            | Self::Stall { held, .. }
            | Self::Sever { held, .. }
            | Self::Slow { held, .. }
            | Self::ServerAlone { held, .. }
            | Self::LeaderHangs { held }
            | Self::EnsembleHangs { held }
            | Self::ClientHangs { held, .. }
            | Self::ClientAlone { held, .. } => held,
            Self::Restart { .. } | Self::Roll => Duration::ZERO,
        }
    }
}

impl fmt::Display for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clients: Vec<String> = self.iter().map(|client| client.to_string()).collect();
        write!(f, "client {}", clients.join("+"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill { server, down } => write!(f, "server {server}: kill -9, down for {down:?}"),
            Self::Hang { server, held } => write!(f, "server {server}: SIGSTOP for {held:?}"),
            Self::Restart { server } => write!(f, "server {server}: SIGTERM, started again"),
            Self::Roll => write!(f, "each server of the lane in turn: SIGTERM, started again"),
            Self::Stall { server, clients, held } => write!(f, "server {server} / {clients}: stalled for {held:?}"),
            Self::Sever { server, clients, held } => write!(f, "server {server} / {clients}: cut for {held:?}"),
            Self::Slow { server, clients, delay, held } => {
                write!(f, "server {server} / {clients}: {delay:?} slower for {held:?}")
            }
            Self::ServerAlone { server, held } => write!(f, "server {server} / ZooKeeper: stalled for {held:?}"),
            Self::LeaderKilled { down } => write!(f, "ZooKeeper leader: kill -9, down for {down:?}"),
            Self::FollowerKilled { down } => write!(f, "ZooKeeper follower: kill -9, down for {down:?}"),
            Self::LeaderHangs { held } => write!(f, "ZooKeeper leader: SIGSTOP for {held:?}"),
            Self::EnsembleKilled { down } => write!(f, "ZooKeeper ensemble: kill -9, down for {down:?}"),
            Self::EnsembleEmptied { down } => write!(f, "ZooKeeper ensemble: kill -9 and wiped, down for {down:?}"),
            Self::EnsembleHangs { held } => write!(f, "ZooKeeper ensemble: SIGSTOP for {held:?}"),
            Self::ClientHangs { client, held } => write!(f, "client {client}: SIGSTOP for {held:?}"),
            Self::ClientAlone { client, held } => write!(f, "client {client} / ZooKeeper: stalled for {held:?}"),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |name: String, steps: &[Step], f: &mut fmt::Formatter<'_>| {
            writeln!(f, "{name}:")?;
            steps.iter().try_for_each(|step| writeln!(f, "  after {:?}: {}", step.pause, step.fault))
        };
        for lane in &self.servers {
            named(format!("servers {:?}", lane.members), &lane.steps, f)?;
        }
        named("ensemble".into(), &self.ensemble, f)?;
        named("clients".into(), &self.clients, f)?;
        write!(f, "in the end: servers {:?} are killed for good", self.gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_everything() {
        let text = |seed| Plan::new(seed, Duration::from_secs(60)).to_string();
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
    }
}
