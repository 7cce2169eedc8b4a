//! Files prepared in advance: the next segment, and a reserve for a full disk.
//!
//! The next segment and the reserve are files of zeros. Both files are synced, and durable under
//! their names, before any group depends on them. Therefore a full disk is noticed here, before a
//! group was accepted. Writing a group only overwrites zeros that are already allocated.
//!
//! ```text
//! next.tmp    --filled, synced-->  0000000004.log     the next segment
//! reserve.tmp --filled, synced-->  reserve  ------->  the next segment, if there is no room for one
//! ```
//!
//! If the disk fills up, an unfinished file stays and is completed once there is free space again.
//! Each attempt to continue writes at most one slice.

use std::io;
use std::path::PathBuf;

use super::segment::{SLICE_BYTES, SegmentFolder, fill};
use super::{LogError, Space};
use crate::env::{File, OpenMode};

/// Name of a segment while it is being prepared.
pub(super) const NEXT_UNFINISHED: &str = "next.tmp";

const RESERVE_UNFINISHED: &str = "reserve.tmp";
const RESERVE: &str = "reserve";

/// Number of slices prepared in one idle step.
const IDLE_SLICES: usize = 4;

/// A file of zeros.
pub(super) enum Blank {
    /// The file does not exist yet.
    Absent,
    /// The file exists under a temporary name; zeros up to `filled` are durable.
    Filling { file: Box<dyn File>, length: u32, filled: u32 },
    /// The file can be used.
    Ready { file: Box<dyn File>, length: u32 },
    /// The disk returned an error other than a lack of space. The work is not retried until the
    /// file is needed.
    Refused,
}

impl Blank {
    /// Returns the number of bytes that need no further work.
    fn filled(&self) -> u32 {
        match self {
            Self::Absent => 0,
            Self::Filling { filled, .. } => *filled,
            Self::Ready { .. } | Self::Refused => u32::MAX,
        }
    }

    /// Prepares one slice.
    fn step(
        &mut self,
        folder: &SegmentFolder,
        place: &StockPlace,
        length: u32,
    ) -> Result<(), LogError> {
        match self {
            Self::Absent => {
                let file = folder.create(place.unfinished)?;
                *self = Self::Filling { file, length, filled: 0 };
            }
            Self::Filling { file, length: whole, filled } if *filled < length.max(*whole) => {
                *whole = length.max(*whole);
                let path = folder.path.join(place.unfinished);
                let to = filled.saturating_add(SLICE_BYTES).min(*whole);
                fill(&**file, *filled, to).map_err(LogError::io("prepare", &path))?;
                if let Err(error) = file.sync_data() {
                    // After a failed sync, earlier writes to the file may be lost, so do not use
                    // the file.
                    *self = Self::Absent;
                    return Err(LogError::io("sync", &path)(error));
                }
                *filled = to;
            }
            Self::Filling { .. } => {
                let Self::Filling { file, length, .. } = std::mem::replace(self, Self::Absent)
                else {
                    unreachable!("it was a moment ago")
                };
                folder.put_in_place(place.unfinished, &place.path)?;
                *self = Self::Ready { file, length };
            }
            Self::Ready { .. } | Self::Refused => {}
        }
        Ok(())
    }

    /// Completes the file with at least `least` bytes. Returns whether the disk had enough space.
    fn complete(
        &mut self,
        folder: &SegmentFolder,
        place: &StockPlace,
        least: u32,
    ) -> Result<bool, LogError> {
        if matches!(self, Self::Refused) {
            *self = Self::Absent;
        }
        while !matches!(self, Self::Ready { .. }) {
            match self.step(folder, place, least) {
                Err(error) if error.is_no_space() => return Ok(false),
                result => result?,
            }
        }
        Ok(true)
    }
}

/// The temporary name of a file of zeros, and its path once it is complete.
struct StockPlace {
    unfinished: &'static str,
    path: PathBuf,
}

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StockStep {
    Done,
    NothingToDo,
    NoRoom,
}

/// The prepared files and the files in preparation.
pub(super) struct Stock {
    folder: SegmentFolder,
    segment_bytes: u32,
    /// Size of the reserve; 0 means no reserve.
    reserve_bytes: u32,
    next: Blank,
    reserve: Blank,
    /// Whether the disk was full and the files have not been prepared completely since then.
    short: bool,
}

/// A segment's file and its length.
type Handed = (Box<dyn File>, u32);

impl Stock {
    /// Creates the stock from the files found. `next` is the file after the segment in use.
    pub(super) fn from_files(
        folder: SegmentFolder,
        segment_bytes: u32,
        reserve_bytes: u32,
        next: Blank,
    ) -> Result<Self, LogError> {
        folder.remove(&folder.path.join(NEXT_UNFINISHED))?;
        folder.remove(&folder.path.join(RESERVE_UNFINISHED))?;
        let path = folder.path.join(RESERVE);
        let reserve = match folder.disk.open(&path, OpenMode::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Blank::Absent,
            opened => {
                let file = opened.map_err(LogError::io("open", &path))?;
                let bytes = file.len().map_err(LogError::io("read", &path))?;
                if reserve_bytes > 0 && bytes == u64::from(reserve_bytes) {
                    Blank::Ready { file, length: reserve_bytes }
                } else {
                    folder.remove(&path)?;
                    Blank::Absent
                }
            }
        };
        Ok(Self { folder, segment_bytes, reserve_bytes, next, reserve, short: false })
    }

    /// Returns the free space; see [`Space`].
    pub(super) fn space(&self) -> Space {
        if self.short { Space::Low } else { Space::Plenty }
    }

    /// Returns whether the next segment is ready.
    pub(super) fn has_next(&self) -> bool {
        matches!(self.next, Blank::Ready { .. })
    }

    /// Works until `wanted` bytes of the segment `number` are ready. If the segment needs no work,
    /// prepares one slice of the reserve.
    pub(super) fn prepare(&mut self, number: u32, wanted: u32) {
        while !self.short && self.next.filled() < wanted {
            self.step(number, wanted);
        }
        if self.short || matches!(self.next, Blank::Ready { .. }) {
            self.step(number, wanted);
        }
    }

    /// Prepares a few slices of the next segment or of the reserve. Returns whether there is more
    /// to prepare now.
    pub(super) fn use_idle_moment(&mut self, number: u32, wanted: u32) -> bool {
        (0..IDLE_SLICES).all(|_| self.step(number, wanted) == StockStep::Done)
    }

    fn step(&mut self, number: u32, wanted: u32) -> StockStep {
        let wanted = if self.short { u32::MAX } else { wanted };
        let (blank, place, length) = if self.next.filled() < wanted {
            (&mut self.next, next_place(&self.folder, number), self.segment_bytes)
        } else if self.reserve_bytes > 0 && self.reserve.filled() < u32::MAX {
            let path = self.folder.path.join(RESERVE);
            let place = StockPlace { unfinished: RESERVE_UNFINISHED, path };
            (&mut self.reserve, place, self.reserve_bytes)
        } else {
            self.short = false;
            return StockStep::NothingToDo;
        };
        match blank.step(&self.folder, &place, length) {
            Ok(()) => StockStep::Done,
            Err(error) if error.is_no_space() => {
                self.short = true;
                StockStep::NoRoom
            }
            Err(_) => {
                // The file is not needed yet, so the failure is not reported yet. The next start of
                // the node removes the unfinished file.
                *blank = Blank::Refused;
                StockStep::Done
            }
        }
    }

    /// Returns the segment `number`, durable under its name and at least `least` bytes long.
    /// Returns `None` and changes nothing if the disk has no room for the segment.
    pub(super) fn take(&mut self, number: u32, least: u32) -> Result<Option<Handed>, LogError> {
        let place = next_place(&self.folder, number);
        let shorter = match &self.next {
            Blank::Ready { length, .. } if *length < least => {
                std::mem::replace(&mut self.next, Blank::Absent)
            }
            _ => Blank::Absent,
        };
        if !self.next.complete(&self.folder, &place, least)? {
            self.short = true;
            if matches!(&self.reserve, Blank::Ready { length, .. } if *length >= least) {
                self.next = std::mem::replace(&mut self.reserve, Blank::Absent);
                self.folder.put_in_place(RESERVE, &place.path)?;
            } else if matches!(shorter, Blank::Ready { .. }) {
                self.folder.remove(&self.folder.path.join(NEXT_UNFINISHED))?;
                self.next = shorter;
            }
        }
        Ok(match std::mem::replace(&mut self.next, Blank::Absent) {
            Blank::Ready { file, length } if length >= least => Some((file, length)),
            unready => {
                self.next = unready;
                None
            }
        })
    }
}

fn next_place(folder: &SegmentFolder, number: u32) -> StockPlace {
    StockPlace { unfinished: NEXT_UNFINISHED, path: folder.path_of(number) }
}
