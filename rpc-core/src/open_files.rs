//! How many files this process may have open.

use std::fs::File;
use std::io;

/// Open files beside the connections: the registry's, standard ones, those of connections that are
/// being turned away, some to spare.
pub const OTHER_FILES: u64 = 64;

/// Files that a command needs before it has a connection with anybody: the runtime's, those of
/// signals, of a registry, a listener, and some to spare.
const STARTING_FILES: usize = 16;

/// What the system says when this process may open no more: `EMFILE`, the same number on all Unix.
const TOO_MANY_OPEN_FILES: i32 = 24;

/// Files that are enough for any command with a few nodes.
const ENOUGH: u64 = 1024;

/// Whether `error` says that this process may open no more files. Nobody else is to blame then.
pub fn are_used_up(error: &io::Error) -> bool {
    error.raw_os_error() == Some(TOO_MANY_OPEN_FILES)
}

/// Looks whether this process may open the files that any command needs. A command without them
/// would fail anywhere, and say of others what is its own trouble.
///
/// # Errors
/// That there are too few, in a sentence.
pub fn check() -> Result<(), String> {
    let opened: io::Result<Vec<File>> = (0..STARTING_FILES).map(|_| File::open("/dev/null")).collect();
    // Let go of here, so that the limit can be read.
    let error = opened.map(drop).err().filter(are_used_up);
    error.map_or(Ok(()), |_| {
        let allowed = OpenFiles::of_this_process().map(|limit| format!(": {}", limit.soft)).unwrap_or_default();
        Err(format!("too few open files are allowed to this process{allowed}"))
    })
}

/// The command that lets this process and those started with it open enough files.
pub fn mend() -> String {
    OpenFiles::of_this_process().map_or_else(|| format!("ulimit -n {ENOUGH}"), |limit| limit.raise(ENOUGH))
}

/// The limit of open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    /// What holds now.
    pub soft: u64,
    /// How far the process may raise that.
    pub hard: u64,
}

impl OpenFiles {
    /// The limit of this process; none where the system does not tell it in a file, as Linux does.
    pub fn of_this_process() -> Option<Self> {
        Self::read(&std::fs::read_to_string("/proc/self/limits").ok()?)
    }

    fn read(limits: &str) -> Option<Self> {
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
        let mut values = line.split_whitespace().map(|value| value.parse().unwrap_or(u64::MAX));
        Some(Self { soft: values.next()?, hard: values.next()? })
    }

    /// The command that lets processes open `wanted` files.
    pub fn raise(self, wanted: u64) -> String {
        let hard = self.hard;
        match wanted <= hard {
            true => format!("ulimit -n {wanted}"),
            false => format!(
                "ulimit -n {wanted}   # as root, or by LimitNOFILE= of its systemd unit: the hard limit is {hard}"
            ),
        }
    }

    /// The connections that a server has files for. One at least: where there are fewer files than
    /// it needs besides, it may have to do without some of those.
    pub fn connections(self) -> u64 {
        self.soft.saturating_sub(OTHER_FILES).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_read_and_leaves_files_for_other_things() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max open files            1024                 524288               files\n";
        let limit = OpenFiles::read(text).unwrap();
        assert_eq!(limit, OpenFiles { soft: 1024, hard: 524_288 });
        assert_eq!(limit.connections(), 960);
        assert_eq!(OpenFiles { soft: 20, ..limit }.connections(), 1);
        let none = OpenFiles::read("Max open files   unlimited  unlimited  files");
        assert_eq!(none, Some(OpenFiles { soft: u64::MAX, hard: u64::MAX }));
        assert_eq!(OpenFiles::read("nothing of the kind"), None);
    }
}
