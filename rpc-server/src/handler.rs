//! From async functions to methods.

use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{self, Poll};

use pin_project_lite::pin_project;
use rpc_core::wire::{Id, read_json};
use rpc_core::{Deadline, RpcError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::computing::on_blocking_pool;
use crate::context::{Call, Context};
use crate::handler_error::{from_handler, unfit_params};
use crate::pending::panicked;
use crate::reply::Reply;

/// A method: its name, its handler, and what callers may assume of it.
pub struct Method {
    pub(crate) name: String,
    pub(crate) handler: Box<dyn Handler>,
    pub(crate) idempotent: bool,
    pub(crate) computes: bool,
    pub(crate) summary: String,
}

/// Starts calls. Implemented once for typed and once for raw functions.
pub(crate) trait Handler: Send + Sync {
    /// Reads the params and makes the call's future, without polling it.
    fn start(&self, call: &Call<'_>) -> Result<BoxInvocation, RpcError>;
}

/// A call being handled. It writes its answer itself when it is done, so that a result goes from
/// the handler's type straight into the connection's buffer.
pub(crate) trait Invocation: Send {
    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>, reply: &mut Reply<'_>) -> Poll<()>;

    /// Of several calls in one: ends those that are `unwanted` by their id and deadline. `true` if there
    /// were any; it is to be polled then.
    fn end_parts(self: Pin<&mut Self>, _unwanted: &Unwanted<'_>, _error: &RpcError) -> bool {
        false
    }
}

/// Whether a call with this id and deadline is to end.
pub(crate) type Unwanted<'a> = dyn Fn(Option<&Id<'_>>, Option<Deadline>) -> bool + 'a;

pub(crate) type BoxInvocation = Pin<Box<dyn Invocation>>;

impl Method {
    /// A method from an async function of its params, for example
    /// `async fn add((a, b): (i64, i64)) -> Result<i64, RpcError>`.
    ///
    /// The params are read by serde: a struct takes them by name and by position, a tuple by
    /// position; `()` and `Option` also take a call without params.
    pub fn new<P, F, Fut, R, E>(name: impl Into<String>, function: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        F: Fn(P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: Serialize + Send + 'static,
        E: Into<RpcError> + Send + 'static,
    {
        let start = move |call: &Call<'_>| Ok(invoke(function(params(call)?), call.deadline()));
        Self::from_start(name.into(), start)
    }

    /// A method from an async function of the call's [`Context`] and its params.
    pub fn with_context<P, F, Fut, R, E>(name: impl Into<String>, function: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        F: Fn(Context, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: Serialize + Send + 'static,
        E: Into<RpcError> + Send + 'static,
    {
        let start = move |call: &Call<'_>| Ok(invoke(function(call.context(), params(call)?), call.deadline()));
        Self::from_start(name.into(), start)
    }

    /// A method that takes its params and gives its result as JSON text, for forwarding without
    /// parsing. Without params it gets `null`.
    pub fn raw<F, Fut>(name: impl Into<String>, function: F) -> Self
    where
        F: Fn(Context, Box<RawValue>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Box<RawValue>, RpcError>> + Send + 'static,
    {
        Self::with_context(name, function)
    }

    fn from_start<S>(name: String, start: S) -> Self
    where
        S: Fn(&Call<'_>) -> Result<BoxInvocation, RpcError> + Send + Sync + 'static,
    {
        Self { name, handler: Box::new(Start(start)), idempotent: false, computes: false, summary: String::new() }
    }

    /// Declares that repeating a call does no harm: clients may then repeat it when a node fails.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Declares that the handler computes for long between its awaits. It is then run on the
    /// blocking pool, where it cannot hold up its neighbours on the connection.
    #[must_use]
    pub fn computes(mut self) -> Self {
        self.computes = true;
        self
    }

    /// Reads the params and makes the call's future. One that computes begins to run; another is not
    /// polled yet. No answer may be longer than `limit`.
    #[inline]
    pub(crate) fn start(&self, call: &Call<'_>, limit: usize) -> Result<BoxInvocation, RpcError> {
        // What runs here is not ours: the reading of the params, and the function up to its future.
        let invocation = catch_unwind(AssertUnwindSafe(|| self.handler.start(call)))
            .unwrap_or_else(|panic| Err(panicked(&*panic)))?;
        if self.computes {
            let id = call.request.id.clone().map(Id::into_owned);
            return Ok(on_blocking_pool(invocation, id, call.deadline(), limit));
        }
        Ok(invocation)
    }

    /// One line about it, shown by `rpc.discover`.
    #[must_use]
    pub fn summary(mut self, summary: impl Into<String>) -> Self {
        self.summary = summary.into();
        self
    }
}

impl std::fmt::Debug for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Method").field("name", &self.name).field("idempotent", &self.idempotent).finish_non_exhaustive()
    }
}

struct Start<S>(S);

impl<S> Handler for Start<S>
where
    S: Fn(&Call<'_>) -> Result<BoxInvocation, RpcError> + Send + Sync,
{
    fn start(&self, call: &Call<'_>) -> Result<BoxInvocation, RpcError> {
        (self.0)(call)
    }
}

pin_project! {
    struct Typed<Fut, R, E> {
        #[pin]
        future: Fut,
        // The calls that the handler makes have no more time than it has itself.
        deadline: Option<Deadline>,
        // Its results are only ever produced, so that sending this needs nothing of them.
        types: PhantomData<fn() -> (R, E)>,
    }
}

fn invoke<Fut, R, E>(future: Fut, deadline: Option<Deadline>) -> BoxInvocation
where
    Fut: Future<Output = Result<R, E>> + Send + 'static,
    R: Serialize + 'static,
    E: Into<RpcError> + 'static,
{
    Box::pin(Typed { future, deadline, types: PhantomData })
}

impl<Fut, R, E> Invocation for Typed<Fut, R, E>
where
    Fut: Future<Output = Result<R, E>> + Send,
    R: Serialize,
    E: Into<RpcError>,
{
    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>, reply: &mut Reply<'_>) -> Poll<()> {
        let this = self.project();
        let outcome = task::ready!(Deadline::within(*this.deadline, || this.future.poll(cx)));
        reply.outcome(outcome.map_err(|error| from_handler(error.into())));
        Poll::Ready(())
    }
}

#[inline]
fn params<P: DeserializeOwned>(call: &Call<'_>) -> Result<P, RpcError> {
    let text = call.request.params.unwrap_or(b"null");
    read_json(text).or_else(|_| params_again(text))
}

/// The slow path: says what is wrong with the params, or accepts an empty list of them where the
/// handler wants none.
#[cold]
fn params_again<P: DeserializeOwned>(text: &[u8]) -> Result<P, RpcError> {
    let is_empty = matches!(text.trim_ascii(), b"[]" | b"{}");
    if is_empty && let Ok(nothing) = serde_json::from_slice(b"null") {
        return Ok(nothing);
    }
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let error = match serde_path_to_error::deserialize::<_, P>(&mut deserializer) {
        Err(error) => error,
        // What follows the first value is the trouble.
        Ok(_) => return Err(unfit_params("the params are not one JSON value", ".")),
    };
    let path = error.path().to_string();
    let reason = without_type_names(&error.inner().to_string());
    let message = match path.as_str() {
        "." => format!("params: {reason}"),
        path => format!("params: `{path}`: {reason}"),
    };
    Err(unfit_params(message, &path))
}

/// Serde names the handler's own types, which mean nothing to a caller: `struct Order` becomes
/// `object`, and so on.
fn without_type_names(reason: &str) -> String {
    const KINDS: [(&str, &str); 4] =
        [("tuple struct ", "array"), ("unit struct ", "null"), ("struct ", "object"), ("enum ", "string or object")];
    let Some((before, expected)) = reason.split_once("expected ") else { return reason.to_owned() };
    let kind = KINDS.iter().find_map(|(rust, json)| Some((json, expected.strip_prefix(rust)?)));
    let Some((json, named)) = kind else { return reason.to_owned() };
    let name = named.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(named.len());
    format!("{before}expected {json}{}", &named[name..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_do_not_meet_the_names_of_types() {
        for (serde, said) in [
            (
                "invalid type: integer `5`, expected struct Order at line 1",
                "invalid type: integer `5`, expected object at line 1",
            ),
            (
                "invalid length 1, expected struct Order with 2 elements",
                "invalid length 1, expected object with 2 elements",
            ),
            ("invalid type: map, expected tuple struct Pair at line 1", "invalid type: map, expected array at line 1"),
            ("invalid type: string, expected u64 at line 1", "invalid type: string, expected u64 at line 1"),
            ("missing field `a` at line 1", "missing field `a` at line 1"),
        ] {
            assert_eq!(without_type_names(serde), said);
        }
    }
}
