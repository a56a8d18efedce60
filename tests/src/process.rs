//! Child processes whose output is read line by line and which never outlive their test.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use tokio::sync::watch;

/// Time for things that take a moment; generous, since the machine may be busy.
pub const SOON: Duration = Duration::from_secs(20);

/// A running child, the leader of a process group of its own. Dropping it kills the whole group.
///
/// The waiting functions need a runtime whose clock is not paused.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    seen: watch::Receiver<Seen>,
}

/// Everything that is known of the child so far.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Lines of its standard output, without the line ends.
    pub stdout: Vec<String>,
    /// Lines of its standard error.
    pub stderr: Vec<String>,
    /// How it ended, once it did.
    pub exit: Option<Exit>,
    /// How many of its two outputs are still open, here or in what it started.
    open: usize,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// Killed by this signal.
    Signal(i32),
}

impl Process {
    /// Starts `command` without input.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn start(command: Command) -> Self {
        Self::start_with(command, Stdio::null())
    }

    /// Starts `command` with an input, for [`Process::say`]. It ends when this process does.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn start_listening(command: Command) -> Self {
        Self::start_with(command, Stdio::piped())
    }

    fn start_with(mut command: Command, input: Stdio) -> Self {
        let name = format!("{command:?}");
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{name} does not start: {e}"));
        let (publish, seen) = watch::channel(Seen { open: 2, ..Seen::default() });
        let publish = Arc::new(publish);
        let (stdout, stderr) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        read_lines(stdout, Arc::clone(&publish), |seen| &mut seen.stdout);
        read_lines(stderr, Arc::clone(&publish), |seen| &mut seen.stderr);
        let process = Self { name, child, seen };
        watch_exit(process.pid(), publish);
        process
    }

    /// Its process id, which is also that of its group.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// All that was seen of it so far.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// What `look` finds in all that was seen so far.
    pub fn look<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.seen.borrow())
    }

    /// Writes a line to its input; nothing happens when it has ended.
    ///
    /// # Panics
    /// When it was started without input.
    pub fn say(&self, line: &str) {
        let mut input = self.child.stdin.as_ref().expect("it was started with an input");
        let _ = input.write_all(format!("{line}\n").as_bytes());
    }

    /// Sends `signal` to the process alone; nothing happens when it has ended.
    pub fn signal(&self, signal: Signal) {
        // The child is not reaped before it is dropped, so the id cannot belong to another process.
        let _ = kill_process(self.pid(), signal);
    }

    /// Asks it to stop (SIGTERM).
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Kills it (SIGKILL).
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Makes it hang (SIGSTOP) until [`Process::resume`].
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits until `find` finds something in what the child has shown.
    ///
    /// # Panics
    /// When nothing is found within the time, or ever, because the child ended. Says all it wrote.
    pub async fn wait_for<T>(&self, what: &str, within: Duration, mut find: impl FnMut(&Seen) -> Option<T>) -> T {
        let mut seen = self.seen.clone();
        let mut found = None;
        let searched = seen.wait_for(|seen| {
            found = find(seen);
            found.is_some() || (seen.exit.is_some() && seen.open == 0)
        });
        let in_time = tokio::time::timeout(within, searched).await.is_ok();
        found.unwrap_or_else(|| {
            let why = if in_time { "it ended" } else { "in time" };
            let Seen { stdout, stderr, exit, .. } = self.seen();
            panic!(
                "{}: no {what}: {why} ({within:?}, exit {exit:?})\nstdout:\n{}\nstderr:\n{}",
                self.name,
                stdout.join("\n"),
                stderr.join("\n")
            )
        })
    }

    /// Waits for a line with `text` on standard output and returns it.
    ///
    /// # Panics
    /// As [`Process::wait_for`] does.
    pub async fn stdout_line(&self, text: &str, within: Duration) -> String {
        self.wait_for(text, within, |seen| seen.stdout.iter().find(|line| line.contains(text)).cloned()).await
    }

    /// Waits for a line with `text` on standard error and returns it.
    ///
    /// # Panics
    /// As [`Process::wait_for`] does.
    pub async fn stderr_line(&self, text: &str, within: Duration) -> String {
        self.wait_for(text, within, |seen| seen.stderr.iter().find(|line| line.contains(text)).cloned()).await
    }

    /// Waits until it has ended and everything it wrote was read.
    ///
    /// # Panics
    /// When it still runs after the time, or left something behind that holds its output open.
    pub async fn finished(&self, within: Duration) -> Seen {
        self.wait_for("end", within, |seen| (seen.exit.is_some() && seen.open == 0).then(|| seen.clone())).await
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.wait();
    }
}

fn read_lines(
    from: impl Read + Send + 'static,
    publish: Arc<watch::Sender<Seen>>,
    lines: fn(&mut Seen) -> &mut Vec<String>,
) {
    thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n') {
            let Ok(line) = line else { break };
            let line = String::from_utf8_lossy(&line).into_owned();
            publish.send_modify(|seen| lines(seen).push(line));
        }
        publish.send_modify(|seen| seen.open -= 1);
    });
}

fn watch_exit(pid: Pid, publish: Arc<watch::Sender<Seen>>) {
    thread::spawn(move || {
        // NOWAIT leaves the process a zombie: its id stays taken until the owner reaps it.
        let ended = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        // An error means that the owner was dropped and has reaped it: nobody waits any more.
        let Ok(Some(status)) = ended else { return };
        let exit = match status.exit_status() {
            Some(code) => Exit::Code(code),
            None => Exit::Signal(status.terminating_signal().unwrap_or_default()),
        };
        publish.send_modify(|seen| seen.exit = Some(exit));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Process {
        let mut command = Command::new("bash");
        command.args(["-c", script]);
        Process::start(command)
    }

    #[tokio::test]
    async fn lines_and_exit_code_are_seen() {
        let process = shell("echo one; echo two >&2; printf three; exit 7");
        assert_eq!(process.stdout_line("thr", SOON).await, "three");
        assert_eq!(process.stderr_line("two", SOON).await, "two");
        let seen = process.finished(SOON).await;
        assert_eq!((seen.stdout, seen.exit), (vec!["one".to_owned(), "three".to_owned()], Some(Exit::Code(7))));
    }

    #[tokio::test]
    async fn signals_reach_it_and_dropping_kills_the_group() {
        let process = shell("trap 'echo asked' TERM; sleep 600 & echo $!; while :; do wait; done");
        let grandchild = process.wait_for("process id", SOON, |seen| seen.stdout.first().cloned()).await;
        process.terminate();
        process.stdout_line("asked", SOON).await;
        process.kill();
        let exit = process.wait_for("exit", SOON, |seen| seen.exit).await;
        assert_eq!(exit, Exit::Signal(9));
        assert!(alive(&grandchild), "the signal is for the process alone");
        drop(process);
        let gone = async {
            while alive(&grandchild) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SOON, gone).await.expect("the whole group was killed");
    }

    /// Whether the process exists and is no zombie.
    fn alive(id: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z"))
    }

    #[tokio::test]
    #[should_panic(expected = "last words")]
    async fn a_child_that_ends_too_early_is_reported_with_its_output() {
        shell("echo last words >&2").stdout_line("never", SOON).await;
    }
}
