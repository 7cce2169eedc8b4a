//! Compares the search with the oracle on thousands of small random histories of each model.

use super::oracle;
use super::small::{self, Random, Sample};
use crate::{
    Budget, History, Index, Kv, Model, MutexModel, Operation, Outcome, QueueModel, Register,
    SemaphoreModel, Verdict, linear,
};

/// Number of histories of each model.
const HISTORIES: u64 = 3_000;

/// Maximum number of operations in a history.
const OPERATIONS_MAX: u64 = 7;

/// Minimum share of each verdict among the histories, in percent.
const PERCENT_MIN: u64 = 25;

fn judge<M: Sample>(model: &M)
where
    M::Call: std::fmt::Debug,
    M::Reply: std::fmt::Debug,
{
    let (mut fine, mut broken, mut uncertain) = (0, 0, 0);
    for seed in 0..HISTORIES {
        let history = small::history(model, &mut Random(seed * 1_000_003), OPERATIONS_MAX);
        uncertain +=
            u64::from(history.iter().any(|one| matches!(one.outcome, Outcome::Unknown { .. })));
        let is_fine = oracle::explains(model, &history);
        let verdict = linear::check(model, &history, Budget::default());
        let told = || format!("seed {seed}: {verdict}\n{history:#?}");
        match &verdict {
            Verdict::Ok => {
                assert!(is_fine, "missed violation: {}", told());
                let order = linear::order(model, &history, Budget::default()).expect("it is ok");
                let explained = oracle::is_explained_by(model, &history, &order);
                assert!(explained, "{order:?} does not explain it: {}", told());
                fine += 1;
            }
            Verdict::Violation(reason) => {
                assert!(!is_fine, "false violation: {}", told());
                assert!(reason.is_minimal, "a small one: {}", told());
                let excused =
                    |kept: &[Index]| oracle::explains(model, &let_off::<M>(&history, kept));
                let kept = &reason.operations;
                assert!(!excused(kept), "{kept:?} are no contradiction: {}", told());
                for one in kept {
                    let fewer: Vec<Index> =
                        kept.iter().copied().filter(|kept| kept != one).collect();
                    assert!(excused(&fewer), "{one} is not needed: {}", told());
                }
                broken += 1;
            }
            Verdict::Undecided { .. } => panic!("a small history is undecided: {}", told()),
        }
    }
    for (what, count) in
        [("ok", fine), ("violations", broken), ("with unknown outcomes", uncertain)]
    {
        assert!(count * 100 >= HISTORIES * PERCENT_MIN, "{what}: only {count} of {HISTORIES}");
    }
}

/// A model that ignores some replies.
#[derive(Debug)]
pub(super) struct Silencing<'a, M>(pub(super) &'a M);

impl<M: Model> Model for Silencing<'_, M> {
    type Call = M::Call;
    /// The reply, or `None` if it is ignored.
    type Reply = Option<M::Reply>;
    type State = M::State;

    fn initial(&self) -> M::State {
        self.0.initial()
    }

    fn step(
        &self,
        state: &M::State,
        call: &M::Call,
        reply: Option<&Option<M::Reply>>,
        next: &mut Vec<M::State>,
    ) {
        self.0.step(state, call, reply.and_then(Option::as_ref), next);
    }
}

/// Returns the history in which the replies of all operations are ignored except those of some. Operations that changed
/// nothing are left out, and those that had not ended when the last of `kept` was called have an unknown outcome.
pub(super) fn silenced<M: Model>(
    model: &M,
    history: &History<M::Call, M::Reply>,
    kept: &[Index],
) -> History<M::Call, Option<M::Reply>> {
    let last = kept.iter().map(|index| history[*index].invoked).max();
    let silence = |(index, operation): (Index, &Operation<M::Call, M::Reply>)| {
        let call = operation.call.clone();
        let invoked = operation.invoked.0;
        match &operation.outcome {
            Outcome::Ok { at, reply } if kept.contains(&index) => {
                Operation::ok(invoked, at.0, call, Some(reply.clone()))
            }
            Outcome::Ok { at, .. } if Some(*at) >= last => Operation::unknown(invoked, call),
            Outcome::Ok { reply, .. } if model.observes(&call, Some(reply)) => {
                Operation::failed(invoked, call)
            }
            Outcome::Ok { at, .. } => Operation::ok(invoked, at.0, call, None),
            Outcome::Failed { .. } => Operation::failed(invoked, call),
            Outcome::Unknown { .. } => Operation::unknown(invoked, call),
        }
    };
    history.iter().enumerate().map(silence).collect()
}

/// Compares the operations whose replies contradict each other with the oracle.
fn judge_replies<M: Sample>(model: &M) {
    let mut smaller = 0;
    for seed in 0..HISTORIES {
        let history = small::history(model, &mut Random(seed * 1_000_003), OPERATIONS_MAX);
        let Some(reason) = linear::replies(model, &history) else { continue };
        let kept = &reason.operations;
        let excused =
            |kept: &[Index]| oracle::explains(&Silencing(model), &silenced(model, &history, kept));
        let told = || format!("seed {seed}: {reason}\n{history:#?}");
        assert!(reason.is_minimal, "a small one: {}", told());
        assert!(!excused(kept), "{kept:?} are no contradiction: {}", told());
        for one in kept {
            let fewer: Vec<Index> = kept.iter().copied().filter(|kept| kept != one).collect();
            assert!(excused(&fewer), "{one} is not needed: {}", told());
        }
        let verdict = linear::check(model, &history, Budget::default());
        let other = verdict.violation().expect("it has no order");
        smaller += u64::from(kept.len() < other.operations.len());
    }
    assert!(smaller > 0, "replies alone contradict each other");
}

#[test]
fn contradictory_replies_agree_with_the_oracle() {
    judge_replies(&Register::default());
    judge_replies(&MutexModel { holds_max: 2, is_fenced: true });
    judge_replies(&SemaphoreModel { permits: 2 });
    judge_replies(&QueueModel);
    judge_replies(&Kv::default());
}

/// Returns the history with all outcomes unknown except those of some operations.
pub(super) fn let_off<M: Model>(
    history: &History<M::Call, M::Reply>,
    kept: &[Index],
) -> History<M::Call, M::Reply> {
    let known = |(index, operation): (Index, &Operation<M::Call, M::Reply>)| {
        let mut operation = operation.clone();
        if let Outcome::Ok { at, .. } = operation.outcome
            && !kept.contains(&index)
        {
            operation.outcome = Outcome::Unknown { at: Some(at) };
        }
        operation
    };
    history.iter().enumerate().map(known).collect()
}

#[test]
fn register_checker_agrees_with_the_oracle() {
    judge(&Register::default());
}

#[test]
fn register_with_initial_value_agrees_with_the_oracle() {
    judge(&Register { first: Some(1.into()) });
}

#[test]
fn mutex_checker_agrees_with_the_oracle() {
    judge(&MutexModel::default());
}

#[test]
fn reentrant_mutex_checker_agrees_with_the_oracle() {
    judge(&MutexModel { holds_max: 2, is_fenced: false });
}

#[test]
fn fenced_mutex_checker_agrees_with_the_oracle() {
    judge(&MutexModel { holds_max: 1, is_fenced: true });
}

#[test]
fn reentrant_fenced_mutex_checker_agrees_with_the_oracle() {
    judge(&MutexModel { holds_max: 2, is_fenced: true });
}

#[test]
fn semaphore_checker_agrees_with_the_oracle() {
    judge(&SemaphoreModel { permits: 2 });
}

#[test]
fn queue_checker_agrees_with_the_oracle() {
    judge(&QueueModel);
}

#[test]
fn revision_store_checker_agrees_with_the_oracle() {
    judge(&Kv::default());
}
