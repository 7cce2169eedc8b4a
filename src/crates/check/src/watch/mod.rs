//! Checks watch streams: did each stream report every change once, in order and completely, and nothing else?
//!
//! The input contains the changes with their revisions, and the messages of each stream, as [`RecordedWatchCall`] and
//! [`WatchReply`]. `docs/assurance/checkers.md` lists the fields of both in a file.
//!
//! | rule | promise | anchors |
//! |---|---|---|
//! | ordered | revisions never decrease | W-ORDER |
//! | unique | a change of a row at a revision is reported once | W-UNIQUE |
//! | atomic | the changes of one revision come in one message, or in messages marked `more` | W-ATOMIC |
//! | reliable | from its start to its last event, the stream omits no change of its rows | W-RELIABLE |
//! | resumable | a stream with a start revision reports everything from there on and nothing earlier, even if the start is in the future | W-RESUME, W-FUTURE |
//! | bookmarkable | progress to a revision is reported after all events up to it; none of them comes later | W-BOOKMARK |
//! | filters | only the requested rows and kinds of changes are reported | W-FILTER |
//! | previous | the previous value is correct, or missing if it was compacted; `created` is the revision at which the row was created | W-PREV |
//! | durable | a change is reported only after it was called, and all streams agree | W-DURABLE |
//! | compacted | compaction is reported only if it happened and only to a stream that needs the discarded history | W-COMPACT |
//!
//! Changes of unknown outcome are learned from the streams: if one stream reports the change, it took effect, and all
//! other streams must report it as well. The revision of a change cannot have been passed before the change was
//! called. A revision is passed once it or a higher one was in a reply or a message.
//!
//! Deleting a missing row makes no event. If one call deletes a row that may have been missing, and makes other
//! changes, a stream may omit the deletion as long as no other stream reports it.
//!
//! A stream "from now on" without a known revision begins with its first message. Such a stream must in any case
//! report changes that were called after the reply to the watch. Changes that had ended before the call of the watch
//! imply nothing: a store may watch on a replica that is behind.
//!
//! A stream that ends early or reports nothing breaks no rule. The test must request progress at the end, to make
//! sure that the stream has reported everything.

mod calls;
mod stream;
mod truth;

use std::collections::{BTreeMap, BTreeSet};

use super::history::{History, Index, Operation, Outcome};
use super::verdict::Verdict;
pub use calls::{
    Keys, Received, RecordedEvent, RecordedEventKind, RecordedWatchCall, WatchReply, change,
};
use truth::StreamTruth;

/// Assumptions about a watched store.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WatchRecord {
    /// Whether the store is also changed from outside the history: by other programs, or by leases that expire.
    /// Changes from outside are learned from the streams. By default there are no such changes, and an event for a
    /// change that was not called is a violation.
    pub others: bool,
}

/// Checks whether each stream reported exactly the changes in its range.
///
/// Each object is a separate store. Time grows with the number of messages, and with the number of changes times the
/// number of concurrent streams. Deterministic; uses no clock and no thread.
///
/// ```
/// use bowline_check::watch::{RecordedEvent, Keys, Received, RecordedWatchCall, WatchRecord, WatchReply, check};
/// use bowline_check::Operation;
///
/// let put = |value: i64| RecordedWatchCall::Change { rows: vec![("a".into(), Some(value.into()))] };
/// let watch = RecordedWatchCall::Watch {
///     stream: "w".into(), keys: Keys::One("a".into()), start: Some(2), only: None,
/// };
/// let event = |revision, value: i64| WatchReply::Received(Received::Events {
///     events: vec![RecordedEvent {
///         revision, key: "a".into(), value: Some(value.into()), previous: None, created: None,
///     }],
///     more: false,
/// });
/// let receive = RecordedWatchCall::Receive { stream: "w".into() };
/// let history = vec![
///     Operation::ok(1, 2, put(7), WatchReply::Changed { revision: 2 }),
///     Operation::ok(3, 4, put(8), WatchReply::Changed { revision: 3 }),
///     Operation::ok(5, 6, watch, WatchReply::Watching { at: None }),
///     Operation::ok(7, 7, receive, event(3, 8)),
/// ];
/// let verdict = check(&WatchRecord::default(), &history);
/// // The stream omitted the change #0.
/// assert_eq!(verdict.violation().unwrap().operations, [2, 0, 3]);
/// ```
pub fn check(rules: &WatchRecord, history: &History<RecordedWatchCall, WatchReply>) -> Verdict {
    by_object(rules, history).showing(history)
}

fn by_object(rules: &WatchRecord, history: &History<RecordedWatchCall, WatchReply>) -> Verdict {
    let mut objects: BTreeMap<&str, Vec<Index>> = BTreeMap::new();
    for (index, operation) in history.iter().enumerate() {
        objects.entry(&operation.object).or_default().push(index);
    }
    for (object, mut members) in objects {
        members.sort_by_key(|index| (history[*index].invoked, *index));
        let first = first_watches(history, &members);
        // Messages come after everything else at the same moment.
        members.sort_by_key(|index| {
            let is_told = match &history[*index].call {
                RecordedWatchCall::Receive { .. } => true,
                RecordedWatchCall::Watch { .. } => !first.contains(index),
                RecordedWatchCall::Change { .. } | RecordedWatchCall::Compact { .. } => false,
            };
            (history[*index].invoked, is_told, *index)
        });
        let judged = StreamTruth::of(rules, history, object, &members)
            .and_then(|truth| stream::judge(&truth, &members));
        if let Err(reason) = judged {
            return (*reason).into();
        }
    }
    Verdict::Ok
}

/// Returns the watch that began each stream for the first time.
fn first_watches(
    history: &History<RecordedWatchCall, WatchReply>,
    members: &[Index],
) -> BTreeSet<Index> {
    let mut first: BTreeMap<&str, Index> = BTreeMap::new();
    for &index in members {
        let Operation { call, outcome, .. } = &history[index];
        if let RecordedWatchCall::Watch { stream, .. } = call
            && !matches!(outcome, Outcome::Failed { .. })
        {
            first.entry(stream).or_insert(index);
        }
    }
    first.into_values().collect()
}
