//! A fast checker for stores whose replies contain revisions, for histories with millions of operations.
//!
//! If every reply contains the revision of the store, no search for an order is needed: the revisions are the
//! order. The checker verifies in *n* log *n* time that the revisions are right:
//!
//! - **one revision, one change**: no two changes have the same revision, and without [`Total::others`], every revision
//!   was made by an operation;
//! - **real time**: an operation that had ended when another was called has a lower revision, or the same one if the
//!   later operation only reads;
//! - **replies**: if the operations are replayed in the order of revisions, each reply agrees with the store at the
//!   revision of the reply.
//!
//! Together these checks prove linearizability and correct revisions. The difficult part is the changes of *unknown
//! outcome*. Such a change made no revision, or a free revision above those of all operations that had ended when the
//! change was called.
//!
//! ```text
//! revision    2     3     4     5     6     7       5: get(b) saw value y, changed at 4
//!             #0    #1    ?     #3    ?     #5        so 4 is a put(b, y) of unknown outcome
//! unknown     #2 put(b, y)   #4 put(c, z)           6: only #4 is left, if no read saw c without it
//! ```
//!
//! Revisions that replies prove are assigned first. The remaining revisions are matched with changes so that no reply
//! is contradicted. Then the whole order is replayed. The verdict ok is given only if such an order was found. A
//! violation is reported only if every choice of revisions leads to it. If another choice might explain the history,
//! the verdict is [`Undecided::Ambiguous`], unless the store has few operations: then [`linear`] decides. There is only
//! one choice if replies contain the revision of a row's last change (`modified`), or if each value is written only
//! once.

mod facts;
mod gaps;
mod order;
mod replay;
mod spare;

use std::collections::BTreeMap;

use super::history::{History, Index};
use super::linear::{self, Budget};
use super::models::{Kv, KvCall, KvReply};
use super::verdict::{Undecided, Verdict};
use gaps::Chosen;
use order::TotalOrder;

/// Assumptions about a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Total {
    /// The revision before the first operation. Default 1, as in a new etcd and a new Bowline.
    pub first: u64,
    /// Whether programs outside the history also change the store. Other programs must change *other* rows. A free
    /// revision may then be a change of another program. By default no other program changes the store, and a
    /// revision that no operation made is a violation.
    pub others: bool,
}

impl Default for Total {
    fn default() -> Self {
        Self { first: 1, others: false }
    }
}

/// Maximum number of operations for which an ambiguous history is searched.
pub const SEARCHED_OPERATIONS_MAX: usize = 500;

/// Maximum number of steps of such a search.
const SEARCH_STEPS: u64 = 2_000_000;

/// Checks whether the revisions in the replies make a history of stores linearizable. Every `ok` reply must contain
/// its revision.
///
/// Each object is a separate store. Uses some hundred bytes per operation in addition to the history. Time and memory
/// grow with the number of operations, also if there is a violation. Deterministic; uses no clock and no thread.
///
/// ```
/// use bowline_check::{KvCall, KvReply, Operation, Seen, Total, total};
///
/// let put = |value: i64| KvCall::Put { key: "a".into(), value: value.into() };
/// let get = KvCall::Get { key: "a".into() };
/// let saw = |value: i64, modified, revision| KvReply {
///     seen: Seen::Read { value: Some(value.into()), modified: Some(modified) },
///     revision: Some(revision),
/// };
/// let history = vec![
///     Operation::ok(1, 2, put(7), KvReply { seen: Seen::Written, revision: Some(2) }),
///     // Its reply was lost, and revision 3 is free.
///     Operation::unknown(3, put(8)),
///     Operation::ok(5, 6, get.clone(), saw(8, 3, 3)),
/// ];
/// assert!(total::check(&Total::default(), &history).is_ok());
///
/// let mut history = history;
/// history.push(Operation::ok(7, 8, get, saw(7, 2, 3)));
/// let verdict = total::check(&Total::default(), &history);
/// assert_eq!(verdict.violation().unwrap().operations, [2, 3]);
/// ```
pub fn check(rules: &Total, history: &History<KvCall, KvReply>) -> Verdict {
    by_object(rules, history).showing(history)
}

fn by_object(rules: &Total, history: &History<KvCall, KvReply>) -> Verdict {
    let mut objects: BTreeMap<&str, Vec<Index>> = BTreeMap::new();
    for (index, operation) in history.iter().enumerate() {
        objects.entry(&operation.object).or_default().push(index);
    }
    let mut verdict = Verdict::Ok;
    for (object, members) in objects {
        verdict = verdict.and(match by_revision(rules, history, object, &members) {
            Verdict::Undecided { why: Undecided::Ambiguous | Undecided::Silent(_), .. }
                if members.len() <= SEARCHED_OPERATIONS_MAX && !rules.others =>
            {
                let budget = Budget { steps: SEARCH_STEPS, ..Budget::default() };
                linear::check_object(&Kv { first: rules.first }, history, object, &members, budget)
            }
            decided => decided,
        });
        if verdict.violation().is_some() {
            break;
        }
    }
    verdict
}

/// Checks one store by its revisions alone.
pub(super) fn by_revision(
    rules: &Total,
    history: &History<KvCall, KvReply>,
    object: &str,
    members: &[Index],
) -> Verdict {
    let order = match TotalOrder::of(rules, history, object, members) {
        Ok(order) => order,
        Err(verdict) => return verdict,
    };
    match Chosen::of(rules, &order) {
        Ok(chosen) => replay::play(rules, &order, &chosen),
        Err(verdict) => verdict,
    }
}
