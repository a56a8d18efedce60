//! Options that say who is let in, and by what the server is known.

use std::path::PathBuf;

use rpc_server::{Access, Secret, ServerConfig, ServerTls, ServerTlsFiles};

use crate::Failure;

/// The variable that holds the token itself.
const TOKEN: &str = "RPC_TOKEN";

#[derive(clap::Args)]
#[command(next_help_heading = "Security")]
pub(crate) struct Security {
    /// Serve TLS with this certificate (PEM), read again when it is replaced
    #[arg(long, value_name = "FILE", env = "RPC_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", env = "RPC_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Let in only clients with a certificate of these authorities (PEM)
    #[arg(long, value_name = "FILE", env = "RPC_TLS_CLIENT_CA", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Let in only clients that send the token in this file; RPC_TOKEN holds the token itself
    #[arg(long, value_name = "FILE", env = "RPC_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Who may call what: a JSON file as SECURITY.md describes it
    #[arg(long, value_name = "FILE", env = "RPC_ACCESS_FILE", conflicts_with = "token_file")]
    access_file: Option<PathBuf>,
}

impl Security {
    /// Reads the files.
    pub(crate) fn apply(self, config: &mut ServerConfig) -> Result<(), Failure> {
        let file = |error| Failure { error, next: "correct the file, or name another".into() };
        let variable = |error| Failure { error, next: format!("set {TOKEN} to a longer one, or unset it") };
        if let (Some(cert), Some(key)) = (self.tls_cert, self.tls_key) {
            config.tls =
                Some(ServerTls::files(ServerTlsFiles { cert, key, client_ca: self.tls_client_ca }).map_err(file)?);
        }
        let token = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
        config.access = match (self.access_file, self.token_file, token) {
            (Some(path), ..) => Some(Access::file(path).map_err(file)?),
            (None, Some(path), _) => Some(Access::token_file(path).map_err(file)?),
            (None, None, Some(token)) => Some(Access::token(Secret::new(token)).map_err(variable)?),
            (None, None, None) => None,
        };
        Ok(())
    }
}
