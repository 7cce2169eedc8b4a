//! Reconstructs the changes of a store from replies and from the messages of the streams.

use std::collections::hash_map::{DefaultHasher, HashMap};
use std::collections::{BTreeMap, HashSet};
use std::hash::BuildHasherDefault;

use super::calls::{Received, RecordedWatchCall, WatchReply};
use super::{RecordedEvent, WatchRecord};
use crate::history::{At, History, Index, Outcome};
use crate::value::Value;
use crate::verdict::Counterexample;

/// A hasher without a random seed, so that every run is the same.
type Fixed = BuildHasherDefault<DefaultHasher>;

pub(super) type Recorded = History<RecordedWatchCall, WatchReply>;

/// A violation.
pub(super) type Reason = Box<Counterexample>;

/// A row with its new value.
type Row<'a> = (&'a str, Option<&'a Value>);

/// One change of one row.
#[derive(Clone, Copy, Debug)]
pub(super) struct TruthStep<'a> {
    pub(super) revision: u64,
    pub(super) key: &'a str,
    pub(super) value: Option<&'a Value>,
    /// The operation that made it, or the first message that reported it.
    pub(super) by: Index,
    /// The value before, and the operation that wrote it.
    pub(super) before: Option<(&'a Value, Index)>,
    /// Revision of the previous change of the row, or 0 if none is known.
    pub(super) since: u64,
    /// The revision at which the row was created.
    pub(super) created: u64,
}

/// All known changes of a store.
pub(super) struct StreamTruth<'a> {
    pub(super) rules: &'a WatchRecord,
    pub(super) history: &'a Recorded,
    pub(super) object: &'a str,
    /// Sorted by revision, then by the order of calls.
    pub(super) steps: Vec<TruthStep<'a>>,
    /// For each row, the other changes of unknown outcome, which may have taken effect.
    pub(super) besides: HashMap<&'a str, Vec<Option<&'a Value>>, Fixed>,
    /// For each revision, the latest call among the changes up to it.
    latest: Vec<(u64, At, Index)>,
}

/// Reported changes at a revision that no operation is known to have made.
type Told<'a> = Vec<(Row<'a>, Index)>;

/// For each revision, the first moment at which it was certainly passed because it or a later one was observed, and
/// the operation that observed it.
type Over = Vec<(u64, At, Index)>;

/// Returns a violation.
pub(super) fn reason(
    rule: &'static str,
    object: &str,
    operations: impl Into<Vec<Index>>,
    why: String,
) -> Reason {
    Box::new(Counterexample::new(rule, object, operations, why))
}

/// Formats the value of a row.
pub(super) fn format_value(value: Option<&Value>) -> String {
    value.map_or("nothing".to_owned(), |value| format!("{value}"))
}

/// Returns the events of a message, if it has any.
pub(super) fn events(history: &Recorded, index: Index) -> &[RecordedEvent] {
    match &history[index].outcome {
        Outcome::Ok { reply: WatchReply::Received(Received::Events { events, .. }), .. } => events,
        _ => &[],
    }
}

/// Returns the rows of a change.
fn rows(history: &Recorded, index: Index) -> impl Iterator<Item = Row<'_>> {
    let rows: &[_] = match &history[index].call {
        RecordedWatchCall::Change { rows } => rows,
        _ => &[],
    };
    rows.iter().map(|(key, value)| (&**key, value.as_ref()))
}

impl<'a> StreamTruth<'a> {
    /// Reconstructs the changes, or returns a violation.
    pub(super) fn of(
        rules: &'a WatchRecord,
        history: &'a Recorded,
        object: &'a str,
        members: &[Index],
    ) -> Result<Self, Reason> {
        let mut known: Vec<(u64, Index)> = Vec::new();
        let mut uncertain: Vec<Index> = Vec::new();
        for &index in members {
            match (&history[index].call, &history[index].outcome) {
                (_, Outcome::Ok { reply: WatchReply::Changed { revision }, .. }) => {
                    known.push((*revision, index));
                }
                (RecordedWatchCall::Change { .. }, Outcome::Unknown { .. }) => {
                    uncertain.push(index)
                }
                _ => {}
            }
        }
        known.sort_unstable();
        for pair in known.windows(2) {
            let [(one, first), (other, second)] = [pair[0], pair[1]];
            if one == other {
                let why =
                    format!("#{first} and #{second} both report that they made revision {one}");
                return Err(reason("two changes at one revision", object, [first, second], why));
            }
        }
        let mut latest: Vec<(u64, At, Index)> = Vec::with_capacity(known.len());
        for (revision, index) in &known {
            let before = latest.last().map(|(_, at, index)| (*at, *index));
            let now = (history[*index].invoked, *index);
            let (at, index) = before.filter(|before| before.0 >= now.0).unwrap_or(now);
            latest.push((*revision, at, index));
        }
        let (steps, besides) = (Vec::new(), HashMap::default());
        let mut truth = Self { rules, history, object, steps, besides, latest };
        let told = truth.told(members, &known)?;
        let mut all: BTreeMap<u64, Vec<(Row<'a>, Index)>> = BTreeMap::new();
        for (revision, index) in &known {
            all.insert(*revision, rows(history, *index).map(|row| (row, *index)).collect());
        }
        let over = truth.over(members);
        truth.learn(told, &uncertain, &over, &mut all)?;
        truth.play(all, members);
        Ok(truth)
    }

    /// Collects the reported changes at revisions that no operation is known to have made. Compares the others with
    /// the known changes.
    fn told(
        &self,
        members: &[Index],
        known: &[(u64, Index)],
    ) -> Result<BTreeMap<u64, Told<'a>>, Reason> {
        let history = self.history;
        let mut told: BTreeMap<u64, Told<'a>> = BTreeMap::new();
        for &index in members {
            for RecordedEvent { revision, key, value, .. } in events(history, index) {
                let row: Row<'a> = (key, value.as_ref());
                let place = known.binary_search_by_key(revision, |(revision, _)| *revision);
                if let Ok(place) = place {
                    let maker = known[place].1;
                    if rows(history, maker).any(|made| made == row) {
                        continue;
                    }
                    let why = format!(
                        "#{index} reports that row {key:?} became {} at revision {revision}, but #{maker} made \
                         that revision with another change",
                        format_value(row.1)
                    );
                    return Err(reason("durable", self.object, [maker, index], why));
                }
                let told = told.entry(*revision).or_default();
                match told.iter().find(|((other, _), _)| *other == row.0) {
                    Some(((_, same), _)) if *same == row.1 => {}
                    None => told.push((row, index)),
                    Some(((_, other), by)) => {
                        let why = format!(
                            "#{by} reports that row {key:?} became {} at revision {revision}, but #{index} reports {}",
                            format_value(*other),
                            format_value(row.1)
                        );
                        return Err(reason("durable", self.object, [*by, index], why));
                    }
                }
            }
        }
        Ok(told)
    }

    fn over(&self, members: &[Index]) -> Over {
        let mut over: Over = Vec::new();
        for &index in members {
            let Outcome::Ok { at, reply } = &self.history[index].outcome else { continue };
            let revision = match reply {
                WatchReply::Changed { revision }
                | WatchReply::Watching { at: Some(revision) }
                | WatchReply::Received(Received::Progress(revision)) => Some(*revision),
                _ => events(self.history, index).iter().map(|event| event.revision).max(),
            };
            over.extend(revision.map(|revision| (revision, *at, index)));
        }
        over.sort_unstable();
        for place in (1..over.len()).rev() {
            let (_, at, index) = over[place];
            let before = &mut over[place - 1];
            if (at, index) < (before.1, before.2) {
                (before.1, before.2) = (at, index);
            }
        }
        over
    }

    /// Finds for each reported revision the change of unknown outcome that made it.
    fn learn(
        &mut self,
        told: BTreeMap<u64, Told<'a>>,
        uncertain: &[Index],
        over: &Over,
        all: &mut BTreeMap<u64, Vec<(Row<'a>, Index)>>,
    ) -> Result<(), Reason> {
        let history = self.history;
        let mut by_row: HashMap<Row<'a>, Vec<Index>, Fixed> = HashMap::default();
        for index in uncertain {
            for row in rows(history, *index) {
                by_row.entry(row).or_default().push(*index);
            }
        }
        // For each change of unknown outcome, the message that reported its effect.
        let mut used: HashMap<Index, Index, Fixed> = HashMap::default();
        for (revision, told) in told {
            let some = by_row.get(&told[0].0).map_or(&[][..], |some| some);
            let did = |index: &Index| {
                told.iter().all(|(row, _)| rows(history, *index).any(|did| did == *row))
            };
            let able: Vec<Index> = some.iter().copied().filter(did).collect();
            let place = over.partition_point(|(other, ..)| *other < revision);
            let (_, end, ender) = over[place];
            let is_free =
                |index: &&Index| !used.contains_key(*index) && history[**index].invoked <= end;
            let free: Vec<Index> = able.iter().filter(is_free).copied().collect();
            let same = |index: &Index| history[*index].call == history[free[0]].call;
            if free.is_empty() && !self.rules.others {
                return Err(self.no_writer(revision, &told, &able, &used, ender));
            }
            if !free.is_empty() && free.iter().all(same) {
                let witness = told[0].1;
                used.insert(free[0], witness);
                all.insert(revision, rows(history, free[0]).map(|row| (row, witness)).collect());
            } else {
                all.insert(revision, told);
            }
        }
        let unused: HashSet<Index, Fixed> =
            uncertain.iter().copied().filter(|index| !used.contains_key(index)).collect();
        for (key, value) in unused.iter().flat_map(|index| rows(history, *index)) {
            self.besides.entry(key).or_default().push(value);
        }
        Ok(())
    }

    /// Reports that no operation can have made the reported change.
    fn no_writer(
        &self,
        revision: u64,
        told: &Told<'a>,
        able: &[Index],
        used: &HashMap<Index, Index, Fixed>,
        ender: Index,
    ) -> Reason {
        let mut tellers: Vec<Index> = told.iter().map(|(_, by)| *by).collect();
        tellers.sort_unstable();
        tellers.dedup();
        let (key, value) = told[0].0;
        let what = format!("row {key:?} became {} at revision {revision}", format_value(value));
        let teller = told[0].1;
        let fails = |why: String, operations: Vec<Index>| {
            reason(
                "durable",
                self.object,
                operations,
                format!("#{teller} reports that {what}, {why}"),
            )
        };
        if let Some((maker, before)) =
            able.iter().find_map(|index| Some((*index, *used.get(index)?)))
        {
            let why = format!(
                "which only #{maker} can have caused, but #{before} observed that change at another revision"
            );
            return fails(why, if before == teller { vec![teller] } else { vec![before, teller] });
        }
        match able.first() {
            Some(late) if ender == teller => {
                fails(format!("before the change #{late} was called"), vec![teller, *late])
            }
            Some(late) => {
                let why = format!(
                    "but #{ender} shows that this revision was passed before the change #{late} was called"
                );
                fails(why, vec![teller, ender, *late])
            }
            None if tellers.len() > 1 => {
                fails("but no operation made all the reported changes".into(), tellers)
            }
            None => fails("but no operation did".into(), tellers),
        }
    }

    fn play(&mut self, all: BTreeMap<u64, Vec<(Row<'a>, Index)>>, members: &[Index]) {
        let history = self.history;
        let told = members.iter().flat_map(|index| events(history, *index));
        let told = told.map(|event| (event.revision, &*event.key));
        let told: HashSet<(u64, &str), Fixed> = told.collect();
        let mut now: HashMap<&'a str, (&'a Value, Index, u64), Fixed> = HashMap::default();
        let mut changed: HashMap<&'a str, u64, Fixed> = HashMap::default();
        for (revision, rows) in all {
            let is_alone = rows.len() == 1;
            for ((key, value), by) in rows {
                let before = now.get(key).copied();
                let created = before.map_or(revision, |(_, _, created)| created);
                match value {
                    Some(value) => drop(now.insert(key, (value, by, created))),
                    None => drop(now.remove(key)),
                }
                let since = changed.insert(key, revision).unwrap_or(0);
                // Deleting a missing row makes no event. The row certainly existed if an event was reported, or if no
                // other change made the revision.
                let may_lack = before.is_none() || self.may_be_deleted(key);
                if value.is_none() && may_lack && !is_alone && !told.contains(&(revision, key)) {
                    continue;
                }
                let before = before.map(|(value, by, _)| (value, by));
                self.steps.push(TruthStep { revision, key, value, by, before, since, created });
            }
        }
    }

    /// Returns whether a row may have been deleted without an event in any stream.
    fn may_be_deleted(&self, key: &str) -> bool {
        self.rules.others || self.besides.get(key).is_some_and(|all| all.contains(&None))
    }

    /// Returns the revision of the first change that was called after a moment. The state of the store at that moment
    /// does not include this change.
    pub(super) fn first_after(&self, moment: At) -> Option<u64> {
        let place = self.latest.partition_point(|(_, called, _)| *called <= moment);
        self.latest.get(place).map(|(revision, ..)| *revision)
    }

    /// Checks that a revision is reported only after all changes up to it had been called.
    pub(super) fn check_visibility(&self, revision: u64, teller: Index) -> Result<(), Reason> {
        let place = self.latest.partition_point(|(at, ..)| *at <= revision);
        let Some((_, called, maker)) = place.checked_sub(1).map(|place| self.latest[place]) else {
            return Ok(());
        };
        if called <= self.history[teller].invoked {
            return Ok(());
        }
        let why = format!(
            "#{teller} reports revision {revision} before #{maker} was called, whose revision is not higher"
        );
        Err(reason("durable", self.object, [teller, maker], why))
    }
}
