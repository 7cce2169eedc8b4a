//! Tests of logs that are damaged at any byte. If one of three members has a damaged log, the
//! member starts, or refuses to start with a clear error, and the cluster loses nothing. A single
//! node refuses to start if data is damaged that a later record proves to be synced. The error
//! contains the file and the offset, and no file is changed. A torn tail is truncated.

use std::path::{Path, PathBuf};

use bowline::testing;
use bowline::{Blocking, Node, StartError, cluster::DataErrorKind};

use super::files::{
    Files, HEADER_BYTES, Records, config, count, has_everything, name_of, solo, three,
};
use super::say;

/// Starts a node on these files. Returns the number of rows, or the error.
fn start_on(dir: &Path, files: &Files) -> Result<u64, String> {
    files.put(dir);
    match Node::start(config(dir)).block() {
        Ok(node) => {
            let count = count(&node);
            assert!(testing::shutdown(node).block().hanging.is_empty());
            Ok(count)
        }
        Err(error @ StartError::Data { kind: DataErrorKind::Damaged, .. }) => {
            assert_eq!(&Files::of(dir), files, "it has changed what it refused");
            Err(error.to_string())
        }
        Err(error) => panic!("{error}"),
    }
}

/// Checks that an error has everything that an operator needs.
fn assert_clear(why: &str, segment: &Path) {
    let file = segment.to_str().unwrap();
    for words in ["log damaged at byte ", file, "nothing was changed", "replace the member"] {
        assert!(why.contains(words), "{why:?} lacks {words:?}");
    }
}

fn path_of(dir: &Path, segment: usize) -> PathBuf {
    dir.join(name_of(segment))
}

#[test]
fn single_node_rejects_damage_to_synced_bytes_and_truncates_the_rest() {
    let values = 12;
    let (dir, files) = solo(values, 40);
    let Records { end, vouched } = Records::of(1, files.segment(1));
    assert!(vouched > HEADER_BYTES + values * 48 && vouched < end, "{vouched} of {end}");
    let (mut refused, mut cut) = (0, 0);
    for at in 0..end {
        let damaged = files.with(1, |bytes| bytes[at] ^= 1 << (at % 8));
        match start_on(dir.path(), &damaged) {
            Err(why) => {
                assert_clear(&why, &path_of(dir.path(), 1));
                refused += 1;
            }
            Ok(rows) => {
                assert!(at >= vouched, "byte {at} of {vouched} vouched for has changed unnoticed");
                assert_eq!(rows, values as u64, "byte {at}: acknowledged data was cut off");
                cut += 1;
            }
        }
    }
    assert!(refused >= vouched && cut > 0, "{refused} refused, {cut} cut");
}

#[test]
fn torn_record_at_the_end_is_truncated() {
    let values = 12;
    let (dir, files) = solo(values, 40);
    let Records { end, .. } = Records::of(1, files.segment(1));
    // Append a part of an earlier record, or random bytes.
    let first = files.segment(1)[HEADER_BYTES..HEADER_BYTES + 60].to_vec();
    for length in [1, 8, 47, 48, 60] {
        for noise in [&first[..length], &vec![0xa5; length]] {
            let torn = files.with(1, |bytes| bytes[end..end + length].copy_from_slice(noise));
            assert_eq!(start_on(dir.path(), &torn), Ok(values as u64), "{length} bytes");
        }
    }
}

#[test]
fn single_node_rejects_short_zeroed_missing_or_foreign_segments() {
    let values = 60;
    let (dir, files) = solo(values, 3_000);
    let last = files.last();
    assert!(last >= 3, "{last} segments");
    let refused = |files: &Files, segment: usize| match start_on(dir.path(), files) {
        Ok(rows) => panic!("it starts, with {rows} rows, whatever happened to segment {segment}"),
        Err(why) => assert_clear(&why, &path_of(dir.path(), segment)),
    };
    for segment in 1..=last {
        let vouched = Records::of(segment, files.segment(segment)).vouched;
        let length = files.segment(segment).len();
        for bytes in [0, 40, HEADER_BYTES, length / 2, length - 1] {
            refused(&files.with(segment, |file| file.truncate(bytes)), segment);
        }
        for at in [0, HEADER_BYTES, vouched / 2] {
            let zeroed = files.with(segment, |file| file[at..at + 512].fill(0));
            // A segment with a zeroed header looks unused, and the records after it show that it is not.
            refused(&zeroed, segment);
        }
        let mut missing = files.clone();
        missing.0.remove(&name_of(segment));
        if (segment, last) != (1, 1) {
            refused(&missing, segment);
        }
        let mut swapped = files.clone();
        let other = files.segment(1 + segment % last).to_vec();
        swapped.0.insert(name_of(segment), other);
        refused(&swapped, segment);
    }
    // Restore an older copy of a segment that has been filled since.
    let full = Records::of(2, files.segment(2)).end;
    for at in [HEADER_BYTES, full / 2] {
        let start = at - at % 8;
        refused(&files.with(2, |file| file[start..].fill(0)), 2);
    }
    // Use a segment from a log of the same member that was created on another disk.
    let (_other, others) = solo(values, 3_000);
    let foreign = files.with(2, |file| *file = others.segment(2).to_vec());
    refused(&foreign, 2);
    assert_eq!(start_on(dir.path(), &files), Ok(values as u64), "without any of it, it starts");
}

/// A kind of damage to a file.
type Damage = fn(&mut Vec<u8>, usize);

const DAMAGES: [(&str, Damage); 3] = [
    ("a flipped bit", |file, at| file[at] ^= 1 << (at % 8)),
    ("zeros", |file, at| {
        let until = file.len().min(at + 512);
        file[at..until].fill(0);
    }),
    ("a cut", |file, at| file.truncate(at)),
];

#[test]
fn cluster_of_three_survives_any_damage_to_one_log() {
    let mut cluster = three();
    let mut keys = 0;
    for _ in 0..40 {
        cluster.node(keys % 3).client().put(format!("k{keys:04}"), "v").block().unwrap();
        keys += 1;
    }
    let victim = 1;
    let dir = cluster.data_dir(victim);
    let (mut started, mut refused, mut told_by_others) = (0, 0, 0);
    for sample in 0..8 {
        for (what, damage) in DAMAGES {
            cluster.kill(victim).block();
            let files = Files::of(&dir);
            let end = Records::of(1, files.segment(1)).end;
            // Each sample damages another position. One position is at the end of the data, and one is after the end.
            let at = match sample {
                7 => end + 8,
                6 => end - 4,
                sample => end * sample / 6,
            };
            files.with(1, |file| damage(file, at)).put(&dir);
            match cluster.restart(victim).block() {
                Ok(()) => started += 1,
                Err(error) => {
                    assert_clear(&error.to_string(), &path_of(&dir, 1));
                    refused += 1;
                }
            }
            let damage = format!("{what} at {at}");
            let others = |member: &usize| *member != victim;
            has_everything(&cluster, (0..3).filter(others), &mut keys, &damage);
            // If no record proves that the truncated part was synced, the member truncates it at
            // the start. But the member had acknowledged this part to the leader, and the leader
            // detects the loss.
            let victims = cluster.running().find(|(member, _)| *member == victim);
            match victims.map(|(_, node)| node.client().get("k0000").block()) {
                None => {}
                Some(Ok(row)) => assert!(row.is_some(), "m{victim} lost it, after {damage}"),
                Some(Err(error)) => {
                    let why = error.to_string();
                    assert!(why.contains("synced entries are lost"), "{why:?}, after {damage}");
                    cluster.kill(victim).block();
                    told_by_others += 1;
                }
            }
            if cluster.running().all(|(member, _)| member != victim) {
                files.put(&dir);
                cluster.restart(victim).block().unwrap();
            }
            has_everything(&cluster, 0..3, &mut keys, &format!("mending {damage}"));
        }
    }
    say(&format!(
        "{started} starts, {told_by_others} of them stopped by the leader; {refused} rejections"
    ));
    assert!(started >= 3 && refused >= 12, "{started} starts, {refused} rejections");
}
