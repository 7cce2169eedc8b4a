//! Fuzz targets for the log. The targets run the log on single records, on segments whose records
//! have correct checksums but arbitrary contents, and on damaged directories.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::format::{
    self, HEADER_BYTES, Header, Position, RECORD_BYTES, Record, RecordDraft, RecordKind,
};
use super::state::LogState;
use super::*;
use crate::env::{BootClock, Disk, NoPoints};
use crate::fuzz::{Came, Feed};
use crate::sim::{Rng, SimDisk};

const DIR: &str = "log";
const SEGMENT_BYTES: u32 = 2048;
const DISK: DiskId = DiskId(77);

fn identity() -> Identity {
    Identity { cluster: ClusterId(7), node: NodeId::new(1).expect("not 0") }
}

/// Opens the log with the smallest segments and without a reserve.
fn try_open(disk: &Arc<SimDisk>) -> Result<Opened, LogError> {
    let env = Env {
        clock: Arc::new(BootClock),
        entropy: Arc::new(Rng::new(42)),
        disk: Arc::clone(disk) as Arc<dyn Disk>,
        points: Arc::new(NoPoints),
    };
    let (segment_bytes, disk) = (u64::from(SEGMENT_BYTES), Some(DISK));
    let options = LogOptions { segment_bytes, reserve_bytes: 0, disk };
    open(&env, Path::new(DIR), identity(), options)
}

fn path(number: u64) -> PathBuf {
    Path::new(DIR).join(format!("{number:010}.log"))
}

// ---- contents of a log -----------------------------------------------------------------------

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct LogContent {
    base: Base,
    entries: Vec<Entry>,
    hard_state: HardState,
    founding: Option<Founding>,
}

impl LogContent {
    /// Reads all contents of an open log.
    fn of(opened: &Opened) -> Self {
        let (reader, recovered) = (&opened.reader, &opened.recovered);
        assert_eq!(reader.last(), recovered.last);
        assert_eq!(reader.first(), recovered.base.index.next());
        assert_eq!(reader.term(recovered.base.index), Some(recovered.base.term));
        assert!(recovered.hard_state.commit <= recovered.last, "committed, and not there");
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let next = entries.last().map_or(reader.first(), |last| last.index.next());
            if next > reader.last() {
                break;
            }
            let more = reader.entries(next, reader.last().next(), 300).expect("just recovered");
            assert!(!more.is_empty());
            entries.extend(more);
        }
        let mut before = recovered.base;
        for entry in &entries {
            assert_eq!(entry.index, before.index.next());
            assert!(entry.term >= before.term, "terms fall");
            assert_eq!(reader.term(entry.index), Some(entry.term));
            // The recorded term may be lower than the term of an entry: the consensus checks this,
            // and the log does not.
            before = Base { index: entry.index, term: entry.term };
        }
        let (base, hard_state) = (recovered.base, recovered.hard_state.clone());
        Self { base, entries, hard_state, founding: recovered.founding.clone() }
    }

    fn last(&self) -> u64 {
        self.base.index.get() + self.entries.len() as u64
    }

    fn after(&self, group: &Group) -> Self {
        let mut content = self.clone();
        if let Some(first) = group.entries.first() {
            content.entries.retain(|entry| entry.index < first.index);
            content.entries.extend(group.entries.iter().cloned());
        }
        content.hard_state = group.hard_state.clone().unwrap_or(content.hard_state);
        content.founding = group.founding.clone().or(content.founding);
        content
    }

    /// Returns whether `found` has the same contents, except for entries truncated from its front.
    fn is_shown_by(&self, found: &LogContent) -> bool {
        let behind = |entry: &&Entry| entry.index > found.base.index;
        let entries: Vec<_> = self.entries.iter().filter(behind).cloned().collect();
        let term = self.entries.iter().find(|entry| entry.index == found.base.index);
        let base = term.map_or(self.base, |entry| Base { index: entry.index, term: entry.term });
        (base, &entries, &self.hard_state, &self.founding)
            == (found.base, &found.entries, &found.hard_state, &found.founding)
    }
}

// ---- records ------------------------------------------------------------------------------

/// Interprets the input either as raw parts of a segment, or as instructions to build a segment
/// whose records have correct checksums.
pub(crate) fn records(data: &[u8]) -> Came {
    let Some((way, bytes)) = data.split_first() else { return Came::Refused };
    match way % 4 {
        0 => raw(bytes),
        _ => forged(&mut Feed::new(bytes)),
    }
}

/// Checks that decoding and encoding again gives the same bytes.
fn raw(bytes: &[u8]) -> Came {
    let mut came = Came::Refused;
    if let Some((header, chain)) = bytes.first_chunk::<HEADER_BYTES>().and_then(Header::decode) {
        assert_eq!(header.encode(), (*bytes.first_chunk().expect("as above"), chain));
        came = Came::Through;
    }
    let seed = format::seed(DISK, 1);
    let head = bytes.first_chunk::<RECORD_BYTES>();
    if let Some((head, record)) =
        head.and_then(|head| Some((head, Record::decode(head, seed, 72)?)))
    {
        let payload = &bytes[RECORD_BYTES..];
        let whole = Record::bytes(record.length as usize) == bytes.len();
        if whole && record.follows(head, payload, 0) {
            let mut again = Vec::new();
            let draft = RecordDraft {
                kind: record.kind,
                ends_group: record.ends_group,
                durable: record.durable,
                term: record.term,
                index: record.index,
                payload: &payload[..record.length as usize],
            };
            assert_eq!(draft.encode(&mut again, seed, 72, 0), record.chain);
            assert_eq!(again, bytes);
            came = Came::Through;
        }
    }
    if let Some(founding) = format::decode_founding(bytes) {
        let again = format::encode_founding(&founding);
        assert_eq!(format::decode_founding(&again), Some(founding));
        came = Came::Through;
    }
    if let Some(state) = LogState::decode(bytes) {
        let again = LogState::decode(&state.encode()).expect("its own bytes");
        assert_eq!(again.encode(), state.encode());
        came = Came::Through;
    }
    came
}

/// Opens a log whose records have correct checksums but arbitrary contents. The log must either be
/// rejected or behave like a valid log.
fn forged(feed: &mut Feed<'_>) -> Came {
    let disk = Arc::new(SimDisk::new(3));
    // A log that begins at a later segment must begin with a State record.
    let first = 1 + u32::from(feed.once_in(3));
    let mut forge = Forge { term: 1, last: 1, commit: 1, base: 1, incarnation: 0, chain: 0 };
    let mut state = LogState::new().encode();
    if first > 1 {
        let base = feed.near(5).max(1);
        forge = Forge { term: 3, last: base, commit: base, base, incarnation: 7, chain: 9 };
        state = forge.state(feed, first);
    }
    for segment in first..=first + u32::from(feed.once_in(4)) {
        let bytes = forge.segment(feed, segment, &state);
        disk.replace(&path(u64::from(segment)), &bytes);
        // The next segment starts with the State record of an empty log, which is valid only if
        // this segment is empty.
        state = LogState::new().encode();
    }
    settle(&disk)
}

/// The state that the records so far would produce if all were valid.
struct Forge {
    term: u64,
    last: u64,
    commit: u64,
    base: u64,
    incarnation: u64,
    chain: u32,
}

impl Forge {
    /// Returns `value` in most cases. Otherwise returns a number close to `value`, or an extreme
    /// number.
    fn mostly(feed: &mut Feed<'_>, value: u64) -> u64 {
        if feed.once_in(24) { feed.near(value) } else { value }
    }

    fn state(&self, feed: &mut Feed<'_>, first: u32) -> Vec<u8> {
        let base_term = Self::mostly(feed, 2);
        let (needed, runs) = (Self::mostly(feed, first.into()), Self::mostly(feed, 1));
        let numbers = [
            self.incarnation,
            self.term,
            Self::mostly(feed, 0),
            self.commit,
            Self::mostly(feed, self.base),
            base_term,
            Self::mostly(feed, self.last),
            needed & 0xffff_ffff | runs << 32,
            Self::mostly(feed, self.commit),
            base_term,
        ];
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn segment(&mut self, feed: &mut Feed<'_>, segment: u32, state: &[u8]) -> Vec<u8> {
        let header = Header {
            version: Self::mostly(feed, u64::from(format::VERSION)) as u32,
            segment: Self::mostly(feed, segment.into()) as u32,
            identity: identity(),
            disk: DISK,
            length: Self::mostly(feed, SEGMENT_BYTES.into()) as u32,
            chain: self.chain,
        };
        let (head, chain) = header.encode();
        let (mut bytes, seed) = (head.to_vec(), format::seed(DISK, segment));
        self.chain = chain;
        let records = feed.below(12);
        for place in 0..=records {
            let kind = match feed.byte() % 16 {
                _ if place == 0 => RecordKind::State,
                0 => RecordKind::Boot,
                1 => RecordKind::Founding,
                2..5 => RecordKind::HardState,
                5..10 => RecordKind::Data,
                10 => RecordKind::Membership,
                11 => RecordKind::Watermark,
                12 => RecordKind::Keep,
                13 => RecordKind::Reset,
                _ if place == records => RecordKind::Roll,
                14 if feed.once_in(8) => RecordKind::State,
                _ => RecordKind::Data,
            };
            let (term, index, payload) = self.record(feed, kind, segment, state);
            let offset = bytes.len() as u32;
            let durable = match feed.byte() {
                0..16 => Position { segment: feed.near(1) as u32, offset: feed.near(72) as u32 },
                _ => Position { segment, offset },
            };
            let ends_group = place == 0 || !feed.once_in(6);
            let draft = RecordDraft { kind, ends_group, durable, term, index, payload: &payload };
            self.chain = draft.encode(&mut bytes, seed, offset, self.chain);
            if kind == RecordKind::Roll {
                break;
            }
        }
        let length = if feed.once_in(32) { feed.below(2048) } else { u64::from(SEGMENT_BYTES) };
        bytes.resize(bytes.len().max(length as usize), 0);
        bytes
    }

    /// Returns the term, index and payload of a new record.
    fn record(
        &mut self,
        feed: &mut Feed<'_>,
        kind: RecordKind,
        segment: u32,
        state: &[u8],
    ) -> (u64, u64, Vec<u8>) {
        let (mut index, mut payload) = (0, Vec::new());
        match kind {
            RecordKind::State => payload = state.to_vec(),
            RecordKind::Boot => {
                self.incarnation = Self::mostly(feed, self.incarnation.saturating_add(1));
                payload = self.incarnation.to_le_bytes().to_vec();
            }
            RecordKind::HardState => {
                let later = self.term.saturating_add(feed.below(2));
                self.term = Self::mostly(feed, later);
                let open = self.last.saturating_sub(self.commit);
                let commit = self.commit.saturating_add(feed.below(open.min(200) + 1));
                self.commit = Self::mostly(feed, commit);
                index = self.commit;
                payload = feed.below(4).to_le_bytes().to_vec();
            }
            RecordKind::Data | RecordKind::Membership => {
                // Sometimes use an index that exists already.
                let back = if feed.once_in(8) { feed.below(4) } else { 0 };
                let next = self.last.saturating_add(1).saturating_sub(back);
                self.last = Self::mostly(feed, next);
                index = self.last;
                payload = feed.bytes(40).to_vec();
            }
            RecordKind::Keep | RecordKind::Reset => {
                let between = self.commit.saturating_sub(self.base);
                let ahead = if kind == RecordKind::Reset {
                    self.commit.saturating_add(1)
                } else {
                    self.base
                };
                let base = ahead.saturating_add(feed.below(between.min(9) + 1));
                self.base = Self::mostly(feed, base);
                if kind == RecordKind::Reset {
                    (self.last, self.commit) = (self.base, self.base);
                }
                index = self.base;
                payload = Self::mostly(feed, segment.into()).to_le_bytes().to_vec();
            }
            RecordKind::Founding => {
                let founder = NodeId::new(1 + feed.below(9)).expect("not 0");
                payload = format::encode_founding(&[(founder, DISK)].into());
            }
            RecordKind::Roll => index = Self::mostly(feed, SEGMENT_BYTES.into()),
            RecordKind::Watermark => {}
        }
        if feed.once_in(48) {
            payload = feed.bytes(40).to_vec();
        }
        (Self::mostly(feed, self.term), index, payload)
    }
}

/// Opens a log twice. If the log can be opened, it must have the same contents both times and
/// accept the next entry.
fn settle(disk: &Arc<SimDisk>) -> Came {
    let Ok(mut opened) = try_open(disk) else { return Came::Refused };
    let content = LogContent::of(&opened);
    let next = content.last().checked_add(1).filter(|next| *next < 1 << 62);
    let newest = content.entries.last().map_or(content.base.term, |last| last.term);
    let term = content.hard_state.term.max(newest);
    let written = next.filter(|_| term.get() > 0).map(|index| {
        let data = Bytes::from_static(b"next");
        let entry = Entry { index: LogIndex(index), term, kind: EntryKind::Data, data };
        let group = Group { number: 1, entries: vec![entry], ..Group::default() };
        let committed =
            opened.writer.commit(std::slice::from_ref(&group)).expect("a disk in order");
        assert_eq!(committed.waiting, 0);
        content.after(&group)
    });
    drop(opened);
    disk.crash();
    let found = LogContent::of(&try_open(disk).expect("what was opened once"));
    assert_eq!(found, written.unwrap_or(content));
    Came::Through
}

// ---- directories --------------------------------------------------------------------------

/// Writes a log and then damages its files. The damaged log must either be rejected, or have the
/// contents that it had at some earlier time. An undamaged log must have its latest contents.
pub(crate) fn directory(data: &[u8]) -> Came {
    let mut feed = Feed::new(data);
    let disk = Arc::new(SimDisk::new(3));
    let mut history = vec![LogContent::default()];
    let mut images: Vec<Vec<(PathBuf, Vec<u8>)>> = Vec::new();
    let mut opened = try_open(&disk).expect("an empty directory");
    for number in 1..=1 + feed.below(8) {
        let content = history.last().expect("never empty");
        let group = group(&mut feed, number, content);
        let after = content.after(&group);
        let committed = opened.writer.commit(std::slice::from_ref(&group)).expect("in order");
        assert_eq!(committed.waiting, 0);
        match feed.byte() % 8 {
            0 => drop(opened.writer.idle().expect("in order")),
            1 => opened.writer.cut(after.hard_state.commit).expect("in order"),
            2 => {
                drop(opened);
                disk.crash();
                opened = try_open(&disk).expect("in order");
            }
            3 => images.push(files(&disk)),
            _ => {}
        }
        history.push(after);
    }
    drop(opened);
    disk.kill();
    let mut damages = feed.below(4);
    let is_complete = damages == 0;
    while damages > 0 {
        damage(&mut feed, &disk, &images);
        damages -= 1;
    }
    let opened = match try_open(&disk) {
        Ok(opened) => opened,
        Err(error) => {
            assert!(!is_complete, "nothing happened to it: {error}");
            return Came::Refused;
        }
    };
    let found = LogContent::of(&opened);
    drop(opened);
    let shown = history.iter().rposition(|content| content.is_shown_by(&found));
    assert!(shown.is_some(), "the log never had this content: {found:?}\n{history:?}");
    assert!(!is_complete || shown == Some(history.len() - 1), "{found:?}");
    settle(&disk)
}

fn group(feed: &mut Feed<'_>, number: u64, content: &LogContent) -> Group {
    let mut group = Group { number, ..Group::default() };
    let HardState { mut term, mut vote, commit } = content.hard_state.clone();
    if feed.once_in(4) {
        term = term.next();
        vote = NodeId::new(feed.below(4));
    }
    let mut index = content.last() + 1;
    if feed.once_in(4) {
        index -= feed.below(content.last() - commit.get() + 1);
    }
    for _ in 0..feed.below(4) {
        let len = feed.byte();
        let data = vec![feed.byte(); usize::from(len) * if len > 250 { 12 } else { 2 }];
        let kind = if feed.once_in(8) { EntryKind::Membership } else { EntryKind::Data };
        group.entries.push(Entry { index: LogIndex(index), term, kind, data: data.into() });
        index += 1;
    }
    let last = group.entries.last().map_or(content.last(), |last| last.index.get());
    let commit = LogIndex(commit.get() + feed.below(last - commit.get() + 1));
    if term != content.hard_state.term || feed.once_in(3) {
        group.hard_state = Some(HardState { term, vote, commit });
    }
    if feed.once_in(16) {
        group.founding = Some([(NodeId::new(1 + feed.below(9)).expect("not 0"), DISK)].into());
    }
    group
}

/// Returns the segments with their bytes.
fn files(disk: &SimDisk) -> Vec<(PathBuf, Vec<u8>)> {
    let names = disk.list(Path::new(DIR)).expect("it is there");
    let names = names.into_iter().filter(|name| name.ends_with(".log"));
    let paths = names.map(|name| Path::new(DIR).join(name));
    paths.map(|path| (path.clone(), disk.read(&path).expect("just listed"))).collect()
}

fn damage(feed: &mut Feed<'_>, disk: &SimDisk, images: &[Vec<(PathBuf, Vec<u8>)>]) {
    let files = files(disk);
    if files.is_empty() {
        return;
    }
    let (path, bytes) = &files[feed.below(files.len() as u64) as usize];
    let (_, other) = &files[feed.below(files.len() as u64) as usize];
    let mut changed = bytes.clone();
    // Offsets are spread over the file. In half of the cases they are at the start of a record.
    let at = |feed: &mut Feed<'_>, len: usize| match (feed.byte(), len) {
        (_, 0) => 0,
        (fine, _) if fine < 128 => (feed.number() & 0xffff) as usize % len,
        _ => usize::from(feed.byte()) * 8 % len,
    };
    let place = at(feed, changed.len());
    match feed.byte() % 10 {
        0..3 if !changed.is_empty() => changed[place] ^= 1 << feed.below(8),
        3 => {
            let with = feed.bytes(64);
            let end = (place + with.len()).min(changed.len());
            changed[place..end].copy_from_slice(&with[..end - place]);
        }
        4 => changed.truncate(place),
        5 => {
            let sector = place / 512 * 512;
            let from = at(feed, other.len()) / 512 * 512;
            let len = 512.min(other.len() - from).min(changed.len() - sector);
            changed[sector..sector + len].copy_from_slice(&other[from..from + len]);
        }
        6 => {
            let end = (place + 1 + usize::from(feed.byte())).min(changed.len());
            changed[place..end].fill(0);
        }
        7 => return disk.remove(path).expect("it is there"),
        8 => return disk.replace(&self::path(feed.near(2) % 10_000_000_000), &changed),
        _ => {
            // Revert a file to an earlier version.
            let Some(image) = images.get(feed.below(images.len().max(1) as u64) as usize) else {
                return;
            };
            let (path, bytes) = &image[feed.below(image.len() as u64) as usize];
            return disk.replace(path, bytes);
        }
    }
    disk.replace(path, &changed);
}

// ---- seeds --------------------------------------------------------------------------------

pub(crate) fn record_seeds() -> Vec<Vec<u8>> {
    let rng = Rng::new(5);
    let mut seeds: Vec<Vec<u8>> = (0..24).map(|_| orders(&rng, 1, 200)).collect();
    let header = Header {
        version: format::VERSION,
        segment: 1,
        identity: identity(),
        disk: DISK,
        length: SEGMENT_BYTES,
        chain: 0,
    };
    seeds.push([&[0], &header.encode().0[..]].concat());
    let mut record = vec![0];
    let durable = Position { segment: 1, offset: 72 };
    let draft = RecordDraft {
        kind: RecordKind::Data,
        ends_group: true,
        durable,
        term: 2,
        index: 3,
        payload: b"payload",
    };
    draft.encode(&mut record, format::seed(DISK, 1), 72, 0);
    seeds.push(record);
    seeds.push([&[0], &LogState::new().encode()[..]].concat());
    seeds.push([&[0], &format::encode_founding(&[(identity().node, DISK)].into())[..]].concat());
    seeds
}

pub(crate) fn directory_seeds() -> Vec<Vec<u8>> {
    let rng = Rng::new(6);
    (0..48).map(|_| orders(&rng, 0, 120)).collect()
}

/// Returns random instructions.
fn orders(rng: &Rng, first: u8, most: u64) -> Vec<u8> {
    use crate::env::Entropy as _;
    let len = 20 + rng.below(most - 20);
    std::iter::once(first).chain((1..len).map(|_| rng.next_u64() as u8)).collect()
}
