//! Why a peer's certificate is not believed.

use std::io;

use rustls::CertificateError;

/// Why a peer's certificate is not believed. Errors of handshakes hold it (`io::Error::get_ref`).
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
}

fn names(presented: &[String]) -> String {
    if presented.is_empty() { "nobody".to_owned() } else { presented.join(", ") }
}

impl Distrust {
    /// The reason in a failed handshake, if it is one of these.
    pub(super) fn of(error: &io::Error) -> Option<Self> {
        let Some(rustls::Error::InvalidCertificate(reason)) = error.get_ref()?.downcast_ref() else { return None };
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
}
