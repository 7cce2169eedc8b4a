//! Tests of complete, torn, damaged and truncated files, of full disks, and of interrupted
//! transfers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;
use crate::codec::sample::Sample;
use crate::env::Disk;
use crate::model::{ClusterId, DiskId, LogIndex, SnapshotId, SnapshotRecord, StateHead, Term};
use crate::sim::SimDisk;

const CLUSTER: ClusterId = ClusterId(0xc1);

/// A simulated disk, also as the trait object that the module uses.
struct World {
    sim: Arc<SimDisk>,
    disk: Arc<dyn Disk>,
}

impl World {
    fn new(seed: u64) -> Self {
        Self::on(SimDisk::new(seed))
    }

    fn on(sim: SimDisk) -> Self {
        let sim = Arc::new(sim);
        let disk: Arc<dyn Disk> = Arc::<SimDisk>::clone(&sim);
        disk.create_dir(dir()).unwrap();
        Self { sim, disk }
    }

    fn folder(&self) -> Folder {
        Folder::open(&self.disk, dir(), CLUSTER).unwrap()
    }

    fn names(&self) -> Vec<String> {
        self.disk.list(dir()).unwrap()
    }

    /// Reads a file to its end, and returns its pieces or the error.
    fn read(&self, bytes: &[u8]) -> Result<Vec<SnapshotRecord>, SnapshotError> {
        let path = dir().join("read");
        self.sim.replace(&path, bytes);
        let mut reader = SnapshotReader::open(&self.disk, &path)?;
        reader.expect_cluster(CLUSTER)?;
        let mut records = Vec::new();
        while let Some(record) = reader.next()? {
            records.push(record);
        }
        assert_eq!(reader.next().unwrap(), None, "the end is the end");
        Ok(records)
    }
}

fn dir() -> &'static Path {
    Path::new("/data")
}

fn head(index: u64) -> StateHead {
    StateHead { index: LogIndex(index), term: Term(3), ..Sample::new(index).draw() }
}

fn some_pieces(seed: u64, count: u64) -> Vec<SnapshotRecord> {
    let mut sample = Sample::new(seed);
    (0..count).map(|_| sample.draw()).collect()
}

fn write(
    folder: &Folder,
    index: u64,
    records: &[SnapshotRecord],
) -> Result<SnapshotId, SnapshotError> {
    let mut writer = folder.begin(&head(index))?;
    for record in records {
        writer.write(record)?;
    }
    finish(writer.seal()?)
}

fn finish(mut check: Check) -> Result<SnapshotId, SnapshotError> {
    loop {
        if let Some(id) = check.step()? {
            return Ok(id);
        }
    }
}

/// Returns the bytes of a file, split at the starts of its chunks. The first part is the header.
fn chunks(index: u64, records: &[SnapshotRecord]) -> (Vec<Vec<u8>>, SnapshotId) {
    let (mut chunks, mut begin) = Chunks::begin(CLUSTER, &head(index));
    let first = begin.split_off(32);
    let mut parts = vec![begin, first];
    parts.extend(records.iter().map(|record| chunks.record(record)));
    let (end, id) = chunks.end();
    parts.push(end);
    (parts, id)
}

/// Appends a file to a partial one from its current length, in parts of `step` bytes.
fn feed(partial: &mut Partial, bytes: &[u8], step: usize) -> Result<(), SnapshotError> {
    while !partial.is_complete() {
        let from = partial.length() as usize;
        let part = &bytes[from..bytes.len().min(from + step)];
        assert_eq!(partial.append(from as u64, part)?, Appended::Written);
    }
    Ok(())
}

#[test]
fn snapshot_round_trips_and_is_identical_on_every_member() {
    for seed in 0..50 {
        let world = World::new(seed);
        let folder = world.folder();
        let records = some_pieces(seed, seed % 9);
        let id = write(&folder, 7, &records).unwrap();
        let (parts, named) = chunks(7, &records);
        assert_eq!(id, named);
        let found = folder.list().unwrap().remove(0);
        assert_eq!(world.sim.read(&found.path), Some(parts.concat()));
        assert_eq!(id.bytes as usize, parts.concat().len());
        let mut reader = folder.read(&found).unwrap();
        assert_eq!(*reader.head(), head(7));
        for record in records {
            assert_eq!(reader.next().unwrap(), Some(record));
        }
        assert_eq!((reader.next().unwrap(), reader.id()), (None, Some(id)));
        assert_eq!(folder.newest().unwrap().0, Some(id));
    }
}

#[test]
fn flipped_bit_in_a_snapshot_file_is_detected() {
    let world = World::new(1);
    let (parts, _) = chunks(7, &some_pieces(3, 6));
    let bytes = parts.concat();
    world.read(&bytes).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let error = world.read(&bytes).expect_err("damaged");
        let (SnapshotError::Damaged { offset, .. } | SnapshotError::Newer { offset, .. }) = error
        else {
            panic!("bit {bit}: {error}");
        };
        assert!(offset <= bit as u64 / 8, "bit {bit}: {error}");
    }
}

#[test]
fn truncated_or_extended_file_is_detected() {
    let world = World::new(1);
    let (parts, _) = chunks(7, &some_pieces(3, 6));
    let bytes = parts.concat();
    for end in 0..bytes.len() {
        let error = world.read(&bytes[..end]).expect_err("cut");
        assert!(error.is_damaged(), "{end} bytes: {error}");
        assert!(error.to_string().contains("/data/read is damaged at byte"), "{error}");
    }
    for more in [&[0][..], &[1; 100], &bytes] {
        assert!(world.read(&[&bytes, more].concat()).expect_err("goes on").is_damaged());
    }
}

/// A backup that was downloaded over the etcd API ends with padding and a hash. No other data may
/// follow a snapshot file.
#[test]
fn trailing_hash_is_accepted_only_in_a_received_backup() {
    let world = World::new(1);
    let (chunks, id) = chunks(9, &some_pieces(1, 20));
    let whole = chunks.concat();
    let padded = whole.len().next_multiple_of(512);
    let with_tail = |padding: u8, hash: usize| {
        let mut bytes = whole.clone();
        bytes.resize(padded, padding);
        bytes.resize(padded + hash, 0xab);
        bytes
    };
    let received = |bytes: &[u8]| {
        let path = dir().join("received");
        world.sim.replace(&path, bytes);
        let mut reader = SnapshotReader::open_received(&world.disk, &path)?;
        while reader.pass()? {}
        Ok::<_, SnapshotError>(reader.id().unwrap())
    };
    assert_eq!(received(&whole).unwrap(), id);
    assert_eq!(received(&with_tail(0, 32)).unwrap(), id);
    assert!(world.read(&with_tail(0, 32)).unwrap_err().to_string().contains("after the footer"));
    for (padding, hash) in [(1, 32), (0, 31), (0, 33), (0, 0), (0, 32 + 512)] {
        let error = received(&with_tail(padding, hash)).unwrap_err().to_string();
        assert!(error.contains("after the footer"), "{padding} {hash}: {error}");
    }
}

#[test]
fn missing_duplicate_moved_or_foreign_chunk_is_detected() {
    let world = World::new(1);
    let (parts, _) = chunks(7, &some_pieces(3, 6));
    let (others, _) = chunks(7, &some_pieces(4, 6));
    // Damage must be detected at its position and not only at the end, because a transfer continues
    // after the valid prefix.
    let damaged = |parts: Vec<Vec<u8>>, at: usize, what: &str| {
        let places = [at, at + 1]
            .map(|end| parts[..end.min(parts.len())].iter().map(Vec::len).sum::<usize>() as u64);
        match world.read(&parts.concat()).expect_err(what) {
            SnapshotError::Damaged { offset, .. } => assert!(places.contains(&offset), "{what}"),
            error => panic!("{what}: {error}"),
        }
    };
    for at in 0..parts.len() {
        let mut left_out = parts.clone();
        left_out.remove(at);
        damaged(left_out, at, "left out");
        let mut doubled = parts.clone();
        doubled.insert(at, parts[at].clone());
        damaged(doubled, at, "doubled");
        if at + 1 < parts.len() {
            let mut moved = parts.clone();
            moved.swap(at, at + 1);
            damaged(moved, at, "moved");
        }
        if parts[at] != others[at] {
            let mut mixed = parts.clone();
            mixed[at].clone_from(&others[at]);
            damaged(mixed, at, "does not match the file");
        }
    }
}

#[test]
fn a_file_of_another_cluster_or_a_newer_version_is_named_as_such() {
    let world = World::new(1);
    let (mut chunks, mut bytes) = Chunks::begin(ClusterId(9), &head(7));
    bytes.extend(chunks.end().0);
    let error = world.read(&bytes).unwrap_err();
    assert!(matches!(error, SnapshotError::Foreign { .. }), "{error}");
    let (parts, _) = self::chunks(7, &[]);
    let mut bytes = parts.concat();
    bytes[8] = 2;
    let error = world.read(&bytes).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("snapshot format 2 is newer than this build supports; upgrade this node"),
        "{error}"
    );
}

/// Cuts the power or kills the process after every step of writing.
#[test]
fn interrupted_write_leaves_the_old_or_the_new_snapshot() {
    let (old, new) = (some_pieces(1, 3), some_pieces(2, 4));
    for seed in 0..20 {
        for step in 0.. {
            let world = World::new(seed);
            let before = write(&world.folder(), 7, &old).unwrap();
            world.sim.stop_after(step);
            let written = write(&world.folder(), 9, &new);
            if seed % 4 == 0 {
                world.sim.kill()
            } else {
                world.sim.crash()
            }
            let folder = world.folder();
            let (found, wrong) = folder.newest().unwrap();
            assert!(wrong.is_empty(), "seed {seed}, step {step}: {wrong:?}");
            let found = found.expect("the older one, at least");
            match &written {
                Ok(id) => assert_eq!(found, *id, "seed {seed}: durable when reported durable"),
                Err(_) => assert!(found == before || found.index == LogIndex(9)),
            }
            assert!(world.names().iter().all(|name| name.ends_with(".snapshot")));
            assert_eq!(folder.remove_older(found, &[]).unwrap(), folder_count(found, before));
            assert_eq!(folder.list().unwrap().len(), 1);
            if written.is_ok() {
                assert!(step > 5, "there were steps to be stopped at");
                break;
            }
        }
    }
}

fn folder_count(found: SnapshotId, before: SnapshotId) -> usize {
    usize::from(found != before)
}

#[test]
fn transfer_interrupted_at_any_byte_resumes() {
    let (parts, id) = chunks(7, &some_pieces(3, 4));
    let bytes = parts.concat();
    for end in 0..=bytes.len() {
        let world = World::new(end as u64);
        let mut partial = world.folder().receive(id).unwrap();
        feed_until(&mut partial, &bytes, end);
        drop(partial);
        // In the first run, only the process ends; in the second run, the machine crashes.
        for crash in [false, true] {
            if crash {
                world.sim.crash()
            } else {
                world.sim.kill()
            }
            let partial = world.folder().receive(id).unwrap();
            assert!(partial.length() as usize <= end);
            let whole = |length: usize| {
                parts
                    .iter()
                    .scan(0, |sum, part| {
                        *sum += part.len();
                        Some(*sum)
                    })
                    .filter(|end| *end <= length && *end > 32)
                    .last()
                    .unwrap_or_default()
            };
            if !crash {
                assert_eq!(partial.length() as usize, whole(end), "{end} of {}", bytes.len());
            }
        }
        let mut partial = world.folder().receive(id).unwrap();
        feed(&mut partial, &bytes, 50).unwrap();
        assert_eq!(finish(partial.seal().unwrap()).unwrap(), id);
        world.sim.crash();
        assert_eq!(world.folder().newest().unwrap().0, Some(id));
        assert_eq!(world.names().len(), 1);
    }
}

fn feed_until(partial: &mut Partial, bytes: &[u8], end: usize) {
    while (partial.length() as usize) < end {
        let from = partial.length() as usize;
        partial.append(from as u64, &bytes[from..end.min(from + 100)]).unwrap();
    }
}

#[test]
fn part_at_the_wrong_offset_is_rejected() {
    let (parts, id) = chunks(7, &some_pieces(3, 4));
    let bytes = parts.concat();
    let world = World::new(1);
    let mut partial = world.folder().receive(id).unwrap();
    assert_eq!(partial.append(0, &bytes[..60]).unwrap(), Appended::Written);
    for (offset, part) in [(0, &bytes[..60]), (59, &bytes[59..]), (61, &bytes[61..70])] {
        assert_eq!(partial.append(offset, part).unwrap(), Appended::Elsewhere);
    }
    let beyond = [&bytes[60..], &[0]].concat();
    assert_eq!(partial.append(60, &beyond).unwrap(), Appended::Elsewhere);
    assert_eq!(partial.append(60, &bytes[60..]).unwrap(), Appended::Written);
    assert!(partial.is_complete());
    finish(partial.seal().unwrap()).unwrap();
}

#[test]
fn transfer_with_a_flipped_bit_is_discarded_and_restarted() {
    let (parts, id) = chunks(7, &some_pieces(3, 4));
    let bytes = parts.concat();
    for bit in (0..bytes.len() * 8).step_by(7) {
        let world = World::new(1);
        let mut partial = world.folder().receive(id).unwrap();
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        feed(&mut partial, &damaged, 1000).unwrap();
        let error = partial.seal().and_then(finish).expect_err("damaged");
        let newer = matches!(error, SnapshotError::Newer { .. });
        assert!(error.is_damaged() || newer, "bit {bit}: {error}");
        assert_eq!(world.names(), Vec::<String>::new(), "bit {bit}");
        let mut partial = world.folder().receive(id).unwrap();
        assert_eq!(partial.length(), 0);
        feed(&mut partial, &bytes, 1000).unwrap();
        assert_eq!(finish(partial.seal().unwrap()).unwrap(), id);
    }
}

#[test]
fn transfer_resumes_before_the_unreadable_part() {
    let (parts, id) = chunks(7, &some_pieces(3, 12));
    let bytes = parts.concat();
    for offset in (0..bytes.len()).step_by(512) {
        let world = World::new(1);
        let mut partial = world.folder().receive(id).unwrap();
        feed_until(&mut partial, &bytes, bytes.len() - 1);
        drop(partial);
        let name = world.names().remove(0);
        world.sim.damage_sector(&dir().join(name), offset);
        let mut partial = world.folder().receive(id).unwrap();
        assert!(partial.length() as usize <= offset);
        feed(&mut partial, &bytes, 100).unwrap();
        assert_eq!(finish(partial.seal().unwrap()).unwrap(), id);
    }
}

#[test]
fn transfer_with_a_failed_write_leaves_no_file() {
    let (parts, id) = chunks(7, &some_pieces(3, 4));
    let bytes = parts.concat();
    let world = World::new(1);
    let mut partial = world.folder().receive(id).unwrap();
    feed_until(&mut partial, &bytes, 200);
    world.sim.fail_writes();
    feed(&mut partial, &bytes, 100).unwrap_err();
    drop(partial);
    assert_eq!(world.names(), Vec::<String>::new());
}

#[test]
fn valid_file_of_another_snapshot_is_not_kept() {
    let (parts, other) = chunks(7, &some_pieces(4, 4));
    let bytes = parts.concat();
    let id = SnapshotId { checksum: other.checksum ^ 1, ..other };
    let world = World::new(1);
    let mut partial = world.folder().receive(id).unwrap();
    feed(&mut partial, &bytes, 1000).unwrap();
    assert!(finish(partial.seal().unwrap()).expect_err("another").is_damaged());
    assert_eq!(world.names(), Vec::<String>::new());
}

#[test]
fn receiving_another_snapshot_discards_the_first() {
    let (parts, id) = chunks(7, &some_pieces(3, 4));
    let (_, other) = chunks(8, &some_pieces(3, 4));
    let world = World::new(1);
    let mut partial = world.folder().receive(id).unwrap();
    feed_until(&mut partial, &parts.concat(), 200);
    drop(partial);
    assert_eq!(world.folder().receive(other).unwrap().length(), 0);
    assert_eq!(world.names().len(), 1);
    assert_eq!(world.folder().receive(id).unwrap().length(), 0, "it was given up");
}

#[test]
fn full_disk_is_reported_and_leaves_no_files() {
    let records = some_pieces(3, 12);
    let (parts, id) = chunks(7, &records);
    let bytes = parts.concat();
    for room in (0..bytes.len()).step_by(13) {
        let world = World::new(1);
        world.sim.limit(Some(room));
        let error = write(&world.folder(), 7, &records).expect_err("no room");
        assert!(error.is_no_space(), "{room}: {error}");
        assert_eq!(world.names(), Vec::<String>::new());
        let mut partial = world.folder().receive(id).unwrap();
        let next = |partial: &mut Partial| {
            let from = partial.length() as usize;
            partial.append(from as u64, &bytes[from..bytes.len().min(from + 64)]).unwrap()
        };
        while next(&mut partial) == Appended::Written {}
        assert!(next(&mut partial) == Appended::NoRoom && partial.length() as usize <= room);
        world.sim.limit(None);
        feed(&mut partial, &bytes, 64).unwrap();
        assert_eq!(finish(partial.seal().unwrap()).unwrap(), id);
        assert_eq!(write(&world.folder(), 9, &records).unwrap().index, LogIndex(9));
    }
}

#[test]
fn failed_sync_creates_no_snapshot() {
    let records = some_pieces(3, 4);
    let (parts, id) = chunks(7, &records);
    let world = World::new(1);
    world.sim.fail_next_sync();
    assert!(write(&world.folder(), 7, &records).is_err());
    assert_eq!(world.names(), Vec::<String>::new());
    let mut partial = world.folder().receive(id).unwrap();
    feed(&mut partial, &parts.concat(), 100).unwrap();
    world.sim.fail_next_sync();
    assert!(partial.seal().is_err());
    assert_eq!(world.names(), Vec::<String>::new());
}

#[test]
fn damaged_newest_snapshot_is_reported_and_the_older_one_found() {
    let world = World::new(1);
    let folder = world.folder();
    let older = write(&folder, 7, &some_pieces(1, 3)).unwrap();
    write(&folder, 9, &some_pieces(2, 3)).unwrap();
    let newest = folder.list().unwrap().remove(0);
    assert_eq!(newest.index, LogIndex(9));
    world.sim.flip_bit(&newest.path, 1000);
    let (found, wrong) = folder.newest().unwrap();
    assert_eq!(found, Some(older));
    assert!(wrong.len() == 1 && wrong[0].is_damaged(), "{wrong:?}");
    folder.discard(&newest).unwrap();
    assert_eq!(folder.list().unwrap().len(), 1);
    // A file under the name of another snapshot counts as damaged too.
    let bytes = world.sim.read(&folder.list().unwrap()[0].path).unwrap();
    world.sim.replace(&newest.path, &bytes);
    assert_eq!(folder.newest().unwrap().1.len(), 1);
}

#[test]
fn removed_snapshot_stays_readable_while_being_sent() {
    let world = World::new(1);
    let folder = world.folder();
    let older = write(&folder, 7, &some_pieces(1, 5)).unwrap();
    let bytes = world.sim.read(&folder.list().unwrap()[0].path).unwrap();
    let source = folder.source(older).unwrap();
    assert_eq!(source.id(), older);
    let newer = write(&folder, 9, &some_pieces(2, 3)).unwrap();
    assert_eq!(folder.remove_older(newer, &[]).unwrap(), 1);
    let mut sent = Vec::new();
    loop {
        let part = source.part(sent.len() as u64, 77).unwrap();
        if part.is_empty() {
            break;
        }
        sent.extend_from_slice(&part);
    }
    assert_eq!(sent, bytes);
    assert!(source.part(u64::MAX, 77).unwrap().is_empty());
    assert!(folder.source(older).is_err(), "gone");
    let other = SnapshotId { bytes: newer.bytes + 1, ..newer };
    assert!(folder.source(other).is_err_and(|error| error.is_damaged()), "another file");
}

#[test]
fn two_backups_to_one_path_do_not_collide() {
    let world = World::new(1);
    let (folder, path) = (world.folder(), dir().join("shared.backup"));
    let begin = |disk| folder.begin_at(&path, DiskId(disk), &head(7)).unwrap();
    let mut whole = begin(1);
    for record in some_pieces(3, 4) {
        whole.write(&record).unwrap();
    }
    // Another member starts to write while the complete file of the first member is being checked.
    let check = whole.seal().unwrap();
    let unfinished = begin(2);
    let id = finish(check).unwrap();
    let reader = SnapshotReader::open(&world.disk, &path).unwrap();
    assert_eq!(reader.bytes(), id.bytes, "what it says it has written is there");
    drop(unfinished);
    assert_eq!(world.names(), ["shared.backup"]);
    // A member replaces an incomplete file that it has left behind itself.
    std::mem::forget(begin(2));
    assert_eq!(world.names().len(), 2);
    finish(begin(2).seal().unwrap()).unwrap();
    assert_eq!(world.names(), ["shared.backup"]);
}

#[test]
fn foreign_files_in_the_folder_are_kept() {
    let world = World::new(1);
    let names = [
        "log-1",
        "snap-",
        "snap-7-3.snapshot",
        "snapshot",
        "snap-zzzzzzzzzzzzzzzz-0000000000000003.snapshot",
        "x.partial",
        "x.writing",
    ];
    for name in names {
        world.sim.replace(&dir().join(PathBuf::from(name)), b"mine");
    }
    let folder = world.folder();
    let id = write(&folder, 7, &[]).unwrap();
    let _ = folder.receive(SnapshotId { index: LogIndex(8), ..id }).unwrap();
    folder.remove_older(SnapshotId { index: LogIndex(9), ..id }, &[]).unwrap();
    let mut expected = names.map(str::to_owned).to_vec();
    expected.sort();
    assert_eq!(world.names(), expected);
}

#[test]
fn footer_with_a_wrong_record_count_is_damage() {
    use super::format::{Sums, kind};
    use crate::model::PieceCounts;
    for (rows, is_whole) in [(0, true), (1, false)] {
        let (mut parts, _) = chunks(7, &[]);
        let mut sums = Sums::begin(&parts[0]);
        let crc = u32::from_le_bytes(parts[1][4..8].try_into().unwrap());
        sums.pass(&parts[1], crc);
        let footer = sums.footer(PieceCounts { rows, ..PieceCounts::default() });
        let content = [&[kind::FOOTER], &footer.encoded()[..]].concat();
        let length = content.len() as u32;
        let crc = sums.next(length, &content);
        parts[2] = [&length.to_le_bytes()[..], &crc.to_le_bytes(), &content].concat();
        let read = World::new(1).read(&parts.concat());
        assert_eq!(read.is_ok(), is_whole, "{read:?}");
    }
}
