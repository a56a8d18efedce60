//! What connections cost that do nothing: the server's memory for each, the time to accept them, and what calls
//! take meanwhile.
//!
//! The server has a process of its own, and so have the clients, several, each with an address
//! 127.0.0.x of its own. Every connection says hello and makes one call before it rests. The memory is
//! the slope of the server's RSS between 2,000 connections and all of them; it does not count what the
//! kernel needs for sockets.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use rpc_client::Client;
use rpc_core::protocol::{HELLO, PROTOCOL_VERSION};
use rpc_core::wire::{Frame, FrameBuffer, Incoming, parse, put_request, put_result};
use rpc_core::{LatencyRecorder, LatencySummary};
use rpc_server::{RpcError, Server, ServerConfig};
use rustix::process::{Resource, Rlimit, getrlimit, nice, setrlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Where the slope begins.
const FIRST: u64 = 2000;

/// Files that a process needs besides its connections.
const OTHER_FILES: u64 = 100;

/// Ports for the clients, below those that the kernel hands out. The server's is not among them.
const PORTS: Range<u16> = 2_000..32_000;

/// Connections from one address: as many as it has ports, less those in use.
const PER_ADDRESS: u64 = 25_000;

/// Connections that a process opens at a time.
const OPENING: usize = 64;

const MESSAGE_MAX: usize = 4096;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    options: Options,
}

#[derive(Args)]
struct Options {
    /// Connections at rest; by default what the limit of open files allows.
    #[arg(long)]
    connections: Option<u64>,
    /// Time for which calls are made with no connection at rest, and again with all of them.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

#[derive(Subcommand)]
enum Role {
    /// The server's process; says where it listens.
    #[command(hide = true)]
    Server { connections: usize },
    /// A client's process: opens as many more connections as each line of its input says.
    #[command(hide = true)]
    Hold { server: SocketAddr, source: IpAddr },
}

fn main() -> Outcome<()> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match cli.role {
        Some(Role::Server { connections }) => runtime.block_on(serve(connections)),
        Some(Role::Hold { server, source }) => hold(&runtime, server, source),
        None => measure(&runtime, &cli.options),
    }
}

#[expect(clippy::print_stdout, reason = "the address for the parent")]
async fn serve(connections_max: usize) -> Outcome<()> {
    let config = ServerConfig { connections_max, ..ServerConfig::default() };
    let echo = |(text,): (String,)| async { Ok::<_, RpcError>(text) };
    let server = Server::builder().config(config).method("echo", echo).bind("127.0.0.1:0").await?;
    println!("{}", server.local_addr());
    server.serve(std::future::pending()).await;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the answer to the parent")]
fn hold(runtime: &tokio::runtime::Runtime, server: SocketAddr, source: IpAddr) -> Outcome<()> {
    // Clients are on machines of their own, where they take nothing from the server and the calls.
    nice(19)?;
    let permits = Arc::new(Semaphore::new(OPENING));
    let mut ports = (PORTS.start..PORTS.end).cycle();
    for line in std::io::stdin().lines() {
        let count: u64 = line?.trim().parse()?;
        runtime.block_on(async {
            let mut opening = JoinSet::new();
            for _ in 0..count {
                let permit = permits.clone().acquire_owned().await?;
                let socket = bound(source, &mut ports)?;
                opening.spawn(async move {
                    let opened = open(socket, server).await;
                    drop(permit);
                    opened
                });
            }
            while let Some(opened) = opening.join_next().await {
                opened??;
            }
            Outcome::Ok(())
        })?;
        println!("open");
    }
    Ok(())
}

/// A socket with a port chosen here: when many are in use, the kernel searches for milliseconds.
fn bound(source: IpAddr, ports: &mut impl Iterator<Item = u16>) -> Outcome<TcpSocket> {
    for port in ports.take(PORTS.len()) {
        let socket = TcpSocket::new_v4()?;
        // Of an earlier run it may still wait for late packets.
        socket.set_reuseaddr(true)?;
        match socket.bind((source, port).into()) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            bound => return bound.map(|()| socket).map_err(Into::into),
        }
    }
    Err("no port is free".into())
}

/// Opens a connection, says hello and makes a call on it. A task answers pings on it from then on.
async fn open(socket: TcpSocket, server: SocketAddr) -> Outcome<()> {
    let mut stream = socket.connect(server).await?;
    let mut out = Vec::new();
    let hello = json!({ "version": PROTOCOL_VERSION, "features": ["ping", "goaway"] });
    put_request(&mut out, 1, HELLO, &Default::default(), &hello, MESSAGE_MAX)?;
    put_request(&mut out, 2, "echo", &Default::default(), &("hello",), MESSAGE_MAX)?;
    stream.write_all(&out).await?;
    let mut input = FrameBuffer::new(MESSAGE_MAX);
    let mut answers = 0;
    while answers < 2 {
        match input.next_frame()? {
            Some(Frame::Message(_)) => answers += 1,
            Some(Frame::Oversized { .. }) => return Err("an answer that is too long".into()),
            None => {
                let n = stream.read(input.room()).await?;
                if n == 0 {
                    return Err("the server closed the connection".into());
                }
                input.filled(n);
            }
        }
    }
    tokio::spawn(async move {
        let mut bytes = [0; 256];
        while let Ok(n @ 1..) = stream.read(&mut bytes).await {
            // A ping fits, and nothing else is expected.
            if let Some(Incoming::Request(request)) = bytes[..n].get(4..).map(parse)
                && let Some(id) = &request.id
            {
                let mut out = Vec::new();
                put_result(&mut out, id, None, &(), MESSAGE_MAX).expect("`null` fits");
                if stream.write_all(&out).await.is_err() {
                    return;
                }
            }
        }
    });
    Ok(())
}

/// A child that ends with this value.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(arguments: &[String]) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().expect("it was asked for");
        let output = BufReader::new(child.stdout.take().expect("it was asked for"));
        Ok(Self { child, input, output })
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err("a process ended early".into()),
            _ => Ok(line.trim().to_owned()),
        }
    }

    /// Resident memory in bytes.
    fn rss(&self) -> Outcome<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        let kib: u64 = line.split_whitespace().next().ok_or("no VmRSS")?.parse()?;
        Ok(kib * 1024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Raises the limit of open files as far as it goes, for this process and its children.
fn raise_limit() -> Outcome<u64> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

#[expect(clippy::print_stdout, reason = "the results")]
fn measure(runtime: &tokio::runtime::Runtime, options: &Options) -> Outcome<()> {
    let limit = raise_limit()?;
    let most = limit.saturating_sub(OTHER_FILES);
    let connections = options.connections.unwrap_or(most.min(1_000_000));
    if connections > most {
        return Err(format!(
            "{connections} connections need {} open files in the server's process, and the hard limit is {limit} \
             (ulimit -Hn). Raise it, or ask for at most {most} connections.",
            connections + OTHER_FILES
        )
        .into());
    }
    if connections <= FIRST {
        return Err(format!("a slope needs more than {FIRST} connections").into());
    }
    let mut server = Process::start(&["server".into(), (connections + OTHER_FILES).to_string()])?;
    let addr = server.line()?;
    // A few more processes than addresses need, so that opening is not what takes the time.
    let count = connections.div_ceil(most.min(PER_ADDRESS)).max(4);
    let source = |n: u64| Ipv4Addr::new(127, 0, (1 + n / 250) as u8, (1 + n % 250) as u8);
    let mut clients = (0..count)
        .map(|n| Process::start(&["hold".into(), addr.clone(), source(n).to_string()]))
        .collect::<Outcome<Vec<_>>>()?;
    let client = runtime.block_on(Client::connect(&format!("static:{addr}")))?;
    runtime.block_on(client.ready(Duration::from_secs(5)));
    let length = Duration::from_secs_f64(options.seconds);
    let quiet = runtime.block_on(async { calls(&client, sleep(length)).await })?;
    open_all(&mut clients, FIRST)?;
    let before = settled(&server)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let caller = client.clone();
    let calling = runtime.spawn(async move { calls(&caller, async { drop(stopped.await) }).await });
    let started = Instant::now();
    open_all(&mut clients, connections - FIRST)?;
    let accepting = started.elapsed();
    drop(stop);
    let storm = runtime.block_on(calling)??;
    let after = settled(&server)?;
    let rest = runtime.block_on(async { calls(&client, sleep(length)).await })?;
    let each = (after as f64 - before as f64) / (connections - FIRST) as f64;
    println!("{connections} connections from {count} processes");
    println!(
        "server RSS      {FIRST}: {} KiB, {connections}: {} KiB, per connection: {each:.0} B",
        before >> 10,
        after >> 10
    );
    println!(
        "accepted        {} in {:.2} s, {:.0} a second",
        connections - FIRST,
        accepting.as_secs_f64(),
        (connections - FIRST) as f64 / accepting.as_secs_f64()
    );
    for (when, latencies) in [("none at rest", quiet), ("accepting", storm), ("all at rest", rest)] {
        println!("calls, {when:12}  p50 {} us  p99 {} us", latencies.p50, latencies.p99);
    }
    Ok(())
}

/// Opens `count` connections, shared among the processes, and waits for all of them.
fn open_all(clients: &mut [Process], count: u64) -> Outcome<()> {
    let processes = clients.len() as u64;
    for (n, client) in clients.iter_mut().enumerate() {
        let share = count / processes + u64::from((n as u64) < count % processes);
        writeln!(client.input, "{share}")?;
    }
    for client in clients {
        client.line()?;
    }
    Ok(())
}

/// The server's memory once it no longer changes: buffers are given back after some seconds.
fn settled(server: &Process) -> Outcome<u64> {
    let mut last = (0, Instant::now());
    let start = Instant::now();
    loop {
        let rss = server.rss()?;
        if rss.abs_diff(last.0) > rss / 500 {
            last = (rss, Instant::now());
        }
        let (steady, waited) = (last.1.elapsed(), start.elapsed());
        if (steady > Duration::from_secs(3) && waited > Duration::from_secs(6)) || waited > Duration::from_secs(60) {
            return Ok(rss);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Makes 500 calls a second until `end`.
async fn calls(client: &Client, end: impl Future<Output = ()>) -> Outcome<LatencySummary> {
    let mut latencies = LatencyRecorder::new();
    let mut ticks = interval(Duration::from_millis(2));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(end);
    loop {
        tokio::select! {
            () = &mut end => return Ok(latencies.summary()),
            _ = ticks.tick() => {
                let started = Instant::now();
                client.call::<_, String>("echo", &("hello",)).await?;
                latencies.record(started.elapsed());
            }
        }
    }
}
