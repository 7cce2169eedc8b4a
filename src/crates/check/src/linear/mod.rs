//! Checks linearizability: does one order of all operations exist that agrees with every reply and with real time?
//!
//! The search is that of Wing and Gong ("Testing and Verifying Concurrent Objects", 1993): place an operation that
//! may be next, continue with the new state of the object, and backtrack if that fails. Following Lowe ("Testing for
//! Linearizability", 2017), no configuration is searched twice; a configuration is the set of placed operations
//! together with the state of the object. Three more optimizations are added:
//!
//! - each object is checked on its own, which is sufficient (Herlihy and Wing, 1990);
//! - an operation that changes nothing is placed as soon as it fits, without backtracking ([`Model::observes`]);
//! - an operation of unknown outcome may be placed at any moment after its call, or never. Among operations of unknown
//!   outcome with equal calls, the earliest is placed first. A configuration is not searched if another one reached the
//!   same state with fewer operations of unknown outcome. An operation whose effect no other operation needs is left
//!   out ([`Model::needs`]).
//!
//! A history with many concurrent operations and ambiguous replies can take exponential time. The search therefore
//! has a [`Budget`], and a verdict may be undecided.

mod search;
mod smaller;
mod steps;

use std::collections::BTreeMap;

use super::history::{History, Index};
use super::model::Model;
use super::verdict::Verdict;
use search::Answer;
use smaller::Shrinking;
use steps::Meter;

/// Limits of the search for each object. If a limit is reached, the verdict is undecided.
///
/// Minimizing a violation takes up to four passes. The step limit of each is 100 times the steps of the search, but at
/// least 500,000 and at most [`steps`](Self::steps). A larger budget does not make counterexamples smaller.
#[derive(Clone, Copy)]
pub struct Budget<'a> {
    /// Maximum number of steps of the model.
    pub steps: u64,
    /// Maximum number of configurations to remember. Configurations use most of the memory: some hundred bytes
    /// each, plus the state.
    pub configurations: usize,
    /// Called every few thousand steps. The search stops if it returns true, for example after a timeout.
    pub stop: Option<&'a dyn Fn() -> bool>,
}

/// The default of [`Budget::steps`].
pub const STEPS_DEFAULT: u64 = 50_000_000;

/// The default of [`Budget::configurations`].
pub const CONFIGURATIONS_DEFAULT: usize = 5_000_000;

impl Default for Budget<'_> {
    fn default() -> Self {
        Self { steps: STEPS_DEFAULT, configurations: CONFIGURATIONS_DEFAULT, stop: None }
    }
}

impl std::fmt::Debug for Budget<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { steps, configurations, .. } = self;
        write!(f, "Budget {{ steps: {steps}, configurations: {configurations} }}")
    }
}

/// Checks whether a history is linearizable.
///
/// Failed operations are ignored. Operations of unknown outcome may have taken effect or not. A violation is certain.
/// Its counterexample is small in most cases, also if the history has thousands of operations that depend on each other.
/// Minimizing has a budget of its own, so it may end early: then
/// [`is_minimal`](super::Counterexample::is_minimal) is false. If one object has a violation and another is undecided,
/// the violation is reported.
///
/// Deterministic if [`Budget::stop`] is. Uses no clock and no thread.
///
/// ```
/// use bowline_check::{Budget, Operation, Register, RegisterCall, RegisterReply, linear};
///
/// let write = |value: i64| RegisterCall::Write(Some(value.into()));
/// let history = vec![
///     Operation::ok(1, 2, write(1), RegisterReply::Written),
///     Operation::ok(3, 4, write(2), RegisterReply::Written),
///     Operation::ok(5, 6, RegisterCall::Read, RegisterReply::Read(Some(1.into()))),
/// ];
/// let verdict = linear::check(&Register::default(), &history, Budget::default());
/// // The write of 2 had ended, and no other operation can have restored the 1.
/// assert_eq!(verdict.violation().unwrap().operations, [0, 1, 2]);
/// let text = "
///   #0  process 0  1 to 2  write 1  → ok
///   #1  process 0  3 to 4  write 2  → ok
///   #2  process 0  5 to 6  read     → 1
/// ";
/// assert!(verdict.to_string().contains(text), "{verdict}");
/// ```
pub fn check<M: Model>(
    model: &M,
    history: &History<M::Call, M::Reply>,
    budget: Budget<'_>,
) -> Verdict {
    let mut objects: BTreeMap<&str, Vec<Index>> = BTreeMap::new();
    for (index, operation) in history.iter().enumerate() {
        objects.entry(&operation.object).or_default().push(index);
    }
    let mut verdict = Verdict::Ok;
    for (object, members) in objects {
        verdict = verdict.and(check_object(model, history, object, &members, budget));
        if verdict.violation().is_some() {
            break;
        }
    }
    verdict
}

/// Checks the operations on one object.
pub(super) fn check_object<M: Model>(
    model: &M,
    history: &History<M::Call, M::Reply>,
    object: &str,
    members: &[Index],
    budget: Budget<'_>,
) -> Verdict {
    let mut meter = Meter::new(budget);
    match search::whole(model, history, members).solve(&mut meter) {
        Answer::Order(_) => Verdict::Ok,
        Answer::DeadEnd(dead_end) => {
            Shrinking::new(model, history, members, dead_end, budget, &meter).smallest().into()
        }
        Answer::GaveUp(why) => {
            let explored = meter.steps();
            Verdict::Undecided { object: object.to_owned(), why, explored }
        }
    }
}

/// Returns the operations whose replies contradict each other, if the history has a violation, even if the
/// counterexample has another form.
#[cfg(test)]
pub(super) fn replies<M: Model>(
    model: &M,
    history: &History<M::Call, M::Reply>,
) -> Option<super::verdict::Counterexample> {
    let members: Vec<Index> = (0..history.len()).collect();
    let budget = Budget::default();
    let mut meter = Meter::new(budget);
    let Answer::DeadEnd(dead_end) = search::whole(model, history, &members).solve(&mut meter)
    else {
        return None;
    };
    Some(Shrinking::new(model, history, &members, dead_end, budget, &meter).replies())
}

/// Returns an order that explains the operations of a history with one object, if the search finds one. The order
/// contains an operation of unknown outcome only if it is needed.
pub fn order<M: Model>(
    model: &M,
    history: &History<M::Call, M::Reply>,
    budget: Budget<'_>,
) -> Option<Vec<Index>> {
    let members: Vec<Index> = (0..history.len()).collect();
    match search::whole(model, history, &members).solve(&mut Meter::new(budget)) {
        Answer::Order(order) => Some(order),
        Answer::DeadEnd(_) | Answer::GaveUp(_) => None,
    }
}
