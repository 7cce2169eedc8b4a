//! The disk of a simulated machine. The simulated disk keeps exactly the promises of `env::disk`
//! and no more.
//!
//! A file is an inode with three parts: the content that readers see, the durable content, and the unsynced writes
//! between the two, in order. A directory has the same three parts, with names instead of bytes. A power cut
//! ([`SimDisk::crash`]) keeps some prefix of the unsynced writes to each sector of 512 bytes, independently of other
//! sectors, and some prefix of the unsynced changes to each directory. Killing the process ([`SimDisk::kill`]) loses
//! nothing, because the operating system survives. After a failed sync, readers still see the earlier writes, but no
//! later sync makes them durable, as on Linux.
//!
//! The disk takes no time; the world simulates its latency. The seed and the operations determine which bytes a crash
//! keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Rng;
use crate::env::{Disk, DiskLock, Entropy, File, OpenMode};

/// Size of a sector. A crash keeps or loses a write to a sector as a whole.
pub(super) const SECTOR_BYTES: usize = 512;

/// A simulated disk. Files that were opened before a crash or kill return errors after it.
pub struct SimDisk {
    state: Arc<Mutex<SimDiskState>>,
    before_open: Option<Box<OpenHook>>,
}

/// A function that is called with the path and the mode of each opening of a file.
type OpenHook = dyn Fn(&Path, OpenMode) + Send + Sync;

#[derive(Clone, Debug, Default)]
struct SimDiskState {
    dirs: BTreeMap<PathBuf, Dir>,
    files: BTreeMap<u64, Content>,
    files_made: u64,
    /// Incremented by each crash and kill.
    life: u64,
    locked: BTreeMap<PathBuf, u64>,
    locks_made: u64,
    faults: Faults,
    seed: u64,
}

/// The injected faults.
#[derive(Clone, Default, Debug)]
struct Faults {
    sync_fails: bool,
    writes_fail: bool,
    has_failed: bool,
    bytes_max: Option<usize>,
    has_been_full: bool,
    steps_left: Option<u64>,
    has_stopped: bool,
}

#[derive(Clone, Default, Debug)]
struct Dir {
    seen: BTreeMap<String, u64>,
    durable: BTreeMap<String, u64>,
    changes: Vec<SimDiskChange>,
}

#[derive(Clone, Debug)]
enum SimDiskChange {
    Create(String, u64),
    Rename(String, String),
    Remove(String),
}

#[derive(Clone, Default, Debug)]
struct Content {
    seen: Vec<u8>,
    durable: Vec<u8>,
    writes: Vec<(usize, Vec<u8>)>,
    /// Sectors that cannot be read until they are written again.
    unreadable: BTreeSet<usize>,
    /// Number of open handles since the last crash or kill.
    open: usize,
}

impl SimDisk {
    /// Returns an empty disk.
    pub fn new(seed: u64) -> Self {
        let state = SimDiskState { seed, ..SimDiskState::default() };
        Self { state: Arc::new(Mutex::new(state)), before_open: None }
    }

    /// Returns an independent disk with the same durable and unsynced content, without open files and locks.
    #[must_use]
    pub fn copy(&self) -> Self {
        let mut state = self.state().clone();
        state.restart();
        Self { state: Arc::new(Mutex::new(state)), before_open: None }
    }

    /// Returns the same disk with a hook that is called before each opening of a file, so that a test
    /// can change files at that moment.
    #[cfg(test)]
    pub(crate) fn hooked(&self, hook: impl Fn(&Path, OpenMode) + Send + Sync + 'static) -> Self {
        Self { state: Arc::clone(&self.state), before_open: Some(Box::new(hook)) }
    }

    /// Cuts the power: of the unsynced writes, some are kept and some are lost. Ends open files, locks and faults,
    /// except the size limit.
    pub fn crash(&self) {
        let mut state = self.state();
        let rng = Rng::new(state.seed);
        for dir in state.dirs.values_mut() {
            let kept = rng.below(dir.changes.len() as u64 + 1) as usize;
            let changes = std::mem::take(&mut dir.changes);
            for change in &changes[..kept] {
                change.apply(&mut dir.durable);
            }
            dir.seen = dir.durable.clone();
        }
        for file in state.files.values_mut() {
            file.crash(&rng);
        }
        state.seed = rng.next_u64();
        state.restart();
    }

    /// Kills the process that uses the disk. No data is lost; open files and locks end.
    pub fn kill(&self) {
        self.state().restart();
    }

    /// Makes the next sync of a file fail. Earlier unsynced writes to the file never become
    /// durable.
    pub fn fail_next_sync(&self) {
        self.state().faults.sync_fails = true;
    }

    /// Makes all writes fail until the faults are cleared.
    pub fn fail_writes(&self) {
        self.state().faults.writes_fail = true;
    }

    /// Returns the total size of all files in bytes. A removed file counts until its removal is durable.
    pub fn used(&self) -> usize {
        self.state().used()
    }

    /// Sets the maximum total size of all files in bytes, or no limit if `None`.
    pub fn limit(&self, bytes_max: Option<usize>) {
        let faults = &mut self.state().faults;
        (faults.bytes_max, faults.has_been_full) = (bytes_max, false);
    }

    /// Returns whether a write has exceeded the limit since the last [`SimDisk::limit`].
    pub fn has_been_full(&self) -> bool {
        self.state().faults.has_been_full
    }

    /// Lets the next `steps` changes and syncs succeed. Every later change or sync fails until the machine crashes
    /// or the process is killed.
    pub fn stop_after(&self, steps: u64) {
        self.state().faults.steps_left = Some(steps);
    }

    /// Returns whether an operation has failed because of [`SimDisk::stop_after`]. If no operation has failed,
    /// removes the limit of [`SimDisk::stop_after`].
    pub fn has_stopped(&self) -> bool {
        let faults = &mut self.state().faults;
        if !faults.has_stopped {
            faults.steps_left = None;
        }
        faults.has_stopped
    }

    /// Returns whether a write or a sync has failed since the last crash or [`SimDisk::clear_faults`].
    pub fn has_failed(&self) -> bool {
        self.state().faults.has_failed
    }

    /// Ends all faults.
    pub fn clear_faults(&self) {
        self.state().faults = Faults::default();
    }

    /// Returns the content of a file as readers see it.
    pub fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.state();
        let id = state.find(path).ok()?;
        Some(state.files[&id].seen.clone())
    }

    /// Replaces the content of a file durably, bypassing the normal interface. Creates the file if needed.
    pub fn replace(&self, path: &Path, bytes: &[u8]) {
        let mut state = self.state();
        let id = state.find(path).unwrap_or_else(|_| {
            let (dir, name) = split(path).expect("a file has a name and a directory");
            let id = state.make_file();
            let dir = state.dirs.entry(dir).or_default();
            dir.seen.insert(name.clone(), id);
            dir.durable.insert(name, id);
            id
        });
        let (seen, durable) = (bytes.to_vec(), bytes.to_vec());
        let open = state.files.get(&id).map_or(0, |file| file.open);
        state.files.insert(id, Content { seen, durable, open, ..Content::default() });
    }

    /// Flips one bit of a file durably, as bit rot does. `bit` counts from the start of the file.
    ///
    /// # Panics
    /// Panics if there is no such file or bit.
    pub fn flip_bit(&self, path: &Path, bit: usize) {
        let mut bytes = self.read(path).expect("the file is there");
        bytes[bit / 8] ^= 1 << (bit % 8);
        self.replace(path, &bytes);
    }

    /// Makes every read fail that touches the sector of a byte, until the sector is written again.
    ///
    /// # Panics
    /// Panics if there is no such file.
    pub fn damage_sector(&self, path: &Path, offset: usize) {
        let mut state = self.state();
        let id = state.find(path).expect("the file is there");
        let file = state.files.get_mut(&id).expect("a file with a name");
        file.unreadable.insert(offset / SECTOR_BYTES);
    }

    fn state(&self) -> MutexGuard<'_, SimDiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimDiskState {
    fn restart(&mut self) {
        self.life += 1;
        self.locked.clear();
        let Faults { bytes_max, has_been_full, .. } = self.faults;
        self.faults = Faults { bytes_max, has_been_full, ..Faults::default() };
        self.files.values_mut().for_each(|file| file.open = 0);
        self.discard_unlinked();
    }

    /// Discards files that have durably lost their name and are not open.
    fn discard_unlinked(&mut self) {
        let named = self.named();
        self.files.retain(|id, file| file.open > 0 || named.contains(id));
    }

    /// Returns the files that have a name, or may have one after a crash.
    fn named(&self) -> BTreeSet<u64> {
        let dirs = self.dirs.values();
        dirs.flat_map(|dir| dir.seen.values().chain(dir.durable.values()).copied()).collect()
    }

    /// Returns the total size of the named files in bytes.
    fn used(&self) -> usize {
        self.named().iter().filter_map(|id| self.files.get(id)).map(|file| file.seen.len()).sum()
    }

    fn make_file(&mut self) -> u64 {
        self.files_made += 1;
        self.files.insert(self.files_made, Content::default());
        self.files_made
    }

    fn dir(&mut self, path: &Path) -> io::Result<&mut Dir> {
        self.dirs.get_mut(path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn find(&self, path: &Path) -> io::Result<u64> {
        let (dir, name) = split(path)?;
        let found = self.dirs.get(&dir).and_then(|dir| dir.seen.get(&name));
        found.copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Counts a step against the limit of [`SimDisk::stop_after`].
    fn step(&mut self) -> io::Result<()> {
        match &mut self.faults.steps_left {
            None => Ok(()),
            Some(0) => {
                self.faults.has_stopped = true;
                Err(io::Error::other("the machine has stopped"))
            }
            Some(steps) => {
                *steps -= 1;
                Ok(())
            }
        }
    }

    fn change(&mut self, dir: &Path, change: SimDiskChange) -> io::Result<()> {
        self.step()?;
        let dir = self.dir(dir)?;
        change.apply(&mut dir.seen);
        dir.changes.push(change);
        Ok(())
    }

    fn write(&mut self, id: u64, offset: usize, bytes: &[u8]) -> io::Result<()> {
        self.step()?;
        if self.faults.writes_fail {
            self.faults.has_failed = true;
            return Err(io::Error::other("the simulated disk failed a write"));
        }
        let room = self.faults.bytes_max.map_or(usize::MAX, |max| max.saturating_sub(self.used()));
        let file = self.files.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        let grows = (offset + bytes.len()).saturating_sub(file.seen.len());
        let fits = bytes.len() - grows.saturating_sub(room).min(bytes.len());
        put(&mut file.seen, offset, &bytes[..fits]);
        let written = sectors(offset, fits);
        file.unreadable.retain(|sector| !written.contains(sector));
        file.writes.push((offset, bytes[..fits].to_vec()));
        if fits < bytes.len() {
            self.faults.has_been_full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn sync(&mut self, id: u64) -> io::Result<()> {
        self.step()?;
        let fails = std::mem::take(&mut self.faults.sync_fails);
        self.faults.has_failed |= fails;
        let file = self.files.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        mutant!(N03, return Ok(()));
        let writes = std::mem::take(&mut file.writes);
        if fails {
            return Err(io::Error::other("the simulated disk failed a sync"));
        }
        for (offset, bytes) in writes {
            match offset == 0 && file.durable.is_empty() {
                true => file.durable = bytes,
                false => put(&mut file.durable, offset, &bytes),
            }
        }
        Ok(())
    }
}

impl SimDiskChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Create(name, id) => {
                names.insert(name.clone(), *id);
            }
            Self::Rename(from, to) => {
                if let Some(id) = names.remove(from) {
                    names.insert(to.clone(), id);
                }
            }
            Self::Remove(name) => {
                names.remove(name);
            }
        }
    }
}

impl Content {
    fn crash(&mut self, rng: &Rng) {
        let writes = std::mem::take(&mut self.writes);
        // With probability 1/4 all writes are kept, and with probability 1/4 all are lost. If each sector were always
        // decided separately, a write of many sectors would hardly ever be kept completely.
        let whole = match rng.below(4) {
            0 => Some(0),
            1 => Some(writes.len() as u64),
            _ => None,
        };
        // For each sector, the number of writes to it that reached the medium.
        let mut kept: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (number, (offset, bytes)) in writes.iter().enumerate() {
            for sector in sectors(*offset, bytes.len()) {
                kept.entry(sector).or_default().push(number);
            }
        }
        for (sector, numbers) in kept {
            let count = whole.unwrap_or_else(|| rng.below(numbers.len() as u64 + 1)) as usize;
            for &number in numbers.iter().take(count) {
                let (offset, bytes) = &writes[number];
                let from = (*offset).max(sector * SECTOR_BYTES);
                let to = (offset + bytes.len()).min((sector + 1) * SECTOR_BYTES);
                put(&mut self.durable, from, &bytes[from - offset..to - offset]);
            }
        }
        self.seen = self.durable.clone();
    }
}

/// Returns the sectors that a write touches.
fn sectors(offset: usize, length: usize) -> Range<usize> {
    offset / SECTOR_BYTES..(offset + length).div_ceil(SECTOR_BYTES)
}

fn put(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if content.len() < offset {
        content.resize(offset, 0);
    }
    let (over, behind) = bytes.split_at(bytes.len().min(content.len() - offset));
    content[offset..offset + over.len()].copy_from_slice(over);
    content.extend_from_slice(behind);
}

fn split(path: &Path) -> io::Result<(PathBuf, String)> {
    let name = path.file_name().and_then(|name| name.to_str());
    match (path.parent(), name) {
        (Some(dir), Some(name)) => Ok((dir.to_owned(), name.to_owned())),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimDisk").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Disk for SimDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        if !state.dirs.contains_key(dir) {
            state.step()?;
            state.dirs.insert(dir.to_owned(), Dir::default());
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        Ok(self.state().dir(dir)?.seen.keys().cloned().collect())
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        if let Some(hook) = &self.before_open {
            hook(path, mode);
        }
        let mut state = self.state();
        let file = match (mode, state.find(path)) {
            (OpenMode::CreateNew, Ok(_)) => return Err(io::ErrorKind::AlreadyExists.into()),
            (OpenMode::CreateNew, Err(_)) => {
                let (dir, name) = split(path)?;
                state.dir(&dir)?;
                let id = state.make_file();
                state.change(&dir, SimDiskChange::Create(name, id))?;
                id
            }
            (OpenMode::Write | OpenMode::Read, found) => found?,
        };
        let writable = mode != OpenMode::Read;
        state.files.get_mut(&file).expect("a file with a name").open += 1;
        Ok(Box::new(SimFile { disk: Arc::clone(&self.state), life: state.life, file, writable }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.find(from)?;
        let ((dir, from), (to_dir, to)) = (split(from)?, split(to)?);
        if dir != to_dir {
            return Err(io::ErrorKind::CrossesDevices.into());
        }
        state.change(&dir, SimDiskChange::Rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.find(path)?;
        let (dir, name) = split(path)?;
        state.change(&dir, SimDiskChange::Remove(name))
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        state.dirs.retain(|path, _| !path.starts_with(dir));
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        let dir = state.dir(dir)?;
        dir.changes.clear();
        dir.durable = dir.seen.clone();
        state.discard_unlinked();
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<DiskLock> {
        let mut state = self.state();
        if state.locked.contains_key(path) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if state.find(path).is_err() {
            let (dir, name) = split(path)?;
            state.dir(&dir)?;
            let id = state.make_file();
            state.change(&dir, SimDiskChange::Create(name, id))?;
        }
        state.locks_made += 1;
        let ticket = state.locks_made;
        state.locked.insert(path.to_owned(), ticket);
        Ok(DiskLock::new(SimDiskHeld {
            disk: Arc::clone(&self.state),
            path: path.to_owned(),
            ticket,
        }))
    }
}

/// A file lock that is released on drop, unless a crash has already released it.
struct SimDiskHeld {
    disk: Arc<Mutex<SimDiskState>>,
    path: PathBuf,
    ticket: u64,
}

impl Drop for SimDiskHeld {
    fn drop(&mut self) {
        let mut state = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        if state.locked.get(&self.path) == Some(&self.ticket) {
            state.locked.remove(&self.path);
        }
    }
}

struct SimFile {
    disk: Arc<Mutex<SimDiskState>>,
    life: u64,
    file: u64,
    writable: bool,
}

impl SimFile {
    fn state(&self) -> io::Result<MutexGuard<'_, SimDiskState>> {
        let state = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        if state.life != self.life {
            return Err(io::Error::other("the file was opened before the machine went down"));
        }
        Ok(state)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let Ok(mut state) = self.state() else { return };
        if let Some(file) = state.files.get_mut(&self.file) {
            file.open -= 1;
        }
    }
}

impl File for SimFile {
    fn len(&self) -> io::Result<u64> {
        let state = self.state()?;
        let file = state.files.get(&self.file).ok_or(io::ErrorKind::NotFound)?;
        Ok(file.seen.len() as u64)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.state()?;
        let file = state.files.get(&self.file).ok_or(io::ErrorKind::NotFound)?;
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let bytes = start.checked_add(buffer.len()).and_then(|end| file.seen.get(start..end));
        if sectors(start, buffer.len()).any(|sector| file.unreadable.contains(&sector)) {
            return Err(io::Error::other("the simulated disk failed a read"));
        }
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.state()?;
        if !self.writable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        state.write(self.file, offset, bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.state()?.sync(self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(seed: u64) -> SimDisk {
        let disk = SimDisk::new(seed);
        disk.create_dir(Path::new("d")).unwrap();
        disk
    }

    fn path() -> &'static Path {
        Path::new("d/f")
    }

    #[test]
    fn a_synced_write_in_a_synced_directory_survives_every_crash() {
        for seed in 0..50 {
            let disk = disk(seed);
            let file = disk.open(path(), OpenMode::CreateNew).unwrap();
            file.write_all_at(b"synced", 0).unwrap();
            file.sync_data().unwrap();
            disk.sync_dir(Path::new("d")).unwrap();
            file.write_all_at(b"later", 600).unwrap();
            disk.crash();
            let bytes = disk.read(path()).unwrap();
            assert_eq!(&bytes[..6], b"synced");
        }
    }

    #[test]
    fn unsynced_write_is_kept_lost_or_torn_at_sector_boundaries() {
        let (mut kept, mut lost, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            let disk = disk(seed);
            let file = disk.open(path(), OpenMode::CreateNew).unwrap();
            file.write_all_at(&[0; 2048], 0).unwrap();
            file.sync_data().unwrap();
            disk.sync_dir(Path::new("d")).unwrap();
            file.write_all_at(&[1; 2048], 0).unwrap();
            disk.crash();
            let bytes = disk.read(path()).unwrap();
            for sector in bytes.chunks(SECTOR_BYTES) {
                assert!(sector.iter().all(|byte| *byte == sector[0]));
            }
            match bytes.iter().map(|byte| u32::from(*byte)).sum() {
                2048 => kept += 1,
                0 => lost += 1,
                _ => torn += 1,
            }
        }
        assert!(kept > 20 && lost > 20 && torn > 20, "{kept} {lost} {torn}");
    }

    #[test]
    fn unsynced_directory_changes_are_lost_in_order() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let disk = disk(seed);
            for name in ["a", "b"] {
                disk.open(&Path::new("d").join(name), OpenMode::CreateNew).unwrap();
            }
            disk.rename(Path::new("d/a"), Path::new("d/c")).unwrap();
            disk.crash();
            seen.insert(disk.list(Path::new("d")).unwrap().join(""));
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["", "a", "ab", "bc"]);
    }

    #[test]
    fn data_of_a_failed_sync_is_readable_but_never_durable() {
        let disk = disk(1);
        let file = disk.open(path(), OpenMode::CreateNew).unwrap();
        disk.sync_dir(Path::new("d")).unwrap();
        file.write_all_at(b"lost", 0).unwrap();
        disk.fail_next_sync();
        file.sync_data().unwrap_err();
        file.sync_data().unwrap();
        disk.kill();
        assert_eq!(disk.read(path()).unwrap(), b"lost");
        disk.crash();
        assert_eq!(disk.read(path()).unwrap(), b"");
    }

    #[test]
    fn handles_and_locks_of_an_earlier_incarnation_fail() {
        let disk = disk(1);
        let file = disk.open(path(), OpenMode::CreateNew).unwrap();
        let held = disk.lock(Path::new("d/LOCK")).unwrap();
        assert_eq!(disk.lock(Path::new("d/LOCK")).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        disk.kill();
        file.write_all_at(b"x", 0).unwrap_err();
        file.len().unwrap_err();
        let again = disk.lock(Path::new("d/LOCK")).unwrap();
        drop(held);
        assert!(disk.lock(Path::new("d/LOCK")).is_err());
        drop(again);
        disk.lock(Path::new("d/LOCK")).unwrap();
    }

    #[test]
    fn full_disk_accepts_what_fits_and_allows_overwrites() {
        let disk = disk(1);
        disk.limit(Some(10));
        let file = disk.open(path(), OpenMode::CreateNew).unwrap();
        let error = file.write_all_at(&[1; 16], 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.len().unwrap(), 10);
        file.write_all_at(&[2; 10], 0).unwrap();
    }

    #[test]
    fn unlinked_file_stays_readable_while_open() {
        let disk = disk(1);
        let file = disk.open(path(), OpenMode::CreateNew).unwrap();
        file.write_all_at(b"abc", 0).unwrap();
        let again = disk.open(path(), OpenMode::Read).unwrap();
        disk.sync_dir(Path::new("d")).unwrap();
        disk.remove(path()).unwrap();
        // The removal of the file is not durable yet.
        drop(file);
        assert_eq!(disk.used(), 3);
        disk.sync_dir(Path::new("d")).unwrap();
        assert_eq!(disk.used(), 0);
        let mut bytes = [0; 3];
        again.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"abc");
        drop(again);
        disk.sync_dir(Path::new("d")).unwrap();
        assert!(disk.state().files.is_empty());
    }

    #[test]
    fn disk_copy_is_independent() {
        let disk = disk(1);
        disk.replace(path(), b"abc");
        let copy = disk.copy();
        copy.flip_bit(path(), 8);
        assert_eq!(disk.read(path()).unwrap(), b"abc");
        assert_eq!(copy.read(path()).unwrap(), b"acc");
    }

    #[test]
    fn stopped_disk_fails_every_call_until_a_kill() {
        let disk = disk(1);
        disk.stop_after(2);
        let file = disk.open(path(), OpenMode::CreateNew).unwrap();
        file.write_all_at(b"x", 0).unwrap();
        file.sync_data().unwrap_err();
        disk.sync_dir(Path::new("d")).unwrap_err();
        disk.kill();
        disk.sync_dir(Path::new("d")).unwrap();
    }
}
