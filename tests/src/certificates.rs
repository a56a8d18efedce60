//! Certificates made for a test.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// An authority, and the files of what it has issued, in a directory of its own.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: tempfile::TempDir,
}

/// A certificate and its key in files.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Authority {
    /// A new authority that nobody believes yet.
    ///
    /// # Panics
    /// When there is no room for files.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are valid names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("the system has randomness");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("the parameters are valid");
        let dir = tempfile::tempdir().expect("a directory for certificates");
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).expect("a file can be written");
        Self { issuer, dir }
    }

    /// The file with its own certificate.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// The directory of its files.
    pub fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// Issues a certificate for `names`: DNS names and IP addresses. Files of the same `file` name are
    /// replaced.
    ///
    /// # Panics
    /// When a name is none.
    pub fn issue(&self, file: &str, names: &[&str]) -> Issued {
        self.issue_until(file, names, None)
    }

    /// The same for a certificate that ends at this time.
    ///
    /// # Panics
    /// When a name is none.
    pub fn issue_until(&self, file: &str, names: &[&str], end: Option<SystemTime>) -> Issued {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("the names are valid");
        if let Some(end) = end {
            let since = end.duration_since(UNIX_EPOCH).expect("it lies after 1970");
            params.not_after = rcgen::date_time_ymd(1970, 1, 1) + since;
        }
        let key = KeyPair::generate().expect("the system has randomness");
        let cert = params.signed_by(&key, &self.issuer).expect("the parameters are valid");
        let issued = Issued {
            cert: self.dir.path().join(format!("{file}.pem")),
            key: self.dir.path().join(format!("{file}.key")),
        };
        std::fs::write(&issued.cert, cert.pem()).expect("a file can be written");
        std::fs::write(&issued.key, key.serialize_pem()).expect("a file can be written");
        issued
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}
