//! Compares the check by revisions with the search and the oracle on thousands of small histories, and tests it on
//! long ones.

use super::judged::let_off;
use super::oracle;
use super::small::{self, Random, Sample};
use crate::models::{KvState, Seen};
use crate::{
    Budget, History, Kv, KvCall, KvReply, Model, Operation, Outcome, Total, Undecided, Value,
    Verdict, linear, lines, total,
};

/// Number of small histories.
const HISTORIES: u64 = 3_000;

/// Minimum share of histories that the revisions alone must decide, in percent.
const DECIDED_PERCENT_MIN: u64 = 90;

type Store = History<KvCall, KvReply>;

/// A store whose replies all contain revisions.
struct Honest {
    kv: Kv,
    /// Whether reads report the revision of the last change of a row.
    says_modified: bool,
}

impl Model for Honest {
    type Call = KvCall;
    type Reply = KvReply;
    type State = KvState;

    fn initial(&self) -> KvState {
        self.kv.initial()
    }

    fn step(
        &self,
        state: &KvState,
        call: &KvCall,
        reply: Option<&KvReply>,
        next: &mut Vec<KvState>,
    ) {
        self.kv.step(state, call, reply, next);
    }
}

impl Sample for Honest {
    fn call(&self, random: &mut Random) -> KvCall {
        self.kv.call(random)
    }

    fn replies(&self, call: &KvCall) -> Vec<KvReply> {
        let mut replies = self.kv.replies(call);
        replies.retain(|reply| {
            let fits = match &reply.seen {
                Seen::Read { value: Some(_), modified } => modified.is_some() == self.says_modified,
                _ => true,
            };
            fits && reply.revision.is_some()
        });
        replies
    }
}

fn all(history: &Store) -> Vec<usize> {
    (0..history.len()).collect()
}

fn judge(model: &Honest, operations_max: u64) {
    let rules = Total::default();
    let (mut fine, mut broken, mut undecided) = (0, 0, 0);
    for seed in 0..HISTORIES {
        let history = small::history(model, &mut Random(seed * 1_000_033), operations_max);
        let searched = linear::check(&model.kv, &history, Budget::default());
        let fast = total::by_revision(&rules, &history, "", &all(&history));
        let lines = || history.iter().map(lines::line).collect::<Vec<_>>().join("\n");
        let told = || format!("seed {seed}: {fast}; searched: {searched}\n{}", lines());
        match &fast {
            Verdict::Ok => {
                assert!(searched.is_ok(), "missed violation: {}", told());
                fine += 1;
            }
            Verdict::Violation(reason) => {
                assert!(searched.violation().is_some(), "false violation: {}", told());
                broken += 1;
                if reason.is_minimal && history.len() <= 8 {
                    let rest = let_off::<Kv>(&history, &reason.operations);
                    let is_excused = oracle::explains(&model.kv, &rest);
                    assert!(!is_excused, "they are no contradiction: {}", told());
                }
                for index in &reason.operations {
                    assert!(reason.why.contains(&format!("#{index}")), "{}", told());
                }
            }
            Verdict::Undecided { why, .. } => {
                assert_eq!(*why, Undecided::Ambiguous, "{}", told());
                undecided += 1;
            }
        }
        let whole = total::check(&rules, &history);
        assert_eq!(whole.is_ok(), searched.is_ok(), "{whole}: {}", told());
        assert_eq!(whole.violation().is_some(), searched.violation().is_some(), "{}", told());
    }
    let decided = fine + broken;
    let counts = format!("{fine} fine, {broken} broken, {undecided} undecided");
    assert!(decided * 100 >= HISTORIES * DECIDED_PERCENT_MIN, "{counts}");
    assert!(fine * 5 >= HISTORIES && broken * 5 >= HISTORIES, "{counts}");
}

#[test]
fn revision_checker_agrees_with_the_search() {
    judge(&Honest { kv: Kv::default(), says_modified: true }, 7);
}

#[test]
fn revision_checker_agrees_with_the_search_on_longer_histories() {
    judge(&Honest { kv: Kv::default(), says_modified: true }, 16);
}

#[test]
fn revision_checker_agrees_with_the_search_on_values_only() {
    judge(&Honest { kv: Kv::default(), says_modified: false }, 7);
}

#[test]
fn store_may_start_at_any_revision() {
    judge(&Honest { kv: Kv { first: 1 }, says_modified: true }, 5);
}

/// Returns a run of clients that write and read. `unknown` of a hundred writes get no reply.
pub(crate) fn long_run(operations: usize, unknown: u64) -> Store {
    const ROWS: u64 = 100;
    const CLIENTS: u64 = 10;
    let mut random = Random(operations as u64);
    let mut rows: Vec<Option<(i64, u64)>> = vec![None; ROWS as usize];
    let keys: Vec<std::sync::Arc<str>> = (0..ROWS).map(|row| format!("row {row}").into()).collect();
    let mut revision = 1;
    let mut history = Store::with_capacity(operations);
    for number in 0..operations {
        // Effects happen in this order. Calls overlap with those of other clients.
        let at = 10 * number as u64 + 100;
        let (invoked, ended) = (at - random.below(9 * CLIENTS), at + random.below(9 * CLIENTS));
        let row = random.below(ROWS);
        let key = keys[row as usize].clone();
        let row = &mut rows[row as usize];
        history.push(match random.below(10) {
            0..5 => {
                let value = number as i64;
                let call = KvCall::Put { key, value: value.into() };
                match random.below(100) {
                    fate if fate < unknown => {
                        // Half of the writes without a reply take effect.
                        if fate % 2 == 0 {
                            revision += 1;
                            *row = Some((value, revision));
                        }
                        Operation::unknown(invoked, call)
                    }
                    _ => {
                        revision += 1;
                        *row = Some((value, revision));
                        let reply = KvReply { seen: Seen::Written, revision: Some(revision) };
                        Operation::ok(invoked, ended, call, reply)
                    }
                }
            }
            5 => {
                let there = row.take().is_some();
                revision += u64::from(there);
                let reply = KvReply { seen: Seen::Changed(there), revision: Some(revision) };
                Operation::ok(invoked, ended, KvCall::Delete { key }, reply)
            }
            _ => {
                let value = row.map(|(value, _)| Value::from(value));
                let modified = row.map(|(_, modified)| modified);
                let seen = Seen::Read { value, modified };
                let reply = KvReply { seen, revision: Some(revision) };
                Operation::ok(invoked, ended, KvCall::Get { key }, reply)
            }
        });
    }
    history
}

#[test]
fn stale_read_in_a_long_run_is_found() {
    let mut history = long_run(50_000, 4);
    let uncertain = history.iter().filter(|one| matches!(one.outcome, Outcome::Unknown { .. }));
    assert!(uncertain.count() > 500);
    let rules = Total::default();
    assert_eq!(total::check(&rules, &history), Verdict::Ok);
    // Replaces the reply of the last read of a row with that of an earlier read.
    let reads = |history: &Store, index: usize| match &history[index].call {
        KvCall::Get { key } => Some(key.clone()),
        _ => None,
    };
    let last = (0..history.len()).rev().find(|index| reads(&history, *index).is_some()).unwrap();
    let key = reads(&history, last);
    let seen = |history: &Store, index: usize| match &history[index].outcome {
        Outcome::Ok { reply, .. } => reply.clone(),
        _ => unreachable!("reads are answered"),
    };
    let before = (0..last)
        .rev()
        .filter(|index| reads(&history, *index) == key)
        .map(|index| seen(&history, index))
        .find(|reply| {
            reply.seen != seen(&history, last).seen
                && matches!(reply.seen, Seen::Read { value: Some(_), .. })
        });
    let revision = seen(&history, last).revision;
    let Outcome::Ok { reply, .. } = &mut history[last].outcome else { unreachable!() };
    *reply = KvReply { revision, ..before.unwrap() };
    let verdict = total::check(&rules, &history);
    let reason = verdict.violation().expect("it is stale");
    assert!(reason.is_minimal && reason.operations.len() == 2, "{reason}");
    assert_eq!((reason.rule, reason.operations[1]), ("stale read", last), "{reason}");
}

#[test]
fn foreign_revisions_are_accepted_only_if_allowed() {
    let put = |revision| KvReply { seen: Seen::Written, revision: Some(revision) };
    let call = KvCall::Put { key: "a".into(), value: 1.into() };
    let history = vec![
        Operation::ok(1, 2, call.clone(), put(9)),
        Operation::unknown(3, call.clone()),
        Operation::ok(4, 5, call, put(40)),
    ];
    assert!(total::check(&Total::default(), &history).violation().is_some());
    let rules = Total { others: true, ..Total::default() };
    assert_eq!(total::check(&rules, &history), Verdict::Ok);
}
