//! Tests of the entries that the log keeps and returns.

use super::*;
use crate::env::{OpenMode, RealDisk};

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
fn committed_group_survives_a_crash_completely() {
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
    assert_eq!(LogContent::of(&reopen(&disk)), LogContent::default().after(&group));
}

#[test]
fn readers_see_durable_entries_and_get_at_least_one() {
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
    let mut content = LogContent::default();
    let groups = [
        group(1, (2..20).map(|i| entry(i, 1, b"old")).collect()),
        group(2, vec![entry(10, 2, b"new"), entry(11, 2, b"new")]),
        group(3, vec![entry(11, 3, b"newest")]),
    ];
    for group in &groups {
        let _proof = opened.writer.commit(std::slice::from_ref(group)).unwrap();
        content = content.after(group);
        assert_eq!(opened.reader.last().get(), content.last());
    }
    disk.crash();
    let opened = reopen(&disk);
    assert_eq!(opened.recovered.last, LogIndex(11));
    assert_eq!(LogContent::of(&opened), content);
}

#[test]
fn oversized_group_gets_a_longer_segment() {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = reopen(&disk);
    let big = group(1, vec![entry(2, 1, &[7; 700_000])]);
    let small = group(2, vec![entry(3, 1, &[8; 10])]);
    let _proof = opened.writer.commit(&[big.clone(), small.clone()]).unwrap();
    disk.crash();
    let opened = reopen(&disk);
    assert_eq!(LogContent::of(&opened), LogContent::default().after(&big).after(&small));
}

#[test]
fn log_works_on_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env { disk: Arc::new(RealDisk), ..Env::real() };
    let options = LogOptions { segment_bytes: 64 << 10, ..LogOptions::default() };
    let mut content = LogContent::default();
    let rng = Rng::new(9);
    for start in 1..=3 {
        let mut opened = open(&env, &dir.path().join("a/b"), identity(), options).unwrap();
        assert_eq!(opened.recovered.incarnation, Incarnation(start));
        assert_eq!(LogContent::of(&opened), content);
        assert!(matches!(
            open(&env, &dir.path().join("a/b"), identity(), options),
            Err(LogError::Locked { .. })
        ));
        for number in 1..100 {
            let group = any_group(&rng, number, &content);
            content = content.after(&group);
            let _proof = opened.writer.commit(&[group]).unwrap();
        }
        opened.writer.idle().unwrap();
    }
    let names = RealDisk.list(&dir.path().join("a/b")).unwrap();
    assert!(names.len() > 3 && names[0] == "0000000001.log", "{names:?}");
    RealDisk.open(&dir.path().join("a/b/LOCK"), OpenMode::Read).unwrap();
}
