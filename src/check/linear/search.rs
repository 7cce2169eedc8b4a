//! The search for an order. What must be placed is *firm*; what may be placed, or not, is *loose*.

use std::collections::hash_map::{DefaultHasher, HashMap};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::hash::BuildHasherDefault;

use super::steps::Meter;
use crate::check::history::{At, History, Index, Outcome};
use crate::check::model::{Model, Needs};
use crate::check::verdict::{DeadEnd, Undecided};

/// A hash that is the same in every run.
pub(super) type Fixed = BuildHasherDefault<DefaultHasher>;

/// Operations of one object that shall be put in order.
pub(super) struct Puzzle<'a, M: Model> {
    model: &'a M,
    /// By their calls' moments.
    firm: Vec<Firm<'a, M>>,
    /// By what is called, each group's members by their calls' moments.
    loose: Vec<Group<'a, M>>,
}

struct Firm<'a, M: Model> {
    index: Index,
    invoked: At,
    /// Nothing that is invoked later may be placed before it.
    due: At,
    call: &'a M::Call,
    reply: &'a M::Reply,
    observes: bool,
}

/// Loose operations with the same call: which of them is placed makes no difference but for its moment.
struct Group<'a, M: Model> {
    call: &'a M::Call,
    members: Vec<(At, Index)>,
}

/// What came of a search.
pub(super) enum Answer {
    /// An order that explains all that is firm.
    Order(Vec<Index>),
    /// There is none; and one of the longest that do so in part.
    DeadEnd(DeadEnd),
    GaveUp(Undecided),
}

/// What the whole history says of one object: `Ok` is firm, `Unknown` loose, `Failed` left out.
pub(super) fn whole<'a, M: Model>(
    model: &'a M,
    history: &'a History<M::Call, M::Reply>,
    members: &[Index],
) -> Puzzle<'a, M> {
    Puzzle::new(model, history, members.iter().map(|index| (*index, false)))
}

impl<'a, M: Model> Puzzle<'a, M> {
    /// Some operations, and whether each is let off: loose, though its outcome is known.
    pub(super) fn new(
        model: &'a M,
        history: &'a History<M::Call, M::Reply>,
        members: impl Iterator<Item = (Index, bool)>,
    ) -> Self {
        let mut firm = Vec::new();
        let mut unsure = Vec::new();
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
            // What changes nothing helps nobody.
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
                    firm.push(Firm { index, invoked, due, call, reply, observes });
                }
                None => unsure.push((invoked, index, call)),
            }
        }
        firm.sort_by_key(|firm| (firm.invoked, firm.index));
        unsure.sort_by_key(|(invoked, index, _)| (*invoked, *index));
        let mut loose: Vec<Group<'a, M>> = Vec::new();
        let mut groups: HashMap<&M::Call, usize, Fixed> = HashMap::default();
        for (invoked, index, call) in unsure {
            let given = model.gives(call);
            let helps = match (&wanted, given) {
                (Some(wanted), Some(value)) => wanted.contains(&value),
                _ => true,
            };
            if helps {
                let group = *groups.entry(call).or_insert_with(|| {
                    loose.push(Group { call, members: Vec::new() });
                    loose.len() - 1
                });
                loose[group].members.push((invoked, index));
            }
        }
        Self { model, firm, loose }
    }

    pub(super) fn solve(&self, meter: &mut Meter<'_>) -> Answer {
        let search = Search {
            puzzle: self,
            meter,
            done: vec![false; self.firm.len()],
            base: 0,
            ahead: 0,
            used: BTreeMap::new(),
            trail: Vec::new(),
            seen: HashMap::default(),
            deepest: DeadEnd::default(),
            deepest_firm: None,
        };
        search.run().unwrap_or_else(Answer::GaveUp)
    }
}

/// An operation that was placed: of the firm ones, or the next of a group.
#[derive(Clone, Copy)]
enum Placed {
    Firm(usize),
    Loose(usize),
}

/// Which firm operations are placed, and what the object holds: all before the first that is not, and some after.
type Place<S> = (usize, Box<[usize]>, S);

/// How many of each group are placed, of those of which some are.
type Used = Box<[(usize, usize)]>;

/// Choices that are left at a configuration, the best one last; and how to come back to it.
struct Choices<S> {
    trail: usize,
    left: Vec<(Placed, S)>,
}

struct Search<'p, 'a, 'm, 'b, M: Model> {
    puzzle: &'p Puzzle<'a, M>,
    meter: &'m mut Meter<'b>,
    /// Which of the firm ones are placed.
    done: Vec<bool>,
    /// The first that is not.
    base: usize,
    /// How many behind it are.
    ahead: usize,
    /// How many of each group are placed.
    used: BTreeMap<usize, usize>,
    /// What is placed, in order.
    trail: Vec<Placed>,
    /// The configurations that lead nowhere or are being searched: for each place, how little was used.
    seen: HashMap<Place<M::State>, Vec<Used>, Fixed>,
    deepest: DeadEnd,
    /// How many firm ones the deepest dead end had placed, if there was one.
    deepest_firm: Option<usize>,
}

impl<M: Model> Search<'_, '_, '_, '_, M>
where
    M::State: Debug,
{
    fn run(mut self) -> Result<Answer, Undecided> {
        let mut stack: Vec<Choices<M::State>> = Vec::new();
        let mut state = self.puzzle.model.initial();
        loop {
            let candidates = self.place_observers(&state)?;
            if self.base == self.puzzle.firm.len() {
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

    /// The best choice that is left, and where it belongs.
    fn next_choice(stack: &mut Vec<Choices<M::State>>) -> Option<(usize, (Placed, M::State))> {
        let choices = stack.last_mut()?;
        let trail = choices.trail;
        let choice = choices.left.pop().expect("those without choices are not kept");
        if choices.left.is_empty() {
            stack.pop();
        }
        Some((trail, choice))
    }

    /// The firm operations that may be next, those that are due first in front; and the moment until which
    /// operations may have been called.
    fn candidates(&self) -> (Vec<usize>, At) {
        let mut due = At(u64::MAX);
        let mut found = Vec::new();
        for (number, firm) in self.puzzle.firm.iter().enumerate().skip(self.base) {
            if firm.invoked > due {
                break;
            }
            if !self.done[number] {
                due = due.min(firm.due);
                found.push(number);
            }
        }
        found.sort_by_key(|number| self.puzzle.firm[*number].due);
        (found, due)
    }

    /// Places all that fit now and change nothing: whatever order there is, they may as well stand here. What
    /// is left of the candidates.
    fn place_observers(&mut self, state: &M::State) -> Result<(Vec<usize>, At), Undecided> {
        let mut next = Vec::new();
        loop {
            let (mut candidates, due) = self.candidates();
            let before = candidates.len();
            let mut kept = Vec::with_capacity(before);
            for number in candidates.drain(..) {
                let firm = &self.puzzle.firm[number];
                if firm.observes {
                    self.meter.step()?;
                    self.puzzle.model.step(state, firm.call, Some(firm.reply), &mut next);
                    assert!(next.iter().all(|next| next == state), "what observes changes nothing");
                    if next.drain(..).next().is_some() {
                        self.place(Placed::Firm(number));
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

    /// Whether no configuration that could do as much was here before. Remembers it.
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

    /// Each operation that fits now, with what the object holds then; the best one last.
    fn choices(
        &mut self,
        state: &M::State,
        (candidates, due): &(Vec<usize>, At),
    ) -> Result<Vec<(Placed, M::State)>, Undecided> {
        let Puzzle { model, firm, loose } = self.puzzle;
        let mut left = Vec::new();
        let mut next = Vec::new();
        for number in candidates {
            let firm = &firm[*number];
            if !firm.observes {
                self.meter.step()?;
                model.step(state, firm.call, Some(firm.reply), &mut next);
                left.extend(next.drain(..).map(|next| (Placed::Firm(*number), next)));
            }
        }
        for (number, group) in loose.iter().enumerate() {
            let used = self.used.get(&number).copied().unwrap_or(0);
            if group.members.get(used).is_some_and(|(invoked, _)| invoked <= due) {
                self.meter.step()?;
                model.step(state, group.call, None, &mut next);
                // What does nothing now is better kept for later.
                let changed = next.drain(..).filter(|next| next != state);
                left.extend(changed.map(|next| (Placed::Loose(number), next)));
            }
        }
        left.reverse();
        Ok(left)
    }

    fn place(&mut self, placed: Placed) {
        self.trail.push(placed);
        match placed {
            Placed::Loose(group) => *self.used.entry(group).or_default() += 1,
            Placed::Firm(number) => {
                self.done[number] = true;
                self.ahead += 1;
                while self.done.get(self.base) == Some(&true) {
                    self.base += 1;
                    self.ahead -= 1;
                }
            }
        }
    }

    /// Takes back all but the first `trail`.
    fn take_back(&mut self, trail: usize) {
        for placed in self.trail.drain(trail..).rev() {
            match placed {
                Placed::Loose(group) => {
                    let used = self.used.get_mut(&group).expect("one of it is placed");
                    *used -= 1;
                    if *used == 0 {
                        self.used.remove(&group);
                    }
                }
                Placed::Firm(number) => {
                    self.done[number] = false;
                    if number < self.base {
                        // Those between are placed still, and are behind it now.
                        self.ahead += self.base - number - 1;
                        self.base = number;
                    } else {
                        self.ahead -= 1;
                    }
                }
            }
        }
    }

    /// What is placed, by its places in the history.
    fn order(&self) -> Vec<Index> {
        let mut used = vec![0; self.puzzle.loose.len()];
        let index = |placed: &Placed| match *placed {
            Placed::Firm(number) => self.puzzle.firm[number].index,
            Placed::Loose(group) => {
                used[group] += 1;
                self.puzzle.loose[group].members[used[group] - 1].1
            }
        };
        self.trail.iter().map(index).collect()
    }

    fn dead_end(&mut self, state: &M::State, (candidates, _): &(Vec<usize>, At)) {
        let firm = self.base + self.ahead;
        if self.deepest_firm.is_none_or(|deepest| firm > deepest) {
            self.deepest_firm = Some(firm);
            self.deepest = DeadEnd {
                order: self.order(),
                state: format!("{state:?}"),
                stuck: candidates.iter().map(|number| self.puzzle.firm[*number].index).collect(),
                ..DeadEnd::default()
            };
        }
    }
}

/// Whether `one` uses no more of any group than `other`.
fn is_within(one: &[(usize, usize)], other: &[(usize, usize)]) -> bool {
    let mut others = other.iter();
    one.iter().all(|(group, count)| {
        others
            .by_ref()
            .find(|(other, _)| other >= group)
            .is_some_and(|(other, most)| other == group && most >= count)
    })
}
