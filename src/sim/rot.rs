//! Bit rot: a disk returns other data than was written. Either a bit flips, or a write was misdirected, so that one
//! sector contains the data of another sector, which keeps its old data.
//!
//! The damage is chosen so that it cannot be mistaken for the effect of a crash. In the current segment of the log, it
//! is within the part that a later record marks as synced. A member must detect such damage.

use std::path::{Path, PathBuf};

use super::disk::{SECTOR_BYTES, SimDisk};
use super::rng::Rng;
use crate::env::{Disk, Entropy};

/// Alignment of records in bytes.
const ALIGNMENT: usize = 8;

/// The first bytes of a record, and the offset of the field that states how much of the log was synced at that time.
const RECORD_MAGIC: [u8; 4] = *b"BLr\x01";
const SYNCED_AT: usize = 16;

/// A kind of damage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rot {
    /// A bit of the log flips.
    LogBit,
    /// A write to the log is misdirected within it.
    LogSector,
    /// A bit of the newest snapshot flips.
    SnapshotBit,
    /// A bit of the newest snapshot flips while the process runs, or a sector of it becomes unreadable.
    #[cfg_attr(not(test), allow(dead_code, reason = "a story lets it happen, plans do not"))]
    SnapshotMeanwhile,
}

impl Rot {
    /// The damage that happens while the machine is down. Plans draw from these.
    pub(crate) const WHILE_DOWN: [Rot; 3] = [Rot::LogBit, Rot::LogSector, Rot::SnapshotBit];

    /// Returns whether the log is damaged. A member with a damaged log must stop.
    pub(crate) fn is_of_log(self) -> bool {
        matches!(self, Rot::LogBit | Rot::LogSector)
    }

    /// Returns whether it happens while the machine is down.
    pub(crate) fn is_while_down(self) -> bool {
        Self::WHILE_DOWN.contains(&self)
    }

    /// Damages a file and returns its path, or `None` if there is no suitable file.
    pub(crate) fn inject(self, disk: &SimDisk, dir: &Path, rng: &Rng) -> Option<PathBuf> {
        let any =
            |length: usize| usize::try_from(rng.below(length as u64)).expect("below a length");
        match self {
            Rot::LogBit => {
                let (path, length) = synced_part(disk, dir)?;
                disk.flip_bit(&path, any(length * 8));
                Some(path)
            }
            Rot::LogSector => {
                let (path, length) = synced_part(disk, dir)?;
                let sectors = length / SECTOR_BYTES;
                if sectors < 2 {
                    return None;
                }
                let (from, to) = (any(sectors), any(sectors - 1));
                let to = if to >= from { to + 1 } else { to };
                misdirect(disk, &path, from, to).then_some(path)
            }
            Rot::SnapshotBit | Rot::SnapshotMeanwhile => {
                let path = newest_snapshot(disk, dir)?;
                let length = disk.read(&path).map_or(0, |bytes| bytes.len());
                if length == 0 {
                    return None;
                }
                match self {
                    Rot::SnapshotMeanwhile if any(2) == 0 => disk.damage_sector(&path, any(length)),
                    _ => disk.flip_bit(&path, any(length * 8)),
                }
                Some(path)
            }
        }
    }
}

/// Moves the data at `from` to `to` and fills `from` with zeros. Returns whether that changed anything.
fn misdirect(disk: &SimDisk, path: &Path, from: usize, to: usize) -> bool {
    let Some(before) = disk.read(path) else { return false };
    let mut bytes = before.clone();
    let (from, to) = (from * SECTOR_BYTES, to * SECTOR_BYTES);
    bytes.copy_within(from..from + SECTOR_BYTES, to);
    bytes[from..from + SECTOR_BYTES].fill(0);
    disk.replace(path, &bytes);
    bytes != before
}

/// Returns the current segment of a log and how much of it is known to have been synced.
fn synced_part(disk: &SimDisk, dir: &Path) -> Option<(PathBuf, usize)> {
    let mut synced = 0;
    let mut current = None;
    for path in files(disk, dir, "log") {
        let Some(number) = number(&path) else { continue };
        let bytes = disk.read(&path)?;
        let records = (0..bytes.len().saturating_sub(SYNCED_AT + 8)).step_by(ALIGNMENT);
        for at in records.filter(|at| bytes[*at..].starts_with(&RECORD_MAGIC)) {
            let field = bytes[at + SYNCED_AT..][..8].try_into().expect("eight bytes");
            synced = u64::from_le_bytes(field).max(synced);
            current = current.max(Some((number, path.clone())));
        }
    }
    let (number, path) = current?;
    let length = usize::try_from(synced & u64::from(u32::MAX)).expect("a segment is small");
    (synced >> 32 == number && length > 0).then_some((path, length))
}

/// Returns the files with this extension in a directory and below, sorted by name.
fn files(disk: &SimDisk, dir: &Path, extension: &str) -> Vec<PathBuf> {
    let names = disk.list(dir).unwrap_or_default();
    let paths = names.into_iter().map(|name| dir.join(name));
    paths.filter(|path| path.extension().is_some_and(|of| of == extension)).collect()
}

fn number(path: &Path) -> Option<u64> {
    path.file_stem()?.to_str()?.parse().ok()
}

fn newest_snapshot(disk: &SimDisk, dir: &Path) -> Option<PathBuf> {
    files(disk, dir, "snapshot").into_iter().next_back()
}
