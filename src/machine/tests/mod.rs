//! Tests of the machine as a whole: each test applies log entries, and checks the replies and the
//! results of reads.

#![allow(clippy::single_range_in_vec_init, reason = "one open span is meant")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;

use super::execute::STRUCTURE;
use super::shared::Snapshot;
use super::*;
use crate::model::samples::node;
use crate::model::{
    AckWindow, Command, Compare, Delete, DeleteReply, EventKind, KeyRange, KeyValue,
    MemberAttributes, Op, Put, PutLease, PutValue, Range, RangeEnd, RangeReply, Rejection, Reply,
    RevisionBounds, RevokeReply, Sort, SortOrder, SortTarget, Txn, TxnReply, TxnResult,
};

mod access;
mod alarms;
mod forgetting;
mod images;
mod leases;
mod members;
mod reads;

/// A machine that applies one command per entry.
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

    fn txn(&mut self, txn: Txn) -> Result<TxnReply, Rejection> {
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

fn proposal(
    from: u64,
    life: u64,
    (frontier, open): (u64, &[std::ops::Range<u64>]),
    requests: Vec<(u64, Command)>,
) -> Proposal {
    let window = AckWindow { frontier, open: open.to_vec() };
    Proposal { node: node(from), incarnation: Incarnation(life), window, requests }
}

/// Returns the machine rebuilt from an image.
fn restored(machine: &Machine) -> Machine {
    let mut image = machine.image();
    let pieces: Vec<_> = std::iter::from_fn(|| image.next(100).unwrap()).collect();
    Machine::restore(MachineOptions::default(), image.head().clone(), pieces).unwrap()
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
fn new_store_is_empty_at_revision_one() {
    let world = World::new();
    assert_eq!(world.reader.revision(), Revision(1));
    let reply = world.reader.range(&Range::new(KeyRange::all())).unwrap();
    assert_eq!(reply, RangeReply { revision: Revision(1), kvs: vec![], more: false, count: 0 });
    assert_eq!(world.machine.applied(), LogIndex(1));
}

#[test]
fn only_changing_requests_take_a_revision() {
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
fn deletion_resets_the_version() {
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
fn a_put_can_keep_the_value_or_the_lease() {
    let mut world = World::new();
    let lease = world.grant(None);
    let keep_value = |key: &'static str| Put { value: PutValue::Keep, ..Put::new(key, "") };
    let keep_lease = |key: &'static str| Put { lease: PutLease::Keep, ..Put::new(key, "new") };
    for put in [keep_value("k"), keep_lease("k")] {
        assert_eq!(world.run(Command::Put(put)), Err(Rejection::KeyNotFound));
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
    assert_eq!(world.run(Command::Put(put)), Err(Rejection::LeaseNotFound(unknown)));
}

#[test]
fn compares_see_the_state_before_the_transaction_and_ranges_within() {
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
fn failing_transaction_has_no_effect() {
    let mut world = World::new();
    world.put("a", "1");
    world.put("a", "2");
    world.run(Command::Compact(Revision(3))).unwrap();
    let unknown = LeaseId::new(99).unwrap();
    let range = |revision| Op::Range(Range { revision: at(revision), ..Range::new("a") });
    let lease = Op::Put(Put { lease: PutLease::Attach(unknown), ..Put::new("b", "") });
    let keep = Op::Put(Put { value: PutValue::Keep, ..Put::new("b", "") });
    let compacted = Rejection::Compacted { asked: Revision(2), compacted: Revision(3) };
    let future = Rejection::Future { asked: Revision(4), newest: Revision(3) };
    let duplicate = Rejection::DuplicateKey("a".into());
    for (op, rejection) in [
        (range(2), compacted.clone()),
        (range(4), future),
        (lease, Rejection::LeaseNotFound(unknown)),
        (keep, Rejection::KeyNotFound),
        (Op::put("a", ""), duplicate.clone()),
        (Op::delete(KeyRange::prefix("a")), duplicate),
        (Op::put("", ""), Rejection::EmptyKey),
    ] {
        let before = (world.reader.get(b"a"), world.machine.store.fingerprint());
        let inner = Txn { success: vec![op.clone()], ..Txn::default() };
        for op in [op, Op::Txn(inner)] {
            let success = vec![Op::put("a", "3"), op];
            let txn = Txn { success, ..Txn::default() };
            assert_eq!(world.txn(txn), Err(rejection.clone()));
        }
        assert_eq!(before, (world.reader.get(b"a"), world.machine.store.fingerprint()));
    }
    // If several operations are invalid, etcd 3.6 reports the reason of the first one. For a put
    // inside a transaction, etcd first checks whether the kept value exists. For a single put, etcd
    // first checks the lease.
    let wants = |key: &'static str| Put { lease: PutLease::Attach(unknown), ..Put::new(key, "") };
    let both = Put { value: PutValue::Keep, ..wants("b") };
    let nested = |op| Op::Txn(Txn { success: vec![op], ..Txn::default() });
    for (success, rejection) in [
        (vec![Op::Put(wants("b")), range(2)], Rejection::LeaseNotFound(unknown)),
        (vec![range(2), Op::Put(wants("b"))], compacted.clone()),
        (vec![nested(range(2)), Op::Put(wants("b"))], compacted.clone()),
        (vec![Op::Put(both.clone())], Rejection::KeyNotFound),
        (vec![Op::Put(wants("c")), Op::Put(both.clone())], Rejection::LeaseNotFound(unknown)),
    ] {
        assert_eq!(world.txn(Txn { success, ..Txn::default() }), Err(rejection));
    }
    assert_eq!(world.run(Command::Put(both)), Err(Rejection::LeaseNotFound(unknown)));
    // In the branch that is not executed, only the structure is checked.
    let failure = vec![range(2), range(99)];
    let txn = Txn { success: vec![range(3)], failure, ..Txn::default() };
    assert!(world.txn(txn).is_ok());
}

#[test]
fn duplicate_request_is_applied_once() {
    let mut world = World::new();
    let twice = proposal(2, 1, (1, &[]), vec![(1, put("k", "1")), (2, put("k", "2"))]);
    let first = world.entry(vec![Item::Proposal(twice.clone())]);
    let second = world.entry(vec![Item::Proposal(twice.clone()), Item::Proposal(twice.clone())]);
    assert_eq!(second.outcomes, [&first.outcomes[..], &first.outcomes[..]].concat());
    assert!(second.changes.is_empty());
    assert_eq!(world.reader.get(b"k").0.unwrap().version, 2);
    // A later window marks the requests as completed. Then the old proposal arrives again.
    world.entry(vec![Item::Proposal(proposal(2, 1, (3, &[]), vec![]))]);
    let third = world.entry(vec![Item::Proposal(twice.clone())]);
    assert!(third.outcomes.iter().all(|(_, outcome)| *outcome == Err(Rejection::Closed)));
    // The table also stores rejections as replies.
    let compact = |to| Command::Compact(Revision(to));
    let refused = proposal(2, 1, (3, &[]), vec![(3, compact(4)), (4, put("l", ""))]);
    let first = world.entry(vec![Item::Proposal(refused.clone())]);
    assert!(matches!(first.outcomes[0].1, Err(Rejection::Future { .. })));
    assert_eq!(world.entry(vec![Item::Proposal(refused)]).outcomes, first.outcomes);
    // In a new incarnation, the same numbers are new requests, and all requests of the old
    // incarnation are completed.
    let reborn = Proposal { incarnation: Incarnation(2), ..twice.clone() };
    assert!(world.entry(vec![Item::Proposal(reborn)]).outcomes.iter().all(|(_, o)| o.is_ok()));
    let late = world.entry(vec![Item::Proposal(twice)]);
    assert!(late.outcomes.iter().all(|(_, outcome)| *outcome == Err(Rejection::Closed)));
    assert_eq!(world.reader.get(b"k").0.unwrap().version, 4);
}

#[test]
fn entries_must_be_consecutive() {
    let mut world = World::new();
    for found in [0, 1, 3, u64::MAX].map(LogIndex) {
        let refused = world.machine.apply(found, Term(1), vec![]);
        assert_eq!(refused, Err(Fault::OutOfOrder { found, applied: LogIndex(1) }));
    }
    assert_eq!(world.machine.apply(LogIndex(2), Term(1), vec![]), Ok(Applied::default()));
}

#[test]
fn arbitrary_entry_never_panics() {
    let empty = || KeyRange::key("");
    let deep = (0..1000)
        .fold(Txn::default(), |txn, _| Txn { success: vec![Op::Txn(txn)], ..Txn::default() });
    let wide = Txn { success: vec![Op::get("k"); STRUCTURE.txn_ops_max + 1], ..Txn::default() };
    let session = |own| Some(SessionInfo { label: "\0".repeat(1000), own });
    let grant = |ttl, session| Command::Grant { id: LeaseId::new(u64::MAX), ttl, session };
    let commands = vec![
        put("", "x"),
        Command::Delete(Delete::new(empty())),
        Command::Delete(Delete::new(KeyRange::from_parts("", RangeEnd::Before("z".into())))),
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

/// If the rows were kept, every replica would have all replies to an entry in memory at once, also
/// during the replay at each start.
#[test]
fn rows_of_remote_requests_are_not_kept() {
    let filled = || {
        let mut world = World::new();
        for key in 0..100 {
            world.put(&format!("k{key:03}"), "v");
        }
        world
    };
    let (mut all, mut mine) = (filled(), filled());
    mine.machine.answer_only(node(2), Incarnation(3));
    let looks = || {
        let success = vec![Op::Range(Range::new(KeyRange::all())), Op::put("x", "")];
        Command::Txn(Txn { success, ..Txn::default() })
    };
    let few = || {
        let success = vec![Op::get("k000"), Op::put("y", "")];
        Command::Txn(Txn { success, ..Txn::default() })
    };
    let of = |from, life| {
        let mut requests: Vec<_> = (1..=500).map(|seq| (seq, looks())).collect();
        requests.push((501, few()));
        requests.push((502, Command::Compact(Revision(1 << 40))));
        Item::Proposal(proposal(from, life, (1, &[]), requests))
    };
    let rows = |applied: &Applied| -> usize {
        let of = |outcome: &Outcome| match outcome {
            Ok(Reply::Txn(reply)) => match &reply.results[0] {
                TxnResult::Range(range) => range.kvs.len(),
                other => panic!("{other:?}"),
            },
            _ => 0,
        };
        applied.outcomes.iter().map(|(_, outcome)| of(outcome)).sum()
    };
    // Try a request of another node, a request of this node in an earlier incarnation, and a
    // request of this node in its current incarnation.
    for (from, life, expected) in [(3, 3, 0), (2, 2, 0), (2, 3, 51_001)] {
        let whole = all.entry(vec![of(from, life)]);
        let reported = mine.entry(vec![of(from, life)]);
        assert_eq!(rows(&reported), expected, "of {from}, in its life {life}");
        for ((id, whole), (same, reported)) in whole.outcomes.iter().zip(&reported.outcomes) {
            assert_eq!(id, same);
            let revision = |outcome: &Outcome| outcome.clone().map(|reply| reply.revision());
            assert_eq!(revision(whole), revision(reported), "both report whether it was applied");
        }
        // Both machines must have the same dedup table, although only one of them returned all
        // replies.
        assert_eq!(all.machine.digest(), mine.machine.digest());
        for seq in 1..=502 {
            let id = RequestId { node: node(from), incarnation: Incarnation(life), seq };
            assert_eq!(all.machine.answer(id), mine.machine.answer(id));
        }
    }
}
