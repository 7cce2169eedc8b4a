//! Tests of truncation, and of bases (the last entry that a truncated log no longer contains).

use std::sync::Mutex;

use super::model::read_all;
use super::*;
use crate::env::OpenMode;

/// Returns a log of a dozen segments with 100 committed entries of 150 bytes, and the entries.
fn long(disk: &Arc<SimDisk>) -> (Opened, Vec<Entry>) {
    let mut opened = reopen(disk);
    let entries: Vec<Entry> = (2..=101).map(|i| entry(i, 1, &[i as u8; 150])).collect();
    for (number, entry) in (1..).zip(&entries) {
        let mut group = group(number, vec![entry.clone()]);
        group.hard_state = Some(hard_state(1, Some(1), entry.index.get()));
        let _proof = opened.writer.commit(&[group]).unwrap().whole();
    }
    assert!(segments(disk).len() > 10, "{:?}", segments(disk));
    (opened, entries)
}

fn commit(opened: &mut Opened, group: Group) {
    let _proof = opened.writer.commit(&[group]).unwrap().whole();
}

/// Truncates the log and waits until the files are removed.
fn cut(opened: &mut Opened, up_to: u64) {
    opened.writer.cut(LogIndex(up_to)).unwrap();
    while opened.writer.idle().unwrap() {}
}

#[test]
fn truncation_removes_whole_segments_and_keeps_later_entries() {
    let disk = Arc::new(SimDisk::new(1));
    let (mut opened, entries) = long(&disk);
    let (before, bytes) = (segments(&disk), opened.reader.bytes());
    cut(&mut opened, 60);
    let there = segments(&disk);
    assert!(there[0] > 4 && there.last() >= before.last(), "{there:?}");
    let reader = opened.reader.clone();
    let first = reader.first();
    assert!(first > LogIndex(50) && first <= LogIndex(61), "{first}");
    assert_eq!(read_all(&reader), entries[first.get() as usize - 2..]);
    let left = bytes - u64::from(there[0] - 1) * 2048;
    assert!(reader.bytes() > left && reader.bytes() < left + 1024, "a cut has its own records");
    let base = LogIndex(first.get() - 1);
    assert_eq!(reader.term(base), Some(Term(1)));
    assert_eq!(reader.term(LogIndex(base.get() - 1)), None);
    assert!(matches!(
        reader.entries(base, LogIndex(101), 1000),
        Err(LogError::OutOfRange { first: found, .. }) if found == first
    ));
    let content = LogContent {
        base: Base { index: base, term: Term(1) },
        entries: read_all(&reader),
        hard_state: hard_state(1, Some(1), 101),
        founding: None,
    };
    disk.crash();
    let mut opened = reopen(&disk);
    assert_eq!(LogContent::of(&opened), content);
    assert_eq!(segments(&disk)[0], there[0]);
    commit(&mut opened, group(1, vec![entry(102, 1, b"goes on")]));
    assert_eq!(opened.reader.last(), LogIndex(102));
}

#[test]
fn truncation_spares_uncommitted_entries_and_is_idempotent() {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = reopen(&disk);
    for index in 2..=101 {
        commit(&mut opened, group(index, vec![entry(index, 1, &[7; 150])]));
    }
    cut(&mut opened, 90);
    assert_eq!((opened.reader.first(), segments(&disk)[0]), (LogIndex(2), 1));
    let commit_20 =
        Group { number: 200, hard_state: Some(hard_state(1, None, 20)), ..Group::default() };
    commit(&mut opened, commit_20);
    cut(&mut opened, 90);
    let first = opened.reader.first();
    assert!(first > LogIndex(10) && first <= LogIndex(21), "{first}");
    let bytes = opened.reader.bytes();
    for up_to in [0, 1, 15, first.get()] {
        cut(&mut opened, up_to);
        assert_eq!((opened.reader.first(), opened.reader.bytes()), (first, bytes), "{up_to}");
    }
}

#[test]
fn full_truncation_keeps_the_active_segment_and_required_state() {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = reopen(&disk);
    let founding = BTreeMap::from([(node(1), opened.recovered.disk), (node(2), DiskId(5))]);
    commit(&mut opened, Group { founding: Some(founding.clone()), ..group(0, Vec::new()) });
    for index in 2..=60 {
        commit(&mut opened, group(index, vec![entry(index, index / 10 + 1, &[7; 150])]));
    }
    let vow = Some(hard_state(9, Some(3), 60));
    commit(&mut opened, Group { hard_state: vow.clone(), ..group(100, Vec::new()) });
    // Fill the segment that contains the last entry, so that it is no longer the current one and
    // can be removed.
    for number in 101..140 {
        let term = Some(hard_state(number, None, 60));
        commit(&mut opened, Group { hard_state: term, ..group(number, Vec::new()) });
    }
    cut(&mut opened, 60);
    assert_eq!(opened.reader.first(), LogIndex(61));
    assert!(segments(&disk).len() <= 2, "{:?}", segments(&disk));
    let disk_id = opened.recovered.disk;
    disk.crash();
    let opened = reopen(&disk);
    assert_eq!(
        opened.recovered,
        Recovered {
            disk: disk_id,
            incarnation: Incarnation(2),
            founding: Some(founding),
            hard_state: hard_state(139, None, 60),
            base: base(60, 7),
            last: LogIndex(60),
            torn: None,
        }
    );
}

#[test]
fn known_base_keeps_later_entries_and_an_unknown_one_resets() {
    for (given, left) in [
        (base(50, 1), 51_u64..102),
        (base(101, 1), 102..102),
        (base(1, 1), 2..102),
        (base(102, 1), 103..103),
        (base(500, 3), 501..501),
    ] {
        let disk = Arc::new(SimDisk::new(1));
        let mut opened = reopen(&disk);
        let entries: Vec<Entry> = (2..=101).map(|i| entry(i, 1, &[7; 20])).collect();
        commit(&mut opened, group(1, entries));
        commit(&mut opened, Group { base: Some(given), ..group(2, Vec::new()) });
        for start in 1..=3 {
            let reader = &opened.reader;
            assert_eq!(
                (reader.first(), reader.last()),
                (LogIndex(left.start), LogIndex(left.end - 1))
            );
            assert_eq!(reader.term(given.index), Some(given.term));
            assert_eq!(read_all(reader).len(), left.clone().count());
            if start > 1 {
                assert_eq!(opened.recovered.base, given);
                assert!(opened.recovered.hard_state.commit >= given.index);
            }
            drop(opened);
            disk.crash();
            opened = reopen(&disk);
        }
        let next = opened.reader.last().next();
        commit(&mut opened, group(1, vec![entry(next.get(), 3, b"behind")]));
        assert_eq!(opened.reader.last(), next);
    }
}

#[test]
fn install_and_truncation_leave_at_most_two_segments() {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = reopen(&disk);
    for index in 2..=101 {
        commit(&mut opened, group(index, vec![entry(index, 1, &[7; 150])]));
    }
    commit(&mut opened, Group { base: Some(base(80, 2)), ..group(200, Vec::new()) });
    cut(&mut opened, 80);
    assert!(segments(&disk).len() <= 2, "{:?}", segments(&disk));
    disk.crash();
    let opened = reopen(&disk);
    assert_eq!((opened.recovered.base, opened.recovered.last), (base(80, 2), LogIndex(80)));
}

#[test]
fn older_base_is_ignored_and_a_contradicting_one_ends_the_log() {
    let disk = Arc::new(SimDisk::new(1));
    let (mut opened, _) = long(&disk);
    opened.writer.cut(LogIndex(60)).unwrap();
    let first = opened.reader.first();
    commit(&mut opened, Group { base: Some(base(20, 1)), ..group(200, Vec::new()) });
    assert_eq!(opened.reader.first(), first);
    let contradicts = Group { base: Some(base(90, 2)), ..group(201, Vec::new()) };
    let error = opened.writer.commit(&[contradicts]).unwrap_err();
    assert!(error.to_string().contains("contradicts committed entries"), "{error}");
}

#[test]
fn reader_reports_entries_truncated_during_its_read() {
    let disk = Arc::new(SimDisk::new(1));
    drop(long(&disk));
    for opened_before in 0..4_u32 {
        // Truncates the log when the reader opens a later segment. The tuple contains the number of
        // files to open before the truncation, and the writer.
        let cutter = Arc::new(Mutex::new((opened_before, None::<LogWriter>)));
        let cuts = Arc::clone(&cutter);
        let disk = disk.copy().hooked(move |_, mode| {
            let (openings, writer) = &mut *cuts.lock().unwrap();
            if mode != OpenMode::Read {
                return;
            }
            if *openings == 0
                && let Some(mut writer) = writer.take()
            {
                writer.cut(LogIndex(60)).unwrap();
            }
            *openings = openings.saturating_sub(1);
        });
        let env = Env {
            clock: Arc::new(BootClock),
            entropy: Arc::new(Rng::new(42)),
            disk: Arc::new(disk),
            points: Arc::new(NoPoints),
        };
        let options = LogOptions { segment_bytes: 2048, reserve_bytes: 0, disk: None };
        let opened = open(&env, Path::new(DIR), identity(), options).unwrap();
        let reader = opened.reader;
        cutter.lock().unwrap().1 = Some(opened.writer);
        let result = reader.entries(LogIndex(2), LogIndex(102), usize::MAX);
        assert!(reader.first() > LogIndex(50), "nothing was cut off");
        let Err(LogError::OutOfRange { first, .. }) = result else { panic!("{result:?}") };
        assert_eq!(first, reader.first());
    }
}

#[test]
fn visible_truncation_is_made_durable_before_files_are_removed() {
    for steps in 0..24 {
        for seed in 0..8 {
            let disk = Arc::new(SimDisk::new(seed * 100 + steps));
            let (mut opened, entries) = long(&disk);
            disk.fail_next_sync();
            opened.writer.cut(LogIndex(60)).unwrap_err();
            drop(opened);
            disk.kill();
            disk.stop_after(steps);
            drop(try_open(&disk));
            disk.crash();
            let reader = reopen(&disk).reader;
            assert_eq!(read_all(&reader), entries[reader.first().get() as usize - 2..]);
        }
    }
}

#[test]
fn missing_front_is_damage_unless_truncated() {
    let disk = Arc::new(SimDisk::new(1));
    let (opened, entries) = long(&disk);
    drop(opened);
    let there = segments(&disk);
    for gone in 1..there.len() {
        let disk = disk.copy();
        for number in &there[..gone] {
            disk.remove(&path(*number)).unwrap();
        }
        let Err(LogError::Corrupt { segment, why, .. }) = try_open(&Arc::new(disk)) else {
            panic!("nobody misses {gone} segments")
        };
        // The file after the last segment in use is not part of the log.
        if segment == path(there[gone - 1]) {
            assert!(why.contains("the segment is missing"), "{why}");
        }
    }
    // Simulate a truncation that removed only some of the segments, or removed them in another
    // order.
    let copy = disk.copy();
    let disk = Arc::new(disk.copy());
    let mut opened = reopen(&disk);
    cut(&mut opened, 30);
    let first = segments(&disk)[0];
    let found_first = opened.reader.first();
    drop(opened);
    for left in 0..1_u32 << (first - 1) {
        let disk = Arc::new(disk.copy());
        for number in (1..first).filter(|number| left >> (number - 1) & 1 == 1) {
            disk.replace(&path(number), &copy.read(&path(number)).unwrap());
        }
        let opened = reopen(&disk);
        assert_eq!(opened.reader.first(), found_first, "{left:b}");
        assert_eq!(read_all(&opened.reader), entries[found_first.get() as usize - 2..]);
        assert_eq!(segments(&disk)[0], first);
    }
    // Remove one segment more than the log has truncated.
    let disk = Arc::new(disk.copy());
    disk.remove(&path(first)).unwrap();
    assert!(matches!(try_open(&disk), Err(LogError::Corrupt { .. })));
}

#[test]
fn corrupted_truncation_record_is_detected() {
    let disk = Arc::new(SimDisk::new(1));
    let (mut opened, _) = long(&disk);
    let last =
        *segments(&disk).iter().rev().find(|n| disk.read(&path(**n)).unwrap()[0] != 0).unwrap();
    let before = disk.read(&path(last)).unwrap();
    opened.writer.cut(LogIndex(60)).unwrap();
    drop(opened);
    let after = disk.read(&path(last)).unwrap();
    let record: Vec<usize> = (0..before.len()).filter(|at| before[*at] != after[*at]).collect();
    assert!(record.len() > 20);
    for at in record {
        for bit in 0..8 {
            let disk = Arc::new(disk.copy());
            disk.flip_bit(&path(last), at * 8 + bit);
            assert!(
                matches!(try_open(&disk), Err(LogError::Corrupt { .. })),
                "byte {at} bit {bit}"
            );
        }
    }
    // Remove the truncation record. The log then regards the removed segments as missing.
    disk.replace(&path(last), &before);
    let Err(LogError::Corrupt { why, .. }) = try_open(&disk) else { panic!("not missed") };
    assert_eq!(why, "the segment is missing");
}

#[test]
fn older_copy_of_a_segment_is_detected() {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = reopen(&disk);
    let mut copies: Vec<(u32, Vec<u8>)> = Vec::new();
    for index in 2..=80 {
        let committed = Some(hard_state(1 + index / 30, None, index));
        let group =
            Group { hard_state: committed, ..group(index, vec![entry(index, 1, &[1; 150])]) };
        commit(&mut opened, group);
        if index == 40 {
            opened.writer.cut(LogIndex(20)).unwrap();
        }
        for number in segments(&disk) {
            copies.push((number, disk.read(&path(number)).unwrap()));
        }
    }
    copies.dedup();
    drop(opened);
    let disk = disk.copy();
    let there = segments(&disk);
    let (mut refused, mut same) = (0, 0);
    for (number, bytes) in copies {
        // The segment in use must not be missing. The segment before the current one must not be
        // missing either, if only these two would be left.
        if !there.contains(&number) || number + 2 > *there.last().unwrap() {
            continue;
        }
        let disk = Arc::new(disk.copy());
        if disk.read(&path(number)).as_ref() == Some(&bytes) {
            same += 1;
            continue;
        }
        disk.replace(&path(number), &bytes);
        assert!(matches!(try_open(&disk), Err(LogError::Corrupt { .. })), "{number}");
        refused += 1;
    }
    assert!(refused > 20 && same > 5, "{refused} {same}");
}

#[test]
fn flipped_bit_in_a_truncated_log_is_rejected_or_harmless() {
    let disk = Arc::new(SimDisk::new(1));
    let (mut opened, _) = long(&disk);
    cut(&mut opened, 85);
    opened.writer.idle().unwrap();
    drop(opened);
    let disk = disk.copy();
    let content = LogContent::of(&reopen(&Arc::new(disk.copy())));
    let (mut refused, mut harmless) = (0, 0);
    for number in segments(&disk) {
        for at in 0..disk.read(&path(number)).unwrap().len() {
            let disk = Arc::new(disk.copy());
            disk.flip_bit(&path(number), at * 8 + at % 8);
            match try_open(&disk) {
                Ok(opened) => {
                    assert_eq!(LogContent::of(&opened), content, "{number}:{at}");
                    harmless += 1;
                }
                Err(LogError::Corrupt { .. }) => refused += 1,
                Err(error) => panic!("{number}:{at}: {error}"),
            }
        }
    }
    assert!(refused > 1000 && harmless > 100, "{refused} {harmless}");
}

#[test]
fn crash_during_truncations_and_installs_loses_no_later_entries() {
    for steps in 0.. {
        let mut finished = false;
        for seed in 0..4 {
            let disk = Arc::new(SimDisk::new(seed * 1000 + steps));
            disk.stop_after(steps);
            let (mut acked, mut next, mut cut) =
                (LogContent::default(), LogContent::default(), LogIndex(1));
            let mut life = || -> Result<(), LogError> {
                let mut opened = try_open(&disk)?;
                for number in 2..40 {
                    let index = acked.last() + 1;
                    let mut group = group(number, vec![entry(index, 1, &[number as u8; 150])]);
                    if number == 20 || number == 30 {
                        group.base = Some(base(index - 1 + number % 20, 1));
                        group.entries.clear();
                    }
                    let after = acked.after(&group);
                    group.hard_state = Some(hard_state(1, None, after.last()));
                    next = acked.after(&group);
                    let _proof = opened.writer.commit(std::slice::from_ref(&group))?.whole();
                    acked = next.clone();
                    if number % 10 == 5 || number % 10 == 1 {
                        cut = LogIndex(acked.last() - 4);
                        opened.writer.cut(cut)?;
                    }
                }
                Ok(())
            };
            finished = life().is_ok();
            disk.crash();
            let content = LogContent::of(&reopen(&disk));
            assert!(
                next.is_shown_by(&content, cut) || acked.is_shown_by(&content, cut),
                "steps {steps} seed {seed}: {content:?} instead of {acked:?}"
            );
        }
        if finished {
            assert!(steps > 150, "the life was too short to show anything: {steps}");
            break;
        }
    }
}

#[test]
fn log_owner_is_readable_without_opening() {
    let disk = Arc::new(SimDisk::new(1));
    let env = env(&disk, Arc::new(NoPoints));
    let dir = Path::new(DIR);
    assert_eq!(peek(&env, dir).unwrap(), None);
    disk.create_dir(dir).unwrap();
    assert_eq!(peek(&env, dir).unwrap(), None);
    let options = LogOptions { disk: Some(DiskId(77)), ..LogOptions::default() };
    let opened = open(&env, dir, identity(), LogOptions { reserve_bytes: 0, ..options }).unwrap();
    assert_eq!(opened.recovered.disk, DiskId(77));
    assert_eq!(peek(&env, dir).unwrap(), Some((identity(), DiskId(77))));
    drop(opened);
    let Err(error) = open(&env, dir, identity(), LogOptions { disk: Some(DiskId(78)), ..options })
    else {
        panic!("it was taken")
    };
    assert!(matches!(error, LogError::OtherDisk { .. }), "{error}");
    disk.flip_bit(&path(1), 99);
    assert!(matches!(peek(&env, dir), Err(LogError::Corrupt { .. })));
}
