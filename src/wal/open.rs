//! Opens the log: creates a new log, or continues an existing log at its end.

use std::path::Path;

use super::format::{self, HEADER_BYTES, Header, Position, Record, RecordKind, VERSION};
use super::reader::LogReader;
use super::recover::{self, Recovery};
use super::segment::{self, SLICE_BYTES, SegmentFolder};
use super::state::LogState;
use super::stock::{Blank, Stock};
use super::writer::{LogWriter, Segment, TAIL_BYTES};
use super::{Examined, Identity, LogError, LogOptions, Opened, Recovered, TornTail};
use crate::env::{DiskLock, Env, File, OpenMode};
use crate::model::{DiskId, Incarnation};

/// Name of the lock file, which shows that a node is running on the directory.
pub(crate) const LOCK: &str = "LOCK";

const SEGMENT_BYTES_MIN: u64 = 2 << 10;
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// Locks a directory for this process.
pub(super) fn lock(env: &Env, dir: &Path) -> Result<DiskLock, LogError> {
    match env.disk.lock(&dir.join(LOCK)) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            Err(LogError::Locked { dir: dir.to_owned() })
        }
        result => result.map_err(LogError::io("lock", &dir.join(LOCK))),
    }
}

/// Reads a log without changing it.
pub(super) fn examine(env: &Env, dir: &Path) -> Result<Option<Examined>, LogError> {
    let folder = SegmentFolder::new(env, dir);
    // If there is no log, this function creates no file, not even a lock file.
    let Some((identity, _)) = recover::peek(&folder)? else { return Ok(None) };
    let lock = lock(env, dir)?;
    let numbers = folder.numbers()?;
    let Recovery { disk, state, older, tail, torn, .. } =
        recover::recover(&folder, identity, &numbers, OpenMode::Read)?;
    let torn = torn.map(|torn| TornTail {
        segment: folder.path_of(torn.position.segment),
        offset: u64::from(torn.position.offset),
        bytes: u64::from(torn.until - torn.position.offset),
    });
    let recovered = Recovered::of(&state, disk, torn);
    let reader = LogReader::new(folder, disk, state.index);
    let older: u64 = older.iter().map(|(_, length)| u64::from(*length)).sum();
    reader.set_bytes(older + u64::from(tail.end));
    Ok(Some(Examined { identity, reader, recovered, _lock: lock }))
}

impl Recovered {
    fn of(state: &LogState, disk: DiskId, torn: Option<TornTail>) -> Self {
        Self {
            disk,
            incarnation: Incarnation(state.incarnation),
            founding: state.founding.clone(),
            hard_state: state.hard_state.clone(),
            base: state.base,
            last: state.index.last(),
            torn,
        }
    }
}

/// The lengths of new files.
#[derive(Clone, Copy)]
struct Lengths {
    segment: u32,
    reserve: u32,
}

impl Lengths {
    fn of(options: &LogOptions) -> Self {
        let length = |bytes: u64| (bytes.min(SEGMENT_BYTES_MAX) as u32).next_multiple_of(8);
        let segment = length(options.segment_bytes.max(SEGMENT_BYTES_MIN));
        let reserve = match options.reserve_bytes {
            0 => 0,
            bytes => length(bytes).max(segment),
        };
        Self { segment, reserve }
    }
}

impl LogWriter {
    pub(super) fn open(
        env: &Env,
        dir: &Path,
        identity: Identity,
        options: LogOptions,
    ) -> Result<Opened, LogError> {
        let lengths = Lengths::of(&options);
        let folder = SegmentFolder::new(env, dir);
        env.disk.create_dir(dir).map_err(LogError::io("create", dir))?;
        let lock = lock(env, dir)?;
        if folder.numbers()?.is_empty() {
            let disk = options.disk.unwrap_or_else(|| DiskId(env.entropy.next_u128()));
            let header = Header {
                version: VERSION,
                segment: 1,
                identity,
                disk,
                length: lengths.segment,
                chain: 0,
            };
            folder.make(1, lengths.segment, &header.encode().0)?;
        }
        let mut numbers = folder.numbers()?;
        if mutant!(M43) && numbers.len() > 1 {
            numbers.pop();
        }
        let recovery = recover::recover(&folder, identity, &numbers, OpenMode::Write)?;
        if let Some(own) = options.disk.filter(|own| *own != recovery.disk) {
            return Err(LogError::OtherDisk { dir: dir.to_owned(), found: recovery.disk, own });
        }
        Self::continue_log(folder, identity, lengths, lock, recovery)
    }

    /// Continues a valid log.
    fn continue_log(
        folder: SegmentFolder,
        identity: Identity,
        lengths: Lengths,
        lock: DiskLock,
        recovery: Recovery,
    ) -> Result<Opened, LogError> {
        let torn = recovery.secure(&folder)?;
        let Recovery { disk, state, older, unremoved, tail, next, .. } = recovery;
        for number in unremoved {
            folder.remove(&folder.path_of(number))?;
        }
        let (entered, next) = match next {
            None => (None, Blank::Absent),
            Some(next) if tail.next_length.is_some() => {
                (Some((next.file, next.length)), Blank::Absent)
            }
            Some(next) if next.blank && next.length >= lengths.segment => {
                (None, Blank::Ready { file: next.file, length: next.length })
            }
            Some(_) => {
                folder.remove(&folder.path_of(tail.number + 1))?;
                (None, Blank::Absent)
            }
        };
        let stock = Stock::from_files(folder.clone(), lengths.segment, lengths.reserve, next)?;
        folder.sync()?;

        let reader = LogReader::new(folder.clone(), disk, state.index.clone());
        let mut writer = Self {
            segment: Segment {
                number: tail.number,
                file: tail.file,
                length: tail.length,
                seed: format::seed(disk, tail.number),
            },
            older,
            folder,
            identity,
            disk,
            segment_bytes: lengths.segment,
            stock,
            buffer: Vec::new(),
            buffer_at: tail.end,
            chain: tail.chain,
            durable: Position { segment: tail.number, offset: tail.end },
            unmarked: false,
            state,
            fresh: Vec::new(),
            number: 0,
            waiting: false,
            reader: reader.clone(),
            failed: None,
            _lock: lock,
        };
        // Removing the segments that a truncation has left frees space for new ones.
        writer.remove_passed(usize::MAX)?;
        if let (Some(length), Some((file, _))) = (tail.next_length, entered) {
            writer.enter_next(file, length);
        } else if tail.end == HEADER_BYTES as u32 {
            writer.append_state();
        }
        writer.boot()?;
        let recovered = Recovered::of(&writer.state, disk, torn);
        Ok(Opened { writer, reader, recovered })
    }

    /// Makes the next incarnation durable, and writes a watermark that proves this. Without the
    /// watermark, damage to the record of the incarnation would be mistaken for a torn tail, and
    /// the next start would use the same incarnation again.
    fn boot(&mut self) -> Result<(), LogError> {
        let number = self.state.incarnation + 1;
        let payload = number.to_le_bytes();
        // The watermark must not use the space that is reserved for a truncation record.
        if !self.make_room(Record::bytes(payload.len()) + TAIL_BYTES as usize)? {
            let (dir, bytes) = (self.folder.path.clone(), u64::from(self.segment_bytes));
            return Err(LogError::NoRoom { dir, bytes });
        }
        self.state.incarnation = number;
        self.append(RecordKind::Boot, 0, 0, &payload, true);
        self.flush()?;
        self.write_watermark()
    }
}

impl Recovery {
    /// Truncates the torn tail and makes everything else that was found durable.
    fn secure(&self, folder: &SegmentFolder) -> Result<Option<TornTail>, LogError> {
        let Self { tail, next, torn, .. } = self;
        let path = folder.path_of(tail.number);
        // An earlier incarnation may have failed to sync these bytes, so that they exist only in
        // the page cache. A later sync writes these bytes to the disk only if they are written
        // again.
        if !mutant!(B55) {
            rewrite(&*tail.file, tail.unproven_from, tail.end)
                .map_err(LogError::io("write", &path))?;
        }
        if let Some(torn) = torn {
            let (number, file) = match next {
                Some(next) if torn.position.segment != tail.number => (tail.number + 1, &next.file),
                _ => (tail.number, &tail.file),
            };
            let path = folder.path_of(number);
            segment::fill(&**file, torn.position.offset, torn.until)
                .map_err(LogError::io("write", &path))?;
            file.sync_data().map_err(LogError::io("sync", &path))?;
        }
        tail.file.sync_data().map_err(LogError::io("sync", &path))?;
        Ok(torn.as_ref().map(|torn| TornTail {
            segment: folder.path_of(torn.position.segment),
            offset: u64::from(torn.position.offset),
            bytes: u64::from(torn.until - torn.position.offset),
        }))
    }
}

/// Rewrites the bytes of a part of a file without changing them.
fn rewrite(file: &dyn File, from: u32, to: u32) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    let mut at = from;
    while at < to {
        let bytes = (to - at).min(SLICE_BYTES);
        buffer.resize(bytes as usize, 0);
        file.read_exact_at(&mut buffer, u64::from(at))?;
        file.write_all_at(&buffer, u64::from(at))?;
        at += bytes;
    }
    Ok(())
}
