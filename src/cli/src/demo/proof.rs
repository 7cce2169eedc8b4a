//! The proof: what was promised, judged from what the workers were told, what the ledger's file says,
//! and what every member has in its store. It knows nothing of processes and of time: evidence in,
//! claims out.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::ledger::Entry;
use super::wire::{Fence, OpId, Row};

/// How many examples a disproven claim names.
const EXAMPLES_MAX: usize = 5;

/// Everything that the judgement rests on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    /// The increments that the store acknowledged, each with what it made of the counter.
    pub(crate) acknowledged: BTreeMap<OpId, u64>,
    /// Those that the ledger refused, or the store at the first try: they cannot have been made.
    pub(crate) refused: BTreeSet<OpId>,
    /// Those that the store refused in the end.
    pub(crate) refused_by_store: BTreeSet<OpId>,
    /// Those whose writer was stopped in mid-course until somebody else had the lock.
    pub(crate) late: BTreeSet<OpId>,
    /// The ledger's file.
    pub(crate) ledger: Vec<Entry>,
    /// What each member has in its store.
    pub(crate) stores: Vec<Store>,
    /// How many processes were killed.
    pub(crate) kills: u64,
    /// What went otherwise than it should, in words: processes that stopped, or did not end, by
    /// themselves.
    pub(crate) complaints: Vec<String>,
}

/// What one member read, linearizably, in the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    pub(crate) member: String,
    pub(crate) count: u64,
    pub(crate) rows: Vec<Row>,
    /// The keys in the line for the lock.
    pub(crate) in_line: Vec<String>,
}

/// A sentence, and what became of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Claim {
    pub(crate) claim: &'static str,
    #[serde(flatten)]
    pub(crate) finding: Finding,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub(crate) enum Finding {
    /// It holds.
    Proven { by: String },
    /// It does not hold.
    Disproven { because: Vec<String> },
    /// The run gave no occasion to see.
    Untested { because: String },
}

impl Claim {
    /// Holds if nothing speaks against it.
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

    /// Whether it was disproved.
    pub(crate) fn is_disproven(&self) -> bool {
        matches!(self.finding, Finding::Disproven { .. })
    }
}

/// A run that came to a halt proves nothing: that is a finding too.
pub(crate) fn halted(why: String) -> Vec<Claim> {
    vec![Claim { claim: WENT_ON, finding: Finding::Disproven { because: vec![why] } }]
}

const WENT_ON: &str = "the work went on after every fault";

/// Judges everything.
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
                against.push(format!("{member}: {} was made more than once", row.op));
            }
        }
        for (op, count) in acknowledged {
            match there.get(op) {
                None => against.push(format!("{member}: {op} was acknowledged and is lost")),
                Some(row) if row.count != *count => against.push(format!(
                    "{member}: {op} was acknowledged as number {count} and is number {}",
                    row.count
                )),
                Some(_) => {}
            }
        }
    }
    let there = stores.first().map_or(0, |store| store.rows.len());
    let by = format!(
        "{} acknowledged, all there; {} more whose answer was lost",
        acknowledged.len(),
        there.saturating_sub(acknowledged.len())
    );
    Claim::judged("every acknowledged increment is in the store, exactly once", by, against)
}

fn counter_is_the_number(Evidence { stores, .. }: &Evidence) -> Claim {
    let mut against = Vec::new();
    for Store { member, count, rows, .. } in stores {
        if usize::try_from(*count) != Ok(rows.len()) {
            against.push(format!("{member}: the counter is {count}, increments {}", rows.len()));
        }
        for (number, row) in (1..).zip(in_order(rows)) {
            if row.count != number {
                against.push(format!(
                    "{member}: {} is increment number {number} and made the counter {}",
                    row.op, row.count
                ));
            }
        }
    }
    let by = format!("{}, one by one", stores.first().map_or(0, |store| store.count));
    Claim::judged("the counter is the number of increments", by, against)
}

fn refused_are_not_there(Evidence { refused, stores, acknowledged, .. }: &Evidence) -> Claim {
    let there = stores.iter().flat_map(|Store { member, rows, .. }| {
        rows.iter()
            .filter(|row| refused.contains(&row.op))
            .map(move |row| format!("{member}: {} was refused and is there", row.op))
    });
    let both = acknowledged
        .keys()
        .filter(|op| refused.contains(op))
        .map(|op| format!("{op} was refused and acknowledged"));
    let against = there.chain(both).collect();
    let by = format!("{} refused, none there", refused.len());
    Claim::judged("no refused increment is in the store", by, against)
}

fn tokens_only_rose(Evidence { ledger, .. }: &Evidence) -> Claim {
    let mut against = Vec::new();
    let mut last: Option<Fence> = None;
    for Entry { op, token, accepted, .. } in ledger {
        match last {
            // Every hold asks the ledger once, so two equal tokens were given to two holders.
            Some(last) if *accepted && *token <= last => {
                against.push(format!("{op} was accepted with token {token} after {last}"));
            }
            Some(last) if !accepted && *token > last => {
                against.push(format!("{op} was refused with token {token} after {last}"));
            }
            None if !accepted => against.push(format!("{op} was refused before all others")),
            _ => {}
        }
        if *accepted {
            last = last.max(Some(*token));
        }
    }
    let accepted = ledger.iter().filter(|entry| entry.accepted).count();
    let by = format!("{accepted} accepted by the ledger, {} refused", ledger.len() - accepted);
    Claim::judged("the ledger's fencing tokens only rose", by, against)
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
                against
                    .push(format!("{member}: {op} is in the store, and no accepted entry of it"));
                continue;
            };
            if written != token {
                against.push(format!("{member}: {op} has token {token}, in the ledger {written}"));
            }
            if last.replace(*place) > Some(*place) {
                against.push(format!("{member}: {op} was in the ledger before what precedes it"));
            }
        }
    }
    let by = format!("{} in both", stores.first().map_or(0, |store| store.rows.len()));
    let claim = "what is in the store was in the ledger first, in the same order";
    Claim::judged(claim, by, against)
}

fn late_writes_were_refused(evidence: &Evidence) -> Claim {
    let Evidence { late, ledger, refused_by_store, .. } = evidence;
    let claim = "the late writes of stopped holders were refused by the ledger and by the store";
    if late.is_empty() {
        let because = "no holder was stopped beyond its lease".to_owned();
        return Claim { claim, finding: Finding::Untested { because } };
    }
    let mut against = Vec::new();
    for op in late {
        match ledger.iter().find(|entry| entry.op == *op) {
            None => against.push(format!("{op} never came to the ledger")),
            Some(entry) if entry.accepted => against.push(format!("the ledger accepted {op}")),
            Some(_) => {}
        }
        if !refused_by_store.contains(op) {
            against.push(format!("the store did not refuse {op}"));
        }
    }
    Claim::judged(claim, format!("{} tried, {} refused by both", late.len(), late.len()), against)
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
    Claim::judged("all members have the same", format!("{} read", stores.len()), against)
}

fn line_is_empty(Evidence { stores, .. }: &Evidence) -> Claim {
    let against = stores
        .iter()
        .flat_map(|Store { member, in_line, .. }| {
            in_line.iter().map(move |key| format!("{member}: {key} is left"))
        })
        .collect();
    let claim = "nothing is left in the line for the lock";
    Claim::judged(claim, "no key below it".to_owned(), against)
}

fn processes_ended_well(Evidence { complaints, .. }: &Evidence) -> Claim {
    let claim = "every process that was not killed ended in order";
    Claim::judged(claim, "leadership handed over, no thread left".to_owned(), complaints.clone())
}

/// The rows by the revision that made them.
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

    /// Increments 1, 2, 4 and 5 were made, 4's answer was lost; 3 was late.
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
    fn a_sound_run_is_proven() {
        for claim in judge(&sound()) {
            assert!(matches!(claim.finding, Finding::Proven { .. }), "{claim:?}");
        }
    }

    #[test]
    fn doctored_evidence_is_found_out() {
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
                "the counter is the number",
            ),
            (
                "an increment was acknowledged under another number",
                |e| e.acknowledged.extend([(op(5), 9)]),
                "every acknowledged increment",
            ),
            (
                "the counter went ahead",
                |e| e.stores.iter_mut().for_each(|store| store.count += 1),
                "the counter is the number",
            ),
            ("a refused increment is there", |e| e.refused.extend([op(4)]), "no refused increment"),
            (
                "a refused increment was acknowledged",
                |e| e.refused.extend([op(1)]),
                "no refused increment",
            ),
            (
                "a token fell and was accepted",
                |e| e.ledger[2].token = fence(15),
                "the ledger's fencing tokens",
            ),
            (
                "two holders had one token",
                |e| e.ledger[2].token = fence(20),
                "the ledger's fencing tokens",
            ),
            (
                "the ledger refused without a reason",
                |e| e.ledger[3].token = fence(45),
                "the ledger's fencing tokens",
            ),
            (
                "the ledger accepted a late write",
                |e| e.ledger[3].accepted = true,
                "the late writes",
            ),
            (
                "the late write never came to the ledger",
                |e| drop(e.ledger.remove(3)),
                "the late writes",
            ),
            (
                "the store did not refuse the late write",
                |e| e.refused_by_store.clear(),
                "the late writes",
            ),
            (
                "an increment is in the store and not in the ledger",
                |e| drop(e.ledger.remove(2)),
                "what is in the store was in the ledger",
            ),
            (
                "the store knows another token than the ledger",
                |e| e.stores[0].rows[0].token = fence(11),
                "what is in the store was in the ledger",
            ),
            (
                "store and ledger have different orders",
                |e| {
                    for store in &mut e.stores {
                        store.rows[0].revision = 999;
                    }
                },
                "what is in the store was in the ledger",
            ),
            (
                "a key is left in the line",
                |e| e.stores[0].in_line.push("demo/lock/1".to_owned()),
                "nothing is left in the line",
            ),
            ("nothing was done", |e| e.acknowledged.clear(), "the work went on"),
            ("nothing was broken", |e| e.kills = 0, "the work went on"),
            ("nothing was read", |e| e.stores.clear(), "the work went on"),
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
    fn without_a_stopped_holder_late_writes_are_not_tested() {
        let mut evidence = sound();
        evidence.late.clear();
        assert_eq!(disproven(&evidence), Vec::<&str>::new());
        let untested = |claim: &Claim| matches!(claim.finding, Finding::Untested { .. });
        assert_eq!(judge(&evidence).iter().filter(|claim| untested(claim)).count(), 1);
    }

    #[test]
    fn many_counterexamples_become_a_few_and_a_number() {
        let against = (0..12).map(|number| number.to_string()).collect();
        let claim = Claim::judged("c", String::new(), against);
        let Finding::Disproven { because } = claim.finding else { panic!("{claim:?}") };
        assert_eq!(because, ["0", "1", "2", "3", "4", "and 7 more"]);
    }
}
