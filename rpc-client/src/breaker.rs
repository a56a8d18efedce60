//! Takes a node out that keeps failing, and lets it back in by a single call.

use std::time::Duration;

use tokio::time::Instant;

/// Failed connection attempts in a row after which a node is ejected: one may be a lost packet,
/// three are not chance.
pub const FAILED_CONNECTS_MAX: u32 = 3;

/// The time over which the success of calls is judged.
pub const WINDOW: Duration = Duration::from_secs(10);

/// Fewer outcomes in the window than this prove nothing.
pub const OUTCOMES_MIN: u32 = 10;

/// The first ejection lasts this long; each further one twice as long as the last.
pub const EJECTION_FIRST: Duration = Duration::from_secs(1);

/// The longest ejection. A node that stays healthy this long starts anew with the first.
pub const EJECTION_MAX: Duration = Duration::from_secs(30);

/// A probing call without an outcome for this long is taken for lost, and another may go.
pub const PROBE_PATIENCE: Duration = Duration::from_secs(5);

/// Health of one node. Pure: the time is an argument.
///
/// ```text
///            3 failed connects in a row, or under
///            50 % success of 10 or more in 10 s
///   Healthy ─────────────────────────────────────▶ Ejected{until}
///      ▲                                            │       ▲
///      │ the probing call     `until` has passed, or it     │ the probing call, or
///      │ succeeds             was out for its connects      │ another connect, fails
///      │                      and is connected again        │ (twice as long)
///      └─────────────────── Probing ◀───────────────┘       │
///                              └────────────────────────────┘
/// ```
#[derive(Clone, Debug)]
pub struct Breaker {
    state: State,
    failed_connects: u32,
    outcomes: Window,
    /// Duration of the next ejection.
    next_ejection: Duration,
    /// Probing calls admitted so far, which also numbers them.
    probes: u64,
}

/// What a breaker says about its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// It takes calls.
    Healthy,
    /// It takes none until then.
    Ejected {
        /// When it may be tried again.
        until: Instant,
    },
    /// It takes one call at a time, which decides whether it is let in again.
    Probing,
}

/// The part that a call plays for the breaker; handed back with the call's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// One of many.
    Regular,
    /// The call that decides about the node. The number tells it from a lost predecessor.
    Probe(u64),
}

#[derive(Clone, Copy, Debug)]
enum State {
    Healthy { since: Instant },
    Ejected { until: Instant, for_connects: bool },
    Probing { sent_at: Option<Instant> },
}

impl Breaker {
    /// A healthy node.
    pub fn new(now: Instant) -> Self {
        Self {
            state: State::Healthy { since: now },
            failed_connects: 0,
            outcomes: Window::new(now),
            next_ejection: EJECTION_FIRST,
            probes: 0,
        }
    }

    /// Its state at `now`.
    pub fn state(&self, now: Instant) -> BreakerState {
        match self.state {
            State::Healthy { .. } => BreakerState::Healthy,
            State::Ejected { until, .. } if now < until => BreakerState::Ejected { until },
            State::Ejected { .. } | State::Probing { .. } => BreakerState::Probing,
        }
    }

    /// Whether a call may be sent now.
    pub fn admits(&self, now: Instant) -> bool {
        match self.state {
            State::Healthy { .. } => true,
            State::Ejected { until, .. } => now >= until,
            State::Probing { sent_at } => sent_at.is_none_or(|at| now.saturating_duration_since(at) >= PROBE_PATIENCE),
        }
    }

    /// Admits a call that is about to be sent, or refuses it. Whoever gets an admission hands it
    /// back in [`Breaker::outcome`] or [`Breaker::abandoned`].
    pub fn admit(&mut self, now: Instant) -> Option<Admission> {
        if !self.admits(now) {
            return None;
        }
        if let State::Healthy { .. } = self.state {
            return Some(Admission::Regular);
        }
        self.probes += 1;
        self.state = State::Probing { sent_at: Some(now) };
        Some(Admission::Probe(self.probes))
    }

    /// A call ended. `ok` is about the node: an error of the application is a good answer.
    /// `true` if the node was ejected by it, or let in again.
    pub fn outcome(&mut self, now: Instant, admission: Admission, ok: bool) -> bool {
        match (self.state, admission) {
            (State::Healthy { .. }, Admission::Regular) => {
                self.outcomes.record(now, ok);
                let ejected = !ok && self.outcomes.is_failing(now);
                if ejected {
                    self.eject(now, false);
                }
                ejected
            }
            (State::Probing { .. }, Admission::Probe(number)) if number == self.probes => {
                if ok {
                    self.readmit(now);
                } else {
                    self.eject(now, false);
                }
                true
            }
            // The call was sent before the state changed; what it says is known already.
            _ => false,
        }
    }

    /// A call was given up before it had an outcome.
    pub fn abandoned(&mut self, admission: Admission) {
        if let (State::Probing { .. }, Admission::Probe(number)) = (self.state, admission)
            && number == self.probes
        {
            self.state = State::Probing { sent_at: None };
        }
    }

    /// A connection could not be made.
    pub fn connect_failed(&mut self, now: Instant) {
        self.failed_connects = self.failed_connects.saturating_add(1);
        match self.state {
            State::Healthy { .. } if self.failed_connects < FAILED_CONNECTS_MAX => {}
            State::Ejected { until, .. } if now < until => {}
            State::Healthy { .. } | State::Ejected { .. } | State::Probing { .. } => self.eject(now, true),
        }
    }

    /// A connection was made. It ends an ejection for failed connects, whose reason is gone: a
    /// probing call may go at once. An ejection for failed calls runs on.
    pub fn connected(&mut self) {
        self.failed_connects = 0;
        if let State::Ejected { for_connects: true, .. } = self.state {
            self.state = State::Probing { sent_at: None };
        }
    }

    fn eject(&mut self, now: Instant, for_connects: bool) {
        if let State::Healthy { since } = self.state
            && now.saturating_duration_since(since) >= EJECTION_MAX
        {
            self.next_ejection = EJECTION_FIRST;
        }
        self.state = State::Ejected { until: now + self.next_ejection, for_connects };
        self.next_ejection = (self.next_ejection * 2).min(EJECTION_MAX);
    }

    fn readmit(&mut self, now: Instant) {
        self.state = State::Healthy { since: now };
        self.failed_connects = 0;
        self.outcomes = Window::new(now);
    }
}

/// Which nodes of a fleet are out, given what their breakers say: at most half of them. Beyond that
/// the trouble is more likely the network, or this client, than the nodes, and the remaining nodes
/// would be overrun. Those that come back first by themselves are kept in.
///
/// The answer is in the order of `states`.
pub fn out_of_fleet(states: &[BreakerState]) -> Vec<bool> {
    let mut candidates: Vec<(Option<Instant>, usize)> = states
        .iter()
        .enumerate()
        .filter_map(|(index, state)| match *state {
            BreakerState::Healthy => None,
            BreakerState::Probing => Some((None, index)),
            BreakerState::Ejected { until } => Some((Some(until), index)),
        })
        .collect();
    // Longest ejection first; `None`, a node that is being let in, sorts last.
    candidates.sort_by(|a, b| b.cmp(a));
    let mut out = vec![false; states.len()];
    for &(_, index) in candidates.iter().take(states.len() / 2) {
        out[index] = true;
    }
    out
}

/// Outcomes of the last seconds, in slices of one second.
#[derive(Clone, Debug)]
struct Window {
    start: Instant,
    slices: [Slice; WINDOW.as_secs() as usize],
    /// The newest slice and when it ends: most outcomes belong to it, and comparing times costs less
    /// than subtracting them.
    current: usize,
    current_until: Instant,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    /// Seconds from `start` to the beginning of the slice.
    second: u64,
    ok: u32,
    failed: u32,
}

impl Window {
    fn new(start: Instant) -> Self {
        let current_until = start + Duration::from_secs(1);
        Self { start, slices: [Slice::default(); WINDOW.as_secs() as usize], current: 0, current_until }
    }

    fn record(&mut self, now: Instant, ok: bool) {
        // One that comes late, out of order, counts for the newest slice.
        if now >= self.current_until {
            let second = now.saturating_duration_since(self.start).as_secs();
            self.current = (second % WINDOW.as_secs()) as usize;
            self.current_until = self.start + Duration::from_secs(second + 1);
            self.slices[self.current] = Slice { second, ok: 0, failed: 0 };
        }
        let slice = &mut self.slices[self.current];
        let count = if ok { &mut slice.ok } else { &mut slice.failed };
        *count = count.saturating_add(1);
    }

    fn is_failing(&self, now: Instant) -> bool {
        let second = now.saturating_duration_since(self.start).as_secs();
        let recent = self.slices.iter().filter(|slice| slice.second + WINDOW.as_secs() > second);
        let (ok, failed) = recent
            .fold((0u64, 0u64), |(ok, failed), slice| (ok + u64::from(slice.ok), failed + u64::from(slice.failed)));
        ok + failed >= u64::from(OUTCOMES_MIN) && ok < failed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ejected(now: Instant) -> Breaker {
        let mut breaker = Breaker::new(now);
        for _ in 0..FAILED_CONNECTS_MAX {
            breaker.connect_failed(now);
        }
        assert_eq!(breaker.state(now), BreakerState::Ejected { until: now + EJECTION_FIRST });
        breaker
    }

    #[test]
    fn three_failed_connects_in_a_row_eject() {
        let now = Instant::now();
        let mut breaker = Breaker::new(now);
        breaker.connect_failed(now);
        breaker.connect_failed(now);
        breaker.connected();
        breaker.connect_failed(now);
        breaker.connect_failed(now);
        assert_eq!(breaker.state(now), BreakerState::Healthy, "a connection in between starts the count anew");
        breaker.connect_failed(now);
        assert_eq!(breaker.state(now), BreakerState::Ejected { until: now + SECOND });
        assert_eq!(breaker.admit(now), None);
    }

    #[test]
    fn under_half_success_of_ten_or_more_ejects() {
        let now = Instant::now();
        let mut breaker = Breaker::new(now);
        for _ in 0..9 {
            breaker.outcome(now, Admission::Regular, false);
        }
        assert_eq!(breaker.state(now), BreakerState::Healthy, "nine prove nothing");
        breaker.outcome(now, Admission::Regular, false);
        assert!(matches!(breaker.state(now), BreakerState::Ejected { .. }));

        let mut even = Breaker::new(now);
        for i in 0..100 {
            even.outcome(now, Admission::Regular, i % 2 == 0);
        }
        assert_eq!(even.state(now), BreakerState::Healthy, "half is enough");
    }

    #[test]
    fn outcomes_older_than_the_window_do_not_count() {
        let now = Instant::now();
        let mut breaker = Breaker::new(now);
        for _ in 0..9 {
            breaker.outcome(now, Admission::Regular, false);
        }
        breaker.outcome(now + WINDOW, Admission::Regular, false);
        assert_eq!(breaker.state(now + WINDOW), BreakerState::Healthy);
        // A thousand old successes do not hide ten new failures either.
        let mut masked = Breaker::new(now);
        for _ in 0..1000 {
            masked.outcome(now, Admission::Regular, true);
        }
        for _ in 0..10 {
            masked.outcome(now + WINDOW, Admission::Regular, false);
        }
        assert!(matches!(masked.state(now + WINDOW), BreakerState::Ejected { .. }));
    }

    #[test]
    fn one_probing_call_at_a_time_decides() {
        let start = Instant::now();
        let mut breaker = ejected(start);
        let now = start + EJECTION_FIRST;
        assert_eq!(breaker.state(now), BreakerState::Probing);
        let probe = breaker.admit(now).unwrap();
        assert_eq!(breaker.admit(now), None, "a second one has to wait");
        breaker.outcome(now, Admission::Regular, false);
        assert_eq!(breaker.state(now), BreakerState::Probing, "a late failure of an older call does not decide");
        breaker.outcome(now, probe, true);
        assert_eq!(breaker.state(now), BreakerState::Healthy);
        assert_eq!(breaker.admit(now), Some(Admission::Regular));
        assert_eq!(breaker.admit(now), Some(Admission::Regular));
    }

    #[test]
    fn ejections_double_to_the_maximum_and_start_anew_after_good_times() {
        let mut now = Instant::now();
        let mut breaker = ejected(now);
        let mut lengths = Vec::new();
        for _ in 0..7 {
            let BreakerState::Ejected { until } = breaker.state(now) else { panic!("{:?}", breaker.state(now)) };
            lengths.push((until - now).as_secs());
            now = until;
            let probe = breaker.admit(now).unwrap();
            breaker.outcome(now, probe, false);
        }
        assert_eq!(lengths, [1, 2, 4, 8, 16, 30, 30]);
        now += EJECTION_MAX;
        let probe = breaker.admit(now).unwrap();
        breaker.outcome(now, probe, true);
        now += EJECTION_MAX;
        (0..3).for_each(|_| breaker.connect_failed(now));
        assert_eq!(breaker.state(now), BreakerState::Ejected { until: now + EJECTION_FIRST });
    }

    #[test]
    fn a_node_that_fails_again_soon_after_its_return_is_out_for_longer() {
        let start = Instant::now();
        let mut breaker = ejected(start);
        let now = start + EJECTION_FIRST;
        let probe = breaker.admit(now).unwrap();
        breaker.outcome(now, probe, true);
        (0..3).for_each(|_| breaker.connect_failed(now + SECOND));
        assert_eq!(breaker.state(now + SECOND), BreakerState::Ejected { until: now + SECOND + EJECTION_FIRST * 2 });
    }

    #[test]
    fn a_new_connection_ends_an_ejection_for_failed_connects_only() {
        let now = Instant::now();
        let mut breaker = ejected(now);
        breaker.connected();
        assert_eq!(breaker.state(now), BreakerState::Probing);
        assert!(breaker.admit(now).is_some());

        let mut failing = Breaker::new(now);
        for _ in 0..10 {
            failing.outcome(now, Admission::Regular, false);
        }
        failing.connected();
        assert!(matches!(failing.state(now), BreakerState::Ejected { .. }));
    }

    #[test]
    fn a_probing_call_that_is_given_up_or_lost_does_not_keep_the_node_out() {
        let start = Instant::now();
        let mut breaker = ejected(start);
        let now = start + EJECTION_FIRST;
        let given_up = breaker.admit(now).unwrap();
        breaker.abandoned(given_up);
        let lost = breaker.admit(now).unwrap();
        assert_eq!(breaker.admit(now + PROBE_PATIENCE / 2), None);
        let second = breaker.admit(now + PROBE_PATIENCE).unwrap();
        breaker.outcome(now + PROBE_PATIENCE, lost, false);
        assert_eq!(breaker.state(now + PROBE_PATIENCE), BreakerState::Probing, "the second one decides");
        breaker.outcome(now + PROBE_PATIENCE, second, true);
        assert_eq!(breaker.state(now + PROBE_PATIENCE), BreakerState::Healthy);
    }

    #[test]
    fn a_failed_connect_while_probing_ejects_again() {
        let start = Instant::now();
        let mut breaker = ejected(start);
        let now = start + EJECTION_FIRST;
        breaker.connect_failed(now);
        assert_eq!(breaker.state(now), BreakerState::Ejected { until: now + EJECTION_FIRST * 2 });
    }

    #[test]
    fn at_most_half_of_a_fleet_is_out_and_the_longest_ejected_first() {
        let now = Instant::now();
        let until = |seconds| BreakerState::Ejected { until: now + SECOND * seconds };
        assert_eq!(out_of_fleet(&[]), Vec::<bool>::new());
        assert_eq!(out_of_fleet(&[until(9)]), [false], "a single node is never out");
        assert_eq!(out_of_fleet(&[until(9), BreakerState::Healthy]), [true, false]);
        assert_eq!(out_of_fleet(&[until(1), until(9)]), [false, true]);
        assert_eq!(out_of_fleet(&[until(1), until(9), until(5)]), [false, true, false]);
        assert_eq!(
            out_of_fleet(&[BreakerState::Probing, until(1), until(9), BreakerState::Healthy]),
            [false, true, true, false]
        );
        assert_eq!(out_of_fleet(&[BreakerState::Probing, BreakerState::Healthy]), [true, false]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Wait(u64),
        Call(bool),
        ConnectFailed,
        Connected,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u64..40_000).prop_map(Step::Wait),
            any::<bool>().prop_map(Step::Call),
            Just(Step::ConnectFailed),
            Just(Step::Connected),
        ]
    }

    proptest! {
        #[test]
        fn whatever_happens_a_node_is_tried_again_within_the_longest_ejection(
            steps in prop::collection::vec(step(), 0..300),
        ) {
            let mut now = Instant::now();
            let mut breaker = Breaker::new(now);
            for step in steps {
                match step {
                    Step::Wait(ms) => now += Duration::from_millis(ms),
                    Step::Call(ok) => {
                        if let Some(admission) = breaker.admit(now) {
                            breaker.outcome(now, admission, ok);
                        }
                    }
                    Step::ConnectFailed => breaker.connect_failed(now),
                    Step::Connected => breaker.connected(),
                }
                prop_assert!(breaker.admits(now + EJECTION_MAX));
                if breaker.state(now) == BreakerState::Healthy {
                    prop_assert!(breaker.admits(now));
                }
            }
        }

        #[test]
        fn at_least_half_of_every_fleet_stays_and_no_healthy_node_is_out(
            kinds in prop::collection::vec((0u8..3, 0u64..30), 0..40),
        ) {
            let now = Instant::now();
            let states: Vec<_> = kinds.iter().map(|&(kind, seconds)| match kind {
                0 => BreakerState::Healthy,
                1 => BreakerState::Probing,
                _ => BreakerState::Ejected { until: now + SECOND * seconds as u32 },
            }).collect();
            let out = out_of_fleet(&states);
            let count = out.iter().filter(|&&o| o).count();
            let unhealthy = states.iter().filter(|s| **s != BreakerState::Healthy).count();
            prop_assert_eq!(count, unhealthy.min(states.len() / 2));
            prop_assert!(out.iter().zip(&states).all(|(&o, s)| !o || *s != BreakerState::Healthy));
        }
    }
}
