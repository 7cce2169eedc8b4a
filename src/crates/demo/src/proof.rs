//! The verdict of the demo: checks the demo's claims against the replies that the workers got, the ledger's file, and
//! the store of every member. The functions here do no I/O.

use std::collections::{BTreeMap, BTreeSet};

use bowline::Token;
use bowline_check::intervals::{HoldCall, HoldKind, HoldReply, Holds, holds};
use bowline_check::{History, KvCall, KvReply, Operation, Outcome, Seen, Total, total};

use serde::Serialize;

use crate::ledger::Entry;

/// Maximum number of examples for a disproven claim.
const EXAMPLES_MAX: usize = 5;

/// The evidence for the verdict.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    /// Increments that the store acknowledged, with the resulting value of the counter.
    pub(crate) acknowledged: BTreeMap<String, i64>,
    /// Increments rejected by the ledger, or by the store at the first attempt. They cannot have been applied.
    pub(crate) refused: BTreeSet<String>,
    /// Increments whose last attempt the store rejected.
    pub(crate) refused_by_store: BTreeSet<String>,
    /// Increments whose worker was suspended until another worker had the lock.
    pub(crate) late: BTreeSet<String>,
    /// Entries of the ledger's file.
    pub(crate) ledger: Vec<Entry>,
    /// The store of each member.
    pub(crate) stores: Vec<Store>,
    /// Reads and writes of the counter.
    pub(crate) history: History<KvCall, KvReply>,
    /// Number of killed processes.
    pub(crate) kills: usize,
    /// Other problems, such as processes that ended by themselves or did not end.
    pub(crate) problems: Vec<String>,
}

/// The result of a member's linearizable read at the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    pub(crate) member: String,
    pub(crate) count: i64,
    pub(crate) rows: Vec<Row>,
    /// Keys in the lock queue.
    pub(crate) in_line: Vec<String>,
}

/// An increment in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Row {
    pub(crate) op: String,
    /// Value of the counter that it wrote.
    pub(crate) count: i64,
    /// Its fencing token.
    pub(crate) token: Token,
    pub(crate) revision: u64,
    /// Number of puts of its key.
    pub(crate) version: u64,
}

/// A claim and its result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Claim {
    pub(crate) claim: &'static str,
    #[serde(flatten)]
    pub(crate) finding: Finding,
}

/// Result of checking a claim.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub(crate) enum Finding {
    /// The claim holds.
    Proven { by: String },
    /// The claim does not hold.
    Disproven { because: Vec<String> },
    /// The run had no case to check.
    Untested { because: String },
}

impl Claim {
    /// Returns a claim that is proven if there is no counterexample.
    fn evaluated(claim: &'static str, by: String, mut because: Vec<String>) -> Self {
        if because.is_empty() {
            return Self { claim, finding: Finding::Proven { by } };
        }
        let more = because.len().saturating_sub(EXAMPLES_MAX);
        if more > 0 {
            because.truncate(EXAMPLES_MAX);
            because.push(format!("and {more} more"));
        }
        Self { claim, finding: Finding::Disproven { because } }
    }

    /// Returns whether the claim is disproven.
    pub(crate) fn is_disproven(&self) -> bool {
        matches!(self.finding, Finding::Disproven { .. })
    }
}

/// Returns the claims for a run that came to a halt, which proves nothing.
pub(crate) fn halted(why: String) -> Vec<Claim> {
    vec![Claim { claim: CONTINUED, finding: Finding::Disproven { because: vec![why] } }]
}

const CONTINUED: &str = "work continued after every fault";
const LATE: &str = "late writes of paused holders were rejected by the ledger and by the store";

/// Checks all claims.
pub(crate) fn evaluate(evidence: &Evidence) -> Vec<Claim> {
    let Evidence { acknowledged, refused, late, ledger, stores, kills, problems, .. } = evidence;
    let (many, first) = (acknowledged.len(), stores.first().cloned().unwrap_or_default());
    let (rows, late) = (first.rows.len(), late.len());
    let accepted = ledger.iter().filter(|entry| entry.accepted).count();
    let rejected = ledger.len() - accepted;
    vec![
        Claim::evaluated(CONTINUED, format!("{many} acknowledged, {kills} kills"), idle(evidence)),
        Claim::evaluated(
            "every acknowledged increment is in the store, exactly once",
            format!(
                "{many} acknowledged, all present; {} more whose response was lost",
                rows.saturating_sub(many)
            ),
            lost_or_doubled(evidence),
        ),
        Claim::evaluated(
            "the counter equals the number of increments",
            format!("{}, one by one", first.count),
            miscounted(evidence),
        ),
        Claim::evaluated(
            "no rejected increment is in the store",
            format!("{} rejected, none in the store", refused.len()),
            rejected_and_applied(evidence),
        ),
        Claim::evaluated(
            "the fencing tokens in the ledger only increased",
            format!("{accepted} accepted by the ledger, {rejected} rejected"),
            decreased_tokens(evidence),
        ),
        Claim::evaluated(
            "each increment in the store was in the ledger first, in the same order",
            format!("{rows} in both"),
            missing_from_ledger(evidence),
        ),
        match late {
            0 => Claim {
                claim: LATE,
                finding: Finding::Untested {
                    because: "no holder was paused beyond its lease".to_owned(),
                },
            },
            _ => Claim::evaluated(
                LATE,
                format!("{late} attempted, {late} rejected by both"),
                accepted_late(evidence),
            ),
        },
        Claim::evaluated(
            "all members have the same data",
            format!("{} read", stores.len()),
            differing(evidence),
        ),
        Claim::evaluated(
            "the lock queue is empty",
            "no key below its prefix".to_owned(),
            each_row(stores, |store| &store.in_line, |key| Some(format!("{key} is left over"))),
        ),
        Claim::evaluated(
            "every process that was not killed exited cleanly",
            "leadership transferred, no threads left".to_owned(),
            problems.clone(),
        ),
    ]
}

/// Returns the counterexamples that `against` finds among the items of each store, each with the name of the member.
fn each_row<'a, T: 'a>(
    stores: &'a [Store],
    items: impl Fn(&'a Store) -> &'a Vec<T>,
    mut against: impl FnMut(&'a T) -> Option<String>,
) -> Vec<String> {
    let all = stores.iter().flat_map(|store| items(store).iter().map(move |item| (store, item)));
    all.filter_map(|(store, item)| Some(format!("{}: {}", store.member, against(item)?))).collect()
}

fn idle(Evidence { acknowledged, kills, stores, .. }: &Evidence) -> Vec<String> {
    let lacks = [
        (acknowledged.is_empty(), "no increment was acknowledged"),
        (*kills == 0, "no process was killed"),
        (stores.is_empty(), "no store was read"),
    ];
    lacks.into_iter().filter(|(is_so, _)| *is_so).map(|(_, what)| what.to_owned()).collect()
}

fn lost_or_doubled(Evidence { acknowledged, stores, .. }: &Evidence) -> Vec<String> {
    let mut against = Vec::new();
    for Store { member, rows, .. } in stores {
        let mut there: BTreeMap<&String, &Row> = BTreeMap::new();
        for row in rows {
            if there.insert(&row.op, row).is_some() || row.version != 1 {
                against.push(format!("{member}: {} was applied more than once", row.op));
            }
        }
        for (op, count) in acknowledged {
            let is = there.get(op).map(|row| row.count);
            if is != Some(*count) {
                let is = is.map_or("is missing".to_owned(), |count| format!("is number {count}"));
                against
                    .push(format!("{member}: {op} was acknowledged as number {count}, but {is}"));
            }
        }
    }
    against
}

fn miscounted(Evidence { stores, history, .. }: &Evidence) -> Vec<String> {
    let mut against = Vec::new();
    // Each increment must replace the value that its worker has read. The checker may be unable to decide whether the
    // history is possible. The checks below do not depend on its verdict.
    let rules = Total { others: true, ..Total::default() };
    if let Some(violation) = total::check(&rules, history).violation() {
        against.push(format!("the history of the counter has no order: {}", violation.why));
    }
    let mut replaced = BTreeSet::new();
    for Operation { call, outcome, .. } in history {
        if let KvCall::CompareAndSet { expect, .. } = call
            && let Outcome::Ok { reply, .. } = outcome
            && reply.seen == Seen::Changed(true)
            && !replaced.insert(expect)
        {
            against.push("two increments replaced the same value of the counter".to_owned());
        }
    }
    for Store { member, count, rows, .. } in stores {
        let many = rows.len();
        if usize::try_from(*count) != Ok(many) {
            against
                .push(format!("{member}: the counter is {count}, but there are {many} increments"));
        }
        for (number, Row { op, count, .. }) in (1..).zip(in_order(rows)) {
            if *count != number {
                against.push(format!(
                    "{member}: {op} is number {number}, but set the counter to {count}"
                ));
            }
        }
    }
    against
}

fn rejected_and_applied(Evidence { refused, stores, acknowledged, .. }: &Evidence) -> Vec<String> {
    let mut against = each_row(
        stores,
        |store| &store.rows,
        |Row { op, .. }| {
            refused.contains(op).then(|| format!("{op} was rejected, but is in the store"))
        },
    );
    let both = acknowledged.keys().filter(|op| refused.contains(*op));
    against.extend(both.map(|op| format!("{op} was both rejected and acknowledged")));
    against
}

fn decreased_tokens(Evidence { ledger, .. }: &Evidence) -> Vec<String> {
    let accepted: Vec<&Entry> = ledger.iter().filter(|entry| entry.accepted).collect();
    // Every hold writes to the ledger once, so an accepted entry is a moment of a hold. The checker compares numbers, so
    // each token is replaced by its rank.
    let tokens: BTreeSet<Token> = accepted.iter().map(|entry| entry.token).collect();
    let ranks: BTreeMap<Token, u64> = tokens.into_iter().zip(1..).collect();
    let hold = |(at, entry): (u64, &&Entry)| {
        let (owner, token) = (entry.op.as_str().into(), Some(ranks[&entry.token]));
        let call = HoldCall::Hold { owner, kind: HoldKind::Write, token };
        Operation::ok(at, at, call, HoldReply { lost: false })
    };
    let history = (1..).zip(&accepted).map(hold).collect();
    let mut against = Vec::new();
    if let Some(violation) = holds(&Holds::default(), &history).violation()
        && let [before, after] = violation.operations[..]
    {
        let (Entry { op, token, .. }, last) = (accepted[after], accepted[before].token);
        against.push(format!("{op} was accepted with token {token} after {last}"));
    }
    let mut highest: Option<Token> = None;
    for Entry { op, token, accepted, .. } in ledger {
        if *accepted {
            highest = highest.max(Some(*token));
        } else if highest.is_none_or(|highest| *token > highest) {
            against.push(format!("{op} was rejected, but no token before it is above {token}"));
        }
    }
    against
}

fn missing_from_ledger(Evidence { ledger, stores, .. }: &Evidence) -> Vec<String> {
    let accepted = ledger.iter().enumerate().filter(|(_, entry)| entry.accepted);
    let accepted: BTreeMap<_, _> =
        accepted.map(|(place, entry)| (&entry.op, (place, entry.token))).collect();
    let mut against = Vec::new();
    for Store { member, rows, .. } in stores {
        let mut last = None;
        for Row { op, token, .. } in in_order(rows) {
            let Some((place, written)) = accepted.get(op) else {
                against.push(format!("{member}: {op} has no accepted entry in the ledger"));
                continue;
            };
            if written != token {
                against
                    .push(format!("{member}: {op} has token {token}, but {written} in the ledger"));
            }
            if last.replace(*place) > Some(*place) {
                against.push(format!(
                    "{member}: {op} follows an increment that it precedes in the ledger"
                ));
            }
        }
    }
    against
}

fn accepted_late(Evidence { late, ledger, refused_by_store, .. }: &Evidence) -> Vec<String> {
    let mut against = Vec::new();
    for op in late {
        match ledger.iter().find(|entry| entry.op == *op) {
            None => against.push(format!("{op} never reached the ledger")),
            Some(entry) if entry.accepted => against.push(format!("the ledger accepted {op}")),
            Some(_) => {}
        }
        if !refused_by_store.contains(op) {
            against.push(format!("the store did not reject {op}"));
        }
    }
    against
}

fn differing(Evidence { stores, .. }: &Evidence) -> Vec<String> {
    let differ = |pair: &[Store]| {
        let (one, other) = (&pair[0], &pair[1]);
        let is_same = one.rows == other.rows && one.count == other.count;
        (!is_same).then(|| format!("{} and {} differ", one.member, other.member))
    };
    stores.windows(2).filter_map(differ).collect()
}

/// Sorts the rows by revision.
fn in_order(rows: &[Row]) -> Vec<&Row> {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| row.revision);
    rows
}

#[cfg(test)]
mod tests {
    use bowline::Revision;

    use super::*;

    fn op(number: u64) -> String {
        format!("n1.1.w1.{number}")
    }

    fn fence(revision: u64) -> Token {
        Token::new(Revision(revision), 0)
    }

    fn entry(number: u64, token: u64, accepted: bool) -> Entry {
        let highest = fence(token.max(30));
        Entry { op: op(number), token: fence(token), accepted, highest }
    }

    fn row(number: u64, count: i64) -> Row {
        let (token, revision) = (fence(number * 10), number * 10 + 1);
        Row { op: op(number), count, token, revision, version: 1 }
    }

    /// Returns an increment that was applied at `revision`, after the counter was last changed at `expect`.
    fn made(revision: u64, expect: Option<u64>, value: i64) -> Operation<KvCall, KvReply> {
        let reply = KvReply { seen: Seen::Changed(true), revision: Some(revision) };
        Operation::ok(revision, revision, replaces(expect, value), reply)
    }

    fn replaces(expect: Option<u64>, value: i64) -> KvCall {
        KvCall::CompareAndSet { key: "demo/count".into(), expect, value: value.into() }
    }

    /// Increments 1, 2, 4 and 5 were applied; the response to 4 was lost; 3 was late.
    fn sound() -> Evidence {
        let rows = vec![row(1, 1), row(2, 2), row(4, 3), row(5, 4)];
        let store = |member: &str| Store {
            member: member.to_owned(),
            count: 4,
            rows: rows.clone(),
            in_line: Vec::new(),
        };
        Evidence {
            acknowledged: [(op(1), 1), (op(2), 2), (op(5), 4)].into(),
            refused: [op(3)].into(),
            refused_by_store: [op(3)].into(),
            late: [op(3)].into(),
            ledger: vec![
                entry(1, 10, true),
                entry(2, 20, true),
                entry(4, 40, true),
                entry(3, 30, false),
                entry(5, 50, true),
            ],
            stores: vec![store("n1"), store("n2")],
            history: vec![
                made(11, None, 1),
                made(21, Some(11), 2),
                Operation::unknown(40, replaces(Some(21), 3)),
                made(51, Some(41), 4),
            ],
            kills: 2,
            problems: Vec::new(),
        }
    }

    fn failed_checks(evidence: &Evidence) -> Vec<&'static str> {
        let claims = evaluate(evidence);
        claims.iter().filter(|claim| claim.is_disproven()).map(|claim| claim.claim).collect()
    }

    #[test]
    fn valid_demo_run_is_proven() {
        for claim in evaluate(&sound()) {
            assert!(matches!(claim.finding, Finding::Proven { .. }), "{claim:?}");
        }
    }

    #[test]
    fn tampered_evidence_is_disproven() {
        type Doctor = fn(&mut Evidence);
        let cases: &[(&str, Doctor, &str)] = &[
            (
                "an acknowledged increment is lost",
                |e| e.stores.iter_mut().for_each(|store| drop(store.rows.remove(1))),
                "every acknowledged increment",
            ),
            (
                "on one member only",
                |e| drop(e.stores[1].rows.remove(1)),
                "all members have the same",
            ),
            (
                "an increment was made twice under its key",
                |e| e.stores[0].rows[2].version = 2,
                "every acknowledged increment",
            ),
            (
                "an increment is there twice",
                |e| {
                    let double = e.stores[0].rows[1].clone();
                    e.stores[0].rows.push(double);
                },
                "every acknowledged increment",
            ),
            (
                "two increments read the same counter: one update is lost",
                |e| {
                    for store in &mut e.stores {
                        store.rows[2].count = 2;
                        store.rows[3].count = 3;
                        store.count = 3;
                    }
                },
                "the counter equals the number",
            ),
            (
                "an increment was acknowledged under another number",
                |e| e.acknowledged.extend([(op(5), 9)]),
                "every acknowledged increment",
            ),
            (
                "an increment replaced another value than the one that was read",
                |e| e.history[1] = made(21, None, 2),
                "the counter equals the number",
            ),
            (
                "the counter went ahead",
                |e| e.stores.iter_mut().for_each(|store| store.count += 1),
                "the counter equals the number",
            ),
            (
                "a refused increment is there",
                |e| e.refused.extend([op(4)]),
                "no rejected increment",
            ),
            (
                "a refused increment was acknowledged",
                |e| e.refused.extend([op(1)]),
                "no rejected increment",
            ),
            (
                "a token fell and was accepted",
                |e| e.ledger[2].token = fence(15),
                "the fencing tokens in the ledger",
            ),
            (
                "two holders had one token",
                |e| e.ledger[2].token = fence(20),
                "the fencing tokens in the ledger",
            ),
            (
                "the ledger refused without a reason",
                |e| e.ledger[3].token = fence(45),
                "the fencing tokens in the ledger",
            ),
            ("the ledger accepted a late write", |e| e.ledger[3].accepted = true, "late writes"),
            (
                "the late write never came to the ledger",
                |e| drop(e.ledger.remove(3)),
                "late writes",
            ),
            (
                "the store did not refuse the late write",
                |e| e.refused_by_store.clear(),
                "late writes",
            ),
            (
                "an increment is in the store and not in the ledger",
                |e| drop(e.ledger.remove(2)),
                "each increment in the store was in the ledger",
            ),
            (
                "the store knows another token than the ledger",
                |e| e.stores[0].rows[0].token = fence(11),
                "each increment in the store was in the ledger",
            ),
            (
                "store and ledger have different orders",
                |e| {
                    for store in &mut e.stores {
                        store.rows[0].revision = 999;
                    }
                },
                "each increment in the store was in the ledger",
            ),
            (
                "a key is left in the line",
                |e| e.stores[0].in_line.push("demo/lock/1".to_owned()),
                "the lock queue is empty",
            ),
            ("nothing was done", |e| e.acknowledged.clear(), "work continued"),
            ("nothing was broken", |e| e.kills = 0, "work continued"),
            ("nothing was read", |e| e.stores.clear(), "work continued"),
            (
                "a process hung at its end",
                |e| e.problems.push("n1 had not ended".to_owned()),
                "every process that was not killed",
            ),
        ];
        for (case, doctor, claim) in cases {
            let mut evidence = sound();
            doctor(&mut evidence);
            let failed_checks = failed_checks(&evidence);
            assert!(
                failed_checks.iter().any(|found| found.starts_with(claim)),
                "{case}: disproven is {failed_checks:?}"
            );
        }
    }

    #[test]
    fn late_writes_are_untested_without_a_paused_holder() {
        let mut evidence = sound();
        evidence.late.clear();
        assert_eq!(failed_checks(&evidence), Vec::<&str>::new());
        let untested = |claim: &Claim| matches!(claim.finding, Finding::Untested { .. });
        assert_eq!(evaluate(&evidence).iter().filter(|claim| untested(claim)).count(), 1);
    }

    #[test]
    fn many_counterexamples_are_abbreviated() {
        let against = (0..12).map(|number| number.to_string()).collect();
        let claim = Claim::evaluated("c", String::new(), against);
        let Finding::Disproven { because } = claim.finding else { panic!("{claim:?}") };
        assert_eq!(because, ["0", "1", "2", "3", "4", "and 7 more"]);
    }
}
