//! Tests with a disk that violates its contract: it loses bytes or returns other bytes.

use super::*;

/// A log of several segments, all synced, with its contents before and after the last group, and
/// the names of its files.
struct Written {
    disk: SimDisk,
    before: LogContent,
    last: LogContent,
    files: Vec<PathBuf>,
}

const GROUPS: u64 = 8;

fn written(marked: bool) -> Written {
    let disk = Arc::new(SimDisk::new(3));
    let rng = Rng::new(5);
    let mut opened = reopen(&disk);
    let (mut before, mut last) = (LogContent::default(), LogContent::default());
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
    if marked {
        opened.writer.idle().unwrap();
    }
    drop(opened);
    let names = disk.list(Path::new(DIR)).unwrap();
    let files = names.iter().filter(|name| name.ends_with(".log"));
    let files: Vec<PathBuf> = files.map(|name| Path::new(DIR).join(name)).collect();
    assert!(files.len() > 3, "{files:?}");
    Written { disk: disk.copy(), before, last, files }
}

/// Counts of each outcome.
#[derive(Default, Debug)]
struct Outcomes {
    refused: u32,
    whole: u32,
    cut: u32,
}

impl Outcomes {
    /// Opens a damaged log and checks the outcome.
    fn check(&mut self, written: &Written, disk: SimDisk, marked: bool, what: &str) {
        let disk = Arc::new(disk);
        match try_open(&disk) {
            Err(LogError::Corrupt { .. }) => self.refused += 1,
            Err(error) => panic!("{what}: {error}"),
            Ok(opened) => {
                let content = LogContent::of(&opened);
                if content == written.last {
                    self.whole += 1;
                } else {
                    assert!(!marked, "{what}: a synced group is silently gone");
                    assert_eq!(content, written.before, "{what}");
                    assert!(opened.recovered.torn.is_some(), "{what}: cut without a report");
                    self.cut += 1;
                }
                disk.crash();
                drop(opened);
                assert_eq!(
                    LogContent::of(&reopen(&disk)),
                    content,
                    "{what}: a second start differs"
                );
            }
        }
    }
}

#[test]
fn flipped_bit_is_rejected_harmless_or_in_the_unacknowledged_tail() {
    for marked in [true, false] {
        let written = written(marked);
        let mut outcomes = Outcomes::default();
        for file in &written.files {
            let bytes = written.disk.read(file).unwrap();
            for (at, byte) in bytes.iter().enumerate() {
                // Skip most bytes inside a long run of zeros, because damage to each of them has
                // the same effect.
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
                let what = format!("byte {at} of {}, marked {marked}", file.display());
                outcomes.check(&written, disk, marked, &what);
            }
        }
        assert!(outcomes.refused > 1000 && outcomes.whole > 100, "{outcomes:?}");
        assert_eq!(outcomes.cut > 0, !marked, "{outcomes:?}");
    }
}

#[test]
fn truncated_or_lost_file_is_rejected_unless_unused() {
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
        outcomes.check(&written, disk, true, "the unused segment is cut short");
    }
    assert_eq!(outcomes.refused, 0);
}

#[test]
fn lost_new_segment_is_detected() {
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
fn corrupted_term_or_vote_is_never_forgotten() {
    let disk = Arc::new(SimDisk::new(3));
    let mut opened = reopen(&disk);
    let mut last = HardState::default();
    for term in 2..12 {
        last = hard_state(term, Some(1 + term % 3), 1);
        let group = Group { number: term, hard_state: Some(last.clone()), ..Group::default() };
        let _proof = opened.writer.commit(&[group]).unwrap();
    }
    // Append entries, which contain no vote, until the log continues in later segments.
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
fn swapped_or_stale_sectors_are_detected() {
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
                outcomes.check(&written, disk, true, &what);
            }
        }
    }
    assert!(outcomes.refused > 10, "{outcomes:?}");
}

#[test]
fn lost_write_is_detected_after_a_later_write() {
    let disk = Arc::new(SimDisk::new(3));
    let mut opened = reopen(&disk);
    let images: Vec<Vec<u8>> = (2..=4)
        .map(|i| {
            let _proof = opened.writer.commit(&[group(i, vec![entry(i, 1, &[1; 8])])]).unwrap();
            disk.read(&path(1)).unwrap()
        })
        .collect();
    // The last group reached the disk, but the group before it did not.
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
fn damage_to_an_open_log_is_detected_by_its_reader() {
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
