//! The reader of durable entries. The reader serves peers that lag behind the entries kept in
//! memory, and the replay at start. The reader verifies the chain of checksums over every byte that
//! it reads.
//!
//! Invariant: the reader returns only durable entries, and never writes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::format::{self, RecordKind};
use super::index::{IndexChange, IndexSample, SegmentIndex};
use super::scan::Cursor;
use super::segment::SegmentFolder;
use super::{Entry, EntryKind, LogError};
use crate::env::OpenMode;
use crate::model::{DiskId, LogIndex, Term};

/// Maximum number of samples that one call follows: about 16 MiB of log.
const SAMPLES_MAX: usize = 256;

/// A reader of the log, usable concurrently with its writer. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LogReader {
    shared: Arc<SharedReader>,
}

struct SharedReader {
    folder: SegmentFolder,
    disk: DiskId,
    index: Mutex<SegmentIndex>,
    /// See [`LogReader::bytes`].
    bytes: AtomicU64,
}

impl LogReader {
    pub(super) fn new(folder: SegmentFolder, disk: DiskId, index: SegmentIndex) -> Self {
        let (index, bytes) = (Mutex::new(index), AtomicU64::new(0));
        Self { shared: Arc::new(SharedReader { folder, disk, index, bytes }) }
    }

    /// Makes durable changes visible to readers, in the order of writing.
    pub(super) fn publish(&self, changes: impl Iterator<Item = IndexChange>) {
        let mut index = self.index();
        for change in changes {
            index.apply(change);
        }
    }

    pub(super) fn set_bytes(&self, bytes: u64) {
        self.shared.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns the index after the base: the first index that can be read, if the log contains any
    /// entries.
    pub(crate) fn first(&self) -> LogIndex {
        self.index().floor().index.next()
    }

    /// Returns the number of bytes that the log uses in its segments, from the first segment to the
    /// last group. Prepared files are not counted.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Returns the index of the last durable entry, or of the base if there are no entries.
    pub(crate) fn last(&self) -> LogIndex {
        self.index().last()
    }

    /// Returns the term of an entry between the base and the last entry, or `None` outside this
    /// range. The base's own entry cannot be read, but its term is known.
    pub(crate) fn term(&self, index: LogIndex) -> Option<Term> {
        self.index().term(index)
    }

    /// Returns the entries from `from` up to but excluding `to`. May return fewer, because the data
    /// is limited to `bytes_max` bytes, and one call reads at most about 16 MiB of log. Returns at
    /// least one entry if `from < to`.
    ///
    /// # Errors
    /// Returns [`LogError::OutOfRange`], [`LogError::Corrupt`] or [`LogError::Io`]. After `Corrupt`
    /// or `Io` the node must stop.
    pub(crate) fn entries(
        &self,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<Entry>, LogError> {
        loop {
            let samples = self.samples_between(from, to)?;
            match self.read(&samples, from, bytes_max) {
                // The entries were truncated or replaced while they were being read.
                Err(_) if self.samples_between(from, to)? != samples => {}
                result => return result,
            }
        }
    }

    /// Returns the samples from which the entries can be read, and the index after the last entry
    /// that the samples cover.
    fn samples_between(
        &self,
        from: LogIndex,
        to: LogIndex,
    ) -> Result<(Vec<IndexSample>, LogIndex), LogError> {
        let index = self.index();
        let (first, last) = (index.floor().index.next(), index.last());
        if from < first || from > to || to > last.next() {
            return Err(LogError::OutOfRange { from, to, first, last });
        }
        if from == to {
            return Ok((Vec::new(), to));
        }
        Ok(index.samples_between(from, to, SAMPLES_MAX))
    }

    fn read(
        &self,
        (samples, until): &(Vec<IndexSample>, LogIndex),
        from: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<Entry>, LogError> {
        let ends = samples.iter().skip(1).map(|next| next.index).chain([*until]);
        let mut batch = ReadBatch { from, bytes_left: bytes_max, entries: Vec::new() };
        let mut open: Option<(u32, Cursor)> = None;
        for (sample, end) in samples.iter().zip(ends) {
            let (segment, offset) = (sample.position.segment, u64::from(sample.position.offset));
            let mut cursor = match open.take() {
                Some((number, cursor)) if number == segment => cursor,
                _ => self.cursor(segment, offset, sample.chain)?,
            };
            cursor.seek(offset, sample.chain);
            if !self.follow(&mut cursor, *sample, end, &mut batch)? {
                break;
            }
            open = Some((segment, cursor));
        }
        Ok(batch.entries)
    }

    /// Reads from a sample up to the entry before `end`. Returns whether the batch has room for
    /// more.
    fn follow(
        &self,
        cursor: &mut Cursor,
        sample: IndexSample,
        end: LogIndex,
        batch: &mut ReadBatch,
    ) -> Result<bool, LogError> {
        let segment = sample.position.segment;
        let mut expected = sample.index;
        while expected < end {
            let offset = cursor.offset();
            let corrupt = |why: &str| LogError::Corrupt {
                segment: self.shared.folder.path_of(segment),
                offset,
                why: why.to_owned(),
            };
            let path = || self.shared.folder.path_of(segment);
            let found = cursor.next().map_err(|error| LogError::io("read", &path())(error))?;
            let found = found.map_err(corrupt)?;
            let kind = match found.record.kind {
                RecordKind::Data => EntryKind::Data,
                RecordKind::Membership => EntryKind::Membership,
                _ => continue,
            };
            if found.record.index != expected.get() {
                return Err(corrupt("an entry has an unexpected index"));
            }
            let term = Term(found.record.term);
            if !batch.take(expected, term, kind, found.payload) {
                return Ok(false);
            }
            expected = expected.next();
        }
        Ok(true)
    }

    fn cursor(&self, segment: u32, offset: u64, chain: u32) -> Result<Cursor, LogError> {
        let file = self.shared.folder.open(segment, OpenMode::Read)?;
        let seed = format::seed(self.shared.disk, segment);
        Cursor::new(file, seed, offset, chain)
            .map_err(LogError::io("read", &self.shared.folder.path_of(segment)))
    }

    fn index(&self) -> MutexGuard<'_, SegmentIndex> {
        self.shared.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct ReadBatch {
    from: LogIndex,
    bytes_left: usize,
    entries: Vec<Entry>,
}

impl ReadBatch {
    /// Adds an entry to the batch, unless the entry is before the requested range. Returns whether
    /// the batch had room for the entry.
    fn take(&mut self, index: LogIndex, term: Term, kind: EntryKind, data: &[u8]) -> bool {
        if index < self.from {
            return true;
        }
        if data.len() > self.bytes_left && !self.entries.is_empty() {
            return false;
        }
        self.bytes_left = self.bytes_left.saturating_sub(data.len());
        // Each entry is copied into an allocation of its own, because the state keeps slices of the
        // entry for an unlimited time. A slice of the read buffer would keep the whole buffer in
        // memory.
        let data = Bytes::copy_from_slice(data);
        self.entries.push(Entry { index, term, kind, data });
        true
    }
}
