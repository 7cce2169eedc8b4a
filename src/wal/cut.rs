//! Cutting off the front of the log.
//!
//! ```text
//! | segment 3 | segment 4 | segment 5 ... Keep 5 |      from here on 5 is the first that is needed
//! ```
//!
//! A segment may go when no entry behind what a snapshot covers stands in it: all else that it says
//! is said again where the next one begins. First the log says which segment it needs, durably; then
//! the ones before it are removed, from the oldest. Recovery takes a log without its front only if
//! the log says so itself: any other segment that is missing is damage.

use super::format::{Kind, Record};
use super::writer::{TAIL_BYTES, Writer, impossible};
use super::{Base, LogError};
use crate::env::Point;
use crate::model::LogIndex;

/// How many segments a cut removes itself. Removing one takes milliseconds, and groups wait meanwhile.
const REMOVED_AT_ONCE: usize = 4;

/// How many more go in an idle moment.
pub(super) const REMOVED_WHEN_IDLE: usize = 8;

/// How many more go when a further segment is begun, so that a log that is never idle does not grow.
pub(super) const REMOVED_AT_ROLL: usize = 2;

/// What a cut writes.
pub(super) const CUT_BYTES: u32 = Record::bytes(size_of::<u64>()) as u32;

impl Writer {
    /// Lets go of the segments that are not needed for the entries behind `up_to`, where a durable
    /// snapshot covers everything up to there. What the log does not know to be committed is needed
    /// in any case. Where no segment can go, nothing changes; where the disk is so full that not
    /// even a cut can be written, neither.
    ///
    /// Afterwards [`super::LogReader::first`] is the oldest entry that is left. The files go from the
    /// oldest on, a few at a time: some now, the others as the log goes on.
    ///
    /// # Errors
    /// As [`Writer::commit`].
    pub(crate) fn cut(&mut self, up_to: LogIndex) -> Result<(), LogError> {
        self.unless_failed(|writer| {
            writer.write_cut(up_to)?;
            writer.remove_passed(REMOVED_AT_ONCE)
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
        // Every segment has kept room for one cut, so that a full disk does not stand in the way of
        // what makes room.
        let has_room = self.segment.length - self.offset() >= CUT_BYTES + TAIL_BYTES;
        if !has_room && !self.make_room(CUT_BYTES as usize)? {
            return Ok(());
        }
        self.folder.points.reach(Point::LogBeforeCut);
        self.append_base(Kind::Keep, base, needed_from, true)?;
        self.flush()?;
        self.unvouched = true;
        self.publish();
        self.folder.points.reach(Point::LogAfterCut);
        Ok(())
    }

    /// Records a base, and lets the index know.
    pub(super) fn append_base(
        &mut self,
        kind: Kind,
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

    /// Whether there are segments that are not needed.
    pub(super) fn has_passed(&self) -> bool {
        self.older.front().is_some_and(|(number, _)| *number < self.state.needed_from)
    }

    /// Removes segments that are not needed, at most so many.
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
