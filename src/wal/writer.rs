//! The writer of the log: one write and one sync for all groups that are committed together.
//!
//! ```text
//! segment k                                     segment k+1
//! | group | group | zeros ...                   | zeros ...
//!                 ^ durable                              (made in slices, while k fills up)
//! commit: does not fit -> | Roll |, sync k  ->  | header | State    | group |, sync k+1
//! ```
//!
//! The Roll record is written only when the file of segment k+1 is durable under its name. The
//! header of segment k+1 is written only when segment k is synced. Therefore a segment with a
//! header proves that everything before it was synced.
//!
//! If no further segment can be created for a group, the group waits and none of its bytes are
//! written. A write into a segment overwrites zeros that were synced, so the write needs no free
//! space. On a copy-on-write file system the write may need free space. A full disk then counts as
//! a failed write.
//!
//! After the first failed write or sync, all later calls of the writer fail too. The effect of a
//! failed write or sync is unknown, and neither a retry nor a later success would reveal whether
//! the data is on disk.

use std::collections::VecDeque;

use super::cut::{CUT_BYTES, REMOVALS_AT_ROLL, REMOVALS_WHEN_IDLE};
use super::format::{
    self, HEADER_BYTES, Header, Position, Record, RecordDraft, RecordKind, VERSION, encode_founding,
};
use super::index::{IndexChange, IndexSample};
use super::reader::LogReader;
use super::segment::{SLICE_BYTES, SegmentFolder};
use super::state::LogState;
use super::stock::Stock;
use super::{Committed, Durable, Entry, EntryKind, Group, Identity, LogError, Space};
use crate::env::{DiskLock, File, Point};
use crate::model::DiskId;

/// Maximum size of a group, with everything that the log adds.
const GROUP_BYTES_MAX: usize = 1 << 30;

/// A disk loses bytes in units of sectors.
const SECTOR_BYTES: u32 = 512;

/// Space that every segment reserves after its last group: for a watermark, padding up to the next
/// sector, another watermark there, and the Roll record.
pub(super) const TAIL_BYTES: u32 = SECTOR_BYTES + 3 * Record::bytes(0) as u32;

/// If the write buffer is larger than this, its memory is released after a write.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// The writer of the log. A directory has only one, which holds the lock.
pub(crate) struct LogWriter {
    pub(super) folder: SegmentFolder,
    pub(super) identity: Identity,
    pub(super) disk: DiskId,
    pub(super) segment_bytes: u32,
    pub(super) segment: Segment,
    /// The existing segments before this one, in ascending order: number and length.
    pub(super) older: VecDeque<(u32, u32)>,
    pub(super) stock: Stock,
    /// Bytes that are not written yet. `buffer_at` is the offset of these bytes in the segment.
    pub(super) buffer: Vec<u8>,
    pub(super) buffer_at: u32,
    /// Chain of the last record, written or not.
    pub(super) chain: u32,
    /// Everything before this position is synced.
    pub(super) durable: Position,
    /// Whether no later record yet proves that the last durable data was synced.
    pub(super) unmarked: bool,
    /// State of the log including the current groups, durable or not.
    pub(super) state: LogState,
    /// Changes that are not visible to readers yet.
    pub(super) fresh: Vec<IndexChange>,
    pub(super) number: u64,
    /// Whether the last commit found no space for a group.
    pub(super) waiting: bool,
    pub(super) reader: LogReader,
    pub(super) failed: Option<String>,
    pub(super) _lock: DiskLock,
}

/// The segment in use.
pub(super) struct Segment {
    pub(super) number: u32,
    pub(super) file: Box<dyn File>,
    pub(super) length: u32,
    pub(super) seed: u32,
}

impl LogWriter {
    /// Makes all these groups durable with one write and one sync. Each time a segment ends, one
    /// more write and one more sync are needed. `groups` must not be empty.
    ///
    /// # Errors
    /// Returns a [`LogError`]. From then on every call fails.
    pub(crate) fn commit(&mut self, groups: &[Group]) -> Result<Committed, LogError> {
        self.unless_failed(|writer| writer.commit_groups(groups))
    }

    pub(crate) fn space(&self) -> Space {
        if self.waiting { Space::Low } else { self.stock.space() }
    }

    /// Uses an idle moment for maintenance. Removes truncated segments, and prepares the next
    /// segment and the reserve. Also writes a watermark for the last sync, so that damage to the
    /// synced data is not mistaken for a torn tail. Takes about as long as one to a few commits.
    /// Returns whether there is more to do.
    ///
    /// # Errors
    /// Same as [`LogWriter::commit`]. A lack of space for the next segment is not an error.
    pub(crate) fn idle(&mut self) -> Result<bool, LogError> {
        self.unless_failed(|writer| {
            if writer.unmarked && writer.has_room_for_watermark() {
                writer.write_watermark()?;
            }
            writer.remove_passed(REMOVALS_WHEN_IDLE)?;
            let (number, wanted) = (writer.segment.number + 1, writer.next_bytes_wanted());
            let more = writer.stock.use_idle_moment(number, wanted);
            Ok(more || writer.has_passed())
        })
    }

    pub(super) fn unless_failed<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        if let Some(first) = &self.failed {
            return Err(LogError::Poisoned { first: first.clone() });
        }
        let result = work(self);
        if let Err(error) = &result {
            self.failed = Some(error.to_string());
        }
        result
    }

    fn commit_groups(&mut self, groups: &[Group]) -> Result<Committed, LogError> {
        assert!(!groups.is_empty(), "a proof was asked for with no group to prove");
        let mut taken = 0;
        while taken < groups.len() && self.take_group(&groups[taken])? {
            taken += 1;
        }
        self.waiting = taken < groups.len();
        if !self.buffer.is_empty() {
            self.flush()?;
            self.unmarked = true;
        }
        self.publish();
        self.stock.prepare(self.segment.number + 1, self.next_bytes_wanted());
        // A group number is proven durable once no group with that number is waiting.
        let proven = match groups.get(taken) {
            None => Some(self.number),
            Some(waits) => waits.number.checked_sub(1).map(|below| below.min(self.number)),
        };
        let proof = proven.filter(|_| taken > 0).map(|number| Durable { number });
        Ok(Committed { proof, waiting: groups.len() - taken })
    }

    /// Checks that a group may be appended, and appends it to the buffer. Returns `false` and
    /// changes nothing if the disk has no space for the group.
    fn take_group(&mut self, group: &Group) -> Result<bool, LogError> {
        if group.number < self.number {
            return Err(impossible(
                "the number of a group is lower than that of the group before it",
            ));
        }
        let founding = group.founding.as_ref().map(encode_founding);
        let base = group.base.and_then(|base| Some((self.state.kind_of(base)?, base)));
        let payloads = (group.entries.iter().map(|entry| entry.data.len()))
            .chain(founding.as_ref().map(Vec::len))
            .chain(base.map(|_| size_of::<u64>()))
            .chain(group.hard_state.as_ref().map(|_| size_of::<u64>()));
        let (mut records, mut bytes) = (0, 0);
        for payload in payloads {
            records += 1;
            bytes += Record::bytes(payload);
        }
        if bytes > GROUP_BYTES_MAX {
            return Err(impossible("a group is larger than 1 GiB"));
        }
        if records > 0 && !self.make_room(bytes)? {
            return Ok(false);
        }
        self.number = group.number;
        let mut left = records;
        let mut ends = || {
            left -= 1;
            left == 0
        };
        if let (Some(payload), Some(founding)) = (&founding, &group.founding) {
            self.state.take_founding(founding.clone()).map_err(impossible)?;
            self.append(RecordKind::Founding, 0, 0, payload, ends());
        }
        if let Some((kind, base)) = base {
            self.append_base(kind, base, self.state.needed_from, ends())?;
        }
        for entry in &group.entries {
            self.append_entry(entry, ends())?;
        }
        if let Some(next) = &group.hard_state {
            self.state.take_hard_state(next.clone()).map_err(impossible)?;
            let vote = next.vote.map_or(0, |vote| vote.get());
            let (term, commit) = (next.term.get(), next.commit.get());
            self.append(RecordKind::HardState, term, commit, &vote.to_le_bytes(), ends());
        }
        Ok(true)
    }

    fn append_entry(&mut self, entry: &Entry, ends_group: bool) -> Result<(), LogError> {
        let position = Position { segment: self.segment.number, offset: self.offset() };
        let sample = IndexSample { index: entry.index, position, chain: self.chain };
        let change = IndexChange::Entry(sample, entry.term);
        self.state.take_entry(change).map_err(impossible)?;
        self.fresh.push(change);
        let kind = match entry.kind {
            EntryKind::Data => RecordKind::Data,
            EntryKind::Membership => RecordKind::Membership,
        };
        self.append(kind, entry.term.get(), entry.index.get(), &entry.data, ends_group);
        Ok(())
    }

    pub(super) fn append(
        &mut self,
        kind: RecordKind,
        term: u64,
        index: u64,
        payload: &[u8],
        ends_group: bool,
    ) {
        let draft = RecordDraft { kind, ends_group, durable: self.durable, term, index, payload };
        let offset = self.offset();
        self.chain = draft.encode(&mut self.buffer, self.segment.seed, offset, self.chain);
    }

    /// Returns the offset of the next record.
    pub(super) fn offset(&self) -> u32 {
        self.buffer_at + u32::try_from(self.buffer.len()).expect("the buffer fits in a segment")
    }

    /// Switches to the next segment if a group of `bytes` does not fit into this one. Returns
    /// `false` and changes nothing if the disk has no space for the next segment.
    pub(super) fn make_room(&mut self, bytes: usize) -> Result<bool, LogError> {
        let bytes = u32::try_from(bytes).expect("groups are limited to 1 GiB");
        let bytes = bytes + CUT_BYTES + TAIL_BYTES;
        if self.segment.length - self.offset() >= bytes {
            return Ok(true);
        }
        if self.buffer_at == 0 {
            // Recovery accepts a file after a segment only if the segment has a header, so write
            // the header first.
            self.flush()?;
        }
        let head = HEADER_BYTES + Record::bytes(self.state.encode().len());
        let head = u32::try_from(head).expect("a state is smaller than a group");
        let least = self.segment_bytes.max((bytes + head).next_multiple_of(8));
        let Some((file, length)) = self.stock.take(self.segment.number + 1, least)? else {
            return Ok(false);
        };
        self.append(RecordKind::Roll, 0, u64::from(length), &[], true);
        self.flush()?;
        self.enter_next(file, length);
        self.remove_passed(REMOVALS_AT_ROLL)?;
        Ok(true)
    }

    /// Starts to use the next segment. The header and the State record of a segment are written
    /// with its first group.
    pub(super) fn enter_next(&mut self, file: Box<dyn File>, length: u32) {
        let number = self.segment.number + 1;
        let header = Header {
            version: VERSION,
            segment: number,
            identity: self.identity,
            disk: self.disk,
            length,
            chain: self.chain,
        };
        let (bytes, chain) = header.encode();
        assert!(self.buffer.is_empty(), "a segment was left with records to be written");
        self.buffer.extend_from_slice(&bytes);
        self.buffer_at = 0;
        self.chain = chain;
        self.older.push_back((self.segment.number, self.segment.length));
        self.segment = Segment { number, file, length, seed: format::seed(self.disk, number) };
        self.append_state();
    }

    /// Writes the State record, the first one after the header.
    pub(super) fn append_state(&mut self) {
        let state = self.state.encode();
        self.append(RecordKind::State, 0, 0, &state, true);
    }

    /// Returns whether a truncation record still fits after a watermark, here or in the next
    /// segment. On a full disk, only truncation frees space, so the truncation record has priority.
    /// Without a watermark, no record proves that the last group was synced until another record
    /// follows.
    fn has_room_for_watermark(&self) -> bool {
        let left = self.segment.length - self.offset();
        left >= TAIL_BYTES + CUT_BYTES + TAIL_BYTES || self.stock.has_next()
    }

    /// Writes a watermark: a record that states how far the log is synced. The watermark is placed
    /// in another sector than the data before it. Otherwise the loss of one sector could destroy
    /// both the data and the proof that the data had been synced.
    pub(super) fn write_watermark(&mut self) -> Result<(), LogError> {
        const PADDING: [u8; SECTOR_BYTES as usize] = [0; SECTOR_BYTES as usize];
        assert!(self.segment.length - self.offset() >= TAIL_BYTES);
        let used = (self.offset() + Record::bytes(0) as u32) % SECTOR_BYTES;
        let padding = (SECTOR_BYTES - used) % SECTOR_BYTES;
        self.append(RecordKind::Watermark, 0, 0, &PADDING[..padding as usize], true);
        self.append(RecordKind::Watermark, 0, 0, &[], true);
        self.flush()?;
        self.unmarked = false;
        Ok(())
    }

    /// Writes and syncs the buffer.
    pub(super) fn flush(&mut self) -> Result<(), LogError> {
        let end = self.offset();
        assert!(end <= self.segment.length, "a segment overflows");
        let path = || self.folder.path_of(self.segment.number);
        let file = &*self.segment.file;
        self.folder.points.reach(Point::LogBeforeWrite);
        file.write_all_at(&self.buffer, u64::from(self.buffer_at))
            .map_err(|error| LogError::io("write", &path())(error))?;
        self.folder.points.reach(Point::LogAfterWrite);
        if !mutant!(M01) {
            let synced = file.sync_data().map_err(|error| LogError::io("sync", &path())(error));
            if !mutant!(M23) {
                synced?;
            }
        }
        self.folder.points.reach(Point::LogAfterSync);
        self.durable = Position { segment: self.segment.number, offset: end };
        self.buffer_at = end;
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_BYTES_KEPT);
        self.count_bytes();
        Ok(())
    }

    /// Makes the durable changes visible to readers.
    pub(super) fn publish(&mut self) {
        assert!(self.buffer.is_empty(), "readers would see what is not durable");
        self.reader.publish(self.fresh.drain(..));
    }

    pub(super) fn count_bytes(&self) {
        let older: u64 = self.older.iter().map(|(_, length)| u64::from(*length)).sum();
        self.reader.set_bytes(older + u64::from(self.durable.offset));
    }

    /// Returns the number of bytes of the next segment that should be ready by now. The number
    /// rises from 0, when a quarter of this segment is used, to all bytes, when three quarters are
    /// used.
    fn next_bytes_wanted(&self) -> u32 {
        let (used, length) = (u64::from(self.offset()), u64::from(self.segment.length));
        let late = used.saturating_sub(length / 4);
        if late == 0 {
            return 0;
        }
        let share = (late * 2 * u64::from(self.segment_bytes)).div_ceil(length);
        // One byte more than the segment's length also requests that the completely filled segment
        // is renamed.
        let all = self.segment_bytes + 1;
        u32::try_from(share + u64::from(SLICE_BYTES)).unwrap_or(all).min(all)
    }
}

/// Creates the error for a caller that broke a rule of the log.
pub(super) fn impossible(why: &str) -> LogError {
    LogError::Impossible { why: why.to_owned() }
}
