//! The files of the log and their names.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::LogError;
use super::stock::NEXT_UNFINISHED;
use crate::env::{Disk, Env, File, OpenMode, Point, Points};

/// Number of bytes of a future segment that are zeroed and synced in one step.
pub(super) const SLICE_BYTES: u32 = 256 << 10;

static ZEROS: [u8; SLICE_BYTES as usize] = [0; SLICE_BYTES as usize];

/// The directory of the log.
#[derive(Clone)]
pub(super) struct SegmentFolder {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) points: Arc<dyn Points>,
    pub(super) path: PathBuf,
}

impl SegmentFolder {
    pub(super) fn new(env: &Env, path: &Path) -> Self {
        Self { disk: env.disk.clone(), points: env.points.clone(), path: path.to_owned() }
    }

    /// Returns the path of the segment with this number. The names sort like the numbers.
    pub(super) fn path_of(&self, number: u32) -> PathBuf {
        self.path.join(format!("{number:010}.log"))
    }

    /// Returns the numbers of the existing segments in ascending order.
    pub(super) fn numbers(&self) -> Result<Vec<u32>, LogError> {
        let names = self.disk.list(&self.path).map_err(LogError::io("list", &self.path))?;
        let number = |name: &String| {
            let number = name.strip_suffix(".log")?.parse().ok()?;
            (self.path_of(number) == self.path.join(name)).then_some(number)
        };
        let mut numbers: Vec<u32> = names.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    pub(super) fn open(&self, number: u32, mode: OpenMode) -> Result<Box<dyn File>, LogError> {
        let path = self.path_of(number);
        self.disk.open(&path, mode).map_err(LogError::io("open", &path))
    }

    pub(super) fn sync(&self) -> Result<(), LogError> {
        self.disk.sync_dir(&self.path).map_err(LogError::io("sync the directory", &self.path))
    }

    pub(super) fn remove(&self, path: &Path) -> Result<(), LogError> {
        match self.disk.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(LogError::io("remove", path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Creates a complete and durable segment that starts with `head`.
    pub(super) fn make(&self, number: u32, length: u32, head: &[u8]) -> Result<(), LogError> {
        let path = self.path.join(NEXT_UNFINISHED);
        let file = self.create(NEXT_UNFINISHED)?;
        fill(&*file, 0, length).map_err(LogError::io("prepare", &path))?;
        file.write_all_at(head, 0).map_err(LogError::io("prepare", &path))?;
        file.sync_data().map_err(LogError::io("sync", &path))?;
        self.put_in_place(NEXT_UNFINISHED, &self.path_of(number))
    }

    /// Creates an empty file and replaces an existing one with this name.
    pub(super) fn create(&self, name: &str) -> Result<Box<dyn File>, LogError> {
        let path = self.path.join(name);
        self.remove(&path)?;
        self.disk.open(&path, OpenMode::CreateNew).map_err(LogError::io("create", &path))
    }

    /// Renames a complete and synced file to its final name, durably.
    pub(super) fn put_in_place(&self, name: &str, path: &Path) -> Result<(), LogError> {
        self.disk
            .rename(&self.path.join(name), path)
            .map_err(LogError::io("rename a file to", path))?;
        self.points.reach(Point::LogSegmentCreated);
        if !mutant!(M22) {
            self.sync()?;
        }
        self.points.reach(Point::LogSegmentSynced);
        Ok(())
    }
}

/// Overwrites a part of a file with zeros.
pub(super) fn fill(file: &dyn File, from: u32, to: u32) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let bytes = (to - at).min(SLICE_BYTES);
        file.write_all_at(&ZEROS[..bytes as usize], u64::from(at))?;
        at += bytes;
    }
    Ok(())
}
