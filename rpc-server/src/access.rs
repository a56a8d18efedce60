//! Who may call what.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use rpc_core::protocol::{self, code};
use rpc_core::reloaded::{self, Reloaded};
use rpc_core::secret::{Secret, TOKEN_BYTES_MIN};
use rpc_core::{Error, ErrorKind, RpcError};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Seconds that a caller has to say who it is.
pub(crate) const AUTHENTICATE_WITHIN: u32 = 5;

/// Longest message of a caller that has not said who it is. A hello has a few hundred bytes.
pub(crate) const STRANGER_BYTES_MAX: usize = 16 * 1024;

/// The name of whoever has the token that all share.
const SHARED: &str = "shared";

/// What the file holds, for messages.
const TOKEN: &str = "token";

/// Who may call what. Clones share it.
#[derive(Clone, Debug)]
pub struct Access(Arc<Reloaded<Rules>>);

/// The rules at a moment.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    tokens: Vec<(Hash, Arc<Identity>)>,
    certificates: Vec<(String, Arc<Identity>)>,
}

/// SHA-256 of a token.
type Hash = [u8; 32];

/// Somebody who is known by name.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) name: Arc<str>,
    methods: Vec<String>,
}

/// How somebody showed who it is: what is looked up again when the rules change.
#[derive(Clone, Debug)]
pub(crate) enum Credential {
    Token(Hash),
    Certificate(Arc<[String]>),
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// Nobody has to say who it is.
    Anyone,
    /// It has yet to say who it is.
    Stranger,
    Known(Arc<Identity>, Credential),
}

impl Access {
    /// Whoever sends this token may call everything.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if it is too short.
    pub fn token(token: Secret) -> Result<Self, Error> {
        let token = token.into_token().map_err(ErrorKind::Config)?;
        Ok(Self(Arc::new(Reloaded::fixed(TOKEN, Rules::shared(&token)))))
    }

    /// The same with the token in a file of its own, read again when that is replaced.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if it cannot be read or is too short.
    pub fn token_file(path: PathBuf) -> Result<Self, Error> {
        let file = path.clone();
        let load = move || Ok(Rules::shared(&Secret::read_token(&file)?));
        Ok(Self(Arc::new(Reloaded::new(TOKEN, vec![path], load)?)))
    }

    /// The rules of a JSON file, read again when it is replaced; its form is in `SECURITY.md`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if it cannot be read or understood.
    pub fn file(path: PathBuf) -> Result<Self, Error> {
        let file = path.clone();
        let load = move || {
            let text = reloaded::read_text(&file)?;
            Rules::parse(&text).map_err(|reason| format!("{}: {reason}", file.display()))
        };
        Ok(Self(Arc::new(Reloaded::new("access file", vec![path], load)?)))
    }

    /// The rules as they are now.
    pub(crate) fn current(&self) -> Arc<Rules> {
        self.0.current()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    tokens: Vec<TokenRule>,
    #[serde(default)]
    certificates: Vec<CertificateRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenRule {
    name: String,
    token: Option<Secret>,
    token_sha256: Option<String>,
    methods: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CertificateRule {
    name: String,
    methods: Vec<String>,
}

impl Rules {
    fn shared(token: &Secret) -> Self {
        let identity = Identity { name: SHARED.into(), methods: vec!["*".into()] };
        Self { tokens: vec![(hash(token.expose()), Arc::new(identity))], certificates: Vec::new() }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: File = serde_json::from_str(text).map_err(|e| told(&e))?;
        let mut rules = Self::default();
        for TokenRule { name, token, token_sha256, methods } in file.tokens {
            let hash = match (token, token_sha256) {
                (Some(token), None) if token.expose().len() < TOKEN_BYTES_MIN => {
                    return Err(format!("the token of `{name}` has less than {TOKEN_BYTES_MIN} characters"));
                }
                (Some(token), None) => hash(token.expose()),
                (None, Some(hex)) => {
                    unhex(&hex).ok_or_else(|| format!("`token_sha256` of `{name}` is not 64 hexadecimal digits"))?
                }
                _ => return Err(format!("`{name}` needs either `token` or `token_sha256`")),
            };
            rules.tokens.push((hash, Identity::new(name, methods)?));
        }
        for CertificateRule { name, methods } in file.certificates {
            rules.certificates.push((name.clone(), Identity::new(name, methods)?));
        }
        let hashes: HashSet<Hash> = rules.tokens.iter().map(|(hash, _)| *hash).collect();
        let names: HashSet<&String> = rules.certificates.iter().map(|(name, _)| name).collect();
        if hashes.len() < rules.tokens.len() || names.len() < rules.certificates.len() {
            return Err("a token or a certificate's name is there twice".into());
        }
        Ok(rules)
    }

    /// The caller with this credential, or [`Caller::Stranger`].
    pub(crate) fn caller(&self, credential: Credential) -> Caller {
        let found = match &credential {
            Credential::Token(hash) => self.by_token(hash),
            Credential::Certificate(names) => {
                self.certificates.iter().find(|(name, _)| names.contains(name)).map(|(_, identity)| identity)
            }
        };
        match found.cloned() {
            Some(identity) => Caller::Known(identity, credential),
            None => Caller::Stranger,
        }
    }

    /// Takes the same time whichever token it is, and if it is none.
    fn by_token(&self, presented: &Hash) -> Option<&Arc<Identity>> {
        let mut found = None;
        for (hash, identity) in &self.tokens {
            if bool::from(hash.ct_eq(presented)) {
                found = Some(identity);
            }
        }
        found
    }
}

impl Identity {
    fn new(name: String, methods: Vec<String>) -> Result<Arc<Self>, String> {
        let wild = |method: &String| method.find('*').is_some_and(|at| at + 1 < method.len());
        match methods.iter().find(|method| method.is_empty() || wild(method)) {
            Some(method) => Err(format!("`{method}` of `{name}`: a method is a name, or ends with `*`")),
            None => Ok(Arc::new(Self { name: name.into(), methods })),
        }
    }

    fn may(&self, method: &str) -> bool {
        self.methods.iter().any(|allowed| match allowed.strip_suffix('*') {
            Some(prefix) => method.starts_with(prefix),
            None => method == allowed,
        })
    }
}

impl Credential {
    pub(crate) fn token(token: &Secret) -> Self {
        Self::Token(hash(token.expose()))
    }
}

impl Caller {
    /// Who is there before it has said anything: what its certificate says, if it had to show one.
    pub(crate) fn new(access: Option<&Access>, certificate: &[String]) -> Self {
        let credential = Credential::Certificate(certificate.into());
        match (access, certificate) {
            (None, []) => Self::Anyone,
            (None, [name, ..]) => {
                let identity = Identity { name: name.as_str().into(), methods: vec!["*".into()] };
                Self::Known(Arc::new(identity), credential)
            }
            (Some(access), _) => access.current().caller(credential),
        }
    }

    pub(crate) fn is_stranger(&self) -> bool {
        matches!(self, Self::Stranger)
    }

    /// Its name, if it has one.
    pub(crate) fn name(&self) -> Option<&Arc<str>> {
        match self {
            Self::Known(identity, _) => Some(&identity.name),
            Self::Anyone | Self::Stranger => None,
        }
    }

    /// Whether it may call `method`.
    ///
    /// # Errors
    /// What to answer if not.
    #[inline]
    pub(crate) fn permit(&self, method: &str) -> Result<(), RpcError> {
        match self {
            Self::Anyone => Ok(()),
            Self::Stranger | Self::Known(..) => self.check(method),
        }
    }

    fn check(&self, method: &str) -> Result<(), RpcError> {
        match self {
            Self::Stranger if !matches!(method, protocol::HELLO | protocol::PING) => Err(unauthenticated()),
            Self::Known(identity, _) if !method.starts_with(protocol::RESERVED_PREFIX) && !identity.may(method) => {
                let message = format!("`{}` may not call `{method}`", identity.name);
                Err(RpcError::new(code::PERMISSION_DENIED, message))
            }
            Self::Anyone | Self::Stranger | Self::Known(..) => Ok(()),
        }
    }
}

#[cold]
pub(crate) fn unauthenticated() -> RpcError {
    RpcError::new(code::UNAUTHENTICATED, "say who you are: `rpc.hello` with a token that this server knows")
}

fn hash(token: &str) -> Hash {
    Sha256::digest(token.as_bytes()).into()
}

fn unhex(text: &str) -> Option<Hash> {
    let mut hash = Hash::default();
    if text.len() != 2 * hash.len() || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(hash)
}

/// What is wrong with the file, without what it holds.
fn told(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!("line {} column {}", error.line(), error.column());
    match error.classify() {
        serde_json::error::Category::Data if text.starts_with("unknown field") || text.starts_with("missing field") => {
            text
        }
        serde_json::error::Category::Data => format!("a value of the wrong type at {place}"),
        _ => format!("no JSON at {place}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of `sixteen characters`, by sha256sum.
    const SIXTEEN: &str = "13c6d9de11543032900651e68f09ed34c4003be50d3c9ba51b032dd78578cdef";

    fn rules(text: &str) -> Rules {
        Rules::parse(text).unwrap()
    }

    fn name(rules: &Rules, token: &str) -> Option<String> {
        rules.caller(Credential::token(&Secret::new(token))).name().map(|name| name.to_string())
    }

    #[test]
    fn a_token_is_told_by_its_text_or_its_hash() {
        let rules = rules(&format!(
            r#"{{"tokens":[{{"name":"a","token":"a token of letters","methods":[]}},{{"name":"b","token_sha256":"{SIXTEEN}","methods":["*"]}}]}}"#
        ));
        assert_eq!(name(&rules, "a token of letters").as_deref(), Some("a"));
        assert_eq!(name(&rules, "sixteen characters").as_deref(), Some("b"));
        for wrong in ["", "a token of letter", "a token of letters ", SIXTEEN] {
            assert_eq!(name(&rules, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn methods_are_names_or_beginnings_of_names() {
        let identity = Identity::new("x".into(), vec!["echo".into(), "orders.*".into()]).unwrap();
        assert!(["echo", "orders.", "orders.list"].iter().all(|method| identity.may(method)));
        assert!(!["ech", "echoes", "orders", "Orders.list", ""].iter().any(|method| identity.may(method)));
        assert!(Identity::new("x".into(), vec!["*".into()]).unwrap().may("anything"));
        assert!(!Identity::new("x".into(), vec![]).unwrap().may("anything"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_without_showing_secrets() {
        let secret = "secret secret secret";
        for (text, reason) in [
            ("", "no JSON"),
            (r#"{"tokens":[{"name":"a","token":"SECRET","method":["*"]}]}"#, "unknown field `method`"),
            (r#"{"tokens":[{"name":"a","token":"SECRET"}]}"#, "missing field `methods`"),
            (r#"{"tokens":["SECRET"]}"#, "wrong type"),
            (r#"{"tokens":[{"name":"a","methods":[]}]}"#, "either `token` or `token_sha256`"),
            (r#"{"tokens":[{"name":"a","token":"short","methods":[]}]}"#, "less than 16"),
            (r#"{"tokens":[{"name":"a","token_sha256":"SECRET","methods":[]}]}"#, "64 hexadecimal digits"),
            (r#"{"tokens":[{"name":"a","token":"SECRET","methods":["a*b"]}]}"#, "ends with `*`"),
            (
                r#"{"tokens":[{"name":"a","token":"SECRET","methods":[]},{"name":"b","token":"SECRET","methods":[]}]}"#,
                "twice",
            ),
        ] {
            let error = Rules::parse(&text.replace("SECRET", secret)).unwrap_err();
            assert!(error.contains(reason) && !error.contains(secret), "{text}: {error}");
        }
    }
}
