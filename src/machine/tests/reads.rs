//! Tests of what readers see, and when.

use super::*;

#[test]
fn a_read_at_an_old_revision_sees_the_old_state() {
    let mut world = World::new();
    world.put("a", "1");
    world.put("b", "1");
    world.put("a", "2");
    world.delete("b".into());
    let look = |revision| {
        let range = Range { revision, ..Range::new(KeyRange::all()) };
        world.reader.range(&range).map(|reply| {
            let rows = reply.kvs.iter().map(|kv| format!("{}={}", text(&kv.key), text(&kv.value)));
            assert_eq!(reply.revision, Revision(5), "the store's, not the one asked for");
            rows.collect::<Vec<_>>()
        })
    };
    assert_eq!(look(at(1)).unwrap(), Vec::<String>::new());
    assert_eq!(look(at(2)).unwrap(), ["a=1"]);
    assert_eq!(look(at(3)).unwrap(), ["a=1", "b=1"]);
    assert_eq!(look(at(4)).unwrap(), ["a=2", "b=1"]);
    assert_eq!(look(at(5)).unwrap(), ["a=2"]);
    assert_eq!(look(None).unwrap(), ["a=2"]);
    assert_eq!(look(at(0)).unwrap(), ["a=2"]);
    let rejection = Rejection::Future { asked: Revision(6), newest: Revision(5) };
    assert_eq!(look(at(6)), Err(rejection));
}

#[test]
fn page_reads_at_most_one_row_beyond_its_limit() {
    let mut world = World::new();
    for number in 0..5000 {
        world.put(&format!("k{number:04}"), "v");
    }
    let mut from = KeyRange::all();
    let (mut rows, mut looked_at) = (0, 0);
    loop {
        let range = Range { limit: Some(1000), ..Range::new(from) };
        let page = world.reader.page(&range, u64::MAX).unwrap();
        assert_eq!(page.kvs, world.reader.range(&range).unwrap().kvs);
        (rows, looked_at) = (rows + page.kvs.len(), looked_at + page.count);
        match page.kvs.last() {
            Some(last) if page.more => {
                from = KeyRange::starting_at([&last.key[..], b"\0"].concat())
            }
            _ => break,
        }
    }
    assert_eq!((rows, looked_at), (5000, 5004));
    // A range that is sorted by a field other than the key must be scanned completely.
    let sort = Sort { target: SortTarget::Mod, order: SortOrder::Descend };
    let range = Range { limit: Some(1), sort, ..Range::new(KeyRange::all()) };
    let page = world.reader.page(&range, u64::MAX).unwrap();
    assert_eq!((text(&page.kvs[0].key), page.more, page.count), ("k4999".to_owned(), true, 5000));
}

#[test]
fn page_ends_before_the_row_that_exceeds_its_bytes() {
    let mut world = World::new();
    for (key, bytes) in [("a", 100), ("b", 100), ("c", 5000), ("d", 1)] {
        world.put(key, &"v".repeat(bytes));
    }
    let page = |range: Range, bytes| {
        let page = world.reader.page(&range, bytes).unwrap();
        (names(&page).concat(), page.more)
    };
    let all = || Range::new(KeyRange::all());
    let is = |rows: &str, more| (rows.to_owned(), more);
    // Each of the first two rows counts as a key of 1 byte, a value of 100 bytes and 64 bytes.
    assert_eq!(page(all(), 329), is("a", true));
    assert_eq!(page(all(), 330), is("ab", true));
    assert_eq!(page(all(), 0), is("a", true), "at least one row");
    let rest = Range::new(KeyRange::starting_at("c"));
    assert_eq!(page(rest, 1000), is("c", true), "a row may exceed a whole page");
    assert_eq!(page(all(), u64::MAX), is("abcd", false));
    assert_eq!(page(Range { keys_only: true, ..all() }, 3 * 65), is("abc", true));
    assert_eq!(page(Range { limit: Some(1), ..all() }, 1000), is("a", true));
}

#[test]
fn limit_bounds_count_and_more_work_as_in_etcd() {
    let mut world = World::new();
    for (key, value) in [("a", "3"), ("b", "1"), ("c", "2"), ("d", "1")] {
        world.put(key, value);
    }
    world.put("b", "9");
    let ask = |change: &dyn Fn(&mut Range)| {
        let mut range = Range::new(KeyRange::all());
        change(&mut range);
        let reply = world.reader.range(&range).unwrap();
        (names(&reply).concat(), reply.more, reply.count)
    };
    let is = |rows: &str, more, count| (rows.to_owned(), more, count);
    assert_eq!(ask(&|_| {}), is("abcd", false, 4));
    assert_eq!(ask(&|range| range.limit = Some(4)), is("abcd", false, 4));
    assert_eq!(ask(&|range| range.limit = Some(3)), is("abc", true, 4));
    assert_eq!(ask(&|range| range.count_only = true), is("", false, 4));
    assert_eq!(ask(&|range| range.range = KeyRange::between("b", "d")), is("bc", false, 2));
    assert_eq!(ask(&|range| range.range = KeyRange::between("d", "b")), is("", false, 0));
    assert_eq!(ask(&|range| range.range = KeyRange::starting_at("c")), is("cd", false, 2));
    let bounds = RevisionBounds { mod_max: at(5), mod_min: at(3), ..RevisionBounds::default() };
    assert_eq!(ask(&|range| range.bounds = bounds), is("cd", false, 4));
    let limited = |range: &mut Range| (range.bounds, range.limit) = (bounds, Some(1));
    assert_eq!(ask(&limited), is("c", true, 4), "the limit counts after the bounds");
    let bounds = RevisionBounds { create_max: at(4), create_min: at(3), ..Default::default() };
    assert_eq!(ask(&|range| range.bounds = bounds), is("bc", false, 4));
    let sorts = [
        (SortTarget::Key, "abcd", "dcba"),
        (SortTarget::Create, "abcd", "dcba"),
        (SortTarget::Mod, "acdb", "bdca"),
        (SortTarget::Version, "acdb", "bacd"),
        (SortTarget::Value, "dcab", "bacd"),
    ];
    for (target, up, down) in sorts {
        for (order, rows) in [(SortOrder::Ascend, up), (SortOrder::Descend, down)] {
            let sort = Sort { target, order };
            assert_eq!(ask(&|range| range.sort = sort), is(rows, false, 4), "{sort:?}");
            let first = |range: &mut Range| {
                (range.sort, range.limit, range.keys_only) = (sort, Some(2), true);
            };
            assert_eq!(ask(&first), is(&rows[..2], true, 4), "{sort:?}");
        }
    }
}

#[test]
fn keys_only_read_keeps_all_metadata() {
    let mut world = World::new();
    let lease = world.grant(None);
    let put = Put { lease: PutLease::Attach(lease), ..Put::new("k", vec![7; 5000]) };
    world.run(Command::Put(put)).unwrap();
    let range = Range { keys_only: true, ..Range::new("k") };
    let reply = world.reader.range(&range).unwrap();
    let want = KeyValue { value: Bytes::new(), ..world.reader.get(b"k").0.unwrap() };
    assert_eq!(reply.kvs, [want]);
    assert_eq!(reply.kvs[0].lease, Some(lease));
}

#[test]
fn readers_see_nothing_before_it_is_published() {
    let mut world = World::new();
    world.put("a", "1");
    let reader = world.reader.clone();
    let requests =
        vec![(100, put("a", "2")), (101, put("b", "1")), (102, Command::Compact(Revision(4)))];
    let items = vec![Item::Proposal(proposal(1, 1, (100, &[]), requests))];
    let applied = world.machine.apply(LogIndex(3), Term(1), items).unwrap();
    assert_eq!(applied.compacted, at(4));
    assert_eq!((reader.revision(), reader.compacted()), (Revision(2), Revision(0)));
    assert_eq!(&reader.get(b"a").0.unwrap().value[..], b"1");
    assert_eq!(names(&reader.range(&Range::new(KeyRange::all())).unwrap()), ["a"]);
    let page = reader.events(&KeyRange::all(), Revision(1), 1 << 20).unwrap();
    assert_eq!((page.changes.len(), page.next), (1, Revision(3)));
    world.machine.sweep(1000);
    assert_eq!(&reader.get(b"a").0.unwrap().value[..], b"1", "not swept either");
    world.machine.publish();
    assert_eq!((reader.revision(), reader.compacted()), (Revision(4), Revision(4)));
    assert_eq!(world.keys(KeyRange::all()), ["a", "b"]);
}

#[test]
fn history_pages_hold_whole_revisions_with_previous_rows() {
    let mut world = World::new();
    world.put("a", "1"); // 2
    world.put("z", "1"); // 3
    let ops = vec![Op::put("b", "2"), Op::put("z", "2"), Op::put("a", "2")];
    world.txn(Txn { success: ops, ..Txn::default() }).unwrap(); // 4
    world.delete("a".into()); // 5
    let range = KeyRange::between("a", "c");
    let mut next = Revision(1);
    let mut shown = Vec::new();
    while next <= world.reader.revision() {
        let page = world.reader.events(&range, next, 1).unwrap();
        assert!(page.changes.len() <= 1 && page.next > next);
        next = page.next;
        for change in &page.changes {
            for event in change.events().iter() {
                assert_eq!(event.revision(), change.revision());
                let prev = event.prev.as_ref().map_or("-".into(), |kv| text(&kv.value));
                let (key, value) = (text(&event.kv.key), text(&event.kv.value));
                shown.push(format!("{} {key}={value} was {prev}", change.revision()));
            }
        }
    }
    assert_eq!(shown, ["2 a=1 was -", "4 b=2 was -", "4 a=2 was 1", "5 a= was 2"]);
    assert_eq!(next, Revision(6));
    let page = world.reader.events(&range, Revision(100), 1).unwrap();
    assert_eq!((page.changes.len(), page.next), (0, Revision(100)));
}

#[test]
fn previous_rows_count_towards_the_page_size() {
    let mut world = World::new();
    let (keys, value) = (64_u64, "v".repeat(1_000));
    for key in 0..keys {
        world.put(&key.to_string(), &value);
    }
    for key in 0..keys {
        world.delete(KeyRange::key(key.to_string()));
    }
    let (mut next, mut revisions) = (Revision(1), Vec::new());
    while next <= world.reader.revision() {
        let page = world.reader.events(&KeyRange::all(), next, 4_000).unwrap();
        let events = page.changes.iter().flat_map(|change| change.events().iter());
        let bytes = |kv: &KeyValue| kv.key.len() + kv.value.len();
        let bytes: usize =
            events.map(|event| bytes(&event.kv) + event.prev.as_ref().map_or(0, bytes)).sum();
        assert!(bytes < 4_000 + 1_100, "{bytes} bytes in {} revisions", page.changes.len());
        revisions.extend(page.changes.iter().map(|change| change.revision().get()));
        assert!(page.next > next);
        next = page.next;
    }
    assert_eq!(revisions, (2..2 + 2 * keys).collect::<Vec<_>>(), "no gap, and none twice");
}

/// The end of a lease deletes all its keys in one revision, so a revision may have many rows.
#[test]
fn large_revision_is_returned_whole_over_several_lock_holds() {
    const KEYS: usize = 1_700;
    let mut world = World::new();
    let mut reported = Vec::new();
    for (from, value) in [(0, "1"), (KEYS, "2"), (0, "3")] {
        let ops = (from..from + KEYS).map(|key| Op::put(format!("{key:05}"), value));
        let txn = Txn { success: ops.collect(), ..Txn::default() };
        reported.extend(world.apply(Command::Txn(txn)).changes);
        reported.extend(world.apply(put("between", value)).changes);
    }
    reported.extend(world.apply(Command::Delete(Delete::new(KeyRange::all()))).changes);
    let (mut next, mut found) = (Revision(1), Vec::new());
    super::super::reader::MOST_HELD.set(0);
    while next <= world.reader.revision() {
        let page = world.reader.events(&KeyRange::all(), next, usize::MAX).unwrap();
        assert!(page.next > next);
        (next, found) = (page.next, [found, page.changes].concat());
    }
    assert!(found == reported, "other changes than those that were made");
    let most = super::super::reader::MOST_HELD.get();
    assert!((1..=super::super::shared::HOLD_KEYS).contains(&most), "{most} rows in one hold");
}

/// A reader of a large revision gets either the whole revision or the error that it is compacted.
/// This holds even if the state changes each time the reader releases the lock.
#[test]
fn revision_is_never_torn_by_compaction_or_install() {
    const KEYS: u64 = 1_700;
    let all = |value: u64| {
        let ops = (0..KEYS).map(|key| Op::put(format!("{key:05}"), value.to_string()));
        Command::Txn(Txn { success: ops.collect(), ..Txn::default() })
    };
    let mut world = World::new();
    world.run(all(0)).unwrap();
    let reader = world.reader.clone();
    let (done, looks) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let look = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let from = reader.compacted();
                match reader.events(&KeyRange::all(), from, usize::MAX) {
                    Ok(page) => {
                        assert!(!page.changes.is_empty());
                        for change in &page.changes {
                            assert_eq!(change.events().len() as u64, KEYS, "torn");
                            let value = |event: &crate::model::Event| event.kv.value.clone();
                            let first = value(&change.events()[0]);
                            assert!(change.events().iter().all(|event| value(event) == first));
                            let is_of =
                                |event: &crate::model::Event| event.revision() == change.revision();
                            assert!(change.events().iter().all(is_of));
                        }
                        looks.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(rejection) => assert!(matches!(rejection, Rejection::Compacted { .. })),
                }
            }
        });
        let mut value = 0;
        while value < 20 || (looks.load(Ordering::Relaxed) < 3 && !look.is_finished()) {
            value += 1;
            world.run(all(value)).unwrap();
            let newest = world.reader.revision();
            world.run(Command::Compact(newest)).unwrap();
            world.machine.sweep(10 * KEYS as usize);
            if value % 5 == 0 {
                let mut later = restored(&world.machine);
                let (index, term) = (later.applied().next(), later.term());
                later.apply(index, term, Vec::new()).unwrap();
                world.machine.install(later).unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
        look.join().unwrap();
    });
}

#[test]
fn changes_of_an_entry_match_later_history() {
    let mut world = World::new();
    let lease = world.grant(None);
    let mut reported = Vec::new();
    for number in 0..300u64 {
        let key = format!("{}", number * 7 % 20);
        let command = match number % 5 {
            0 => Command::Delete(Delete::new(KeyRange::prefix(key))),
            1 => Command::Put(Put { lease: PutLease::Attach(lease), ..Put::new(key, "l") }),
            2 => {
                let ops =
                    vec![Op::put(key, "t"), Op::delete(KeyRange::prefix("x")), Op::put("y", "")];
                Command::Txn(Txn { success: ops, ..Txn::default() })
            }
            _ => Command::Put(Put::new(key, number.to_string())),
        };
        reported.extend(world.apply(command).changes);
    }
    reported.extend(world.apply(Command::Revoke(lease)).changes);
    let page = world.reader.events(&KeyRange::all(), Revision(1), usize::MAX).unwrap();
    assert_eq!(page.changes, reported);
    let revisions: Vec<_> = reported.iter().map(|change| change.revision().get()).collect();
    assert_eq!(revisions, (2..2 + reported.len() as u64).collect::<Vec<_>>(), "dense");
}

#[test]
fn long_range_is_read_at_one_revision_during_writes() {
    const KEYS: u64 = 3000;
    let mut world = World::new();
    let all = |value: u64| {
        let ops = (0..KEYS).map(|key| Op::put(format!("{key:05}"), value.to_string()));
        Command::Txn(Txn { success: ops.collect(), ..Txn::default() })
    };
    world.run(all(0)).unwrap();
    let reader = world.reader.clone();
    let (done, looks) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let look = scope.spawn(|| {
            let mut seen = BTreeSet::new();
            while !done.load(Ordering::Relaxed) {
                let reply = reader.range(&Range::new(KeyRange::all())).unwrap();
                let values: BTreeSet<_> = reply.kvs.iter().map(|kv| kv.value.clone()).collect();
                assert_eq!((reply.count, values.len()), (KEYS, 1), "torn: {values:?}");
                assert!(reply.kvs.iter().all(|kv| kv.mod_revision == reply.kvs[0].mod_revision));
                seen.insert(reply.revision);
                looks.store(seen.len(), Ordering::Relaxed);
            }
        });
        let mut value = 0;
        while value < 20 || (looks.load(Ordering::Relaxed) < 3 && !look.is_finished()) {
            value += 1;
            world.run(all(value)).unwrap();
            let before = world.reader.revision();
            world.run(Command::Compact(before)).unwrap();
            world.machine.sweep(10 * KEYS as usize);
        }
        done.store(true, Ordering::Relaxed);
        look.join().unwrap();
    });
}

#[test]
fn scan_cost_of_a_transaction_is_estimated_in_advance() {
    let mut world = World::new();
    for key in 0..1200 {
        world.put(&format!("k{key:04}"), "v");
    }
    world.run(Command::Delete(Delete::new("k0007"))).unwrap();
    let range = |range: KeyRange| Op::Range(Range::new(range));
    let txn = |success: Vec<Op>| Txn { success, ..Txn::default() };
    let tens = || range(KeyRange::prefix("k000"));
    let cases = [
        (txn(vec![range("k0001".into()), Op::put("k0002", ""), Op::delete("k0003")]), 0),
        (txn(vec![range(KeyRange::prefix("absent"))]), 0),
        // The number includes the deleted key, which counts until the sweep has freed it.
        (txn(vec![tens()]), 10),
        (txn(vec![range(KeyRange::all())]), 1200),
        (txn(vec![range(KeyRange::between("k0100", "k0612"))]), 512),
        (Txn { compares: vec![Compare::exists(KeyRange::all())], ..txn(vec![tens()]) }, 1210),
        (
            Txn {
                failure: vec![Op::delete(KeyRange::starting_at("k1190")), tens()],
                ..txn(vec![tens()])
            },
            30,
        ),
        (txn(vec![Op::Txn(txn(vec![tens(), Op::Txn(txn(vec![tens()]))])), tens()]), 30),
    ];
    for (txn, expected) in cases {
        assert_eq!(world.reader.visited_keys(&txn, usize::MAX), expected, "{txn:?}");
        for max in [0, 1, 9, 30, 512, 1024] {
            assert_eq!(world.reader.visited_keys(&txn, max), expected.min(max), "{max}: {txn:?}");
        }
    }
}
