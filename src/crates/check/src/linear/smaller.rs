//! Minimizes a violation to a few operations that contradict each other.
//!
//! An operation is never removed to make the history smaller: if a write were missing, every read of its value would be
//! a violation. Instead the operation is relaxed, in one of two ways:
//!
//! - *let off*: the operation may take effect at any moment after its call, or never ([`Part::Call`]);
//! - *silenced*: its reply is ignored, but the operation takes effect between its call and its end. If the reply says
//!   that the operation changed nothing, the operation is left out ([`Part::Effect`]).
//!
//! Both are sound: an order that explains a history also explains every history that results from it by relaxing
//! operations. So if a relaxed history has no order, the full history has none either. Relaxing further operations never
//! restores a contradiction. So if no single operation can be relaxed without losing the contradiction, no set of
//! operations can be relaxed.
//!
//! A contradiction in which all other operations are let off is the best one, because nothing else needs to be known.
//! But the search for it can be expensive: each operation that is let off doubles the number of possible runs. If
//! operations are silenced, the possible runs are hardly more than those of the full history. So the steps are:
//!
//! 1. Find the shortest prefix without an order.
//! 2. Let off as many operations as possible, at first those with the most expensive replies. If the result is certain
//!    and small, it is the counterexample.
//! 3. Silence as many operations of the prefix as possible. The rest are those whose *replies* contradict each other.
//! 4. Do step 2 again, but begin with the operations of step 3 and those that changed something. Without the other
//!    replies the search is often much cheaper. If the result is certain and small, it is the counterexample.
//! 5. Otherwise the smallest result is the counterexample.

use std::collections::HashSet;

use super::search::{Answer, Fixed, Part, SearchProblem};
use super::steps::Meter;
use super::{Budget, Index};
use crate::history::{At, History, Operation, Outcome};
use crate::model::{Model, Needs};
use crate::verdict::{Counterexample, DeadEnd, Link};

/// Step limit of each pass of minimizing searches, as a multiple of the steps of the search that found the violation.
const STEPS_FACTOR: u64 = 100;

/// Minimum step limit of each pass.
const STEPS_MIN: u64 = 500_000;

/// Each search may use at most this fraction of the remaining steps of the pass, given as a divisor.
const SEARCH_SHARE: u64 = 25;

/// Maximum number of searches of a pass that exhaust their share. Such a search learns nothing.
const EXHAUSTED_MAX: usize = 8;

/// A certain counterexample with at most this many operations is small enough: no other is searched for.
const SMALL_MAX: usize = 8;

/// Operations that contradict each other if all others are relaxed.
struct Reason {
    kept: Vec<Index>,
    /// Whether each kept operation is certainly needed.
    is_minimal: bool,
    /// Number of silenced operations; all others are let off.
    silenced: usize,
    dead_end: DeadEnd,
}

/// The search for a small reason why the members, all of one object, have no order.
pub(super) struct Shrinking<'a, M: Model> {
    model: &'a M,
    history: &'a History<M::Call, M::Reply>,
    members: &'a [Index],
    budget: Budget<'a>,
    /// The relaxation of operations that are not kept.
    relaxed: Part,
    /// Step limit of a pass.
    steps_max: u64,
    /// Remaining steps of this pass.
    steps: u64,
    dead_end: DeadEnd,
}

/// Maximum number of operations in the sentence.
const NAMED_MAX: usize = 16;

fn sentence(kept: &[Index], is_silenced: bool) -> String {
    let whatever = if is_silenced { ", whatever the other operations returned" } else { "" };
    let named = &kept[kept.len().saturating_sub(NAMED_MAX)..];
    let names: Vec<String> = named.iter().map(|index| format!("#{index}")).collect();
    let names = names.join(", ");
    match (kept.len(), kept.len() - named.len()) {
        (1, _) => format!("no order contains {names}{whatever}"),
        (_, 0) => format!("no order contains all of {names}{whatever}"),
        (_, others) => {
            format!("no order contains all of {others} operations and {names}{whatever}")
        }
    }
}

/// Maximum number of operations of a counterexample that are linked.
const LINKED_MAX: usize = 16;

/// Returns an arrow for each operation that had ended when another was called, except those that follow from others.
fn links<C, R>(history: &History<C, R>, kept: &[Index]) -> Vec<Link> {
    if kept.len() > LINKED_MAX {
        return Vec::new();
    }
    let precedes = |one: &Index, other: &Index| {
        completed(&history[*one]).is_some_and(|ended| ended < history[*other].invoked)
    };
    let mut links = Vec::new();
    for after in kept {
        for before in kept.iter().filter(|before| precedes(before, after)) {
            if !kept.iter().any(|middle| precedes(before, middle) && precedes(middle, after)) {
                links.push(Link { before: *before, after: *after, why: "had ended".to_owned() });
            }
        }
    }
    links
}

fn completed<C, R>(operation: &Operation<C, R>) -> Option<At> {
    match operation.outcome {
        Outcome::Ok { at, .. } => Some(at),
        Outcome::Failed { .. } | Outcome::Unknown { .. } => None,
    }
}

impl<'a, M: Model> Shrinking<'a, M> {
    pub(super) fn new(
        model: &'a M,
        history: &'a History<M::Call, M::Reply>,
        members: &'a [Index],
        dead_end: DeadEnd,
        budget: Budget<'a>,
        found: &Meter<'_>,
    ) -> Self {
        let steps = found.steps().saturating_mul(STEPS_FACTOR).max(STEPS_MIN).min(budget.steps);
        let relaxed = Part::Call;
        Self { model, history, members, budget, relaxed, steps_max: steps, steps, dead_end }
    }

    /// Returns the smallest reason that all steps find.
    pub(super) fn smallest(&mut self) -> Counterexample {
        let reason = self.smallest_reason();
        self.counterexample(reason)
    }

    /// Returns the result of step 3, even if a better one exists.
    #[cfg(test)]
    pub(super) fn replies(&mut self) -> Counterexample {
        let prefix = self.earliest();
        let start = self.dead_end.clone();
        let reason = self.pass(Part::Effect, prefix, &start);
        self.counterexample(reason)
    }

    fn counterexample(&self, mut found: Reason) -> Counterexample {
        let Self { model, history, members, .. } = *self;
        let kept = &mut found.kept;
        kept.sort_by_key(|index| (history[*index].invoked, *index));
        let counts = |index: &&Index| !matches!(history[**index].outcome, Outcome::Failed { .. });
        let relaxed = members.iter().filter(counts).count() - kept.len();
        let (let_off, silenced) = (relaxed - found.silenced, found.silenced);
        let dead_end = DeadEnd { let_off, silenced, ..found.dead_end };
        let object = kept.first().map_or("", |index| &history[*index].object);
        let why = sentence(kept, silenced > 0) + &self.failed_writers(kept);
        let links = links(history, kept);
        let reason = Counterexample::new("not linearizable", object, found.kept, why)
            .with_minimality(found.is_minimal);
        let call = |call: &M::Call| model.call_text(call);
        let reply = |call: &M::Call, reply: &M::Reply| model.reply_text(call, reply);
        Counterexample { dead_end: Some(dead_end), links, ..reason }.showing(history, call, reply)
    }

    /// Names the operations that are recorded as failed, but are the only ones that could have provided a value that a
    /// kept operation needs. Such a record may be wrong.
    fn failed_writers(&self, kept: &[Index]) -> String {
        let Self { model, history, members, .. } = *self;
        let mut text = String::new();
        for index in &kept[kept.len().saturating_sub(NAMED_MAX)..] {
            let Operation { call, outcome: Outcome::Ok { reply, .. }, .. } = &history[*index]
            else {
                continue;
            };
            let Needs::Value(value) = model.needs(call, Some(reply)) else { continue };
            // The value may be there before the first operation.
            let mut next = Vec::new();
            model.step(&model.initial(), call, Some(reply), &mut next);
            let gives = |other: &&Index| {
                *other != index && model.gives(&history[**other].call).as_ref() == Some(&value)
            };
            let writers: Vec<Index> = members.iter().filter(gives).copied().collect();
            let is_failed =
                |writer: &Index| matches!(history[*writer].outcome, Outcome::Failed { .. });
            if !next.is_empty() || !writers.iter().all(is_failed) {
                continue;
            }
            if let Some(writer) = writers.last() {
                text += &format!(
                    "; #{writer} wrote the value that #{index} needs, but is recorded as failed"
                );
            }
        }
        text
    }

    fn smallest_reason(&mut self) -> Reason {
        let prefix = self.earliest();
        let start = self.dead_end.clone();
        let first = self.pass(Part::Call, prefix.clone(), &start);
        if first.is_minimal && first.kept.len() <= SMALL_MAX {
            return first;
        }
        let replies = self.pass(Part::Effect, prefix.clone(), &start);
        let small_max = SMALL_MAX.max(replies.kept.len());
        let second = self.with_effects(&prefix, &replies);
        let all = [Some(first), second, Some(replies)].into_iter().flatten();
        let is_large = |reason: &Reason| !reason.is_minimal || reason.kept.len() > small_max;
        // If all are large, the one with the fewest operations is the best.
        let best = all
            .min_by_key(|reason| (is_large(reason), is_large(reason) as usize * reason.kept.len()));
        best.expect("there are at least two")
    }

    /// Relaxes as many of `kept` as possible, with a new budget.
    fn pass(&mut self, relaxed: Part, mut kept: Vec<Index>, dead_end: &DeadEnd) -> Reason {
        (self.relaxed, self.steps) = (relaxed, self.steps_max);
        self.dead_end = dead_end.clone();
        if relaxed == Part::Call {
            self.let_off_unclear(&mut kept);
        }
        let is_minimal = self.relax(&mut kept);
        let silenced = match relaxed {
            Part::Effect => self.silenced(&kept).count(),
            Part::All | Part::Call => 0,
        };
        Reason { kept, is_minimal, silenced, dead_end: self.dead_end.clone() }
    }

    /// Lets off all operations to which every other one may matter, if the rest still contradict each other. Without
    /// these operations, the search can ignore most of those that were let off.
    fn let_off_unclear(&mut self, kept: &mut Vec<Index>) {
        let is_clear = |index: &&Index| match &self.history[**index] {
            Operation { call, outcome: Outcome::Ok { reply, .. }, .. } => {
                self.model.needs(call, Some(reply)) != Needs::Anything
            }
            _ => false,
        };
        let clear: Vec<Index> = kept.iter().filter(is_clear).copied().collect();
        if clear.len() < kept.len() && self.contradicts(&clear) == Some(true) {
            *kept = clear;
        }
    }

    /// Starts with the operations that contradict each other by their replies, adds all operations that changed
    /// something, and lets off as many of these as possible. Returns `None` if they do not contradict each other when
    /// all other operations are let off.
    fn with_effects(&mut self, prefix: &[Index], replies: &Reason) -> Option<Reason> {
        let of_replies: HashSet<Index, Fixed> = replies.kept.iter().copied().collect();
        let changed = |index: &Index| match &self.history[*index] {
            Operation { call, outcome: Outcome::Ok { reply, .. }, .. } => {
                !self.model.observes(call, Some(reply))
            }
            _ => false,
        };
        let mut kept = prefix.to_vec();
        kept.retain(|index| of_replies.contains(index) || changed(index));
        (self.relaxed, self.steps) = (Part::Call, self.steps_max);
        let is_contradiction = self.contradicts(&kept) == Some(true);
        let dead_end = self.dead_end.clone();
        is_contradiction.then(|| self.pass(Part::Call, kept, &dead_end))
    }

    /// Returns the silenced operations if `kept` are kept. Operations that have no end, or that had not ended when the
    /// last kept one was called, are let off.
    fn silenced(&self, kept: &[Index]) -> impl Iterator<Item = Index> {
        let kept: HashSet<Index, Fixed> = kept.iter().copied().collect();
        let last = kept.iter().map(|index| self.history[*index].invoked).max();
        self.members.iter().copied().filter(move |index| {
            !kept.contains(index)
                && completed(&self.history[*index]).is_some_and(|at| Some(at) < last)
        })
    }

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
        let silenced: HashSet<Index, Fixed> = match self.relaxed {
            Part::Effect => self.silenced(kept).collect(),
            Part::All | Part::Call => HashSet::default(),
        };
        let kept: HashSet<Index, Fixed> = kept.iter().copied().collect();
        // Operations that were called after all kept ones had ended have no influence.
        let members = self.members.iter().filter(|index| self.history[**index].invoked <= latest);
        let members = members.map(|index| match kept.contains(index) {
            true => (*index, Part::All),
            false if silenced.contains(index) => (*index, Part::Effect),
            false => (*index, Part::Call),
        });
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
    fn relax(&mut self, kept: &mut Vec<Index>) -> bool {
        let mut exhausted = 0;
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
                    None if exhausted == EXHAUSTED_MAX => return false,
                    None => {
                        (is_certain, exhausted) = (false, exhausted + 1);
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
