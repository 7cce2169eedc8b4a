//! The fast check of a store whose replies say their revisions: histories of millions of operations.
//!
//! Where every reply names the store's revision, nobody needs to search for an order: the revisions are one. What is
//! left is to see whether they are honest, in time *n* log *n*:
//!
//! - **one revision, one change**; and without [`Total::others`], no revision that nobody made;
//! - **real time**: what had ended when another operation was called has the lower revision; the same, if the later
//!   one only reads;
//! - **what was seen**: played in that order, each reply tells what the store held at its revision.
//!
//! That is linearizability, no less, with one thing more to say: the revisions themselves. Changes of *unknown
//! outcome* are what makes it work: such a one has any revision that nobody else has, above all that had ended when it
//! was called, or none.
//!
//! ```text
//! revision    2     3     4     5     6     7       5: get(b) saw value y, changed at 4
//!             #0    #1    ?     #3    ?     #5        so 4 is a put(b, y) of unknown outcome
//! unknown     #2 put(b, y)   #4 put(c, z)           6: only #4 is left, if nobody saw c without it
//! ```
//!
//! What a reply proves is taken first; what is left is matched, revisions to changes, such that no reply is
//! contradicted; then the whole order is played. A pass is always such an order. A violation is one that no
//! choice can have caused. Where a choice may have, the verdict is [`Undecided::Ambiguous`], unless the
//! store has few operations: then [`linear`] decides. Replies that say when a row was last changed
//! (`modified`), or values that are written once, leave nothing to choose.

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
use order::Order;

/// What is taken for granted of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Total {
    /// The revision before the first operation. By default 1, as in a new etcd and a new Bowline.
    pub first: u64,
    /// Whether others, of whom the history says nothing, also change the store: *other* rows, so that a revision may
    /// be theirs. By default they do not, and a revision that nobody made is a violation.
    pub others: bool,
}

impl Default for Total {
    fn default() -> Self {
        Self { first: 1, others: false }
    }
}

/// With up to so many operations, what is ambiguous is searched.
pub const SEARCHED_OPERATIONS_MAX: usize = 500;

/// How many steps such a search may take.
const SEARCH_STEPS: u64 = 2_000_000;

/// Whether a history of stores, in which every `ok` reply has its revision, is linearizable by these revisions.
///
/// Each object is a store by itself. Needs some hundred bytes for each operation beside the history; time and memory
/// grow with the number of operations, also where there is a violation. Deterministic; no clock, no thread.
///
/// ```
/// use bowline::check::{KvCall, KvReply, Operation, Seen, Total, total};
///
/// let put = |value: i64| KvCall::Put { key: "a".into(), value: value.into() };
/// let get = KvCall::Get { key: "a".into() };
/// let saw = |value: i64, modified, revision| KvReply {
///     seen: Seen::Read { value: Some(value.into()), modified: Some(modified) },
///     revision: Some(revision),
/// };
/// let history = vec![
///     Operation::ok(1, 2, put(7), KvReply { seen: Seen::Written, revision: Some(2) }),
///     // Its answer was lost, and revision 3 is free.
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

/// One store, by its revisions alone.
pub(super) fn by_revision(
    rules: &Total,
    history: &History<KvCall, KvReply>,
    object: &str,
    members: &[Index],
) -> Verdict {
    let order = match Order::of(rules, history, object, members) {
        Ok(order) => order,
        Err(verdict) => return verdict,
    };
    match Chosen::of(rules, &order) {
        Ok(chosen) => replay::play(rules, &order, &chosen),
        Err(verdict) => verdict,
    }
}
