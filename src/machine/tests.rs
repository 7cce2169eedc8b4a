//! The machine as a whole: entries in, answers and reads out.

#![allow(clippy::single_range_in_vec_init, reason = "one open span is meant")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;

use super::store::Snapshot;
use super::*;
use crate::model::{
    AckWindow, Compare, EventKind, KeyRange, KeyValue, Range, RangeEnd, RangeReply, RevisionBounds,
    Sort, SortOrder, SortTarget,
};

/// A machine that is fed one command an entry.
struct World {
    machine: Machine,
    reader: Reader,
    seq: u64,
    term: Term,
}

impl World {
    fn new() -> Self {
        Self::with(MachineOptions::default())
    }

    fn with(options: MachineOptions) -> Self {
        let machine = Machine::new(options);
        let reader = machine.reader();
        Self { machine, reader, seq: 0, term: Term(1) }
    }

    fn entry(&mut self, items: Vec<Item>) -> Applied {
        let applied = self.machine.apply(self.machine.applied().next(), self.term, items).unwrap();
        self.machine.publish();
        applied
    }

    fn apply(&mut self, command: Command) -> Applied {
        self.seq += 1;
        let proposal = proposal(1, 1, (self.seq, &[]), vec![(self.seq, command)]);
        self.entry(vec![Item::Proposal(proposal)])
    }

    fn run(&mut self, command: Command) -> Outcome {
        self.apply(command).outcomes.remove(0).1
    }

    fn put(&mut self, key: &str, value: &str) -> Revision {
        let put = Put::new(key.to_owned(), value.to_owned());
        self.run(Command::Put(put)).unwrap().revision()
    }

    fn put_with(&mut self, key: &str, lease: LeaseId) -> Revision {
        let put = Put { lease: PutLease::Attach(lease), ..Put::new(key.to_owned(), "") };
        self.run(Command::Put(put)).unwrap().revision()
    }

    fn delete(&mut self, range: KeyRange) -> DeleteReply {
        let delete = Delete { range, prev_kv: true };
        let Ok(Reply::Delete(reply)) = self.run(Command::Delete(delete)) else { panic!("refused") };
        reply
    }

    fn txn(&mut self, txn: Txn) -> Result<TxnReply, Refusal> {
        self.run(Command::Txn(txn)).map(|reply| match reply {
            Reply::Txn(reply) => reply,
            other => panic!("{other:?}"),
        })
    }

    fn grant(&mut self, id: Option<u64>) -> LeaseId {
        let id = id.and_then(LeaseId::new);
        let grant = Command::Grant { id, ttl: Duration::from_secs(5), session: None };
        let Ok(Reply::Grant(reply)) = self.run(grant) else { panic!("refused") };
        reply.id
    }

    fn keys(&self, range: KeyRange) -> Vec<String> {
        names(&self.reader.range(&Range::new(range)).unwrap())
    }
}

fn node(id: u64) -> NodeId {
    NodeId::new(id).unwrap()
}

fn proposal(
    from: u64,
    life: u64,
    (frontier, open): (u64, &[std::ops::Range<u64>]),
    requests: Vec<(u64, Command)>,
) -> Proposal {
    let window = AckWindow { frontier, open: open.to_vec() };
    Proposal { node: node(from), incarnation: Incarnation(life), window, requests }
}

fn put(key: &str, value: &str) -> Command {
    Command::Put(Put::new(key.to_owned(), value.to_owned()))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn names(reply: &RangeReply) -> Vec<String> {
    reply.kvs.iter().map(|kv| text(&kv.key)).collect()
}

fn at(revision: u64) -> Option<Revision> {
    Some(Revision(revision))
}

#[test]
fn a_new_store_is_at_revision_one_with_nothing_in_it() {
    let world = World::new();
    assert_eq!(world.reader.revision(), Revision(1));
    let reply = world.reader.range(&Range::new(KeyRange::all())).unwrap();
    assert_eq!(reply, RangeReply { revision: Revision(1), kvs: vec![], more: false, count: 0 });
    assert_eq!(world.machine.applied(), LogIndex(1));
}

#[test]
fn each_changing_request_takes_one_revision_and_no_other_takes_any() {
    let mut world = World::new();
    assert_eq!(world.put("a", "1"), Revision(2));
    assert_eq!(world.put("a", "1"), Revision(3), "the same value again is a change");
    assert_eq!(world.delete("x".into()).revision, Revision(3), "nothing deleted");
    let txn = Txn { success: vec![Op::put("b", ""), Op::put("c", "")], ..Txn::default() };
    assert_eq!(world.txn(txn).unwrap().revision, Revision(4));
    let txn = Txn { success: vec![Op::delete("x"), Op::get("a")], ..Txn::default() };
    assert_eq!(world.txn(txn).unwrap().revision, Revision(4));
    world.grant(None);
    assert_eq!(world.delete(KeyRange::all()).revision, Revision(5));
    let compact = world.run(Command::Compact(Revision(5))).unwrap();
    assert_eq!(compact.revision(), Revision(5));
}

#[test]
fn a_deletion_starts_the_version_anew() {
    let mut world = World::new();
    world.put("k", "1");
    world.put("k", "2");
    let row = world.reader.get(b"k").0.unwrap();
    let figures = |kv: &KeyValue| (kv.create_revision.get(), kv.mod_revision.get(), kv.version);
    assert_eq!(figures(&row), (2, 3, 2));
    let reply = world.delete("k".into());
    assert_eq!((reply.deleted, &reply.prev_kvs[..]), (1, &[row][..]));
    assert_eq!(world.reader.get(b"k"), (None, Revision(4)));
    world.put("k", "3");
    assert_eq!(figures(&world.reader.get(b"k").0.unwrap()), (5, 5, 1));
}

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
    let refusal = Refusal::Future { asked: Revision(6), newest: Revision(5) };
    assert_eq!(look(at(6)), Err(refusal));
}

#[test]
fn limit_bounds_count_and_more_mean_what_they_mean_in_etcd() {
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
    assert_eq!(ask(&|range| range.range = KeyRange::from("c")), is("cd", false, 2));
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
fn rows_without_values_keep_everything_else() {
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
fn a_put_can_keep_the_value_or_the_lease() {
    let mut world = World::new();
    let lease = world.grant(None);
    let keep_value = |key: &'static str| Put { value: PutValue::Keep, ..Put::new(key, "") };
    let keep_lease = |key: &'static str| Put { lease: PutLease::Keep, ..Put::new(key, "new") };
    for put in [keep_value("k"), keep_lease("k")] {
        assert_eq!(world.run(Command::Put(put)), Err(Refusal::KeyNotFound));
    }
    assert_eq!(world.reader.revision(), Revision(1));
    for bytes in [10, 5000] {
        let value = Bytes::from(vec![1; bytes]);
        let put = Put { lease: PutLease::Attach(lease), ..Put::new("k", value.clone()) };
        world.run(Command::Put(put)).unwrap();
        world.run(Command::Put(keep_lease("k"))).unwrap();
        let row = world.reader.get(b"k").0.unwrap();
        assert_eq!((&row.value[..], row.lease), (&b"new"[..], Some(lease)));
        world.run(Command::Put(Put::new("k", value.clone()))).unwrap();
        assert_eq!(world.reader.lease(lease).unwrap().keys, Vec::<Bytes>::new(), "detached");
        world.run(Command::Put(keep_value("k"))).unwrap();
        let row = world.reader.get(b"k").0.unwrap();
        assert_eq!((row.value, row.lease), (value, None));
    }
    let unknown = LeaseId::new(99).unwrap();
    let put = Put { lease: PutLease::Attach(unknown), ..Put::new("k", "") };
    assert_eq!(world.run(Command::Put(put)), Err(Refusal::LeaseNotFound(unknown)));
}

#[test]
fn compares_look_at_the_state_before_the_transaction_and_ranges_at_their_place_in_it() {
    let mut world = World::new();
    world.put("a", "1");
    let nested = Txn {
        compares: vec![Compare::value("a").eq("1")],
        success: vec![Op::put("seen", "before")],
        failure: vec![Op::put("seen", "after")],
    };
    let txn = Txn {
        compares: vec![Compare::exists("a")],
        success: vec![
            Op::get("a"),
            Op::put("a", "2"),
            Op::get("a"),
            nested.into(),
            Op::Range(Range { revision: at(2), ..Range::new("a") }),
            Op::delete(KeyRange::prefix("z")),
        ],
        failure: vec![],
    };
    let reply = world.txn(txn).unwrap();
    assert_eq!((reply.revision, reply.succeeded), (Revision(3), true));
    let shown: Vec<String> = reply
        .results
        .iter()
        .map(|result| match result {
            TxnResult::Range(reply) => format!("{}@{}", text(&reply.kvs[0].value), reply.revision),
            TxnResult::Put(reply) => format!("put@{}", reply.revision),
            TxnResult::Delete(reply) => format!("deleted {}@{}", reply.deleted, reply.revision),
            TxnResult::Txn(reply) => format!("txn {}@{}", reply.succeeded, reply.revision),
        })
        .collect();
    assert_eq!(shown, ["1@2", "put@3", "2@3", "txn true@3", "1@3", "deleted 0@3"]);
    assert_eq!(&world.reader.get(b"seen").0.unwrap().value[..], b"before");
}

#[test]
fn a_compare_of_a_missing_key_sees_zeros_and_no_value() {
    let mut world = World::new();
    world.put("p/1", "x");
    world.put("p/2", "y");
    let holds = |world: &World, compare: Compare| {
        let txn = Txn { compares: vec![compare], ..Txn::default() };
        world.reader.read_txn(&txn).unwrap().succeeded
    };
    let all = || KeyRange::prefix("p/");
    for (want, compare) in [
        (true, Compare::missing("m")),
        (false, Compare::exists("m")),
        (true, Compare::mod_revision("m").lt(1)),
        (true, Compare::create_revision("m").eq(0)),
        (true, Compare::lease("m").eq(0u64)),
        (false, Compare::value("m").eq("")),
        (false, Compare::value("m").ne("x")),
        (false, Compare::value("m").lt("x")),
        (true, Compare::value("p/1").eq("x")),
        (true, Compare::value("p/1").lt("xa")),
        (true, Compare::version(all()).eq(1u64)),
        (true, Compare::value(all()).gt("w")),
        (false, Compare::value(all()).eq("x")),
        (false, Compare::value(all()).eq("y")),
        (true, Compare::version(KeyRange::prefix("q/")).eq(0u64)),
        (false, Compare::value(KeyRange::prefix("q/")).ne("x")),
    ] {
        assert_eq!(holds(&world, compare.clone()), want, "{compare:?}");
    }
}

#[test]
fn a_transaction_that_cannot_finish_does_nothing() {
    let mut world = World::new();
    world.put("a", "1");
    world.put("a", "2");
    world.run(Command::Compact(Revision(3))).unwrap();
    let unknown = LeaseId::new(99).unwrap();
    let range = |revision| Op::Range(Range { revision: at(revision), ..Range::new("a") });
    let lease = Op::Put(Put { lease: PutLease::Attach(unknown), ..Put::new("b", "") });
    let keep = Op::Put(Put { value: PutValue::Keep, ..Put::new("b", "") });
    let compacted = Refusal::Compacted { asked: Revision(2), compacted: Revision(3) };
    let future = Refusal::Future { asked: Revision(4), newest: Revision(3) };
    let duplicate = Refusal::DuplicateKey("a".into());
    for (op, refusal) in [
        (range(2), compacted),
        (range(4), future),
        (lease, Refusal::LeaseNotFound(unknown)),
        (keep, Refusal::KeyNotFound),
        (Op::put("a", ""), duplicate.clone()),
        (Op::delete(KeyRange::prefix("a")), duplicate),
        (Op::put("", ""), Refusal::EmptyKey),
    ] {
        let before = (world.reader.get(b"a"), world.machine.store.fingerprint());
        let inner = Txn { success: vec![op.clone()], ..Txn::default() };
        for op in [op, Op::Txn(inner)] {
            let success = vec![Op::put("a", "3"), op];
            let txn = Txn { success, ..Txn::default() };
            assert_eq!(world.txn(txn), Err(refusal.clone()));
        }
        assert_eq!(before, (world.reader.get(b"a"), world.machine.store.fingerprint()));
    }
    // In the branch that does not run, only the structure matters.
    let failure = vec![range(2), range(99)];
    let txn = Txn { success: vec![range(3)], failure, ..Txn::default() };
    assert!(world.txn(txn).is_ok());
}

#[test]
fn an_end_of_a_lease_deletes_its_keys_in_key_order_in_one_revision() {
    let mut world = World::new();
    let (lease, other) = (world.grant(Some(7)), world.grant(None));
    for key in ["c", "a", "b", "moved", "freed"] {
        world.put_with(key, lease);
    }
    world.put_with("moved", other);
    world.put("freed", "");
    let applied = world.apply(Command::Revoke(lease));
    let reply = RevokeReply { revision: Revision(9), deleted: 3 };
    assert_eq!(applied.outcomes[0].1, Ok(Reply::Revoke(reply)));
    assert_eq!(applied.leases, [LeaseChange::Ended { id: lease }]);
    let [change] = &applied.changes[..] else { panic!("one revision") };
    let keys: Vec<_> = change.events.iter().map(|event| text(&event.kv.key)).collect();
    assert_eq!((change.revision, keys), (Revision(9), ["a", "b", "c"].map(str::to_owned).into()));
    for event in change.events.iter() {
        assert_eq!((event.kind, event.kv.lease), (EventKind::Delete, None));
        assert_eq!(event.prev.as_ref().unwrap().lease, Some(lease));
    }
    assert_eq!(world.keys(KeyRange::all()), ["freed", "moved"]);
    assert_eq!(world.run(Command::Revoke(lease)), Err(Refusal::LeaseNotFound(lease)));
    let idle = world.grant(None);
    let applied = world.apply(Command::Revoke(idle));
    assert!(applied.changes.is_empty());
    assert_eq!(applied.outcomes[0].1.as_ref().unwrap().revision(), Revision(9));
}

#[test]
fn an_expiry_counts_only_in_an_entry_of_the_term_that_counted() {
    let mut world = World::new();
    let (first, second) = (world.grant(None), world.grant(None));
    world.put_with("a", first);
    world.put_with("b", second);
    let gone = LeaseId::new(1000).unwrap();
    let expire = |term| Item::Expire { term, leases: vec![second, gone, first, second] };
    let digest = world.machine.digest();
    for term in [Term(0), Term(2)] {
        assert_eq!(world.entry(vec![expire(term)]), Applied::default());
    }
    assert_ne!(world.machine.digest(), digest, "applied all the same");
    let applied = world.entry(vec![expire(Term(1))]);
    let ended = [second, first].map(|id| LeaseChange::Ended { id });
    assert_eq!(applied.leases, ended);
    let revisions: Vec<_> = applied.changes.iter().map(|change| change.revision.get()).collect();
    assert_eq!(revisions, [4, 5], "one for each lease");
    assert_eq!(world.keys(KeyRange::all()), Vec::<String>::new());
}

#[test]
fn the_own_session_of_a_new_life_ends_those_of_earlier_lives() {
    let mut world = World::new();
    let grant = |own| Command::Grant {
        id: None,
        ttl: Duration::from_secs(5),
        session: Some(SessionInfo { label: "n1".into(), own }),
    };
    let mut ask = |life, seq, command| {
        let proposal = proposal(5, life, (1, &[]), vec![(seq, command)]);
        world.entry(vec![Item::Proposal(proposal)])
    };
    let granted = |applied: &Applied| match &applied.outcomes[0].1 {
        Ok(Reply::Grant(reply)) => reply.id,
        other => panic!("{other:?}"),
    };
    let old = granted(&ask(1, 1, grant(true)));
    let more = granted(&ask(1, 2, grant(false)));
    let second = granted(&ask(1, 3, grant(true)));
    for (seq, key, lease) in [(4, "y", old), (5, "x", old), (6, "z", second), (7, "w", more)] {
        let put = Put { lease: PutLease::Attach(lease), ..Put::new(key, "") };
        assert!(ask(1, seq, Command::Put(put)).outcomes[0].1.is_ok());
    }
    let applied = ask(2, 1, grant(true));
    let own = granted(&applied);
    let [a, b, c] = &applied.leases[..] else { panic!("{applied:?}") };
    assert_eq!([a, b], [old, second].map(|id| LeaseChange::Ended { id }).each_ref());
    assert!(
        matches!(c, LeaseChange::Granted { id, session: Some((_, Incarnation(2), _)), .. } if *id == own)
    );
    assert_eq!(applied.changes.len(), 2);
    assert_eq!(applied.outcomes[0].1.as_ref().unwrap().revision(), Revision(7));
    assert_eq!(world.keys(KeyRange::all()), ["w"], "its other sessions live on");
}

#[test]
fn a_request_that_arrives_twice_is_applied_once() {
    let mut world = World::new();
    let twice = proposal(2, 1, (1, &[]), vec![(1, put("k", "1")), (2, put("k", "2"))]);
    let first = world.entry(vec![Item::Proposal(twice.clone())]);
    let second = world.entry(vec![Item::Proposal(twice.clone()), Item::Proposal(twice.clone())]);
    assert_eq!(second.outcomes, [&first.outcomes[..], &first.outcomes[..]].concat());
    assert!(second.changes.is_empty());
    assert_eq!(world.reader.get(b"k").0.unwrap().version, 2);
    // Closed by a later window; the old proposal arrives once more.
    world.entry(vec![Item::Proposal(proposal(2, 1, (3, &[]), vec![]))]);
    let third = world.entry(vec![Item::Proposal(twice.clone())]);
    assert!(third.outcomes.iter().all(|(_, outcome)| *outcome == Err(Refusal::Closed)));
    // A refusal is an answer too.
    let compact = |to| Command::Compact(Revision(to));
    let refused = proposal(2, 1, (3, &[]), vec![(3, compact(4)), (4, put("l", ""))]);
    let first = world.entry(vec![Item::Proposal(refused.clone())]);
    assert!(matches!(first.outcomes[0].1, Err(Refusal::Future { .. })));
    assert_eq!(world.entry(vec![Item::Proposal(refused)]).outcomes, first.outcomes);
    // A new life: the same numbers are new requests, and the old life is over.
    let reborn = Proposal { incarnation: Incarnation(2), ..twice.clone() };
    assert!(world.entry(vec![Item::Proposal(reborn)]).outcomes.iter().all(|(_, o)| o.is_ok()));
    let late = world.entry(vec![Item::Proposal(twice)]);
    assert!(late.outcomes.iter().all(|(_, outcome)| *outcome == Err(Refusal::Closed)));
    assert_eq!(world.reader.get(b"k").0.unwrap().version, 4);
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
fn compaction_keeps_what_a_read_and_a_watch_from_it_see() {
    let mut world = World::with(MachineOptions { sweep_rows: 0 });
    world.put("gone", "1"); // 2
    world.put("kept", "1"); // 3
    world.put("kept", "2"); // 4
    world.delete("gone".into()); // 5
    world.put("kept", "3"); // 6
    let compact = |world: &mut World, to| world.run(Command::Compact(Revision(to)));
    assert_eq!(
        compact(&mut world, 7),
        Err(Refusal::Future { asked: Revision(7), newest: Revision(6) })
    );
    assert!(compact(&mut world, 0).is_ok(), "once, on a store that was never compacted");
    assert!(compact(&mut world, 0).is_err());
    assert!(compact(&mut world, 5).is_ok());
    let again = Refusal::Compacted { asked: Revision(5), compacted: Revision(5) };
    assert_eq!(compact(&mut world, 5), Err(again));
    for swept in [false, true] {
        let read = |revision| {
            let range = Range { revision: at(revision), ..Range::new(KeyRange::all()) };
            world.reader.range(&range).map(|reply| names(&reply).concat())
        };
        assert_eq!(read(5).unwrap(), "kept");
        assert_eq!(read(6).unwrap(), "kept");
        let refusal = Refusal::Compacted { asked: Revision(4), compacted: Revision(5) };
        assert_eq!(read(4), Err(refusal.clone()));
        let events = |from| world.reader.events(&KeyRange::all(), Revision(from), 1 << 20);
        assert_eq!(events(4), Err(refusal));
        let page = events(5).unwrap();
        let [delete, put] = &page.changes[..] else { panic!("{swept} {page:?}") };
        assert_eq!(delete.events[0].kind, EventKind::Delete);
        assert_eq!(delete.events[0].prev, None, "compacted away");
        assert_eq!(&put.events[0].prev.as_ref().unwrap().value[..], b"2");
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
fn the_sweep_gives_everything_back_and_waits_for_readers() {
    let mut world = World::with(MachineOptions { sweep_rows: 0 });
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
    let old = Snapshot::new(&shared, Revision(500));
    let reply = old.range(&Range::new(KeyRange::all()), newest);
    assert_eq!(reply.count, 50);
    assert_eq!(shared.state().history.first(), Revision(501));
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
    let mut world = World::with(MachineOptions { sweep_rows: 1 });
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
fn history_comes_in_pages_of_whole_revisions_with_the_rows_before() {
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
            for event in change.events.iter() {
                assert_eq!(event.revision(), change.revision);
                let prev = event.prev.as_ref().map_or("-".into(), |kv| text(&kv.value));
                let (key, value) = (text(&event.kv.key), text(&event.kv.value));
                shown.push(format!("{} {key}={value} was {prev}", change.revision));
            }
        }
    }
    assert_eq!(shown, ["2 a=1 was -", "4 b=2 was -", "4 a=2 was 1", "5 a= was 2"]);
    assert_eq!(next, Revision(6));
    let page = world.reader.events(&range, Revision(100), 1).unwrap();
    assert_eq!((page.changes.len(), page.next), (0, Revision(100)));
}

#[test]
fn the_changes_of_an_entry_are_what_history_tells_later() {
    let mut world = World::new();
    let lease = world.grant(None);
    let mut told = Vec::new();
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
        told.extend(world.apply(command).changes);
    }
    told.extend(world.apply(Command::Revoke(lease)).changes);
    let page = world.reader.events(&KeyRange::all(), Revision(1), usize::MAX).unwrap();
    assert_eq!(page.changes, told);
    let revisions: Vec<_> = told.iter().map(|change| change.revision.get()).collect();
    assert_eq!(revisions, (2..2 + told.len() as u64).collect::<Vec<_>>(), "dense");
}

#[test]
fn a_long_range_is_read_at_one_revision_while_the_writer_goes_on() {
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
fn replicas_that_applied_the_same_have_the_same_digest_and_others_do_not() {
    let run = |sweep_rows, last: &str| {
        let mut world = World::with(MachineOptions { sweep_rows });
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
        let rows = state.kvs.iter().map(|kv| Snapshot::new(&shared, newest).get(&kv.key).unwrap());
        let live = rows.fold(0u64, |sum, row| sum.wrapping_add(row.view().fingerprint()));
        assert_eq!(live, world.machine.store.fingerprint()[0], "the newest rows, and nothing else");
        world.machine.digest()
    };
    assert_eq!(run(0, "x"), run(1000, "x"));
    assert_ne!(run(0, "x"), run(0, "y"));
}

#[test]
fn a_row_that_rots_in_memory_is_named() {
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
fn the_scrub_visits_every_version_of_every_key() {
    let mut world = World::new();
    for number in 0..30 {
        world.put("hot", &number.to_string());
        world.put(&format!("k{number}"), "");
    }
    // An old version, in the middle of many.
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

#[test]
fn entries_must_follow_each_other() {
    let mut world = World::new();
    for found in [0, 1, 3, u64::MAX].map(LogIndex) {
        let refused = world.machine.apply(found, Term(1), vec![]);
        assert_eq!(refused, Err(Fault::OutOfOrder { found, applied: LogIndex(1) }));
    }
    assert_eq!(world.machine.apply(LogIndex(2), Term(1), vec![]), Ok(Applied::default()));
}

#[test]
fn whatever_an_entry_holds_is_refused_or_applied_and_never_a_panic() {
    let empty = || KeyRange::key("");
    let deep = (0..1000)
        .fold(Txn::default(), |txn, _| Txn { success: vec![Op::Txn(txn)], ..Txn::default() });
    let wide = Txn { success: vec![Op::get("k"); STRUCTURE.txn_ops_max + 1], ..Txn::default() };
    let session = |own| Some(SessionInfo { label: "\0".repeat(1000), own });
    let grant = |ttl, session| Command::Grant { id: LeaseId::new(u64::MAX), ttl, session };
    let commands = vec![
        put("", "x"),
        Command::Delete(Delete::new(empty())),
        Command::Delete(Delete::new(KeyRange::between("", "z"))),
        Command::Delete(Delete::new(KeyRange::between("z", ""))),
        Command::Txn(deep),
        Command::Txn(wide),
        Command::Txn(Txn { compares: vec![Compare::value(empty()).eq("")], ..Txn::default() }),
        Command::Compact(Revision(u64::MAX)),
        Command::Revoke(LeaseId::new(u64::MAX).unwrap()),
        grant(Duration::ZERO, None),
        grant(Duration::MAX, session(true)),
        grant(Duration::from_millis(1), session(true)),
        grant(Duration::from_millis(1), session(false)),
        Command::Put(Put { value: PutValue::Keep, lease: PutLease::Keep, ..Put::new("k", "") }),
        put("k", &"v".repeat(3 << 20)),
    ];
    let mut world = World::new();
    for command in &commands {
        let _ = world.run(command.clone());
    }
    let revision = world.reader.revision();
    for seq in [0, u64::MAX, 1, u64::MAX - 1] {
        for life in [0, u64::MAX, 1] {
            for window in [(0, &[][..]), (u64::MAX, &[0..u64::MAX, 5..5, 3..9]), (7, &[1..2])] {
                let requests = commands.iter().cloned().map(|command| (seq, command)).collect();
                let proposal = proposal(9, life, window, requests);
                world.entry(vec![Item::Proposal(proposal)]);
            }
        }
    }
    assert!(world.reader.revision() >= revision);
    for revision in [0, 1, u64::MAX].map(Revision) {
        let _ = world.reader.events(&KeyRange::all(), revision, usize::MAX);
        let _ = world.reader.events(&empty(), revision, 0);
        let range = Range { revision: Some(revision), limit: Some(0), ..Range::new(empty()) };
        let _ = world.reader.range(&range);
    }
    assert_eq!(*KeyRange::prefix([0xff; 9].to_vec()).end(), RangeEnd::Unbounded);
}
