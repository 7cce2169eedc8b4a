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
