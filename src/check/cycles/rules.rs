//! What may be broken, and how it is said.

use super::book::{Book, By};
use super::graph::{Key, Kind, Node};
use super::search::Step;
use crate::check::value::Value;
use crate::check::verdict::Counterexample;

pub(super) const FROM_NOWHERE: &str = "a read of what nobody wrote";
pub(super) const TWICE: &str = "a value twice in a list";
pub(super) const TWO_ORDERS: &str = "two orders of one list";
pub(super) const ABORTED: &str = "a read of what failed (G1a)";
pub(super) const INTERMEDIATE: &str = "a read of what was not done yet (G1b)";
pub(super) const INTERNAL: &str = "a transaction against itself (internal)";
pub(super) const LOST_UPDATE: &str = "a lost update";

/// The name of a cycle: how often it goes by what was not read, and whether it needs time.
pub(super) fn of_cycle(cycle: &[Step], apart: bool, is_session: bool) -> &'static str {
    let count = |kinds: &[Kind]| cycle.iter().filter(|step| kinds.contains(&step.kind)).count();
    let missed = count(&[Kind::Rw, Kind::RwByTime]);
    let time = match count(&[Kind::Time, Kind::RwByTime]) {
        0 => 0,
        _ if is_session => 1,
        _ => 2,
    };
    let names = match missed {
        0 if count(&[Kind::Wr]) == 0 => [
            "writes in two orders (G0)",
            "writes in two orders (G0-process)",
            "writes in two orders (G0-realtime)",
        ],
        0 => [
            "information in a circle (G1c)",
            "information in a circle (G1c-process)",
            "information in a circle (G1c-realtime)",
        ],
        1 => [
            "a read of two moments (G-single)",
            "a read of two moments (G-single-process)",
            "a read of two moments (G-single-realtime)",
        ],
        _ if apart => [
            "reads of two moments (G-nonadjacent)",
            "reads of two moments (G-nonadjacent-process)",
            "reads of two moments (G-nonadjacent-realtime)",
        ],
        _ => [
            "reads that miss each other's writes (G2)",
            "reads that miss each other's writes (G2-process)",
            "reads that miss each other's writes (G2-realtime)",
        ],
    };
    names[time]
}

pub(super) fn from_nowhere<Seen>(
    book: &Book<'_, Seen>,
    by: Node,
    key: Key,
    value: &Value,
) -> Counterexample {
    let why = format!("#{} read {value} of {}, which nobody wrote", book.index(by), book.name(key));
    Counterexample::new(FROM_NOWHERE, "", [book.index(by)], why)
}

pub(super) fn twice<Seen>(
    book: &Book<'_, Seen>,
    by: Node,
    key: Key,
    value: &Value,
) -> Counterexample {
    let (index, name) = (book.index(by), book.name(key));
    let why = format!("#{index} read {value} twice in {name}, where it was appended once");
    Counterexample::new(TWICE, "", [index], why)
}

/// `by` read a value that one who failed had written.
pub(super) fn aborted<Seen>(
    book: &Book<'_, Seen>,
    by: Node,
    key: Key,
    value: &Value,
) -> Counterexample {
    let index = book.index(by);
    let name = book.name(key);
    let why =
        |writer| format!("#{index} read {value} of {name}, which #{writer} wrote, and that failed");
    match book.write(key, value).map(|write| write.by) {
        Some(By::Failed(writer)) => Counterexample::new(ABORTED, "", [writer, index], why(writer))
            .link(writer, index, "it failed, and the other read what it wrote"),
        Some(By::Txn(_)) | None => unreachable!("it failed"),
    }
}

/// `by` read a value that `writer` wrote over itself.
pub(super) fn intermediate<Seen>(
    book: &Book<'_, Seen>,
    writer: Node,
    by: Node,
    key: Key,
    value: &Value,
) -> Counterexample {
    let (writer, index) = (book.index(writer), book.index(by));
    let name = book.name(key);
    let why = format!(
        "#{index} read {value} as the last of {name}, but #{writer}, which wrote it, wrote more to {name} after it"
    );
    Counterexample::new(INTERMEDIATE, "", [writer, index], why).link(
        writer,
        index,
        "the other read what it wrote before it was done",
    )
}

/// Both read the same of a key and wrote to it.
pub(super) fn lost_update<Seen>(
    book: &Book<'_, Seen>,
    one: Node,
    other: Node,
    key: Key,
    held: &str,
) -> Counterexample {
    let (one, other) = (book.index(one), book.index(other));
    let name = book.name(key);
    let why = format!(
        "#{one} and #{other} both read {name} as {held} and wrote to it: the later one did not read what the \
         earlier one wrote"
    );
    let misses = format!("it read {name} as {held}, without what the other wrote");
    Counterexample::new(LOST_UPDATE, "", [one, other], why)
        .link(one, other, misses.clone())
        .link(other, one, misses)
}

/// `from` had ended when `to` was called.
pub(super) fn time<Seen>(book: &Book<'_, Seen>, from: Node, to: Node) -> String {
    let (one, other) = (book.one(from), book.one(to));
    let ended = one.completed.map_or(0, |at| at.0);
    let process = if one.process == other.process { " by the same process" } else { "" };
    format!("it had ended at {ended} when the other was called at {}{process}", other.invoked.0)
}
