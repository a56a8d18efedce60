//! One call: choosing, sending, and what to do when that fails.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use rpc_core::backoff::full_jitter;
use rpc_core::load::method_hash;
use rpc_core::wire::RequestMeta;
use rpc_core::{Attempt, Deadline, Error, ErrorKind, NotRepeated, whole_ms};
use serde::Serialize;
use tokio::time::Instant;

use crate::CallOptions;
use crate::balance::{Event, NodeId};
use crate::channel::{Answer, Channel, Outgoing, room_on_any, waker};
use crate::client::Inner;
use crate::decisions::{Asked, Trace, attempt};
use crate::ended::Ended;
use crate::node::Outcome;
use crate::pool::{Choice, Chosen, Probes};
use crate::refusals::{is_for_good, is_time_enough, not_repeated};
use crate::reply::Success;
use crate::snapshot::{Snapshot, Usable};

/// Repetitions of a call that may have been started already, if that does no harm.
pub(crate) const REPEATS_MAX: usize = 2;

/// First pause after every usable node was tried without the call being started anywhere; it
/// doubles, with full jitter.
const ROUND_FIRST: Duration = Duration::from_millis(5);

/// Longest such pause.
const ROUND_MAX: Duration = Duration::from_secs(1);

/// How far a call is.
#[derive(Default)]
struct Progress {
    trace: Trace,
    /// Rounds of probes since the call was last sent.
    probed: u32,
    /// Nothing as long as the first attempt is under way, as it is with most calls. The rest is boxed, as are the
    /// rare waits below, to keep the future of a call small: with many calls in flight its size decides what is in
    /// the cache.
    setbacks: Option<Box<Setbacks>>,
}

/// What a call has tried in vain so far.
#[derive(Default)]
struct Setbacks {
    /// Nodes not to be chosen in this round.
    tried: Vec<NodeId>,
    /// Those among them that may have started the call, or refuse it for good: never chosen again.
    burnt: Vec<NodeId>,
    attempts: Vec<Attempt>,
    repeats: usize,
    rounds: u32,
    /// The connections of this round that had no room.
    crowded: Vec<Arc<Channel>>,
    /// When the first node of this round that is overloaded wants to be asked again.
    come_back: Option<Instant>,
    /// What the last attempt failed with.
    last: Option<ErrorKind>,
    /// Whether an attempt may have started the call.
    started: bool,
    /// Why the call is not repeated, should that be its end.
    not_repeated: Option<NotRepeated>,
}

/// The parts of a call that stay the same for all its attempts.
struct Request<'a, P: ?Sized> {
    method: &'a str,
    params: &'a P,
    options: &'a CallOptions,
    started: Instant,
    method_hash: u32,
    key: Option<u64>,
    timeout: Duration,
    deadline: Deadline,
}

impl<'a, P: ?Sized> Request<'a, P> {
    fn new(method: &'a str, params: &'a P, options: &'a CallOptions, timeout: Duration) -> Self {
        let started = Instant::now();
        let (timeout, deadline) = options.time(timeout, started);
        let (method_hash, key) = (method_hash(method), options.key.as_deref().map(hash));
        Self { method, params, options, started, method_hash, key, timeout, deadline }
    }

    fn asked<'b>(&self, now: Instant, setbacks: Option<&'b Setbacks>, probed: u32) -> Asked<'b>
    where
        'a: 'b,
    {
        let tried = setbacks.map_or(&[][..], |setbacks| &setbacks.tried);
        Asked { method: self.method, method_hash: self.method_hash, key: self.key, now, tried, probed }
    }

    fn remaining_ms(&self, now: Instant) -> u64 {
        // Nothing has passed before the usual first attempt, which is spared a subtraction of times.
        if now == self.started { whole_ms(self.timeout) } else { self.deadline.remaining_ms(now) }
    }

    fn outgoing(&self, now: Instant, attempt: usize, bound_us: Option<f64>, movable: bool) -> Outgoing<'_, P> {
        let meta = RequestMeta {
            timeout_ms: Some(self.remaining_ms(now)),
            attempt: attempt as u32,
            bound_us: bound_us.map(|us| us.clamp(0.0, 1e15) as u64),
            key: self.options.key.as_deref().map(Cow::Borrowed),
            traceparent: None,
        };
        let deadline = self.deadline.instant();
        Outgoing { method: self.method, meta, params: self.params, now, deadline, movable }
    }
}

impl Inner {
    pub(crate) async fn call<P: Serialize + ?Sized>(
        &self,
        method: &str,
        params: &P,
        options: &CallOptions,
    ) -> Result<Success, Error> {
        let request = Request::new(method, params, options, self.config.call_timeout);
        let mut progress = Progress { trace: self.decisions.begin(options.explain), ..Progress::default() };
        let mut now = request.started;
        loop {
            let choice = match self.choose_next(&mut progress, &request, now) {
                Chosen::Node(choice) => choice,
                Chosen::Probe(probes) if !probes.wait() => {
                    progress.probed += 1;
                    self.pool.send_probes(probes);
                    continue;
                }
                Chosen::Probe(probes) => {
                    Box::pin(self.probe(&mut progress, probes, request.deadline)).await;
                    now = Instant::now();
                    continue;
                }
                Chosen::None => {
                    Box::pin(self.wait_for_choice(&mut progress, &request)).await?;
                    now = Instant::now();
                    continue;
                }
            };
            progress.probed = 0;
            match self.attempt(&choice, &request, &progress, now).await {
                Ended::Answered(answer) => {
                    self.record_answer(&mut progress.trace, choice.usable.node.addr, now, answer.received);
                    let attempts = progress.setbacks.map_or_else(Vec::new, |setbacks| setbacks.attempts);
                    let Request { started, .. } = request;
                    return Ok(Success { answer, usable: choice.usable, started, sent: now, attempts });
                }
                ended => self.after_attempt(&mut progress, &request, &choice, ended, now)?,
            }
            now = Instant::now();
        }
    }

    #[inline]
    fn choose_next<P: ?Sized>(&self, progress: &mut Progress, request: &Request<'_, P>, now: Instant) -> Chosen {
        let Progress { trace, probed, setbacks } = progress;
        self.choose(&request.asked(now, setbacks.as_deref(), *probed), trace)
    }

    /// Learns more about the nodes before one is chosen.
    async fn probe(&self, progress: &mut Progress, probes: Probes, deadline: Deadline) {
        progress.probed += 1;
        // Whether in time or not, the next choice is made with what is known by then.
        let _ = tokio::time::timeout_at(deadline.instant(), self.pool.probe(probes)).await;
    }

    /// Sends the call to one node and waits for what comes of it.
    #[inline]
    async fn attempt<P: Serialize + ?Sized>(
        &self,
        choice: &Choice,
        request: &Request<'_, P>,
        progress: &Progress,
        now: Instant,
    ) -> Ended {
        let Choice { usable, bound, alone, .. } = choice;
        let node = &*usable.node;
        if request.deadline.is_over(now) {
            return Ended::TooLate(ErrorKind::DeadlineExceeded { timeout: request.timeout });
        }
        // A node that is being tried out takes one call at a time, unless there is no other.
        let in_flight = match node.begin(now) {
            Some(in_flight) => in_flight,
            None if *alone => node.begin_anyway(),
            None => return Ended::NotStarted(ErrorKind::NoNode),
        };
        // With one node there is no choice to learn for.
        if !alone {
            self.pool.observe(&Event::Sent { node: node.id, now });
        }
        let waker = waker().await;
        let channel = &usable.channels[usable.next_channel()];
        let may_repeat = self.may_repeat(request, channel, progress.setbacks.as_deref());
        let setbacks = progress.setbacks.as_deref();
        let movable = may_repeat && self.may_move(setbacks);
        let attempt = setbacks.map_or(0, |setbacks| setbacks.attempts.len());
        // What is sent is gone before the reply is awaited.
        let sent = channel.send(&request.outgoing(now, attempt, *bound, movable), waker);
        let outcome = match sent {
            // Boxed, so that other calls do not carry what only this one needs.
            Ok(exchange) if request.options.hedge && may_repeat && usable.reports && !alone => {
                Box::pin(self.hedged(exchange, usable, request.method_hash)).await
            }
            Ok(exchange) => exchange.await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(answer) if answer.ok => {
                let latency = answer.received.saturating_duration_since(now);
                if in_flight.end(answer.received, Outcome::Answered(latency), answer.load) {
                    self.pool.poke();
                }
                self.learn(choice, &answer, latency);
                Ended::Answered(answer)
            }
            other => {
                let at = Instant::now();
                let latency = at.saturating_duration_since(now);
                let report = other.as_ref().ok().and_then(|answer| answer.load);
                let (outcome, ended) = Ended::judge(node.addr, channel, request.timeout, other, may_repeat, latency);
                let ok = !matches!(outcome, Outcome::Failed(_));
                if in_flight.end(at, outcome, report) {
                    self.pool.poke();
                }
                let (node, now) = (node.id, at);
                self.pool.observe(&match ended.is_refused() {
                    true => Event::Refused { node, now, report },
                    false => Event::Reply { node, now, latency, ok, report },
                });
                ended
            }
        }
    }

    #[inline]
    fn learn(&self, choice: &Choice, answer: &Answer, latency: Duration) {
        if let Some(samples) = &choice.usable.samples {
            samples.record(answer.received, latency);
        }
        if !choice.alone {
            let (node, now, report) = (choice.usable.node.id, answer.received, answer.load);
            self.pool.observe(&Event::Reply { node, now, latency, ok: true, report });
        }
    }

    /// Takes one repeat out of the budget; `false` if there is none.
    pub(crate) fn may_spend(&self, now: Instant) -> bool {
        self.budget.try_spend(now, self.decisions.calls())
    }

    /// Whether there would be a node to move the call to. If not, it rather waits at a silent one.
    fn may_move(&self, setbacks: Option<&Setbacks>) -> bool {
        let burnt = setbacks.map_or(0, |setbacks| setbacks.burnt.len());
        burnt == 0 || self.pool.snapshot().all.len() > burnt + 1
    }

    fn may_repeat<P: ?Sized>(&self, request: &Request<'_, P>, channel: &Channel, setbacks: Option<&Setbacks>) -> bool {
        setbacks.is_none_or(|setbacks| setbacks.repeats < REPEATS_MAX)
            && (request.options.idempotent || channel.peer.idempotent.iter().any(|m| m == request.method))
    }

    /// Records an attempt without a result, and decides whether the call goes on.
    #[cold]
    fn after_attempt<P: ?Sized>(
        &self,
        progress: &mut Progress,
        request: &Request<'_, P>,
        choice: &Choice,
        ended: Ended,
        sent: Instant,
    ) -> Result<(), Error> {
        let Progress { trace, probed, setbacks } = progress;
        let asked = request.asked(sent, setbacks.as_deref(), *probed);
        let outcome = attempt(choice.usable.node.addr, sent.elapsed(), &ended.text());
        self.record_failure(trace, &asked, choice, outcome, ended.is_refused());
        self.after_failure(setbacks.get_or_insert_default(), &choice.usable, ended, sent)
    }

    /// Decides whether the call goes on.
    #[cold]
    fn after_failure(
        &self,
        setbacks: &mut Setbacks,
        usable: &Usable,
        ended: Ended,
        sent: Instant,
    ) -> Result<(), Error> {
        let now = Instant::now();
        let node = usable.node.id;
        setbacks.tried.push(node);
        let (kind, goes_on) = match ended {
            Ended::Crowded(channel) => {
                setbacks.crowded.push(channel);
                return Ok(());
            }
            Ended::NotStarted(ErrorKind::NoNode) => return Ok(()),
            // What the attempts failed with says more than that there is no time for another.
            Ended::TooLate(kind) => {
                let kind = setbacks.last.take().unwrap_or(kind);
                return Err(self.give_up(setbacks, kind));
            }
            Ended::NotStarted(kind) => {
                let told = kind.retry_after().map(|after| Deadline::after(now, after).instant());
                setbacks.come_back = setbacks.come_back.into_iter().chain(told).min();
                if is_for_good(&kind, usable.node.addr, &setbacks.attempts) {
                    setbacks.burnt.push(node);
                }
                (kind, true)
            }
            Ended::Started(kind, may_repeat) => {
                setbacks.burnt.push(node);
                setbacks.started = true;
                let repeat = may_repeat && self.may_spend(now);
                setbacks.not_repeated = Some(not_repeated(may_repeat, repeat, setbacks.repeats));
                setbacks.repeats += usize::from(repeat);
                (kind, repeat)
            }
            Ended::Hung(kind) => {
                setbacks.burnt.push(node);
                setbacks.started = true;
                setbacks.not_repeated = Some(NotRepeated::NoOtherNode);
                setbacks.repeats += 1;
                (kind, true)
            }
            Ended::Final(kind) => (kind, false),
            Ended::Answered(_) => return Ok(()),
        };
        let elapsed = now.saturating_duration_since(sent);
        setbacks.attempts.push(attempt(usable.node.addr, elapsed, &kind.to_string()));
        if goes_on {
            setbacks.last = Some(kind);
            return Ok(());
        }
        Err(self.give_up(setbacks, kind))
    }

    /// The error of a call that ends so.
    fn give_up(&self, setbacks: &mut Setbacks, kind: ErrorKind) -> Error {
        let error = self.error(kind, std::mem::take(&mut setbacks.attempts));
        error.with_not_repeated(setbacks.not_repeated).with_started(setbacks.started)
    }

    /// Waits until there may be a node to choose: for the first list, a first connection, room on
    /// a full one, or a pause before those that refused are asked again.
    #[cold]
    async fn wait_for_choice<P: ?Sized>(&self, progress: &mut Progress, request: &Request<'_, P>) -> Result<(), Error> {
        let mut published = self.pool.published();
        let snapshot = self.pool.snapshot();
        let setbacks = progress.setbacks.get_or_insert_default();
        if self.pool.is_closed() {
            return Err(self.give_up(setbacks, ErrorKind::Closed));
        }
        // Nodes may have come since there was nothing to choose. More than once, it is the policy that
        // wants none of them, and is asked again after a pause.
        if setbacks.rounds == 0 && snapshot.usable.iter().any(|u| !setbacks.tried.contains(&u.node.id)) {
            setbacks.rounds = 1;
            return Ok(());
        }
        let retryable = snapshot.usable.iter().any(|u| !setbacks.burnt.contains(&u.node.id));
        let hopeful = snapshot.all.iter().any(|l| l.hopeful && !setbacks.burnt.contains(&l.node.id));
        let worth_waiting = !snapshot.known || hopeful || retryable || self.config.wait_for_node;
        if !worth_waiting {
            return Err(self.no_choice(progress, request, &snapshot));
        }
        // Not all at the moment that they were told.
        let now = Instant::now();
        let told = setbacks.come_back.take().map(|at| at.saturating_duration_since(now));
        let pause = if retryable {
            told.unwrap_or_default() + full_jitter(setbacks.rounds, ROUND_FIRST, ROUND_MAX, self.pool.random())
        } else {
            request.timeout
        };
        let crowded = std::mem::take(&mut setbacks.crowded);
        let before = setbacks.attempts.last().map(|last| Duration::from_micros(last.elapsed_us));
        let after_pause = request.deadline.remaining(now).saturating_sub(pause);
        let asks_again = crowded.is_empty() && is_time_enough(after_pause, before, request.timeout);
        let wait = async {
            tokio::select! {
                () = self.pool.news(&mut published, retryable.then_some(&setbacks.tried)) => {}
                () = room_on_any(&crowded), if !crowded.is_empty() => {}
                () = tokio::time::sleep(pause), if asks_again => {}
            }
        };
        if tokio::time::timeout_at(request.deadline.instant(), wait).await.is_err() {
            let snapshot = self.pool.snapshot();
            let kind = match (snapshot.known, &setbacks.last) {
                (false, _) => ErrorKind::RegistryUnreachable { waited: request.timeout },
                (true, None) if !snapshot.usable.is_empty() => ErrorKind::DeadlineExceeded { timeout: request.timeout },
                (true, _) => return Err(self.no_choice(progress, request, &snapshot)),
            };
            return Err(self.give_up(setbacks, kind));
        }
        setbacks.rounds += 1;
        setbacks.tried.clone_from(&setbacks.burnt);
        Ok(())
    }

    /// The error when no node is left: what the last attempt failed with, if there was one, or
    /// what keeps the listed nodes from being used.
    fn no_choice<P: ?Sized>(&self, progress: &mut Progress, request: &Request<'_, P>, snapshot: &Snapshot) -> Error {
        let Progress { trace, probed, setbacks } = progress;
        let asked = request.asked(Instant::now(), setbacks.as_deref(), *probed);
        self.record_no_node(trace, &asked, snapshot);
        let setbacks = setbacks.get_or_insert_default();
        let Some(kind) = setbacks.last.take() else {
            let troubles = snapshot.all.iter().filter_map(|l| Some((l.member.addr, l.trouble.as_ref()?)));
            setbacks.attempts.extend(troubles.map(|(node, trouble)| attempt(node, Duration::ZERO, trouble)));
            return self.give_up(setbacks, snapshot.no_node());
        };
        self.give_up(setbacks, kind)
    }

    pub(crate) async fn notify<P: Serialize + ?Sized>(&self, method: &str, params: &P) -> Result<(), Error> {
        let options = CallOptions::default();
        let request = Request::new(method, params, &options, self.config.call_timeout);
        let mut progress = Progress::default();
        loop {
            let now = Instant::now();
            let choice = match self.pool.choose(&request.asked(now, progress.setbacks.as_deref(), progress.probed)) {
                Chosen::Node(choice) => choice,
                Chosen::Probe(probes) => {
                    self.probe(&mut progress, probes, request.deadline).await;
                    continue;
                }
                Chosen::None => {
                    self.wait_for_choice(&mut progress, &request).await?;
                    continue;
                }
            };
            let channel = &choice.usable.channels[choice.usable.next_channel()];
            let Err(error) = channel.notify(method, params) else { return Ok(()) };
            let (node, timeout) = (choice.usable.node.addr, request.timeout);
            let (_, ended) = Ended::judge(node, channel, timeout, Err(error), false, Duration::ZERO);
            self.after_failure(progress.setbacks.get_or_insert_default(), &choice.usable, ended, now)?;
        }
    }
}

/// Equal keys hash equally in every client: the hasher has fixed keys.
fn hash(key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}
