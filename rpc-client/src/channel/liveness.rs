//! When to ask a connection for a sign of life, and what its silence means. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// Silence of an idle connection after which it is pinged. Shorter than what common middleboxes
/// and load balancers take to forget a connection (60 s and more).
pub(crate) const IDLE_PING: Duration = Duration::from_secs(10);

/// How long a ping may stay unanswered before the next; after the second the connection is dead.
pub(crate) const PING_WAIT: Duration = Duration::from_secs(5);

/// Shortest silence with calls waiting after which a busy connection is pinged.
pub(crate) const BUSY_SILENCE: Duration = Duration::from_millis(250);

/// On long ways the silence lasts so many round trips at least.
const ROUND_TRIPS: u32 = 4;

/// How long that ping may stay unanswered before the node is suspect; on long ways two round trips.
pub(crate) const SUSPECT_AFTER: Duration = Duration::from_millis(250);

/// A shorter time of a round trip is as good as this one.
const ROUND_TRIP_MIN: Duration = Duration::from_millis(1);

/// When a check comes so much later than it was due, this process stood still (a suspended machine, a
/// stopped process). What the node sent meanwhile waits to be read, and its silence proves nothing.
const OVERSLEPT: Duration = Duration::from_secs(1);

/// Any byte received counts as life.
#[derive(Debug)]
pub(crate) struct Liveness {
    last_received: Instant,
    /// When the next check is due.
    due: Option<Instant>,
    /// Since when calls wait without a pause.
    busy_since: Option<Instant>,
    /// The first ping since the last byte, and how many went out.
    pinged: Option<(Instant, u32)>,
    round_trip: Duration,
    idle_ping: Duration,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing.
    Fine,
    /// Send a ping.
    Ping,
    /// No answer to a ping while calls wait.
    Suspect,
    /// Two pings went unanswered.
    Dead,
}

impl Liveness {
    /// `hello`: the time of the first exchange. `random`: 64 random bits, which spread the idle pings by 20 %.
    pub(crate) fn new(now: Instant, hello: Duration, random: u64) -> Self {
        let share = 0.8 + 0.2 * (random >> 11) as f64 / (1u64 << 53) as f64;
        let idle_ping = IDLE_PING.mul_f64(share);
        // A node that was slow to answer it has told little of the way to it. The first ping tells more, and is
        // not to be sent later for that.
        let round_trip = hello.min(BUSY_SILENCE / ROUND_TRIPS);
        Self { last_received: now, due: None, busy_since: None, pinged: None, round_trip, idle_ping }
    }

    /// Bytes arrived; `busy` says whether calls still wait.
    pub(crate) fn received(&mut self, now: Instant, busy: bool) {
        if let Some((sent, 1)) = self.pinged.take() {
            // A node that stood still answers late, which says nothing of the way to it: taken for that, it
            // would let the node stand still for longer the next time.
            let known = self.round_trip.max(ROUND_TRIP_MIN);
            self.round_trip = now.saturating_duration_since(sent).min(known * 2);
        }
        self.last_received = now;
        if !busy {
            self.busy_since = None;
        }
    }

    /// A call was sent. Returns when to look again at the latest.
    pub(crate) fn sent(&mut self, now: Instant) -> Instant {
        let since = *self.busy_since.get_or_insert(now);
        since.max(self.last_received) + self.busy_silence()
    }

    /// No call waits any more, without a byte having arrived.
    pub(crate) fn gave_up(&mut self) {
        self.busy_since = None;
    }

    /// How long nothing has arrived.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_received)
    }

    fn busy_silence(&self) -> Duration {
        BUSY_SILENCE.max(self.round_trip * ROUND_TRIPS)
    }

    fn suspect_after(&self) -> Duration {
        SUSPECT_AFTER.max(self.round_trip * 2)
    }

    /// What the silence up to `now` means. A `Ping` is taken as sent.
    pub(crate) fn verdict(&mut self, now: Instant) -> Verdict {
        if self.due.take().is_some_and(|due| now.saturating_duration_since(due) >= OVERSLEPT) {
            return self.wait_anew(now);
        }
        match self.pinged {
            Some((first, count)) => {
                let waited = now.saturating_duration_since(first);
                if waited >= PING_WAIT * 2 {
                    return Verdict::Dead;
                }
                if count == 1 && waited >= PING_WAIT {
                    self.pinged = Some((first, 2));
                    return Verdict::Ping;
                }
                let waited_busy = self.busy_since.map(|since| now.saturating_duration_since(first.max(since)));
                if waited_busy.is_some_and(|w| w >= self.suspect_after()) { Verdict::Suspect } else { Verdict::Fine }
            }
            None => {
                let idle_over = now.saturating_duration_since(self.last_received) >= self.idle_ping;
                let busy_over = self.busy_since.is_some_and(|since| {
                    now.saturating_duration_since(since.max(self.last_received)) >= self.busy_silence()
                });
                if idle_over || busy_over {
                    self.pinged = Some((now, 1));
                    return Verdict::Ping;
                }
                Verdict::Fine
            }
        }
    }

    /// Every wait begins again, with a ping if none is under way.
    fn wait_anew(&mut self, now: Instant) -> Verdict {
        self.busy_since = self.busy_since.map(|_| now);
        let (count, verdict) = self.pinged.map_or((1, Verdict::Ping), |(_, count)| (count, Verdict::Fine));
        self.pinged = Some((now, count));
        verdict
    }

    /// When to ask for the next verdict, if nothing else happens.
    pub(crate) fn next_check(&mut self, now: Instant) -> Instant {
        let at = self.next_due(now);
        self.due = Some(at);
        at
    }

    fn next_due(&self, now: Instant) -> Instant {
        let idle = self.last_received + self.idle_ping;
        match (self.pinged, self.busy_since) {
            (Some((first, count)), busy) => {
                let next = first + PING_WAIT * count;
                let suspect = busy.map(|since| first.max(since) + self.suspect_after()).filter(|at| *at > now);
                suspect.map_or(next, |at| at.min(next))
            }
            (None, Some(since)) => idle.min(since.max(self.last_received) + self.busy_silence()),
            (None, None) => idle,
        }
    }

    /// The last round trip measured.
    pub(crate) fn round_trip(&self) -> Duration {
        self.round_trip
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(1);

    /// Follows `next_check` until something is to be done.
    fn next_verdict(liveness: &mut Liveness, now: &mut Instant) -> Verdict {
        for _ in 0..10 {
            let at = liveness.next_check(*now);
            assert!(at >= *now, "a check in the past would spin");
            *now = at;
            match liveness.verdict(*now) {
                Verdict::Fine => {}
                verdict => return verdict,
            }
        }
        panic!("no verdict in ten checks");
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_pinged_twice_and_then_dead() {
        let start = Instant::now();
        let mut now = start;
        let mut liveness = Liveness::new(now, RTT, u64::MAX);
        assert_eq!(next_verdict(&mut liveness, &mut now), Verdict::Ping);
        assert!((Duration::from_millis(9_999)..=IDLE_PING).contains(&(now - start)));
        assert_eq!(next_verdict(&mut liveness, &mut now), Verdict::Ping);
        assert_eq!(next_verdict(&mut liveness, &mut now), Verdict::Dead);
        assert!(now - start <= Duration::from_secs(20));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_with_a_call_waiting_is_suspect_within_600_ms() {
        let start = Instant::now();
        let mut liveness = Liveness::new(start, RTT, 0);
        // Idle for 7 s before the call: that silence does not count.
        let sent = start + Duration::from_secs(7);
        let mut now = sent;
        assert_eq!(liveness.sent(now), sent + BUSY_SILENCE);
        assert_eq!(next_verdict(&mut liveness, &mut now), Verdict::Ping);
        assert_eq!(now - sent, BUSY_SILENCE);
        assert_eq!(next_verdict(&mut liveness, &mut now), Verdict::Suspect);
        assert_eq!(now - sent, BUSY_SILENCE + SUSPECT_AFTER);
        liveness.received(now + RTT, true);
        assert_eq!(liveness.verdict(now + RTT), Verdict::Fine);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_stood_still_before_is_suspect_as_soon() {
        let mut now = Instant::now();
        let mut liveness = Liveness::new(now, RTT, 0);
        for _ in 0..5 {
            let sent = now;
            liveness.sent(now);
            assert_eq!(next_verdict(&mut liveness, &mut now), Verdict::Ping);
            assert_eq!(next_verdict(&mut liveness, &mut now), Verdict::Suspect);
            assert!(now - sent <= Duration::from_millis(600), "{:?}", now - sent);
            now += Duration::from_secs(2);
            liveness.received(now, false);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_was_slow_to_say_hello_is_suspect_as_soon() {
        let mut now = Instant::now();
        let mut liveness = Liveness::new(now, Duration::from_millis(450), 0);
        let sent = now;
        liveness.sent(now);
        assert_eq!(next_verdict(&mut liveness, &mut now), Verdict::Ping);
        assert_eq!(next_verdict(&mut liveness, &mut now), Verdict::Suspect);
        assert!(now - sent <= Duration::from_millis(600), "{:?}", now - sent);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_far_away_is_soon_not_suspect_any_more() {
        const FAR: Duration = Duration::from_millis(400);
        let mut now = Instant::now();
        let mut liveness = Liveness::new(now, FAR, 0);
        let mut suspected = Vec::new();
        for _ in 0..5 {
            liveness.sent(now);
            assert_eq!(next_verdict(&mut liveness, &mut now), Verdict::Ping);
            let answer = now + FAR;
            let due = liveness.next_check(now);
            suspected.push(due < answer && liveness.verdict(due) == Verdict::Suspect);
            now = answer;
            liveness.received(now, false);
        }
        assert_eq!(suspected[2..], [false; 3], "{suspected:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn while_this_process_stands_still_the_node_is_not_silent() {
        let start = Instant::now();
        for busy in [false, true] {
            let (mut now, mut liveness) = (start, Liveness::new(start, RTT, u64::MAX));
            if busy {
                liveness.sent(now);
            }
            // First without a ping under way, then with one whose answer waits to be read.
            for verdict in [Verdict::Ping, Verdict::Fine] {
                liveness.next_check(now);
                now += Duration::from_secs(3600);
                assert_eq!(liveness.verdict(now), verdict);
            }
            // Without an answer it is as it ever was.
            let resumed = now;
            let expected: &[_] = if busy { &[Verdict::Suspect] } else { &[Verdict::Ping, Verdict::Dead] };
            for verdict in expected {
                assert_eq!(next_verdict(&mut liveness, &mut now), *verdict);
            }
            assert!(now - resumed <= PING_WAIT * 2, "{:?}", now - resumed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_connection_that_answers_pings_is_fine() {
        let mut now = Instant::now();
        let mut liveness = Liveness::new(now, RTT, 0);
        liveness.sent(now);
        for _ in 0..20 {
            assert_eq!(next_verdict(&mut liveness, &mut now), Verdict::Ping);
            now += RTT;
            liveness.received(now, true);
        }
        assert_eq!(liveness.round_trip(), RTT);
    }
}
