//! The verdict of the demo: checks the demo's claims against the replies that the workers got, the ledger's file, and
//! the store of every member. The functions here do no I/O.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::ledger::Entry;
use super::wire::{Fence, OpId, Row};

/// Maximum number of examples for a disproven claim.
const EXAMPLES_MAX: usize = 5;

/// The evidence for the verdict.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    /// Increments that the store acknowledged, with the resulting value of the counter.
    pub(crate) acknowledged: BTreeMap<OpId, u64>,
    /// Increments rejected by the ledger, or by the store at the first attempt. They cannot have been applied.
    pub(crate) refused: BTreeSet<OpId>,
    /// Increments whose last attempt the store rejected.
    pub(crate) refused_by_store: BTreeSet<OpId>,
    /// Increments whose worker was suspended until another worker had the lock.
    pub(crate) late: BTreeSet<OpId>,
    /// Entries of the ledger's file.
    pub(crate) ledger: Vec<Entry>,
    /// The store of each member.
    pub(crate) stores: Vec<Store>,
    /// Number of killed processes.
    pub(crate) kills: u64,
    /// Other problems, such as processes that ended by themselves or did not end.
    pub(crate) complaints: Vec<String>,
}

/// The result of a member's linearizable read at the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    pub(crate) member: String,
    pub(crate) count: u64,
    pub(crate) rows: Vec<Row>,
    /// Keys in the lock queue.
    pub(crate) in_line: Vec<String>,
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
    fn judged(claim: &'static str, by: String, mut because: Vec<String>) -> Self {
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
    vec![Claim { claim: WENT_ON, finding: Finding::Disproven { because: vec![why] } }]
}

const WENT_ON: &str = "work continued after every fault";

/// Checks all claims.
pub(crate) fn judge(evidence: &Evidence) -> Vec<Claim> {
    vec![
        went_on(evidence),
        acknowledged_are_there_once(evidence),
        counter_is_the_number(evidence),
        refused_are_not_there(evidence),
        tokens_only_rose(evidence),
        ledger_came_first(evidence),
        late_writes_were_refused(evidence),
        members_agree(evidence),
        line_is_empty(evidence),
        processes_ended_well(evidence),
    ]
}

fn went_on(Evidence { acknowledged, kills, stores, .. }: &Evidence) -> Claim {
    let mut against = Vec::new();
    if acknowledged.is_empty() {
        against.push("no increment was acknowledged".to_owned());
    }
    if *kills == 0 {
        against.push("no process was killed".to_owned());
    }
    if stores.is_empty() {
        against.push("no store was read".to_owned());
    }
    let by = format!("{} acknowledged, {kills} kills", acknowledged.len());
    Claim::judged(WENT_ON, by, against)
}

fn acknowledged_are_there_once(Evidence { acknowledged, stores, .. }: &Evidence) -> Claim {
    let mut against = Vec::new();
    for Store { member, rows, .. } in stores {
        let mut there: BTreeMap<&OpId, &Row> = BTreeMap::new();
        for row in rows {
            if there.insert(&row.op, row).is_some() || row.version != 1 {
                against.push(format!("{member}: {} was applied more than once", row.op));
            }
        }
        for (op, count) in acknowledged {
            match there.get(op) {
                None => against.push(format!("{member}: {op} was acknowledged, but is missing")),
                Some(row) if row.count != *count => against.push(format!(
                    "{member}: {op} was acknowledged as number {count}, but is number {}",
                    row.count
                )),
                Some(_) => {}
            }
        }
    }
    let there = stores.first().map_or(0, |store| store.rows.len());
    let by = format!(
        "{} acknowledged, all present; {} more whose response was lost",
        acknowledged.len(),
        there.saturating_sub(acknowledged.len())
    );
    Claim::judged("every acknowledged increment is in the store, exactly once", by, against)
}

fn counter_is_the_number(Evidence { stores, .. }: &Evidence) -> Claim {
    let mut against = Vec::new();
    for Store { member, count, rows, .. } in stores {
        if usize::try_from(*count) != Ok(rows.len()) {
            against.push(format!(
                "{member}: the counter is {count}, but there are {} increments",
                rows.len()
            ));
        }
        for (number, row) in (1..).zip(in_order(rows)) {
            if row.count != number {
                against.push(format!(
                    "{member}: {} is increment number {number}, but set the counter to {}",
                    row.op, row.count
                ));
            }
        }
    }
    let by = format!("{}, one by one", stores.first().map_or(0, |store| store.count));
    Claim::judged("the counter equals the number of increments", by, against)
}

fn refused_are_not_there(Evidence { refused, stores, acknowledged, .. }: &Evidence) -> Claim {
    let there = stores.iter().flat_map(|Store { member, rows, .. }| {
        rows.iter()
            .filter(|row| refused.contains(&row.op))
            .map(move |row| format!("{member}: {} was rejected, but is in the store", row.op))
    });
    let both = acknowledged
        .keys()
        .filter(|op| refused.contains(op))
        .map(|op| format!("{op} was both rejected and acknowledged"));
    let against = there.chain(both).collect();
    let by = format!("{} rejected, none in the store", refused.len());
    Claim::judged("no rejected increment is in the store", by, against)
}

fn tokens_only_rose(Evidence { ledger, .. }: &Evidence) -> Claim {
    let mut against = Vec::new();
    let mut last: Option<Fence> = None;
    for Entry { op, token, accepted, .. } in ledger {
        match last {
            // Every hold writes to the ledger once, so equal tokens belong to two holders.
            Some(last) if *accepted && *token <= last => {
                against.push(format!("{op} was accepted with token {token} after {last}"));
            }
            Some(last) if !accepted && *token > last => {
                against.push(format!("{op} was rejected with token {token} after {last}"));
            }
            None if !accepted => against.push(format!("{op} was rejected before any other")),
            _ => {}
        }
        if *accepted {
            last = last.max(Some(*token));
        }
    }
    let accepted = ledger.iter().filter(|entry| entry.accepted).count();
    let by = format!("{accepted} accepted by the ledger, {} rejected", ledger.len() - accepted);
    Claim::judged("the fencing tokens in the ledger only increased", by, against)
}

fn ledger_came_first(Evidence { ledger, stores, .. }: &Evidence) -> Claim {
    let accepted: BTreeMap<&OpId, (usize, Fence)> = ledger
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.accepted)
        .map(|(place, entry)| (&entry.op, (place, entry.token)))
        .collect();
    let mut against = Vec::new();
    for Store { member, rows, .. } in stores {
        let mut last = None;
        for Row { op, token, .. } in in_order(rows) {
            let Some((place, written)) = accepted.get(op) else {
                against.push(format!(
                    "{member}: {op} is in the store, but the ledger has no accepted entry for it"
                ));
                continue;
            };
            if written != token {
                against
                    .push(format!("{member}: {op} has token {token}, but {written} in the ledger"));
            }
            if last.replace(*place) > Some(*place) {
                against.push(format!(
                    "{member}: {op} is in the ledger before an increment that precedes it in the store"));
            }
        }
    }
    let by = format!("{} in both", stores.first().map_or(0, |store| store.rows.len()));
    let claim = "each increment in the store was in the ledger first, in the same order";
    Claim::judged(claim, by, against)
}

fn late_writes_were_refused(evidence: &Evidence) -> Claim {
    let Evidence { late, ledger, refused_by_store, .. } = evidence;
    let claim = "late writes of paused holders were rejected by the ledger and by the store";
    if late.is_empty() {
        let because = "no holder was paused beyond its lease".to_owned();
        return Claim { claim, finding: Finding::Untested { because } };
    }
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
    Claim::judged(
        claim,
        format!("{} attempted, {} rejected by both", late.len(), late.len()),
        against,
    )
}

fn members_agree(Evidence { stores, .. }: &Evidence) -> Claim {
    let mut against = Vec::new();
    if let Some((first, others)) = stores.split_first() {
        for other in others {
            if other.rows != first.rows || other.count != first.count {
                against.push(format!("{} and {} differ", first.member, other.member));
            }
        }
    }
    Claim::judged("all members have the same data", format!("{} read", stores.len()), against)
}

fn line_is_empty(Evidence { stores, .. }: &Evidence) -> Claim {
    let against = stores
        .iter()
        .flat_map(|Store { member, in_line, .. }| {
            in_line.iter().map(move |key| format!("{member}: {key} is left over"))
        })
        .collect();
    let claim = "the lock queue is empty";
    Claim::judged(claim, "no key below its prefix".to_owned(), against)
}

fn processes_ended_well(Evidence { complaints, .. }: &Evidence) -> Claim {
    let claim = "every process that was not killed exited cleanly";
    Claim::judged(claim, "leadership transferred, no threads left".to_owned(), complaints.clone())
}

/// Sorts the rows by revision.
fn in_order(rows: &[Row]) -> Vec<&Row> {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| row.revision);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(number: u64) -> OpId {
        OpId(format!("n1.1.w1.{number}"))
    }

    fn fence(revision: u64) -> Fence {
        Fence(format!("{revision}.0").parse().unwrap())
    }

    fn entry(number: u64, token: u64, accepted: bool) -> Entry {
        let highest = fence(token.max(30));
        Entry { op: op(number), token: fence(token), accepted, highest }
    }

    fn row(number: u64, count: u64) -> Row {
        let (token, revision) = (fence(number * 10), number * 10 + 1);
        Row { op: op(number), count, token, revision, version: 1 }
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
            kills: 2,
            complaints: Vec::new(),
        }
    }

    fn disproven(evidence: &Evidence) -> Vec<&'static str> {
        let claims = judge(evidence);
        claims.iter().filter(|claim| claim.is_disproven()).map(|claim| claim.claim).collect()
    }

    #[test]
    fn valid_demo_run_is_proven() {
        for claim in judge(&sound()) {
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
                |e| e.complaints.push("n1 had not ended".to_owned()),
                "every process that was not killed",
            ),
        ];
        for (case, doctor, claim) in cases {
            let mut evidence = sound();
            doctor(&mut evidence);
            let disproven = disproven(&evidence);
            assert!(
                disproven.iter().any(|found| found.starts_with(claim)),
                "{case}: disproven is {disproven:?}"
            );
        }
    }

    #[test]
    fn late_writes_are_untested_without_a_paused_holder() {
        let mut evidence = sound();
        evidence.late.clear();
        assert_eq!(disproven(&evidence), Vec::<&str>::new());
        let untested = |claim: &Claim| matches!(claim.finding, Finding::Untested { .. });
        assert_eq!(judge(&evidence).iter().filter(|claim| untested(claim)).count(), 1);
    }

    #[test]
    fn many_counterexamples_are_abbreviated() {
        let against = (0..12).map(|number| number.to_string()).collect();
        let claim = Claim::judged("c", String::new(), against);
        let Finding::Disproven { because } = claim.finding else { panic!("{claim:?}") };
        assert_eq!(because, ["0", "1", "2", "3", "4", "and 7 more"]);
    }
}
