//! Values read from files that may be replaced while the program runs: certificates and tokens.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{Error, ErrorKind};

/// How often the files are looked at, at most. Whoever replaces a certificate does so days before
/// the old one ends; whoever takes back a token should not have to wait.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Longest file with a token, rules or certificates: far more than any has, and little enough to hold.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Reads a whole file, if it is no longer than such files are.
///
/// # Errors
/// Why it cannot be read, or that it is longer; the file is named.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    let why = |e: std::io::Error| format!("cannot read {}: {e}", path.display());
    let mut bytes = Vec::new();
    File::open(path).map_err(why)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(why)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("cannot read {}: it is longer than {FILE_BYTES_MAX} bytes", path.display()));
    }
    Ok(bytes)
}

/// The same of a file that holds text.
///
/// # Errors
/// As [`read`], or that it is no text.
pub fn read_text(path: &Path) -> Result<String, String> {
    // The bytes are not shown: they may be a secret.
    String::from_utf8(read(path)?).map_err(|_| format!("cannot read {}: it is not UTF-8", path.display()))
}

/// A value read from files, and read again once they have changed. A value that cannot be read is
/// refused with a warning, and the one before it stays. The files are looked at only when
/// somebody asks, so that nothing runs in the background.
pub struct Reloaded<T> {
    /// What the files hold, for messages.
    what: &'static str,
    files: Vec<PathBuf>,
    load: Load<T>,
    state: Mutex<State<T>>,
}

/// None for a value that came from elsewhere, and stays.
type Load<T> = Option<Box<dyn Fn() -> Result<T, String> + Send + Sync>>;

struct State<T> {
    value: Arc<T>,
    stamps: Vec<Stamp>,
    looked: Instant,
}

/// What tells that a file was replaced; none if there is no such file.
type Stamp = Option<(SystemTime, u64)>;

impl<T> Reloaded<T> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] with the reason that `load` gives.
    pub fn new(
        what: &'static str,
        files: Vec<PathBuf>,
        load: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        // Before reading: what is replaced while it is read has another stamp at the next look.
        let stamps = stamps(&files);
        let value = Arc::new(load().map_err(|reason| Error::from(ErrorKind::Config(format!("{what}: {reason}"))))?);
        let state = Mutex::new(State { value, stamps, looked: Instant::now() });
        Ok(Self { what, files, load: Some(Box::new(load)), state })
    }

    /// A value that stays.
    pub fn fixed(what: &'static str, value: T) -> Self {
        let state = State { value: Arc::new(value), stamps: Vec::new(), looked: Instant::now() };
        Self { what, files: Vec::new(), load: None, state: Mutex::new(state) }
    }

    /// The newest value that could be read.
    pub fn current(&self) -> Arc<T> {
        let mut state = self.state.lock();
        let now = Instant::now();
        if let Some(load) = &self.load
            && now.saturating_duration_since(state.looked) >= LOOK_EVERY
        {
            state.looked = now;
            self.look(&mut state, load);
        }
        state.value.clone()
    }

    fn look(&self, state: &mut State<T>, load: &dyn Fn() -> Result<T, String>) {
        let stamps = stamps(&self.files);
        if stamps == state.stamps {
            return;
        }
        state.stamps = stamps;
        match load() {
            Ok(value) => {
                tracing::info!(files = ?self.files, "{} replaced", self.what);
                state.value = Arc::new(value);
            }
            Err(reason) => tracing::warn!("{}: {reason}; the one before stays in use", self.what),
        }
    }
}

/// The paths only: the value may be a secret.
impl<T> fmt::Debug for Reloaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloaded").field("what", &self.what).field("files", &self.files).finish_non_exhaustive()
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |file: &PathBuf| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    files.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_can_be_read_replaces_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("number");
        let path = file.clone();
        let load = move || {
            let text = std::fs::read_to_string(&path).map_err(|e| e.to_string())?;
            text.parse::<u32>().map_err(|e| e.to_string())
        };
        assert!(Reloaded::new("number", vec![file.clone()], load.clone()).is_err());
        std::fs::write(&file, "1").unwrap();
        let number = Reloaded::new("number", vec![file.clone()], load).unwrap();
        std::fs::write(&file, "10").unwrap();
        assert_eq!(*number.current(), 1, "looked at too often");
        tokio::time::advance(LOOK_EVERY).await;
        assert_eq!(*number.current(), 10);
        for broken in ["broken", ""] {
            std::fs::write(&file, broken).unwrap();
            tokio::time::advance(LOOK_EVERY).await;
            assert_eq!(*number.current(), 10);
        }
        std::fs::remove_file(&file).unwrap();
        tokio::time::advance(LOOK_EVERY).await;
        assert_eq!(*number.current(), 10);
        std::fs::write(&file, "100").unwrap();
        tokio::time::advance(LOOK_EVERY).await;
        assert_eq!(*number.current(), 100);
    }
}
