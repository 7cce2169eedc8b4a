//! A brute-force oracle that tries every order of every subset of operations. The oracle shares with the search only
//! the steps of the models, not `observes`, `needs` and `gives`.

use crate::{At, History, Index, Model, Operation, Outcome};

/// Returns whether some order explains the history of one object.
pub(crate) fn explains<M: Model>(model: &M, history: &History<M::Call, M::Reply>) -> bool {
    let free: Vec<Index> = (0..history.len())
        .filter(|index| !matches!(history[*index].outcome, Outcome::Failed { .. }))
        .collect();
    extend(model, history, &mut Vec::new(), &free, &[model.initial()])
}

/// Returns whether this order explains the history, step by step.
pub(crate) fn is_explained_by<M: Model>(
    model: &M,
    history: &History<M::Call, M::Reply>,
    order: &[Index],
) -> bool {
    let mut states = vec![model.initial()];
    for (place, index) in order.iter().enumerate() {
        if order[..place].iter().any(|before| precedes(&history[*index], &history[*before])) {
            return false;
        }
        states = after(model, &states, &history[*index]);
    }
    let placed = |index: &Index| order.iter().filter(|other| *other == index).count();
    !states.is_empty()
        && (0..history.len()).all(|index| match history[index].outcome {
            Outcome::Ok { .. } => placed(&index) == 1,
            Outcome::Unknown { .. } => placed(&index) <= 1,
            Outcome::Failed { .. } => placed(&index) == 0,
        })
}

fn extend<M: Model>(
    model: &M,
    history: &History<M::Call, M::Reply>,
    order: &mut Vec<Index>,
    free: &[Index],
    states: &[M::State],
) -> bool {
    if states.is_empty() {
        return false;
    }
    if free.iter().all(|index| matches!(history[*index].outcome, Outcome::Unknown { .. })) {
        return true;
    }
    free.iter().enumerate().any(|(place, next)| {
        if order.iter().any(|before| precedes(&history[*next], &history[*before])) {
            return false;
        }
        let rest = [&free[..place], &free[place + 1..]].concat();
        order.push(*next);
        let states = after(model, states, &history[*next]);
        let fits = extend(model, history, order, &rest, &states);
        order.pop();
        fits
    })
}

/// Returns whether `one` had ended when `other` was called.
fn precedes<C, R>(one: &Operation<C, R>, other: &Operation<C, R>) -> bool {
    let ended: Option<At> = match one.outcome {
        Outcome::Ok { at, .. } => Some(at),
        _ => None,
    };
    ended.is_some_and(|ended| ended < other.invoked)
}

fn after<M: Model>(
    model: &M,
    states: &[M::State],
    operation: &Operation<M::Call, M::Reply>,
) -> Vec<M::State> {
    let reply = match &operation.outcome {
        Outcome::Ok { reply, .. } => Some(reply),
        _ => None,
    };
    let mut next = Vec::new();
    for state in states {
        model.step(state, &operation.call, reply, &mut next);
    }
    next
}
