//! Writing the log: one write and one sync for all groups that came together.
//!
//! ```text
//! segment k                                     segment k+1
//! | group | group | zeros ...                   | zeros ...
//!                 ^ durable                              (made in slices, while k fills up)
//! commit: does not fit -> | Roll |, sync k  ->  | header | group |, sync k+1
//! ```
//!
//! Roll is written only when k+1 stands durably under its name, and k+1 only when k is synced: so a
//! segment with a header proves that everything before it was synced.
//!
//! The first failure is the last: what a failed write or sync has left on the disk is unknown, and
//! neither a second try nor a later success would say.

use std::path::Path;

use super::format::{
    self, Draft, HEADER_BYTES, Header, Kind, Position, Record, VERSION, encode_founding,
};
use super::index::{Index, Sample};
use super::reader::LogReader;
use super::recover::{self, Recovery};
use super::segment::{self, Folder, Next, SLICE_BYTES};
use super::{
    Base, Committed, Durable, Entry, EntryKind, Group, HardState, Identity, LogError, LogOptions,
    Opened, Recovered, Space, TornTail,
};
use crate::env::{DiskLock, Env, File, Point};
use crate::model::{DiskId, Incarnation, LogIndex, Term};

/// The file that says that a node is running here.
const LOCK: &str = "LOCK";

/// The largest group, with everything that the log adds.
const GROUP_BYTES_MAX: usize = 1 << 30;

/// A disk loses bytes by the sector.
const SECTOR_BYTES: u32 = 512;

/// Every segment has room behind its last group for a watermark, padded to the next sector, another
/// one there, and the end of the segment.
const RESERVE_BYTES: u32 = SECTOR_BYTES + 3 * Record::bytes(0) as u32;

/// The write buffer's memory is given back above this.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// How many slices of the next segment are made in an idle moment.
const IDLE_SLICES: usize = 4;

const SEGMENT_BYTES_MIN: u64 = 2 << 10;
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// Writes the log. There is one in a directory, held by a lock.
pub(crate) struct Writer {
    folder: Folder,
    identity: Identity,
    disk: DiskId,
    segment_bytes: u32,
    segment: Segment,
    next: Next,
    /// What is not written yet, and where in the segment it goes.
    buffer: Vec<u8>,
    buffer_at: u32,
    /// Of the last record, written or not.
    chain: u32,
    /// Everything before it is synced.
    durable: Position,
    /// Something is durable that no later record vouches for.
    unvouched: bool,
    /// What the log says with the groups at hand, durable or not.
    index: Index,
    hard_state: HardState,
    /// Entries that readers do not see yet.
    fresh: Vec<(Sample, Term)>,
    number: u64,
    reader: LogReader,
    failed: Option<String>,
    _lock: DiskLock,
}

/// The segment in use.
struct Segment {
    number: u32,
    file: Box<dyn File>,
    length: u32,
    seed: u32,
}

impl Writer {
    pub(super) fn open(
        env: &Env,
        dir: &Path,
        identity: Identity,
        options: LogOptions,
    ) -> Result<Opened, LogError> {
        let segment_bytes = options.segment_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        let segment_bytes = (segment_bytes as u32).next_multiple_of(8);
        let folder = Folder::new(env, dir);
        env.disk.create_dir(dir).map_err(LogError::io("create", dir))?;
        let lock = match env.disk.lock(&dir.join(LOCK)) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                return Err(LogError::Locked { dir: dir.to_owned() });
            }
            result => result.map_err(LogError::io("lock", &dir.join(LOCK)))?,
        };
        folder.remove_unfinished()?;
        if folder.numbers()?.is_empty() {
            let disk = options.disk.unwrap_or_else(|| DiskId(env.entropy.next_u128()));
            let header = Header {
                version: VERSION,
                segment: 1,
                identity,
                disk,
                length: segment_bytes,
                chain: 0,
            };
            folder.make(1, segment_bytes, &header.encode().0)?;
        }
        let recovery = recover::recover(&folder, identity, &folder.numbers()?)?;
        if let Some(own) = options.disk.filter(|own| *own != recovery.disk) {
            return Err(LogError::OtherDisk { dir: dir.to_owned(), found: recovery.disk, own });
        }
        Self::go_on(folder, identity, segment_bytes, lock, recovery)
    }

    /// Continues a log that was found in order.
    fn go_on(
        folder: Folder,
        identity: Identity,
        segment_bytes: u32,
        lock: DiskLock,
        recovery: Recovery,
    ) -> Result<Opened, LogError> {
        let Recovery { disk, state, tail, next, torn } = recovery;
        let report = torn.as_ref().map(|torn| TornTail {
            segment: folder.path_of(torn.position.segment),
            offset: u64::from(torn.position.offset),
            bytes: u64::from(torn.until - torn.position.offset),
        });
        let path = folder.path_of(tail.number);
        // An earlier life may have failed to sync these bytes and left them where only readers see
        // them: no sync writes them out unless they are written again.
        rewrite(&*tail.file, tail.unproven_from, tail.end).map_err(LogError::io("write", &path))?;
        if let Some(torn) = &torn {
            let (number, file) = match &next {
                Some(next) if torn.position.segment != tail.number => (tail.number + 1, &next.file),
                _ => (tail.number, &tail.file),
            };
            let path = folder.path_of(number);
            segment::fill(&**file, torn.position.offset, torn.until)
                .map_err(LogError::io("write", &path))?;
            file.sync_data().map_err(LogError::io("sync", &path))?;
        }
        tail.file.sync_data().map_err(LogError::io("sync", &path))?;

        let next = match next {
            None => Next::Absent,
            Some(next) if tail.next_length.is_some() => {
                Next::Ready { file: next.file, length: next.length }
            }
            Some(next) if next.blank && next.length >= segment_bytes => {
                Next::Ready { file: next.file, length: next.length }
            }
            Some(_) => {
                folder.remove(&folder.path_of(tail.number + 1))?;
                Next::Absent
            }
        };
        folder.sync()?;

        let reader = LogReader::new(folder.clone(), disk, state.index.clone());
        let incarnation = state.incarnation + 1;
        let mut writer = Self {
            segment: Segment {
                number: tail.number,
                file: tail.file,
                length: tail.length,
                seed: format::seed(disk, tail.number),
            },
            folder,
            identity,
            disk,
            segment_bytes,
            next,
            buffer: Vec::new(),
            buffer_at: tail.end,
            chain: tail.chain,
            durable: Position { segment: tail.number, offset: tail.end },
            unvouched: false,
            index: state.index,
            hard_state: state.hard_state.clone(),
            fresh: Vec::new(),
            number: 0,
            reader: reader.clone(),
            failed: None,
            _lock: lock,
        };
        if let Some(length) = tail.next_length {
            writer.enter_next(length)?;
        }
        writer.boot(incarnation)?;
        let recovered = Recovered {
            disk,
            incarnation: Incarnation(incarnation),
            founding: state.founding,
            hard_state: state.hard_state,
            base: Base::default(),
            last: writer.index.last(),
            torn: report,
        };
        Ok(Opened { writer, reader, recovered })
    }

    /// Makes the incarnation durable, and vouches for it: were it to rot unnoticed, the next start
    /// would use the same number again.
    fn boot(&mut self, incarnation: u64) -> Result<(), LogError> {
        let payload = incarnation.to_le_bytes();
        self.make_room(Record::bytes(payload.len()))?;
        self.append(Kind::Boot, 0, 0, &payload, true);
        self.flush()?;
        self.vouch()
    }

    /// Makes all these groups durable, with one write and one sync (and one more of each where a
    /// segment ends). At least one group must be given.
    ///
    /// # Errors
    /// [`LogError`]; from then on every call fails.
    pub(crate) fn commit(&mut self, groups: &[Group]) -> Result<Committed, LogError> {
        self.unless_failed(|writer| writer.commit_groups(groups))
    }

    /// Removes the segments all of whose entries are at or below `up_to`, or no longer count. A
    /// durable snapshot must cover everything up to there.
    ///
    /// # Errors
    /// As [`Writer::commit`].
    #[allow(dead_code, reason = "snapshots call it soon")]
    pub(crate) fn cut(&mut self, _up_to: LogIndex) -> Result<(), LogError> {
        self.unless_failed(|_| Ok(()))
    }

    /// How much room there is.
    pub(crate) fn space(&self) -> Space {
        Space::Plenty
    }

    /// Uses a moment in which nothing is to be written: vouches for what was synced last, so that
    /// damage to it is told from a torn tail, and goes on preparing the next segment. Takes about as
    /// long as a commit, or a few.
    ///
    /// # Errors
    /// As [`Writer::commit`]. A disk without room for the next segment is no error yet.
    pub(crate) fn idle(&mut self) -> Result<(), LogError> {
        self.unless_failed(|writer| {
            if writer.unvouched {
                writer.vouch()?;
            }
            if writer.wanted_of_next() > 0 {
                for _ in 0..IDLE_SLICES {
                    writer.prepare_slice();
                }
            }
            Ok(())
        })
    }

    fn unless_failed<T>(
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
        for group in groups {
            self.take_group(group)?;
        }
        if !self.buffer.is_empty() {
            self.flush()?;
            self.unvouched = true;
            self.reader.publish(self.fresh.drain(..));
        }
        while self.next.filled() < self.wanted_of_next() {
            self.prepare_slice();
        }
        Ok(Committed { proof: Some(Durable { number: self.number }), waiting: 0 })
    }

    /// Puts a group into the buffer, if it may follow what the log has.
    fn take_group(&mut self, group: &Group) -> Result<(), LogError> {
        let impossible = |why: &str| LogError::Impossible { why: why.to_owned() };
        if group.number < self.number {
            return Err(impossible("the number of a group is below that of the one before"));
        }
        if group.base.is_some() {
            return Err(impossible("a base is not known yet"));
        }
        self.number = group.number;
        let founding = group.founding.as_ref().map(encode_founding);
        let payloads = (group.entries.iter().map(|entry| entry.data.len()))
            .chain(founding.as_ref().map(Vec::len))
            .chain(group.hard_state.as_ref().map(|_| size_of::<u64>()));
        let (mut records, mut bytes) = (0, 0);
        for payload in payloads {
            records += 1;
            bytes += Record::bytes(payload);
        }
        if records == 0 {
            return Ok(());
        }
        if bytes > GROUP_BYTES_MAX {
            return Err(impossible("a group has more than 1 GiB"));
        }
        self.make_room(bytes)?;
        let mut left = records;
        let mut ends = || {
            left -= 1;
            left == 0
        };
        if let Some(payload) = &founding {
            self.append(Kind::Founding, 0, 0, payload, ends());
        }
        let committed = self.hard_state.commit;
        for entry in &group.entries {
            self.index.follows(entry.index, entry.term, committed).map_err(impossible)?;
            self.append_entry(entry, ends());
        }
        if let Some(next) = &group.hard_state {
            next.follows(&self.hard_state, self.index.last()).map_err(impossible)?;
            let vote = next.vote.map_or(0, |vote| vote.get());
            let (term, commit) = (next.term.get(), next.commit.get());
            self.append(Kind::HardState, term, commit, &vote.to_le_bytes(), ends());
            self.hard_state = next.clone();
        }
        Ok(())
    }

    fn append_entry(&mut self, entry: &Entry, ends_group: bool) {
        let position = Position { segment: self.segment.number, offset: self.offset() };
        let sample = Sample { index: entry.index, position, chain: self.chain };
        self.index.insert(sample, entry.term);
        self.fresh.push((sample, entry.term));
        let kind = match entry.kind {
            EntryKind::Data => Kind::Data,
            EntryKind::Membership => Kind::Membership,
        };
        self.append(kind, entry.term.get(), entry.index.get(), &entry.data, ends_group);
    }

    fn append(&mut self, kind: Kind, term: u64, index: u64, payload: &[u8], ends_group: bool) {
        let draft = Draft { kind, ends_group, durable: self.durable, term, index, payload };
        let offset = self.offset();
        self.chain = draft.encode(&mut self.buffer, self.segment.seed, offset, self.chain);
    }

    /// Where the next record goes.
    fn offset(&self) -> u32 {
        self.buffer_at + u32::try_from(self.buffer.len()).expect("the buffer fits in a segment")
    }

    /// Goes on to the next segment if this one has no room for a group of `bytes`.
    fn make_room(&mut self, bytes: usize) -> Result<(), LogError> {
        let bytes = u32::try_from(bytes).expect("groups are limited to 1 GiB") + RESERVE_BYTES;
        if self.segment.length - self.offset() >= bytes {
            return Ok(());
        }
        if self.buffer_at == 0 {
            // The file behind a segment may exist only when the segment's header does.
            self.flush()?;
        }
        let number = self.segment.number + 1;
        let least = self.segment_bytes.max((bytes + HEADER_BYTES as u32).next_multiple_of(8));
        let (file, length) = self.next.take(&self.folder, number, least)?;
        self.next = Next::Ready { file, length };
        self.append(Kind::Roll, 0, u64::from(length), &[], true);
        self.flush()?;
        self.enter_next(length)
    }

    /// Starts to use the next segment, which is ready. Its header is written with its first group.
    fn enter_next(&mut self, length: u32) -> Result<(), LogError> {
        let number = self.segment.number + 1;
        let (file, _) = self.next.take(&self.folder, number, length)?;
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
        self.segment = Segment { number, file, length, seed: format::seed(self.disk, number) };
        Ok(())
    }

    /// Writes a record that says how far the log is synced, into a sector that holds nothing else: a
    /// sector that is lost must not take its witness along.
    fn vouch(&mut self) -> Result<(), LogError> {
        const PADDING: [u8; SECTOR_BYTES as usize] = [0; SECTOR_BYTES as usize];
        assert!(self.segment.length - self.offset() >= RESERVE_BYTES);
        let used = (self.offset() + Record::bytes(0) as u32) % SECTOR_BYTES;
        let padding = (SECTOR_BYTES - used) % SECTOR_BYTES;
        self.append(Kind::Watermark, 0, 0, &PADDING[..padding as usize], true);
        self.append(Kind::Watermark, 0, 0, &[], true);
        self.flush()?;
        self.unvouched = false;
        Ok(())
    }

    /// Makes the buffer durable.
    fn flush(&mut self) -> Result<(), LogError> {
        let end = self.offset();
        assert!(end <= self.segment.length, "a segment overflows");
        let path = || self.folder.path_of(self.segment.number);
        let file = &*self.segment.file;
        self.folder.points.reach(Point::LogBeforeWrite);
        file.write_all_at(&self.buffer, u64::from(self.buffer_at))
            .map_err(|error| LogError::io("write", &path())(error))?;
        self.folder.points.reach(Point::LogAfterWrite);
        file.sync_data().map_err(|error| LogError::io("sync", &path())(error))?;
        self.folder.points.reach(Point::LogAfterSync);
        self.durable = Position { segment: self.segment.number, offset: end };
        self.buffer_at = end;
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_BYTES_KEPT);
        Ok(())
    }

    /// How much of the next segment should be ready by now: nothing until a quarter of this one is
    /// used, everything when three quarters are.
    fn wanted_of_next(&self) -> u32 {
        let (used, length) = (u64::from(self.offset()), u64::from(self.segment.length));
        let late = used.saturating_sub(length / 4);
        if late == 0 {
            return 0;
        }
        let share = (late * 2 * u64::from(self.segment_bytes)).div_ceil(length);
        // One more than its length, so that a segment that is filled is also put in place.
        let all = self.segment_bytes + 1;
        u32::try_from(share + u64::from(SLICE_BYTES)).unwrap_or(all).min(all)
    }

    fn prepare_slice(&mut self) {
        let number = self.segment.number + 1;
        self.next.prepare(&self.folder, number, self.segment_bytes);
    }
}

impl HardState {
    /// Whether this may come after `before`, in a log that ends with `last`.
    pub(super) fn follows(&self, before: &Self, last: LogIndex) -> Result<(), &'static str> {
        if self.term < before.term {
            return Err("the term falls");
        }
        if self.term == before.term && before.vote.is_some() && self.vote != before.vote {
            return Err("a second vote is given in one term");
        }
        if self.commit < before.commit {
            return Err("the commit index falls");
        }
        if self.commit > last {
            return Err("the commit index lies beyond the last entry");
        }
        Ok(())
    }
}

/// Writes the bytes of a part of a file again, as they are.
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
