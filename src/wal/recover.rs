//! Recovery: determines the contents and the end of the log when it is opened.
//!
//! Recovery reads every record once, in order, and stores in memory only what [`Index`] stores.
//! Recovery changes no file, so a damaged log stays as it was found. A torn tail is reported in
//! [`Recovery`], and the writer truncates this tail.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;

use super::format::{self, HEADER_BYTES, Header, Position, RecordKind};
use super::index::{IndexChange, IndexSample};
use super::scan::{self, Cursor, ScanFound};
use super::segment::SegmentFolder;
use super::state::{Broken, LogState};
use super::{Base, Founding, HardState, Identity, LogError};
use crate::env::{File, OpenMode};
use crate::model::{DiskId, LogIndex, NodeId, Term};

/// The contents of the log, and the position at which it continues.
pub(super) struct Recovery {
    pub(super) disk: DiskId,
    pub(super) state: LogState,
    /// The segments before the last one in use, in ascending order: number and length.
    pub(super) older: VecDeque<(u32, u32)>,
    /// Segments that an interrupted truncation has not removed yet.
    pub(super) unremoved: Vec<u32>,
    /// The last segment with a header.
    pub(super) tail: Tail,
    /// The file after the last segment in use, if it exists. The file contains no data that must be
    /// kept.
    pub(super) next: Option<NextFile>,
    /// The bytes after the end that are not zero.
    pub(super) torn: Option<Torn>,
}

/// The last segment in use.
pub(super) struct Tail {
    pub(super) number: u32,
    pub(super) file: Box<dyn File>,
    pub(super) length: u32,
    /// Offset after its last complete group.
    pub(super) end: u32,
    pub(super) chain: u32,
    /// No record proves that the bytes from here on were synced.
    pub(super) unproven_from: u32,
    /// If the log continues in the next segment, the length of that segment.
    pub(super) next_length: Option<u32>,
    /// Offset of the first invalid byte, and the reason why it is invalid.
    stopped_at: u64,
    why: &'static str,
}

/// A file after the last segment.
pub(super) struct NextFile {
    pub(super) file: Box<dyn File>,
    pub(super) length: u32,
    /// Whether the file contains only zeros.
    pub(super) blank: bool,
}

/// Bytes to be truncated.
pub(super) struct Torn {
    pub(super) position: Position,
    pub(super) until: u32,
}

/// Recovers the log that consists of the segments with these numbers. There must be at least one.
pub(super) fn recover(
    folder: &SegmentFolder,
    own: Identity,
    numbers: &[u32],
    mode: OpenMode,
) -> Result<Recovery, LogError> {
    // An interrupted truncation may have left some of the segments that it was removing. The log
    // begins after the last gap.
    let gap = numbers.windows(2).rposition(|pair| pair[0] + 1 != pair[1]);
    let (unremoved, numbers) = numbers.split_at(gap.map_or(0, |at| at + 1));
    let Some(&first) = numbers.first() else {
        return Err(corrupt(folder, 1, 0, "the segment is missing"));
    };
    let missing = || corrupt(folder, first - 1, 0, "the segment is missing");
    let mut state = LogState::new();
    let mut disk = None;
    let mut tail: Option<Tail> = None;
    let mut older = VecDeque::new();
    let mut blank = None;
    for &number in numbers {
        let path = folder.path_of(number);
        let file = folder.open(number, mode)?;
        let file_bytes = file.len().map_err(LogError::io("read", &path))?;
        let head = read_header(&*file, file_bytes).map_err(LogError::io("read", &path))?;
        let Some((header, chain)) = head else {
            // A file without a header is allowed only after the last segment in use.
            if number == first && !unremoved.is_empty() {
                return Err(missing());
            }
            if number == first || Some(&number) != numbers.last() {
                return Err(corrupt(folder, number, 0, "the segment's header is damaged"));
            }
            blank = Some((number, file, file_bytes));
            break;
        };
        validate_header(folder, number, &header, own, disk)?;
        disk = Some(header.disk);
        if file_bytes < u64::from(header.length) {
            return Err(corrupt(folder, number, file_bytes, "the file is too short"));
        }
        if let Some(before) = &tail {
            before.leads_to(folder, &header)?;
            older.push_back((before.number, before.length));
        }
        let seed = format::seed(header.disk, number);
        let cursor = Cursor::new(file, seed, HEADER_BYTES as u64, chain)
            .map_err(LogError::io("read", &path))?;
        let (is_first, length) = (number == first, header.length);
        tail = Some(read_segment(folder, number, is_first, length, cursor, &mut state)?);
    }
    let (Some(disk), Some(tail)) = (disk, tail) else { return Err(missing()) };
    let unremoved = unremoved.to_vec();
    let recovery = finish(
        folder,
        Recovery { disk, state, older, unremoved, tail, next: None, torn: None },
        blank,
    )?;
    let state = &recovery.state;
    if state.needed_from < first {
        // The log must begin with the first segment, unless it recorded a truncation itself.
        return Err(missing());
    }
    if state.index.floor() != state.base || !state.index.is_complete() {
        return Err(corrupt(folder, first, 0, "entries are missing"));
    }
    Ok(recovery)
}

/// Returns the owner of this log according to its first segment.
pub(super) fn peek(folder: &SegmentFolder) -> Result<Option<(Identity, DiskId)>, LogError> {
    let numbers = match folder.numbers() {
        Err(LogError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Vec::new(),
        numbers => numbers?,
    };
    let Some(&first) = numbers.first() else { return Ok(None) };
    let file = folder.open(first, OpenMode::Read)?;
    let head = file.len().and_then(|bytes| read_header(&*file, bytes));
    match head.map_err(LogError::io("read", &folder.path_of(first)))? {
        None => Err(corrupt(folder, first, 0, "the segment's header is damaged")),
        Some((header, _)) => {
            validate_header(folder, first, &header, header.identity, None)?;
            Ok(Some((header.identity, header.disk)))
        }
    }
}

/// Examines the bytes after the last complete group.
fn finish(
    folder: &SegmentFolder,
    read: Recovery,
    blank: Option<(u32, Box<dyn File>, u64)>,
) -> Result<Recovery, LogError> {
    let Recovery { disk, tail, .. } = &read;
    let mut end = Position { segment: tail.number, offset: tail.end };
    let (mut stopped_at, mut why) = (tail.stopped_at, tail.why);
    if let Some(next_length) = tail.next_length {
        let number = tail.number + 1;
        match &blank {
            None => return Err(corrupt(folder, number, 0, "the segment is missing")),
            Some((_, _, bytes)) if *bytes < u64::from(next_length) => {
                return Err(corrupt(folder, number, *bytes, "the file is too short"));
            }
            Some(_) => {}
        }
        end = Position { segment: number, offset: 0 };
        (stopped_at, why) = (0, "the segment's header is damaged");
    }
    let mut torn = None;
    let mut check_rest = |number: u32, file: &dyn File, from: u32| -> Result<bool, LogError> {
        let seed = format::seed(*disk, number);
        let rest = scan::search(file, seed, u64::from(from))
            .map_err(LogError::io("read", &folder.path_of(number)))?;
        if rest.witness > Some(end) && !mutant!(M20) {
            let why = format!("{why}, and a later record proves that it had been synced");
            return Err(corrupt(folder, end.segment, stopped_at, &why));
        }
        let used = rest.used_until > u64::from(from);
        if used && number == end.segment {
            let until = u32::try_from(rest.used_until).unwrap_or(u32::MAX);
            torn = Some(Torn { position: end, until });
        }
        Ok(!used)
    };
    if tail.next_length.is_none() {
        check_rest(tail.number, &*tail.file, tail.end)?;
    }
    let next = match blank {
        None => None,
        Some((number, file, bytes)) => {
            let blank = check_rest(number, &*file, 0)?;
            let length = u32::try_from(bytes).unwrap_or(u32::MAX);
            Some(NextFile { file, length, blank })
        }
    };
    Ok(Recovery { next, torn, ..read })
}

fn read_header(file: &dyn File, file_bytes: u64) -> io::Result<Option<(Header, u32)>> {
    if file_bytes < HEADER_BYTES as u64 {
        return Ok(None);
    }
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Header::decode(&bytes))
}

fn validate_header(
    folder: &SegmentFolder,
    number: u32,
    header: &Header,
    own: Identity,
    disk: Option<DiskId>,
) -> Result<(), LogError> {
    if header.version > format::VERSION {
        let segment = folder.path_of(number);
        return Err(LogError::Newer { segment, found: header.version, known: format::VERSION });
    }
    if header.identity != own {
        return Err(LogError::Foreign { dir: folder.path.clone(), found: header.identity, own });
    }
    if header.segment != number || disk.is_some_and(|disk| disk != header.disk) {
        return Err(corrupt(folder, number, 0, "the file is not a segment of this log"));
    }
    Ok(())
}

impl Tail {
    /// Checks that the end of this segment matches the header of the next segment.
    fn leads_to(&self, folder: &SegmentFolder, next: &Header) -> Result<(), LogError> {
        if self.next_length == Some(next.length) && self.chain == next.chain {
            return Ok(());
        }
        let why = format!("{}, and another segment follows", self.why);
        Err(corrupt(folder, self.number, self.stopped_at, &why))
    }
}

fn read_segment(
    folder: &SegmentFolder,
    number: u32,
    is_first: bool,
    length: u32,
    mut cursor: Cursor,
    state: &mut LogState,
) -> Result<Tail, LogError> {
    let mut end = (HEADER_BYTES as u32, cursor.chain());
    let mut unproven_from = 0;
    let mut next_length = None;
    let mut staged = Staged::default();
    let why = loop {
        let offset = cursor.offset();
        let corrupt = |why: &str| corrupt(folder, number, offset, why);
        let found = match cursor.next() {
            Err(error) => return Err(LogError::io("read", &folder.path_of(number))(error)),
            Ok(Err(why)) => break why,
            Ok(Ok(found)) => found,
        };
        let record = found.record;
        if record.durable.segment == number {
            unproven_from = unproven_from.max(record.durable.offset);
        }
        if (record.kind == RecordKind::State) != (offset == HEADER_BYTES as u64) {
            return Err(corrupt("the State record is not the first record, or occurs twice"));
        } else if record.kind != RecordKind::State {
            staged.take(number, &found).map_err(corrupt)?;
        } else if is_first && number > 1 {
            let decoded = LogState::decode(found.payload);
            *state = decoded.ok_or("the State record is invalid").map_err(corrupt)?;
        } else if found.payload != state.encode() {
            return Err(corrupt("the State record contradicts the earlier segments"));
        }
        if !record.ends_group {
            continue;
        }
        std::mem::take(&mut staged).apply(state).map_err(corrupt)?;
        let after = u32::try_from(cursor.offset()).ok().filter(|after| *after <= length);
        end = (
            after.ok_or("a record extends beyond the end of the segment").map_err(corrupt)?,
            record.chain,
        );
        if record.kind == RecordKind::Roll {
            next_length = u32::try_from(record.index).ok();
            break "the segment ends here";
        }
    };
    if is_first && number > 1 && end.0 == HEADER_BYTES as u32 {
        return Err(corrupt(folder, number, u64::from(end.0), why));
    }
    Ok(Tail {
        number,
        length,
        end: end.0,
        chain: end.1,
        unproven_from,
        next_length,
        stopped_at: cursor.offset(),
        why,
        file: cursor.into_file(),
    })
}

/// A group that is not complete yet.
#[derive(Default)]
struct Staged {
    founding: Option<Founding>,
    /// The kind of its record, the base, and the first segment that is needed.
    base: Option<(RecordKind, Base, u32)>,
    entries: Vec<IndexChange>,
    hard_state: Option<HardState>,
    incarnation: Option<u64>,
}

impl Staged {
    fn take(&mut self, segment: u32, found: &ScanFound<'_>) -> Result<(), Broken> {
        let record = &found.record;
        match record.kind {
            RecordKind::Boot => {
                let number = format::decode_u64(found.payload);
                self.incarnation = Some(number.ok_or("a Boot record has no incarnation")?);
            }
            RecordKind::Founding => {
                let founding = format::decode_founding(found.payload);
                self.founding = Some(founding.ok_or("the list of founders is invalid")?);
            }
            RecordKind::HardState => {
                let vote = format::decode_u64(found.payload).ok_or("a vote is invalid")?;
                self.hard_state = Some(HardState {
                    term: Term(record.term),
                    vote: NodeId::new(vote),
                    commit: LogIndex(record.index),
                });
            }
            RecordKind::Keep | RecordKind::Reset => {
                let needed = format::decode_u64(found.payload);
                let needed = needed.and_then(|number| u32::try_from(number).ok());
                let needed = needed.filter(|number| *number <= segment);
                let needed = needed.ok_or("the number of the first needed segment is invalid")?;
                let base = Base { index: LogIndex(record.index), term: Term(record.term) };
                self.base = Some((record.kind, base, needed));
            }
            RecordKind::Data | RecordKind::Membership => {
                let sample = IndexSample {
                    index: LogIndex(record.index),
                    position: Position { segment, offset: record.offset },
                    chain: found.before,
                };
                self.entries.push(IndexChange::Entry(sample, Term(record.term)));
            }
            RecordKind::Watermark | RecordKind::Roll | RecordKind::State => {}
        }
        Ok(())
    }

    /// Applies the parts of the group in the order in which the writer writes them.
    fn apply(self, state: &mut LogState) -> Result<(), Broken> {
        if let Some(founding) = self.founding {
            state.take_founding(founding)?;
        }
        if let Some((kind, base, needed)) = self.base {
            state.take_base(kind, base, needed)?;
        }
        for entry in self.entries {
            state.take_entry(entry)?;
        }
        if let Some(hard_state) = self.hard_state {
            state.take_hard_state(hard_state)?;
        }
        if let Some(incarnation) = self.incarnation {
            state.take_incarnation(incarnation)?;
        }
        Ok(())
    }
}

fn corrupt(folder: &SegmentFolder, number: u32, offset: u64, why: &str) -> LogError {
    let segment: PathBuf = folder.path_of(number);
    LogError::Corrupt { segment, offset, why: why.to_owned() }
}
