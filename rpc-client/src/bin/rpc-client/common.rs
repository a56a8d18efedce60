//! What all commands take, and how they connect.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use rpc_client::balance::{self, POLICIES, POLICY_DEFAULT};
use rpc_client::{Client, ClientConfig, Error, ErrorKind};
use rpc_core::registry::{self, Registry, RegistryUrl, Target, parse_duration};
use tokio::time::Instant;

use crate::security::Security;

/// A node that has not answered within this time is not waited for: a choice among those that
/// have is worth more than a complete one.
const SETTLE: Duration = Duration::from_millis(100);

/// The last measurement has this long to reach the registry before the process ends.
const CLOSE: Duration = Duration::from_secs(1);

/// Options of every command.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Common {
    /// Registry: local:[DIR], zk[+tls]://HOST:PORT,…/NAMESPACE or static:IP:PORT,…
    #[arg(long, global = true, value_name = "URL", env = "RPC_REGISTRY", default_value = "local:")]
    pub(crate) registry: String,
    /// Balancing policy
    #[arg(long, global = true, value_name = "NAME", value_parser = policies(), default_value = POLICY_DEFAULT)]
    pub(crate) policy: String,
    /// Output for people, or for programs: one object with everything
    #[arg(long, global = true, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    #[command(flatten)]
    security: Security,
    /// The registry's URL comes from RPC_REGISTRY.
    #[arg(skip)]
    pub(crate) is_from_environment: bool,
}

/// For whom the output is.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

fn policies() -> PossibleValuesParser {
    PossibleValuesParser::new(POLICIES.iter().map(|(name, ..)| *name))
}

/// Reads a duration for clap: `500ms`, `10s`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err(format!("`{text}` is no time to do anything in; write 500ms or 10s")),
        duration => Ok(duration),
    }
}

/// What a command does with what it measures.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It looks and leaves no trace.
    Observer,
    /// It makes one call and delivers its measurement.
    OneCall,
    /// It is a client like any other.
    Client,
}

impl Common {
    /// What `--registry url` and nothing else gives.
    #[cfg(test)]
    pub(crate) fn of_registry(url: &str) -> Self {
        #[derive(clap::Parser)]
        struct Args {
            #[command(flatten)]
            common: Common,
        }
        let Args { common } = clap::Parser::parse_from(["rpc-client", "--registry", url]);
        common
    }

    /// Opens the registry.
    pub(crate) fn open(&self) -> Result<Arc<dyn Registry>, Error> {
        // An empty variable is as good as none.
        let url: RegistryUrl = if self.registry.is_empty() { "local:" } else { &self.registry }.parse()?;
        if matches!(url.target, Target::Memory(_)) {
            let reason = "is known within one process only, and this command is one of its own: use local: or zk://";
            return Err(ErrorKind::Config(format!("registry URL `{url}`: it {reason}")).into());
        }
        registry::open(&url)
    }

    /// What clients have by default, with the certificates and the token of the command line.
    ///
    /// # Errors
    /// A file with a certificate or token cannot be read.
    pub(crate) fn config(&self) -> Result<ClientConfig, Error> {
        let mut config = ClientConfig::default();
        self.security.apply(&mut config)?;
        Ok(config)
    }

    /// The files with certificates, and their options.
    pub(crate) fn certificates(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        self.security.certificates()
    }

    /// A client of an open registry.
    ///
    /// # Errors
    /// A file with a certificate or token cannot be read.
    pub(crate) fn client(&self, role: Role, registry: Arc<dyn Registry>) -> Result<Client, Error> {
        let mut config = ClientConfig { write_back: role != Role::Observer, ..self.config()? };
        if role != Role::Client {
            config.expiry = None;
        }
        let policy = balance::policy(&self.policy).expect("clap has checked the name");
        Client::builder().config(config).policy(policy).connect_to(registry)
    }

    /// Opens the registry and connects with all that is in it.
    pub(crate) fn connect(&self, role: Role) -> Result<Client, Error> {
        self.client(role, self.open()?)
    }
}

/// Waits until the registry's list is there and its nodes are connected, those that take long
/// excepted: at most `timeout`.
///
/// # Errors
/// The registry could not be reached in time.
pub(crate) async fn settle(client: &Client, timeout: Duration) -> Result<(), Error> {
    settle_within(client, timeout, SETTLE).await
}

/// The same with another patience for nodes that take long.
pub(crate) async fn settle_within(client: &Client, timeout: Duration, patience: Duration) -> Result<(), Error> {
    let started = Instant::now();
    let mut changed = client.nodes_changed();
    let listed = async {
        while client.registry_state().list_age_ms.is_none() {
            if changed.changed().await.is_err() {
                break;
            }
        }
    };
    if tokio::time::timeout(timeout, listed).await.is_err() {
        let error = Error::from(ErrorKind::RegistryUnreachable { waited: timeout });
        return Err(error.with_registry(client.registry_state()));
    }
    client.ready(patience.min(timeout.saturating_sub(started.elapsed()))).await;
    Ok(())
}

/// Ends a client, within a moment.
pub(crate) async fn close(client: Client) {
    client.close(CLOSE).await;
}
