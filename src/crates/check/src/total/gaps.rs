//! Assigns free revisions, which no operation of known outcome made, to changes of unknown outcome: first those that
//! replies prove, then the rest.

use std::collections::hash_map::{DefaultHasher, HashMap};
use std::collections::{BTreeMap, HashSet};
use std::hash::BuildHasherDefault;

use super::facts::{self, TotalLive, TotalObservation};
use super::order::{Placed, TotalOrder, Uncertain, reply_of};
use super::spare::{Pool, Quiet, Spare};
use super::{Total, replay};
use crate::history::Index;
use crate::value::Value;
use crate::verdict::{Counterexample, Undecided, Verdict};

/// A hasher without a random seed, so that every run is the same.
pub(super) type Fixed = BuildHasherDefault<DefaultHasher>;

/// Maximum number of free revisions for each operation. With more, the verdict is undecided.
const GAPS_PER_OPERATION_MAX: u64 = 16;

/// Number of free revisions that is allowed for any history.
const GAPS_MIN: u64 = 100_000;

/// The assignment of changes of unknown outcome to revisions.
#[derive(Debug, Default)]
pub(super) struct Chosen<'a> {
    /// Sorted by revision.
    pub(super) changes: Vec<GapChange>,
    /// Keys of rows whose history involved a choice. A contradiction in such a row may be caused by the choice.
    pub(super) guessed: HashSet<&'a str, Fixed>,
}

/// A change of unknown outcome that made a revision.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct GapChange {
    pub(super) revision: u64,
    pub(super) index: Index,
    /// The operation that observed it, or `None` if the assignment was chosen.
    pub(super) told: Option<Index>,
}

/// A fact that a reply states about a free revision.
#[derive(Clone, Copy)]
struct Pin<'a> {
    key: usize,
    /// The written value, if it was observed.
    value: Option<&'a Value>,
    told: Index,
}

/// A row that a change of unknown outcome may have changed.
#[derive(Default)]
struct GapRow<'a> {
    key: &'a str,
    /// Indices into [`TotalOrder::uncertain`].
    uncertain: Vec<usize>,
    /// The entries of `uncertain`, grouped by the value that they write.
    by_value: HashMap<Option<&'a Value>, Vec<usize>, Fixed>,
    /// Operations that certainly touched the row, sorted by revision.
    events: Vec<Placed>,
    /// Ranges of revisions, both ends included, in which no other change of the row is possible. Sorted by revision.
    quiet: Vec<Quiet>,
    guessed: bool,
}

struct Choosing<'o, 'a> {
    order: &'o TotalOrder<'a>,
    gaps: Vec<u64>,
    rows: Vec<GapRow<'a>>,
    pins: BTreeMap<u64, Pin<'a>>,
    /// For each of [`TotalOrder::uncertain`], the revision that it made.
    made: Vec<Option<u64>>,
    /// Free revisions that are assigned.
    used: HashSet<u64, Fixed>,
    /// Changes that must have made some revision in a range.
    needed: Vec<Needed>,
}

struct Needed {
    place: usize,
    from: u64,
    /// Revisions from here on are too late.
    late: [Quiet; 1],
}

impl<'a> Chosen<'a> {
    /// Chooses an assignment. The error is a verdict: no assignment explains the replies, or several may.
    pub(super) fn of(rules: &Total, order: &TotalOrder<'a>) -> Result<Self, Verdict> {
        let gaps = gaps(rules, order)?;
        if gaps.is_empty() || rules.others && order.uncertain.is_empty() {
            return Ok(Self::default());
        }
        let made = vec![None; order.uncertain.len()];
        let (rows, pins, used) = (rows(order), BTreeMap::new(), HashSet::default());
        let needed = Vec::new();
        let mut choosing = Choosing { order, gaps, rows, pins, made, used, needed };
        choosing.find_pins()?;
        choosing.set_pins()?;
        for row in 0..choosing.rows.len() {
            choosing.walk(row);
        }
        if !rules.others {
            choosing.fill()?;
        }
        Ok(choosing.chosen())
    }
}

/// Returns the free revisions.
fn gaps(rules: &Total, order: &TotalOrder<'_>) -> Result<Vec<u64>, Verdict> {
    let mut gaps = Vec::new();
    let mut next = rules.first + 1;
    let Some(last) = order.placed.last() else { return Ok(gaps) };
    let changes = order.placed.iter().filter(|placed| !placed.only_read);
    let free = last.revision - rules.first - changes.clone().count() as u64;
    if free > GAPS_MIN.max(GAPS_PER_OPERATION_MAX * order.placed.len() as u64) {
        return Err(ambiguous(order));
    }
    for placed in changes {
        gaps.extend(next..placed.revision);
        next = placed.revision + 1;
    }
    gaps.extend(next..=last.revision);
    Ok(gaps)
}

/// Returns the rows that a change of unknown outcome may have changed.
fn rows<'a>(order: &TotalOrder<'a>) -> Vec<GapRow<'a>> {
    let history = order.history;
    let mut rows: Vec<GapRow<'a>> = Vec::new();
    let mut numbers: HashMap<&str, usize, Fixed> = HashMap::default();
    for (place, uncertain) in order.uncertain.iter().enumerate() {
        let key: &str = history[uncertain.index].call.key();
        let number = *numbers.entry(key).or_insert_with(|| {
            rows.push(GapRow { key, ..GapRow::default() });
            rows.len() - 1
        });
        let written = facts::written(&history[uncertain.index].call).expect("it may change a row");
        rows[number].uncertain.push(place);
        rows[number].by_value.entry(written).or_default().push(place);
    }
    for placed in &order.placed {
        if let Some(number) = numbers.get(&**history[placed.index].call.key()) {
            rows[*number].events.push(*placed);
        }
    }
    rows
}

pub(super) fn ambiguous(order: &TotalOrder<'_>) -> Verdict {
    Verdict::Undecided {
        object: order.object.to_owned(),
        why: Undecided::Ambiguous,
        explored: (order.placed.len() + order.uncertain.len()) as u64,
    }
}

/// Returns the fact that an event states about the row, and the revision at which it was observed.
fn seen<'a>(order: &TotalOrder<'a>, event: Placed) -> Option<(TotalObservation<'a>, u64)> {
    let history = order.history;
    let observation =
        facts::observation(&history[event.index].call, reply_of(history, event.index))?;
    Some((observation, event.revision - u64::from(!event.only_read)))
}

impl<'a> Choosing<'_, 'a> {
    fn is_gap(&self, revision: u64) -> bool {
        self.gaps.binary_search(&revision).is_ok()
    }

    fn uncertain(&self, place: usize) -> Uncertain {
        self.order.uncertain[place]
    }

    fn written(&self, place: usize) -> Option<&'a Value> {
        let history = self.order.history;
        let call = &history[self.uncertain(place).index].call;
        facts::written(call).expect("what is unsure may change a row")
    }

    fn condition(&self, place: usize) -> Option<TotalObservation<'a>> {
        let history = self.order.history;
        facts::condition(&history[self.uncertain(place).index].call)
    }

    fn make(&mut self, revision: u64, place: usize) {
        self.made[place] = Some(revision);
        assert!(self.used.insert(revision), "one revision is one change");
    }

    /// Collects the replies that name a free revision as the last change of a row. They prove which change made it.
    fn find_pins(&mut self) -> Result<(), Verdict> {
        let order = self.order;
        for (key, row) in self.rows.iter().enumerate() {
            for event in &row.events {
                let Some((observation, at)) = seen(order, *event) else { continue };
                let Some(modified) = observation.modified() else { continue };
                if modified > at || !self.is_gap(modified) {
                    continue;
                }
                let value = match observation {
                    TotalObservation::Is(Some(value), _) => Some(value),
                    // "The row did not exist" does not identify the change.
                    TotalObservation::Is(None, _) => continue,
                    _ => None,
                };
                let told = event.index;
                let pin = self.pins.entry(modified).or_insert(Pin { key, value, told });
                let differs =
                    pin.key != key || pin.value.zip(value).is_some_and(|(one, other)| one != other);
                if differs {
                    let why = format!(
                        "#{} and #{told} observed different changes at revision {modified}",
                        pin.told
                    );
                    let operations = [pin.told, told];
                    let rule = "two changes at one revision";
                    return Err(Counterexample::new(rule, order.object, operations, why).into());
                }
                if pin.value.is_none() {
                    *pin = Pin { key, value, told };
                }
            }
        }
        Ok(())
    }

    /// Assigns each pinned revision to a matching change.
    fn set_pins(&mut self) -> Result<(), Verdict> {
        for (revision, pin) in self.pins.clone() {
            let row = &self.rows[pin.key];
            let mut fits = match pin.value {
                Some(value) => row.by_value.get(&Some(value)).cloned().unwrap_or_default(),
                None => row.uncertain.clone(),
            };
            fits.retain(|place| self.written(*place).is_some());
            let is_free = |place: &usize| {
                self.made[*place].is_none() && self.uncertain(*place).first <= revision
            };
            // Changes that may have happened early are kept for early revisions.
            let best = fits.iter().copied().filter(is_free).max_by_key(|place| {
                (self.condition(*place).is_none(), self.uncertain(*place).first)
            });
            let call = |place: usize| &self.order.history[self.uncertain(place).index].call;
            let is_choice = fits.windows(2).any(|pair| call(pair[0]) != call(pair[1]))
                || fits.iter().any(|place| self.condition(*place).is_some());
            if is_choice {
                self.rows[pin.key].guessed = true;
            }
            match best {
                Some(place) => self.make(revision, place),
                None if self.rows[pin.key].guessed => return Err(ambiguous(self.order)),
                None => return Err(self.no_writer(revision, pin, &fits).into()),
            }
        }
        Ok(())
    }

    /// Reports that no operation can have made what was observed at a revision.
    fn no_writer(&self, revision: u64, pin: Pin<'_>, fits: &[usize]) -> Counterexample {
        let Pin { told, value, .. } = pin;
        let key = self.rows[pin.key].key;
        let what = value.map_or("a change".to_owned(), |value| format!("{value}"));
        let seen =
            format!("#{told} observed {what} in row {key:?}, written at revision {revision}");
        let late = fits.iter().find_map(|place| {
            let uncertain = self.uncertain(*place);
            uncertain.since.filter(|_| self.made[*place].is_none()).map(|since| (uncertain, since))
        });
        let others = replay::writers(self.order, key, &[told], |written| {
            written.is_some() && (value.is_none() || written == value)
        });
        let (object, rule) = (self.order.object, "unwritten value");
        match late {
            Some((uncertain, since)) => {
                let why = format!(
                    "{seen}, but #{} was called after #{since} had ended with that revision or a later one",
                    uncertain.index
                );
                Counterexample::new(rule, object, [since, told], why)
                    .with_minimality(others == [uncertain.index])
                    .link(since, uncertain.index, "had ended")
            }
            None => {
                let why = format!("{seen}, but no operation can have written it then");
                Counterexample::new(rule, object, [told], why).with_minimality(others.is_empty())
            }
        }
    }

    /// Walks through the history of a row and finds where it must have changed and where it cannot have.
    fn walk(&mut self, number: usize) {
        let events = std::mem::take(&mut self.rows[number].events);
        let row = self.rows[number].uncertain.iter();
        let mut pins: Vec<(u64, Option<&'a Value>)> =
            row.filter_map(|place| Some((self.made[*place]?, self.written(*place)))).collect();
        pins.sort_unstable_by_key(|(revision, _)| *revision);
        let mut pins = pins.into_iter().peekable();
        let mut now: Option<TotalLive<'a>> = None;
        // The revision of the row's last change, and the end of the range without changes.
        let (mut since, mut until) = (0, 0);
        for event in events {
            let upto = event.revision - u64::from(!event.only_read);
            while let Some((revision, value)) = pins.next_if(|(revision, _)| *revision <= upto) {
                now = value.map(|value| TotalLive { value, modified: revision });
                since = revision;
            }
            if let Some((observation, at)) = seen(self.order, event) {
                if !observation.fits(now)
                    && let Some((revision, place)) =
                        self.needed(number, observation, since.max(until) + 1, at)
                {
                    self.make(revision, place);
                    now = self.written(place).map(|value| TotalLive { value, modified: revision });
                    since = revision;
                }
                match observation {
                    TotalObservation::Is(..) | TotalObservation::At(_) if observation.fits(now) => {
                        self.record_unchanged(number, observation, since + 1, at);
                        until = at;
                    }
                    // Either the row did not change at that revision, or it changed again later.
                    TotalObservation::NotAt(Some(not)) if since < not && not <= at => {
                        let all = self.rows[number].uncertain.iter();
                        let puts = all.clone().filter(|place| self.written(**place).is_some());
                        let (puts, all) = (puts.count(), all.count());
                        let row = &mut self.rows[number];
                        row.guessed |= puts > 0 && all > 1;
                        // The row may have been deleted at that revision.
                        if puts > 0 {
                            row.quiet.push(Quiet { from: not, to: not });
                        }
                    }
                    _ => {}
                }
            }
            if !event.only_read {
                let call = &self.order.history[event.index].call;
                let value = facts::written(call).expect("it changed something");
                now = value.map(|value| TotalLive { value, modified: event.revision });
                since = event.revision;
            }
        }
        Quiet::merge(&mut self.rows[number].quiet);
    }

    /// Records the part of a range in which the row certainly did not change.
    fn record_unchanged(
        &mut self,
        number: usize,
        observation: TotalObservation<'a>,
        from: u64,
        to: u64,
    ) {
        if from > to {
            return;
        }
        // The row may have been overwritten with the same value.
        let same = observation.modified().is_none()
            && self.able(number, observation).iter().any(|place| self.made[*place].is_none());
        let row = &mut self.rows[number];
        row.guessed |= same;
        row.quiet.push(Quiet { from, to });
    }

    /// Returns a superset of the changes that may make the fact true.
    fn able(&self, row: usize, observation: TotalObservation<'a>) -> &[usize] {
        let row = &self.rows[row];
        match observation {
            TotalObservation::Is(value, _) => row.by_value.get(&value).map_or(&[], |all| all),
            TotalObservation::At(None) => row.by_value.get(&None).map_or(&[], |all| all),
            TotalObservation::Exists
            | TotalObservation::At(Some(_))
            | TotalObservation::NotAt(_) => &row.uncertain,
        }
    }

    /// Returns the first free revision and a change that makes the fact true, if both exist. Records whether the choice
    /// was ambiguous.
    fn needed(
        &mut self,
        row: usize,
        observation: TotalObservation<'a>,
        from: u64,
        to: u64,
    ) -> Option<(u64, usize)> {
        if observation.modified().is_some() || from > to {
            return None;
        }
        let start = self.gaps.partition_point(|gap| *gap < from);
        let gaps = self.gaps[start..].iter().copied().take_while(|gap| *gap <= to);
        let mut best = None;
        let mut choices = 0;
        for place in self.able(row, observation) {
            if self.made[*place].is_some() || !observation.is_satisfied_by(self.written(*place)) {
                continue;
            }
            let first = self.uncertain(*place).first;
            let mut fits = gaps.clone().filter(|gap| *gap >= first && !self.pins.contains_key(gap));
            let free = fits.clone().find(|gap| !self.used.contains(gap));
            choices += fits.by_ref().take(2).count();
            choices += usize::from(self.condition(*place).is_some());
            best = best.or(free.map(|gap| (gap, *place)));
        }
        if let Some((_, place)) = best {
            let late = [Quiet { from: to + 1, to: u64::MAX }];
            self.needed.push(Needed { place, from, late });
        }
        if choices > 1 || best.is_none() && choices > 0 {
            self.rows[row].guessed = true;
        }
        best
    }

    /// Assigns the remaining revisions to the remaining changes.
    fn fill(&mut self) -> Result<(), Verdict> {
        let order = self.order;
        let mut free: Vec<u64> = std::mem::take(&mut self.gaps);
        free.retain(|gap| !self.used.contains(gap));
        let mut pools = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let left = row.uncertain.iter().filter(|place| self.made[**place].is_none());
            let mut spare: Vec<Spare> = left
                .map(|place| {
                    let first = self.uncertain(*place).first;
                    let is_sure = self.condition(*place).is_none();
                    Spare { place: *place, first, is_sure, has: None }
                })
                .collect();
            spare.sort_by_key(|spare| (spare.first, spare.place));
            pools.push(Pool { spare, quiet: &row.quiet });
        }
        for Needed { place, from, late } in &self.needed {
            let (first, has) = (self.uncertain(*place).first.max(*from), self.made[*place]);
            let spare = vec![Spare { place: *place, first, is_sure: true, has }];
            pools.push(Pool { spare, quiet: late });
        }
        let spares: usize = pools.iter().map(|pool| pool.spare.len()).sum();
        match super::spare::matched(&free, &pools) {
            Ok(matched) => {
                for (gap, place) in matched {
                    self.made[place] = Some(gap);
                }
            }
            Err(None) => return Err(ambiguous(order)),
            Err(Some(_)) if self.rows.iter().any(|row| row.guessed) => {
                return Err(ambiguous(order));
            }
            Err(Some(gap)) => {
                let next = order.placed.partition_point(|placed| placed.revision < gap);
                let Placed { index, revision, .. } = order.placed[next];
                let why = format!(
                    "#{index} reports revision {revision}, but no operation can have made revision {gap}: only {spares} \
                     changes of unknown outcome remain for {} revisions",
                    free.len()
                );
                let rule = "revision without a change";
                let reason = Counterexample::new(rule, order.object, [index], why);
                return Err(reason.with_minimality(false).into());
            }
        }
        Ok(())
    }

    fn chosen(self) -> Chosen<'a> {
        let mut guessed: HashSet<&str, Fixed> =
            self.rows.iter().filter(|row| row.guessed).map(|row| row.key).collect();
        let mut changes = Vec::new();
        for (place, made) in self.made.iter().enumerate() {
            let Some(revision) = *made else { continue };
            let index = self.order.uncertain[place].index;
            let told = self.pins.get(&revision).map(|pin| pin.told);
            changes.push(GapChange { revision, index, told });
            // The condition of this change may have failed, so it is not certain that the change made the revision that
            // was assigned to it.
            if self.condition(place).is_some() {
                guessed.insert(self.order.history[index].call.key());
            }
        }
        changes.sort_unstable();
        Chosen { changes, guessed }
    }
}
