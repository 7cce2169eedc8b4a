//! Minimizes a violation to a few operations that contradict each other regardless of all others.
//!
//! An operation is never removed to make the history smaller: if a write were missing, every read of its value would be
//! a violation. Instead the operation is relaxed: it may take effect at any moment after its call, or never. An order
//! that explains a history also explains every history that results from it by relaxing operations. So if a relaxed
//! history has no order, the full history has none either. Relaxing further operations never restores a contradiction.
//! So if no single operation can be relaxed without losing the contradiction, no pair of operations can be relaxed.

use std::collections::HashSet;

use super::search::{Answer, Fixed, SearchProblem};
use super::steps::Meter;
use super::{Budget, Index};
use crate::history::{At, History, Operation, Outcome};
use crate::model::Model;
use crate::verdict::{Counterexample, DeadEnd};

/// Step limit of all minimizing searches, as a multiple of the steps of the search that found the violation.
const STEPS_FACTOR: u64 = 200;

/// Minimum step limit of all minimizing searches.
const STEPS_MIN: u64 = 2_000_000;

/// Each search may use at most this fraction of the remaining steps, given as a divisor.
const SEARCH_SHARE: u64 = 50;

struct Shrinking<'a, M: Model> {
    model: &'a M,
    history: &'a History<M::Call, M::Reply>,
    members: &'a [Index],
    budget: Budget<'a>,
    /// Remaining steps.
    steps: u64,
    dead_end: DeadEnd,
}

/// Finds a small reason why `members` of the history, all of one object, have no order.
pub(super) fn reason<M: Model>(
    model: &M,
    history: &History<M::Call, M::Reply>,
    members: &[Index],
    dead_end: DeadEnd,
    budget: Budget<'_>,
    found: &Meter<'_>,
) -> Counterexample {
    let steps = found.steps().saturating_mul(STEPS_FACTOR).max(STEPS_MIN).min(budget.steps);
    let mut shrinking = Shrinking { model, history, members, budget, steps, dead_end };
    let mut kept = shrinking.earliest();
    let is_minimal = shrinking.let_off(&mut kept);
    kept.sort_by_key(|index| (history[*index].invoked, *index));
    let counts = |index: &&Index| !matches!(history[**index].outcome, Outcome::Failed { .. });
    let let_off = members.iter().filter(counts).count() - kept.len();
    let dead_end = DeadEnd { let_off, ..shrinking.dead_end };
    let object = kept.first().map_or("", |index| &history[*index].object);
    let why = match kept.as_slice() {
        [one] => format!("no order contains #{one}"),
        several => {
            let names: Vec<String> = several.iter().map(|index| format!("#{index}")).collect();
            format!("no order contains all of {}", names.join(", "))
        }
    };
    let reason = Counterexample::new("no order", object, kept, why).with_minimality(is_minimal);
    Counterexample { dead_end: Some(dead_end), ..reason }
}

fn completed<C, R>(operation: &Operation<C, R>) -> Option<At> {
    match operation.outcome {
        Outcome::Ok { at, .. } => Some(at),
        Outcome::Failed { .. } | Outcome::Unknown { .. } => None,
    }
}

impl<M: Model> Shrinking<'_, M> {
    /// Returns whether `kept` certainly contradict each other when all other operations are relaxed, or `None` if the
    /// search ran out of steps.
    fn contradicts(&mut self, kept: &[Index]) -> Option<bool> {
        let latest = kept.iter().filter_map(|index| completed(&self.history[*index])).max();
        // An empty set has no contradiction.
        let Some(latest) = latest else { return Some(false) };
        let steps = self.steps / SEARCH_SHARE;
        if steps == 0 {
            return None;
        }
        let kept: HashSet<Index, Fixed> = kept.iter().copied().collect();
        // Operations that were called after all kept ones had ended have no influence.
        let members = self.members.iter().filter(|index| self.history[**index].invoked <= latest);
        let members = members.map(|index| (*index, !kept.contains(index)));
        let mut meter = Meter::new(Budget { steps, ..self.budget });
        let answer = SearchProblem::new(self.model, self.history, members).solve(&mut meter);
        // Setting up the search has a cost as well.
        self.steps = self.steps.saturating_sub(meter.steps() + self.members.len() as u64);
        match answer {
            Answer::Order(_) => Some(false),
            Answer::DeadEnd(dead_end) => {
                self.dead_end = dead_end;
                Some(true)
            }
            Answer::GaveUp(_) => None,
        }
    }

    /// Returns the operations that had ended when the history first became inexplicable, sorted by their ends.
    fn earliest(&mut self) -> Vec<Index> {
        let history = self.history;
        let mut kept: Vec<Index> = self.members.to_vec();
        kept.retain(|index| completed(&history[*index]).is_some());
        kept.sort_by_key(|index| (completed(&history[*index]), *index));
        // Binary search. Invariant: no order explains the first `many` operations. For the first `few` operations, an
        // order exists or the search for one used up its budget.
        let (mut few, mut many) = (0, kept.len());
        while many - few > 1 {
            let middle = few.midpoint(many);
            match self.contradicts(&kept[..middle]) {
                Some(true) => many = middle,
                Some(false) | None => few = middle,
            }
        }
        kept.truncate(many);
        kept
    }

    /// Relaxes as many operations as possible, large groups first (after Zeller and Hildebrandt's ddmin, 2002).
    /// Returns whether every kept operation is certainly needed. An operation that is needed now is still needed
    /// after more are relaxed.
    fn let_off(&mut self, kept: &mut Vec<Index>) -> bool {
        let mut size = kept.len().div_ceil(2);
        loop {
            let mut is_certain = true;
            let mut from = 0;
            while from < kept.len() {
                let until = kept.len().min(from + size);
                let rest = [&kept[..from], &kept[until..]].concat();
                match self.contradicts(&rest) {
                    Some(true) => *kept = rest,
                    Some(false) => from = until,
                    None => {
                        is_certain = false;
                        from = until;
                    }
                }
            }
            if size <= 1 {
                return is_certain;
            }
            size = size.div_ceil(2);
        }
    }
}
