//! Runs the commands that a document shows, so that they stay true. CONTRIBUTING.md states the
//! rules for their authors.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::binaries;
use crate::process::{Exit, Process, SOON};

/// What the commands of one section may take together.
const SECTION_TIME_MAX: Duration = Duration::from_secs(90);

/// The commands under one `##` heading, as one script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// The text of the heading.
    pub heading: String,
    /// Its commands, one logical line each.
    pub commands: Vec<String>,
}

/// The sections of a Markdown text that have commands.
pub fn sections(markdown: &str) -> Vec<Section> {
    let mut found = vec![Section::default()];
    let mut lines = markdown.lines();
    while let Some(line) = lines.next() {
        if let Some(heading) = line.strip_prefix("## ") {
            found.push(Section { heading: heading.to_owned(), ..Section::default() });
        } else if let Some(language) = line.strip_prefix("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let section = found.last_mut().expect("there is one before the first heading");
            section.commands.extend(commands(language, &block));
        }
    }
    found.retain(|section| !section.commands.is_empty());
    found
}

/// The commands of a block: all lines of `sh`, the lines with a prompt of `console`.
fn commands(language: &str, block: &[&str]) -> Vec<String> {
    let typed: Vec<&str> = match language {
        "sh" => block.to_vec(),
        "console" => block.iter().filter_map(|line| line.strip_prefix("$ ").or(line.strip_prefix("> "))).collect(),
        _ => return Vec::new(),
    };
    let mut joined: Vec<String> = Vec::new();
    for line in typed {
        match joined.last_mut() {
            Some(last) if last.ends_with('\\') => *last = format!("{last}\n{line}"),
            _ => joined.push(line.to_owned()),
        }
    }
    joined
}

/// Runs the section's commands, and returns what they printed, with our freshly built ones first on `PATH`, in an empty directory,
/// with a private default registry. Everything that was started is killed in the end.
///
/// # Errors
/// Says what the script printed if its exit code is not 0 or it takes too long.
pub async fn run(section: &Section) -> Result<String, String> {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let (script, log) = (directory.path().join("script"), directory.path().join("log"));
    std::fs::write(&script, script_text(&section.commands)).expect("its files can be written");
    let process = Process::start(bash(&script, &log, directory.path()));
    let ended =
        tokio::time::timeout(SECTION_TIME_MAX, process.wait_for("end", SECTION_TIME_MAX + SOON, |seen| seen.exit));
    let ended = ended.await;
    drop(process);
    let log = std::fs::read_to_string(log).unwrap_or_default();
    if matches!(ended, Ok(Exit::Code(0))) {
        return Ok(log);
    }
    Err(format!("section \"{}\": {ended:?} (at most {SECTION_TIME_MAX:?})\n{log}", section.heading))
}

fn bash(script: &Path, log: &Path, directory: &Path) -> Command {
    let work = directory.join("work");
    std::fs::create_dir(&work).expect("the temporary directory is ours");
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(binaries::directory().to_owned()).chain(std::env::split_paths(&inherited));
    let mut command = Command::new("bash");
    command
        .args(["-c", "exec bash -x \"$0\" >\"$LOG\" 2>&1"])
        .arg(script)
        .current_dir(work)
        .env("LOG", log)
        .env("PATH", std::env::join_paths(path).expect("no directory of PATH has a colon"))
        .env("XDG_RUNTIME_DIR", directory)
        .env("NO_COLOR", "1")
        .env_remove("RPC_REGISTRY");
    command
}

/// The commands with a wait after each line that puts a server into the background: where a reader
/// would look at what it prints, the script waits for `serving …`.
fn script_text(commands: &[String]) -> String {
    let mut script = String::from(
        "set -e\n\
         { SERVERS=0; } 2>/dev/null\n\
         wait_until_it_serves() {\n\
           { set +x; } 2>/dev/null\n\
           SERVERS=$((SERVERS + 1))\n\
           for _ in $(seq 1200); do\n\
             if [ \"$(grep -c '^serving ' \"$LOG\")\" -ge \"$SERVERS\" ]; then set -x; return; fi\n\
             sleep 0.05\n\
           done\n\
           echo 'the server does not serve'\n\
           return 1\n\
         }\n",
    );
    for command in commands {
        writeln!(script, "{command}").expect("strings grow");
        // What may follow the `&` is the variable that gets its process id.
        if command.starts_with("rpc-server ") && (command.ends_with('&') || command.ends_with("=$!")) {
            script.push_str("wait_until_it_serves\n");
        }
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "\
# Title
```sh
echo top
```
## One
```sh
printf '%s\\n' \\
  joined
```
Text.
```console
$ false ||
> true
output that is not a command
```
```sh no-test
exit 9
```
```rust
fn main() {}
```
## Two
Nothing to run.
## Three
```sh
sleep 600 &
touch \"$XDG_RUNTIME_DIR/seen\"
false
```
";

    #[test]
    fn blocks_of_a_heading_are_one_script() {
        let found = sections(DOCUMENT);
        let headings: Vec<&str> = found.iter().map(|section| section.heading.as_str()).collect();
        assert_eq!(headings, ["", "One", "Three"]);
        assert_eq!(found[1].commands, ["printf '%s\\n' \\\n  joined", "false ||", "true"]);
    }

    #[tokio::test]
    async fn the_exit_code_counts_and_background_processes_hold_nothing_up() {
        let found = sections(DOCUMENT);
        run(&found[1]).await.expect("its commands succeed");
        let error = run(&found[2]).await.expect_err("its last command fails");
        assert!(error.contains("section \"Three\"") && error.contains("+ false"), "{error}");
    }
}
