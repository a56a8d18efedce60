//! Which process of this machine is at the other end of a connection.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// The one of `processes` that holds the socket which connects `local` with `remote` (IPv4).
pub(crate) fn socket_owner(local: SocketAddr, remote: SocketAddr, processes: &[u32]) -> Option<u32> {
    let socket = format!("socket:[{}]", inode(local, remote)?);
    processes.iter().copied().find(|id| {
        let files = std::fs::read_dir(format!("/proc/{id}/fd"));
        files.is_ok_and(|mut files| {
            files.any(|file| {
                file.ok().and_then(|file| std::fs::read_link(file.path()).ok()).as_deref() == Some(Path::new(&socket))
            })
        })
    })
}

/// The inode of a TCP socket. Connections to different addresses may have the same local one.
fn inode(local: SocketAddr, remote: SocketAddr) -> Option<u64> {
    let (local, remote) = (written(local)?, written(remote)?);
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    // Thousands of lines where connections come and go: searched as one text.
    let at = table.find(&format!(" {local} {remote} "))?;
    table[at..].lines().next()?.split_whitespace().nth(8)?.parse().ok()
}

/// As the kernel writes it: the address is a number in the byte order of the machine.
fn written(addr: SocketAddr) -> Option<String> {
    let IpAddr::V4(ip) = addr.ip() else { return None };
    Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), addr.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_connection_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_accepted, peer) = listener.accept().unwrap();
        assert_eq!(peer, ours.local_addr().unwrap());
        let us = std::process::id();
        let at = listener.local_addr().unwrap();
        assert_eq!(socket_owner(peer, at, &[1, us]), Some(us));
        assert_eq!(socket_owner(peer, at, &[]), None);
        assert_eq!(socket_owner(peer, peer, &[us]), None);
        drop(ours);
    }
}
