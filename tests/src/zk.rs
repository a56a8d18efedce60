//! A real ZooKeeper for tests: one server or an ensemble of three, on free ports of the loopback
//! address, in memory, gone with the test process however that ends.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::certificates::{Authority, Issued};

/// Where Debian and Ubuntu put the jars. The manifest of the first names its dependencies, but no
/// logger, and not all that TLS needs.
const JARS: [&str; 5] = [
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/slf4j-simple.jar",
    "/usr/share/java/netty-codec.jar",
    "/usr/share/java/netty-resolver.jar",
    "/usr/share/java/netty-transport-native-unix-common.jar",
];

/// The session timeout that tests ask for: eight ticks, and more than twice `syncLimit`, so that an
/// ensemble with a hung leader elects another before all sessions expire.
pub const SESSION: Duration = Duration::from_secs(4);

/// Ticks of the servers: they expire sessions in steps of this.
const TICK: Duration = Duration::from_millis(500);

/// Starting takes 0.3 s, and up to some seconds on a machine that is busy with other tests.
const START_MAX: Duration = Duration::from_secs(60);

/// Of each server: for clients, for its peers, for elections, and for clients with TLS.
const PORTS: usize = 4;

/// Starts with other ports, when one was taken between choosing and using it.
const STARTS_MAX: usize = 5;

/// One or three ZooKeeper servers. Dropping ends them and deletes their data.
pub struct ZooKeeper {
    dir: PathBuf,
    servers: Vec<Server>,
    /// Deletes `dir` once its standard input ends, which a killed test process cannot prevent.
    janitor: Child,
}

/// TLS of the servers, beside the plaintext port that the tests look at them through.
#[derive(Clone, Copy)]
pub struct Tls<'a> {
    /// Issues their certificate, for 127.0.0.1. Clients are believed when it has issued theirs.
    pub authority: &'a Authority,
    /// Whether a client needs a certificate, as it does unless one configures ZooKeeper otherwise.
    pub wants_certificate: bool,
}

struct Server {
    dir: PathBuf,
    port: u16,
    tls_port: u16,
    process: Mutex<Option<Child>>,
}

impl ZooKeeper {
    /// One server.
    ///
    /// # Panics
    /// Without Java or ZooKeeper, with the way out.
    pub async fn standalone() -> Self {
        Self::launch(1, None).await
    }

    /// Three servers.
    ///
    /// # Panics
    /// Without Java or ZooKeeper, with the way out.
    pub async fn ensemble() -> Self {
        Self::launch(3, None).await
    }

    /// `count` servers, with TLS as well.
    ///
    /// # Panics
    /// Without Java or ZooKeeper, with the way out.
    pub async fn with_tls(count: usize, tls: Tls<'_>) -> Self {
        Self::launch(count, Some(tls)).await
    }

    async fn launch(count: usize, tls: Option<Tls<'_>>) -> Self {
        require_java();
        for _ in 0..STARTS_MAX {
            let this = Self::prepare(count, tls);
            for server in &this.servers {
                server.spawn();
            }
            let mut ready = true;
            for server in &this.servers {
                ready &= server.ready().await;
            }
            if ready {
                return this;
            }
        }
        panic!("ZooKeeper found its ports taken {STARTS_MAX} times");
    }

    fn prepare(count: usize, tls: Option<Tls<'_>>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let dir = parent.join(format!("rpc-tests-zk-{}-{number}", std::process::id()));
        let ports = free_ports(count * PORTS);
        let mut peers = String::new();
        if count > 1 {
            for (n, ports) in ports.chunks(PORTS).enumerate() {
                let _ = writeln!(peers, "server.{}=127.0.0.1:{}:{}", n + 1, ports[1], ports[2]);
            }
        }
        let servers = ports.chunks(PORTS).enumerate().map(|(n, ports)| {
            let dir = dir.join(format!("{}", n + 1));
            std::fs::create_dir_all(dir.join("data")).expect("the directory for tests is writable");
            let secure = tls.map(|tls| tls.config(&dir, ports[3])).unwrap_or_default();
            let config = config(&dir, ports[0], &peers) + &secure;
            std::fs::write(dir.join("zoo.cfg"), config).expect("it is writable");
            write_id(&dir, n + 1);
            Server { dir, port: ports[0], tls_port: ports[3], process: Mutex::new(None) }
        });
        let servers = servers.collect();
        Self { janitor: janitor(&dir), dir, servers }
    }

    /// What a client connects to: `host:port,host:port`.
    pub fn servers(&self) -> String {
        let servers: Vec<_> = self.servers.iter().map(|s| format!("127.0.0.1:{}", s.port)).collect();
        servers.join(",")
    }

    /// Where each server listens for clients.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|s| (Ipv4Addr::LOCALHOST, s.port).into()).collect()
    }

    /// How many servers there are.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.servers.len()
    }

    /// The URL of a namespace, with the session timeout for tests.
    pub fn url(&self, namespace: &str) -> String {
        format!("zk://{}/{namespace}?session={}ms", self.servers(), SESSION.as_millis())
    }

    /// What a client with TLS connects to, if the servers have it.
    pub fn tls_servers(&self) -> String {
        let servers: Vec<_> = self.servers.iter().map(|s| format!("127.0.0.1:{}", s.tls_port)).collect();
        servers.join(",")
    }

    /// The URL of a namespace through TLS, with the authority to believe and the session timeout for tests.
    pub fn tls_url(&self, namespace: &str, authority: &Authority, own: Option<&Issued>) -> String {
        let own = own.map(|own| format!("&cert_file={}&key_file={}", own.cert.display(), own.key.display()));
        format!(
            "zk+tls://{}/{namespace}?session={}ms&ca_file={}{}",
            self.tls_servers(),
            SESSION.as_millis(),
            authority.file().display(),
            own.unwrap_or_default()
        )
    }

    /// Ends server `n` (counted from 0) as a crash would.
    pub fn kill(&self, n: usize) {
        self.servers[n].kill();
    }

    /// Starts server `n` again and waits until it serves.
    pub async fn start(&self, n: usize) {
        let end = Instant::now() + START_MAX;
        loop {
            self.servers[n].spawn();
            if self.servers[n].ready().await {
                return;
            }
            // The port was taken for a moment by a connection from it.
            assert!(Instant::now() < end, "the port {} stays taken", self.servers[n].port);
            sleep(TICK).await;
        }
    }

    /// Suspends server `n`: the kernel still accepts connections for it, nobody answers.
    pub fn pause(&self, n: usize) {
        self.servers[n].signal("STOP");
    }

    /// Ends the suspension of server `n`.
    pub fn resume(&self, n: usize) {
        self.servers[n].signal("CONT");
    }

    /// Deletes the data of server `n`, which must not run.
    pub fn wipe(&self, n: usize) {
        let server = &self.servers[n];
        assert!(server.process.lock().is_none(), "server {n} still runs");
        std::fs::remove_dir_all(server.dir.join("data")).expect("the data can be deleted");
        std::fs::create_dir_all(server.dir.join("data")).expect("the directory for tests is writable");
        write_id(&server.dir, n + 1);
    }

    /// Gives server `n` a certificate of another authority, for its next start.
    pub fn certify(&self, n: usize, authority: &Authority) {
        write_store(&self.servers[n].dir, authority);
    }

    /// The answer of server `n` to a four-letter word; empty if there is none.
    pub async fn ask(&self, n: usize, word: &str) -> String {
        self.servers[n].ask(word).await
    }

    /// The answer of server `n` to `mntr`, by name.
    pub async fn monitor(&self, n: usize) -> BTreeMap<String, String> {
        let text = self.ask(n, "mntr").await;
        text.lines().filter_map(|line| line.split_once('\t')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    /// Transactions since the data directory was new: every write, failed ones included, and every
    /// session that began or ended.
    pub async fn transactions(&self, n: usize) -> u64 {
        let text = self.ask(n, "srvr").await;
        let zxid = text.lines().find_map(|line| line.strip_prefix("Zxid: 0x")).expect("the server answers");
        // The upper half counts elections.
        u64::from_str_radix(zxid, 16).expect("it is a number") & 0xffff_ffff
    }

    /// Sessions that server `n` knows of.
    pub async fn sessions(&self, n: usize) -> usize {
        let count = self.monitor(n).await.remove("zk_global_sessions");
        count.and_then(|count| count.parse().ok()).expect("the server answers")
    }

    /// The server that leads the ensemble.
    pub async fn leader(&self) -> usize {
        for n in 0..self.servers.len() {
            if self.ask(n, "srvr").await.contains("Mode: leader") {
                return n;
            }
        }
        panic!("no server leads");
    }
}

impl Tls<'_> {
    /// Lines for a server's configuration; writes what they name into `dir`.
    fn config(&self, dir: &Path, port: u16) -> String {
        let store = write_store(dir, self.authority);
        format!(
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\nsecureClientPort={port}\n\
             secureClientPortAddress=127.0.0.1\nssl.keyStore.type=PEM\nssl.keyStore.location={}\n\
             ssl.trustStore.type=PEM\nssl.trustStore.location={}\nssl.clientAuth={}\n",
            store.display(),
            self.authority.file().display(),
            if self.wants_certificate { "need" } else { "none" }
        )
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        for server in &self.servers {
            server.kill();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
        drop(self.janitor.stdin.take());
        let _ = self.janitor.wait();
    }
}

impl Server {
    fn spawn(&self) {
        let log = std::fs::File::options().create(true).append(true).open(self.log()).expect("it is writable");
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--", "java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .args(["-Djava.net.preferIPv4Stack=true", "-Dorg.slf4j.simpleLogger.showDateTime=true", "-cp"])
            .arg(JARS.join(":"))
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(self.dir.join("zoo.cfg"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log);
        *self.process.lock() = Some(spawn(command));
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Waits until it serves; `false` if a port was taken.
    async fn ready(&self) -> bool {
        let end = Instant::now() + START_MAX;
        // `ruok` is answered before it can serve.
        while !self.ask("srvr").await.contains("Mode: ") {
            let ended = match &mut *self.process.lock() {
                Some(process) => process.try_wait().expect("it is a child").is_some(),
                None => true,
            };
            let log = std::fs::read_to_string(self.log()).unwrap_or_default();
            if ended || log.contains("Address already in use") {
                self.kill();
                let _ = std::fs::remove_file(self.log());
                assert!(log.contains("Address already in use"), "ZooKeeper ended while starting:\n{log}");
                return false;
            }
            assert!(Instant::now() < end, "ZooKeeper does not serve after {START_MAX:?}:\n{log}");
            sleep(Duration::from_millis(20)).await;
        }
        true
    }

    async fn ask(&self, word: &str) -> String {
        let mut answer = String::new();
        let asked = async {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
            stream.write_all(word.as_bytes()).await?;
            stream.read_to_string(&mut answer).await
        };
        let _ = timeout(Duration::from_secs(2), asked).await;
        answer
    }

    fn signal(&self, name: &str) {
        let process = self.process.lock();
        let pid = process.as_ref().expect("the server runs").id();
        let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
        assert!(status.is_ok_and(|s| s.success()), "kill -{name} {pid} failed");
    }

    fn kill(&self) {
        if let Some(mut process) = self.process.lock().take() {
            // A stopped process is killed as well.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn require_java() {
    let java = Command::new("java").arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let missing = JARS.iter().find(|jar| !Path::new(jar).exists());
    assert!(
        java.is_ok_and(|status| status.success()) && missing.is_none(),
        "this test starts a real ZooKeeper: it needs the command `java` and {}; on Debian and Ubuntu: \
         apt-get install --no-install-recommends zookeeper libslf4j-java",
        JARS.join(", ")
    );
}

fn config(dir: &Path, port: u16, peers: &str) -> String {
    format!(
        "tickTime={}\ninitLimit=20\nsyncLimit=3\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\n\
         maxClientCnxns=0\nminSessionTimeout=1000\nmaxSessionTimeout=60000\nadmin.enableServer=false\n\
         4lw.commands.whitelist=*\nforceSync=no\n{peers}",
        TICK.as_millis(),
        dir.join("data").display()
    )
}

/// A new certificate for a server, and its key, where its configuration says.
fn write_store(dir: &Path, authority: &Authority) -> PathBuf {
    let identity = authority.issue("zookeeper", &["127.0.0.1"]);
    let read = |path: &Path| std::fs::read_to_string(path).expect("it was written");
    let store = dir.join("store.pem");
    std::fs::write(&store, read(&identity.key) + &read(&identity.cert)).expect("the directory for tests is writable");
    store
}

fn write_id(dir: &Path, id: usize) {
    std::fs::write(dir.join("data/myid"), id.to_string()).expect("the directory for tests is writable");
}

/// Ports that were free a moment ago.
fn free_ports(count: usize) -> Vec<u16> {
    let bound: Vec<_> = (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port")).collect();
    bound.iter().map(|listener| listener.local_addr().expect("it is bound").port()).collect()
}

/// A process that deletes `dir` when this one ends.
fn janitor(dir: &Path) -> Child {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new("sh");
    // Servers that die with this process may still write for a moment.
    command.args(["-c", "cat >/dev/null; [ -e \"$0\" ] || exit 0; sleep 1; rm -rf -- \"$0\""]).arg(dir);
    // A group of its own, so that a signal to the tests does not reach it.
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    spawn(command)
}

/// Starts a process from a thread that lives as long as this process: the kernel sends the signal
/// of `--pdeathsig` when the *thread* that started the process ends.
fn spawn(command: Command) -> Child {
    type Job = (Command, mpsc::Sender<std::io::Result<Child>>);
    static JOBS: OnceLock<Mutex<mpsc::SyncSender<Job>>> = OnceLock::new();
    let jobs = JOBS.get_or_init(|| {
        let (jobs, todo) = mpsc::sync_channel::<Job>(1);
        std::thread::spawn(move || {
            for (mut command, done) in todo {
                let _ = done.send(command.spawn());
            }
        });
        Mutex::new(jobs)
    });
    let (done, spawned) = mpsc::channel();
    jobs.lock().send((command, done)).expect("the thread lives as long as the process");
    spawned.recv().expect("the thread answers").expect("the process starts")
}
