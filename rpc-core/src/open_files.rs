//! How many files this process may have open.

/// Open files beside the connections: the registry's, standard ones, those of connections that are
/// being turned away, some to spare.
pub const OTHER_FILES: u64 = 64;

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
