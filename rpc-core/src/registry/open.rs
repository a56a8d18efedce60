//! From a URL to a registry.

use std::sync::Arc;

use super::fixed::FixedRegistry;
#[cfg(unix)]
use super::local::LocalRegistry;
use super::memory::MemoryRegistry;
#[cfg(feature = "zookeeper")]
use super::zookeeper::ZooKeeperRegistry;
use super::{Registry, RegistryUrl, Target};
use crate::Error;

/// Opens the registry that `url` names. It returns at once: the registry is reached in the
/// background, for ever, and [`Registry::health`] says how far that is. To be called within a
/// tokio runtime.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config): the backend does not know one of the URL's options, or is not part of
/// this build.
pub fn open(url: &RegistryUrl) -> Result<Arc<dyn Registry>, Error> {
    match &url.target {
        Target::Static(addrs) => {
            url.only_options(&[])?;
            Ok(Arc::new(FixedRegistry::new(url, addrs)))
        }
        Target::Memory(name) => {
            url.only_options(&[])?;
            Ok(Arc::new(MemoryRegistry::new(url, name)))
        }
        #[cfg(unix)]
        Target::Local(dir) => {
            url.only_options(&[])?;
            Ok(Arc::new(LocalRegistry::new(url, dir.as_deref())?))
        }
        #[cfg(not(unix))]
        Target::Local(_) => Err(missing(url, "it needs a Unix system")),
        #[cfg(all(feature = "zookeeper", not(feature = "zookeeper-tls")))]
        Target::ZooKeeper { tls: true, .. } => Err(missing(
            url,
            "TLS to ZooKeeper needs the feature `zookeeper-tls`, which this build is without: build it with \
             `--features zookeeper-tls`",
        )),
        #[cfg(feature = "zookeeper")]
        Target::ZooKeeper { .. } => Ok(Arc::new(ZooKeeperRegistry::open(url)?)),
        #[cfg(not(feature = "zookeeper"))]
        Target::ZooKeeper { .. } => Err(missing(url, "it needs the feature `zookeeper`, which this build is without")),
    }
}

#[cfg(not(all(unix, feature = "zookeeper-tls")))]
fn missing(url: &RegistryUrl, reason: &str) -> Error {
    crate::ErrorKind::Config(format!("registry URL `{url}`: {reason}")).into()
}

#[cfg(all(test, feature = "zookeeper", not(feature = "zookeeper-tls")))]
mod tests {
    #[test]
    fn a_build_without_tls_says_which_feature_it_lacks() {
        let Err(error) = super::open(&"zk+tls://h:2281/rpc?ca_file=ca.pem".parse().unwrap()) else {
            panic!("it is taken")
        };
        assert!(error.to_string().contains("--features zookeeper-tls"), "{error}");
    }
}
