//! Our commands, freshly built.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde::Deserialize;

use crate::process::Process;

/// The path of the command `name`, such as `rpc-server`, as built from the sources at hand.
///
/// The first use in a process builds all commands of the workspace, which takes a moment when
/// nothing changed.
///
/// # Panics
/// When the build fails, with its messages, or makes no such command.
pub fn path(name: &str) -> &'static Path {
    all().get(name).unwrap_or_else(|| panic!("the workspace has no command {name}, only {:?}", all().keys()))
}

/// The directory that holds the commands.
///
/// # Panics
/// As [`path`] does.
pub fn directory() -> &'static Path {
    path("rpc-server").parent().expect("a file lies in a directory")
}

/// Starts the command `name` with these arguments. The environment's registry does not reach it.
///
/// # Panics
/// As [`path`] does, or when it cannot be started.
pub fn start<A: AsRef<std::ffi::OsStr>>(name: &str, arguments: impl IntoIterator<Item = A>) -> Process {
    let mut command = Command::new(path(name));
    command.args(arguments).env_remove("RPC_REGISTRY");
    Process::start(command)
}

fn all() -> &'static BTreeMap<String, PathBuf> {
    static BUILT: OnceLock<BTreeMap<String, PathBuf>> = OnceLock::new();
    BUILT.get_or_init(build)
}

/// What cargo says about each thing it made; the paths come from here and are never guessed, so
/// that no test runs a binary of yesterday.
#[derive(Deserialize)]
struct Message {
    reason: String,
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

fn build() -> BTreeMap<String, PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let (target_directory, profile) = target_directory_and_profile();
    let output = Command::new(cargo)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        // The whole workspace, as `tests/run` builds it: a part would get other features and build twice.
        .args(["build", "--workspace", "--bins", "--message-format=json-render-diagnostics"])
        .args(["--profile", &profile, "--target-dir"])
        .arg(target_directory)
        .stdin(Stdio::null())
        .output()
        .expect("cargo runs the tests, so it can be started");
    assert!(output.status.success(), "the commands do not build:\n{}", String::from_utf8_lossy(&output.stderr));
    let messages = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Message>();
    let mut found = BTreeMap::new();
    for message in messages {
        let message = message.expect("cargo writes one JSON object a line");
        if let (Some(target), Some(executable)) = (message.target, message.executable)
            && message.reason == "compiler-artifact"
            && target.kind == ["bin"]
        {
            found.insert(target.name, executable);
        }
    }
    found
}

/// Where and how this test itself was built: `TARGET/PROFILE/deps/NAME`.
fn target_directory_and_profile() -> (PathBuf, String) {
    let test = env::current_exe().expect("Linux knows the path of a running program");
    let directory = test.ancestors().nth(2).expect("cargo puts tests into TARGET/PROFILE/deps");
    let profile = match directory.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    (directory.parent().expect("a profile's directory lies in the target directory").to_owned(), profile.to_owned())
}
