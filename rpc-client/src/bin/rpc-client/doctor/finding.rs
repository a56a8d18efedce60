//! One thing that was looked at.

use std::fmt;

use rpc_core::printable;
use serde::Serialize;

/// One thing that was looked at, and what was found.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// A stable name of what was looked for.
    check: &'static str,
    /// What it is about: a node's address, a name in the registry, or the registry itself.
    about: String,
    fact: String,
    /// What follows from it, of what is not ok.
    #[serde(skip_serializing_if = "Option::is_none")]
    consequence: Option<String>,
    /// What mends it, of what is not ok.
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    /// It works, but not as well, or not for all.
    Warning,
    /// Calls fail, or nodes get none.
    Problem,
}

impl Finding {
    pub(super) fn ok(check: &'static str, about: impl ToString + Copy, fact: impl Into<String>) -> Self {
        Self { level: Level::Ok, check, about: about.to_string(), fact: fact.into(), consequence: None, mend: None }
    }

    /// What is not as it should be: the fact, what follows, and what mends it.
    pub(super) fn bad(level: Level, check: &'static str, about: impl ToString + Copy, said: [String; 3]) -> Self {
        let [fact, consequence, mend] = said;
        let about = about.to_string();
        Self { level, check, about, fact, consequence: Some(consequence), mend: Some(mend) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Problem => "PROBLEM",
        };
        write!(f, "{mark:7}  {}: {}", printable(&self.about), printable(&self.fact))?;
        for (label, text) in [("; ", &self.consequence), (" -> ", &self.mend)] {
            if let Some(text) = text {
                write!(f, "{label}{}", printable(text))?;
            }
        }
        Ok(())
    }
}
