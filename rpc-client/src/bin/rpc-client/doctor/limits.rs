//! Limits of this machine.

use super::finding::{Finding, Level};

/// Open files beside the connections: the registry's, standard ones, some to spare.
const OTHER_FILES: u64 = 64;

/// Connections that a server takes by default.
const SERVER_CONNECTIONS: u64 = 65_536;

/// Whether a client can connect with all nodes, and a server take all clients.
pub(super) fn open_files(nodes: usize) -> Vec<Finding> {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    // Other systems have no such file; there is nothing to be said about them.
    read(&limits).map(|(soft, hard)| judge(soft, hard, nodes as u64)).into_iter().collect()
}

/// The soft and the hard limit of open files.
fn read(limits: &str) -> Option<(u64, u64)> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let mut values = line.split_whitespace().map(|value| value.parse().unwrap_or(u64::MAX));
    Some((values.next()?, values.next()?))
}

fn judge(soft: u64, hard: u64, nodes: u64) -> Finding {
    let about = "limits";
    let raise = |wanted: u64| match wanted <= hard {
        true => format!("ulimit -n {wanted}"),
        false => {
            format!("ulimit -n {wanted}   # as root, or by LimitNOFILE= of its systemd unit: the hard limit is {hard}")
        }
    };
    if nodes + OTHER_FILES > soft {
        let fact = format!("{soft} open files are allowed here, and {nodes} nodes are listed");
        let said = [fact, "a client cannot connect with all of them".into(), raise(nodes + OTHER_FILES)];
        return Finding::bad(Level::Problem, "open_files", about, said);
    }
    if soft < SERVER_CONNECTIONS + OTHER_FILES {
        let fact = format!("{soft} open files are allowed here");
        let consequence = format!(
            "enough for a client of {nodes} nodes; a server started here takes at most {} connections",
            soft.saturating_sub(OTHER_FILES)
        );
        return Finding::bad(
            Level::Warning,
            "open_files",
            about,
            [fact, consequence, raise(SERVER_CONNECTIONS + OTHER_FILES)],
        );
    }
    Finding::ok("open_files", about, format!("{soft} open files are allowed here, enough for clients and servers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_compared() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max open files            1024                 524288               files\n";
        assert_eq!(read(text), Some((1024, 524_288)));
        assert_eq!(read("Max open files   unlimited  unlimited  files"), Some((u64::MAX, u64::MAX)));
        assert_eq!(read("nothing of the kind"), None);
        assert_eq!(judge(1024, 524_288, 3).level, Level::Warning);
        let few = judge(1024, 4096, 2000);
        assert!(few.level == Level::Problem && few.to_string().ends_with("-> ulimit -n 2064"), "{few}");
        assert!(judge(1024, 1024, 3).to_string().contains("as root"));
        assert_eq!(judge(1_000_000, 1_000_000, 3).level, Level::Ok);
    }
}
