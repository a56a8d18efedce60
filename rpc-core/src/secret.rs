//! Secrets, which show themselves to nobody by accident.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use crate::reloaded::{self, Reloaded};
use crate::{Error, ErrorKind};

/// Shortest token. What a program makes is longer; what a person thinks of can be guessed.
pub const TOKEN_BYTES_MIN: usize = 16;

/// Text that must not be shown. Formatting it in any way shows that there is one, and no more.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Takes `text` in charge.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for whoever has to send or compare it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Reads a file that holds nothing else; white space around it does not count.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn read(path: &Path) -> Result<Self, String> {
        Ok(Self(reloaded::read_text(path)?.trim().to_owned()))
    }

    /// Reads a file that holds a token and nothing else.
    ///
    /// # Errors
    /// Why it cannot be read, or that it is too short.
    pub fn read_token(path: &Path) -> Result<Self, String> {
        Self::read(path)?.into_token().map_err(|reason| format!("{}: {reason}", path.display()))
    }

    /// The same, if it is long enough for a token.
    ///
    /// # Errors
    /// It is shorter than [`TOKEN_BYTES_MIN`].
    pub fn into_token(self) -> Result<Self, String> {
        match self.0.len() {
            0..TOKEN_BYTES_MIN => Err(format!("a token has at least {TOKEN_BYTES_MIN} characters")),
            _ => Ok(self),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What a client says in `rpc.hello` to be let in. Clones share it.
#[derive(Clone, Debug)]
pub struct Token(Arc<Reloaded<Secret>>);

impl Token {
    /// A token that stays.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if it is shorter than [`TOKEN_BYTES_MIN`].
    pub fn new(secret: Secret) -> Result<Self, Error> {
        let secret = secret.into_token().map_err(ErrorKind::Config)?;
        Ok(Self(Arc::new(Reloaded::fixed(WHAT, secret))))
    }

    /// A token in a file of its own, read again when that is replaced.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if it cannot be read or is shorter than [`TOKEN_BYTES_MIN`].
    pub fn file(path: PathBuf) -> Result<Self, Error> {
        let file = path.clone();
        let load = move || Secret::read_token(&file);
        Ok(Self(Arc::new(Reloaded::new(WHAT, vec![path], load)?)))
    }

    /// The token as it is now.
    pub fn current(&self) -> Arc<Secret> {
        self.0.current()
    }
}

/// What the file holds, for messages.
const WHAT: &str = "token";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::new("correct horse battery staple");
        let token = Token::new(secret.clone()).unwrap();
        for shown in
            [format!("{secret:?}"), format!("{secret:#?}"), format!("{token:?}"), format!("{:?}", token.current())]
        {
            assert!(!shown.contains("horse"), "{shown}");
        }
    }

    #[test]
    fn a_short_token_is_refused_without_being_shown() {
        let error = Token::new(Secret::new("hunter2")).unwrap_err().to_string();
        assert!(error.contains("at least 16") && !error.contains("hunter2"), "{error}");
    }
}
