//! TLS to the ensemble: files are read and read again, and a refusal is explained.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use zookeeper_client::{TlsCa, TlsCerts, TlsIdentity, TlsOptions};

use super::{diagnosis, host};
use crate::registry::RegistryUrl;
use crate::reloaded::Reloaded;
use crate::tls::{ClientTlsFiles, PemTexts, Probe, ensure_default_provider, is_server_name};
use crate::{Error, ErrorKind};

/// What the files hold, for messages.
const WHAT: &str = "TLS certificates for ZooKeeper";

/// Whom we believe, and how we prove who we are.
#[derive(Debug)]
pub(super) struct Secure(Reloaded<Loaded>);

struct Loaded {
    /// For the crate, which dials.
    certs: TlsCerts,
    /// The same for ourselves, since the crate tells nobody why it fails.
    probe: Arc<Probe>,
}

impl Secure {
    /// Reads the files that the URL names, now and whenever they are replaced.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if one is missing or of no use, or a certificate cannot be for one of the hosts.
    pub(super) fn read(url: &RegistryUrl, hosts: &[String]) -> Result<Self, Error> {
        let files = files(url).map_err(|reason| ErrorKind::Config(format!("registry URL `{url}`: {reason}")))?;
        // The crate panics on a host that is neither.
        if let Some(host) = hosts.iter().map(|server| host(server)).find(|host| !is_server_name(host)) {
            let reason = "is neither a DNS name nor an IP address, so no certificate can be for it";
            return Err(ErrorKind::Config(format!("registry URL `{url}`: `{host}` {reason}")).into());
        }
        ensure_default_provider();
        let mut watched = vec![files.ca.clone()];
        watched.extend(files.identity.iter().flat_map(|(cert, key)| [cert.clone(), key.clone()]));
        Ok(Self(Reloaded::new(WHAT, watched, move || load(&files))?))
    }

    /// For a new client. It keeps them for all its connections; a client that is cut off is replaced soon.
    pub(super) fn options(&self) -> TlsOptions {
        TlsOptions::new().with_certs(self.0.current().certs.clone())
    }

    /// Why the server at the other end of `io` gives no session.
    pub(super) async fn reason(
        &self,
        io: impl AsyncRead + AsyncWrite + Unpin,
        host: &str,
        patience: Duration,
    ) -> String {
        let probe = self.0.current().probe.clone();
        let stream = match timeout(patience, probe.handshake(io, host)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(e)) => return probe.explain(&e),
            Err(_) => return "it accepts connections but does not answer the TLS handshake".into(),
        };
        match diagnosis::ask(stream, patience).await {
            Ok(answer) if answer.is_empty() => {
                "TLS: it closes the connection after the handshake; its log may say why".into()
            }
            Ok(answer) => diagnosis::meaning(&answer),
            Err(e) if e.kind() == io::ErrorKind::TimedOut => diagnosis::SILENT.into(),
            Err(e) => probe.explain(&e),
        }
    }
}

fn files(url: &RegistryUrl) -> Result<ClientTlsFiles, String> {
    let option = |key: &str| url.options.get(key).map(PathBuf::from);
    let ca = option("ca_file").ok_or(
        "TLS needs the option `ca_file`, a PEM file with certificates of the authorities that issued those of the servers",
    )?;
    let identity = match (option("cert_file"), option("key_file")) {
        (None, None) => None,
        (Some(cert), Some(key)) => Some((cert, key)),
        _ => return Err("`cert_file` and `key_file` go together".into()),
    };
    Ok(ClientTlsFiles { ca, identity })
}

fn load(files: &ClientTlsFiles) -> Result<Loaded, String> {
    let (probe, PemTexts { ca, identity }) = Probe::read(files)?;
    let said = |e: zookeeper_client::Error| e.to_string();
    let mut certs = TlsCerts::builder().with_ca(TlsCa::from_pem(&ca).map_err(said)?);
    if let Some((cert, key)) = identity {
        certs = certs.with_identity(TlsIdentity::from_pem(&cert, &key).map_err(said)?);
    }
    Ok(Loaded { certs: certs.build().map_err(said)?, probe: Arc::new(probe) })
}
