//! What revisions promise: they order all changes of the store, each change has its own, and no operation that was called
//! after another one had ended has a lower one.

use bowline::check::{History, Outcome};

/// What an operation that ended well says of revisions.
pub(super) struct Mark {
    /// The store's, after it.
    pub(super) revision: u64,
    /// Whether it made that revision.
    pub(super) is_change: bool,
}

/// What is wrong with the revisions of a history, all of whose objects are in one store.
pub(super) fn complaints<C, R>(
    history: &History<C, R>,
    mark: impl Fn(&C, &R) -> Option<Mark>,
) -> Vec<String> {
    let mut marks = Vec::new();
    for (index, operation) in history.iter().enumerate() {
        if let Outcome::Ok { at, reply } = &operation.outcome
            && let Some(mark) = mark(&operation.call, reply)
        {
            marks.push((operation.invoked, *at, mark, index));
        }
    }
    let mut complaints = Vec::new();
    let mut changes: Vec<_> = marks
        .iter()
        .filter(|(_, _, mark, _)| mark.is_change)
        .map(|m| (m.2.revision, m.3))
        .collect();
    changes.sort_unstable();
    for pair in changes.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        let (one, other) = (pair[0].1, pair[1].1);
        complaints.push(format!("{one} and {other} both made revision {}", pair[0].0));
    }
    // In the order of their calls, with all that had ended by then.
    let mut by_call: Vec<usize> = (0..marks.len()).collect();
    by_call.sort_unstable_by_key(|at| marks[*at].0);
    let mut by_end: Vec<usize> = (0..marks.len()).collect();
    by_end.sort_unstable_by_key(|at| marks[*at].1);
    let (mut ended, mut highest) = (by_end.into_iter().peekable(), None);
    for at in by_call {
        let (invoked, _, mark, index) = &marks[at];
        while let Some(before) = ended.next_if(|before| marks[*before].1 < *invoked) {
            highest = highest.max(Some((marks[before].2.revision, marks[before].3)));
        }
        if let Some((revision, before)) = highest
            && (mark.revision < revision || (mark.is_change && mark.revision == revision))
        {
            complaints.push(format!(
                "{index} is at revision {}, but was called after {before} had ended at {revision}",
                mark.revision
            ));
        }
    }
    complaints
}
