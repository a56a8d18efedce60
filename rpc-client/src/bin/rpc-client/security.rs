//! Options that say which servers are believed, and who the client is.

use std::path::{Path, PathBuf};

use rpc_client::{ClientConfig, ClientTls, ClientTlsFiles, Error, Secret, Token};

/// The variable that holds the token itself.
const TOKEN: &str = "RPC_TOKEN";

#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Security")]
pub(crate) struct Security {
    /// Use TLS, and believe servers with a certificate of these authorities (PEM)
    #[arg(long, global = true, value_name = "FILE", env = "RPC_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// The client's own certificate (PEM), for servers that ask for one
    #[arg(long, global = true, value_name = "FILE", env = "RPC_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, global = true, value_name = "FILE", env = "RPC_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// The name in the servers' certificates, where that is not their IP address
    #[arg(long, global = true, value_name = "NAME", env = "RPC_TLS_NAME")]
    tls_name: Option<String>,
    /// Send the token in this file to servers; RPC_TOKEN holds the token itself
    #[arg(long, global = true, value_name = "FILE", env = "RPC_TOKEN_FILE")]
    token_file: Option<PathBuf>,
}

impl Security {
    /// The files with certificates, and their options.
    pub(crate) fn certificates(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let named = [("--tls-ca", &self.tls_ca), ("--tls-cert", &self.tls_cert)];
        named.into_iter().filter_map(|(option, path)| Some((option, path.as_deref()?)))
    }

    /// Reads the files.
    pub(crate) fn apply(&self, config: &mut ClientConfig) -> Result<(), Error> {
        if let Some(ca) = self.tls_ca.clone() {
            let identity = match (self.tls_cert.clone(), self.tls_key.clone()) {
                (Some(cert), Some(key)) => Some((cert, key)),
                (None, None) => None,
                _ => return Err(config_error("--tls-cert and --tls-key go together")),
            };
            let tls = ClientTls::files(ClientTlsFiles { ca, identity })?;
            config.tls = Some(match &self.tls_name {
                Some(name) => tls.expect_name(name)?,
                None => tls,
            });
        } else if self.tls_cert.is_some() || self.tls_key.is_some() || self.tls_name.is_some() {
            return Err(config_error("TLS needs --tls-ca, the authorities that servers are believed by"));
        }
        let token = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
        config.token = match (self.token_file.clone(), token) {
            (Some(path), _) => Some(Token::file(path)?),
            (None, Some(token)) => Some(Token::new(Secret::new(token))?),
            (None, None) => None,
        };
        Ok(())
    }
}

fn config_error(reason: &str) -> Error {
    rpc_client::ErrorKind::Config(reason.into()).into()
}
