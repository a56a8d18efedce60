//! A registry for tests: `mem:` behind a network. Operations take time and are counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rpc_core::registry::{
    Capabilities, Coordination, Health, Member, Members, Registration, Registry, RegistryUrl, UpdateError, Version,
};
use rpc_core::{BoxFuture, NodeRecord};
use tokio::sync::watch;

/// `mem:` with operations that last `latency`, which is when others can get in between.
pub(crate) struct SlowRegistry {
    inner: Arc<dyn Registry>,
    latency: Duration,
    /// Readings of single entries.
    pub(crate) reads: AtomicU32,
    /// Updates tried.
    pub(crate) updates: AtomicU32,
    /// Updates that came too late.
    pub(crate) lost: AtomicU32,
}

impl SlowRegistry {
    pub(crate) fn open(url: &str, latency: Duration) -> Arc<Self> {
        let inner = rpc_core::registry::open(&url.parse().unwrap()).unwrap();
        let count = AtomicU32::default;
        Arc::new(Self { inner, latency, reads: count(), updates: count(), lost: count() })
    }
}

impl Registry for SlowRegistry {
    fn url(&self) -> &RegistryUrl {
        self.inner.url()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn register(&self, addr: SocketAddr, record: NodeRecord) -> Registration {
        self.inner.register(addr, record)
    }

    fn members(&self) -> watch::Receiver<Arc<Members>> {
        self.inner.members()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.inner.health()
    }

    fn read(&self, addr: SocketAddr) -> BoxFuture<'_, Result<Option<Member>, UpdateError>> {
        Box::pin(async move {
            self.reads.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(self.latency / 2).await;
            let entry = self.inner.read(addr).await;
            tokio::time::sleep(self.latency / 2).await;
            entry
        })
    }

    fn update(&self, addr: SocketAddr, version: Version, record: NodeRecord) -> BoxFuture<'_, Result<(), UpdateError>> {
        Box::pin(async move {
            self.updates.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(self.latency / 2).await;
            let updated = self.inner.update(addr, version, record).await;
            if updated == Err(UpdateError::Changed) {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            tokio::time::sleep(self.latency / 2).await;
            updated
        })
    }

    fn coordination(&self) -> Option<Arc<dyn Coordination>> {
        self.inner.coordination()
    }

    fn close(&self, timeout: Duration) -> BoxFuture<'_, ()> {
        self.inner.close(timeout)
    }
}
