//! Replays the whole order and compares each reply with the store at its revision.

use std::collections::HashMap;

use super::Total;
use super::facts::{self, TotalLive, TotalObservation};
use super::gaps::{Chosen, Fixed, GapChange, ambiguous};
use super::order::{Placed, TotalOrder, reply_of};
use crate::history::Index;
use crate::value::Value;
use crate::verdict::{Counterexample, Verdict};

/// Maximum number of operations that a reason names because they wrote a matching value at another revision.
const OTHER_ROWS_MAX: usize = 4;

/// A row at the current point of the replay.
#[derive(Clone, Copy, Default)]
struct Story<'a> {
    now: Option<TotalLive<'a>>,
    /// The last known change: its revision, and the operation that made or observed it.
    known: Option<(u64, Index)>,
    /// Whether that operation made the change.
    is_maker: bool,
}

/// Replays the placed operations and the chosen changes.
pub(super) fn play(rules: &Total, order: &TotalOrder<'_>, chosen: &Chosen<'_>) -> Verdict {
    let history = order.history;
    let mut rows: HashMap<&str, Story<'_>, Fixed> = HashMap::default();
    let mut changes = chosen.changes.iter().copied().peekable();
    for placed in &order.placed {
        while let Some(change) = changes.next_if(|change| change.revision <= placed.revision) {
            let GapChange { revision, index, told } = change;
            let call = &history[index].call;
            let row = rows.entry(call.key()).or_default();
            if facts::condition(call).is_some_and(|condition| !condition.fits(row.now)) {
                return ambiguous(order);
            }
            let value = facts::written(call).expect("what was chosen changes something");
            row.now = value.map(|value| TotalLive { value, modified: revision });
            if let Some(told) = told {
                row.known = Some((revision, told));
                row.is_maker = false;
            }
        }
        let Placed { revision, only_read, index } = *placed;
        let call = &history[index].call;
        let key: &str = call.key();
        let row = rows.entry(key).or_default();
        if let Some(observation) = facts::observation(call, reply_of(history, index))
            && !observation.fits(row.now)
        {
            let at = revision - u64::from(!only_read);
            let wrong = Wrong { rules, order, index, key, observation, at, row: *row };
            return match wrong.certain() {
                Some(reason) => reason.into(),
                None if chosen.guessed.contains(key) => ambiguous(order),
                None => wrong.reason().into(),
            };
        }
        if !only_read {
            let value = facts::written(call).expect("it changed something");
            row.now = value.map(|value| TotalLive { value, modified: revision });
            row.known = Some((revision, index));
            row.is_maker = true;
        }
    }
    Verdict::Ok
}

/// Returns the operations that may have written to a row if they took effect, without those in `except`.
pub(super) fn writers(
    order: &TotalOrder<'_>,
    key: &str,
    except: &[Index],
    fits: impl Fn(Option<&Value>) -> bool,
) -> Vec<Index> {
    let placed = order.placed.iter().map(|placed| placed.index);
    let all = placed.chain(order.uncertain.iter().map(|uncertain| uncertain.index));
    all.filter(|index| {
        let call = &order.history[*index].call;
        **call.key() == *key && facts::written(call).is_some_and(&fits) && !except.contains(index)
    })
    .collect()
}

/// A reply that contradicts the replayed store.
struct Wrong<'p, 'a> {
    rules: &'p Total,
    order: &'p TotalOrder<'a>,
    index: Index,
    key: &'p str,
    observation: TotalObservation<'p>,
    /// The revision of the reply.
    at: u64,
    row: Story<'a>,
}

impl Wrong<'_, '_> {
    /// Describes the reply.
    fn seen(&self) -> String {
        let Self { index, key, at, .. } = self;
        let what = match self.observation {
            TotalObservation::Is(Some(value), Some(modified)) => {
                format!("{value}, changed at {modified},")
            }
            TotalObservation::Is(Some(value), None) => format!("{value}"),
            TotalObservation::Is(None, None) | TotalObservation::At(None) => "nothing".to_owned(),
            TotalObservation::Is(None, Some(modified)) => {
                format!("nothing, changed at {modified},")
            }
            TotalObservation::Exists | TotalObservation::NotAt(None) => "something".to_owned(),
            TotalObservation::At(Some(modified)) => format!("a change of revision {modified}"),
            TotalObservation::NotAt(Some(modified)) => {
                format!("a change other than that of {modified}")
            }
        };
        format!("#{index} observed {what} in row {key:?} at revision {at}")
    }

    fn because(
        &self,
        rule: &'static str,
        operations: impl Into<Vec<Index>>,
        why: &str,
    ) -> Counterexample {
        let why = format!("{}, {why}", self.seen());
        Counterexample::new(rule, self.order.object, operations, why)
    }

    /// Returns a reason that holds regardless of all other operations, if there is one.
    fn certain(&self) -> Option<Counterexample> {
        let Self { index, at, .. } = *self;
        let told = self.observation.modified();
        if let TotalObservation::Is(Some(_), _) = self.observation {
            let maker = writers(self.order, self.key, &[], |written| {
                self.observation.is_satisfied_by(written)
            });
            if maker.is_empty() {
                return Some(self.because("unwritten value", [index], "but no operation wrote it"));
            }
        }
        if let Some(modified) = told {
            if modified > at {
                let why = "but the reported revision did not exist yet";
                return Some(self.because("future revision", [index], why));
            }
            if modified <= self.rules.first
                || matches!(self.observation, TotalObservation::Is(None, _))
            {
                let why = "but no change can have left this state";
                return Some(self.because("unwritten value", [index], why));
            }
            let place = self
                .order
                .placed
                .partition_point(|placed| (placed.revision, placed.only_read) < (modified, false));
            if let Some(placed) = self.order.placed.get(place)
                && placed.revision == modified
                && !placed.only_read
                && !self.is_left_by(placed.index)
            {
                let maker = placed.index;
                let why = format!("but #{maker} made revision {modified} with another change");
                return Some(self.because("unwritten value", [maker, index], &why));
            }
        }
        let (changed, by) = self.row.known?;
        let verb = if self.row.is_maker { "changed it at" } else { "observed that it changed at" };
        if told.is_some_and(|modified| modified < changed) {
            let why = format!("but #{by} {verb} revision {changed}");
            return Some(
                self.because("stale read", [by, index], &why)
                    .link(by, index, format!("revision {changed} ≤ {at}"))
                    .link(index, by, "observed the row before the change"),
            );
        }
        if changed == at && self.row.is_maker {
            let why = format!("but #{by} changed it at this revision");
            return Some(self.because("wrong value", [by, index], &why));
        }
        None
    }

    /// Returns whether an operation can have left the row as the reply shows it, at the revision that the reply
    /// names.
    fn is_left_by(&self, maker: Index) -> bool {
        let call = &self.order.history[maker].call;
        **call.key() == *self.key
            && facts::written(call).is_some_and(|written| self.observation.is_satisfied_by(written))
    }

    /// Returns a reason based on the replayed order.
    fn reason(&self) -> Counterexample {
        let mut operations: Vec<Index> = Vec::new();
        let known = self.row.known.map(|(changed, by)| {
            operations.push(by);
            format!("but #{by} made the last change of the row, at revision {changed}")
        });
        operations.push(self.index);
        let elsewhere = writers(self.order, self.key, &operations, |written| {
            self.observation.is_satisfied_by(written)
        });
        let is_placed =
            |index: &Index| self.order.uncertain.iter().all(|uncertain| uncertain.index != *index);
        let is_minimal = elsewhere.len() <= OTHER_ROWS_MAX && elsewhere.iter().all(is_placed);
        let mut why =
            known.unwrap_or_else(|| "but no operation can have made this change".to_owned());
        if is_minimal {
            for index in &elsewhere {
                why += &format!("; #{index} wrote the value at another revision");
            }
            operations.splice(0..0, elsewhere);
        }
        self.because("wrong value", operations, &why).with_minimality(is_minimal)
    }
}
