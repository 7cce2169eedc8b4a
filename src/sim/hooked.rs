//! A disk that calls a hook before a file is opened, so that tests can change files at that moment.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::disk::SimDisk;
use crate::env::{Disk, DiskLock, File, OpenMode};

/// A disk with a hook.
pub(crate) struct HookedDisk<F> {
    disk: Arc<SimDisk>,
    before_open: F,
}

impl<F: Fn(&Path, OpenMode) + Send + Sync + 'static> HookedDisk<F> {
    /// Wraps a disk. `before_open` is called before each opening of a file.
    pub(crate) fn new(disk: Arc<SimDisk>, before_open: F) -> Self {
        Self { disk, before_open }
    }
}

impl<F: Fn(&Path, OpenMode) + Send + Sync + 'static> Disk for HookedDisk<F> {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        (self.before_open)(path, mode);
        self.disk.open(path, mode)
    }
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.remove_dir(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<DiskLock> {
        self.disk.lock(path)
    }
}
