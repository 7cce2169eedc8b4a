//! The search for a linearization. A *firm* operation must be placed; a *loose* one may be placed or left out. A
//! *silent* operation is firm, but its reply is ignored.

use std::collections::hash_map::{DefaultHasher, HashMap};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::hash::BuildHasherDefault;

use super::steps::Meter;
use crate::history::{At, History, Index, Outcome};
use crate::model::{Model, Needs};
use crate::value::Value;
use crate::verdict::{DeadEnd, Undecided};

/// A hasher without a random seed, so that every run is the same.
pub(super) type Fixed = BuildHasherDefault<DefaultHasher>;

/// The operations of one object that are to be ordered.
pub(super) struct SearchProblem<'a, M: Model> {
    model: &'a M,
    /// Sorted by the time of the call.
    required: Vec<Required<'a, M>>,
    /// Grouped by call; the members of each group are sorted by the time of the call.
    optional: Vec<CallGroup<'a, M>>,
}

struct Required<'a, M: Model> {
    index: Index,
    invoked: At,
    /// The end of the operation. Operations that were invoked after this moment must be placed after this operation.
    due: At,
    call: &'a M::Call,
    /// `None` if the reply is ignored.
    reply: Option<&'a M::Reply>,
    observes: bool,
}

/// How much of an answered operation the search takes into account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// The times and the reply.
    All,
    /// The times: the operation took effect between its call and its end, whatever it returned. Whether it changed
    /// anything is also taken into account, if the model knows it from the reply.
    Effect,
    /// The call: the operation takes effect at any moment after its call, or never.
    Call,
}

/// Loose operations with the same call. They differ only in the time of their calls.
struct CallGroup<'a, M: Model> {
    call: &'a M::Call,
    members: Vec<(At, Index)>,
}

/// The result of a search.
pub(super) enum Answer {
    /// An order that explains all firm operations.
    Order(Vec<Index>),
    /// No order exists. Contains one of the longest partial orders.
    DeadEnd(DeadEnd),
    GaveUp(Undecided),
}

/// Prepares a search over all operations of one object. An operation with outcome `Ok` is firm, one with outcome
/// `Unknown` is loose, and failed operations are ignored.
pub(super) fn whole<'a, M: Model>(
    model: &'a M,
    history: &'a History<M::Call, M::Reply>,
    members: &[Index],
) -> SearchProblem<'a, M> {
    SearchProblem::new(model, history, members.iter().map(|index| (*index, Part::All)))
}

impl<'a, M: Model> SearchProblem<'a, M> {
    /// Prepares a search over some operations. Each comes with the part of an answer that counts.
    pub(super) fn new(
        model: &'a M,
        history: &'a History<M::Call, M::Reply>,
        members: impl Iterator<Item = (Index, Part)>,
    ) -> Self {
        let mut required = Vec::new();
        let mut uncertain = Vec::new();
        let mut wanted = Wanted::default();
        for (index, part) in members {
            let operation = &history[index];
            let (call, invoked) = (&operation.call, operation.invoked);
            let told = match &operation.outcome {
                Outcome::Failed { .. } => continue,
                Outcome::Ok { at, reply } if part != Part::Call => Some((*at, reply)),
                Outcome::Ok { .. } | Outcome::Unknown { .. } => None,
            };
            let Some((due, reply)) = told else {
                // An operation without a reply that changes nothing cannot explain any other reply.
                if !model.observes(call, None) {
                    uncertain.push((invoked, index, call));
                }
                continue;
            };
            let observes = model.observes(call, Some(reply));
            match part {
                Part::Effect if observes => {}
                Part::Effect => {
                    // Its effect may depend on the state, so every other operation may matter to it.
                    wanted.add(Needs::Anything);
                    required.push(Required { index, invoked, due, call, reply: None, observes });
                }
                Part::All | Part::Call => {
                    wanted.add(model.needs(call, Some(reply)));
                    let reply = Some(reply);
                    required.push(Required { index, invoked, due, call, reply, observes });
                }
            }
        }
        required.sort_by_key(|required| (required.invoked, required.index));
        uncertain.sort_by_key(|(invoked, index, _)| (*invoked, *index));
        let optional = wanted.helpful(model, uncertain);
        Self { model, required, optional }
    }

    pub(super) fn solve(&self, meter: &mut Meter<'_>) -> Answer {
        let search = LinearSearch {
            problem: self,
            meter,
            done: vec![false; self.required.len()],
            base: 0,
            ahead: 0,
            used: BTreeMap::new(),
            trail: Vec::new(),
            seen: HashMap::default(),
            deepest: DeadEnd::default(),
            deepest_required: None,
        };
        search.run().unwrap_or_else(Answer::GaveUp)
    }
}

/// The values that operations need from loose ones, or all values.
#[derive(Default)]
struct Wanted {
    values: HashSet<Value, Fixed>,
    everything: bool,
}

impl Wanted {
    fn add(&mut self, needs: Needs) {
        match needs {
            Needs::Anything => self.everything = true,
            Needs::Value(value) => drop(self.values.insert(value)),
            Needs::Nothing => {}
        }
    }

    /// Groups the loose operations that provide a wanted value, and those that these need in turn.
    fn helpful<'a, M: Model>(
        mut self,
        model: &M,
        uncertain: Vec<(At, Index, &'a M::Call)>,
    ) -> Vec<CallGroup<'a, M>> {
        let mut groups: Vec<CallGroup<'a, M>> = Vec::new();
        let mut numbers: HashMap<&M::Call, usize, Fixed> = HashMap::default();
        for (invoked, index, call) in uncertain {
            let number = *numbers.entry(call).or_insert_with(|| {
                groups.push(CallGroup { call, members: Vec::new() });
                groups.len() - 1
            });
            groups[number].members.push((invoked, index));
        }
        let given: Vec<Option<Value>> =
            groups.iter().map(|group| model.gives(group.call)).collect();
        let mut givers: HashMap<&Value, Vec<usize>, Fixed> = HashMap::default();
        for (number, value) in given.iter().enumerate() {
            if let Some(value) = value {
                givers.entry(value).or_default().push(number);
            }
        }
        let mut helps = vec![false; groups.len()];
        let mut found: Vec<usize> =
            (0..groups.len()).filter(|number| given[*number].is_none()).collect();
        for value in &self.values {
            found.extend(givers.get(value).into_iter().flatten());
        }
        while let Some(number) = found.pop() {
            if std::mem::replace(&mut helps[number], true) {
                continue;
            }
            let needs = model.needs(groups[number].call, None);
            if let Needs::Value(value) = &needs
                && let Some(numbers) = givers.get(value)
            {
                found.extend(numbers);
            }
            self.add(needs);
        }
        let mut helps = helps.into_iter();
        groups.retain(|_| helps.next() == Some(true) || self.everything);
        groups
    }
}

/// A placed operation: a firm one, or the next of a group.
#[derive(Clone, Copy)]
enum PlacedCall {
    Required(usize),
    Loose(usize),
}

/// The placed firm operations and the state of the object. The fields are the number of the first firm operation that
/// is not placed, the placed firm operations after that one, and the state.
type Place<S> = (usize, Box<[usize]>, S);

/// Number of placed operations for each group that has any.
type Used = Box<[(usize, usize)]>;

/// The remaining choices at a configuration, the best one last, and the state and the length of the trail to return
/// to.
struct Choices<S> {
    trail: usize,
    state: S,
    left: Vec<(PlacedCall, S)>,
}

/// The choice that led to a configuration.
struct Chosen<S> {
    trail: usize,
    placed: PlacedCall,
    /// The state before.
    before: S,
    /// The state after.
    after: S,
}

struct LinearSearch<'p, 'a, 'm, 'b, M: Model> {
    problem: &'p SearchProblem<'a, M>,
    meter: &'m mut Meter<'b>,
    /// For each firm operation, whether it is placed.
    done: Vec<bool>,
    /// Number of the first firm operation that is not placed.
    base: usize,
    /// Number of placed firm operations after `base`.
    ahead: usize,
    /// Number of placed operations for each group.
    used: BTreeMap<usize, usize>,
    /// Placed operations, in order.
    trail: Vec<PlacedCall>,
    /// Configurations that failed or are being searched: for each place, the smallest sets of placed loose operations.
    seen: HashMap<Place<M::State>, Vec<Used>, Fixed>,
    deepest: DeadEnd,
    /// Number of firm operations that the deepest dead end had placed, if there was one.
    deepest_required: Option<usize>,
}

impl<M: Model> LinearSearch<'_, '_, '_, '_, M>
where
    M::State: Debug,
{
    fn run(mut self) -> Result<Answer, Undecided> {
        let mut stack: Vec<Choices<M::State>> = Vec::new();
        let mut state = self.problem.model.initial();
        // The state before the last operation, if that was a loose one.
        let mut before: Option<M::State> = None;
        loop {
            let placed = self.trail.len();
            let candidates = self.place_observers(&state)?;
            if self.base == self.problem.required.len() {
                return Ok(Answer::Order(self.order()));
            }
            if self.is_new(&state)? {
                let before = before.as_ref().filter(|_| self.trail.len() == placed);
                let left = self.choices(&state, before, &candidates)?;
                if left.is_empty() {
                    self.dead_end(&state, &candidates);
                } else {
                    stack.push(Choices { trail: self.trail.len(), state, left });
                }
            }
            let Some(chosen) = Self::next_choice(&mut stack) else {
                return Ok(Answer::DeadEnd(self.deepest));
            };
            self.take_back(chosen.trail);
            self.place(chosen.placed);
            state = chosen.after;
            before = matches!(chosen.placed, PlacedCall::Loose(_)).then_some(chosen.before);
        }
    }

    /// Returns the best remaining choice.
    fn next_choice(stack: &mut Vec<Choices<M::State>>) -> Option<Chosen<M::State>> {
        let choices = stack.last_mut()?;
        let (trail, before) = (choices.trail, choices.state.clone());
        let (placed, after) = choices.left.pop().expect("those without choices are not kept");
        if choices.left.is_empty() {
            stack.pop();
        }
        Some(Chosen { trail, placed, before, after })
    }

    /// Returns the firm operations that may be next, the most urgent first, and the latest time at which the next
    /// operation may have been called.
    fn candidates(&self) -> (Vec<usize>, At) {
        let mut due = At(u64::MAX);
        let mut found = Vec::new();
        for (number, required) in self.problem.required.iter().enumerate().skip(self.base) {
            if required.invoked > due {
                break;
            }
            if !self.done[number] {
                due = due.min(required.due);
                found.push(number);
            }
        }
        found.sort_by_key(|number| self.problem.required[*number].due);
        (found, due)
    }

    /// Places all operations that fit now and change nothing, because placing them here is never worse than later.
    /// Returns the remaining candidates.
    fn place_observers(&mut self, state: &M::State) -> Result<(Vec<usize>, At), Undecided> {
        let mut next = Vec::new();
        loop {
            let (mut candidates, due) = self.candidates();
            let before = candidates.len();
            let mut kept = Vec::with_capacity(before);
            for number in candidates.drain(..) {
                let required = &self.problem.required[number];
                if required.observes {
                    self.meter.step()?;
                    self.problem.model.step(state, required.call, required.reply, &mut next);
                    assert!(next.iter().all(|next| next == state), "what observes changes nothing");
                    if next.drain(..).next().is_some() {
                        self.place(PlacedCall::Required(number));
                        continue;
                    }
                }
                kept.push(number);
            }
            if kept.len() == before {
                return Ok((kept, due));
            }
        }
    }

    /// Records the configuration. Returns false if a recorded configuration is at least as good.
    fn is_new(&mut self, state: &M::State) -> Result<bool, Undecided> {
        let behind = (self.base..self.done.len()).filter(|number| self.done[*number]);
        let place = (self.base, behind.take(self.ahead).collect(), state.clone());
        let used: Used = self.used.iter().map(|(group, count)| (*group, *count)).collect();
        let before = self.seen.entry(place).or_default();
        if before.iter().any(|before| is_within(before, &used)) {
            return Ok(false);
        }
        self.meter.configuration()?;
        before.retain(|before| !is_within(&used, before));
        before.push(used);
        Ok(true)
    }

    /// Returns each operation that fits now with the resulting state, the best one last. `before` is the state before
    /// the last operation, if that was a loose one.
    fn choices(
        &mut self,
        state: &M::State,
        before: Option<&M::State>,
        (candidates, due): &(Vec<usize>, At),
    ) -> Result<Vec<(PlacedCall, M::State)>, Undecided> {
        let SearchProblem { model, required, optional } = self.problem;
        let mut left = Vec::new();
        let mut next = Vec::new();
        let mut without = Vec::new();
        for number in candidates {
            let required = &required[*number];
            if !required.observes {
                self.meter.step()?;
                model.step(state, required.call, required.reply, &mut next);
                left.extend(next.drain(..).map(|next| (PlacedCall::Required(*number), next)));
            }
        }
        for (number, group) in optional.iter().enumerate() {
            let used = self.used.get(&number).copied().unwrap_or(0);
            if group.members.get(used).is_some_and(|(invoked, _)| invoked <= due) {
                self.meter.step()?;
                model.step(state, group.call, None, &mut next);
                // Do not place a loose operation that changes nothing now: it may be needed later.
                let mut changed: Vec<M::State> =
                    next.drain(..).filter(|next| next != state).collect();
                if let Some(before) = before
                    && !changed.is_empty()
                {
                    // Nothing has noticed the last loose operation. A state that is reached without it is a
                    // configuration with fewer loose operations, which is searched as well.
                    self.meter.step()?;
                    model.step(before, group.call, None, &mut without);
                    changed.retain(|next| next != before && !without.contains(next));
                    without.clear();
                }
                left.extend(changed.into_iter().map(|next| (PlacedCall::Loose(number), next)));
            }
        }
        left.reverse();
        Ok(left)
    }

    fn place(&mut self, placed: PlacedCall) {
        self.trail.push(placed);
        match placed {
            PlacedCall::Loose(group) => *self.used.entry(group).or_default() += 1,
            PlacedCall::Required(number) => {
                self.done[number] = true;
                self.ahead += 1;
                while self.done.get(self.base) == Some(&true) {
                    self.base += 1;
                    self.ahead -= 1;
                }
            }
        }
    }

    /// Removes all placed operations after the first `trail`.
    fn take_back(&mut self, trail: usize) {
        for placed in self.trail.drain(trail..).rev() {
            match placed {
                PlacedCall::Loose(group) => {
                    let used = self.used.get_mut(&group).expect("one of it is placed");
                    *used -= 1;
                    if *used == 0 {
                        self.used.remove(&group);
                    }
                }
                PlacedCall::Required(number) => {
                    self.done[number] = false;
                    if number < self.base {
                        // The operations between `number` and the old base are still placed, and now count in `ahead`.
                        self.ahead += self.base - number - 1;
                        self.base = number;
                    } else {
                        self.ahead -= 1;
                    }
                }
            }
        }
    }

    /// Returns the placed operations as indices into the history.
    fn order(&self) -> Vec<Index> {
        let mut used = vec![0; self.problem.optional.len()];
        let index = |placed: &PlacedCall| match *placed {
            PlacedCall::Required(number) => self.problem.required[number].index,
            PlacedCall::Loose(group) => {
                used[group] += 1;
                self.problem.optional[group].members[used[group] - 1].1
            }
        };
        self.trail.iter().map(index).collect()
    }

    /// Returns the placed loose operations as indices into the history.
    fn relaxed(&self) -> Vec<Index> {
        let order = self.order();
        let is_loose = |placed: &PlacedCall| matches!(placed, PlacedCall::Loose(_));
        let loose = order.iter().zip(&self.trail).filter(|(_, placed)| is_loose(placed));
        loose.map(|(index, _)| *index).collect()
    }

    fn dead_end(&mut self, state: &M::State, (candidates, _): &(Vec<usize>, At)) {
        let required = self.base + self.ahead;
        if self.deepest_required.is_none_or(|deepest| required > deepest) {
            self.deepest_required = Some(required);
            self.deepest = DeadEnd {
                order: self.order(),
                relaxed: self.relaxed(),
                state: self.problem.model.state_text(state),
                blocked: candidates
                    .iter()
                    .map(|number| self.problem.required[*number].index)
                    .collect(),
                ..DeadEnd::default()
            };
        }
    }
}

/// Returns whether `one` uses no more of any group than `other`.
fn is_within(one: &[(usize, usize)], other: &[(usize, usize)]) -> bool {
    let mut others = other.iter();
    one.iter().all(|(group, count)| {
        others
            .by_ref()
            .find(|(other, _)| other >= group)
            .is_some_and(|(other, most)| other == group && most >= count)
    })
}
