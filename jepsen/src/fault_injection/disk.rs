//! A wrapper around the disk of the machine. The wrapper can make operations slow, report a full disk, or make
//! operations fail.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use bowline::env::{Disk, DiskLock, File, OpenMode, RealDisk};

/// The injected disk faults.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct State {
    /// Additional time of each sync.
    pub(super) sync_takes: Duration,
    /// Additional time of each write.
    pub(super) write_takes: Duration,
    /// Whether no file can grow or be created.
    pub(super) full: bool,
    /// Whether syncs report success without syncing.
    pub(super) syncs_lie: bool,
    pub(super) syncs_fail: bool,
    pub(super) writes_fail: bool,
}

/// The current faults, which the harness may change at any time.
#[derive(Debug, Default)]
pub(super) struct Faults {
    state: Mutex<State>,
    /// Number of injected failures of writes and syncs of the log. A node must stop after the first failure.
    failed: AtomicU64,
}

/// Extension of a log file that is in use.
const LOG: &str = "log";

/// The current name of a file, which may be renamed while it is open.
type Name = Mutex<PathBuf>;

fn is_of_the_log(name: &Name) -> bool {
    lock(name).extension().is_some_and(|extension| extension == LOG)
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Faults {
    pub(super) fn set(&self, state: State) {
        self.change(|now| *now = state);
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.state));
    }

    fn now(&self) -> State {
        *lock(&self.state)
    }

    /// Returns the number of injected failures of the log.
    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Returns an injected error. Counts the error if the file belongs to the log.
    fn fails(&self, of: Option<&Name>, how: &'static str) -> io::Error {
        self.failed.fetch_add(of.is_some_and(is_of_the_log).into(), Ordering::Relaxed);
        io::Error::other(how)
    }

    /// Syncs a file or a directory, subject to the faults.
    fn sync(&self, of: Option<&Name>, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let State { sync_takes, syncs_lie, syncs_fail, .. } = self.now();
        thread::sleep(sync_takes);
        match (syncs_fail, syncs_lie) {
            (true, _) => Err(self.fails(of, "injected sync failure")),
            (false, true) => Ok(()),
            (false, false) => sync(),
        }
    }

    /// Applies the faults before a write.
    fn write(&self, of: &Name) -> io::Result<()> {
        let State { write_takes, writes_fail, .. } = self.now();
        thread::sleep(write_takes);
        if writes_fail { Err(self.fails(Some(of), "injected write failure")) } else { Ok(()) }
    }

    /// Applies the faults before an operation that needs space.
    fn room(&self) -> io::Result<()> {
        if self.now().full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

/// The disk of the machine with injected faults.
#[derive(Debug)]
pub(super) struct FaultyDisk {
    faults: Arc<Faults>,
    /// The names of the open files.
    names: Mutex<BTreeMap<PathBuf, Weak<Name>>>,
}

impl FaultyDisk {
    /// Wraps the disk of the machine.
    pub(super) fn new(faults: Arc<Faults>) -> Self {
        Self { faults, names: Mutex::default() }
    }
}

impl Disk for FaultyDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        if !dir.is_dir() {
            self.faults.room()?;
        }
        RealDisk.create_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        if mode == OpenMode::CreateNew {
            self.faults.room()?;
        }
        let file = RealDisk.open(path, mode)?;
        let name = Arc::new(Name::new(path.to_owned()));
        let mut names = lock(&self.names);
        names.retain(|_, name| name.strong_count() > 0);
        if mode != OpenMode::Read {
            names.insert(path.to_owned(), Arc::downgrade(&name));
        }
        Ok(Box::new(BentFile { file, faults: Arc::clone(&self.faults), name }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)?;
        let mut names = lock(&self.names);
        if let Some(name) = names.remove(from) {
            if let Some(name) = name.upgrade() {
                to.clone_into(&mut lock(&name));
            }
            names.insert(to.to_owned(), name);
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.faults.sync(None, || RealDisk.sync_dir(dir))
    }

    fn lock(&self, path: &Path) -> io::Result<DiskLock> {
        RealDisk.lock(path)
    }
}

struct BentFile {
    file: Box<dyn File>,
    faults: Arc<Faults>,
    name: Arc<Name>,
}

impl File for BentFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.faults.write(&self.name)?;
        if offset + bytes.len() as u64 > self.file.len()? {
            self.faults.room()?;
        }
        self.file.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.faults.sync(Some(&self.name), || self.file.sync_data())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn faulty_disk_applies_only_the_configured_faults() {
        let (dir, faults) = (tempfile::tempdir().unwrap(), Arc::new(Faults::default()));
        let disk = FaultyDisk::new(Arc::clone(&faults));
        let (path, other) = (dir.path().join("file"), dir.path().join("other"));
        let file = disk.open(&path, OpenMode::CreateNew).unwrap();
        file.write_all_at(b"12345678", 0).unwrap();
        file.sync_data().unwrap();

        faults.change(|state| state.full = true);
        file.write_all_at(b"abcd", 4).unwrap();
        assert_eq!(file.write_all_at(b"x", 8).unwrap_err().kind(), io::ErrorKind::StorageFull);
        let made = disk.open(&other, OpenMode::CreateNew).map(drop);
        assert_eq!(made.unwrap_err().kind(), io::ErrorKind::StorageFull);

        faults.set(State { syncs_fail: true, ..State::default() });
        file.write_all_at(b"x", 8).unwrap();
        assert!(file.sync_data().is_err() && disk.sync_dir(dir.path()).is_err());
        faults.set(State { writes_fail: true, ..State::default() });
        assert!(file.write_all_at(b"y", 8).is_err() && file.sync_data().is_ok());

        let takes = Duration::from_millis(30);
        faults.set(State { sync_takes: takes, ..State::default() });
        let begun = Instant::now();
        file.sync_data().unwrap();
        assert!(begun.elapsed() >= takes);
        faults.set(State::default());
        assert_eq!(std::fs::read(&path).unwrap(), b"1234abcdx");
    }

    #[test]
    fn failed_log_writes_are_counted_after_a_rename() {
        let (dir, faults) = (tempfile::tempdir().unwrap(), Arc::new(Faults::default()));
        let disk = FaultyDisk::new(Arc::clone(&faults));
        let open = |name: &str| disk.open(&dir.path().join(name), OpenMode::CreateNew).unwrap();
        let (next, snapshot) = (open("next.tmp"), open("0000000001-1.snapshot"));
        next.write_all_at(b"1234", 0).unwrap();
        faults.set(State { syncs_fail: true, writes_fail: true, ..State::default() });
        // The log does not rely on these files yet, and no later step relies on the sync of the directory, so the
        // node need not stop.
        assert!(next.sync_data().is_err() && snapshot.sync_data().is_err());
        assert!(disk.sync_dir(dir.path()).is_err());
        assert_eq!(faults.failed(), 0);
        disk.rename(&dir.path().join("next.tmp"), &dir.path().join("0000000002.log")).unwrap();
        assert!(next.sync_data().is_err() && next.write_all_at(b"x", 0).is_err());
        assert_eq!(faults.failed(), 2);
        faults.set(State::default());
        assert!(next.sync_data().is_ok() && faults.failed() == 2);
    }
}
