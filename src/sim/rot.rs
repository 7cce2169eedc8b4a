//! Media that rot: what lies on a disk is not what was written there. A bit flips; or a write went to
//! another place, so that one sector has what belongs elsewhere and another has never got its own.
//!
//! What rots is chosen so that it can be told from what a crash leaves: of the log, the current segment,
//! up to where a later record says that it was synced. That a member must notice.

use std::path::{Path, PathBuf};

use super::disk::{SECTOR_BYTES, SimDisk};
use super::rng::Rng;
use crate::env::{Disk, Entropy};

/// Where records begin, in multiples of so many bytes.
const ALIGNMENT: usize = 8;

/// How a record begins, and where in it stands up to where the log was synced when it was written.
const RECORD_MAGIC: [u8; 4] = *b"BLr\x01";
const SYNCED_AT: usize = 16;

/// What rots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rot {
    /// A bit of the log flips.
    LogBit,
    /// A write to the log went to a wrong place of it.
    LogSector,
    /// A bit of the newest snapshot flips.
    SnapshotBit,
    /// The same under a process that runs; or a sector of it cannot be read any more.
    #[cfg_attr(not(test), allow(dead_code, reason = "a story lets it happen, plans do not"))]
    SnapshotMeanwhile,
}

impl Rot {
    /// What happens while the machine is down: those that the plans of seeds draw from.
    pub(crate) const WHILE_DOWN: [Rot; 3] = [Rot::LogBit, Rot::LogSector, Rot::SnapshotBit];

    /// Whether it is the log: a member whose log is damaged must not go on.
    pub(crate) fn is_of_log(self) -> bool {
        matches!(self, Rot::LogBit | Rot::LogSector)
    }

    /// Whether it happens while the machine is down.
    pub(crate) fn is_while_down(self) -> bool {
        Self::WHILE_DOWN.contains(&self)
    }

    /// Lets it happen, and says to which file; `None` if there was nothing to rot.
    pub(crate) fn strike(self, disk: &SimDisk, dir: &Path, rng: &Rng) -> Option<PathBuf> {
        let any =
            |length: usize| usize::try_from(rng.below(length as u64)).expect("below a length");
        match self {
            Rot::LogBit => {
                let (path, length) = vouched(disk, dir)?;
                disk.flip_bit(&path, any(length * 8));
                Some(path)
            }
            Rot::LogSector => {
                let (path, length) = vouched(disk, dir)?;
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
                    Rot::SnapshotMeanwhile if any(2) == 0 => disk.spoil_sector(&path, any(length)),
                    _ => disk.flip_bit(&path, any(length * 8)),
                }
                Some(path)
            }
        }
    }
}

/// What was written to `from` is at `to`, and `from` is as it was made: zeros. Whether that changes
/// anything.
fn misdirect(disk: &SimDisk, path: &Path, from: usize, to: usize) -> bool {
    let Some(before) = disk.read(path) else { return false };
    let mut bytes = before.clone();
    let (from, to) = (from * SECTOR_BYTES, to * SECTOR_BYTES);
    bytes.copy_within(from..from + SECTOR_BYTES, to);
    bytes[from..from + SECTOR_BYTES].fill(0);
    disk.replace(path, &bytes);
    bytes != before
}

/// The current segment of a log, and how much of it is known to have been synced.
fn vouched(disk: &SimDisk, dir: &Path) -> Option<(PathBuf, usize)> {
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

/// The files of a directory and its directories with an extension, by name.
fn files(disk: &SimDisk, dir: &Path, extension: &str) -> Vec<PathBuf> {
    let names = disk.list(dir).unwrap_or_default();
    let paths = names.into_iter().map(|name| dir.join(name));
    paths.filter(|path| path.extension().is_some_and(|of| of == extension)).collect()
}

fn number(path: &Path) -> Option<u64> {
    path.file_stem()?.to_str()?.parse().ok()
}

/// The newest snapshot, if there is one.
fn newest_snapshot(disk: &SimDisk, dir: &Path) -> Option<PathBuf> {
    files(disk, dir, "snapshot").into_iter().next_back()
}
