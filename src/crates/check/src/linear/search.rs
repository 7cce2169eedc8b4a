//! The search for a linearization. A *firm* operation must be placed; a *loose* one may be placed or left out.

use std::collections::hash_map::{DefaultHasher, HashMap};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::hash::BuildHasherDefault;

use super::steps::Meter;
use crate::history::{At, History, Index, Outcome};
use crate::model::{Model, Needs};
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
    reply: &'a M::Reply,
    observes: bool,
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
    SearchProblem::new(model, history, members.iter().map(|index| (*index, false)))
}

impl<'a, M: Model> SearchProblem<'a, M> {
    /// Prepares a search over some operations. Each comes with a flag: if it is set, the operation is loose even
    /// though its outcome is known.
    pub(super) fn new(
        model: &'a M,
        history: &'a History<M::Call, M::Reply>,
        members: impl Iterator<Item = (Index, bool)>,
    ) -> Self {
        let mut required = Vec::new();
        let mut uncertain = Vec::new();
        let mut wanted = Some(HashSet::new());
        for (index, is_let_off) in members {
            let operation = &history[index];
            let reply = match &operation.outcome {
                Outcome::Failed { .. } => continue,
                Outcome::Ok { at, reply } if !is_let_off => Some((*at, reply)),
                Outcome::Ok { .. } | Outcome::Unknown { .. } => None,
            };
            let (call, invoked) = (&operation.call, operation.invoked);
            let told = reply.map(|(_, reply)| reply);
            let observes = model.observes(call, told);
            // An operation without a reply that changes nothing cannot explain any other reply.
            if told.is_none() && observes {
                continue;
            }
            match model.needs(call, told) {
                Needs::Anything => wanted = None,
                Needs::Value(value) => drop(wanted.as_mut().map(|all| all.insert(value))),
                Needs::Nothing => {}
            }
            match reply {
                Some((due, reply)) => {
                    required.push(Required { index, invoked, due, call, reply, observes });
                }
                None => uncertain.push((invoked, index, call)),
            }
        }
        required.sort_by_key(|required| (required.invoked, required.index));
        uncertain.sort_by_key(|(invoked, index, _)| (*invoked, *index));
        let mut optional: Vec<CallGroup<'a, M>> = Vec::new();
        let mut groups: HashMap<&M::Call, usize, Fixed> = HashMap::default();
        for (invoked, index, call) in uncertain {
            let given = model.gives(call);
            let helps = match (&wanted, given) {
                (Some(wanted), Some(value)) => wanted.contains(&value),
                _ => true,
            };
            if helps {
                let group = *groups.entry(call).or_insert_with(|| {
                    optional.push(CallGroup { call, members: Vec::new() });
                    optional.len() - 1
                });
                optional[group].members.push((invoked, index));
            }
        }
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

/// The remaining choices at a configuration, the best one last, and the length of the trail to return to.
struct Choices<S> {
    trail: usize,
    left: Vec<(PlacedCall, S)>,
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
        loop {
            let candidates = self.place_observers(&state)?;
            if self.base == self.problem.required.len() {
                return Ok(Answer::Order(self.order()));
            }
            if self.is_new(&state)? {
                let left = self.choices(&state, &candidates)?;
                if left.is_empty() {
                    self.dead_end(&state, &candidates);
                } else {
                    stack.push(Choices { trail: self.trail.len(), left });
                }
            }
            let Some((trail, (placed, next))) = Self::next_choice(&mut stack) else {
                return Ok(Answer::DeadEnd(self.deepest));
            };
            self.take_back(trail);
            self.place(placed);
            state = next;
        }
    }

    /// Returns the best remaining choice and the length of its trail.
    fn next_choice(stack: &mut Vec<Choices<M::State>>) -> Option<(usize, (PlacedCall, M::State))> {
        let choices = stack.last_mut()?;
        let trail = choices.trail;
        let choice = choices.left.pop().expect("those without choices are not kept");
        if choices.left.is_empty() {
            stack.pop();
        }
        Some((trail, choice))
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
                    self.problem.model.step(state, required.call, Some(required.reply), &mut next);
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

    /// Returns each operation that fits now with the resulting state, the best one last.
    fn choices(
        &mut self,
        state: &M::State,
        (candidates, due): &(Vec<usize>, At),
    ) -> Result<Vec<(PlacedCall, M::State)>, Undecided> {
        let SearchProblem { model, required, optional } = self.problem;
        let mut left = Vec::new();
        let mut next = Vec::new();
        for number in candidates {
            let required = &required[*number];
            if !required.observes {
                self.meter.step()?;
                model.step(state, required.call, Some(required.reply), &mut next);
                left.extend(next.drain(..).map(|next| (PlacedCall::Required(*number), next)));
            }
        }
        for (number, group) in optional.iter().enumerate() {
            let used = self.used.get(&number).copied().unwrap_or(0);
            if group.members.get(used).is_some_and(|(invoked, _)| invoked <= due) {
                self.meter.step()?;
                model.step(state, group.call, None, &mut next);
                // Do not place a loose operation that changes nothing now: it may be needed later.
                let changed = next.drain(..).filter(|next| next != state);
                left.extend(changed.map(|next| (PlacedCall::Loose(number), next)));
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

    fn dead_end(&mut self, state: &M::State, (candidates, _): &(Vec<usize>, At)) {
        let required = self.base + self.ahead;
        if self.deepest_required.is_none_or(|deepest| required > deepest) {
            self.deepest_required = Some(required);
            self.deepest = DeadEnd {
                order: self.order(),
                state: format!("{state:?}"),
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
