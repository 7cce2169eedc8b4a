//! Truncation of the oldest segments of the log.
//!
//! ```text
//! | segment 3 | segment 4 | segment 5 ... Keep 5 |      segment 5 is now the first that is needed
//! ```
//!
//! A segment may be removed if it contains no entry after the snapshot's index. The State record at
//! the start of the next segment supersedes all other records of the segment. First the log durably
//! records the first segment that it still needs. Then the log removes the segments before the
//! recorded one, oldest first. Recovery accepts missing segments only if the log itself recorded
//! their removal. Any other missing segment is damage.

use super::format::{Record, RecordKind};
use super::writer::{LogWriter, TAIL_BYTES, impossible};
use super::{Base, LogError};
use crate::env::Point;
use crate::model::LogIndex;

/// Number of segments that one truncation removes at once. Removing a segment takes milliseconds,
/// and meanwhile no group is written.
const REMOVALS_AT_CUT: usize = 4;

/// Number of segments removed in one idle step.
pub(super) const REMOVALS_WHEN_IDLE: usize = 8;

/// Number of segments removed whenever a new segment is started, so that a log that is never idle
/// does not grow.
pub(super) const REMOVALS_AT_ROLL: usize = 2;

/// Size of the record that a truncation writes.
pub(super) const CUT_BYTES: u32 = Record::bytes(size_of::<u64>()) as u32;

impl LogWriter {
    /// Discards the segments that are not needed for the entries after `up_to`. A durable snapshot
    /// must cover everything up to `up_to`. Entries that the log does not know to be committed are
    /// kept in any case. If no segment can be discarded, or if the disk has no space for the
    /// truncation record, nothing changes.
    ///
    /// Afterwards [`super::LogReader::first`] is the oldest remaining entry. Files are removed
    /// oldest first, a few at a time: some now, and the remaining files during later commits and
    /// idle steps.
    ///
    /// # Errors
    /// Same as [`LogWriter::commit`].
    pub(crate) fn cut(&mut self, up_to: LogIndex) -> Result<(), LogError> {
        self.unless_failed(|writer| {
            writer.write_cut(up_to)?;
            writer.remove_passed(REMOVALS_AT_CUT)
        })
    }

    fn write_cut(&mut self, up_to: LogIndex) -> Result<(), LogError> {
        assert!(self.buffer.is_empty() || self.buffer_at == 0, "a group waits to be written");
        let state = &self.state;
        let up_to = up_to.min(state.hard_state.commit).max(state.base.index);
        let (needed_from, before) = state.index.needed_behind(up_to, self.segment.number);
        if needed_from <= state.needed_from {
            return Ok(());
        }
        let index = before.max(state.base.index);
        let term = state.index.term(index).expect("it lies between the base and the last entry");
        let base = Base { index, term };
        // Every segment reserves space for one truncation record, so that truncation, which frees
        // disk space, also works on a full disk.
        let has_room = self.segment.length - self.offset() >= CUT_BYTES + TAIL_BYTES;
        if !has_room && !self.make_room(CUT_BYTES as usize)? {
            return Ok(());
        }
        self.folder.points.reach(Point::LogBeforeCut);
        self.append_base(RecordKind::Keep, base, needed_from, true)?;
        self.flush()?;
        self.unmarked = true;
        self.publish();
        self.folder.points.reach(Point::LogAfterCut);
        Ok(())
    }

    /// Records a base and updates the index.
    pub(super) fn append_base(
        &mut self,
        kind: RecordKind,
        base: Base,
        needed_from: u32,
        ends_group: bool,
    ) -> Result<(), LogError> {
        let payload = u64::from(needed_from).to_le_bytes();
        let change = self.state.take_base(kind, base, needed_from).map_err(impossible)?;
        self.fresh.extend(change);
        self.append(kind, base.term.get(), base.index.get(), &payload, ends_group);
        Ok(())
    }

    /// Returns whether there are segments that are no longer needed.
    pub(super) fn has_passed(&self) -> bool {
        self.older.front().is_some_and(|(number, _)| *number < self.state.needed_from)
    }

    /// Removes segments that are no longer needed, at most `at_most` of them.
    pub(super) fn remove_passed(&mut self, at_most: usize) -> Result<(), LogError> {
        let passed = self.older.iter().take_while(|(number, _)| *number < self.state.needed_from);
        let passed: Vec<u32> = passed.take(at_most).map(|(number, _)| *number).collect();
        for number in &passed {
            self.folder.remove(&self.folder.path_of(*number))?;
            self.folder.points.reach(Point::LogSegmentRemoved);
            self.older.pop_front();
        }
        if !passed.is_empty() {
            self.folder.sync()?;
            self.folder.points.reach(Point::LogRemovalSynced);
            self.count_bytes();
        }
        Ok(())
    }
}
