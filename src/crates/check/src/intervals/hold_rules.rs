//! Rules for lock holds: exclusion, permits, rising tokens and lock delay.

use std::collections::{BTreeMap, HashMap};

use super::at_least;
use super::hold_calls::{HoldCall, HoldKind, HoldReply};
use crate::history::{At, History, Index, Outcome};
use crate::value::Value;
use crate::verdict::{Counterexample, Verdict};

/// The promises that a history of holds is checked against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holds {
    /// Number of permits of each object, for holds of [`HoldKind::Permits`]. Default 1.
    pub permits: u64,
    /// Whether one owner may hold an object several times at once with one token. Default false.
    pub is_reentrant: bool,
    /// Maximum difference between the clocks of two processes, in the unit of the history. Default 0.
    pub slack: u64,
    /// Minimum time between the loss of a hold and the next hold, in the unit of the history. Default 0.
    pub lock_delay: u64,
    /// Maximum rate error of the clock that measures the delay, in percent. Default 0.
    pub drift_percent: u64,
}

impl Default for Holds {
    fn default() -> Self {
        Self { permits: 1, is_reentrant: false, slack: 0, lock_delay: 0, drift_percent: 0 }
    }
}

/// A hold, from the first to the last moment at which its owner believed that it held the lock.
#[derive(Clone, Copy)]
struct HoldInterval<'a> {
    index: Index,
    begin: u64,
    end: u64,
    owner: &'a Value,
    kind: HoldKind,
    token: Option<u64>,
    lost: bool,
}

/// Checks whether the recorded holds of each object keep the promises of a lock:
///
/// - **exclusion**: no write hold overlaps another hold by more than the slack;
/// - **permits**: the permits held at one time never exceed the limit;
/// - **tokens**: of two holds of which at least one is a write hold, the later one has the higher token;
/// - **lock delay**: after a hold is lost, the object stays free for the delay.
///
/// Takes *n* log *n* time. Deterministic; uses no clock and no thread.
///
/// ```
/// use bowline_check::intervals::{HoldCall, HoldKind, HoldReply, Holds, holds};
/// use bowline_check::Operation;
///
/// let hold = |owner: i64, token| HoldCall::Hold {
///     owner: owner.into(), kind: HoldKind::Write, token: Some(token),
/// };
/// let released = HoldReply { lost: false };
/// let history = vec![
///     Operation::ok(10, 20, hold(1, 5), released),
///     Operation::ok(21, 40, hold(2, 6), released),
///     Operation::ok(38, 50, hold(3, 7), released),
/// ];
/// let verdict = holds(&Holds::default(), &history);
/// assert_eq!(verdict.violation().unwrap().operations, [1, 2]);
/// assert!(holds(&Holds { slack: 2, ..Holds::default() }, &history).is_ok());
/// ```
pub fn holds(rules: &Holds, history: &History<HoldCall, HoldReply>) -> Verdict {
    by_object(rules, history).showing(history)
}

fn by_object(rules: &Holds, history: &History<HoldCall, HoldReply>) -> Verdict {
    let mut objects: BTreeMap<&str, Vec<HoldInterval<'_>>> = BTreeMap::new();
    for (index, operation) in history.iter().enumerate() {
        let begin = operation.invoked.0;
        let (end, lost) = match operation.outcome {
            Outcome::Failed { .. } => continue,
            Outcome::Ok { at, reply } => (at.0, reply.lost),
            Outcome::Unknown { at } => (at.map_or(begin, |At(at)| at), false),
        };
        let HoldCall::Hold { owner, kind, token } = &operation.call;
        let (kind, token) = (*kind, *token);
        let belief = HoldInterval { index, begin, end, owner, kind, token, lost };
        objects.entry(&operation.object).or_default().push(belief);
    }
    for (object, mut hold_intervals) in objects {
        hold_intervals.sort_by_key(|belief| (belief.begin, belief.index));
        let lock = Lock { rules, object, hold_intervals: &hold_intervals };
        let broken = lock
            .exclusion()
            .or_else(|| lock.enough_permits())
            .or_else(|| lock.rising_tokens())
            .or_else(|| lock.delay());
        if let Some(reason) = broken {
            return reason.into();
        }
    }
    Verdict::Ok
}

struct Lock<'l, 'a> {
    rules: &'l Holds,
    object: &'l str,
    /// Sorted by the time at which they began.
    hold_intervals: &'l [HoldInterval<'a>],
}

fn is_write(belief: &HoldInterval<'_>) -> bool {
    belief.kind == HoldKind::Write
}

/// The two best holds so far that belong to different parties. For any given hold, at least one of the two belongs to
/// another party.
struct BestTwo<'l, 'a> {
    best: Option<&'l HoldInterval<'a>>,
    other: Option<&'l HoldInterval<'a>>,
}

impl<'l, 'a> BestTwo<'l, 'a> {
    const NONE: Self = Self { best: None, other: None };

    fn add(
        &mut self,
        belief: &'l HoldInterval<'a>,
        by: impl Fn(&HoldInterval<'_>) -> u64,
        is_one: impl Fn(&HoldInterval<'_>, &HoldInterval<'_>) -> bool,
    ) {
        match self.best {
            Some(best) if by(best) >= by(belief) => {
                if !is_one(best, belief) && self.other.is_none_or(|other| by(other) < by(belief)) {
                    self.other = Some(belief);
                }
            }
            Some(best) => {
                if !is_one(best, belief) {
                    self.other = Some(best);
                }
                self.best = Some(belief);
            }
            None => self.best = Some(belief),
        }
    }

    fn but(
        &self,
        belief: &HoldInterval<'_>,
        is_one: impl Fn(&HoldInterval<'_>, &HoldInterval<'_>) -> bool,
    ) -> Option<&'l HoldInterval<'a>> {
        self.best.filter(|best| !is_one(best, belief)).or(self.other)
    }
}

impl Lock<'_, '_> {
    /// Returns whether two holds belong to one party, which does not exclude itself.
    fn is_one(&self, one: &HoldInterval<'_>, other: &HoldInterval<'_>) -> bool {
        one.index == other.index || self.rules.is_reentrant && one.owner == other.owner
    }

    fn exclusion(&self) -> Option<Counterexample> {
        let slack = self.rules.slack;
        let mut by_end_time: Vec<&HoldInterval<'_>> = self.hold_intervals.iter().collect();
        by_end_time.sort_by_key(|belief| (belief.end, belief.index));
        let (mut writers, mut others) = (BestTwo::NONE, BestTwo::NONE);
        let is_one = |one: &HoldInterval<'_>, other: &HoldInterval<'_>| self.is_one(one, other);
        let mut begun = self.hold_intervals.iter().peekable();
        for belief in by_end_time {
            while let Some(next) =
                begun.next_if(|next| next.begin.saturating_add(slack) < belief.end)
            {
                let group = if is_write(next) { &mut writers } else { &mut others };
                group.add(next, |belief| belief.end, is_one);
            }
            let mut rivals = [writers.but(belief, is_one), None];
            if is_write(belief) {
                rivals[1] = others.but(belief, is_one);
            }
            for rival in rivals.into_iter().flatten() {
                if rival.end > belief.begin.saturating_add(slack) {
                    return Some(self.overlap(rival, belief));
                }
            }
        }
        None
    }

    fn overlap(&self, one: &HoldInterval<'_>, other: &HoldInterval<'_>) -> Counterexample {
        let in_order = (one.begin, one.index) <= (other.begin, other.index);
        let (first, second) = if in_order { (one, other) } else { (other, one) };
        let why = format!(
            "from {} to {}, both {} (#{}) and {} (#{}) believed that they hold it, {} of them for writing",
            first.begin.max(second.begin),
            first.end.min(second.end),
            first.owner,
            first.index,
            second.owner,
            second.index,
            if is_write(one) && is_write(other) { "both" } else { "one" }
        );
        Counterexample::new("exclusion", self.object, [first.index, second.index], why)
    }

    /// Finds too many permits held at once. If holds overlap pairwise for every possible difference of the clocks,
    /// there is a moment at which all of them were held. A hold overlaps with the hold that ends first if it began
    /// before that hold ended, and ends after that hold began.
    fn enough_permits(&self) -> Option<Counterexample> {
        let Holds { permits, slack, .. } = *self.rules;
        let held = |belief: &HoldInterval<'_>| match belief.kind {
            HoldKind::Permits(held) => u128::from(held),
            HoldKind::Write | HoldKind::Read => 0,
        };
        let mut by_end_time: Vec<&HoldInterval<'_>> =
            self.hold_intervals.iter().filter(|one| held(one) > 0).collect();
        by_end_time.sort_by_key(|belief| (belief.end, belief.index));
        let mut begun = self.hold_intervals.iter().filter(|one| held(one) > 0).peekable();
        // Holds that have begun and not ended, by their end, with the sum of their permits.
        let mut now: BTreeMap<(u64, Index), &HoldInterval<'_>> = BTreeMap::new();
        let mut sum: u128 = 0;
        for first in by_end_time {
            while let Some(next) =
                begun.next_if(|next| next.begin.saturating_add(slack) < first.end)
            {
                now.insert((next.end, next.index), next);
                sum += held(next);
            }
            while let Some(over) =
                now.first_entry().filter(|over| *over.key() <= (first.end, first.index))
            {
                sum -= held(over.remove());
            }
            // A hold that had begun may have ended before `first` certainly began.
            let ended = now.range(..=(first.begin.saturating_add(slack), Index::MAX));
            let with_first = held(first) + sum - ended.map(|(_, over)| held(over)).sum::<u128>();
            if with_first <= u128::from(permits) {
                continue;
            }
            let mut most: Vec<&HoldInterval<'_>> = now
                .into_values()
                .filter(|one| one.end > first.begin.saturating_add(slack))
                .collect();
            most.push(first);
            most.sort_by_key(|one| (std::cmp::Reverse(held(one)), one.index));
            let mut sum: u128 = 0;
            let enough = most.iter().take_while(|one| {
                let is_short = sum <= u128::from(permits);
                sum += held(one);
                is_short
            });
            let enough: Vec<&HoldInterval<'_>> = enough.copied().collect();
            let at = enough.iter().map(|one| one.begin).max().unwrap_or(first.begin);
            let mut enough: Vec<Index> = enough.iter().map(|one| one.index).collect();
            enough.sort_unstable();
            let names: Vec<String> = enough.iter().map(|index| format!("#{index}")).collect();
            let why = format!(
                "at {at}, {} together believed that they hold more than the {permits} permits",
                names.join(", ")
            );
            return Some(Counterexample::new("permits", self.object, enough, why));
        }
        None
    }

    /// Checks that a later hold has a higher token.
    fn rising_tokens(&self) -> Option<Counterexample> {
        let told: Vec<&HoldInterval<'_>> =
            self.hold_intervals.iter().filter(|belief| belief.token.is_some()).collect();
        let token = |belief: &HoldInterval<'_>| belief.token.expect("only such are looked at");
        let is_one = |one: &HoldInterval<'_>, other: &HoldInterval<'_>| self.is_one(one, other);
        let (mut writers, mut others) = (BestTwo::NONE, BestTwo::NONE);
        let mut begun = told.iter().copied().peekable();
        for belief in &told {
            while let Some(before) =
                begun.next_if(|before| before.begin.saturating_add(self.rules.slack) < belief.begin)
            {
                let group = if is_write(before) { &mut writers } else { &mut others };
                group.add(before, token, is_one);
            }
            let mut earlier = [writers.but(belief, is_one), None];
            if is_write(belief) {
                earlier[1] = others.but(belief, is_one);
            }
            for before in earlier.into_iter().flatten() {
                if token(before) >= token(belief) {
                    let why = format!(
                        "#{} began at {} with token {}, but #{} began later, at {}, with token {}",
                        before.index,
                        before.begin,
                        token(before),
                        belief.index,
                        belief.begin,
                        token(belief)
                    );
                    let reason = Counterexample::new(
                        "rising tokens",
                        self.object,
                        [before.index, belief.index],
                        why,
                    );
                    return Some(reason.link(before.index, belief.index, "began before"));
                }
            }
        }
        self.own_tokens()
    }

    /// Checks that the tokens of one owner rise too. They may be equal if the lock is re-entrant.
    fn own_tokens(&self) -> Option<Counterexample> {
        if !self.rules.is_reentrant {
            return None;
        }
        let mut highest: HashMap<&Value, (u64, Index)> = HashMap::new();
        for belief in self.hold_intervals.iter().filter(|belief| is_write(belief)) {
            let Some(token) = belief.token else { continue };
            let before = highest.entry(belief.owner).or_insert((token, belief.index));
            if token < before.0 {
                let why = format!(
                    "{} held with token {} (#{}) and later with {token} (#{})",
                    belief.owner, before.0, before.1, belief.index
                );
                let operations = [before.1, belief.index];
                return Some(Counterexample::new("rising tokens", self.object, operations, why));
            }
            *before = (token, belief.index);
        }
        None
    }

    fn delay(&self) -> Option<Counterexample> {
        let Holds { slack, lock_delay, drift_percent, .. } = *self.rules;
        let delay = at_least(lock_delay, drift_percent);
        let (mut writers, mut others) = (BestTwo::NONE, BestTwo::NONE);
        // Nested holds of one owner with one token count as one hold, which is lost as a whole.
        let is_same = |one: &HoldInterval<'_>, other: &HoldInterval<'_>| {
            one.index == other.index || self.is_one(one, other) && one.token == other.token
        };
        for belief in self.hold_intervals {
            let mut before = [writers.but(belief, is_same), None];
            if is_write(belief) {
                before[1] = others.but(belief, is_same);
            }
            for lost in before.into_iter().flatten() {
                if belief.begin.saturating_add(slack) < lost.end.saturating_add(delay) {
                    let why = format!(
                        "#{} was lost after {}, and #{} began at {}, before the lock delay of {lock_delay} had passed",
                        lost.index, lost.end, belief.index, belief.begin
                    );
                    let operations = [lost.index, belief.index];
                    return Some(Counterexample::new("lock delay", self.object, operations, why));
                }
            }
            if belief.lost {
                let group = if is_write(belief) { &mut writers } else { &mut others };
                group.add(belief, |belief| belief.end, is_same);
            }
        }
        None
    }
}
