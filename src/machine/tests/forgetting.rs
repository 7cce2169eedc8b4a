//! Tests of compaction, of the sweep that frees compacted versions, and of the scrub. Neither
//! compaction nor the sweep may change the digest.

use super::*;

#[test]
fn compaction_keeps_reads_and_watches_at_its_revision() {
    let mut world = World::with(MachineOptions { sweep_rows: 0, ..MachineOptions::default() });
    world.put("gone", "1"); // 2
    world.put("kept", "1"); // 3
    world.put("kept", "2"); // 4
    world.delete("gone".into()); // 5
    world.put("kept", "3"); // 6
    let compact = |world: &mut World, to| world.run(Command::Compact(Revision(to)));
    assert_eq!(
        compact(&mut world, 7),
        Err(Rejection::Future { asked: Revision(7), newest: Revision(6) })
    );
    assert!(compact(&mut world, 0).is_ok(), "once, on a store that was never compacted");
    assert!(compact(&mut world, 0).is_err());
    assert!(compact(&mut world, 5).is_ok());
    let again = Rejection::Compacted { asked: Revision(5), compacted: Revision(5) };
    assert_eq!(compact(&mut world, 5), Err(again));
    for swept in [false, true] {
        let read = |revision| {
            let range = Range { revision: at(revision), ..Range::new(KeyRange::all()) };
            world.reader.range(&range).map(|reply| names(&reply).concat())
        };
        assert_eq!(read(5).unwrap(), "kept");
        assert_eq!(read(6).unwrap(), "kept");
        let rejection = Rejection::Compacted { asked: Revision(4), compacted: Revision(5) };
        assert_eq!(read(4), Err(rejection.clone()));
        let events = |from| world.reader.events(&KeyRange::all(), Revision(from), 1 << 20);
        assert_eq!(events(4), Err(rejection));
        let page = events(5).unwrap();
        let [delete, put] = &page.changes[..] else { panic!("{swept} {page:?}") };
        assert_eq!(delete.events()[0].kind, EventKind::Delete);
        assert_eq!(delete.events()[0].prev, None, "compacted away");
        assert_eq!(&put.events()[0].prev.as_ref().unwrap().value[..], b"2");
        assert_eq!(page.next, Revision(7));
        let digest = world.machine.digest();
        assert!(!world.machine.sweep(1000));
        assert_eq!(world.machine.digest(), digest);
    }
    let state = world.machine.store.shared().state();
    assert!(state.index.get(b"gone").is_none(), "its memory is free");
    assert_eq!(state.index.get(b"kept").unwrap().len(), 2);
    assert_eq!(state.history.first(), Revision(5));
}

#[test]
fn sweep_frees_all_garbage_and_yields_to_readers() {
    let mut world = World::with(MachineOptions { sweep_rows: 0, ..MachineOptions::default() });
    for round in 0..20 {
        for key in 0..50 {
            world.put(&format!("{key:02}"), &round.to_string());
        }
    }
    world.delete(KeyRange::between("10", "40"));
    let newest = world.reader.revision();
    let shared = Arc::clone(world.machine.store.shared());
    let kept = {
        let state = shared.state();
        shared.register(&state, Revision(500))
    };
    world.run(Command::Compact(newest)).unwrap();
    assert!(!world.machine.sweep(100_000), "held back");
    let old = Snapshot::new(&shared, 0, Revision(500));
    let reply = old.range(&Range::new(KeyRange::all()), newest).unwrap();
    assert_eq!(reply.count, 50);
    assert_eq!(shared.state().history.first(), Revision(500));
    drop(kept);
    assert!(!world.machine.sweep(100_000));
    let state = shared.state();
    let rows: Vec<_> = state.index.rows_from(b"", Revision(0)).collect();
    assert_eq!(rows.len(), 20);
    assert!(rows.iter().all(|row| row.value() == b"19"));
    assert_eq!(state.history.first(), newest);
}

#[test]
fn the_sweep_keeps_up_with_the_writes() {
    let mut world = World::with(MachineOptions { sweep_rows: 1, ..MachineOptions::default() });
    for number in 0..2000 {
        world.put("k", &number.to_string());
        if number % 10 == 9 {
            let newest = world.reader.revision();
            world.run(Command::Compact(newest)).unwrap();
        }
        assert!(world.machine.store.shared().state().index.get(b"k").unwrap().len() < 40);
    }
}

#[test]
fn replicas_with_equal_state_have_equal_digests() {
    let run = |sweep_rows, last: &str| {
        let mut world = World::with(MachineOptions { sweep_rows, ..MachineOptions::default() });
        let lease = world.grant(None);
        let mut digests = BTreeSet::new();
        for number in 0..100u64 {
            let key = (number % 7).to_string();
            match number % 10 {
                3 => drop(world.put_with(&key, lease)),
                5 => drop(world.delete(key.as_str().to_owned().into())),
                9 => drop(world.run(Command::Compact(Revision(number / 2)))),
                _ => drop(world.put(&key, &number.to_string())),
            }
            assert!(digests.insert(world.machine.digest()), "an entry that changed nothing");
        }
        world.put("last", last);
        let state = world.reader.range(&Range::new(KeyRange::all())).unwrap();
        let (shared, newest) = (world.machine.store.shared(), world.machine.revision());
        let rows = state
            .kvs
            .iter()
            .map(|kv| Snapshot::new(shared, 0, newest).get(&kv.key).unwrap().unwrap());
        let live = rows.fold(0u64, |sum, row| sum.wrapping_add(row.view().fingerprint()));
        assert_eq!(live, world.machine.store.fingerprint()[0], "the newest rows, and nothing else");
        world.machine.digest()
    };
    assert_eq!(run(0, "x"), run(1000, "x"));
    assert_ne!(run(0, "x"), run(0, "y"));
}

#[test]
fn row_corrupted_in_memory_is_named() {
    for bytes in [10, 5000] {
        let mut world = World::new();
        for number in 0..1000 {
            let put =
                Put::new(format!("{number:04}"), vec![7; if number == 700 { bytes } else { 3 }]);
            world.run(Command::Put(put)).unwrap();
        }
        assert_eq!(world.machine.scrub(5000), Ok(()));
        assert!(world.machine.rot(b"0700") && !world.machine.rot(b"none"));
        let rotten = Fault::Rotten { key: "0700".into(), revision: Revision(702) };
        let found = (0..100).map(|_| world.machine.scrub(13)).find(Result::is_err);
        assert_eq!(found, Some(Err(rotten.clone())));
        for command in [put("0700", "over"), Command::Delete(Delete::new(KeyRange::all()))] {
            world.seq += 1;
            let proposal = proposal(1, 1, (world.seq, &[]), vec![(world.seq, command)]);
            let index = world.machine.applied().next();
            let fault = world.machine.apply(index, Term(1), vec![Item::Proposal(proposal)]);
            assert_eq!(fault, Err(rotten.clone()));
        }
    }
}

#[test]
fn one_step_of_the_sweep_frees_few_versions_of_a_hot_key() {
    let mut world = World::with(MachineOptions { sweep_rows: 0, ..MachineOptions::default() });
    for number in 0..5_000 {
        world.put("hot", &number.to_string());
    }
    let newest = world.reader.revision();
    world.run(Command::Compact(newest)).unwrap();
    let versions = |world: &World| {
        world.machine.store.shared().state().index.get(b"hot").expect("it exists").len()
    };
    let mut before = versions(&world);
    while world.machine.sweep(1) {
        let now = versions(&world);
        assert!(before - now <= 1_024, "{} versions in one step", before - now);
        before = now;
    }
    assert_eq!(versions(&world), 1);
}

#[test]
fn the_scrub_visits_every_version_of_every_key() {
    let mut world = World::new();
    for number in 0..30 {
        world.put("hot", &number.to_string());
        world.put(&format!("k{number}"), "");
    }
    // A scan can begin at any old version of a key with many versions.
    {
        let mut rows = Vec::new();
        let state = world.machine.store.shared().state();
        rows.extend(state.index.rows_from(b"hot", Revision(30)).map(|row| row.modified().get()));
        assert_eq!(rows[..16], (30..61).step_by(2).collect::<Vec<u64>>()[..]);
    }
    for step in [1, 7, 60, 61, 600] {
        let mut world_rows = 0;
        while world_rows < 120 {
            world.machine.scrub(step).unwrap();
            world_rows += step;
        }
    }
    world.machine.rot(b"hot");
    assert!((0..60).any(|_| world.machine.scrub(1).is_err()));
}
