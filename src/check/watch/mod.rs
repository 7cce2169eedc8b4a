//! Watch streams: was everything told that changed, once, in order, whole, and nothing else?
//!
//! What goes in is who changed what at which revision, and what each stream was told, in the words of [`calls`].
//!
//! | rule | what a stream owes | anchors |
//! |---|---|---|
//! | ordered | revisions never go back | W-ORDER |
//! | unique | a revision's change of a row is told once | W-UNIQUE |
//! | atomic | the changes of one revision come in one message, or in messages marked `more` | W-ATOMIC |
//! | reliable | between its start and the last that it told, no change of its rows is left out | W-RELIABLE |
//! | resumable | one that starts at a revision tells all from there on, and nothing earlier, be it in the future | W-RESUME, W-FUTURE |
//! | bookmarkable | the progress to a revision is told when all up to it has been, and nothing of that comes later | W-BOOKMARK |
//! | filters | no other rows than asked for, no other kinds of changes | W-FILTER |
//! | previous | the value before is the value before, or missing where that is compacted; `created` is the revision since which the row is there | W-PREV |
//! | durable | nothing is told that nobody did, or that was not yet called; all streams tell one story | W-DURABLE |
//! | compacted | that history is gone is told only where it is, to one who needs it | W-COMPACT |
//!
//! What nobody knows of is learned from the streams: a change of unknown outcome took effect if one stream tells it,
//! and from then on all others owe it, too. It has no revision that was over before it was called: one is over once it, or
//! one above it, was answered or told.
//!
//! To delete what is not there makes no event. Where a row may have been missing, its deletion along with other changes is
//! owed only if some stream tells it.
//!
//! A stream from now on, of which nobody said when that is, begins with its first message; but what was called after the
//! watch had been answered it owes in any case. Nothing is concluded from what had ended before the watch was called:
//! a store may watch on a replica that is behind.
//!
//! A stream that ends early, or tells nothing, breaks no rule: whether it came far enough is for the test to see, by
//! asking for progress at the end.

mod calls;
mod stream;
mod truth;

use std::collections::{BTreeMap, BTreeSet};

use super::history::{History, Index, Operation, Outcome};
use super::verdict::Verdict;
pub use calls::{Event, Keys, Kind, Received, WatchCall, WatchReply, change};
use truth::Truth;

/// What is taken for granted of a store that is watched.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Watch {
    /// Whether the store is also changed by others, of whom the history says nothing: other programs, leases that
    /// end. What they did is learned from the streams. By default nobody does, and an event of a
    /// change that nobody called is a violation.
    pub others: bool,
}

/// Whether each stream told what it should.
///
/// Each object is a store by itself. Time grows with the messages, and with the changes times the streams that were
/// there meanwhile. Deterministic; no clock, no thread.
///
/// ```
/// use bowline::check::watch::{Event, Keys, Received, Watch, WatchCall, WatchReply, check};
/// use bowline::check::Operation;
///
/// let put = |value: i64| WatchCall::Change { rows: vec![("a".into(), Some(value.into()))] };
/// let watch = WatchCall::Watch {
///     stream: "w".into(), keys: Keys::One("a".into()), start: Some(2), only: None,
/// };
/// let event = |revision, value: i64| WatchReply::Received(Received::Events {
///     events: vec![Event {
///         revision, key: "a".into(), value: Some(value.into()), previous: None, created: None,
///     }],
///     more: false,
/// });
/// let receive = WatchCall::Receive { stream: "w".into() };
/// let history = vec![
///     Operation::ok(1, 2, put(7), WatchReply::Changed { revision: 2 }),
///     Operation::ok(3, 4, put(8), WatchReply::Changed { revision: 3 }),
///     Operation::ok(5, 6, watch, WatchReply::Watching { at: None }),
///     Operation::ok(7, 7, receive, event(3, 8)),
/// ];
/// let verdict = check(&Watch::default(), &history);
/// // The change #0 was left out.
/// assert_eq!(verdict.violation().unwrap().operations, [2, 0, 3]);
/// ```
pub fn check(rules: &Watch, history: &History<WatchCall, WatchReply>) -> Verdict {
    let mut objects: BTreeMap<&str, Vec<Index>> = BTreeMap::new();
    for (index, operation) in history.iter().enumerate() {
        objects.entry(&operation.object).or_default().push(index);
    }
    for (object, mut members) in objects {
        members.sort_by_key(|index| (history[*index].invoked, *index));
        let first = first_watches(history, &members);
        // What is told at a moment is told after all else.
        members.sort_by_key(|index| {
            let is_told = match &history[*index].call {
                WatchCall::Receive { .. } => true,
                WatchCall::Watch { .. } => !first.contains(index),
                WatchCall::Change { .. } | WatchCall::Compact { .. } => false,
            };
            (history[*index].invoked, is_told, *index)
        });
        let judged = Truth::of(rules, history, object, &members)
            .and_then(|truth| stream::judge(&truth, &members));
        if let Err(reason) = judged {
            return (*reason).into();
        }
    }
    Verdict::Ok
}

/// With which watch each stream begins for the first time.
fn first_watches(history: &History<WatchCall, WatchReply>, members: &[Index]) -> BTreeSet<Index> {
    let mut first: BTreeMap<&str, Index> = BTreeMap::new();
    for &index in members {
        let Operation { call, outcome, .. } = &history[index];
        if let WatchCall::Watch { stream, .. } = call
            && !matches!(outcome, Outcome::Failed { .. })
        {
            first.entry(stream).or_insert(index);
        }
    }
    first.into_values().collect()
}
