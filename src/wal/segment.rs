//! The files of the log: their names, and how the next one is made before it is needed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::LogError;
use crate::env::{Disk, Env, File, OpenMode, Point, Points};

/// How many bytes of a future segment are zeroed and synced in one step.
pub(super) const SLICE_BYTES: u32 = 256 << 10;

static ZEROS: [u8; SLICE_BYTES as usize] = [0; SLICE_BYTES as usize];

/// A segment in the making has this name until it is whole.
const UNFINISHED: &str = "next.tmp";

/// The directory of the log.
#[derive(Clone)]
pub(super) struct Folder {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) points: Arc<dyn Points>,
    pub(super) path: PathBuf,
}

impl Folder {
    pub(super) fn new(env: &Env, path: &Path) -> Self {
        Self { disk: env.disk.clone(), points: env.points.clone(), path: path.to_owned() }
    }

    /// Where the segment with this number is. The names' order is that of the numbers.
    pub(super) fn path_of(&self, number: u32) -> PathBuf {
        self.path.join(format!("{number:010}.log"))
    }

    /// The numbers of the segments that are there, rising.
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

    /// Removes what an interrupted preparation left.
    pub(super) fn remove_unfinished(&self) -> Result<(), LogError> {
        self.remove(&self.path.join(UNFINISHED))
    }

    /// Makes a segment that starts with `head`, whole and durable.
    pub(super) fn make(
        &self,
        number: u32,
        length: u32,
        head: &[u8],
    ) -> Result<Box<dyn File>, LogError> {
        let path = self.path.join(UNFINISHED);
        let file = self.start_unfinished()?;
        fill(&*file, 0, length).map_err(LogError::io("prepare", &path))?;
        file.write_all_at(head, 0).map_err(LogError::io("prepare", &path))?;
        file.sync_data().map_err(LogError::io("sync", &path))?;
        self.put_in_place(number)?;
        Ok(file)
    }

    fn start_unfinished(&self) -> Result<Box<dyn File>, LogError> {
        self.remove_unfinished()?;
        let path = self.path.join(UNFINISHED);
        self.disk.open(&path, OpenMode::CreateNew).map_err(LogError::io("create", &path))
    }

    /// Gives the unfinished segment its name, durably.
    fn put_in_place(&self, number: u32) -> Result<(), LogError> {
        let path = self.path_of(number);
        self.disk
            .rename(&self.path.join(UNFINISHED), &path)
            .map_err(LogError::io("put in place", &path))?;
        self.points.reach(Point::LogSegmentCreated);
        self.sync()?;
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

/// The segment after the one in use: a file of zeros, durable under its name before the log may say
/// that it goes on there.
pub(super) enum Next {
    /// Nothing is there yet.
    Absent,
    /// Zeros up to `filled` are durable, under another name.
    Filling { file: Box<dyn File>, length: u32, filled: u32 },
    /// It can be used.
    Ready { file: Box<dyn File>, length: u32 },
    /// The disk refused (it may be full). Nothing is tried again until the segment is needed.
    Refused,
}

impl Next {
    /// How many of its bytes need no more work now.
    pub(super) fn filled(&self) -> u32 {
        match self {
            Self::Absent => 0,
            Self::Filling { filled, .. } => *filled,
            Self::Ready { .. } | Self::Refused => u32::MAX,
        }
    }

    /// Does a slice of the work. A disk that refuses is no error yet.
    pub(super) fn prepare(&mut self, folder: &Folder, number: u32, length: u32) {
        if matches!(self, Self::Refused) {
            return;
        }
        if self.step(folder, number, length).is_err() {
            // The room that the file takes may be wanted elsewhere; should it stay, the next start
            // or the next attempt removes it.
            drop(folder.remove_unfinished());
            *self = Self::Refused;
        }
    }

    /// Does what is left of the work and hands the segment out, at least `least` bytes long.
    pub(super) fn take(
        &mut self,
        folder: &Folder,
        number: u32,
        least: u32,
    ) -> Result<(Box<dyn File>, u32), LogError> {
        if matches!(self, Self::Refused) {
            *self = Self::Absent;
        }
        loop {
            match std::mem::replace(self, Self::Absent) {
                Self::Ready { file, length } if length >= least => return Ok((file, length)),
                // A file that has its name is durable as it is; a longer one is made and takes over.
                Self::Ready { .. } => {}
                unfinished => {
                    *self = unfinished;
                    self.step(folder, number, least)?;
                }
            }
        }
    }

    fn step(&mut self, folder: &Folder, number: u32, length: u32) -> Result<(), LogError> {
        match std::mem::replace(self, Self::Refused) {
            Self::Absent => {
                *self = Self::Filling { file: folder.start_unfinished()?, length, filled: 0 };
            }
            Self::Filling { file, length, filled } if filled < length => {
                let path = folder.path.join(UNFINISHED);
                let to = length.min(filled.saturating_add(SLICE_BYTES));
                fill(&*file, filled, to).map_err(LogError::io("prepare", &path))?;
                file.sync_data().map_err(LogError::io("sync", &path))?;
                *self = Self::Filling { file, length, filled: to };
            }
            Self::Filling { file, length, .. } => {
                folder.put_in_place(number)?;
                *self = Self::Ready { file, length };
            }
            ready @ Self::Ready { .. } => *self = ready,
            Self::Refused => {}
        }
        Ok(())
    }
}
