//! Commands that may open few files say so, and blame nobody else.

use rpc_server::Server;
use rpc_tests::cluster::Node;

use crate::cli::{registry, serve, shell};

#[tokio::test]
async fn a_server_with_too_few_files_says_what_mends_it() {
    for limit in ["4", "6", "8", "12"] {
        let ran = shell("ulimit -n $1; rpc-server --port 0 --registry none", &[limit]).await.ended_with(3);
        let expected = format!("error: too few open files are allowed to this process: {limit}\n next: ulimit -n 1024");
        assert!(ran.stderr.starts_with(&expected), "{}", ran.stderr);
    }
}

#[tokio::test]
async fn a_client_with_too_few_files_says_what_mends_it() {
    let (_dir, url) = registry();
    let (_server, _) = serve(&[], &url).await;
    for limit in ["4", "6", "8", "12", "14"] {
        for what in ["doctor", "nodes", "call echo"] {
            let ran =
                shell(&format!("ulimit -n $1; rpc-client {what} --registry $2"), &[limit, &url]).await.ended_with(1);
            assert!(ran.stdout.is_empty(), "{}", ran.stdout);
            let expected = format!("process: {limit} (other)\n  next: ulimit -n 1024");
            assert!(ran.stderr.contains(&expected), "{}", ran.stderr);
        }
    }
}

#[tokio::test]
async fn the_doctor_accuses_no_node_where_its_own_files_are_used_up() {
    let mut nodes = Vec::new();
    for _ in 0..24 {
        nodes.push(Node::start(Server::builder()).await);
    }
    let addresses: Vec<String> = nodes.iter().map(|node| node.addr.to_string()).collect();
    let url = format!("static:{}", addresses.join(","));
    let ran = shell("ulimit -n 24; rpc-client doctor --registry $1", &[&url]).await.ended_with(1);
    let problems: Vec<&str> = ran.stdout.lines().filter(|line| line.starts_with("PROBLEM")).collect();
    assert!(problems.len() > 1, "{}", ran.stdout);
    for problem in problems {
        let is_about_files = problem.contains("open files") && problem.contains("-> ulimit -n ");
        assert!(is_about_files && !problem.contains("nobody answers"), "{problem}");
    }
}
