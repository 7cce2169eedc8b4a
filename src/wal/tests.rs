//! The log against a disk that does everything that it may, and some things that it may not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::format::{Header, VERSION};
use super::*;
use crate::env::{BootClock, Disk, Entropy, NoPoints, OpenMode, RealDisk};
use crate::sim::{Rng, SimDisk};

const DIR: &str = "log";

fn env(disk: &Arc<SimDisk>) -> Env {
    Env {
        clock: Arc::new(BootClock),
        entropy: Arc::new(Rng::new(42)),
        disk: Arc::clone(disk) as Arc<dyn Disk>,
        points: Arc::new(NoPoints),
    }
}

fn identity() -> Identity {
    Identity { cluster: ClusterId(7), node: node(1) }
}

fn node(id: u64) -> NodeId {
    NodeId::new(id).unwrap()
}

/// Opens with the smallest segments.
fn try_open(disk: &Arc<SimDisk>) -> Result<Opened, LogError> {
    open(
        &env(disk),
        Path::new(DIR),
        identity(),
        LogOptions { segment_bytes: 2048, ..LogOptions::default() },
    )
}

fn reopen(disk: &Arc<SimDisk>) -> Opened {
    try_open(disk).unwrap_or_else(|error| panic!("{error}"))
}

fn entry(index: u64, term: u64, data: &[u8]) -> Entry {
    Entry {
        index: LogIndex(index),
        term: Term(term),
        kind: if index.is_multiple_of(7) { EntryKind::Membership } else { EntryKind::Data },
        data: Bytes::copy_from_slice(data),
    }
}

fn group(number: u64, entries: Vec<Entry>) -> Group {
    Group { number, entries, ..Group::default() }
}

fn hard_state(term: u64, vote: Option<u64>, commit: u64) -> HardState {
    HardState { term: Term(term), vote: vote.map(node), commit: LogIndex(commit) }
}

fn path(number: u32) -> PathBuf {
    Path::new(DIR).join(format!("{number:010}.log"))
}

/// What a log says, as plain data.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Said {
    entries: Vec<Entry>,
    hard_state: HardState,
    founding: Option<Founding>,
}

impl Said {
    fn of(opened: &Opened) -> Self {
        let reader = &opened.reader;
        assert_eq!(reader.last(), opened.recovered.last);
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let next = entries.last().map_or(reader.first(), |last| last.index.next());
            if next > reader.last() {
                break;
            }
            entries.extend(reader.entries(next, reader.last().next(), 300).unwrap());
        }
        for entry in &entries {
            assert_eq!(reader.term(entry.index), Some(entry.term));
        }
        let recovered = &opened.recovered;
        Self {
            entries,
            hard_state: recovered.hard_state.clone(),
            founding: recovered.founding.clone(),
        }
    }

    fn last(&self) -> u64 {
        self.entries.len() as u64 + 1
    }

    fn after(&self, group: &Group) -> Self {
        let mut said = self.clone();
        for entry in &group.entries {
            said.entries.truncate(entry.index.get() as usize - 2);
            said.entries.push(entry.clone());
        }
        said.hard_state = group.hard_state.clone().unwrap_or(said.hard_state);
        said.founding = group.founding.clone().or(said.founding);
        said
    }
}

/// A group that may follow.
fn any_group(rng: &Rng, number: u64, said: &Said) -> Group {
    let mut group = group(number, Vec::new());
    let state = &said.hard_state;
    let (mut term, mut vote) = (state.term.get(), state.vote);
    if rng.below(4) == 0 {
        term += 1;
        vote = (rng.below(2) == 0).then(|| node(1 + rng.below(3)));
    }
    let mut index = said.last() + 1;
    if rng.below(4) == 0 {
        let open = said.last() - state.commit.get();
        index -= rng.below(open + 1);
    }
    for _ in 0..rng.below(5) {
        let most = if rng.below(40) == 0 { 3000 } else { 200 };
        let data: Vec<u8> = (0..rng.below(most)).map(|_| rng.next_u64() as u8).collect();
        group.entries.push(entry(index, term, &data));
        index += 1;
    }
    let last = group.entries.last().map_or(said.last(), |last| last.index.get());
    let commit = state.commit.get() + rng.below(last - state.commit.get() + 1);
    if term != state.term.get() || rng.below(3) == 0 {
        group.hard_state = Some(HardState { term: Term(term), vote, commit: LogIndex(commit) });
    }
    if rng.below(20) == 0 {
        group.founding = Some(BTreeMap::from([(node(1 + rng.below(9)), DiskId(rng.next_u128()))]));
    }
    group
}

// ---- what it keeps --------------------------------------------------------------------------------

#[test]
fn a_new_log_is_empty_and_counts_its_starts() {
    let disk = Arc::new(SimDisk::new(1));
    for start in 1..=3 {
        let opened = reopen(&disk);
        assert_eq!(
            opened.recovered,
            Recovered {
                disk: opened.recovered.disk,
                incarnation: Incarnation(start),
                founding: None,
                hard_state: HardState::default(),
                base: Base::default(),
                last: LogIndex(1),
                torn: None,
            }
        );
        assert_eq!(opened.reader.term(LogIndex(1)), Some(Term(1)));
        disk.crash();
    }
}

#[test]
fn a_group_is_there_after_a_crash_with_all_that_it_held() {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = reopen(&disk);
    let group = Group {
        number: 4,
        hard_state: Some(hard_state(3, Some(2), 2)),
        entries: vec![entry(2, 1, b""), entry(3, 3, b"12345678")],
        base: None,
        founding: Some(BTreeMap::from([(node(1), opened.recovered.disk), (node(2), DiskId(5))])),
    };
    let proof = opened.writer.commit(std::slice::from_ref(&group)).unwrap().whole();
    assert_eq!(proof.number(), 4);
    disk.crash();
    assert_eq!(Said::of(&reopen(&disk)), Said::default().after(&group));
}

#[test]
fn readers_see_an_entry_when_it_is_durable_and_get_at_least_one_at_a_time() {
    let disk = Arc::new(SimDisk::new(1));
    let Opened { mut writer, reader, .. } = reopen(&disk);
    assert_eq!(reader.last(), LogIndex(1));
    let entries: Vec<Entry> = (2..=40).map(|i| entry(i, 1, &[i as u8; 100])).collect();
    let _proof = writer.commit(&[group(1, entries.clone())]).unwrap();
    let read = |from, to, bytes| reader.entries(LogIndex(from), LogIndex(to), bytes);
    assert_eq!(read(2, 41, usize::MAX).unwrap(), entries);
    assert_eq!(read(5, 9, usize::MAX).unwrap(), entries[3..7]);
    assert_eq!(read(5, 9, 250).unwrap(), entries[3..5]);
    assert_eq!(read(5, 9, 0).unwrap(), entries[3..4]);
    assert_eq!(read(5, 5, 0).unwrap(), []);
    for (from, to) in [(1, 3), (5, 42), (9, 5)] {
        assert!(matches!(read(from, to, 1), Err(LogError::OutOfRange { .. })), "{from} {to}");
    }
}

#[test]
fn a_replaced_suffix_stays_replaced() {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = reopen(&disk);
    let mut said = Said::default();
    let groups = [
        group(1, (2..20).map(|i| entry(i, 1, b"old")).collect()),
        group(2, vec![entry(10, 2, b"new"), entry(11, 2, b"new")]),
        group(3, vec![entry(11, 3, b"newest")]),
    ];
    for group in &groups {
        let _proof = opened.writer.commit(std::slice::from_ref(group)).unwrap();
        said = said.after(group);
        assert_eq!(opened.reader.last().get(), said.last());
    }
    disk.crash();
    let opened = reopen(&disk);
    assert_eq!(opened.recovered.last, LogIndex(11));
    assert_eq!(Said::of(&opened), said);
}

#[test]
fn a_group_larger_than_a_segment_gets_a_longer_one() {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = reopen(&disk);
    let big = group(1, vec![entry(2, 1, &[7; 700_000])]);
    let small = group(2, vec![entry(3, 1, &[8; 10])]);
    let _proof = opened.writer.commit(&[big.clone(), small.clone()]).unwrap();
    disk.crash();
    let opened = reopen(&disk);
    assert_eq!(Said::of(&opened), Said::default().after(&big).after(&small));
}

// ---- crashes --------------------------------------------------------------------------------------

/// Runs a workload through several lives that end in every way, and judges each start.
fn live_and_die(seed: u64) {
    let rng = Rng::new(seed);
    let disk = Arc::new(SimDisk::new(rng.next_u64()));
    // What the log said after each group; those up to `acked` must never be lost.
    let mut history = vec![Said::default()];
    let (mut acked, mut incarnation) = (0, 0);
    for _life in 0..8 {
        if rng.below(3) > 0 {
            disk.stop_after(rng.below(80));
        }
        match try_open(&disk) {
            Ok(mut opened) => {
                let said = Said::of(&opened);
                let found = (acked..history.len()).rev().find(|i| history[*i] == said);
                let found = found.unwrap_or_else(|| {
                    panic!("seed {seed}: an acknowledged group is lost or a lost one is back")
                });
                history.truncate(found + 1);
                acked = found;
                assert!(opened.recovered.incarnation.get() > incarnation, "seed {seed}");
                incarnation = opened.recovered.incarnation.get();
                for number in 1..=rng.below(30) {
                    let mut groups = Vec::new();
                    for _ in 0..1 + rng.below(3) {
                        let said = history.last().unwrap();
                        let group = any_group(&rng, number, said);
                        history.push(said.after(&group));
                        groups.push(group);
                    }
                    if rng.below(40) == 0 {
                        disk.fail_next_sync();
                    }
                    match opened.writer.commit(&groups) {
                        Ok(committed) => {
                            assert_eq!(committed.whole().number(), number);
                            acked = history.len() - 1;
                        }
                        Err(_) => break,
                    }
                    if rng.below(4) == 0 && opened.writer.idle().is_err() {
                        break;
                    }
                }
            }
            Err(LogError::Io { .. }) => {}
            Err(error) => panic!("seed {seed}: {error}"),
        }
        if rng.below(3) == 0 {
            disk.kill();
        } else {
            disk.crash();
        }
    }
}

#[test]
fn no_crash_of_many_loses_an_acknowledged_group_or_brings_a_replaced_one_back() {
    for seed in 0..300 {
        live_and_die(seed);
    }
}

#[test]
fn a_crash_at_any_step_of_a_life_leaves_a_log_that_opens() {
    for steps in 0.. {
        let mut finished = false;
        for seed in 0..6 {
            let disk = Arc::new(SimDisk::new(seed * 1000 + steps));
            disk.stop_after(steps);
            let mut acked = Said::default();
            let mut life = || -> Result<(), LogError> {
                let mut opened = try_open(&disk)?;
                for number in 2..12 {
                    let group = group(number, vec![entry(number, 1, &[number as u8; 150])]);
                    let _proof = opened.writer.commit(std::slice::from_ref(&group))?;
                    acked = acked.after(&group);
                    opened.writer.idle()?;
                }
                Ok(())
            };
            finished = life().is_ok();
            disk.crash();
            let opened = reopen(&disk);
            let said = Said::of(&opened);
            assert!(said.entries.starts_with(&acked.entries), "steps {steps} seed {seed}");
            assert!(said.entries.len() <= acked.entries.len() + 1);
        }
        if finished {
            assert!(steps > 60, "the life was too short to show anything: {steps}");
            break;
        }
    }
}

#[test]
fn what_a_failed_sync_left_in_memory_is_durable_once_it_was_recovered() {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = reopen(&disk);
    disk.fail_next_sync();
    opened.writer.commit(&[group(1, vec![entry(2, 1, b"seen by readers only")])]).unwrap_err();
    disk.kill();
    assert_eq!(reopen(&disk).recovered.last, LogIndex(2));
    disk.crash();
    assert_eq!(reopen(&disk).recovered.last, LogIndex(2));
}

#[test]
fn a_torn_tail_is_cut_and_reported_and_what_is_written_then_stays() {
    let mut torn = 0;
    for seed in 0..60 {
        let disk = Arc::new(SimDisk::new(seed));
        let mut opened = reopen(&disk);
        let first = group(1, vec![entry(2, 1, b"kept")]);
        let _proof = opened.writer.commit(std::slice::from_ref(&first)).unwrap();
        disk.stop_after(1);
        opened.writer.commit(&[group(2, vec![entry(3, 1, &[1; 600])])]).unwrap_err();
        disk.crash();
        let mut opened = reopen(&disk);
        if opened.recovered.last == LogIndex(3) {
            continue;
        }
        assert_eq!(Said::of(&opened), Said::default().after(&first));
        if let Some(tail) = &opened.recovered.torn {
            assert!(tail.segment == path(1) && tail.offset > 72 && tail.bytes > 0, "{tail:?}");
            torn += 1;
        }
        let second = group(1, vec![entry(3, 2, b"other")]);
        let _proof = opened.writer.commit(std::slice::from_ref(&second)).unwrap();
        disk.crash();
        let opened = reopen(&disk);
        assert_eq!(opened.recovered.torn, None);
        assert_eq!(Said::of(&opened), Said::default().after(&first).after(&second));
    }
    assert!(torn > 5, "{torn} torn tails in 60 crashes");
}

// ---- damage ---------------------------------------------------------------------------------------

/// A log of several segments, all synced, what it said before and after its last group, and the
/// names of its files.
struct Written {
    disk: SimDisk,
    before: Said,
    last: Said,
    files: Vec<PathBuf>,
}

const GROUPS: u64 = 8;

fn written(vouched: bool) -> Written {
    let disk = Arc::new(SimDisk::new(3));
    let rng = Rng::new(5);
    let mut opened = reopen(&disk);
    let (mut before, mut last) = (Said::default(), Said::default());
    for number in 1..=GROUPS {
        let mut group = any_group(&rng, number, &last);
        if number == GROUPS {
            let next = entry(last.last() + 1, last.hard_state.term.get(), b"the last one");
            group = self::group(number, vec![next]);
        }
        before = last.clone();
        last = last.after(&group);
        let _proof = opened.writer.commit(&[group]).unwrap();
    }
    if vouched {
        opened.writer.idle().unwrap();
    }
    drop(opened);
    let names = disk.list(Path::new(DIR)).unwrap();
    let files = names.iter().filter(|name| name.ends_with(".log"));
    let files: Vec<PathBuf> = files.map(|name| Path::new(DIR).join(name)).collect();
    assert!(files.len() > 3, "{files:?}");
    Written { disk: disk.copy(), before, last, files }
}

/// How often each outcome was seen.
#[derive(Default, Debug)]
struct Outcomes {
    refused: u32,
    whole: u32,
    cut: u32,
}

impl Outcomes {
    /// Opens a damaged log and judges what comes of it.
    fn judge(&mut self, written: &Written, disk: SimDisk, vouched: bool, what: &str) {
        let disk = Arc::new(disk);
        match try_open(&disk) {
            Err(LogError::Corrupt { .. }) => self.refused += 1,
            Err(error) => panic!("{what}: {error}"),
            Ok(opened) => {
                let said = Said::of(&opened);
                if said == written.last {
                    self.whole += 1;
                } else {
                    assert!(!vouched, "{what}: a synced group is silently gone");
                    assert_eq!(said, written.before, "{what}");
                    assert!(opened.recovered.torn.is_some(), "{what}: cut without a report");
                    self.cut += 1;
                }
                disk.crash();
                drop(opened);
                assert_eq!(Said::of(&reopen(&disk)), said, "{what}: a second start differs");
            }
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_refused_harmless_or_the_unvouched_tail() {
    for vouched in [true, false] {
        let written = written(vouched);
        let mut outcomes = Outcomes::default();
        for file in &written.files {
            let bytes = written.disk.read(file).unwrap();
            for (at, byte) in bytes.iter().enumerate() {
                // Deep in a field of zeros one byte is like the next.
                if at % 16 > 0 && bytes[at.saturating_sub(64)..=at].iter().all(|byte| *byte == 0) {
                    continue;
                }
                let disk = written.disk.copy();
                if at % 3 == 0 {
                    let mut bytes = bytes.clone();
                    bytes[at] = !byte;
                    disk.replace(file, &bytes);
                } else {
                    disk.flip_bit(file, at * 8 + at % 8);
                }
                let what = format!("byte {at} of {}, vouched {vouched}", file.display());
                outcomes.judge(&written, disk, vouched, &what);
            }
        }
        assert!(outcomes.refused > 1000 && outcomes.whole > 100, "{outcomes:?}");
        assert_eq!(outcomes.cut > 0, !vouched, "{outcomes:?}");
    }
}

#[test]
fn a_file_cut_short_or_lost_is_refused_unless_nothing_was_in_it() {
    let written = written(false);
    let (spare, used) = written.files.split_last().unwrap();
    for file in used {
        let bytes = written.disk.read(file).unwrap();
        for length in (0..bytes.len()).step_by(7) {
            let disk = written.disk.copy();
            disk.replace(file, &bytes[..length]);
            assert!(matches!(try_open(&Arc::new(disk)), Err(LogError::Corrupt { .. })));
        }
        let disk = written.disk.copy();
        disk.remove(file).unwrap();
        assert!(matches!(try_open(&Arc::new(disk)), Err(LogError::Corrupt { .. })));
    }
    let mut outcomes = Outcomes::default();
    for length in 0..written.disk.read(spare).unwrap().len() {
        let disk = written.disk.copy();
        disk.replace(spare, &vec![0; length]);
        outcomes.judge(&written, disk, true, "the unused segment is cut short");
    }
    assert_eq!(outcomes.refused, 0);
}

#[test]
fn a_segment_lost_or_cut_short_right_after_the_log_came_to_it_is_missed() {
    let disk = Arc::new(SimDisk::new(3));
    let mut opened = reopen(&disk);
    let mut number = 2;
    while disk.read(&path(2)).is_none_or(|bytes| bytes[0] == 0) {
        let _proof =
            opened.writer.commit(&[group(number, vec![entry(number, 1, &[1; 99])])]).unwrap();
        number += 1;
    }
    assert_eq!(disk.read(&path(3)), None, "nothing may stand behind the segment");
    disk.kill();
    let bytes = disk.read(&path(2)).unwrap();
    for length in [0, 8, 71, 72, 512, 2047] {
        let disk = disk.copy();
        disk.replace(&path(2), &bytes[..length]);
        assert!(matches!(try_open(&Arc::new(disk)), Err(LogError::Corrupt { .. })), "{length}");
    }
    disk.remove(&path(2)).unwrap();
    assert!(matches!(try_open(&disk), Err(LogError::Corrupt { .. })));
}

#[test]
fn a_term_or_vote_that_rots_is_never_forgotten() {
    let disk = Arc::new(SimDisk::new(3));
    let mut opened = reopen(&disk);
    let mut last = HardState::default();
    for term in 2..12 {
        last = hard_state(term, Some(1 + term % 3), 1);
        let group = Group { number: term, hard_state: Some(last.clone()), ..Group::default() };
        let _proof = opened.writer.commit(&[group]).unwrap();
    }
    // What follows says nothing of the term, and stands in other segments.
    for number in 12..15 {
        let entries = vec![entry(number - 10, 11, &[1; 1000])];
        let _proof = opened.writer.commit(&[group(number, entries)]).unwrap();
    }
    opened.writer.idle().unwrap();
    drop(opened);
    let disk = disk.copy();
    for number in 1..=3 {
        for at in 0..disk.read(&path(number)).unwrap().len() {
            let disk = Arc::new(disk.copy());
            disk.flip_bit(&path(number), at * 8 + at % 8);
            match try_open(&disk) {
                Ok(opened) => assert_eq!(opened.recovered.hard_state, last, "{number}:{at}"),
                Err(error) => assert!(matches!(error, LogError::Corrupt { .. }), "{error}"),
            }
        }
    }
}

#[test]
fn sectors_that_stand_in_each_others_place_or_went_back_in_time_are_noticed() {
    let written = written(true);
    let mut outcomes = Outcomes::default();
    let files: Vec<Vec<u8>> =
        written.files.iter().map(|file| written.disk.read(file).unwrap()).collect();
    for (to, target) in files.iter().enumerate() {
        for (from, source) in files.iter().enumerate() {
            let places = (0..16).map(|i| (i / 4 * 512, i % 4 * 512));
            for (at, out_of) in places {
                if out_of + 512 > source.len() || at + 512 > target.len() {
                    continue;
                }
                let mut bytes = target.clone();
                bytes[at..at + 512].copy_from_slice(&source[out_of..out_of + 512]);
                let disk = written.disk.copy();
                disk.replace(&written.files[to], &bytes);
                let what = format!("{from}:{out_of} stands at {to}:{at}");
                outcomes.judge(&written, disk, true, &what);
            }
        }
    }
    assert!(outcomes.refused > 10, "{outcomes:?}");
}

#[test]
fn a_lost_write_is_noticed_once_something_was_written_after_it() {
    let disk = Arc::new(SimDisk::new(3));
    let mut opened = reopen(&disk);
    let images: Vec<Vec<u8>> = (2..=4)
        .map(|i| {
            let _proof = opened.writer.commit(&[group(i, vec![entry(i, 1, &[1; 8])])]).unwrap();
            disk.read(&path(1)).unwrap()
        })
        .collect();
    // The last group reached the medium and the one before it did not.
    let mut bytes = images[2].clone();
    let changed: Vec<usize> = (0..bytes.len()).filter(|i| images[0][*i] != images[1][*i]).collect();
    for at in changed {
        bytes[at] = images[0][at];
    }
    disk.kill();
    disk.replace(&path(1), &bytes);
    let Err(LogError::Corrupt { why, .. }) = try_open(&disk) else { panic!("not noticed") };
    assert!(why.contains("it had been synced"), "{why}");
}

#[test]
fn damage_that_appears_while_the_log_is_open_is_noticed_by_its_reader() {
    let disk = Arc::new(SimDisk::new(3));
    let mut opened = reopen(&disk);
    let entries = (2..6).map(|i| entry(i, 1, &[9; 40])).collect();
    let _proof = opened.writer.commit(&[group(1, entries)]).unwrap();
    let at = disk.read(&path(1)).unwrap().iter().rposition(|byte| *byte == 9).unwrap();
    disk.flip_bit(&path(1), at * 8);
    let error = opened.reader.entries(LogIndex(2), LogIndex(6), usize::MAX).unwrap_err();
    assert!(matches!(error, LogError::Corrupt { .. }));
    assert!(error.to_string().contains("the other members have the data"), "{error}");
}

// ---- failures -------------------------------------------------------------------------------------

#[test]
fn the_first_failed_sync_or_write_is_the_last_word() {
    for fail in [SimDisk::fail_next_sync, SimDisk::fail_writes] {
        let disk = Arc::new(SimDisk::new(1));
        let mut opened = reopen(&disk);
        fail(&disk);
        let next = [group(1, vec![entry(2, 1, b"x")])];
        assert!(matches!(opened.writer.commit(&next), Err(LogError::Io { .. })));
        disk.clear_faults();
        assert!(matches!(opened.writer.commit(&next), Err(LogError::Poisoned { .. })));
        assert!(matches!(opened.writer.idle(), Err(LogError::Poisoned { .. })));
        assert_eq!(opened.reader.last(), LogIndex(1));
    }
}

#[test]
fn a_full_disk_is_an_error_only_when_the_next_segment_is_needed() {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = reopen(&disk);
    disk.limit(Some(2500));
    let mut said = Said::default();
    let mut number = 2;
    let error = loop {
        let group = group(number, vec![entry(number, 1, &[1; 20])]);
        match opened.writer.commit(std::slice::from_ref(&group)) {
            Ok(_) => said = said.after(&group),
            Err(error) => break error,
        }
        if number == 8 {
            opened.writer.idle().unwrap();
        }
        number += 1;
    };
    assert!(number > 8, "the segment should have been filled first");
    assert!(error.to_string().contains("failed to prepare"), "{error}");
    // With room again, the log goes on where it was.
    disk.limit(None);
    disk.crash();
    let mut opened = reopen(&disk);
    assert_eq!(Said::of(&opened), said);
    let _proof = opened.writer.commit(&[group(1, vec![entry(number, 1, &[1; 200])])]).unwrap();
}

#[test]
fn room_that_came_back_before_the_segment_was_needed_is_used() {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = reopen(&disk);
    disk.limit(Some(2500));
    for number in 2..8 {
        let _proof =
            opened.writer.commit(&[group(number, vec![entry(number, 1, &[1; 60])])]).unwrap();
    }
    disk.limit(None);
    for number in 8..60 {
        let _proof =
            opened.writer.commit(&[group(number, vec![entry(number, 1, &[1; 60])])]).unwrap();
    }
}

#[test]
fn what_consensus_never_asks_for_is_refused_and_ends_the_log() {
    let gap = group(2, vec![entry(4, 2, b"")]);
    let below_commit = group(2, vec![entry(2, 2, b"")]);
    let term_falls = group(2, vec![entry(3, 1, b""), entry(4, 1, b"")]);
    let state = |state| Group { number: 2, hard_state: Some(state), ..Group::default() };
    let cases = [
        ("gap", gap),
        ("committed", below_commit),
        ("below that of the one before", term_falls),
        ("below that of the one before", group(0, Vec::new())),
        ("the term falls", state(hard_state(1, None, 2))),
        ("second vote", state(hard_state(2, Some(2), 2))),
        ("second vote", state(hard_state(2, None, 2))),
        ("commit index falls", state(hard_state(2, Some(1), 1))),
        ("beyond the last", state(hard_state(2, Some(1), 3))),
    ];
    for (why, bad) in cases {
        let disk = Arc::new(SimDisk::new(1));
        let mut opened = reopen(&disk);
        let mut good = group(1, vec![entry(2, 2, b"")]);
        good.hard_state = Some(hard_state(2, Some(1), 2));
        let _proof = opened.writer.commit(std::slice::from_ref(&good)).unwrap();
        let error = opened.writer.commit(&[bad]).unwrap_err();
        assert!(matches!(error, LogError::Impossible { .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
        assert!(matches!(opened.writer.commit(&[good]), Err(LogError::Poisoned { .. })));
        disk.crash();
        assert_eq!(reopen(&disk).recovered.last, LogIndex(2));
    }
}

#[test]
fn a_directory_is_used_by_one_node_at_a_time() {
    let disk = Arc::new(SimDisk::new(1));
    let opened = reopen(&disk);
    let Err(error) = try_open(&disk) else { panic!("two nodes on one directory") };
    assert!(matches!(error, LogError::Locked { .. }), "{error}");
    drop(opened);
    reopen(&disk);
}

#[test]
fn the_log_of_another_cluster_or_member_is_refused_by_name() {
    let disk = Arc::new(SimDisk::new(1));
    drop(reopen(&disk));
    for other in
        [Identity { cluster: ClusterId(8), ..identity() }, Identity { node: node(2), ..identity() }]
    {
        let result = open(&env(&disk), Path::new(DIR), other, LogOptions::default());
        let Err(error) = result else { panic!("it was taken") };
        let text = error.to_string();
        assert!(text.contains("belongs to member 1 of cluster 00000000000000000000000000000007"));
        assert!(text.contains(&format!("member {} of cluster {}", other.node, other.cluster)));
    }
    assert_eq!(reopen(&disk).recovered.incarnation, Incarnation(2), "a refused start counts not");
}

#[test]
fn a_log_of_a_later_release_asks_for_the_later_release() {
    let disk = Arc::new(SimDisk::new(1));
    drop(reopen(&disk));
    let mut bytes = disk.read(&path(1)).unwrap();
    let (header, _) = Header::decode(bytes.first_chunk().unwrap()).unwrap();
    let later = Header { version: VERSION + 1, ..header }.encode().0;
    bytes[..later.len()].copy_from_slice(&later);
    disk.replace(&path(1), &bytes);
    let Err(error) = try_open(&disk) else { panic!("it was taken") };
    assert!(matches!(error, LogError::Newer { found: 2, known: 1, .. }), "{error}");
    assert!(error.to_string().contains("upgrade me"));
}

// ---- the real disk --------------------------------------------------------------------------------

#[test]
fn the_log_lives_on_a_real_disk_too() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env { disk: Arc::new(RealDisk), ..Env::real() };
    let options = LogOptions { segment_bytes: 64 << 10, ..LogOptions::default() };
    let mut said = Said::default();
    let rng = Rng::new(9);
    for start in 1..=3 {
        let mut opened = open(&env, &dir.path().join("a/b"), identity(), options).unwrap();
        assert_eq!(opened.recovered.incarnation, Incarnation(start));
        assert_eq!(Said::of(&opened), said);
        assert!(matches!(
            open(&env, &dir.path().join("a/b"), identity(), options),
            Err(LogError::Locked { .. })
        ));
        for number in 1..100 {
            let group = any_group(&rng, number, &said);
            said = said.after(&group);
            let _proof = opened.writer.commit(&[group]).unwrap();
        }
        opened.writer.idle().unwrap();
    }
    let names = RealDisk.list(&dir.path().join("a/b")).unwrap();
    assert!(names.len() > 3 && names[0] == "0000000001.log", "{names:?}");
    RealDisk.open(&dir.path().join("a/b/LOCK"), OpenMode::Read).unwrap();
}
