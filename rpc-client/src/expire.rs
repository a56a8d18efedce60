//! Sets response times that nobody renews back to unknown.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use rpc_core::registry::{Coordination, Lease, Member, Members, RESPONSE_TIME_VALID, Registry, UpdateError};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use crate::schedule::{Firings, Schedule};
use crate::slots::Slots;

/// Name of the job in the registry's coordination.
const JOB: &str = "expire";

/// Resets in flight at a time. A run of a thousand nodes at 2 ms a write then lasts a quarter of a second.
const RESETS_MAX: usize = 8;

/// The scheduled job of a client: of all clients of a registry, the one that holds the lease runs it, once
/// in the whole cluster at each firing. It ends when this is dropped, and another client takes over.
#[derive(Debug)]
pub(crate) struct ExpiryJob {
    _task: AbortOnDropHandle<()>,
}

impl ExpiryJob {
    /// Starts the job; none where the registry cannot coordinate or be written.
    pub(crate) fn spawn(registry: &Arc<dyn Registry>, schedule: &Schedule) -> Option<Self> {
        let coordination = registry.coordination().filter(|_| registry.capabilities().write_back)?;
        let firings = Firings::start(schedule);
        let work = work(registry, coordination, schedule.period(), firings, unix_seconds);
        Some(Self { _task: AbortOnDropHandle::new(tokio::spawn(work)) })
    }
}

#[expect(clippy::disallowed_methods, reason = "numbers the runs; ages are taken by the monotonic clock")]
fn unix_seconds() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The job's loop. One run at a time: a firing during a run waits, and a run ends before the next period does.
fn work(
    registry: &Arc<dyn Registry>,
    coordination: Arc<dyn Coordination>,
    period: Duration,
    mut firings: Firings,
    unix_seconds: impl Fn() -> u64 + Send + 'static,
) -> impl Future<Output = ()> + Send + 'static {
    // The handle keeps the registry's tasks alive as long as the job needs them.
    let (registry, mut members) = (registry.clone(), registry.members());
    async move {
        // Without nodes there is nothing to reset, and no reason to write anything into the registry.
        if members.wait_for(|list| !list.nodes.is_empty()).await.is_err() {
            return;
        }
        let leader = coordination.elect(JOB);
        let mut slots = Slots::new(period);
        loop {
            firings.next().await;
            let lease = leader.borrow().clone();
            let Some(lease) = lease else {
                slots.not_leading();
                continue;
            };
            let run = run(&*lease, &mut slots, unix_seconds(), &members);
            if tokio::time::timeout(period.mul_f64(0.8), run).await.is_err() {
                warn!(registry = %registry.url(), "resetting outdated response times took too long and was given up");
            }
        }
    }
}

/// One firing at the leader.
async fn run(lease: &dyn Lease, slots: &mut Slots, unix_seconds: u64, members: &watch::Receiver<Arc<Members>>) {
    if !claim(lease, slots, unix_seconds).await {
        return;
    }
    let members = members.borrow().clone();
    let reset = reset_outdated(&members, lease, Instant::now()).await;
    if reset > 0 {
        debug!(reset, "outdated response times are unknown now");
    }
}

/// Claims the slot of this firing. `false` if somebody ran it already, or leadership is in doubt.
async fn claim(lease: &dyn Lease, slots: &mut Slots, unix_seconds: u64) -> bool {
    for slot in slots.candidates(unix_seconds, Instant::now()) {
        match lease.claim(slot).await {
            Ok(true) => {
                slots.granted(slot, Instant::now());
                return true;
            }
            Ok(false) => {}
            Err(error) => {
                debug!(slot, %error, "the run was not claimed");
                return false;
            }
        }
    }
    slots.refused();
    false
}

/// Whether the entry holds a response time that nobody renewed for too long. The age is this process's own
/// observation: no clocks are compared. An entry at 0 is left alone, which also keeps a reset
/// from counting as a fresh measurement.
fn is_outdated(entry: &Member, now: Instant) -> bool {
    entry.malformed.is_none() && entry.record.response_time_us != 0 && entry.age(now) > RESPONSE_TIME_VALID
}

/// Sets what is outdated to 0, each on the condition that the entry did not change since: a reset loses
/// against a fresh measurement. Returns how many were reset.
async fn reset_outdated(members: &Members, lease: &dyn Lease, now: Instant) -> usize {
    let outdated: Vec<Member> = members.nodes.values().filter(|entry| is_outdated(entry, now)).cloned().collect();
    let mut resets = futures_util::stream::iter(outdated)
        .map(|entry| async move {
            let reset = lease.update(entry.addr, entry.version, entry.record.with_response_time(0)).await;
            (entry.addr, reset)
        })
        .buffer_unordered(RESETS_MAX);
    let mut count = 0;
    while let Some((node, reset)) = resets.next().await {
        match reset {
            Ok(()) => count += 1,
            Err(UpdateError::Changed) => debug!(%node, "renewed just now"),
            Err(UpdateError::LeaseLost) => break,
            Err(error) => debug!(%node, %error, "the outdated response time was not reset"),
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use rpc_core::NodeRecord;
    use rpc_core::registry::{Registration, RegistryUrl};

    use super::*;
    use crate::report::Reporter;
    use crate::write_back::INTERVAL;

    const PERIOD: Duration = Duration::from_secs(5);

    fn addr(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn open(url: &str) -> Arc<dyn Registry> {
        let url: RegistryUrl = url.parse().unwrap();
        rpc_core::registry::open(&url).unwrap()
    }

    async fn register(registry: &dyn Registry, port: u16) -> (Registration, String) {
        let record = NodeRecord::new();
        let id = record.id.clone();
        let registration = registry.register(addr(port), record);
        let mut members = registry.members();
        members.wait_for(|members| members.nodes.contains_key(&addr(port))).await.unwrap();
        (registration, id)
    }

    fn entry(registry: &dyn Registry, port: u16) -> Member {
        registry.members().borrow().nodes[&addr(port)].clone()
    }

    /// Writes a response time as a client does.
    async fn measure(registry: &dyn Registry, port: u16, us: u64) {
        let entry = entry(registry, port);
        registry.update(addr(port), entry.version, entry.record.with_response_time(us)).await.unwrap();
    }

    /// A client's job on the paused clock: it fires `late` after each fifth second.
    fn client(registry: &Arc<dyn Registry>, late: Duration) -> (AbortOnDropHandle<()>, AbortOnDropHandle<()>) {
        let (cron, firings) = Firings::by_hand(PERIOD);
        let start = Instant::now();
        let wall_clock = move || 1_000_000 + start.elapsed().as_secs();
        let coordination = registry.coordination().unwrap();
        let job = tokio::spawn(work(registry, coordination, PERIOD, firings, wall_clock));
        let ticker = tokio::spawn(async move {
            let mut firing = tokio::time::interval_at(start + late, PERIOD);
            loop {
                firing.tick().await;
                let _ = cron.try_send(());
            }
        });
        (AbortOnDropHandle::new(job), AbortOnDropHandle::new(ticker))
    }

    async fn until_unknown(registry: &dyn Registry, port: u16) -> Duration {
        let start = Instant::now();
        let mut members = registry.members();
        let reset = members.wait_for(|members| members.nodes[&addr(port)].record.response_time_us == 0);
        tokio::time::timeout(Duration::from_secs(60), reset).await.expect("it is reset").unwrap();
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_that_nobody_renews_is_reset_five_to_eleven_seconds_after_its_last_write() {
        let (one, two) = (open("mem:reset"), open("mem:reset"));
        let (_registration, id) = register(&*one, 1).await;
        let _clients = (client(&one, ms(70)), client(&two, ms(480)));
        for phase in [0, 900, 1700, 2600, 3500, 4400] {
            tokio::time::sleep(ms(phase)).await;
            // Two reporting clients, as in a cluster under load, that then fall silent.
            let reporters = (Reporter::spawn(&one, INTERVAL, phase), Reporter::spawn(&two, INTERVAL, phase + 1));
            for sample in 0..200 {
                for reporter in [&reporters.0, &reporters.1] {
                    reporter.node(addr(1), &id).record(Instant::now(), ms(4));
                }
                tokio::time::sleep(ms(100)).await;
                assert!(sample < 5 || entry(&*one, 1).record.response_time_us != 0, "unknown while in use");
            }
            let mut members = one.members();
            let mut last_write = Instant::now();
            let reset = async {
                loop {
                    let entry = members.borrow_and_update().nodes[&addr(1)].clone();
                    if entry.record.response_time_us == 0 {
                        return entry.changed_at;
                    }
                    last_write = entry.changed_at;
                    members.changed().await.unwrap();
                }
            };
            let reset = tokio::time::timeout(Duration::from_secs(60), reset).await.expect("it is reset");
            let after = reset - last_write;
            assert!(after > ms(5_000) && after <= ms(11_000), "{after:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_at_zero_is_left_alone() {
        let registry = open("mem:at-zero");
        let (_registration, _) = register(&*registry, 1).await;
        let _client = client(&registry, ms(70));
        measure(&*registry, 1, 500).await;
        until_unknown(&*registry, 1).await;
        let reset = entry(&*registry, 1).version;
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(entry(&*registry, 1).version, reset);
    }

    #[tokio::test(start_paused = true)]
    async fn when_the_leader_is_gone_another_client_takes_over() {
        let (one, two) = (open("mem:takeover"), open("mem:takeover"));
        let (_registration, _) = register(&*two, 1).await;
        let first = client(&one, ms(70));
        tokio::time::sleep(ms(200)).await;
        let _second = client(&two, ms(70));
        measure(&*two, 1, 500).await;
        until_unknown(&*two, 1).await;
        measure(&*two, 1, 500).await;
        drop(first);
        drop(one);
        let after = until_unknown(&*two, 1).await;
        assert!(after > ms(5_000) && after <= ms(11_000), "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_cron_the_job_still_runs() {
        let registry = open("mem:no-cron");
        let (_registration, _) = register(&*registry, 1).await;
        let (_cron, firings) = Firings::by_hand(PERIOD);
        // The wall clock stands still, as it seems to when it was set back.
        let coordination = registry.coordination().unwrap();
        let _job = AbortOnDropHandle::new(tokio::spawn(work(&registry, coordination, PERIOD, firings, || 1_000_000)));
        tokio::time::sleep(PERIOD * 4).await;
        for _ in 0..3 {
            measure(&*registry, 1, 500).await;
            assert!(until_unknown(&*registry, 1).await <= ms(11_000));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reset_loses_against_a_fresh_measurement() {
        let registry = open("mem:fresh");
        let (_registrations, mut leader) = (
            (register(&*registry, 1).await, register(&*registry, 2).await),
            registry.coordination().unwrap().elect("some job"),
        );
        measure(&*registry, 1, 500).await;
        measure(&*registry, 2, 500).await;
        tokio::time::sleep(PERIOD * 2).await;
        let lease = leader.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        let seen = registry.members().borrow().clone();
        measure(&*registry, 1, 700).await;
        assert_eq!(reset_outdated(&seen, &*lease, Instant::now()).await, 1);
        assert_eq!(entry(&*registry, 1).record.response_time_us, 700);
        assert_eq!(entry(&*registry, 2).record.response_time_us, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_lost_the_lease_resets_nothing() {
        let (one, two) = (open("mem:zombie"), open("mem:zombie"));
        let (_registration, _) = register(&*two, 1).await;
        let mut leader = one.coordination().unwrap().elect(JOB);
        let lease = leader.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        drop(leader);
        let _next = two.coordination().unwrap().elect(JOB).wait_for(Option::is_some).await.unwrap().clone();
        measure(&*two, 1, 500).await;
        tokio::time::sleep(PERIOD * 2).await;
        let seen = two.members().borrow().clone();
        assert_eq!(reset_outdated(&seen, &*lease, Instant::now()).await, 0);
        assert!(!claim(&*lease, &mut Slots::new(PERIOD), 1_000_000).await);
        assert_eq!(entry(&*two, 1).record.response_time_us, 500);
    }

    #[tokio::test]
    async fn the_job_leads_and_resets_by_the_real_clock_and_lets_go_when_it_is_dropped() {
        let registry = open("mem:real-clock");
        let (_registration, _) = register(&*registry, 1).await;
        let job = ExpiryJob::spawn(&registry, &"* * * * * *".parse().unwrap()).unwrap();
        measure(&*registry, 1, 500).await;
        let after = until_unknown(&*registry, 1).await;
        assert!(after > ms(4_900) && after < ms(10_000), "{after:?}");
        let mut next = registry.coordination().unwrap().elect(JOB);
        assert!(next.borrow().is_none(), "the job leads");
        drop(job);
        let leads = tokio::time::timeout(Duration::from_secs(10), next.wait_for(Option::is_some));
        leads.await.expect("leadership is free").unwrap();
    }

    #[tokio::test]
    async fn a_registry_without_coordination_has_no_job() {
        assert!(ExpiryJob::spawn(&open("static:127.0.0.1:1"), &Schedule::default()).is_none());
    }
}
