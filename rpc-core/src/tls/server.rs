//! The side that accepts.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use super::{TlsStream, handshake_failed, pem, provider};
use crate::reloaded::Reloaded;
use crate::{Error, ErrorKind};

/// What the files hold, for messages.
const WHAT: &str = "TLS certificate";

/// How a server proves who it is, and whether clients have to. Clones share it.
#[derive(Clone, Debug)]
pub struct ServerTls {
    config: Arc<Reloaded<ServerConfig>>,
    mutual: bool,
}

/// PEM files of a server.
#[derive(Clone, Debug)]
pub struct ServerTlsFiles {
    /// Its certificate, followed by those that lead to the authority. Clients compare it with the
    /// address that they dial, or with the name that they are told.
    pub cert: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// Certificates of the authorities whose clients are let in; without it clients need no
    /// certificate.
    pub client_ca: Option<PathBuf>,
}

/// A connection with a client.
#[derive(Debug)]
pub struct Accepted<Io> {
    /// The connection.
    pub stream: TlsStream<Io>,
    /// The names in the client's certificate (DNS names and URIs among its subject alternative
    /// names), if it had to show one.
    pub names: Vec<String>,
}

impl ServerTls {
    /// Reads the files, now and whenever they are replaced.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if one cannot be read, or key and certificate do not belong together.
    pub fn files(files: ServerTlsFiles) -> Result<Self, Error> {
        let ServerTlsFiles { cert, key, client_ca } = files;
        let mutual = client_ca.is_some();
        let watched = [Some(cert.clone()), Some(key.clone()), client_ca.clone()].into_iter().flatten().collect();
        let load = move || {
            let ca = client_ca.as_deref().map(pem::read).transpose()?;
            config(&pem::read(&cert)?, &pem::read(&key)?, ca.as_deref())
                .map_err(|reason| format!("{} with {}: {reason}", cert.display(), key.display()))
        };
        Ok(Self { config: Arc::new(Reloaded::new(WHAT, watched, load)?), mutual })
    }

    /// The same from PEM text, for good.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if it cannot be understood.
    pub fn pem(cert: &[u8], key: &[u8], client_ca: Option<&[u8]>) -> Result<Self, Error> {
        let config = config(cert, key, client_ca);
        let config = config.map_err(ErrorKind::Config)?;
        Ok(Self { config: Arc::new(Reloaded::fixed(WHAT, config)), mutual: client_ca.is_some() })
    }

    /// Whether clients need a certificate.
    pub fn is_mutual(&self) -> bool {
        self.mutual
    }

    /// Reads the files again if they were replaced; otherwise that is done with the next handshake.
    pub fn refresh(&self) {
        self.config.current();
    }

    /// Does the handshake with a client.
    ///
    /// # Errors
    /// The client does not accept the server, has no valid certificate where it needs one, or does
    /// not speak TLS 1.3.
    pub async fn accept<Io: AsyncRead + AsyncWrite + Unpin>(&self, io: Io) -> io::Result<Accepted<Io>> {
        let stream = TlsAcceptor::from(self.config.current()).accept(io).await.map_err(|e| handshake_failed(&e, ""))?;
        let certificates = stream.get_ref().1.peer_certificates();
        let names = certificates.and_then(<[_]>::first).map(names).unwrap_or_default();
        Ok(Accepted { stream: TlsStream::new(stream), names })
    }
}

fn config(cert: &[u8], key: &[u8], client_ca: Option<&[u8]>) -> Result<ServerConfig, String> {
    let (chain, key) = pem::identity(cert, key)?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| e.to_string())?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(pem::authorities(ca)?, provider());
            builder.with_client_cert_verifier(verifier.build().map_err(|e| e.to_string())?)
        }
    };
    builder.with_single_cert(chain, key).map_err(|e| e.to_string())
}

fn names(certificate: &rustls::pki_types::CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else { return Vec::new() };
    certificate.valid_dns_names().chain(certificate.valid_uri_names()).map(str::to_owned).collect()
}
