//! The processes of a run and the cables between them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rpc_client::ConnectionState;
use rpc_server::ServerUsage;
use serde::Serialize;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::caller::{CallerArguments, CallerSays, Look};
use super::node::{NodeArguments, NodeSays};
use super::{CALL, CLIENTS, Options, Report, SERVERS, clock_ms, judge, show};
use crate::link::{Link, Switch};
use crate::process::{Exit, Process, SOON};
use crate::socket_owner::socket_owner;
use crate::zk::{SESSION, ZooKeeper};

/// What the clients and the servers have to come to agree on who is there.
const SETTLED_WITHIN: Duration = Duration::from_secs(SESSION.as_secs() + 8);

/// How each client balances, and its connections to each server.
const POLICIES: [&str; CLIENTS] = ["fastest", "p2c", "round_robin", "fastest"];
const CONNECTIONS: [usize; CLIENTS] = [1, 2, 1, 1];

/// The longest ejection of a node by a client.
const EJECTED_MAX: Duration = rpc_client::breaker::EJECTION_MAX;

/// All processes of a run.
pub(super) struct Stage {
    pub(super) zk: ZooKeeper,
    pub(super) servers: Vec<Server>,
    pub(super) clients: Vec<Caller>,
    pub(super) notes: Notes,
    program: PathBuf,
    dir: TempDir,
}

/// A server and the cables to it. It keeps its address when it is started again.
pub(super) struct Server {
    pub(super) process: Mutex<Arc<Process>>,
    pub(super) switch: Switch,
    pub(super) ensemble: Vec<Link>,
    incarnation: Mutex<String>,
    bind: SocketAddr,
}

pub(super) struct Caller {
    pub(super) process: Process,
    pub(super) ensemble: Vec<Link>,
    outcomes: PathBuf,
}

/// What happened so far.
pub(super) struct Notes {
    began: Instant,
    violations: Mutex<Vec<String>>,
    /// Times in which calls at a server may fail.
    pub(super) unwell: Mutex<Vec<Unwell>>,
    disturbances: Mutex<Disturbances>,
}

/// A time in which a server was killed, hung or cut off.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unwell {
    pub(super) server: usize,
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
}

/// Trouble of ZooKeeper or a client, during which nobody has to notice that a server is back.
struct Disturbances {
    count: usize,
    calm_since: Instant,
}

impl Notes {
    fn new() -> Self {
        let began = Instant::now();
        let disturbances = Mutex::new(Disturbances { count: 0, calm_since: began });
        Self { began, violations: Mutex::default(), unwell: Mutex::default(), disturbances }
    }

    pub(super) fn say(&self, what: &str) {
        show(&format!("{:7.3} s  {what}", self.began.elapsed().as_secs_f64()));
    }

    pub(super) fn violated(&self, what: String) {
        self.say(&format!("VIOLATED: {what}"));
        self.violations.lock().push(what);
    }

    pub(super) fn disturbed(&self) {
        self.disturbances.lock().count += 1;
    }

    pub(super) fn calmed(&self) {
        let mut disturbances = self.disturbances.lock();
        disturbances.count -= 1;
        disturbances.calm_since = Instant::now();
    }

    /// How long nothing but servers has been in trouble; none while something is.
    fn calm_for(&self) -> Option<Duration> {
        let disturbances = self.disturbances.lock();
        (disturbances.count == 0).then(|| disturbances.calm_since.elapsed())
    }
}

impl Stage {
    pub(super) async fn set(options: &Options) -> Self {
        let zk = ZooKeeper::ensemble().await;
        let dir = tempfile::Builder::new().prefix("rpc-chaos-").tempdir().expect("the directory for temporary files");
        let ids: Arc<Mutex<Vec<u32>>> = Arc::default();
        let mut servers = Vec::new();
        let network = Ipv4Addr::from(0x7f00_0000 | (u32::try_from(clock_ms() % 0xff_ff00).unwrap_or(0) & 0xff_ff00));
        for n in 0..SERVERS {
            // An address of the machine's own network that nobody else uses, so that its port is free
            // each time the server comes back.
            let [a, b, c, _] = network.octets();
            let bind = SocketAddr::from(([a, b, c, 10 + u8::try_from(n).unwrap_or(0)], 7000));
            let known = ids.clone();
            let who = move |peer, addr| {
                let known = known.lock().clone();
                let owner = socket_owner(peer, addr, &known)?;
                known.iter().position(|id| *id == owner)
            };
            let switch = Switch::open(bind, CLIENTS, who).await;
            let ensemble = links(&zk).await;
            let process = spawn_server(&options.program, dir.path(), n, bind, switch.addr, &ensemble);
            let incarnation = incarnation(&process).await;
            servers.push(Server {
                process: Mutex::new(process),
                switch,
                ensemble,
                incarnation: Mutex::new(incarnation),
                bind,
            });
        }
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let ensemble = links(&zk).await;
            let outcomes = dir.path().join(format!("outcomes-{number}"));
            let arguments = CallerArguments {
                registry: registry(&ensemble),
                number: number as u64,
                seed: options.seed,
                rate: options.rate.div_ceil(CLIENTS as u32),
                policy: POLICIES[number].to_owned(),
                connections_per_node: CONNECTIONS[number],
                outcomes: outcomes.clone(),
            };
            let process = start(&options.program, "caller", &arguments);
            ids.lock().push(process.id());
            clients.push(Caller { process, ensemble, outcomes });
        }
        let stage = Self { zk, servers, clients, notes: Notes::new(), program: options.program.clone(), dir };
        let end = Instant::now() + SOON * 2;
        while !(0..SERVERS).all(|n| stage.is_used_since(n, 0).is_ok()) {
            assert!(Instant::now() < end, "the servers are not found at the start: {:?}", stage.is_used_since(0, 0));
            sleep(Duration::from_millis(20)).await;
        }
        for client in &stage.clients {
            client.process.say("begin");
        }
        stage.notes.say("all servers are used by all clients; the load begins");
        stage
    }

    /// Starts a server again.
    pub(super) async fn start(&self, n: usize) {
        let server = &self.servers[n];
        self.keep_log(n);
        let process =
            spawn_server(&self.program, self.dir.path(), n, server.bind, server.switch.addr, &server.ensemble);
        *server.process.lock() = process.clone();
        *server.incarnation.lock() = incarnation(&process).await;
    }

    /// Ends a server and waits until it has ended.
    pub(super) async fn kill(&self, n: usize) {
        let process = self.servers[n].process.lock().clone();
        process.kill();
        process.wait_for("end", SOON, |seen| seen.exit).await;
    }

    /// Stops a server in good order and waits until it has ended.
    pub(super) async fn terminate(&self, n: usize) {
        let process = self.servers[n].process.lock().clone();
        process.terminate();
        let exit = process.wait_for("end", SOON * 2, |seen| seen.exit).await;
        if exit != Exit::Code(0) {
            self.notes.violated(format!("server {n} was asked to stop and ended with {exit:?}"));
        }
    }

    /// Waits until all clients use the server.
    pub(super) async fn recovered(&self, n: usize) {
        let (began, began_ms) = (Instant::now(), clock_ms());
        loop {
            let Err((why, ejected)) = self.is_used_since(n, began_ms) else { return };
            let patience = if ejected { SETTLED_WITHIN + EJECTED_MAX } else { SETTLED_WITHIN };
            if self.notes.calm_for().is_some_and(|calm| calm.min(began.elapsed()) > patience) {
                self.notes.violated(format!("server {n} is well since {:?}: {why}", began.elapsed()));
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether all clients have said since then that they use the server; why not, and whether a
    /// client has ejected it.
    fn is_used_since(&self, n: usize, since_ms: u64) -> Result<(), (String, bool)> {
        let (addr, incarnation) = (self.servers[n].switch.addr, self.servers[n].incarnation.lock().clone());
        for (number, client) in self.clients.iter().enumerate() {
            let missing = |what: &str| Err((format!("client {number} {what}"), false));
            let Some(look) = client.look() else { return missing("has said nothing yet") };
            if look.at_ms < since_ms {
                return missing("has said nothing since");
            }
            let Some(node) = look.nodes.iter().find(|node| node.node == addr) else {
                return missing("does not list it");
            };
            // Without the registry a client cannot know of a new incarnation.
            if node.connection != ConnectionState::Connected || (look.trouble.is_none() && node.id != incarnation) {
                let ejected = node.connection == ConnectionState::Ejected;
                return Err((format!("client {number} says {node:?}, it is {incarnation}"), ejected));
            }
        }
        Ok(())
    }

    /// The quiet after the storm: what must hold then, and of all calls.
    pub(super) async fn end(self, gone: &[usize]) -> Report {
        for &n in gone {
            let gone = async {
                self.kill(n).await;
                // Until everybody has heard of it.
                sleep(Duration::from_millis(500)).await;
            };
            self.unwell(n, gone).await;
        }
        self.notes.say("quiet");
        self.settled(gone).await;
        for client in &self.clients {
            client.process.say("end");
        }
        for (number, client) in self.clients.iter().enumerate() {
            let ended = |seen: &crate::process::Seen| {
                (seen.stdout.iter().rev().any(|line| line.contains("ended")) || seen.exit.is_some())
                    .then_some(seen.exit)
            };
            if let Some(exit) = client.process.wait_for("end of the calls", CALL + SOON, ended).await {
                self.notes.violated(format!("client {number} has ended: {exit:?}"));
            }
        }
        self.empty(gone).await;
        self.notes.say("ended");
        let mut outcomes = Vec::new();
        for client in &self.clients {
            outcomes.extend(judge::read_outcomes(&client.outcomes));
        }
        let begun = judge::read_ledgers((0..SERVERS).map(|n| ledger(self.dir.path(), n)));
        let addrs: Vec<SocketAddr> = self.servers.iter().map(|server| server.switch.addr).collect();
        let (violations, summary) = judge::judge(&outcomes, &begun, &addrs, &self.notes.unwell.lock());
        violations.into_iter().for_each(|violation| self.notes.violated(violation));
        self.report(summary)
    }

    fn report(self, summary: String) -> Report {
        for n in 0..SERVERS {
            self.keep_log(n);
        }
        for (number, client) in self.clients.iter().enumerate() {
            let log = client.process.look(|seen| seen.stderr.join("\n"));
            write_log(&self.dir.path().join(format!("client-{number}.log")), &log);
            self.check_log(&format!("client {number}"), &log);
        }
        let violations = std::mem::take(&mut *self.notes.violations.lock());
        let logs = (!violations.is_empty()).then(|| self.dir.keep());
        Report { violations, summary, logs }
    }

    /// Runs something that makes calls at a server fail, and notes when that was.
    pub(super) async fn unwell(&self, server: usize, trouble: impl Future<Output = ()>) {
        let from_ms = clock_ms();
        trouble.await;
        self.notes.unwell.lock().push(Unwell { server, from_ms, to_ms: clock_ms() });
    }

    /// Waits until all clients list exactly the servers that there are.
    async fn settled(&self, gone: &[usize]) {
        let began_ms = clock_ms();
        let truth: Vec<(SocketAddr, String)> = (0..SERVERS)
            .filter(|n| !gone.contains(n))
            .map(|n| (self.servers[n].switch.addr, self.servers[n].incarnation.lock().clone()))
            .collect();
        let agrees = |look: &Look| {
            look.at_ms >= began_ms
                && look.nodes.len() == truth.len()
                && truth
                    .iter()
                    .all(|(addr, id)| look.nodes.iter().any(|n| n.node == *addr && n.id == *id && n.connected))
        };
        let disagree = |client: &&Caller| !client.look().is_some_and(|look| agrees(&look));
        let began = Instant::now();
        while self.clients.iter().any(|client| disagree(&client)) {
            if began.elapsed() > SETTLED_WITHIN {
                for (number, client) in self.clients.iter().enumerate().filter(|(_, client)| disagree(client)) {
                    let nodes = client.look().map(|look| look.nodes);
                    self.notes.violated(format!("client {number} lists {nodes:?}, there are {truth:?}"));
                }
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
        self.notes.say(&format!("all clients list what there is after {:?}", began.elapsed()));
    }

    /// Waits until nothing of the calls is left anywhere.
    async fn empty(&self, gone: &[usize]) {
        let began = Instant::now();
        let there = SERVERS - gone.len();
        loop {
            let mut left = Vec::new();
            for (number, client) in self.clients.iter().enumerate() {
                let Some(look) = client.look() else { continue };
                let usage = look.usage;
                let in_flight: u32 = look.nodes.iter().map(|node| node.in_flight).sum();
                if usage.calls + usage.unsent_bytes + look.waiting + in_flight as usize > 0
                    || usage.connections != there * CONNECTIONS[number]
                {
                    left.push(format!("client {number} holds {usage:?}, {in_flight} in flight"));
                }
            }
            for (n, server) in self.servers.iter().enumerate().filter(|(n, _)| !gone.contains(n)) {
                let usage = server.usage().await;
                let held = usage.map(|usage| (usage.connections, usage.calls));
                if held != Some((CONNECTIONS.iter().sum(), 0)) {
                    left.push(format!("server {n} holds {usage:?}"));
                }
            }
            if left.is_empty() {
                return;
            }
            if began.elapsed() > SOON {
                return left.into_iter().for_each(|what| self.notes.violated(format!("after all calls {what}")));
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    fn keep_log(&self, n: usize) {
        let process = self.servers[n].process.lock().clone();
        let log = process.look(|seen| seen.stderr.join("\n"));
        write_log(&self.dir.path().join(format!("server-{n}.log")), &log);
        self.check_log(&format!("server {n}"), &log);
    }

    fn check_log(&self, who: &str, log: &str) {
        for line in log.lines().filter(|line| line.contains("panicked at")) {
            self.notes.violated(format!("{who}: {line}"));
        }
    }
}

impl Server {
    /// What it holds, by its own word.
    async fn usage(&self) -> Option<ServerUsage> {
        let process = self.process.lock().clone();
        let before = process.look(|seen| seen.stdout.len());
        process.say("usage");
        let told = process.wait_for("answer", SOON, |seen| {
            (seen.stdout.len() > before || seen.exit.is_some()).then(|| seen.stdout.last().cloned())
        });
        match serde_json::from_str(&told.await?).ok()? {
            NodeSays::Usage(usage) => Some(usage),
            NodeSays::Incarnation(_) => None,
        }
    }
}

impl Caller {
    /// What it has said last.
    fn look(&self) -> Option<Look> {
        self.process.look(|seen| {
            seen.stdout.iter().rev().find_map(|line| match serde_json::from_str(line).ok()? {
                CallerSays::Look(look) => Some(look),
                CallerSays::Ended => None,
            })
        })
    }
}

/// Cables of one process to each server of the ensemble.
async fn links(zk: &ZooKeeper) -> Vec<Link> {
    let mut links = Vec::new();
    for addr in zk.addrs() {
        let link = Link::open().await;
        link.lead_to(addr);
        links.push(link);
    }
    links
}

fn registry(ensemble: &[Link]) -> String {
    let hosts: Vec<String> = ensemble.iter().map(|link| link.addr.to_string()).collect();
    format!("zk://{}/chaos?session={}ms", hosts.join(","), SESSION.as_millis())
}

fn start(program: &Path, role: &str, arguments: &impl Serialize) -> Process {
    Process::start_listening(super::command(program, role, arguments))
}

fn spawn_server(
    program: &Path,
    dir: &Path,
    n: usize,
    bind: SocketAddr,
    advertise: SocketAddr,
    ensemble: &[Link],
) -> Arc<Process> {
    let arguments =
        NodeArguments { registry: registry(ensemble), bind, advertise: Some(advertise), ledger: ledger(dir, n) };
    Arc::new(start(program, "node", &arguments))
}

async fn incarnation(process: &Process) -> String {
    let line = process.stdout_line("incarnation", SOON).await;
    match serde_json::from_str(&line) {
        Ok(NodeSays::Incarnation(incarnation)) => incarnation,
        other => panic!("{line}: {other:?}"),
    }
}

fn ledger(dir: &Path, n: usize) -> PathBuf {
    dir.join(format!("ledger-{n}"))
}

fn write_log(path: &Path, text: &str) {
    use std::io::Write;
    let file = std::fs::File::options().create(true).append(true).open(path);
    let written = file.and_then(|mut file| writeln!(file, "{text}"));
    written.expect("the directory of the run is writable");
}
