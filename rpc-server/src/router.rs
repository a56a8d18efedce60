//! Which handler answers which method.

use std::sync::Arc;

use rpc_core::RpcError;
use rpc_core::protocol::{RESERVED_PREFIX, code};

use crate::Method;

/// The methods, sorted by name. A search by halves beats hashing for any number of methods that
/// a server has, and nobody can choose names that make it slow.
#[derive(Debug, Default)]
pub(crate) struct Router {
    methods: Vec<Arc<Method>>,
}

impl Router {
    /// Adds a method; one of the same name is replaced and returned.
    pub(crate) fn add(&mut self, method: Method) -> Option<Arc<Method>> {
        match self.find(&method.name) {
            Ok(at) => Some(std::mem::replace(&mut self.methods[at], Arc::new(method))),
            Err(at) => {
                self.methods.insert(at, Arc::new(method));
                None
            }
        }
    }

    #[inline]
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Method>> {
        self.find(name).ok().map(|at| &self.methods[at])
    }

    #[inline]
    fn find(&self, name: &str) -> Result<usize, usize> {
        self.methods.binary_search_by(|method| method.name.as_str().cmp(name))
    }

    /// The methods, sorted by name.
    pub(crate) fn sorted(&self) -> impl Iterator<Item = &Method> {
        self.methods.iter().map(AsRef::as_ref)
    }

    /// Why one of the methods could never be called, if there is such a one.
    pub(crate) fn uncallable(&self) -> Option<String> {
        self.sorted().find_map(|method| match method.name.as_str() {
            "" => Some("a method was added with the empty name: give it one".to_owned()),
            name if name.starts_with(RESERVED_PREFIX) => Some(format!(
                "the method `{name}` could not be called: names that begin with `{RESERVED_PREFIX}` belong to the protocol"
            )),
            _ => None,
        })
    }

    /// The error for a method that does not exist, with the nearest one that does.
    #[cold]
    pub(crate) fn not_found(&self, name: &str) -> RpcError {
        let nearest = self
            .sorted()
            .map(|method| (distance(name, &method.name), &method.name))
            .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
            .min();
        let (message, near) = match nearest {
            Some((_, near)) => (format!("no method `{name}`; did you mean `{near}`?"), Some(near)),
            None => (format!("no method `{name}`"), None),
        };
        RpcError::new(code::METHOD_NOT_FOUND, message)
            .with_data(&serde_json::json!({ "method": name, "did_you_mean": near }))
    }
}

/// Levenshtein distance, on the first 64 characters: a hostile name must not cost time.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_miss_is_named() {
        let mut router = Router::default();
        for name in ["echo", "time", "orders.list"] {
            assert!(router.add(Method::new(name, |(): ()| async { Ok::<_, RpcError>(()) })).is_none());
        }
        assert!(router.not_found("ecco").message.contains("`echo`"));
        assert!(router.not_found("orders.lst").message.contains("`orders.list`"));
        assert!(!router.not_found("zzzzzz").message.contains("mean"));
        assert!(router.add(Method::new("echo", |(): ()| async { Ok::<_, RpcError>(()) })).is_some());
    }
}
