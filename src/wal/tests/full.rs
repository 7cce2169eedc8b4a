//! Tests with a full disk.

use super::*;

fn filler(number: u64) -> Group {
    Group {
        hard_state: Some(hard_state(1, Some(1), number)),
        ..group(number, vec![entry(number, 1, &[number as u8; 150])])
    }
}

/// Fills the disk until a group waits. Returns the number of the first group that waits.
fn fill_up(opened: &mut Opened, from: u64) -> u64 {
    (from..from + 200)
        .find(|number| opened.writer.commit(&[filler(*number)]).unwrap().waiting > 0)
        .unwrap()
}

#[test]
fn groups_wait_on_a_full_disk_and_continue_with_space() {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = reopen(&disk);
    disk.limit(Some(5000));
    let first = fill_up(&mut opened, 2);
    assert!(first > 7, "two segments should have been filled first: {first}");
    assert_eq!(opened.writer.space(), Space::Low);
    // Groups before the first one that does not fit are still written.
    let small = Group {
        number: first,
        hard_state: Some(hard_state(2, None, first - 1)),
        ..Group::default()
    };
    let committed = opened.writer.commit(&[small.clone(), filler(first), filler(first + 1)]);
    let committed = committed.unwrap();
    assert_eq!(committed.waiting, 2);
    assert_eq!(committed.proof.unwrap().number(), first - 1, "another group of its number waits");
    assert_eq!(opened.reader.last(), LogIndex(first - 1));
    let waits: Vec<Group> =
        (first..first + 9).map(|number| Group { hard_state: None, ..filler(number) }).collect();
    for _ in 0..3 {
        let committed = opened.writer.commit(&waits).unwrap();
        assert!(committed.proof.is_none() && committed.waiting == 9);
        opened.writer.idle().unwrap();
    }
    disk.limit(None);
    assert_eq!(opened.writer.commit(&waits).unwrap().whole().number(), first + 8);
    while opened.writer.idle().unwrap() {}
    assert_eq!(opened.writer.space(), Space::Plenty);
    disk.crash();
    assert_eq!(reopen(&disk).recovered.last, LogIndex(first + 8));
}

#[test]
fn reserve_is_used_last_and_recreated_with_space() {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = open_with(&disk, Arc::new(NoPoints), 4096).unwrap();
    while opened.writer.idle().unwrap() {}
    let reserve = Path::new(DIR).join("reserve");
    assert_eq!(disk.read(&reserve), Some(vec![0; 4096]));
    assert_eq!(opened.writer.space(), Space::Plenty);
    disk.limit(Some(disk.used()));
    let mut low = None;
    let mut number = 2;
    while opened.writer.commit(&[filler(number)]).unwrap().waiting == 0 {
        if opened.writer.space() == Space::Low {
            low.get_or_insert(number);
        }
        number += 1;
    }
    let low = low.unwrap();
    assert!(number - low > 12, "low at {low}, full at {number}: the reserve is missing");
    assert_eq!(disk.read(&reserve), None);
    // The log can be opened on a full disk as long as the segment has space for the incarnation
    // record.
    drop(opened);
    disk.crash();
    let mut starts = 0;
    let error = loop {
        match open_with(&disk, Arc::new(NoPoints), 4096) {
            Ok(opened) => assert_eq!(opened.recovered.last, LogIndex(number - 1)),
            Err(error) => break error,
        }
        starts += 1;
        assert!(starts < 10);
    };
    assert!(matches!(error, LogError::NoRoom { .. }), "{error}");
    assert!(error.to_string().contains("no data is lost"));
    disk.limit(None);
    let mut opened = open_with(&disk, Arc::new(NoPoints), 4096).unwrap();
    let _proof = opened.writer.commit(&[filler(number)]).unwrap().whole();
    while opened.writer.idle().unwrap() {}
    assert_eq!(disk.read(&reserve), Some(vec![0; 4096]));
    disk.crash();
    let opened = open_with(&disk, Arc::new(NoPoints), 4096).unwrap();
    assert_eq!(opened.recovered.last, LogIndex(number));
}

#[test]
fn disk_filled_and_freed_repeatedly_loses_nothing() {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = open_with(&disk, Arc::new(NoPoints), 2048).unwrap();
    disk.limit(Some(20_000));
    let mut number = 2;
    for round in 0..100 {
        number = fill_up(&mut opened, number);
        assert_eq!(opened.writer.space(), Space::Low);
        opened.writer.cut(LogIndex(number - 3)).unwrap();
        assert!(
            opened.reader.first() > LogIndex(number - 30),
            "round {round}: nothing was cut off"
        );
        let _proof = opened.writer.commit(&[filler(number)]).unwrap().whole();
        number += 1;
        while opened.writer.idle().unwrap() {}
        assert_eq!(opened.writer.space(), Space::Plenty, "round {round}");
        if round % 7 == 0 {
            drop(opened);
            disk.crash();
            opened = open_with(&disk, Arc::new(NoPoints), 2048).unwrap();
        }
        assert_eq!(opened.reader.last(), LogIndex(number - 1));
    }
}

#[test]
fn truncation_has_room_in_a_full_log() {
    a_cut_finds_room(false);
}

#[test]
fn truncation_has_room_after_an_idle_period() {
    a_cut_finds_room(true);
}

fn a_cut_finds_room(idle: bool) {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = reopen(&disk);
    disk.limit(Some(9000));
    let number = fill_up(&mut opened, 2);
    // Fill the rest of the segment with the smallest possible groups.
    let vow = |term| Group {
        hard_state: Some(hard_state(term, None, number - 1)),
        ..group(999, Vec::new())
    };
    let full = (2..100).find(|term| opened.writer.commit(&[vow(*term)]).unwrap().waiting > 0);
    assert!(full.is_some());
    if idle {
        // A watermark now proves that the last group was synced.
        while opened.writer.idle().unwrap() {}
    }
    opened.writer.cut(LogIndex(number - 1)).unwrap();
    assert!(opened.reader.first() > LogIndex(number / 2), "it was not cut off");
    // The prepared files exist again as before, and the log continues.
    while opened.writer.idle().unwrap() {}
    let _proof = opened.writer.commit(&[vow(100)]).unwrap().whole();
    disk.crash();
    assert_eq!(reopen(&disk).recovered.hard_state.term, Term(100));
}

#[test]
fn returned_space_is_used_for_the_next_segment() {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = reopen(&disk);
    disk.limit(Some(2500));
    let _proof = opened.writer.commit(&[filler(2)]).unwrap().whole();
    assert_eq!(opened.writer.space(), Space::Low);
    disk.limit(None);
    for number in 3..60 {
        let _proof = opened.writer.commit(&[filler(number)]).unwrap().whole();
    }
}

#[test]
fn oversized_group_waits_and_keeps_the_prepared_segments() {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = open_with(&disk, Arc::new(NoPoints), 2048).unwrap();
    for number in 2..9 {
        let _proof = opened.writer.commit(&[filler(number)]).unwrap().whole();
    }
    while opened.writer.idle().unwrap() {}
    disk.limit(Some(disk.used() + 1000));
    let large = group(9, vec![entry(9, 1, &[1; 5000])]);
    assert_eq!(opened.writer.commit(std::slice::from_ref(&large)).unwrap().waiting, 1);
    assert_eq!(opened.writer.space(), Space::Low);
    // The log can still write to the files that it prepared earlier.
    let end = fill_up(&mut opened, 9);
    assert!(end > 13, "{end}");
    disk.limit(None);
    let large = group(end, vec![entry(end, 1, &[1; 5000])]);
    let _proof = opened.writer.commit(&[large]).unwrap().whole();
    disk.crash();
    assert_eq!(reopen(&disk).recovered.last, LogIndex(end));
}
