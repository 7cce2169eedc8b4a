//! Tests that a string names one key in every call, and that prefixes need explicit methods.

use bowline::{Blocking, Compare, KeyRange, Op, TxnResult};

use crate::stage::{lasting, session};

/// The key that the calls name, and another key with that prefix.
const KEYS: [&str; 2] = ["k/", "k/1"];

fn keys(rows: &[bowline::KeyValue]) -> Vec<&[u8]> {
    rows.iter().map(|row| &row.key[..]).collect()
}

#[test]
fn a_string_names_one_key() {
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    let mut watch = kv.watch("k/").block().unwrap();
    for key in [KEYS[1], KEYS[0]] {
        kv.put(key, "v").block().unwrap();
    }
    assert_eq!(watch.next().block().unwrap().unwrap().events[0].kv.key, "k/");
    assert_eq!(kv.get("k/").block().unwrap().unwrap().key, "k/");
    assert_eq!(keys(&kv.range("k/").block().unwrap().kvs), [b"k/"]);
    assert_eq!(kv.estimated_len("k/", 10), 0, "a single key counts for none");
    let caller = bowline::auth::Caller { user: None, revision: kv.access().revision() };
    assert_eq!(keys(&kv.as_user(caller).range("k/").block().unwrap().kvs), [b"k/"]);
    // Only `k/1` is written again.
    kv.put(KEYS[1], "w").block().unwrap();
    for holds in [
        Compare::exists("k/"),
        Compare::version("k/").eq(1u64),
        Compare::value("k/").eq("v"),
        Compare::lease("k/").eq(0u64),
        Compare::missing("k"),
    ] {
        let reply = kv.txn().when(holds).then(Op::range("k/")).then(Op::get("k/")).commit();
        let reply = reply.block().unwrap();
        assert!(reply.succeeded);
        for result in reply.results {
            let TxnResult::Range(range) = result else { panic!("{result:?}") };
            assert_eq!(keys(&range.kvs), [b"k/"]);
        }
    }
    assert_eq!(KeyRange::from("k/"), KeyRange::key("k/"));
    kv.txn().then(Op::delete("k/")).commit().block().unwrap();
    assert_eq!(keys(&kv.range(KeyRange::all()).block().unwrap().kvs), [b"k/1"]);
    kv.put("k/", "v").block().unwrap();
    assert_eq!(kv.delete("k/").block().unwrap().deleted, 1);
    assert_eq!(keys(&kv.range(KeyRange::all()).block().unwrap().kvs), [b"k/1"]);
}

#[test]
fn a_method_with_prefix_in_its_name_takes_a_prefix() {
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    let mut watch = kv.watch_prefix("k/").block().unwrap();
    for key in KEYS {
        kv.put(key, "v").block().unwrap();
    }
    let first = watch.next().block().unwrap().unwrap();
    assert_eq!(first.events[0].kv.key, "k/");
    if first.events.len() == 1 {
        assert_eq!(watch.next().block().unwrap().unwrap().events[0].kv.key, "k/1");
    }
    assert_eq!(keys(&kv.get_prefix("k/").block().unwrap().kvs), [&b"k/"[..], b"k/1"]);
    let view = kv.cached_prefix("k/").block().unwrap().view().unwrap();
    assert_eq!((view.len(), view.prefix(b"k/1").count()), (2, 1));
    assert_eq!(kv.with_prefix("k").get("/1").block().unwrap().unwrap().key, "/1");
    assert_eq!(kv.sequential_prefix("s/").put("").block().unwrap().key, "s/0000000000");
    assert_eq!(kv.delete_prefix("k/").block().unwrap().deleted, 2);
}

#[test]
fn lock_name_is_one_lock_and_a_prefix_lists_many() {
    let cluster = lasting(1);
    let session = session(&cluster, 0);
    let locks = cluster.node(0).locks();
    let held = ["jobs", "jobs/1"].map(|name| session.mutex(name).lock().block().unwrap());
    let names = |prefix: &'static str| {
        let listed = locks.list_prefix(prefix).unwrap();
        listed.into_iter().map(|lock| lock.name).collect::<Vec<_>>()
    };
    assert_eq!(names("jobs"), ["jobs", "jobs/1"]);
    assert_eq!(names("jobs/"), ["jobs/1"]);
    assert_eq!(names(""), ["jobs", "jobs/1"]);
    assert_eq!(locks.of("jobs").unwrap().queue.len(), 1);
    assert_eq!(locks.of("jobs/").unwrap().queue.len(), 0);
    drop(held);
}
