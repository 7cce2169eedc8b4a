//! The machine's disk, slower, full or failing.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use bowline::env::{Disk, DiskLock, File, OpenMode, RealDisk};

/// What is wrong with a disk.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct State {
    /// Every sync takes so much longer.
    pub(super) sync_takes: Duration,
    /// Every write does.
    pub(super) write_takes: Duration,
    /// No file grows, and none is made.
    pub(super) full: bool,
    /// Every sync says that it was done, and was not.
    pub(super) syncs_lie: bool,
    /// Every sync fails.
    pub(super) syncs_fail: bool,
    /// Every write fails.
    pub(super) writes_fail: bool,
}

/// What is wrong with it now.
#[derive(Debug, Default)]
pub(super) struct Faults {
    state: Mutex<State>,
}

impl Faults {
    pub(super) fn set(&self, state: State) {
        self.change(|now| *now = state);
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn now(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sync, of a file or of a directory.
    fn sync(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let State { sync_takes, syncs_lie, syncs_fail, .. } = self.now();
        thread::sleep(sync_takes);
        match (syncs_fail, syncs_lie) {
            (true, _) => Err(io::Error::other("this disk fails to sync")),
            (false, true) => Ok(()),
            (false, false) => sync(),
        }
    }

    /// Before a write.
    fn write(&self) -> io::Result<()> {
        let State { write_takes, writes_fail, .. } = self.now();
        thread::sleep(write_takes);
        if writes_fail { Err(io::Error::other("this disk fails to write")) } else { Ok(()) }
    }

    /// Before something needs room.
    fn room(&self) -> io::Result<()> {
        if self.now().full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct BentDisk {
    faults: Arc<Faults>,
}

impl BentDisk {
    /// The machine's disk with these faults.
    pub(super) fn new(faults: Arc<Faults>) -> Self {
        Self { faults }
    }
}

impl Disk for BentDisk {
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
        Ok(Box::new(BentFile { file, faults: Arc::clone(&self.faults) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.faults.sync(|| RealDisk.sync_dir(dir))
    }

    fn lock(&self, path: &Path) -> io::Result<DiskLock> {
        RealDisk.lock(path)
    }
}

struct BentFile {
    file: Box<dyn File>,
    faults: Arc<Faults>,
}

impl File for BentFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.faults.write()?;
        if offset + bytes.len() as u64 > self.file.len()? {
            self.faults.room()?;
        }
        self.file.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.faults.sync(|| self.file.sync_data())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn it_does_what_is_wrong_with_it_and_else_nothing() {
        let (dir, faults) = (tempfile::tempdir().unwrap(), Arc::new(Faults::default()));
        let disk = BentDisk::new(Arc::clone(&faults));
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
}
