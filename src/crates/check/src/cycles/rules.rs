//! Names of the anomalies and the sentences that describe them.

use super::book::{TxnBook, TxnBy};
use super::graph::{EdgeKind, Key, Node};
use super::search::CycleStep;
use crate::value::Value;
use crate::verdict::Counterexample;

pub(super) const FROM_NOWHERE: &str = "read of an unwritten value";
pub(super) const TWICE: &str = "duplicate value in a list";
pub(super) const TWO_ORDERS: &str = "conflicting orders of one list";
pub(super) const ABORTED: &str = "aborted read (G1a)";
pub(super) const INTERMEDIATE: &str = "intermediate read (G1b)";
pub(super) const INTERNAL: &str = "self-contradicting transaction (internal)";
pub(super) const LOST_UPDATE: &str = "lost update";

/// Returns the name of a cycle, which depends on the number of its read-write edges and on whether it needs time.
pub(super) fn of_cycle(cycle: &[CycleStep], apart: bool, is_session: bool) -> &'static str {
    let count = |kinds: &[EdgeKind]| cycle.iter().filter(|step| kinds.contains(&step.kind)).count();
    let missed = count(&[EdgeKind::Rw, EdgeKind::RwByTime]);
    let time = match count(&[EdgeKind::Time, EdgeKind::RwByTime]) {
        0 => 0,
        _ if is_session => 1,
        _ => 2,
    };
    let names = match missed {
        0 if count(&[EdgeKind::Wr]) == 0 => {
            ["write cycle (G0)", "write cycle (G0-process)", "write cycle (G0-realtime)"]
        }
        0 => [
            "circular information flow (G1c)",
            "circular information flow (G1c-process)",
            "circular information flow (G1c-realtime)",
        ],
        1 => [
            "read skew (G-single)",
            "read skew (G-single-process)",
            "read skew (G-single-realtime)",
        ],
        _ if apart => [
            "nonadjacent read skew (G-nonadjacent)",
            "nonadjacent read skew (G-nonadjacent-process)",
            "nonadjacent read skew (G-nonadjacent-realtime)",
        ],
        _ => [
            "anti-dependency cycle (G2)",
            "anti-dependency cycle (G2-process)",
            "anti-dependency cycle (G2-realtime)",
        ],
    };
    names[time]
}

pub(super) fn never_written<Seen>(
    book: &TxnBook<'_, Seen>,
    by: Node,
    key: Key,
    value: &Value,
) -> Counterexample {
    let why = format!(
        "#{} read {value} of {}, which no transaction wrote",
        book.index(by),
        book.name(key)
    );
    Counterexample::new(FROM_NOWHERE, "", [book.index(by)], why)
}

pub(super) fn twice<Seen>(
    book: &TxnBook<'_, Seen>,
    by: Node,
    key: Key,
    value: &Value,
) -> Counterexample {
    let (index, name) = (book.index(by), book.name(key));
    let why = format!("#{index} read {value} twice in {name}, but it was appended once");
    Counterexample::new(TWICE, "", [index], why)
}

/// Reports that `by` read a value of a failed transaction.
pub(super) fn aborted<Seen>(
    book: &TxnBook<'_, Seen>,
    by: Node,
    key: Key,
    value: &Value,
) -> Counterexample {
    let index = book.index(by);
    let name = book.name(key);
    let why = |writer| format!("#{index} read {value} of {name}, which the failed #{writer} wrote");
    match book.write(key, value).map(|write| write.by) {
        Some(TxnBy::Failed(writer)) => {
            Counterexample::new(ABORTED, "", [writer, index], why(writer)).link(
                writer,
                index,
                "it failed, but the other read its write",
            )
        }
        Some(TxnBy::Txn(_)) | None => unreachable!("it failed"),
    }
}

/// Reports that `by` read a value that its `writer` overwrote itself.
pub(super) fn intermediate<Seen>(
    book: &TxnBook<'_, Seen>,
    writer: Node,
    by: Node,
    key: Key,
    value: &Value,
) -> Counterexample {
    let (writer, index) = (book.index(writer), book.index(by));
    let name = book.name(key);
    let why = format!(
        "#{index} read {value} as the last value of {name}, but its writer #{writer} wrote to {name} again later"
    );
    Counterexample::new(INTERMEDIATE, "", [writer, index], why).link(
        writer,
        index,
        "the other read its intermediate write",
    )
}

/// Reports that both transactions read the same version of a key and wrote to the key.
pub(super) fn lost_update<Seen>(
    book: &TxnBook<'_, Seen>,
    one: Node,
    other: Node,
    key: Key,
    held: &str,
) -> Counterexample {
    let (one, other) = (book.index(one), book.index(other));
    let name = book.name(key);
    let why = format!(
        "#{one} and #{other} both read {name} as {held} and wrote to it: the later one missed the write of \
         the earlier one"
    );
    let misses = format!("it read {name} as {held}, without the write of the other");
    Counterexample::new(LOST_UPDATE, "", [one, other], why)
        .link(one, other, misses.clone())
        .link(other, one, misses)
}

/// Describes that `from` had ended before `to` was called.
pub(super) fn time<Seen>(book: &TxnBook<'_, Seen>, from: Node, to: Node) -> String {
    let (one, other) = (book.one(from), book.one(to));
    let ended = one.completed.map_or(0, |at| at.0);
    let process = if one.process == other.process { " by the same process" } else { "" };
    format!("it had ended at {ended}, before the other was called at {}{process}", other.invoked.0)
}
