//! Reading certificates and keys.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::reloaded;

/// A certificate with those that lead to its authority, and its key.
pub(super) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Reads a file; the reason names it.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, String> {
    reloaded::read(path)
}

pub(super) fn identity(cert: &[u8], key: &[u8]) -> Result<Identity, String> {
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| format!("no private key in PEM form: {e}"))?;
    Ok((certificates(cert, "certificate")?, key))
}

/// The authorities that are believed.
pub(super) fn authorities(pem: &[u8]) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, "authority's certificate")? {
        roots.add(certificate).map_err(|e| format!("the authority's certificate is of no use: {e}"))?;
    }
    Ok(Arc::new(roots))
}

pub(super) fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|e| format!("no {what} in PEM form: {e}"))?;
    if certificates.is_empty() { Err(format!("no {what} in PEM form")) } else { Ok(certificates) }
}
