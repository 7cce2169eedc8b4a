//! Files, as far as the log needs them.
//!
//! Assumptions about the real ones, which the simulated disk breaks in every way that they allow:
//! a write is durable only after a later `sync_data` on the same file returned; what was written and
//! not synced may be there after a crash in any part, in sectors of 512 bytes; a file's creation or
//! renaming is durable only after `sync_dir` on its directory; after a failed sync nothing may be
//! concluded about what was written before it, and the file must not be used again.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A file system.
pub trait Disk: Send + Sync + 'static {
    /// Makes the directory and its parents, durably. Fine if it exists.
    ///
    /// # Errors
    /// What the file system says.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// The names of the files in a directory, in byte order.
    ///
    /// # Errors
    /// What the file system says.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Opens a file.
    ///
    /// # Errors
    /// `NotFound` or `AlreadyExists`, as the mode says; what the file system says.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>>;

    /// Renames a file, replacing what has the new name. Durable after `sync_dir`.
    ///
    /// # Errors
    /// What the file system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file. Durable after `sync_dir`.
    ///
    /// # Errors
    /// What the file system says.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory with everything in it. Fine if it is not there. Durable after `sync_dir` on
    /// the directory above.
    ///
    /// # Errors
    /// What the file system says; then any part of it may be gone.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;

    /// Makes creations, renames and removals in this directory durable.
    ///
    /// # Errors
    /// What the file system says; then none of them may be relied on.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Takes the file at `path` (made if it is not there) for this process alone, until the lock is
    /// dropped or the process ends.
    ///
    /// # Errors
    /// `WouldBlock` if another has it; what the file system says.
    fn lock(&self, path: &Path) -> io::Result<DiskLock>;
}

/// Puts a small file at `path`, or in the place of the one that is there: whole, or not at all. Durable when it returns.
pub(crate) fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("new");
    // What a crash has left of one was never read.
    match disk.remove(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.open(&draft, OpenMode::CreateNew)?;
    file.write_all_at(bytes, 0)?;
    file.sync_data()?;
    drop(file);
    disk.rename(&draft, path)?;
    disk.sync_dir(path.parent().expect("it is a file in a directory"))
}

/// How to open a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// To read and write; it must not exist yet.
    CreateNew,
    /// To read and write; it must exist.
    Write,
    /// To read; it must exist.
    Read,
}

/// An open file.
#[allow(clippy::len_without_is_empty, reason = "a file is not a collection")]
pub trait File: Send + Sync {
    /// Its length in bytes.
    ///
    /// # Errors
    /// What the file system says.
    fn len(&self) -> io::Result<u64>;

    /// Reads exactly `buffer.len()` bytes at `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before; what the file system says.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`, growing the file where needed.
    ///
    /// # Errors
    /// What the file system says; then any part of it may be written.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes everything written before durable, and the file's length.
    ///
    /// # Errors
    /// What the file system says; then nothing may be relied on, and a second try proves nothing.
    fn sync_data(&self) -> io::Result<()>;
}

/// Held as long as a file is taken for this process.
pub struct DiskLock {
    _held: Box<dyn std::any::Any + Send + Sync>,
}

impl DiskLock {
    /// A lock that ends when `held` is dropped.
    pub fn new(held: impl std::any::Any + Send + Sync) -> Self {
        Self { _held: Box::new(held) }
    }
}

impl std::fmt::Debug for DiskLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DiskLock")
    }
}

/// The machine's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        use std::os::unix::fs::DirBuilderExt;
        let parent = match dir.parent() {
            None => return Ok(()),
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
        };
        if dir.is_dir() {
            // Whoever made it may have been killed before its name was durable. A parent that we may
            // not read is none that we made a directory in.
            return match self.sync_dir(parent) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
                result => result,
            };
        }
        self.create_dir(parent)?;
        match fs::DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        self.sync_dir(parent)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            // A name that is not UTF-8 is none of ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = fs::OpenOptions::new();
        match mode {
            OpenMode::CreateNew => options.read(true).write(true).create_new(true).mode(0o600),
            OpenMode::Write => options.read(true).write(true),
            OpenMode::Read => options.read(true),
        };
        Ok(Box::new(options.open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<DiskLock> {
        use rustix::fs::{FlockOperation, flock};
        use std::os::unix::fs::OpenOptionsExt;
        let file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(DiskLock::new(file))
    }
}

impl File for fs::File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        fs::File::sync_data(self)
    }
}
