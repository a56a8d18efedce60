//! Processes of ours.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

/// A child has so long to say what is awaited of it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running child. Dropping it kills it; it also dies with this process.
pub(crate) struct Child {
    name: String,
    child: tokio::process::Child,
    lines: Lines<BufReader<ChildStdout>>,
    stdin: ChildStdin,
}

impl Child {
    /// Starts this very program with `arguments`.
    pub(crate) fn start(arguments: &[String]) -> Result<Self> {
        let name = arguments.join(" ");
        let mut command = Command::new(std::env::current_exe().context("where this program lies")?);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let (Some(stdout), Some(stdin)) = (child.stdout.take(), child.stdin.take()) else { bail!("{name}: no pipes") };
        Ok(Self { name, child, lines: BufReader::new(stdout).lines(), stdin })
    }

    /// The next line that it writes.
    pub(crate) async fn line(&mut self, patience: Duration) -> Result<String> {
        let line = tokio::time::timeout(patience + PATIENCE, self.lines.next_line()).await;
        let line = line.with_context(|| format!("{} says nothing", self.name))??;
        line.with_context(|| format!("{} ended early", self.name))
    }

    /// Waits for a line that begins with `word`, and returns the rest.
    pub(crate) async fn says(&mut self, word: &str) -> Result<String> {
        let line = self.line(Duration::ZERO).await?;
        let rest = line.strip_prefix(word).with_context(|| format!("{} says `{line}`, not {word}", self.name))?;
        Ok(rest.trim().to_owned())
    }

    /// Lets it begin.
    pub(crate) async fn go(&mut self) -> Result<()> {
        Ok(self.stdin.write_all(b"go\n").await?)
    }

    /// Sends a signal, unless it has ended.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        // None once it was reaped: then the id may be another's.
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) {
            kill_process(pid, signal)?;
        }
        Ok(())
    }

    /// Kills it and waits until it is gone.
    pub(crate) async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// In a child: to die with the process that started it.
pub(crate) fn die_with_parent() -> Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}
