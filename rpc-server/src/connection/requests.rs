//! What the messages of a connection ask for.

use std::task::{Context, Waker};

use rpc_core::RpcError;
use rpc_core::load::method_hash;
use rpc_core::protocol::{self, PROTOCOL_VERSION, code, feature};
use rpc_core::secret::Secret;
use rpc_core::wire::{Id, Incoming, LoadText, Request, parse, parse_any, peek_id, put_error, put_request};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::{Connection, batch};
use crate::access::{Caller, Credential, STRANGER_BYTES_MAX, unauthenticated};
use crate::context::Call;
use crate::handler_error::unfit_params;
use crate::load::{Account, Running};
use crate::pending::poll_caught;
use crate::reply::Reply;

/// Params of `rpc.hello`.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with the member `version`")]
struct Hello {
    version: u32,
    /// What the caller understands.
    #[serde(default)]
    features: Vec<String>,
    /// The incarnation that the caller means to reach.
    #[serde(default)]
    incarnation: Option<String>,
    /// Who the caller is.
    #[serde(default)]
    token: Option<Secret>,
}

/// Params of `rpc.cancel`.
#[derive(Debug, Deserialize)]
struct Cancel<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
}

impl<Io: AsyncRead + AsyncWrite + Unpin> Connection<Io> {
    pub(super) fn message(&mut self, message: &[u8], now: Instant) {
        match parse(message) {
            Incoming::Request(request) if request.method.starts_with(protocol::RESERVED_PREFIX) => {
                match request.params.map(|_| parse_any(message)) {
                    // In the usual spelling the end of the params was not looked for.
                    Some(Incoming::Request(exact)) => self.reserved(&exact),
                    Some(Incoming::Invalid(invalid)) => self.answer_error(&invalid.id, &invalid.error),
                    _ => self.reserved(&request),
                }
            }
            Incoming::Request(request) => self.request(message, &request, now),
            // The answer to a ping: that it came is all it says.
            Incoming::Response(_) => {}
            Incoming::Batch(elements) => {
                let invocation = batch::start(&elements, &self.shared, self.peer, &self.caller, now, self.leaving);
                self.pending.push(None, None, invocation, Account::None);
            }
            Incoming::Invalid(invalid) => self.answer_error(&invalid.id, &invalid.error),
        }
    }

    fn request(&mut self, message: &[u8], request: &Request<'_>, now: Instant) {
        let call = Call { request, peer: self.peer, received: now, caller: &self.caller };
        let started = self.shared.start(&call, self.leaving);
        let limit = self.limit();
        let method = method_hash(&request.method);
        let mut reply = Reply { out: &mut self.out, id: request.id.as_ref(), limit, account: &mut self.at_once };
        let mut invocation = match started {
            Ok(invocation) => invocation,
            Err(error) if error.code == code::INVALID_PARAMS => return self.misread(message, request, &error, now),
            Err(error) => return self.answer(request, Err(error)),
        };
        // Polled in place once, without a waker: a handler that is not ready is polled again, with
        // one, as soon as it is in the set.
        let mut cx = Context::from_waker(Waker::noop());
        if poll_caught(&mut invocation, &mut cx, &mut reply).is_pending() {
            let id = request.id.clone().map(Id::into_owned);
            let account = Account::Running(Running::begin(&self.shared.load, now, method, self.wants_load));
            self.pending.push(id, call.deadline(), invocation, account);
        } else if let Account::AtOnce(tally) = &mut self.at_once {
            tally.method = method;
        }
    }

    /// The params do not fit. In the usual spelling the message was not checked as a whole: members
    /// may follow the params, or it may be no JSON at all.
    #[cold]
    fn misread(&mut self, message: &[u8], request: &Request<'_>, error: &RpcError, now: Instant) {
        match parse_any(message) {
            // Once only: read so, the params end where they end.
            Incoming::Request(again) if again.params != request.params => self.request(message, &again, now),
            Incoming::Invalid(invalid) => self.answer_error(&invalid.id, &invalid.error),
            Incoming::Request(_) | Incoming::Response(_) | Incoming::Batch(_) => {
                self.answer(request, Err(error.clone()))
            }
        }
    }

    fn reserved(&mut self, request: &Request<'_>) {
        if let Err(error) = self.caller.permit(&request.method) {
            return self.answer(request, Err(error));
        }
        match &*request.method {
            protocol::CANCEL => {
                let cancel = request.params.and_then(|p| serde_json::from_slice::<Cancel<'_>>(p).ok());
                if let Some(id) = cancel.and_then(|cancel| Id::of(cancel.id)) {
                    let limit = self.limit();
                    self.pending.cancel(&id, &mut self.out, limit);
                }
                // Meant to be a notification, which this does not answer.
                self.answer(request, Ok(serde_json::Value::Null));
            }
            protocol::PROBE => {
                let load = self.shared.probe(request);
                let load = load.as_ref().map(|load| {
                    serde_json::from_slice::<&RawValue>(load.as_bytes()).expect("an array of numbers is JSON")
                });
                let limit = self.limit();
                let mut account = Account::None;
                Reply { out: &mut self.out, id: request.id.as_ref(), limit, account: &mut account }
                    .outcome(load.map_err(Clone::clone));
            }
            protocol::HELLO => {
                let answer = self.hello(request);
                self.answer(request, answer);
            }
            _ => {
                let answer = self.shared.reserved(request, &self.caller);
                self.answer(request, answer);
            }
        }
    }

    fn hello(&mut self, request: &Request<'_>) -> Result<serde_json::Value, RpcError> {
        let params = request.params.unwrap_or(b"null");
        let hello: Hello =
            serde_json::from_slice(params).map_err(|e| unfit_params(format!("{}: {e}", protocol::HELLO), "."))?;
        let shared = self.shared.clone();
        let ours = &shared.incarnation;
        if hello.version != PROTOCOL_VERSION {
            let message = format!("this server speaks version {PROTOCOL_VERSION}, not {}", hello.version);
            return Err(
                RpcError::new(code::INCOMPATIBLE_VERSION, message).with_data(&json!({ "version": PROTOCOL_VERSION }))
            );
        }
        self.authenticate(hello.token.as_ref())?;
        if hello.incarnation.as_ref().is_some_and(|wanted| wanted != ours) {
            return Err(RpcError::new(code::WRONG_INCARNATION, "another instance answers at this address")
                .with_data(&json!({ "incarnation": ours })));
        }
        if self.leaving || self.shared.is_draining() {
            // It came after goaway was sent to everybody: with this answer it is told all the same.
            self.leaving = true;
            return Err(self.shared.draining());
        }
        self.greeted = true;
        self.wants_load = hello.features.iter().any(|f| f == feature::LOAD);
        self.link.link.greeted.store(true, std::sync::atomic::Ordering::Relaxed);
        Ok(json!({
            "version": PROTOCOL_VERSION,
            "features": [feature::PING, feature::GOAWAY, feature::LOAD],
            "incarnation": ours,
            "message_bytes_max": self.limit(),
            "idempotent": self.shared.idempotent(),
        }))
    }

    /// Believes who the caller says it is, or ends the connection after this answer: each guess costs
    /// the one who guesses a connection.
    fn authenticate(&mut self, token: Option<&Secret>) -> Result<(), RpcError> {
        let Some(access) = &self.shared.config.access else { return Ok(()) };
        let rules = access.current();
        if let Some(token) = token {
            self.caller = rules.caller(Credential::token(token));
        }
        self.meet();
        if self.caller.is_stranger() { Err(unauthenticated()) } else { Ok(()) }
    }

    /// Looks again who the caller is, after the rules have changed.
    pub(super) fn recognise(&mut self) {
        let Some(access) = &self.shared.config.access else { return };
        let rules = access.current();
        if let Caller::Known(_, credential) = &self.caller {
            self.caller = rules.caller(credential.clone());
            self.meet();
        }
    }

    /// Draws the consequences of who the caller is.
    fn meet(&mut self) {
        let stranger = self.caller.is_stranger();
        self.link.link.stranger.store(stranger, std::sync::atomic::Ordering::Relaxed);
        self.input_limit = Some(if stranger { STRANGER_BYTES_MAX.min(self.limit()) } else { self.limit() });
        if stranger {
            // Closes once what was started is answered.
            self.leaving = true;
            self.greeted = false;
        }
    }

    fn answer(&mut self, request: &Request<'_>, answer: Result<serde_json::Value, RpcError>) {
        let limit = self.limit();
        let mut account = match &answer {
            Err(error) if matches!(error.code, code::REFUSED | code::OVERLOADED) && self.wants_load => {
                Account::Refused(LoadText::new(&self.shared.load.report(method_hash(&request.method))))
            }
            _ => Account::None,
        };
        Reply { out: &mut self.out, id: request.id.as_ref(), limit, account: &mut account }.outcome(answer);
    }

    fn answer_error(&mut self, id: &Id<'_>, error: &RpcError) {
        let limit = self.limit();
        put_error(&mut self.out, id, None, error, limit);
    }

    /// A message over the limit was passed over; the connection lives on.
    pub(super) fn oversized(&mut self, size: usize, head: &[u8]) {
        self.reads = self.reads.wrapping_add(1);
        let limit = self.limit();
        let message = format!("the request has {size} bytes, the limit is {limit}");
        let data = json!({"what": "request", "size": size, "limit": limit,
            "hint": "send less, or raise the limit on both sides"});
        let id = peek_id(head).map_or(Id::NULL, Id::Number);
        self.answer_error(&id, &RpcError::new(code::TOO_LARGE, message).with_data(&data));
    }

    pub(super) fn ping(&mut self) {
        self.pings += 1;
        put_request(&mut self.out, self.pings, protocol::PING, &Default::default(), &(), usize::MAX)
            .expect("a request without params fits");
    }

    fn limit(&self) -> usize {
        self.shared.config.message_bytes_max
    }
}
