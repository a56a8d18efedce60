//! A registry that shows some of its nodes: one call needs no connection to each of a thousand.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpc_core::registry::{
    Capabilities, Coordination, Health, Member, Members, Registration, Registry, RegistryUrl, UpdateError, Version,
};
use rpc_core::{BoxFuture, NodeRecord, NodeState};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// Nodes that are shown. Enough for a good choice, and for finding one when some are dead.
const FEW: usize = 8;

/// Shows at most [`FEW`] nodes of another registry.
pub(crate) struct Few {
    whole: Arc<dyn Registry>,
    members: watch::Receiver<Arc<Members>>,
    _follower: AbortOnDropHandle<()>,
}

/// Which nodes are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Preference {
    /// Half of them for their response time in the registry, the others by chance.
    Fast,
    /// All of them by chance.
    Any,
}

impl Few {
    pub(crate) fn of(whole: Arc<dyn Registry>, preference: Preference) -> Self {
        let mut lists = whole.members();
        let (publish, members) = watch::channel(Arc::default());
        let follow = async move {
            let (random, mut chosen) = (RandomState::new(), BTreeSet::new());
            loop {
                let list = lists.borrow_and_update().clone();
                choose(&mut chosen, &list, preference, Instant::now(), |addr| random.hash_one(addr));
                let mut few = Members::clone(&list);
                few.nodes.retain(|addr, _| chosen.contains(addr));
                publish.send_replace(Arc::new(few));
                if lists.changed().await.is_err() {
                    // The last list stays.
                    return std::future::pending().await;
                }
            }
        };
        Self { whole, members, _follower: AbortOnDropHandle::new(tokio::spawn(follow)) }
    }

    /// How many nodes are not shown.
    pub(crate) fn hidden(&self) -> usize {
        let (all, shown) = (self.whole.members().borrow().nodes.len(), self.members.borrow().nodes.len());
        all.saturating_sub(shown)
    }
}

/// Keeps what was chosen and is still listed, and chooses more up to [`FEW`].
fn choose(
    chosen: &mut BTreeSet<SocketAddr>,
    list: &Members,
    preference: Preference,
    now: Instant,
    random: impl Fn(SocketAddr) -> u64,
) {
    chosen.retain(|addr| list.nodes.contains_key(addr));
    let takes_calls = |member: &Member| member.record.state == NodeState::Up;
    let mut others: Vec<&Member> = list.nodes.values().filter(|member| !chosen.contains(&member.addr)).collect();
    // Those that take no calls come last, as there may be no others.
    others.sort_by_key(|member| (!takes_calls(member), random(member.addr)));
    if preference == Preference::Fast {
        let mut known: Vec<(u64, SocketAddr)> = others
            .iter()
            .filter(|member| takes_calls(member) && member.response_time_us(now) > 0)
            .map(|member| (member.response_time_us(now), member.addr))
            .collect();
        known.sort_unstable();
        let room = (FEW / 2).saturating_sub(chosen.len());
        chosen.extend(known.iter().take(room).map(|(_, addr)| addr));
    }
    for member in others {
        if chosen.len() >= FEW {
            break;
        }
        chosen.insert(member.addr);
    }
}

impl Registry for Few {
    fn url(&self) -> &RegistryUrl {
        self.whole.url()
    }

    fn capabilities(&self) -> Capabilities {
        self.whole.capabilities()
    }

    fn register(&self, addr: SocketAddr, record: NodeRecord) -> Registration {
        self.whole.register(addr, record)
    }

    fn members(&self) -> watch::Receiver<Arc<Members>> {
        self.members.clone()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.whole.health()
    }

    fn read(&self, addr: SocketAddr) -> BoxFuture<'_, Result<Option<Member>, UpdateError>> {
        self.whole.read(addr)
    }

    fn update(&self, addr: SocketAddr, version: Version, record: NodeRecord) -> BoxFuture<'_, Result<(), UpdateError>> {
        self.whole.update(addr, version, record)
    }

    fn coordination(&self) -> Option<Arc<dyn Coordination>> {
        self.whole.coordination()
    }

    fn close(&self, timeout: Duration) -> BoxFuture<'_, ()> {
        self.whole.close(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(times_us: &[u64], now: Instant) -> Members {
        let member = |(port, time): (usize, &u64)| {
            let addr = SocketAddr::from(([127, 0, 0, 1], port as u16 + 1));
            let record = NodeRecord::new().with_response_time(*time);
            (addr, Member { addr, record, malformed: None, version: Version(0), changed_at: now })
        };
        Members { nodes: times_us.iter().enumerate().map(member).collect(), misnamed: Vec::new(), as_of: Some(now) }
    }

    fn ports(chosen: &BTreeSet<SocketAddr>) -> Vec<u16> {
        chosen.iter().map(SocketAddr::port).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_fastest_known_are_among_them_and_all_of_a_short_list_is() {
        let now = Instant::now();
        let by_port = |addr: SocketAddr| u64::from(addr.port());
        let mut chosen = BTreeSet::new();
        choose(&mut chosen, &list(&[0, 0, 9], now), Preference::Fast, now, by_port);
        assert_eq!(ports(&chosen), [1, 2, 3]);

        let times: Vec<u64> = (0..100).map(|n| if n < 50 { 0 } else { 1000 - n }).collect();
        let mut chosen = BTreeSet::new();
        choose(&mut chosen, &list(&times, now), Preference::Fast, now, by_port);
        assert_eq!(ports(&chosen), [1, 2, 3, 4, 97, 98, 99, 100]);
        let before = chosen.clone();
        choose(&mut chosen, &list(&times, now), Preference::Fast, now, |_| 0);
        assert_eq!(chosen, before, "what was chosen stays");
        let mut any = BTreeSet::new();
        choose(&mut any, &list(&times, now), Preference::Any, now, by_port);
        assert_eq!(ports(&any), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_take_no_calls_come_last_and_gone_ones_are_replaced() {
        let now = Instant::now();
        let mut members = list(&[5; 9], now);
        let first = *members.nodes.keys().next().unwrap();
        members.nodes.get_mut(&first).unwrap().record.state = NodeState::Draining;
        let mut chosen = BTreeSet::new();
        choose(&mut chosen, &members, Preference::Fast, now, |_| 0);
        assert_eq!(ports(&chosen), [2, 3, 4, 5, 6, 7, 8, 9]);
        members.nodes.retain(|addr, _| addr.port() != 5);
        choose(&mut chosen, &members, Preference::Fast, now, |_| 0);
        assert_eq!(ports(&chosen), [1, 2, 3, 4, 6, 7, 8, 9]);
    }
}
