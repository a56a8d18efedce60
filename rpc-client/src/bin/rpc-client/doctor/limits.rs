//! Limits of this machine.

use rpc_core::open_files::{OTHER_FILES, OpenFiles};

use super::finding::{Finding, Level};

/// Connections that a server takes by default.
const SERVER_CONNECTIONS: u64 = 65_536;

/// Whether a client can connect with all nodes, and a server take all clients.
pub(super) fn open_files(nodes: usize) -> Vec<Finding> {
    // Other systems do not tell; there is nothing to be said about them.
    OpenFiles::of_this_process().map(|limit| judge(limit, nodes as u64)).into_iter().collect()
}

fn judge(limit: OpenFiles, nodes: u64) -> Finding {
    let OpenFiles { soft, .. } = limit;
    let about = "limits";
    if nodes + OTHER_FILES > soft {
        let fact = format!("{soft} open files are allowed here, and {nodes} nodes are listed");
        let said = [fact, "a client cannot connect with all of them".into(), limit.raise(nodes + OTHER_FILES)];
        return Finding::bad(Level::Problem, "open_files", about, said);
    }
    if soft < SERVER_CONNECTIONS + OTHER_FILES {
        let fact = format!("{soft} open files are allowed here");
        let consequence = format!(
            "enough for a client of {nodes} {}; a server started here takes at most {} connections",
            if nodes == 1 { "node" } else { "nodes" },
            limit.connections()
        );
        return Finding::bad(
            Level::Warning,
            "open_files",
            about,
            [fact, consequence, limit.raise(SERVER_CONNECTIONS + OTHER_FILES)],
        );
    }
    Finding::ok("open_files", about, format!("{soft} open files are allowed here, enough for clients and servers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_compared() {
        let judge = |soft, hard, nodes| judge(OpenFiles { soft, hard }, nodes);
        assert_eq!(judge(1024, 524_288, 3).level, Level::Warning);
        let few = judge(1024, 4096, 2000);
        assert!(few.level == Level::Problem && few.to_string().ends_with("-> ulimit -n 2064"), "{few}");
        assert!(judge(1024, 1024, 3).to_string().contains("as root"));
        assert!(judge(1024, 1024, 3).to_string().contains("at most 960 connections"));
        assert_eq!(judge(1_000_000, 1_000_000, 3).level, Level::Ok);
    }
}
