//! Tests of images, of machines rebuilt from images, and of installs while other threads read.

use std::thread;

use super::*;
use crate::codec::sample::Sample;
use crate::model::{DiskId, KeyRange, RowChange};

fn pieces(mut image: Image, bytes_max: usize) -> (StateHead, Vec<SnapshotRecord>) {
    let pieces = std::iter::from_fn(|| image.next(bytes_max).unwrap()).collect();
    (image.head().clone(), pieces)
}

fn founded() -> World {
    let mut world = World::new();
    world.machine.found(Members::founded(&(1..=3).map(|n| (node(n), DiskId(n.into()))).collect()));
    world
}

fn everything(reader: &Reader) -> (RangeReply, Vec<Change>) {
    let rows = reader.range(&Range::new(KeyRange::all())).unwrap();
    (rows, reader.events(&KeyRange::all(), reader.compacted(), usize::MAX).unwrap().changes)
}

#[test]
fn an_empty_store_is_restored() {
    let world = founded();
    let machine = restored(&world.machine);
    assert_eq!(machine.digest(), world.machine.digest());
    assert_eq!(machine.members(), world.machine.members());
    assert_eq!(machine.reader().members(), world.reader.members());
}

#[test]
fn restored_store_recounts_its_bytes_correctly() {
    let mut world = founded();
    for number in 0..40 {
        world.put(&format!("k{}", number % 7), &"x".repeat(number * 60));
    }
    world.delete("k3".into());
    assert_eq!(restored(&world.machine).reader().bytes(), world.reader.bytes());
    world.run(Command::Compact(world.reader.revision())).unwrap();
    while world.machine.sweep(1000) {}
    assert_eq!(restored(&world.machine).reader().bytes(), world.reader.bytes());
    world.delete(KeyRange::all());
    world.run(Command::Compact(world.reader.revision())).unwrap();
    while world.machine.sweep(1000) {}
    assert_eq!(world.reader.bytes(), 0);
}

/// An image contains rows that have been swept, or may be swept while it is read.
#[test]
fn image_is_unaffected_by_later_writes_and_compactions() {
    for bytes_max in [1, 500, 20_000] {
        let mut world = founded();
        for number in 0..700 {
            world.put(&format!("k{:03}", number % 300), &number.to_string());
        }
        world.delete(KeyRange::between("k100", "k150"));
        world.run(Command::Compact(Revision(400))).unwrap();
        while world.machine.sweep(1000) {}
        let (digest, then) = (world.machine.digest(), everything(&world.reader));
        let mut image = world.machine.image();
        let (head, mut found) = (image.head().clone(), Vec::new());
        let mut number = 0;
        while let Some(piece) = image.next(bytes_max).unwrap() {
            found.push(piece);
            number += 1;
            if number % 40 == 1 {
                world.put(&format!("k{:03}", number % 300), "later");
                world.run(Command::Compact(world.reader.revision())).unwrap();
                world.machine.sweep(5000);
            }
        }
        drop(image);
        let machine = Machine::restore(MachineOptions::default(), head, found).unwrap();
        assert_eq!(machine.digest(), digest);
        assert_eq!(everything(&machine.reader()), then);
        // The sweep no longer waits for the image.
        while world.machine.sweep(1000) {}
        assert_eq!(world.machine.store.shared().state().history.first(), world.reader.compacted());
    }
}

#[test]
fn corrupted_row_is_not_copied() {
    let mut world = founded();
    world.put("a", "1");
    world.put("b", "2");
    world.run(Command::Compact(Revision(3))).unwrap();
    world.machine.rot(b"b");
    let mut image = world.machine.image();
    let error = std::iter::from_fn(|| image.next(1).transpose()).find_map(Result::err);
    assert!(matches!(error, Some(ImageError::Fault(Fault::Rotten { .. }))), "{error:?}");
}

#[test]
fn corrupted_state_outside_the_rows_is_not_copied() {
    type Change = fn(&mut World);
    let lease: Change = |world| world.machine.rot_lease();
    let member: Change = |world| world.machine.members = Arc::default();
    let version: Change = |world| world.machine.version = ClusterVersion(7);
    let nothing: Change = |_| {};
    for (is_seen, change) in [(true, lease), (true, member), (true, version), (false, nothing)] {
        let mut world = founded();
        world.put("a", "1");
        let ttl = Duration::from_secs(9);
        world.run(Command::Grant { id: None, ttl, session: None }).unwrap();
        change(&mut world);
        let mut image = world.machine.image();
        let error = std::iter::from_fn(|| image.next(1).transpose()).find_map(Result::err);
        let drifted = matches!(error, Some(ImageError::Fault(Fault::Drifted { .. })));
        assert_eq!(drifted, is_seen, "{error:?}");
    }
}

#[test]
fn state_that_differs_from_its_digest_is_not_restored() {
    let mut world = founded();
    world.put("a", "1");
    let (head, mut pieces) = pieces(world.machine.image(), 100);
    let SnapshotRecord::Changes(changes) = &mut pieces[0] else { panic!("changes") };
    let RowChange::Put(kv) = &mut changes[0] else { panic!("a put") };
    kv.value = Bytes::from_static(b"2");
    let expected = head.digest;
    let error = Machine::restore(MachineOptions::default(), head, pieces).unwrap_err();
    assert!(matches!(error, RestoreError::Digest { expected: e, .. } if e == expected), "{error}");
}

#[test]
fn released_image_keeps_no_rows_and_returns_an_error() {
    let mut world = World::new();
    for _ in 0..50 {
        world.put("k", "v");
    }
    let mut image = world.machine.image();
    let release = image.release();
    for _ in 0..50 {
        world.put("k", "v");
    }
    world.run(Command::Compact(world.machine.revision())).unwrap();
    let swept = |world: &mut World| {
        while world.machine.sweep(1000) {}
        world.machine.is_swept()
    };
    assert!(!swept(&mut world), "the image is not read yet");
    release.release_image();
    assert!(swept(&mut world));
    assert_eq!(image.next(100), Err(ImageError::LetGo));
    drop(image);
    release.release_image();
}

#[test]
fn image_of_a_replaced_state_returns_an_error() {
    let mut world = founded();
    world.put("a", "1");
    let mut image = world.machine.image();
    let mut later = restored(&world.machine);
    later.apply(LogIndex(3), Term(2), vec![]).unwrap();
    let old = world.machine.install(later).unwrap();
    assert_eq!(image.next(100), Err(ImageError::Replaced));
    assert_eq!((old.applied(), world.machine.applied()), (LogIndex(2), LogIndex(3)));
    assert_eq!(world.machine.term(), Term(2));
}

#[test]
fn only_a_later_state_of_the_same_log_is_installed() {
    let mut world = founded();
    world.put("a", "1");
    let earlier = restored(&world.machine);
    world.put("a", "2");
    let digest = world.machine.digest();
    assert!(matches!(world.machine.install(earlier), Err(Fault::OutOfOrder { .. })));
    let mut other = founded();
    for _ in 0..5 {
        other.machine.apply(other.machine.applied().next(), Term(1), vec![]).unwrap();
    }
    let refused = world.machine.install(other.machine).unwrap_err();
    assert_eq!(refused, Fault::Backwards { found: Revision(1), revision: Revision(3) });
    assert_eq!(world.machine.digest(), digest);
}

#[test]
fn an_installed_state_keeps_the_cluster_version() {
    const SECOND: ClusterVersion = ClusterVersion(2);
    let options = || MachineOptions { known: SECOND, ..MachineOptions::default() };
    let mut leader = World::with(options());
    leader.run(Command::Raise(SECOND)).unwrap();
    let (head, found) = pieces(leader.machine.image(), 100);
    let state = Machine::restore(options(), head, found).unwrap();
    assert_eq!(state.version(), SECOND);
    let mut follower = World::with(options());
    drop(follower.machine.install(state).unwrap());
    assert_eq!(follower.machine.version(), SECOND);
    assert_eq!(follower.machine.digest(), leader.machine.digest());
}

/// Number of keys. A revision writes the key whose number is the revision modulo `KEYS`.
const KEYS: u64 = 1500;

fn key_of(revision: u64) -> String {
    format!("{:06}", revision % KEYS)
}

/// Checks that each key has the row that it had at `revision`.
fn check_rows(reply: &RangeReply, revision: u64) {
    assert_eq!(reply.kvs.len() as u64, KEYS.min(revision - 1));
    for kv in &reply.kvs {
        let number: u64 = text(&kv.key).parse().unwrap();
        let newest = revision - (revision + KEYS - number) % KEYS;
        assert_eq!(kv.mod_revision, Revision(newest), "key {number} at {revision}");
    }
}

/// A guard that stops the readers when it is dropped, even if the test fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn readers_never_see_a_mix_of_two_states_during_install() {
    let mut leader = founded();
    let lease = leader.grant(None);
    let mut follower = Machine::new(MachineOptions::default());
    follower.found(Members::clone(leader.machine.members()));
    let reader = follower.reader();
    let done = AtomicBool::new(false);
    let refused = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..3u64 {
            let (reader, done, refused) = (reader.clone(), &done, &refused);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let newest = reader.revision();
                    let old = Revision(newest.get().saturating_sub(number * 700).max(2));
                    let range = Range { revision: Some(old), ..Range::new(KeyRange::all()) };
                    match reader.range(&range) {
                        Ok(reply) => check_rows(&reply, old.get()),
                        Err(Rejection::Compacted { .. }) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(Rejection::Future { .. }) => assert_eq!(newest, Revision::FIRST),
                        Err(other) => panic!("{other}"),
                    }
                    let reply = reader.range(&Range::new(KeyRange::all())).unwrap();
                    check_rows(&reply, reply.revision.get());
                    let op: Op = Range::new(KeyRange::all()).into();
                    let txn = Txn { success: vec![op.clone(), op], ..Txn::default() };
                    let reply = reader.read_txn(&txn).unwrap();
                    for result in &reply.results {
                        let TxnResult::Range(rows) = result else { panic!("a range") };
                        check_rows(rows, reply.revision.get());
                    }
                    if let Ok(page) = reader.events(&KeyRange::all(), old, usize::MAX) {
                        let compacted = page.changes.first().map(|change| change.revision());
                        for (change, revision) in page.changes.iter().zip(old.get()..) {
                            assert_eq!(change.revision(), Revision(revision), "a gap");
                            let event = &change.events()[0];
                            let before = event.prev.as_ref().map(|kv| kv.mod_revision);
                            let due = revision.checked_sub(KEYS).filter(|due| *due > 1);
                            let known = before == due.map(Revision);
                            assert!(known || compacted == Some(change.revision()), "{event:?}");
                        }
                    }
                }
            });
        }
        let _done = Done(&done);
        for round in 0..60u64 {
            for _ in 0..100 {
                let revision = leader.reader.revision().get() + 1;
                leader.put(&key_of(revision), "");
            }
            if round % 3 == 2 {
                let at = leader.reader.revision().get() - round * 20 % 900;
                let _ = leader.run(Command::Compact(Revision(at)));
            }
            drop(follower.install(restored(&leader.machine)).unwrap());
            assert_eq!(follower.digest(), leader.machine.digest());
            while follower.sweep(1000) {}
        }
    });
    assert!(refused.into_inner() > 0, "some caller gets an error that it is gone");
    assert!(follower.store.shared().reading().is_empty());
    assert_eq!(everything(&reader), everything(&leader.reader));
    assert_eq!(reader.lease(lease), leader.reader.lease(lease));
    assert_eq!(reader.members(), leader.reader.members());
}

/// Records in a wrong order must be rejected or restore to a valid state.
#[test]
fn misordered_snapshot_records_never_panic() {
    let mut world = founded();
    let lease = world.grant(None);
    for number in 0..30 {
        world.put(&format!("k{}", number % 7), "v");
    }
    world.put_with("leased", lease);
    world.delete("k3".into());
    world.run(Command::Compact(Revision(20))).unwrap();
    world.delete(KeyRange::between("k4", "k6"));
    let (head, sound) = pieces(world.machine.image(), 40);
    let (mut refused, mut taken) = (0, 0);
    for seed in 0..5000 {
        let mut sample = Sample::new(seed);
        let (mut head, mut pieces) = (head.clone(), sound.clone());
        for _ in 0..=sample.below(2) {
            let at = sample.below(pieces.len() as u64) as usize;
            let other = sample.below(pieces.len() as u64) as usize;
            match sample.below(9) {
                0 => drop(pieces.remove(at)),
                1 => pieces.insert(at, pieces[other].clone()),
                2 => pieces.swap(at, other),
                3 => pieces.insert(at, sample.draw()),
                4 => head = StateHead { digest: head.digest, ..sample.draw() },
                5 => head.revision = Revision(sample.below(60)),
                6 => head.compacted = Some(Revision(sample.below(60))),
                7 => head.next_lease = sample.below(9),
                _ => match &mut pieces[at] {
                    SnapshotRecord::Rows(rows) => rows[0].mod_revision = Revision(sample.below(60)),
                    SnapshotRecord::Changes(changes) => match &mut changes[0] {
                        RowChange::Put(kv) => kv.create_revision = Revision(sample.below(60)),
                        RowChange::Delete { key, .. } => *key = sample.draw(),
                    },
                    SnapshotRecord::Leases(leases) => {
                        leases[0].id = LeaseId::new(sample.below(5) + 1).unwrap()
                    }
                    SnapshotRecord::Lives(lives) => lives[0].node = node(sample.below(5) + 1),
                    SnapshotRecord::DedupTable(dedup) => dedup[0].0.seq = sample.below(60),
                },
            }
        }
        match Machine::restore(MachineOptions::default(), head, pieces) {
            Err(_) => refused += 1,
            Ok(mut machine) => {
                taken += 1;
                everything(&machine.reader());
                let compact = Command::Compact(machine.revision());
                let requests =
                    vec![(1000, Command::Delete(Delete::new(KeyRange::all()))), (1001, compact)];
                let items = vec![Item::Proposal(proposal(1, 1, (1000, &[]), requests))];
                machine.apply(machine.applied().next(), Term(9), items).unwrap();
                machine.publish();
                while machine.sweep(100) {}
            }
        }
    }
    assert!(refused > 3000 && taken > 50, "{refused} refused, {taken} taken");
}

#[test]
fn reseeded_state_has_higher_revisions_no_leases_and_compacted_history() {
    for leased in [0, 3] {
        let mut world = founded();
        let lease = world.grant(None);
        world.put("a", "1");
        world.put("b", "1");
        world.put("b", "2");
        for number in 0..leased {
            world.put_with(&format!("c{number}"), lease);
        }
        world.delete("a".into());
        let before = world.reader.revision();
        let rows = world.reader.range(&Range::new("b")).unwrap().kvs;
        let members = Members::founded(&[(node(1), DiskId(7))].into());
        let how = Reseed { members: members.clone(), revision_jump: REVISION_JUMP };
        let old = restored(&world.machine);
        let machine = old.reseed(how.clone()).unwrap();
        let revision = Revision(before.get() + REVISION_JUMP);
        assert_eq!(machine.revision(), revision);
        assert_eq!((machine.applied(), machine.term()), RESEEDED_AT);
        assert_eq!(**machine.members(), members);
        let reader = machine.reader();
        assert_eq!((reader.revision(), reader.compacted()), (revision, revision));
        let all = reader.range(&Range::new(KeyRange::all())).unwrap();
        assert_eq!((all.revision, &all.kvs), (revision, &rows), "as they were");
        assert_eq!(reader.lease(lease), None);
        assert_eq!(reader.leases(), []);
        let past = reader.events(&KeyRange::all(), before.next(), usize::MAX);
        assert_eq!(past, Err(Rejection::Compacted { asked: before.next(), compacted: revision }));
        let ends = reader.events(&KeyRange::all(), revision, usize::MAX).unwrap();
        let deleted: usize = ends.changes.iter().map(|change| change.events().len()).sum();
        assert_eq!((deleted, ends.next), (leased, revision.next()));
        let id = RequestId { node: node(1), incarnation: Incarnation(1), seq: world.seq };
        assert_eq!(machine.answer(id), None, "nobody's requests are known");
        // The restored state is an ordinary state: an image of it can be taken, and it can apply
        // further entries.
        let again = restored(&machine);
        assert_eq!(again.digest(), machine.digest());
        let mut world = World { reader: machine.reader(), machine, seq: 0, term: Term(1) };
        assert_ne!(world.grant(None), lease, "ids are not used again");
        assert_eq!(world.put("b", "3"), revision.next());
        world.run(Command::Compact(revision.next())).unwrap();
        while world.machine.sweep(100) {}
        assert_eq!(restored(&world.machine).digest(), world.machine.digest());
    }
}

#[test]
fn revision_jump_never_goes_back_or_exceeds_the_maximum() {
    // The highest possible jump ends at half of the largest revision, so that the other half of the
    // revisions remains for the new cluster.
    let most = i64::MAX as u64 / 2;
    let mut world = founded();
    let before = world.put("a", "1").get();
    let how = Reseed { members: Members::default(), revision_jump: most - before };
    let machine = world.machine.reseed(how).unwrap();
    assert_eq!(machine.revision(), Revision(most));
    let mut world = World { reader: machine.reader(), machine, seq: 0, term: Term(1) };
    assert_eq!(world.put("b", "2"), Revision(most + 1));
    for revision_jump in [0, most - before + 1, i64::MAX as u64 - before, u64::MAX] {
        let mut world = founded();
        assert_eq!(world.put("a", "1").get(), before);
        let members = Members::default();
        let error = world.machine.reseed(Reseed { members, revision_jump }).unwrap_err();
        assert!(matches!(error, RestoreError::Malformed(_)), "{error}");
    }
}
