//! A disk with a size limit: it wraps another disk, real or simulated, and rejects growth beyond a limit that a test
//! may change at any time.
//!
//! The size is the sum of the lengths of the files in a directory and below. Removing a file frees its space at once.
//! A write that exceeds the limit writes the part that fits and then fails with `StorageFull`, as on file systems.
//! Overwriting needs no space.
//!
//! Invariant: if the limit is not reached, this disk behaves like the wrapped disk.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::env::{Disk, DiskLock, File, OpenMode};

/// A disk with size limits for directories. Clones are the same disk.
#[derive(Clone)]
pub struct QuotaDisk {
    disk: Arc<dyn Disk>,
    state: Arc<Mutex<QuotaState>>,
}

#[derive(Default)]
struct QuotaState {
    /// Length of every existing file that has been seen.
    files: BTreeMap<PathBuf, Arc<AtomicU64>>,
    limits: BTreeMap<PathBuf, u64>,
}

impl QuotaDisk {
    /// Wraps a disk, without limits at first.
    pub fn new(disk: impl Disk) -> Self {
        Self { disk: Arc::new(disk), state: Arc::default() }
    }

    /// Sets the maximum total size in bytes of the files in a directory and below, or no limit if `None`. If the
    /// files already exceed the limit, no file can grow until enough data is removed.
    pub fn limit(&self, dir: &Path, bytes_max: Option<u64>) {
        let mut state = self.state();
        match bytes_max {
            Some(bytes_max) => drop(state.limits.insert(dir.to_owned(), bytes_max)),
            None => drop(state.limits.remove(dir)),
        }
    }

    /// Returns the total size in bytes of the files in a directory and below.
    pub fn used(&self, dir: &Path) -> u64 {
        self.state().used(dir)
    }

    /// Reads the lengths of existing files.
    fn measure(&self, dir: &Path) -> io::Result<()> {
        for name in self.disk.list(dir)? {
            let path = dir.join(name);
            let known = self.state().files.contains_key(&path);
            if !known && let Ok(file) = self.disk.open(&path, OpenMode::Read) {
                let bytes = Arc::new(AtomicU64::new(file.len()?));
                self.state().files.insert(path, bytes);
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, QuotaState> {
        lock(&self.state)
    }
}

impl QuotaState {
    fn used(&self, dir: &Path) -> u64 {
        let inside = self.files.iter().filter(|(path, _)| path.starts_with(dir));
        inside.map(|(_, bytes)| bytes.load(Ordering::Relaxed)).sum()
    }

    /// Returns how many bytes the files in a directory may grow by.
    fn room(&self, dir: &Path) -> u64 {
        let limits = self.limits.iter().filter(|(above, _)| dir.starts_with(above));
        let rooms = limits.map(|(above, bytes_max)| bytes_max.saturating_sub(self.used(above)));
        rooms.min().unwrap_or(u64::MAX)
    }
}

impl Disk for QuotaDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir(dir)?;
        self.measure(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.measure(dir)?;
        self.disk.list(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        let file = self.disk.open(path, mode)?;
        let bytes = Arc::clone(self.state().files.entry(path.to_owned()).or_default());
        bytes.store(file.len()?, Ordering::Relaxed);
        let dir = path.parent().unwrap_or(path).to_owned();
        Ok(Box::new(QuotaFile { file, dir, bytes, state: Arc::clone(&self.state) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)?;
        let mut state = self.state();
        if let Some(bytes) = state.files.remove(from) {
            state.files.insert(to.to_owned(), bytes);
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)?;
        self.state().files.remove(path);
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.remove_dir(dir)?;
        self.state().files.retain(|path, _| !path.starts_with(dir));
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<DiskLock> {
        self.disk.lock(path)
    }
}

impl std::fmt::Debug for QuotaDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuotaDisk").field("limits", &self.state().limits).finish_non_exhaustive()
    }
}

struct QuotaFile {
    file: Box<dyn File>,
    dir: PathBuf,
    /// Length of the file, which is counted while the file exists.
    bytes: Arc<AtomicU64>,
    state: Arc<Mutex<QuotaState>>,
}

impl File for QuotaFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        // The lock is held during the write, so that two files cannot grow into the same space.
        let state = lock(&self.state);
        let may_end_at = self.file.len()?.saturating_add(state.room(&self.dir));
        let fits = usize::try_from(may_end_at.saturating_sub(offset)).unwrap_or(usize::MAX);
        let fits = fits.min(bytes.len());
        let written = match fits {
            0 => Ok(()),
            fits => self.file.write_all_at(&bytes[..fits], offset),
        };
        self.bytes.store(self.file.len()?, Ordering::Relaxed);
        written?;
        if fits < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn lock(state: &Mutex<QuotaState>) -> MutexGuard<'_, QuotaState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimDisk;

    fn disk(bytes_max: u64) -> QuotaDisk {
        let disk = QuotaDisk::new(SimDisk::new(1));
        for dir in ["d", "e"] {
            disk.create_dir(Path::new(dir)).unwrap();
        }
        disk.limit(Path::new("d"), Some(bytes_max));
        disk
    }

    fn file(disk: &QuotaDisk, path: &str) -> Box<dyn File> {
        disk.open(Path::new(path), OpenMode::CreateNew).unwrap()
    }

    fn is_full(result: io::Result<()>) -> bool {
        result.is_err_and(|error| error.kind() == io::ErrorKind::StorageFull)
    }

    #[test]
    fn quota_disk_writes_what_fits_and_allows_overwrites() {
        let disk = disk(10);
        let a = file(&disk, "d/a");
        a.write_all_at(&[1; 6], 0).unwrap();
        let b = file(&disk, "d/b");
        assert!(is_full(b.write_all_at(&[2; 6], 0)));
        assert_eq!(b.len().unwrap(), 4);
        assert!(is_full(a.write_all_at(&[3], 6)));
        a.write_all_at(&[3; 6], 0).unwrap();
        assert_eq!(disk.used(Path::new("d")), 10);
        file(&disk, "e/c").write_all_at(&[4; 99], 0).unwrap();
    }

    #[test]
    fn space_returns_with_a_removal_or_a_higher_limit() {
        let disk = disk(10);
        let a = file(&disk, "d/a");
        a.write_all_at(&[1; 10], 0).unwrap();
        let b = file(&disk, "d/b");
        assert!(is_full(b.write_all_at(&[2], 0)));
        disk.remove(Path::new("d/a")).unwrap();
        b.write_all_at(&[2; 10], 0).unwrap();
        assert!(is_full(b.write_all_at(&[2], 10)));
        disk.limit(Path::new("d"), Some(11));
        b.write_all_at(&[2], 10).unwrap();
        disk.limit(Path::new("d"), None);
        b.write_all_at(&[2; 99], 11).unwrap();
        // Setting a limit does not remove existing data.
        disk.limit(Path::new("d"), Some(5));
        b.write_all_at(&[3; 110], 0).unwrap();
        assert!(is_full(b.write_all_at(&[3], 110)));
    }

    #[test]
    fn file_counts_towards_the_quota_under_any_name() {
        let inner = SimDisk::new(1);
        inner.create_dir(Path::new("d")).unwrap();
        inner.replace(Path::new("d/old"), &[1; 4]);
        let disk = QuotaDisk::new(inner);
        disk.create_dir(Path::new("d")).unwrap();
        disk.limit(Path::new("d"), Some(10));
        assert_eq!(disk.used(Path::new("d")), 4);
        let a = file(&disk, "d/a");
        disk.rename(Path::new("d/a"), Path::new("d/b")).unwrap();
        a.write_all_at(&[2; 6], 0).unwrap();
        assert_eq!(disk.used(Path::new("d")), 10);
        disk.remove(Path::new("d/b")).unwrap();
        assert_eq!(disk.used(Path::new("d")), 4);
    }
}
