//! All connections of a server, and the one clock that watches over them.
//!
//! A timer per connection would cost memory and wake-ups for connections that do nothing. Instead
//! one task looks at all of them once a second: a connection only sets a flag when bytes arrive.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::access::AUTHENTICATE_WITHIN;
use crate::admission::Admission;
use crate::config::ServerConfig;

/// How often connections are looked at: the resolution of every time below.
pub(crate) const SWEEP: Duration = Duration::from_secs(1);

/// How often calls whose time is over are looked for while others wait for their places.
const EXPIRE_CROWDED: Duration = Duration::from_millis(100);

/// Silence after which a peer that said hello is pinged.
const PING_AFTER: u32 = 30;
/// Silence after an unanswered ping until the next sign is asked for, and then the end.
const PING_WAIT: u32 = 5;
/// Silence after which buffers are given back.
const RELEASE_AFTER: u32 = 2;

/// What a connection's task is told.
pub(crate) mod signal {
    /// Send `rpc.ping`.
    pub(crate) const PING: u8 = 1;
    /// The peer is gone, or idle for too long: close.
    pub(crate) const CLOSE: u8 = 2;
    /// The server drains.
    pub(crate) const GOAWAY: u8 = 4;
    /// End the calls whose deadline is over.
    pub(crate) const EXPIRE: u8 = 8;
    /// Give buffers back.
    pub(crate) const RELEASE: u8 = 16;
    /// Look again who the peer is.
    pub(crate) const RULES: u8 = 32;
    /// The peer does not get on with its message: close.
    pub(crate) const SLOW: u8 = 64;
    /// The peer does not take its answers: close.
    pub(crate) const UNREAD: u8 = 128;
}

/// What a connection's task and the sweep share.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// Bytes arrived since the last sweep.
    pub(crate) active: AtomicBool,
    /// The peer said hello.
    pub(crate) greeted: AtomicBool,
    /// The peer has yet to say who it is.
    pub(crate) stranger: AtomicBool,
    /// Calls are in progress.
    pub(crate) busy: AtomicBool,
    /// While the rest of a message is waited for: a number that changes with every message. Else 0.
    pub(crate) incomplete: AtomicU32,
    /// While answers wait to be taken: a number that changes with every write. Else 0.
    pub(crate) unsent: AtomicU32,
    signals: AtomicU8,
    waker: AtomicWaker,
}

impl Link {
    /// Takes the signals given since the last call, and has `waker` woken by the next.
    pub(crate) fn take_signals(&self, waker: &std::task::Waker) -> u8 {
        // Registering first closes the gap between looking and sleeping.
        self.waker.register(waker);
        if self.signals.load(Ordering::Relaxed) == 0 { 0 } else { self.signals.swap(0, Ordering::AcqRel) }
    }

    fn tell(&self, signals: u8) {
        if signals != 0 {
            self.signals.fetch_or(signals, Ordering::AcqRel);
            self.waker.wake();
        }
    }
}

/// Times after which connections are closed, in sweeps.
#[derive(Clone, Copy, Debug)]
struct Patience {
    message: u32,
    unread: u32,
    idle: u32,
}

/// The connections of one server.
#[derive(Debug)]
pub(crate) struct Links {
    patience: Patience,
    refused: AtomicU64,
    links: Mutex<HashMap<u64, Watched>>,
    next: AtomicU64,
    changed: Notify,
}

#[derive(Debug)]
struct Watched {
    link: Arc<Link>,
    /// Sweeps since the last byte.
    silent: u32,
    /// Sweeps as a stranger.
    strange: u32,
    incomplete: Unchanged,
    unsent: Unchanged,
}

/// For how many sweeps a number has been the same, and not 0.
#[derive(Debug, Default)]
struct Unchanged {
    value: u32,
    sweeps: u32,
}

impl Unchanged {
    fn look(&mut self, at: &AtomicU32) -> u32 {
        let value = at.load(Ordering::Relaxed);
        self.sweeps = if value != 0 && value == self.value { self.sweeps + 1 } else { 0 };
        self.value = value;
        self.sweeps
    }
}

/// Takes its connection off the list when it is dropped.
#[derive(Debug)]
pub(crate) struct LinkGuard {
    links: Arc<Links>,
    key: u64,
    pub(crate) link: Arc<Link>,
}

impl Drop for LinkGuard {
    fn drop(&mut self) {
        self.links.links.lock().remove(&self.key);
        self.links.changed.notify_waiters();
    }
}

impl Links {
    pub(crate) fn new(config: &ServerConfig) -> Self {
        let sweeps = |time: Duration| (time.as_secs_f64() / SWEEP.as_secs_f64()).ceil().max(1.0) as u32;
        let patience = Patience {
            message: sweeps(config.message_timeout),
            unread: sweeps(config.unread_timeout),
            idle: sweeps(config.idle_timeout),
        };
        Self {
            patience,
            refused: AtomicU64::default(),
            links: Mutex::default(),
            next: AtomicU64::default(),
            changed: Notify::default(),
        }
    }

    /// A connection was turned away.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// How many were.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn add(self: &Arc<Self>) -> LinkGuard {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let link = Arc::new(Link::default());
        let watched = Watched {
            link: link.clone(),
            silent: 0,
            strange: 0,
            incomplete: Unchanged::default(),
            unsent: Unchanged::default(),
        };
        self.links.lock().insert(key, watched);
        LinkGuard { links: self.clone(), key, link }
    }

    pub(crate) fn len(&self) -> usize {
        self.links.lock().len()
    }

    /// Looks at every connection once a second, for ever. Where the calls at once are limited, those
    /// whose time is over are ended sooner while others wait for their places.
    pub(crate) async fn sweep_for_ever(&self, admission: Option<&Admission>) {
        let period = if admission.is_some() { EXPIRE_CROWDED } else { SWEEP };
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut passed = SWEEP;
        loop {
            ticks.tick().await;
            if passed >= SWEEP {
                passed = Duration::ZERO;
                self.sweep();
            } else if admission.is_some_and(Admission::is_crowded) {
                self.tell_all(signal::EXPIRE);
            }
            passed += period;
        }
    }

    fn sweep(&self) {
        let patience = self.patience;
        for (key, watched) in self.links.lock().iter_mut() {
            let Watched { link, silent, strange, incomplete, unsent } = watched;
            *silent = if link.active.swap(false, Ordering::Relaxed) { 0 } else { *silent + 1 };
            // Spread over 20 %, so that connections opened together are not pinged together.
            let jitter = (*key % 7) as u32;
            let mut signals = due(*silent, jitter, link.greeted.load(Ordering::Relaxed), patience.idle);
            if link.busy.load(Ordering::Relaxed) {
                signals |= signal::EXPIRE;
                if !link.greeted.load(Ordering::Relaxed) {
                    signals &= !signal::CLOSE;
                }
            }
            if link.stranger.load(Ordering::Relaxed) {
                *strange += 1;
                // One more, since the first sweep may come at once.
                signals |= if *strange > AUTHENTICATE_WITHIN { signal::CLOSE } else { 0 };
            }
            if incomplete.look(&link.incomplete) >= patience.message {
                signals |= signal::SLOW;
            }
            if unsent.look(&link.unsent) >= patience.unread {
                signals |= signal::UNREAD;
            }
            link.tell(signals);
        }
    }

    /// Tells every connection.
    pub(crate) fn tell_all(&self, signals: u8) {
        for watched in self.links.lock().values() {
            watched.link.tell(signals);
        }
    }

    /// Returns when there is no connection left.
    pub(crate) async fn all_closed(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.links.lock().is_empty() {
                return;
            }
            changed.await;
        }
    }
}

/// What to do after `silent` sweeps without a byte; `idle` is the patience with one that cannot be pinged.
fn due(silent: u32, jitter: u32, greeted: bool, idle: u32) -> u8 {
    let first = PING_AFTER - 3 + jitter;
    match silent {
        RELEASE_AFTER => signal::RELEASE,
        s if greeted && (s == first || s == first + PING_WAIT) => signal::PING,
        s if greeted && s >= first + 2 * PING_WAIT => signal::CLOSE,
        s if !greeted && s >= idle => signal::CLOSE,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_is_pinged_twice_and_let_go_after_ten_seconds_more() {
        for jitter in 0..7 {
            let told: Vec<(u32, u8)> =
                (1..50).map(|s| (s, due(s, jitter, true, 600))).filter(|(_, signals)| *signals != 0).take(4).collect();
            let first = 27 + jitter;
            assert_eq!(
                told,
                [(2, signal::RELEASE), (first, signal::PING), (first + 5, signal::PING), (first + 10, signal::CLOSE)]
            );
        }
    }

    #[test]
    fn a_plain_peer_is_never_pinged() {
        assert!((1..600).all(|s| due(s, 0, false, 600) & (signal::PING | signal::CLOSE) == 0));
        assert_eq!(due(600, 0, false, 600), signal::CLOSE);
    }
}
