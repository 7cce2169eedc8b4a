//! Linearizability: is there one order of all operations that each reply agrees with, and that puts nothing
//! before what had ended when it was called?
//!
//! The search is Wing and Gong's ("Testing and Verifying Concurrent Objects", 1993): place an operation that may
//! be next, go on with what the object holds then, and take it back if that leads nowhere. As Lowe has it ("Testing
//! for Linearizability", 2017), no configuration, which is the set of what was placed and what the object holds, is
//! searched twice. To that we add:
//!
//! - each object is judged by itself, which is enough (Herlihy and Wing, 1990);
//! - what changes nothing is placed as soon as it fits, without a choice ([`Model::observes`]);
//! - operations of unknown outcome may be placed at any moment after their call, or never. Of equal ones the
//!   earliest goes first, and a configuration that used more of them than another one that is otherwise the
//!   same is not searched: it can do nothing that the other cannot. One whose effect nobody needs is left out
//!   ([`Model::needs`]).
//!
//! A history with many operations at once and replies that say little can take exponential time. So there is a
//! [`Budget`], and a third verdict.

mod search;
mod smaller;
mod steps;

use std::collections::BTreeMap;

use super::history::{History, Index};
use super::model::Model;
use super::verdict::Verdict;
use search::Answer;
use steps::Meter;

/// How much is tried for each object before the verdict is "undecided".
#[derive(Clone, Copy)]
pub struct Budget<'a> {
    /// Steps of the model.
    pub steps: u64,
    /// Configurations that are remembered: most of the memory, some hundred bytes each and the state.
    pub configurations: usize,
    /// Asked every few thousand steps whether to stop: for a clock, or for a user who has lost patience.
    pub stop: Option<&'a dyn Fn() -> bool>,
}

/// [`Budget::steps`] by default.
pub const STEPS_DEFAULT: u64 = 50_000_000;

/// [`Budget::configurations`] by default.
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

/// Whether a history is linearizable.
///
/// Operations that failed are left out; those of unknown outcome may have taken effect or not. A violation is certain
/// and comes with a small reason; it is reported before what is undecided of other objects.
///
/// It is deterministic as long as [`Budget::stop`] is; it takes no clock and no thread.
///
/// ```
/// use bowline::check::{Budget, Operation, Register, RegisterCall, RegisterReply, linear};
///
/// let write = |value: i64| RegisterCall::Write(Some(value.into()));
/// let history = vec![
///     Operation::ok(1, 2, write(1), RegisterReply::Written),
///     Operation::ok(3, 4, write(2), RegisterReply::Written),
///     Operation::ok(5, 6, RegisterCall::Read, RegisterReply::Read(Some(1.into()))),
/// ];
/// let verdict = linear::check(&Register::default(), &history, Budget::default());
/// // The write of 2 had ended, and nothing else can have put the 1 back.
/// assert_eq!(verdict.violation().unwrap().operations, [0, 1, 2]);
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

/// The same of the operations with one object.
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
            smaller::reason(model, history, members, dead_end, budget, &meter).into()
        }
        Answer::GaveUp(why) => {
            let explored = meter.steps();
            Verdict::Undecided { object: object.to_owned(), why, explored }
        }
    }
}

/// An order that explains the operations of a history with one object, if there is one and it is found. Operations
/// that may never have taken effect are in it if they help.
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
