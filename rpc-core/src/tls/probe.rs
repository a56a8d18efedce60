//! TLS with servers that are not ours: reads the files for a library that dials by itself, and finds
//! out why a server refuses, which that library keeps to itself.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::client::config;
use super::{ClientTlsFiles, pem, provider};

/// A client that believes and shows what its files hold.
#[derive(Debug)]
pub(crate) struct Probe {
    config: Arc<ClientConfig>,
    has_identity: bool,
}

/// What the files hold, proven to be of use.
pub(crate) struct PemTexts {
    /// Certificates of authorities.
    pub(crate) ca: String,
    /// A certificate and its key.
    pub(crate) identity: Option<(String, String)>,
}

impl Probe {
    /// Reads the files. In reasons, the file of the authorities is called `ca_file`, the others `cert_file` and
    /// `key_file`.
    ///
    /// # Errors
    /// Which file cannot be read or does not hold what it should, and what it should hold.
    pub(crate) fn read(files: &ClientTlsFiles) -> Result<(Self, PemTexts), String> {
        const CA: Role = Role("ca_file", "certificates of the authorities that issued those of the servers");
        const CERT: Role = Role("cert_file", "this client's certificate and those that lead to its authority");
        const KEY: Role = Role("key_file", "the private key of `cert_file`, without a password");
        let ca = CA.read(&files.ca)?;
        pem::authorities(ca.as_bytes()).map_err(|reason| CA.refuse(&files.ca, &reason))?;
        let identity = match &files.identity {
            None => None,
            Some((cert, key)) => {
                let texts = (CERT.read(cert)?, KEY.read(key)?);
                pem::certificates(texts.0.as_bytes(), "certificate").map_err(|reason| CERT.refuse(cert, &reason))?;
                pem::identity(texts.0.as_bytes(), texts.1.as_bytes()).map_err(|reason| KEY.refuse(key, &reason))?;
                Some(texts)
            }
        };
        let own = identity.as_ref().map(|(cert, key)| (cert.as_bytes(), key.as_bytes()));
        // What is left to go wrong is that the two do not belong together.
        let config = config(rustls::DEFAULT_VERSIONS, ca.as_bytes(), own).map_err(|reason| match &files.identity {
            Some((_, key)) => KEY.refuse(key, &reason),
            None => CA.refuse(&files.ca, &reason),
        })?;
        let has_identity = identity.is_some();
        Ok((Self { config: Arc::new(config), has_identity }, PemTexts { ca, identity }))
    }

    /// Does the handshake with the server that is called `host`.
    ///
    /// # Errors
    /// The server's certificate is not believed or is for another name, or it hangs up. With TLS 1.3, what
    /// the server says to the client's certificate is an error of the first read instead.
    pub(crate) async fn handshake<Io: AsyncRead + AsyncWrite + Unpin>(
        &self,
        io: Io,
        host: &str,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Unpin + use<Io>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(self.config.clone()).connect(name, io).await
    }

    /// What an error of the handshake or of the first read means, and what to change.
    pub(crate) fn explain(&self, error: &io::Error) -> String {
        use rustls::{CertificateError as Bad, Error as E};
        match error.get_ref().and_then(|inner| inner.downcast_ref::<E>()) {
            Some(E::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature)) => {
                "TLS: its certificate was issued by none of the authorities in `ca_file`".into()
            }
            Some(E::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. })) => {
                format!(
                    "TLS: its certificate is for other names; the URL has to call it as the certificate does ({error})"
                )
            }
            Some(E::AlertReceived(alert)) => self.explain_alert(*alert),
            Some(E::InvalidMessage(_)) => format!("{NO_TLS} ({error})"),
            Some(other) => format!("TLS: {other}"),
            None => format!("{NO_TLS} ({error})"),
        }
    }

    fn explain_alert(&self, alert: rustls::AlertDescription) -> String {
        use rustls::AlertDescription as Alert;
        match alert {
            Alert::HandshakeFailure | Alert::ProtocolVersion | Alert::InsufficientSecurity => {
                format!("TLS: it takes none of the versions and ciphers that are offered, 1.2 and 1.3 ({alert:?})")
            }
            _ if self.has_identity => {
                format!("TLS: it does not believe the certificate in `cert_file`, or asks for another ({alert:?})")
            }
            _ => format!(
                "TLS: it refuses a client without a certificate ({alert:?}): give it one with `cert_file` and `key_file`"
            ),
        }
    }
}

/// Where the peer hangs up, or says what is no TLS.
const NO_TLS: &str = "it does not answer as a TLS server does: is that the port of its TLS?";

/// The name of an option, and what its file holds.
struct Role(&'static str, &'static str);

impl Role {
    fn read(&self, path: &Path) -> Result<String, String> {
        let bytes = pem::read(path).map_err(|reason| self.reason(&reason))?;
        String::from_utf8(bytes).map_err(|_| self.refuse(path, "it is not in PEM form"))
    }

    fn refuse(&self, path: &Path, reason: &str) -> String {
        self.reason(&format!("{}: {reason}", path.display()))
    }

    fn reason(&self, reason: &str) -> String {
        format!("option `{}`: {reason}; it takes a PEM file (no Java store) with {}", self.0, self.1)
    }
}

/// Whether a certificate can be for this name.
pub(crate) fn is_server_name(host: &str) -> bool {
    ServerName::try_from(host).is_ok()
}

/// For libraries that ask rustls for the cryptography of the whole program. It panics when there are two to choose
/// from and nobody has chosen; a choice that was made before stays.
pub(crate) fn ensure_default_provider() {
    let provider = Arc::unwrap_or_clone(provider());
    // An error says that there is one already.
    let _ = provider.install_default();
}
