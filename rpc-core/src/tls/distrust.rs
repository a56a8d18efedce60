//! Why a certificate is not believed, by either side.

use std::io;

use rustls::{AlertDescription, CertificateError};

/// Why a certificate is not believed, here or by the peer. Errors of handshakes hold it (`io::Error::get_ref`), and
/// those of the first read: with TLS 1.3 a client learns only then what the server says to its certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Distrust {
    /// Its time is over.
    #[error("TLS handshake: the peer's certificate has expired")]
    Expired,
    /// Its time has not begun, or the clock here is wrong.
    #[error("TLS handshake: the peer's certificate is not valid yet, by the clock of this machine")]
    NotYet,
    /// It is for other names or addresses.
    #[error("TLS handshake: the peer's certificate is not for {expected}, but for {}", names(.presented))]
    Name {
        /// The name or address that was wanted.
        expected: String,
        /// Those that it is for.
        presented: Vec<String>,
    },
    /// Another authority has issued it.
    #[error("TLS handshake: the peer's certificate was issued by none of the authorities that are believed here")]
    Authority,
    /// The peer wants a certificate from here, and was shown none.
    #[error("TLS: the peer wants a certificate, and got none (alert CertificateRequired)")]
    Wanted,
    /// The peer does not believe the certificate that it was shown.
    #[error("TLS: the peer does not believe the certificate that it was shown (alert {0})")]
    Refused(String),
}

fn names(presented: &[String]) -> String {
    if presented.is_empty() { "nobody".to_owned() } else { presented.join(", ") }
}

impl Distrust {
    /// The reason in an error of the handshake or of the first read, if it is one of these.
    pub(super) fn of(error: &io::Error) -> Option<Self> {
        match error.get_ref()?.downcast_ref()? {
            rustls::Error::InvalidCertificate(reason) => Self::of_certificate(reason),
            rustls::Error::AlertReceived(alert) => Self::of_alert(*alert),
            _ => None,
        }
    }

    fn of_certificate(reason: &CertificateError) -> Option<Self> {
        Some(match reason {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYet,
            CertificateError::NotValidForNameContext { expected, presented } => Self::Name {
                expected: expected.to_str().into_owned(),
                // As in `DnsName("node.test")`.
                presented: presented.iter().map(|name| name.split('"').nth(1).unwrap_or(name).to_owned()).collect(),
            },
            // The second is of an authority with the name of a believed one, and another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::Authority,
            _ => return None,
        })
    }

    fn of_alert(alert: AlertDescription) -> Option<Self> {
        use AlertDescription as Alert;
        match alert {
            Alert::CertificateRequired => Some(Self::Wanted),
            Alert::AccessDenied
            | Alert::BadCertificate
            | Alert::CertificateExpired
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            // Signed with another key than that of the authority it names, or shown by somebody else.
            | Alert::DecryptError
            | Alert::UnknownCA
            | Alert::UnsupportedCertificate => Some(Self::Refused(format!("{alert:?}"))),
            _ => None,
        }
    }
}
