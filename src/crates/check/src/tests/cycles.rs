//! Tests of the transaction checkers: histories with a known verdict at each level (`histories/list_append.txt`,
//! `histories/write_read.txt`), thousands of small random histories compared with an oracle that tries every order,
//! and long histories with one fault.

use std::collections::BTreeMap;

use super::oracle;
use super::small::Random;
use crate::lines::{self, Written};
use crate::{
    At, History, Index, Level, ListAppend, ListTxn, Model, Operation, Outcome, RegisterTxn,
    TxnStep, Undecided, Value, Verdict, WriteRead, cycles,
};

type Lists = History<ListTxn, Vec<Vec<Value>>>;
type Registers = History<RegisterTxn, Vec<Option<Value>>>;

/// Checks each section of a file. `## good: name` is a good history. `## LEVEL bad [operations] rule: name` is bad at
/// that level and above, and good below.
fn fixtures<C: Written>(text: &str, check: impl Fn(&History<C, C::Reply>, Level) -> Verdict) {
    let (mut good, mut bad) = (0, 0);
    let mut problems = Vec::new();
    for section in text.split("\n## ").skip(1) {
        let (header, body) = section.split_once('\n').unwrap();
        let (expected, name) = header.split_once(": ").unwrap();
        let history = lines::read::<C>(body.as_bytes())
            .unwrap_or_else(|error| panic!("{name}: {error}"))
            .history;
        let mut weakest = None;
        for level in Level::ALL {
            let verdict = check(&history, level);
            match verdict.violation() {
                None => {
                    assert_eq!(verdict, Verdict::Ok, "{name}: at {level:?}");
                    assert_eq!(weakest, None, "{name}: worse below {level:?}");
                }
                Some(why) => {
                    let said = format!("bad {:?} {}", why.operations, why.rule);
                    assert!(!why.why.is_empty(), "{name}: no words");
                    let (_, before) =
                        weakest.get_or_insert_with(|| (level.name(), said.clone())).clone();
                    let said = match before.contains("-process") {
                        true => said.replace("-realtime", "-process"),
                        false => said,
                    };
                    assert_eq!(said, before, "{name}: something else at {level:?}: {why}");
                }
            }
        }
        let said = weakest.map_or("good".to_owned(), |(level, said)| format!("{level} {said}"));
        if said != expected {
            problems.push(format!("{name}: {said}: {}", check(&history, Level::default())));
        }
        if said == "good" {
            good += 1
        } else {
            bad += 1
        }
        let mut written = Vec::new();
        lines::write(&history, &mut written).unwrap();
        let again = lines::read::<C>(&written[..]).unwrap().history;
        let text = |history: &History<C, C::Reply>| -> Vec<String> {
            history.iter().map(lines::line).collect()
        };
        assert_eq!(text(&again), text(&history), "{name}: it is written as it was read");
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(good >= 15 && bad >= 15, "{good} good, {bad} bad");
}

#[test]
fn list_transactions_are_checked_at_each_level() {
    fixtures::<ListTxn>(include_str!("histories/list_append.txt"), |history, level| {
        cycles::lists(history, level)
    });
}

#[test]
fn register_transactions_are_checked_at_each_level() {
    fixtures::<RegisterTxn>(include_str!("histories/write_read.txt"), |history, level| {
        cycles::registers(history, level)
    });
}

/// A model that can draw random steps and change the results of reads.
trait Sample: Model<Reply = Vec<Self::Held>> {
    type Held: Clone + Default + PartialEq + std::fmt::Debug;

    fn call(steps: Vec<TxnStep>) -> Self::Call;
    fn steps(call: &Self::Call) -> &[TxnStep];
    fn write(held: &mut Self::Held, value: &Value);
    /// Returns another possible result of a read.
    fn other(held: &Self::Held, random: &mut Random) -> Self::Held;
}

impl Sample for ListAppend {
    type Held = Vec<Value>;

    fn call(steps: Vec<TxnStep>) -> ListTxn {
        ListTxn(steps)
    }

    fn steps(call: &ListTxn) -> &[TxnStep] {
        &call.0
    }

    fn write(held: &mut Vec<Value>, value: &Value) {
        held.push(value.clone());
    }

    fn other(held: &Vec<Value>, random: &mut Random) -> Vec<Value> {
        let mut other = held.clone();
        match random.below(3) {
            0 => other.truncate(random.below(other.len() as u64 + 1) as usize),
            1 if other.len() > 1 => {
                let place = random.below(other.len() as u64 - 1) as usize;
                other.swap(place, place + 1);
            }
            _ => other.push(Value::Number(random.below(9) as i64)),
        }
        other
    }
}

impl Sample for WriteRead {
    type Held = Option<Value>;

    fn call(steps: Vec<TxnStep>) -> RegisterTxn {
        RegisterTxn(steps)
    }

    fn steps(call: &RegisterTxn) -> &[TxnStep] {
        &call.0
    }

    fn write(held: &mut Option<Value>, value: &Value) {
        *held = Some(value.clone());
    }

    fn other(_: &Option<Value>, random: &mut Random) -> Option<Value> {
        (random.below(4) > 0).then(|| Value::Number(random.below(9) as i64))
    }
}

/// Draws a random run of a correct database, except that transactions may read from old versions. Then it may change
/// one detail.
fn history<M: Sample>(
    random: &mut Random,
    count: u64,
    keys: &[&str],
) -> History<M::Call, Vec<M::Held>> {
    let sloppy = random.below(3);
    let mut versions: Vec<BTreeMap<&str, M::Held>> = vec![BTreeMap::new()];
    let mut history: History<M::Call, Vec<M::Held>> = Vec::new();
    let mut next_value = 0;
    for number in 0..count {
        let mut now = versions.last().unwrap().clone();
        let back = if sloppy > 0 { random.below(3) as usize } else { 0 };
        let base = versions[versions.len() - 1 - back.min(versions.len() - 1)].clone();
        let mut own: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        let (mut steps, mut seen) = (Vec::new(), Vec::new());
        for _ in 0..1 + random.below(3) {
            let key = keys[random.below(keys.len() as u64) as usize];
            if random.below(2) == 0 {
                let value = Value::Number(next_value);
                next_value += 1;
                M::write(now.entry(key).or_default(), &value);
                own.entry(key).or_default().push(value.clone());
                steps.push(TxnStep::Write(key.into(), value));
            } else {
                let from = if sloppy == 2 && random.below(2) == 0 { &now } else { &base };
                let mut held = from.get(key).cloned().unwrap_or_default();
                if !std::ptr::eq(from, &now) {
                    for value in own.get(key).into_iter().flatten() {
                        M::write(&mut held, value);
                    }
                }
                steps.push(TxnStep::Read(key.into()));
                seen.push(held);
            }
        }
        let invoked = 3 * number + random.below(6);
        let fate = random.below(20);
        let call = M::call(steps);
        let operation = match fate {
            0 => Operation::failed(invoked, call),
            1 => Operation::unknown(invoked, call),
            _ => Operation::ok(invoked, invoked + random.below(9), call, seen),
        };
        history.push(operation.by(random.below(3)));
        // A failed transaction does nothing; one of unknown outcome takes effect with probability 1/2.
        if fate > 1 || (fate == 1 && random.below(2) == 0) {
            versions.push(now);
        }
    }
    if random.below(3) == 0 {
        let place = random.below(count) as usize;
        match &mut history[place].outcome {
            Outcome::Ok { reply, .. } if !reply.is_empty() => {
                let read = random.below(reply.len() as u64) as usize;
                reply[read] = M::other(&reply[read], random);
            }
            outcome => *outcome = Outcome::Failed { at: None },
        }
    }
    history
}

/// Returns the history with all operations concurrent.
fn timeless<C: Clone, R: Clone>(history: &History<C, R>) -> History<C, R> {
    let at_once = |operation: &Operation<C, R>| {
        let mut operation = operation.clone();
        operation.invoked = At(0);
        if let Outcome::Ok { at, .. } = &mut operation.outcome {
            *at = At(1);
        }
        operation
    };
    history.iter().map(at_once).collect()
}

/// Returns whether snapshot isolation explains the history: in some order of commits, each transaction reads from one
/// earlier version, and no other transaction wrote to its written keys since that version.
fn snapshots_explain<M: Sample>(
    model: &M,
    history: &History<M::Call, Vec<M::Held>>,
    order: &mut Vec<Index>,
    versions: &mut Vec<M::State>,
) -> bool {
    let is_left = |index: &Index| !order.contains(index);
    let left: Vec<Index> = (0..history.len()).filter(is_left).collect();
    let must = |index: &Index| matches!(history[*index].outcome, Outcome::Ok { .. });
    let may = |index: &Index| !matches!(history[*index].outcome, Outcome::Failed { .. });
    if !left.iter().any(must) {
        return true;
    }
    left.into_iter().filter(may).any(|index| {
        let Operation { call, outcome, .. } = &history[index];
        let writes = |index: Index| {
            let steps = M::steps(&history[index].call).iter();
            steps.filter_map(|step| match step {
                TxnStep::Write(key, _) => Some(key),
                TxnStep::Read(_) => None,
            })
        };
        let reply = match outcome {
            Outcome::Ok { reply, .. } => Some(reply),
            _ => None,
        };
        let mut next = Vec::new();
        let fits = (0..versions.len()).any(|base| {
            let since = order[base..].iter().flat_map(|other| writes(*other));
            let mut since = since.collect::<Vec<_>>();
            since.retain(|key| writes(index).any(|own| own == *key));
            model.step(&versions[base], call, reply, &mut next);
            let said = !next.is_empty();
            next.clear();
            said && since.is_empty()
        });
        if !fits {
            return false;
        }
        model.step(versions.last().unwrap(), call, None, &mut next);
        versions.extend(next);
        order.push(index);
        let explained = snapshots_explain(model, history, order, versions);
        order.pop();
        versions.pop();
        explained
    })
}

/// Counts of how the checker and the oracles agreed on many histories.
#[derive(Default, Debug)]
struct Score {
    fine: u64,
    found: u64,
    /// Number of broken histories that the checker did not find.
    missed: u64,
}

const HISTORIES: u64 = 3_000;

fn scores<M: Sample>(
    model: &M,
    check: impl Fn(&History<M::Call, Vec<M::Held>>, Level) -> Verdict,
) -> BTreeMap<&'static str, Score>
where
    M::Call: std::fmt::Debug,
{
    let mut scores: BTreeMap<&str, Score> = BTreeMap::new();
    for seed in 0..HISTORIES {
        let random = &mut Random(seed * 7_919);
        let count = 2 + random.below(5);
        let history = history::<M>(random, count, &["x", "y"]);
        let plain = timeless(&history);
        let snapshot =
            snapshots_explain(model, &history, &mut Vec::new(), &mut vec![model.initial()]);
        let serial = oracle::explains(model, &plain);
        let strict = oracle::explains(model, &history);
        let truth = [
            (Level::SnapshotIsolation, snapshot),
            (Level::Serializable, serial),
            (Level::StrictSerializable, strict),
        ];
        for (level, is_fine) in truth {
            let verdict = check(&history, level);
            let score = scores.entry(level.name()).or_default();
            let told = || format!("seed {seed}: {verdict}\n{history:#?}");
            match &verdict {
                Verdict::Ok if is_fine => score.fine += 1,
                Verdict::Ok => score.missed += 1,
                Verdict::Violation(why) => {
                    assert!(!is_fine, "false violation: {}", told());
                    score.found += 1;
                    let without = |one: Option<&Index>| {
                        let operations = why.operations.iter().filter(|index| Some(*index) != one);
                        let operations: Vec<Index> = operations.copied().collect();
                        check(&kept::<M>(&history, &operations), level)
                    };
                    assert!(
                        !without(None).is_ok(),
                        "they contradict each other on their own: {}",
                        told()
                    );
                    for one in why.operations.iter().filter(|_| why.is_minimal) {
                        // Relaxing a transaction does not undo that another one read its writes, nor that it failed.
                        let is_smaller = without(Some(one)).violation().is_some_and(|less| {
                            let is_less = less.operations.len() < why.operations.len();
                            is_less && !less.operations.contains(one)
                        });
                        let failed = matches!(history[*one].outcome, Outcome::Failed { .. });
                        assert!(!is_smaller || failed, "{one} is not needed: {}", told());
                    }
                }
                Verdict::Undecided { .. } => panic!("{}", told()),
            }
        }
        // A violation at one level is a violation at all higher levels.
        let bad = Level::ALL.map(|level| !check(&history, level).is_ok());
        assert!(bad.is_sorted(), "seed {seed}: {bad:?} {history:#?}");
    }
    for (level, score) in &scores {
        let least = HISTORIES / 6;
        assert!(score.fine >= least && score.found >= least, "{level}: {score:?}");
    }
    scores
}

/// Returns the history with the outcomes of all other operations unknown.
fn kept<M: Sample>(
    history: &History<M::Call, Vec<M::Held>>,
    kept: &[Index],
) -> History<M::Call, Vec<M::Held>> {
    let mut history = history.clone();
    for (index, operation) in history.iter_mut().enumerate() {
        if !kept.contains(&index) && matches!(operation.outcome, Outcome::Ok { .. }) {
            operation.outcome = Outcome::Unknown { at: None };
        }
    }
    history
}

#[test]
fn list_checker_agrees_with_the_oracles() {
    let scores = scores(&ListAppend, cycles::lists);
    assert_eq!(scores["serializable"].missed, 0, "{scores:?}");
    assert_eq!(scores["strict-serializable"].missed, 0, "{scores:?}");
    // The checker misses only violations by concurrent appends that no transaction read.
    let snapshot = &scores["snapshot-isolation"];
    assert!(snapshot.missed * 50 <= snapshot.found, "{scores:?}");
}

#[test]
fn register_checker_reports_no_false_violations() {
    let scores = scores(&WriteRead, cycles::registers);
    for (level, score) in &scores {
        // The unknown order of some register writes hides some violations.
        assert!(score.missed * 4 <= score.found, "{level}: {scores:?}");
    }
}

fn appends(key: &str, value: i64) -> TxnStep {
    TxnStep::write(key, value)
}

fn list(values: impl IntoIterator<Item = i64>) -> Vec<Value> {
    values.into_iter().map(Value::from).collect()
}

/// Returns a history of transactions with two appends and two reads on `keys` lists, five at a time. After
/// `values_max` values a list is replaced by a new one.
fn long(count: u64, keys: u64, values_max: usize) -> Lists {
    let mut random = Random(count);
    let mut held: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut history: Lists = Vec::new();
    let mut generation = 0;
    for number in 0..count {
        let (mut steps, mut seen) = (Vec::new(), Vec::new());
        for step in 0..4 {
            let key = format!("{}.{generation}", random.below(keys));
            let list = held.entry(key.clone()).or_default();
            if step % 2 == 0 {
                let value = (4 * number + step) as i64;
                list.push(value.into());
                steps.push(appends(&key, value));
                if list.len() >= values_max {
                    generation += 1;
                }
            } else {
                steps.push(TxnStep::read(&key));
                seen.push(list.clone());
            }
        }
        let at = 10 * number;
        let (invoked, ended) = (at.saturating_sub(random.below(25)), at + random.below(25));
        history.push(match random.below(50) {
            0 => Operation::unknown(invoked, ListTxn(steps)),
            _ => Operation::ok(invoked, ended, ListTxn(steps), seen),
        });
    }
    history
}

#[test]
fn one_stale_read_among_100_000_transactions_is_found() {
    let mut history = long(100_000, 20, 60);
    assert_eq!(cycles::lists(&history, Level::StrictSerializable), Verdict::Ok);
    // A transaction in the middle reads a value from long before.
    let place = history.len() / 2;
    let Outcome::Ok { reply, .. } = &mut history[place..]
        .iter_mut()
        .find(|one| matches!(&one.outcome, Outcome::Ok { reply, .. } if reply[0].len() > 20))
        .expect("lists grow")
        .outcome
    else {
        unreachable!("it is ok")
    };
    reply[0].truncate(5);
    let verdict = cycles::lists(&history, Level::StrictSerializable);
    let why = verdict.violation().expect("it is stale");
    assert!(why.is_minimal && why.operations.len() <= 3, "{why}");
}

#[test]
fn many_mutual_anti_dependencies_are_checked_quickly() {
    // All transactions read nothing and append, so each misses the appends of all others.
    let txn = |n: i64| ListTxn(vec![TxnStep::read("x"), appends("y", n)]);
    let other = |n: i64| ListTxn(vec![TxnStep::read("y"), appends("x", n)]);
    let mut history: Lists = Vec::new();
    for n in 0..5_000 {
        history.push(Operation::ok(1, 9, txn(n), vec![vec![]]));
        history.push(Operation::ok(1, 9, other(n), vec![vec![]]));
    }
    assert_eq!(cycles::lists(&history, Level::SnapshotIsolation), Verdict::Ok);
    let verdict = cycles::lists(&history, Level::Serializable);
    assert_eq!(verdict.violation().map(|why| why.operations.len()), Some(2), "{verdict}");
}

#[test]
fn value_written_twice_to_one_key_is_undecided() {
    let txn = |key: &str| ListTxn(vec![appends(key, 1)]);
    let ok = |txn| Operation::ok(1, 2, txn, vec![]);
    let history: Lists = vec![ok(txn("x")), ok(txn("y")), ok(txn("x"))];
    let undecided = |why| Verdict::Undecided { object: String::new(), why, explored: 0 };
    let verdict = cycles::lists(&history, Level::default());
    assert_eq!(verdict, undecided(Undecided::Repeated(0, 2)));
    let twice: Lists = vec![ok(ListTxn(vec![appends("x", 1), appends("x", 1)]))];
    assert_eq!(cycles::lists(&twice, Level::default()), undecided(Undecided::Repeated(0, 0)));
    // The same key on another object is a different key.
    let apart: Lists = vec![ok(txn("x")), ok(txn("x")).on("other")];
    assert_eq!(cycles::lists(&apart, Level::default()), Verdict::Ok);
}

#[test]
fn read_uncommitted_still_needs_one_order_of_committed_appends() {
    let append = |value| ListTxn(vec![appends("x", value)]);
    let read = |values: &[i64]| {
        let values = vec![list(values.iter().copied())];
        Operation::ok(10, 11, ListTxn(vec![TxnStep::read("x")]), values)
    };
    let history = |reads: &[&[i64]]| -> Lists {
        let writes = [
            Operation::failed(1, append(1)),
            Operation::unknown(1, append(2)),
            Operation::ok(1, 9, append(3), vec![]),
            Operation::ok(1, 9, append(4), vec![]),
        ];
        writes.into_iter().chain(reads.iter().map(|values| read(values))).collect()
    };
    let rule = |reads: &[&[i64]], level| {
        cycles::lists(&history(reads), level).violation().map(|why| why.rule)
    };
    let (dirty, clean) = (Level::ReadUncommitted, Level::ReadCommitted);
    // 1 and 2 were in the list for a while.
    let fine: &[&[i64]] = &[&[1, 3], &[2, 3], &[1, 2], &[3, 4], &[2, 1, 3, 4]];
    assert_eq!(rule(fine, dirty), None);
    assert_eq!(rule(fine, clean), Some("aborted read (G1a)"));
    let without_failed: &[&[i64]] = &[&[2, 3], &[3, 4]];
    assert_eq!(rule(without_failed, dirty), None);
    assert_eq!(rule(without_failed, clean), Some("conflicting orders of one list"));
    for broken in [&[&[1, 3, 4][..], &[4, 3]], &[&[2, 4, 1], &[3, 2]], &[&[3, 4], &[1, 2, 4]]] {
        assert_eq!(rule(broken, dirty), Some("conflicting orders of one list"), "{broken:?}");
        assert!(rule(broken, clean).is_some(), "{broken:?}");
    }
    for (broken, expected) in [
        (&[&[1, 1][..], &[3]], "duplicate value in a list"),
        (&[&[1, 5], &[3]], "read of an unwritten value"),
    ] {
        assert_eq!(rule(broken, dirty), Some(expected), "{broken:?}");
    }
}

#[test]
fn objects_are_checked_independently() {
    let read = ListTxn(vec![TxnStep::read("x")]);
    let history: Lists = vec![
        Operation::ok(1, 2, ListTxn(vec![appends("x", 1)]), vec![]).on("a"),
        Operation::ok(3, 4, read.clone(), vec![list([])]).on("b"),
        Operation::ok(5, 6, read, vec![list([])]).on("a"),
    ];
    let verdict = cycles::lists(&history, Level::default());
    let why = verdict.violation().expect("a's read is stale");
    assert_eq!((why.object.as_str(), &why.operations[..]), ("a", &[0, 2][..]));
}

#[test]
fn each_edge_of_a_cycle_is_explained() {
    let history: Lists = vec![
        Operation::ok(1, 2, ListTxn(vec![appends("x", 1), appends("y", 1)]), vec![]),
        Operation::ok(1, 2, ListTxn(vec![appends("x", 2), appends("y", 2)]), vec![]),
        Operation::ok(
            3,
            4,
            ListTxn(vec![TxnStep::read("x"), TxnStep::read("y")]),
            vec![list([1, 2]), list([2, 1])],
        ),
    ];
    let verdict = cycles::lists(&history, Level::default());
    assert_eq!(
        verdict.violation().expect("there is a cycle").why,
        "the transactions form a cycle. #0 before #1: #2 read x with its value 1 before the value 2 of the \
         other; #1 before #0: #2 read y with its value 2 before the value 1 of the other"
    );
}

#[test]
fn register_cycles_explain_the_write_order() {
    let write = |n: i64| RegisterTxn(vec![TxnStep::write("x", n)]);
    let history: Registers = vec![
        Operation::ok(1, 2, write(1), vec![]),
        Operation::ok(3, 4, write(2), vec![]),
        Operation::ok(5, 6, RegisterTxn(vec![TxnStep::read("x")]), vec![Some(1.into())]),
    ];
    let verdict = cycles::registers(&history, Level::default());
    assert_eq!(
        verdict.violation().expect("it is stale").why,
        "the transactions form a cycle. #1 before #2: it had ended at 4, before the other was called at 5 \
         by the same process; #2 before #1: it read x as 1 from #0; the other wrote to x and was called \
         after #0 had ended"
    );
}
