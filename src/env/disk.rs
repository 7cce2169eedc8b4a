//! The file system operations that the log and the snapshots need.
//!
//! The code makes the following assumptions about real disks. The simulated disk fails in every way
//! that these assumptions allow:
//!
//! - A write is durable only after a later `sync_data` on the same file has returned.
//! - After a crash, any part of the unsynced data may be on disk, in sectors of 512 bytes.
//! - Creating or renaming a file is durable only after `sync_dir` on its directory.
//! - After a failed sync, earlier unsynced writes may or may not be durable, and the caller must
//!   not use the file again.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A file system.
pub trait Disk: Send + Sync + 'static {
    /// Creates the directory and its parents durably. Succeeds if the directory exists.
    ///
    /// # Errors
    /// Returns the file system's error.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Returns the names of the files in a directory, in byte order.
    ///
    /// # Errors
    /// Returns the file system's error.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Opens a file.
    ///
    /// # Errors
    /// Returns `NotFound` or `AlreadyExists` depending on `mode`, or another error of the file
    /// system.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>>;

    /// Renames a file and replaces a file that already has the new name. The renaming is durable
    /// after `sync_dir`.
    ///
    /// # Errors
    /// Returns the file system's error.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file. The removal is durable after `sync_dir`.
    ///
    /// # Errors
    /// Returns the file system's error.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory with all its contents. Succeeds if the directory does not exist. The
    /// removal is durable after `sync_dir` on the parent directory.
    ///
    /// # Errors
    /// Returns the file system's error. Part of the contents may already be removed.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;

    /// Makes creations, renames and removals in this directory durable.
    ///
    /// # Errors
    /// Returns the file system's error. The caller must then treat none of these changes as
    /// durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Locks the file at `path` exclusively for this process and creates it if necessary. The lock
    /// is released when the returned value is dropped or the process ends.
    ///
    /// # Errors
    /// Returns `WouldBlock` if another process holds the lock, or another error of the file system.
    fn lock(&self, path: &Path) -> io::Result<DiskLock>;
}

/// Writes a small file at `path` atomically and replaces an existing file. The file is durable when
/// this function returns.
pub(crate) fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("new");
    // A crash may have left a temporary file behind. No code reads temporary files, so the file can
    // be removed.
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

/// The mode in which a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// Opens the file for reading and writing. The file must not exist yet.
    CreateNew,
    /// Opens the file for reading and writing. The file must exist.
    Write,
    /// Opens the file for reading only. The file must exist.
    Read,
}

/// An open file.
#[allow(clippy::len_without_is_empty, reason = "a file is not a collection")]
pub trait File: Send + Sync {
    /// Returns the length of the file in bytes.
    ///
    /// # Errors
    /// Returns the file system's error.
    fn len(&self) -> io::Result<u64>;

    /// Reads exactly `buffer.len()` bytes at `offset`.
    ///
    /// # Errors
    /// Returns `UnexpectedEof` if the file is too short, or another error of the file system.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`, and extends the file if necessary.
    ///
    /// # Errors
    /// Returns the file system's error. Any part of `bytes` may have been written.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes all earlier writes to the file, and the length of the file, durable.
    ///
    /// # Errors
    /// Returns the file system's error. Earlier writes may be lost in this case, even if a later
    /// call succeeds.
    fn sync_data(&self) -> io::Result<()>;
}

/// An exclusive lock on a file, released on drop.
pub struct DiskLock {
    _held: Box<dyn std::any::Any + Send + Sync>,
}

impl DiskLock {
    /// Creates a lock that is released when `held` is dropped.
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
            // The process that created the directory may have been killed before the name was
            // durable, so sync the parent. If this process may not read the parent directory, it
            // cannot have created a directory in the parent.
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
            // Names that are not UTF-8 are skipped, because this crate does not create files with
            // such names.
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
