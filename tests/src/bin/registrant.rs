//! A process that tests of registries start and kill.
//!
//! `registrant node URL ADDR` registers, says `registered` and stays. `registrant lead URL` says
//! `waiting`, takes part in the election for `job`, says `leading SLOT` with the slot it has
//! claimed, and stays.
//! `registrant claim URL` claims one slot after the other while it leads, and says `claimed SLOT` each
//! time, and `not leading` when it does not any more.
//! `registrant count URL ADDR N` adds N to the response time of an entry, one by one, and ends.
#![expect(clippy::print_stdout, reason = "the tests read what it prints")]

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpc_core::NodeRecord;
use rpc_core::registry::{RegistrationStatus, Registry, UpdateError, open};

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let registry = open(&arguments[1].parse().expect("a registry URL")).expect("a registry");
    match arguments[..] {
        ["node", _, addr] => node(registry, addr.parse().expect("an address")).await,
        ["lead", _] => lead(registry).await,
        ["claim", _] => claim(registry).await,
        ["count", _, addr, n] => {
            count(registry, addr.parse().expect("an address"), n.parse().expect("a number")).await;
        }
        _ => panic!("unknown arguments {arguments:?}"),
    }
}

async fn node(registry: Arc<dyn Registry>, addr: SocketAddr) {
    let registration = registry.register(addr, NodeRecord::new());
    let mut status = registration.status();
    status.wait_for(|status| *status == RegistrationStatus::Registered).await.expect("it is alive");
    println!("registered");
    pending().await
}

async fn lead(registry: Arc<dyn Registry>) {
    let mut candidate = registry.coordination().expect("it can coordinate").elect("job");
    println!("waiting");
    let lease = candidate.wait_for(Option::is_some).await.expect("it is alive").clone().expect("it was waited for");
    let mut slot = 1;
    while !lease.claim(slot).await.expect("it leads") {
        slot += 1;
    }
    println!("leading {slot}");
    pending().await
}

async fn claim(registry: Arc<dyn Registry>) {
    let mut candidate = registry.coordination().expect("it can coordinate").elect("job");
    println!("waiting");
    let mut slot = 0;
    loop {
        let lease = candidate.wait_for(Option::is_some).await.expect("it is alive").clone();
        let lease = lease.expect("it was waited for");
        while candidate.borrow().is_some() {
            slot += 1;
            match lease.claim(slot).await {
                Ok(true) => println!("claimed {slot}"),
                // Somebody else has had it.
                Ok(false) => {}
                Err(_) => break,
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        println!("not leading");
    }
}

async fn count(registry: Arc<dyn Registry>, addr: SocketAddr, n: u64) {
    let mut written = 0;
    while written < n {
        let member = registry.read(addr).await.expect("it answers").expect("it is listed");
        let next = member.record.with_response_time(member.record.response_time_us + 1);
        match registry.update(addr, member.version, next).await {
            Ok(()) => written += 1,
            Err(UpdateError::Changed) => {}
            Err(other) => panic!("{other}"),
        }
    }
    println!("done");
}
