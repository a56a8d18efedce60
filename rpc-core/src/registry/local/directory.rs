//! Where things are on disk.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The directory of a namespace. It holds one payload file per node, named `ip:port`. Everything
/// else is in the hidden subdirectory `.cluster`, so that it is never mistaken for a node:
///
/// ```text
/// ROOT/127.0.0.1:8898                 payload, replaced whole by rename
/// ROOT/.cluster/locks/127.0.0.1:8898  locked by the node for as long as it lives
/// ROOT/.cluster/write                 locked by whoever changes anything
/// ROOT/.cluster/new                   the next payload, before it is renamed
/// ROOT/.cluster/jobs/JOB.lock         locked by the leader of a job
/// ROOT/.cluster/jobs/JOB.slot         the last slot claimed
/// ```
#[derive(Debug)]
pub(super) struct Directory {
    root: PathBuf,
    /// The only user who may own and write the root. None for a directory that the user named: he
    /// may share it with whom he likes.
    owner: Option<u32>,
}

/// Tells a file from another one that took its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId(u64, u64);

impl FileId {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self(metadata.dev(), metadata.ino())
    }
}

impl Directory {
    /// The directory that the user named.
    pub(super) fn named(root: &Path) -> io::Result<Self> {
        Ok(Self { root: std::path::absolute(root)?, owner: None })
    }

    /// `$XDG_RUNTIME_DIR/rpc`, or `rpc-UID` in the directory for temporary files.
    pub(super) fn of_user() -> io::Result<Self> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        match runtime.filter(|dir| dir.is_absolute() && dir.is_dir()) {
            Some(dir) => Ok(Self { owner: Some(user_id(&dir)?), root: dir.join("rpc") }),
            None => {
                let temp = std::env::temp_dir();
                let user = user_id(&temp)?;
                Ok(Self { root: temp.join(format!("rpc-{user}")), owner: Some(user) })
            }
        }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn node(&self, addr: SocketAddr) -> PathBuf {
        self.root.join(addr.to_string())
    }

    pub(super) fn locks(&self) -> PathBuf {
        self.root.join(".cluster/locks")
    }

    pub(super) fn lock(&self, addr: SocketAddr) -> PathBuf {
        self.locks().join(addr.to_string())
    }

    pub(super) fn write(&self) -> PathBuf {
        self.root.join(".cluster/write")
    }

    pub(super) fn new_file(&self) -> PathBuf {
        self.root.join(".cluster/new")
    }

    /// A file of `job`; characters that could leave the directory are escaped.
    pub(super) fn job(&self, job: &str, suffix: &str) -> PathBuf {
        let mut name = String::new();
        for byte in job.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
                _ => name.push_str(&format!("%{byte:02X}")),
            }
        }
        self.root.join(".cluster/jobs").join(name + suffix)
    }

    /// Makes what is missing, as a server does that registers. Who only reads makes nothing.
    pub(super) fn prepare(&self) -> io::Result<()> {
        let jobs = self.root.join(".cluster/jobs");
        if !jobs.is_dir() || !self.locks().is_dir() {
            // Others could hold locks on files that they can open.
            let create = |path: &Path| {
                let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
                made.map_err(|e| match explain("create the directory", path, &e) {
                    // Its parents are made as well: what is missing even so cannot be there, as below /proc.
                    e if e.kind() == io::ErrorKind::NotFound => io::Error::new(io::ErrorKind::Unsupported, e),
                    e => e,
                })
            };
            create(&self.root)?;
            self.check_owner()?;
            create(&self.locks())?;
            create(&jobs)?;
        }
        self.check_owner()
    }

    /// Which two directories these are now, the root and the one of the locks: another pair than last
    /// time has to be watched anew. None as long as no server has made them.
    pub(super) fn ids(&self) -> io::Result<Option<[FileId; 2]>> {
        let Some(root) = look(&self.root)? else { return Ok(None) };
        self.check_owner()?;
        if !root.is_dir() {
            let error = io::Error::from(io::ErrorKind::NotADirectory);
            return Err(explain("read the directory", &self.root, &error));
        }
        Ok(look(&self.locks())?.map(|locks| [FileId::of(&root), FileId::of(&locks)]))
    }

    /// Whether it can be read, or is not there yet.
    ///
    /// # Errors
    /// Only those that stay until somebody mends them.
    pub(super) fn check(&self) -> io::Result<()> {
        let readable = match self.ids() {
            Ok(Some(_)) => {
                fs::read_dir(&self.root).map(drop).map_err(|e| explain("read the directory", &self.root, &e))
            }
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        readable.or_else(|error| if is_permanent(&error) { Err(error) } else { Ok(()) })
    }

    /// In a directory that everybody can write to, somebody else may have made ours first, or a
    /// link in its place.
    fn check_owner(&self) -> io::Result<()> {
        const WRITABLE_BY_OTHERS: u32 = 0o022;
        let Some(owner) = self.owner else { return Ok(()) };
        let metadata = fs::symlink_metadata(&self.root)?;
        let flaw = if !metadata.is_dir() {
            "is no directory".to_owned()
        } else if metadata.uid() != owner {
            format!("belongs to user {} and not to user {owner}", metadata.uid())
        } else if metadata.mode() & WRITABLE_BY_OTHERS != 0 {
            "can be written by other users".to_owned()
        } else {
            return Ok(());
        };
        let root = self.root.display();
        let way_out = "remove it, or name another directory with local:DIR";
        Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{root} {flaw}; {way_out}")))
    }
}

/// Whether `file` is still the one at `path`.
pub(super) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(there) => Ok(FileId::of(&there) == FileId::of(&file.metadata()?)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Removes a file, which may be gone already.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// What is at `path`; none if there is nothing.
fn look(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(explain("look at", path, &e)),
    }
}

/// Adds what was to be done, and the path, which the operating system leaves out.
pub(super) fn explain(what: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {what} {}: {error}", path.display()))
}

/// Whether an error stays until somebody changes the directory or the rights on it.
pub(super) fn is_permanent(error: &io::Error) -> bool {
    use io::ErrorKind as E;
    matches!(
        error.kind(),
        E::PermissionDenied
            | E::NotADirectory
            | E::AlreadyExists
            | E::ReadOnlyFilesystem
            | E::InvalidFilename
            | E::Unsupported
    )
}

/// The user whom files made by this process belong to, found by making one: the standard library
/// has no other way.
fn user_id(dir: &Path) -> io::Result<u32> {
    let path = dir.join(format!(".rpc-{}", uuid::Uuid::new_v4()));
    let file = File::create_new(&path).map_err(|e| explain("create the file", &path, &e))?;
    let metadata = file.metadata();
    fs::remove_file(&path)?;
    Ok(metadata?.uid())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn private(root: &Path) -> Directory {
        Directory { root: root.to_owned(), owner: Some(user_id(&std::env::temp_dir()).unwrap()) }
    }

    #[test]
    fn what_is_made_is_closed_to_others() {
        let temp = tempfile::tempdir().unwrap();
        let dir = private(&temp.path().join("rpc"));
        assert_eq!(dir.ids().unwrap(), None, "looking makes nothing");
        assert!(!dir.root().exists());
        dir.prepare().unwrap();
        let ids = dir.ids().unwrap();
        assert!(ids.is_some());
        assert_eq!(fs::metadata(dir.root()).unwrap().mode() & 0o777, 0o700);
        dir.prepare().unwrap();
        assert_eq!(dir.ids().unwrap(), ids);
    }

    #[test]
    fn a_default_directory_that_others_control_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("rpc");
        let refusal = |dir: &Directory| dir.prepare().unwrap_err().to_string();

        std::os::unix::fs::symlink("/", &root).unwrap();
        assert!(refusal(&private(&root)).contains("is no directory"));
        fs::remove_file(&root).unwrap();

        fs::create_dir(&root).unwrap();
        fs::set_permissions(&root, Permissions::from_mode(0o777)).unwrap();
        assert!(refusal(&private(&root)).contains("can be written by other users"));
        fs::set_permissions(&root, Permissions::from_mode(0o700)).unwrap();
        let stranger = Directory { owner: private(&root).owner.map(|user| user + 1), ..private(&root) };
        assert!(refusal(&stranger).contains("belongs to user"));
        assert!(refusal(&stranger).contains("local:DIR"));
        private(&root).prepare().unwrap();
    }

    #[test]
    fn a_job_cannot_leave_the_directory() {
        let dir = Directory::named(Path::new("/r")).unwrap();
        assert_eq!(dir.job("expiry", ".lock"), Path::new("/r/.cluster/jobs/expiry.lock"));
        assert_eq!(dir.job("../é", ".slot"), Path::new("/r/.cluster/jobs/%2E%2E%2F%C3%A9.slot"));
    }
}
