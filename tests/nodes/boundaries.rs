//! Tests that cross each size limit at which the code moves to a next page, chunk, message or entry, with the sizes
//! of a release build. Most other tests stay below these sizes.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline::backup::{RestoreOptions, restore, verify};
use bowline::{
    Blocking, Client, Config, Error, KeyRange, LockError, Node, Op, Revision, WatchError,
};

use crate::stage::{Begun, lasting, roles, session, timed_out, until_places, until_true};

fn alone() -> (tempfile::TempDir, Node) {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    node.ready().block().unwrap();
    (dir, node)
}

/// Puts many keys in each transaction.
fn put_all(kv: &Client, keys: &[String], value: &str) {
    for keys in keys.chunks(128) {
        let puts = keys.iter().map(|key| Op::put(key.clone(), value.to_owned()));
        puts.fold(kv.txn(), |txn, put| txn.then(put)).commit().block().unwrap();
    }
}

/// Pages of the index have 128 keys, and pages of a read 1,024 rows.
#[test]
fn ranges_span_pages_of_the_index_and_of_a_read() {
    let (_dir, node) = alone();
    let kv = node.client();
    let all: Vec<String> = (0..2_200).map(|number| format!("k/{number:05}")).collect();
    // The keys are added from both ends, so that pages are split in the middle and at their ends.
    let (low, high) = all.split_at(1_100);
    put_all(&kv, high, "v");
    put_all(&kv, &low.iter().rev().cloned().collect::<Vec<_>>(), "v");
    let before = kv.revision();
    for limit in [1, 127, 128, 129, 1_023, 1_024, 1_025, 2_047, 2_048, 2_049, 2_199, 2_200] {
        let reply = kv.get_prefix("k/").limit(limit).block().unwrap();
        let keys: Vec<_> = reply.kvs.iter().map(|row| &row.key[..]).collect();
        let wanted: Vec<_> = all.iter().take(limit as usize).map(|key| key.as_bytes()).collect();
        assert!(keys == wanted, "{limit}");
        assert_eq!((reply.count, reply.more), (2_200, limit < 2_200), "{limit}");
    }
    // Delete keys, so that pages become small and empty.
    for keys in all[128..2_100].chunks(128) {
        let deletes = keys.iter().map(|key| Op::delete(key.clone()));
        deletes.fold(kv.txn(), |txn, delete| txn.then(delete)).commit().block().unwrap();
    }
    let rest = kv.get_prefix("k/").block().unwrap();
    let keys: Vec<_> = rest.kvs.iter().map(|row| &row.key[..]).collect();
    let wanted: Vec<_> = all[..128].iter().chain(&all[2_100..]).map(|key| key.as_bytes()).collect();
    assert_eq!(keys, wanted);
    assert_eq!(kv.get_prefix("k/").revision(before).block().unwrap().count, 2_200);
}

/// The history has chunks of 512 revisions.
#[test]
fn watches_and_compactions_cross_the_chunks_of_the_history() {
    let (_dir, node) = alone();
    let kv = node.client();
    let first = kv.revision().next();
    let puts: Vec<_> =
        (0..1_100).map(|number| Begun::asked(kv.put("k", number.to_string()))).collect();
    for put in puts {
        put.finish().unwrap();
    }
    let last = kv.revision();
    let values = |from: Revision| -> Result<Vec<u64>, WatchError> {
        let mut watch = kv.watch("k").from(from).block().unwrap();
        let mut values = Vec::new();
        loop {
            let batch = watch.next().block().unwrap()?;
            let value = |bytes: &[u8]| std::str::from_utf8(bytes).unwrap().parse::<u64>().unwrap();
            values.extend(batch.events.iter().map(|event| value(&event.kv.value)));
            if batch.revision >= last {
                return Ok(values);
            }
        }
    };
    for skipped in [0, 1, 510, 511, 512, 513, 1_022, 1_023, 1_024, 1_025, 1_099] {
        let from = Revision(first.get() + skipped);
        assert_eq!(values(from).unwrap(), (skipped..1_100).collect::<Vec<_>>(), "{skipped}");
        let row = kv.get("k").revision(from).block().unwrap().unwrap();
        assert_eq!(row.value, skipped.to_string());
    }
    for kept in [510, 511, 512, 513, 1_023, 1_024] {
        let compacted = Revision(first.get() + kept);
        kv.compact(compacted).block().unwrap();
        assert_eq!(values(compacted.next()).unwrap(), (kept + 1..1_100).collect::<Vec<_>>());
        let gone = values(Revision(compacted.get() - 1)).unwrap_err();
        assert!(matches!(gone, WatchError::Compacted { .. }), "{kept}: {gone}");
        let read = kv.get("k").revision(Revision(compacted.get() - 1)).block();
        assert!(matches!(read, Err(Error::Rejected(_))), "{kept}: {read:?}");
        assert!(kv.get("k").revision(compacted).block().unwrap().is_some());
    }
}

/// One entry ends at most 1,000 leases, and at most 4,000 expiries are in flight.
#[test]
fn thousands_of_leases_end_together() {
    let (_dir, node) = alone();
    let kv = node.client();
    let kept = kv.grant(Duration::from_secs(600)).block().unwrap().id;
    let grants: Vec<_> =
        (0..4_500).map(|_| Begun::asked(kv.grant(Duration::from_secs(2)))).collect();
    let leases: Vec<_> = grants.into_iter().map(|grant| grant.finish().unwrap().id).collect();
    // On a slow machine some leases may have expired already, and a put for them is rejected.
    let puts: Vec<_> = leases
        .iter()
        .map(|lease| Begun::asked(kv.put(format!("k/{lease}"), "v").lease(*lease)))
        .collect();
    let put = puts.into_iter().map(Begun::finish).filter(Result::is_ok).count();
    assert!(put > 4_000, "{put}");
    until_true(&node, "all leases but one have ended", || kv.leases() == [kept]);
    assert_eq!(kv.get_prefix("k/").block().unwrap().count, 0);
}

/// One entry of a resize rewrites at most 100 rows.
#[test]
fn resize_grants_hundreds_of_waiters() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let small = mine.semaphore("s", 1);
    let first = small.acquire().block().unwrap();
    let waiting: Vec<_> = (0..250).map(|_| small.acquire().enqueue().unwrap()).collect();
    until_places(cluster.node(0), "s", 251);
    let large = small.resize(300).block().unwrap();
    let permits: Vec<_> = waiting.into_iter().map(|acquire| acquire.block().unwrap()).collect();
    assert!(permits.iter().all(|permit| permit.is_held()));
    assert_eq!(large.available_permits(), 300 - 251);
    drop((first, permits));
    until_places(cluster.node(0), "s", 0);
}

/// A message has at most 4,096 entries and about 1 MiB. A frame is read in pieces of 64 KiB.
#[test]
fn partitioned_member_catches_up_over_many_messages() {
    let cluster = lasting(3);
    let (leader, behind, _) = roles(&cluster);
    cluster.partition(&[behind]);
    let kv = cluster.node(leader).client();
    let puts: Vec<_> =
        (0..6_000).map(|number| Begun::asked(kv.put(format!("k/{number}"), "v"))).collect();
    for put in puts {
        put.finish().unwrap();
    }
    // Sizes around the limits at which bodies are copied, read and sent in another way.
    let mut large = BTreeMap::new();
    for size in [16 << 10, 64 << 10, 512 << 10, 1_000_000] {
        for size in [size - 64, size - 1, size, size + 1] {
            let value: Vec<u8> = (0..size).map(|at: usize| (at % 251) as u8).collect();
            kv.put(format!("large/{size}"), value.clone()).block().unwrap();
            large.insert(format!("large/{size}"), value);
        }
    }
    let last = kv.revision();
    cluster.heal();
    let late = cluster.node(behind).client();
    until_true(cluster.node(behind), "it catches up", || late.revision() >= last);
    assert_eq!(late.get_prefix("k/").local().count_only().block().unwrap().count, 6_000);
    for (key, value) in large {
        let row = late.get(key.clone()).local().block().unwrap().unwrap();
        assert!(row.value == value, "{key}");
    }
}

/// A snapshot is synced every 4 MiB while it is written.
#[test]
fn snapshot_of_many_megabytes_is_restored() {
    let (dir, node) = alone();
    let kv = node.client();
    for number in 0..10_u8 {
        kv.put(format!("k/{number}"), vec![number; 1 << 20]).block().unwrap();
    }
    let file = dir.path().join("copy");
    node.backup(file.clone()).block().unwrap();
    node.shutdown().block();
    assert_eq!(verify(&file).unwrap().keys, 10);
    let new = tempfile::tempdir().unwrap();
    let config = Config::new(new.path(), "solo");
    restore(&file, &config, &RestoreOptions::default()).unwrap();
    let node = Node::start(config).block().unwrap();
    let rows = node.client().range(KeyRange::prefix("k/")).block().unwrap().kvs;
    assert_eq!(rows.len(), 10);
    for (number, row) in (0_u8..).zip(rows) {
        assert!(row.value.len() == 1 << 20 && row.value.iter().all(|byte| *byte == number));
    }
    node.shutdown().block();
}

/// One entry claims at most 50 slots.
#[test]
fn permits_claim_more_slots_than_fit_into_one_entry() {
    let cluster = lasting(1);
    let permit = session(&cluster, 0).semaphore("s", 150).acquire_many(120).block().unwrap();
    let slots = permit.slots().block().unwrap();
    let mut slots: Vec<_> = slots.into_iter().map(|slot| slot.number).collect();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), 120);
    assert!(slots.iter().all(|slot| *slot < 150));
}

/// If a deadlock has more owners than the search follows, the request fails at its deadline.
#[test]
fn deadlocks_of_many_owners_are_found_up_to_a_limit() {
    for (count, is_found) in [(60, true), (70, false)] {
        let cluster = lasting(1);
        let mine = session(&cluster, 0);
        let locks: Vec<_> = (0..count).map(|at| mine.mutex(format!("lock-{at}"))).collect();
        let owners: Vec<_> = (0..count).map(|at| mine.owner(format!("owner-{at}"))).collect();
        let held: Vec<_> = locks
            .iter()
            .zip(&owners)
            .map(|(lock, owner)| lock.lock().owner(owner).block().unwrap())
            .collect();
        let waiting: Vec<_> = locks[1..]
            .iter()
            .zip(&owners)
            .map(|(lock, owner)| lock.lock().owner(owner).enqueue().unwrap())
            .collect();
        for at in 1..count {
            until_places(cluster.node(0), &format!("lock-{at}"), 2);
        }
        let last = locks[0].lock().owner(&owners[count - 1]).deadline(Duration::from_millis(500));
        match last.block().unwrap_err() {
            LockError::Deadlock { cycle } => assert!(is_found && cycle.len() == count, "{count}"),
            error => assert!(!is_found && timed_out(&error), "{count}: {error}"),
        }
        drop((waiting, held));
    }
}
