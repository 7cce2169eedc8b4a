//! A small reason for a violation: few operations that contradict each other whatever the rest did.
//!
//! An operation is never left out to make a history smaller: without its write, every read would be a violation.
//! It is let off: it may take effect at any moment after its call, or never. Whatever explains a history explains it
//! with operations let off, too; so if there is no explanation then, there never was one. And letting more off never
//! brings a contradiction back, so where none can be let off alone, no two can be together.

use std::collections::HashSet;

use super::search::{Answer, Fixed, Puzzle};
use super::steps::Meter;
use super::{Budget, Index};
use crate::check::history::{At, History, Operation, Outcome};
use crate::check::model::Model;
use crate::check::verdict::{Counterexample, DeadEnd};

/// How many times the steps of the search that found the violation all the searches for a smaller one may take.
const STEPS_FACTOR: u64 = 200;

/// What they may take in any case.
const STEPS_MIN: u64 = 2_000_000;

/// One of them gives up after this part of what is left.
const PART_OF_A_SEARCH: u64 = 50;

struct Shrinking<'a, M: Model> {
    model: &'a M,
    history: &'a History<M::Call, M::Reply>,
    members: &'a [Index],
    budget: Budget<'a>,
    /// Steps that may still be taken.
    steps: u64,
    dead_end: DeadEnd,
}

/// Searches a small reason why `members` of the history, all of one object, have no order.
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
        [one] => format!("#{one} fits in no order"),
        several => {
            let names: Vec<String> = several.iter().map(|index| format!("#{index}")).collect();
            format!("{} fit in no order together", names.join(", "))
        }
    };
    let reason = Counterexample::new("no order", object, kept, why).perhaps(is_minimal);
    Counterexample { dead_end: Some(dead_end), ..reason }
}

fn completed<C, R>(operation: &Operation<C, R>) -> Option<At> {
    match operation.outcome {
        Outcome::Ok { at, .. } => Some(at),
        Outcome::Failed { .. } | Outcome::Unknown { .. } => None,
    }
}

impl<M: Model> Shrinking<'_, M> {
    /// Whether it is certain that `kept` contradict each other when all others are let off; `None` if there was
    /// no answer.
    fn contradicts(&mut self, kept: &[Index]) -> Option<bool> {
        let latest = kept.iter().filter_map(|index| completed(&self.history[*index])).max();
        // Nothing contradicts nothing.
        let Some(latest) = latest else { return Some(false) };
        let steps = self.steps / PART_OF_A_SEARCH;
        if steps == 0 {
            return None;
        }
        let kept: HashSet<Index, Fixed> = kept.iter().copied().collect();
        // What was called after all that is kept had ended changes nothing.
        let members = self.members.iter().filter(|index| self.history[**index].invoked <= latest);
        let members = members.map(|index| (*index, !kept.contains(index)));
        let mut meter = Meter::new(Budget { steps, ..self.budget });
        let answer = Puzzle::new(self.model, self.history, members).solve(&mut meter);
        // Setting it up costs something, too.
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

    /// The operations that had ended when the history first had no explanation, by their ends.
    fn earliest(&mut self) -> Vec<Index> {
        let history = self.history;
        let mut kept: Vec<Index> = self.members.to_vec();
        kept.retain(|index| completed(&history[*index]).is_some());
        kept.sort_by_key(|index| (completed(&history[*index]), *index));
        // With as many it has none; with as few it has one, or nobody knows.
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

    /// Lets off what can be, many at once first (after Zeller and Hildebrandt's ddmin, 2002). Whether each that is
    /// kept is certainly needed: what is needed now is needed still when more is let off.
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
