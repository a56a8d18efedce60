//! The lock and the counters of what is shared between tasks. In model checks they are loom's, which tries every order
//! in which threads can take them: `cargo test -p rpc-client --features loom --lib model`.

#[cfg(all(test, feature = "loom"))]
pub(crate) use modelled::{AtomicU64, Mutex};
#[cfg(not(all(test, feature = "loom")))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(all(test, feature = "loom")))]
pub(crate) use std::sync::atomic::AtomicU64;

#[cfg(all(test, feature = "loom"))]
mod modelled {
    use std::sync::PoisonError;

    pub(crate) use loom::sync::atomic::AtomicU64;
    use loom::sync::{self, MutexGuard};

    /// Loom's lock with the interface of parking_lot's.
    #[derive(Default)]
    pub(crate) struct Mutex<T>(sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
