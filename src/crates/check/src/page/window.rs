//! Selects the operations to draw: those that a reason names, and those nearest to them.

use std::collections::BTreeSet;

use super::REASON_DRAWN;
use crate::history::{At, History, Index, Operation};
use crate::verdict::Counterexample;

/// The operations to draw.
#[derive(Debug)]
pub(super) struct Window {
    /// Sorted by the time of the call.
    pub(super) drawn: Vec<Index>,
    /// Number of operations of the object that are not drawn.
    left_out: usize,
    /// Number of operations on other objects.
    others: usize,
}

impl Window {
    /// Selects the operations that `why` names, up to a limit, and up to `most` others of its object.
    pub(super) fn around<C, R>(history: &History<C, R>, why: &Counterexample, most: usize) -> Self {
        // The last operations are those at which the search got stuck.
        let last = why.operations.len().saturating_sub(REASON_DRAWN);
        let mut named: BTreeSet<Index> = why.operations[last..].iter().copied().collect();
        let links = why.links.iter().take(REASON_DRAWN);
        named.extend(links.flat_map(|link| [link.before, link.after]));
        if let Some(dead_end) = &why.dead_end {
            named.extend(dead_end.blocked.iter().take(REASON_DRAWN));
        }
        let spans: Vec<(u64, u64)> = named.iter().map(|index| span(&history[*index])).collect();
        let of_object = |index: &Index| *history[*index].object == *why.object;
        let mut near: Vec<(u64, At, Index)> = (0..history.len())
            .filter(|index| of_object(index) && !named.contains(index))
            .map(|index| {
                let operation = &history[index];
                let gap = spans.iter().map(|one| gap(*one, span(operation))).min();
                (gap.unwrap_or(0), operation.invoked, index)
            })
            .collect();
        let others = (0..history.len()).filter(|index| !of_object(index)).count();
        near.sort_unstable();
        let left_out = near.len().saturating_sub(most);
        let mut drawn: Vec<Index> = named.into_iter().collect();
        drawn.extend(near.into_iter().take(most).map(|(_, _, index)| index));
        drawn.sort_by_key(|index| (history[*index].invoked, *index));
        Self { drawn, left_out, others }
    }

    /// Describes in a sentence what is drawn and what is not.
    pub(super) fn words(&self, all: usize) -> String {
        let Self { drawn, left_out, others } = self;
        let drawn = drawn.len();
        let mut words = match (left_out, others) {
            (0, 0) => format!("All {all} operations are drawn."),
            (0, _) => format!("All {drawn} operations of this object are drawn."),
            _ => format!(
                "{drawn} operations are drawn: those named above and the nearest to them. \
                 {left_out} more of this object are not drawn."
            ),
        };
        if *others > 0 {
            words.push_str(&format!(" {others} operations of other objects are not drawn."));
        }
        words.push_str(" Moments are evenly spaced because only their order matters.");
        words
    }
}

/// Returns the call and the end of an operation. An operation without an end counts as ended at its call; otherwise all
/// such operations would be near all others.
fn span<C, R>(operation: &Operation<C, R>) -> (u64, u64) {
    let invoked = operation.invoked.0;
    (invoked, operation.ended().map_or(invoked, |at| at.0.max(invoked)))
}

/// Returns the distance between two spans.
fn gap(one: (u64, u64), other: (u64, u64)) -> u64 {
    other.0.saturating_sub(one.1).max(one.0.saturating_sub(other.1))
}
