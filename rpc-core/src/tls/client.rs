//! The side that dials.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, SupportedProtocolVersion};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::{TlsStream, handshake_failed, pem, provider};
use crate::reloaded::Reloaded;
use crate::{Error, ErrorKind};

/// What the files hold, for messages.
const WHAT: &str = "TLS certificates";

/// Whom a client believes, and how it proves who it is. Clones share it.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<Reloaded<ClientConfig>>,
    name: Option<ServerName<'static>>,
}

/// PEM files of a client.
#[derive(Clone, Debug)]
pub struct ClientTlsFiles {
    /// Certificates of the authorities that are believed.
    pub ca: PathBuf,
    /// The client's own certificate and its private key, where servers ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl ClientTls {
    /// Reads the files, now and whenever they are replaced.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if one cannot be read, or key and certificate do not belong together.
    pub fn files(files: ClientTlsFiles) -> Result<Self, Error> {
        let ClientTlsFiles { ca, identity } = files;
        let mut watched = vec![ca.clone()];
        watched.extend(identity.iter().flat_map(|(cert, key)| [cert.clone(), key.clone()]));
        let load = move || {
            let believed = pem::read(&ca)?;
            let identity = match &identity {
                Some((cert, key)) => Some((pem::read(cert)?, pem::read(key)?)),
                None => None,
            };
            let own = identity.as_ref().map(|(cert, key)| (&**cert, &**key));
            config(TLS13_ONLY, &believed, own).map_err(|reason| match &identity {
                Some(_) => reason,
                None => format!("{}: {reason}", ca.display()),
            })
        };
        Ok(Self { config: Arc::new(Reloaded::new(WHAT, watched, load)?), name: None })
    }

    /// The same from PEM text, for good. `identity` is a certificate and its key.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if it cannot be understood.
    pub fn pem(ca: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<Self, Error> {
        let config = config(TLS13_ONLY, ca, identity);
        let config = config.map_err(ErrorKind::Config)?;
        Ok(Self { config: Arc::new(Reloaded::fixed(WHAT, config)), name: None })
    }

    /// The name that every server's certificate has to have, instead of the address that was dialled:
    /// where addresses change, one name can stand for the service.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if it is no DNS name or IP address.
    pub fn expect_name(mut self, name: &str) -> Result<Self, Error> {
        let parsed = ServerName::try_from(name.to_owned());
        self.name = Some(parsed.map_err(|_| ErrorKind::Config(format!("`{name}` is no name of a server")))?);
        Ok(self)
    }

    /// Does the handshake with the server at `node`.
    ///
    /// # Errors
    /// The server's certificate is not believed or is for another name, or it does not speak TLS 1.3.
    pub async fn connect<Io: AsyncRead + AsyncWrite + Unpin>(
        &self,
        io: Io,
        node: SocketAddr,
    ) -> io::Result<TlsStream<Io>> {
        let name = self.name.clone().unwrap_or_else(|| ServerName::IpAddress(node.ip().into()));
        let connector = TlsConnector::from(self.config.current());
        let stream = connector
            .connect(name, io)
            .await
            .map_err(|e| handshake_failed(&e, "; does it serve TLS at that address?"))?;
        Ok(TlsStream::new(stream))
    }
}

/// All that our own servers speak.
const TLS13_ONLY: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

pub(super) fn config(
    versions: &[&'static SupportedProtocolVersion],
    ca: &[u8],
    identity: Option<(&[u8], &[u8])>,
) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .map_err(|e| e.to_string())?
        .with_root_certificates(pem::authorities(ca)?);
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some((cert, key)) => {
            let (chain, key) = pem::identity(cert, key)?;
            builder.with_client_auth_cert(chain, key).map_err(|e| e.to_string())
        }
    }
}
