//! One call: choosing, sending, and what to do when that fails.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpc_core::backoff::full_jitter;
use rpc_core::load::method_hash;
use rpc_core::protocol;
use rpc_core::wire::{EncodeError, RequestMeta, give_body};
use rpc_core::{Attempt, Deadline, Error, ErrorKind, NotRepeated, RpcError, whole_ms};
use serde::Serialize;
use tokio::time::Instant;

use crate::CallOptions;
use crate::balance::{Event, NodeId};
use crate::channel::{Answer, Channel, Exchange, ExchangeError, Failure, room_on_any};
use crate::client::Inner;
use crate::decisions::{Asked, Trace, attempt};
use crate::ended::Ended;
use crate::node::Outcome;
use crate::pool::{Choice, Chosen, Probes};
use crate::refusals::{is_failure, is_for_good, is_time_enough, not_repeated};
use crate::reply::Success;
use crate::snapshot::{Snapshot, Usable};

/// Repetitions of a call that may have been started already, if that does no harm.
pub(crate) const REPEATS_MAX: usize = 2;

/// First pause after every usable node was tried without the call being started anywhere; it
/// doubles, with full jitter.
const ROUND_FIRST: Duration = Duration::from_millis(5);

/// Longest such pause.
const ROUND_MAX: Duration = Duration::from_secs(1);

/// What a call has tried so far.
#[derive(Default)]
struct Progress {
    /// Nodes not to be chosen in this round.
    tried: Vec<NodeId>,
    /// Those among them that may have started the call, or refuse it for good: never chosen again.
    burnt: Vec<NodeId>,
    attempts: Vec<Attempt>,
    repeats: usize,
    rounds: u32,
    /// Rounds of probes since the call was last sent.
    probed: u32,
    /// The connections of this round that had no room.
    crowded: Vec<Arc<Channel>>,
    /// When the first node of this round that is overloaded wants to be asked again.
    come_back: Option<Instant>,
    /// What the last attempt failed with.
    last: Option<ErrorKind>,
    trace: Trace,
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
    fn asked<'b>(&self, now: Instant, tried: &'b [NodeId], probed: u32) -> Asked<'b>
    where
        'a: 'b,
    {
        Asked { method: self.method, method_hash: self.method_hash, key: self.key, now, tried, probed }
    }

    fn remaining_ms(&self, now: Instant) -> u64 {
        // Nothing has passed before the usual first attempt, which is spared a subtraction of times.
        if now == self.started { whole_ms(self.timeout) } else { self.deadline.remaining_ms(now) }
    }

    fn meta(&self, now: Instant, attempt: usize, bound_us: Option<f64>) -> RequestMeta<'_> {
        RequestMeta {
            timeout_ms: Some(self.remaining_ms(now)),
            attempt: attempt as u32,
            bound_us: bound_us.map(|us| us.clamp(0.0, 1e15) as u64),
            key: self.options.key.as_deref().map(Cow::Borrowed),
            traceparent: None,
        }
    }
}

impl Inner {
    pub(crate) async fn call<P: Serialize + ?Sized>(
        &self,
        method: &str,
        params: &P,
        options: &CallOptions,
    ) -> Result<Success, Error> {
        let started = Instant::now();
        let (timeout, deadline) = options.time(self.config.call_timeout, started);
        let (method_hash, key) = (method_hash(method), options.key.as_deref().map(hash));
        let request = Request { method, params, options, method_hash, key, started, timeout, deadline };
        self.budget.call();
        let mut progress = Progress { trace: self.decisions.begin(options.explain), ..Progress::default() };
        let mut now = started;
        loop {
            let asked = request.asked(now, &progress.tried, progress.probed);
            let choice = match self.choose(&asked, &mut progress.trace) {
                Chosen::Node(choice) => choice,
                Chosen::Probe(probes) if !probes.wait() => {
                    progress.probed += 1;
                    self.pool.send_probes(probes);
                    continue;
                }
                Chosen::Probe(probes) => {
                    // The rare waits are boxed, here and below, to keep the future of a call small: with many
                    // calls in flight its size decides what is in the cache.
                    Box::pin(self.probe(&mut progress, probes, deadline)).await;
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
                    let attempts = progress.attempts;
                    return Ok(Success { answer, usable: choice.usable, started, sent: now, attempts });
                }
                ended => {
                    let asked = request.asked(now, &progress.tried, progress.probed);
                    let outcome = attempt(choice.usable.node.addr, now.elapsed(), &ended.text());
                    self.record_failure(&mut progress.trace, &asked, &choice, outcome, ended.is_refused());
                    self.after_failure(&mut progress, &choice.usable, ended, now)?;
                }
            }
            now = Instant::now();
        }
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
        let channel = &usable.channels[usable.next_channel()];
        let may_repeat = self.may_repeat(request, channel, progress);
        let exchange = Exchange {
            channel,
            method: request.method,
            meta: request.meta(now, progress.attempts.len(), *bound),
            params: request.params,
            now,
            deadline: request.deadline.instant(),
            movable: may_repeat && self.may_move(progress),
            id: None,
        };
        let outcome = if request.options.hedge && may_repeat && usable.reports && !alone {
            // Boxed, so that other calls do not carry what only this one needs.
            Box::pin(self.hedged(exchange, usable, request.method_hash)).await
        } else {
            exchange.await
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
                let (outcome, ended) = self.judge(node.addr, channel, request, other, may_repeat, latency);
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

    /// Whether there would be a node to move the call to. If not, it rather waits at a silent one.
    fn may_move(&self, progress: &Progress) -> bool {
        progress.burnt.is_empty() || self.pool.snapshot().all.len() > progress.burnt.len() + 1
    }

    fn may_repeat<P: ?Sized>(&self, request: &Request<'_, P>, channel: &Channel, progress: &Progress) -> bool {
        progress.repeats < REPEATS_MAX
            && (request.options.idempotent || channel.peer.idempotent.iter().any(|m| m == request.method))
    }

    /// What an attempt without a result says about its node, and what follows for the call.
    #[cold]
    fn judge<P: ?Sized>(
        &self,
        node: SocketAddr,
        channel: &Arc<Channel>,
        request: &Request<'_, P>,
        outcome: Result<Answer, ExchangeError>,
        may_repeat: bool,
        elapsed: Duration,
    ) -> (Outcome, Ended) {
        let lost = |sent, reason: &str| ErrorKind::Transport { node, sent, reason: reason.to_owned() };
        match outcome {
            Ok(answer) => {
                let error = serde_json::from_slice::<RpcError>(&answer.body)
                    .unwrap_or_else(|e| RpcError::internal(format!("the node sent a malformed error: {e}")));
                give_body(answer.body);
                let outcome = if is_failure(&error) { Outcome::Failed(elapsed) } else { Outcome::ApplicationError };
                let elsewhere = protocol::error_code(error.code).is_some_and(|known| known.retry && !known.started);
                let kind = ErrorKind::Remote { node, error };
                (outcome, if elsewhere { Ended::NotStarted(kind) } else { Ended::Final(kind) })
            }
            Err(ExchangeError::Encode(EncodeError::TooLarge { size, limit })) => {
                (Outcome::ApplicationError, Ended::Final(ErrorKind::TooLarge { size, limit }))
            }
            Err(ExchangeError::Encode(error)) => {
                (Outcome::ApplicationError, Ended::Final(ErrorKind::BadRequest(error.to_string())))
            }
            Err(ExchangeError::Crowded) => (Outcome::ApplicationError, Ended::Crowded(channel.clone())),
            Err(ExchangeError::Failed(Failure::Deadline)) => {
                let error = ErrorKind::DeadlineExceeded { timeout: request.timeout };
                (Outcome::Failed(elapsed), Ended::Final(error))
            }
            // The probe has told the policy, and the node may have had a pause only.
            Err(ExchangeError::Hung) => {
                (Outcome::ApplicationError, Ended::Hung(lost(true, "the node gave no sign of life")))
            }
            Err(ExchangeError::Failed(Failure::Silent)) => {
                (Outcome::Failed(elapsed), Ended::Started(lost(true, "the node has fallen silent"), may_repeat))
            }
            Err(ExchangeError::Failed(Failure::Closed { sent: true })) => (
                Outcome::Failed(elapsed),
                Ended::Started(lost(true, "the connection closed before the answer"), may_repeat),
            ),
            Err(ExchangeError::Failed(Failure::Closed { sent: false })) => {
                let error = lost(false, "the connection closed before the request had left");
                (Outcome::ApplicationError, Ended::NotStarted(error))
            }
        }
    }

    /// Decides whether the call goes on.
    #[cold]
    fn after_failure(
        &self,
        progress: &mut Progress,
        usable: &Usable,
        ended: Ended,
        sent: Instant,
    ) -> Result<(), Error> {
        let now = Instant::now();
        let node = usable.node.id;
        progress.tried.push(node);
        let (kind, goes_on) = match ended {
            Ended::Crowded(channel) => {
                progress.crowded.push(channel);
                return Ok(());
            }
            Ended::NotStarted(ErrorKind::NoNode) => return Ok(()),
            // What the attempts failed with says more than that there is no time for another.
            Ended::TooLate(kind) => {
                let kind = progress.last.take().unwrap_or(kind);
                return Err(self.give_up(progress, kind));
            }
            Ended::NotStarted(kind) => {
                let told = kind.retry_after().map(|after| Deadline::after(now, after).instant());
                progress.come_back = progress.come_back.into_iter().chain(told).min();
                if is_for_good(&kind, usable.node.addr, &progress.attempts) {
                    progress.burnt.push(node);
                }
                (kind, true)
            }
            Ended::Started(kind, may_repeat) => {
                progress.burnt.push(node);
                progress.started = true;
                let repeat = may_repeat && self.budget.try_spend(now);
                progress.not_repeated = Some(not_repeated(may_repeat, repeat, progress.repeats));
                progress.repeats += usize::from(repeat);
                (kind, repeat)
            }
            Ended::Hung(kind) => {
                progress.burnt.push(node);
                progress.started = true;
                progress.not_repeated = Some(NotRepeated::NoOtherNode);
                progress.repeats += 1;
                (kind, true)
            }
            Ended::Final(kind) => (kind, false),
            Ended::Answered(_) => return Ok(()),
        };
        let elapsed = now.saturating_duration_since(sent);
        progress.attempts.push(attempt(usable.node.addr, elapsed, &kind.to_string()));
        if goes_on {
            progress.last = Some(kind);
            return Ok(());
        }
        Err(self.give_up(progress, kind))
    }

    /// The error of a call that ends so.
    fn give_up(&self, progress: &mut Progress, kind: ErrorKind) -> Error {
        let error = self.error(kind, std::mem::take(&mut progress.attempts));
        error.with_not_repeated(progress.not_repeated).with_started(progress.started)
    }

    /// Waits until there may be a node to choose: for the first list, a first connection, room on
    /// a full one, or a pause before those that refused are asked again.
    #[cold]
    async fn wait_for_choice<P: ?Sized>(&self, progress: &mut Progress, request: &Request<'_, P>) -> Result<(), Error> {
        let mut published = self.pool.published();
        let snapshot = self.pool.snapshot();
        if self.pool.is_closed() {
            return Err(self.give_up(progress, ErrorKind::Closed));
        }
        // Nodes may have come since there was nothing to choose. More than once, it is the policy that
        // wants none of them, and is asked again after a pause.
        if progress.rounds == 0 && snapshot.usable.iter().any(|u| !progress.tried.contains(&u.node.id)) {
            progress.rounds = 1;
            return Ok(());
        }
        let retryable = snapshot.usable.iter().any(|u| !progress.burnt.contains(&u.node.id));
        let hopeful = snapshot.all.iter().any(|l| l.hopeful && !progress.burnt.contains(&l.node.id));
        let worth_waiting = !snapshot.known || hopeful || retryable || self.config.wait_for_node;
        if !worth_waiting {
            return Err(self.no_choice(progress, request, &snapshot));
        }
        // Not all at the moment that they were told.
        let now = Instant::now();
        let told = progress.come_back.take().map(|at| at.saturating_duration_since(now));
        let pause = if retryable {
            told.unwrap_or_default() + full_jitter(progress.rounds, ROUND_FIRST, ROUND_MAX, self.pool.random())
        } else {
            request.timeout
        };
        let crowded = std::mem::take(&mut progress.crowded);
        let before = progress.attempts.last().map(|last| Duration::from_micros(last.elapsed_us));
        let after_pause = request.deadline.remaining(now).saturating_sub(pause);
        let asks_again = crowded.is_empty() && is_time_enough(after_pause, before, request.timeout);
        let wait = async {
            tokio::select! {
                () = self.pool.news(&mut published, retryable.then_some(&progress.tried)) => {}
                () = room_on_any(&crowded), if !crowded.is_empty() => {}
                () = tokio::time::sleep(pause), if asks_again => {}
            }
        };
        if tokio::time::timeout_at(request.deadline.instant(), wait).await.is_err() {
            let snapshot = self.pool.snapshot();
            let kind = match (snapshot.known, &progress.last) {
                (false, _) => ErrorKind::RegistryUnreachable { waited: request.timeout },
                (true, None) if !snapshot.usable.is_empty() => ErrorKind::DeadlineExceeded { timeout: request.timeout },
                (true, _) => return Err(self.no_choice(progress, request, &snapshot)),
            };
            return Err(self.give_up(progress, kind));
        }
        progress.rounds += 1;
        progress.tried.clone_from(&progress.burnt);
        Ok(())
    }

    /// The error when no node is left: what the last attempt failed with, if there was one, or
    /// what keeps the listed nodes from being used.
    fn no_choice<P: ?Sized>(&self, progress: &mut Progress, request: &Request<'_, P>, snapshot: &Snapshot) -> Error {
        let asked = request.asked(Instant::now(), &progress.tried, progress.probed);
        self.record_no_node(&mut progress.trace, &asked, snapshot);
        let Some(kind) = progress.last.take() else {
            let troubles = snapshot.all.iter().filter_map(|l| Some((l.member.addr, l.trouble.as_ref()?)));
            progress.attempts.extend(troubles.map(|(node, trouble)| attempt(node, Duration::ZERO, trouble)));
            return self.give_up(progress, snapshot.no_node());
        };
        self.give_up(progress, kind)
    }

    pub(crate) async fn notify<P: Serialize + ?Sized>(&self, method: &str, params: &P) -> Result<(), Error> {
        let started = Instant::now();
        let options = CallOptions::default();
        let (timeout, deadline) = options.time(self.config.call_timeout, started);
        let method_hash = method_hash(method);
        let request = Request { method, params, options: &options, method_hash, key: None, started, timeout, deadline };
        let mut progress = Progress::default();
        loop {
            let now = Instant::now();
            let choice = match self.pool.choose(&request.asked(now, &progress.tried, progress.probed)) {
                Chosen::Node(choice) => choice,
                Chosen::Probe(probes) => {
                    self.probe(&mut progress, probes, deadline).await;
                    continue;
                }
                Chosen::None => {
                    self.wait_for_choice(&mut progress, &request).await?;
                    continue;
                }
            };
            let channel = &choice.usable.channels[choice.usable.next_channel()];
            let Err(error) = channel.notify(method, params) else { return Ok(()) };
            let elapsed = Duration::ZERO;
            let (_, ended) = self.judge(choice.usable.node.addr, channel, &request, Err(error), false, elapsed);
            self.after_failure(&mut progress, &choice.usable, ended, now)?;
        }
    }
}

/// Equal keys hash equally in every client: the hasher has fixed keys.
fn hash(key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}
