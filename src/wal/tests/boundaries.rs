//! Tests with data larger than each internal buffer: the search window for records, a single read
//! of a segment, and the slices in which a new segment is zeroed. The other tests stay below these
//! sizes.

use super::super::format::RECORD_BYTES;
use super::super::scan::{self, CHUNK_BYTES, FIRST_CHUNK_BYTES};
use super::super::segment::{self, SLICE_BYTES};
use super::*;
use crate::env::OpenMode;

const LARGE_SEGMENT: u64 = 1 << 20;

fn open_large(disk: &Arc<SimDisk>) -> Result<Opened, LogError> {
    let options = LogOptions { segment_bytes: LARGE_SEGMENT, reserve_bytes: 0, disk: None };
    open(&env(disk, Arc::new(NoPoints)), Path::new(DIR), identity(), options)
}

/// Returns a log of one large segment, synced to its end, and the offsets of its records.
fn one_large_segment() -> (SimDisk, Vec<usize>) {
    let disk = Arc::new(SimDisk::new(3));
    let rng = Rng::new(5);
    let mut opened = open_large(&disk).unwrap();
    for number in 2..1_200 {
        let data: Vec<u8> = (0..8 * rng.below(60)).map(|_| rng.next_u64() as u8).collect();
        let _proof = opened.writer.commit(&[group(number, vec![entry(number, 1, &data)])]).unwrap();
    }
    opened.writer.idle().unwrap();
    drop(opened);
    let bytes = disk.read(&path(1)).unwrap();
    assert_eq!(segments(&disk), [1], "all of it is in one segment");
    let is_record = |at: &usize| bytes[*at..].starts_with(b"BLr\x01");
    let records: Vec<usize> = (0..bytes.len()).step_by(8).filter(is_record).collect();
    (disk.copy(), records)
}

/// Damage begins at one record. The only intact record after the damage crosses the end of the
/// first search window.
#[test]
fn damage_is_detected_by_a_record_across_two_windows() {
    let (disk, records) = one_large_segment();
    let bytes = disk.read(&path(1)).unwrap();
    let mut places = std::collections::BTreeSet::new();
    for &from in &records[3..] {
        let window_end = from + CHUNK_BYTES as usize;
        let across = |at: &&usize| (window_end - RECORD_BYTES..=window_end).contains(*at);
        let Some(&witness) = records.iter().find(across) else { continue };
        if !places.insert(window_end - witness) {
            continue;
        }
        let mut damaged = bytes.clone();
        for (at, byte) in damaged.iter_mut().enumerate().skip(from) {
            if !(witness..witness + RECORD_BYTES).contains(&at) {
                *byte = 0xa5;
            }
        }
        let disk = disk.copy();
        disk.replace(&path(1), &damaged);
        let error = open_large(&Arc::new(disk)).err();
        let is_refused = matches!(error, Some(LogError::Corrupt { .. }));
        assert!(is_refused, "{witness} in {window_end}: {error:?}");
    }
    assert_eq!(
        places.len(),
        RECORD_BYTES / 8 + 1,
        "every place of a record across the end: {places:?}"
    );
}

#[test]
fn segment_read_in_many_chunks_is_complete() {
    let disk = Arc::new(SimDisk::new(3));
    let mut opened = open_large(&disk).unwrap();
    let (first, most) = (FIRST_CHUNK_BYTES as usize, CHUNK_BYTES as usize);
    let sizes =
        [first - 49, first - 48, first, most - 49, most - 48, most - 47, most, most * 2 + 8, 1];
    let mut written = Vec::new();
    for (number, size) in (2..).zip(sizes.into_iter().cycle().take(3 * sizes.len())) {
        let data: Vec<u8> = (0..size).map(|at| (at as u64 * 31 + number) as u8).collect();
        written.push(entry(number, 1, &data));
        let _proof =
            opened.writer.commit(&[group(number, vec![written.last().unwrap().clone()])]).unwrap();
    }
    assert_eq!(model::read_all(&opened.reader), written);
    drop(opened);
    disk.crash();
    let opened = open_large(&disk).unwrap();
    assert_eq!(model::read_all(&opened.reader), written);
    let (from, to) = (LogIndex(9), LogIndex(12));
    assert_eq!(opened.reader.entries(from, to, usize::MAX).unwrap(), written[7..10]);
    assert!(segments(&disk).len() > 2);
}

#[test]
fn damage_search_covers_every_window() {
    let disk = SimDisk::new(3);
    let name = path(1);
    disk.create_dir(Path::new(DIR)).unwrap();
    let file = disk.open(&name, OpenMode::CreateNew).unwrap();
    let length = 3 * CHUNK_BYTES + 24;
    file.write_all_at(&vec![0; length as usize], 0).unwrap();
    for last in
        [0, 8, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 47, length - 1]
    {
        file.write_all_at(&[7], last).unwrap();
        let rest = scan::search(&*file, 1, 0).unwrap();
        assert_eq!((rest.used_until, rest.witness), (last + 1, None));
        file.write_all_at(&[0], last).unwrap();
    }
}

#[test]
fn segment_is_zeroed_exactly_within_its_range() {
    let disk = SimDisk::new(3);
    disk.create_dir(Path::new(DIR)).unwrap();
    let file = disk.open(&path(1), OpenMode::CreateNew).unwrap();
    let length = 3 * SLICE_BYTES as usize;
    for (from, to) in
        [(0, SLICE_BYTES), (5, SLICE_BYTES + 5), (3, 2 * SLICE_BYTES + 3), (8, 2 * SLICE_BYTES - 1)]
    {
        file.write_all_at(&vec![0xff; length], 0).unwrap();
        segment::fill(&*file, from, to).unwrap();
        let bytes = disk.read(&path(1)).unwrap();
        for (at, byte) in bytes.iter().enumerate() {
            let is_zeroed = (from as usize..to as usize).contains(&at);
            assert_eq!(*byte == 0, is_zeroed, "byte {at} of {from}..{to}");
        }
    }
}

/// One call follows at most 256 samples, about 16 MiB of log. Later calls return the rest.
#[test]
fn long_log_is_read_by_several_calls_without_a_gap() {
    const ENTRIES: u64 = 300;
    let disk = Arc::new(SimDisk::new(3));
    let mut opened = open_large(&disk).unwrap();
    for number in (2..ENTRIES + 2).step_by(10) {
        let entries =
            (number..number + 10).map(|index| entry(index, 1, &vec![index as u8; 64 << 10]));
        let _proof = opened.writer.commit(&[group(number, entries.collect())]).unwrap();
    }
    let (mut next, mut calls, end) = (LogIndex(2), 0, LogIndex(ENTRIES + 2));
    while next < end {
        let entries = opened.reader.entries(next, end, usize::MAX).unwrap();
        for read in &entries {
            assert_eq!((read.index, read.data[0]), (next, next.get() as u8));
            next = next.next();
        }
        assert!(!entries.is_empty());
        calls += 1;
    }
    assert_eq!(calls, 2);
}
