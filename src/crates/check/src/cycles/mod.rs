//! Checks transactions: does some order exist in which executing them one at a time gives the same results? For a
//! database that promises a weaker level, the checker verifies that level.
//!
//! The values that transactions read and wrote show which of them must come before which. If these relations form a
//! cycle, no order exists. The cycle is reported as the reason, and its shape shows which promise is broken. This is
//! the method of Elle (Kingsbury and Alvaro, 2020: "Inferring Isolation Anomalies from Experimental Observations").
//! This method takes seconds where a search for the order would never end:
//!
//! | edge | why the first transaction comes before the second |
//! |---|---|
//! | write, write | the second overwrote the value of the first, or appended after it |
//! | write, read | the second read the value that the first wrote |
//! | read, write | the first read the value that existed before the second wrote |
//! | time | the first had ended when the second was called |
//!
//! The [`Level`] decides which cycles are forbidden. The checker also reports these anomalies without a cycle:
//!
//! - a read of a value that was never written, that a failed transaction wrote (G1a), or that its writer overwrote in
//!   the same transaction (G1b)
//! - a transaction that does not see its own writes
//! - a list that was read in two orders
//! - a lost update
//!
//! A transaction of unknown outcome counts as committed if another one read its writes, and otherwise as not
//! executed. Among the transactions that did not fail, only one may write a given value to a key. Otherwise a read
//! cannot be matched with its writer, and the verdict is undecided.
//!
//! | checker | meaning of "ok" |
//! |---|---|
//! | [`lists`], at [`Level::Serializable`] and above | such an order exists |
//! | [`lists`] below that level, and [`registers`] | no contradiction was found |
//!
//! A violation is certain with both checkers. The operations of the counterexample are those of the cycle,
//! followed by those whose reads reveal the cycle.

mod book;
mod graph;
mod level;
mod lists;
mod registers;
mod rules;
mod search;

use std::collections::{BTreeMap, BTreeSet};

use super::history::{At, History, Index, Outcome, Process};
use super::models::{self, ListTxn, RegisterTxn};
use super::value::Value;
use super::verdict::{Counterexample, Link, Undecided, Verdict};
use book::{TxnBook, TxnBy, TxnMember, TxnSteps};
use graph::{Arrows, Node};
pub use level::Level;
use level::Pass;
use lists::Lists;
use registers::Registers;
use search::{CycleStep, GraphView};

/// A kind of transactions.
trait Database {
    type Call: TxnSteps + Clone;
    /// The result of one read.
    type Seen: Clone;

    /// Whether the absence of a cycle proves that an order exists.
    const IS_EXHAUSTIVE: bool;

    /// Returns the values in a result.
    fn values(seen: &Self::Seen) -> &[Value];

    /// Collects the order that reads and writes show, or returns a violation that needs no cycle.
    fn evidence<'b>(
        book: &'b TxnBook<'_, Self::Seen>,
        level: Level,
    ) -> Result<Box<dyn Evidence + 'b>, Box<Counterexample>>;
}

/// A history of such transactions.
type Txns<D> = History<<D as Database>::Call, Vec<<D as Database>::Seen>>;

/// The order of transactions as far as reads and writes show it.
trait Evidence {
    /// Returns whether a transaction certainly took effect.
    fn is_certain(&self, node: Node) -> bool;

    /// Returns a transaction that read a value which this transaction wrote.
    fn seen_by(&self, node: Node) -> Option<Node>;

    /// Finds two transactions that read the same value and overwrote it.
    fn lost_update(&self) -> Option<Counterexample>;

    /// Returns all edges except those of real-time order.
    fn arrows(&self, level: Level) -> Arrows;

    /// Merges steps of the cycle where one step is enough. `apart` is as in [`GraphView`].
    fn joined(&self, cycle: Vec<CycleStep>, apart: bool) -> Vec<CycleStep>;

    /// Describes why a step holds. In the text, "it" is the earlier transaction and "the other" the later one.
    fn why(&self, step: &CycleStep) -> String;

    /// Returns a third transaction that is needed to know the step.
    fn witness(&self, step: &CycleStep) -> Option<Node>;
}

impl TxnSteps for ListTxn {
    fn steps(&self) -> &[models::TxnStep] {
        &self.0
    }
}

impl TxnSteps for RegisterTxn {
    fn steps(&self) -> &[models::TxnStep] {
        &self.0
    }
}

/// Checks whether transactions on lists keep the promises of a level.
///
/// Each object is checked on its own; an object is a whole database with its keys. Time and memory are proportional
/// to the history, including the lists that were read. The only undecided verdict is [`Undecided::Repeated`].
///
/// # Panics
///
/// Panics if a reply does not have one result for each read.
///
/// ```
/// use bowline_check::{Level, ListTxn, Operation, TxnStep, cycles};
///
/// // Neither transaction sees the write of the other, so no order explains both.
/// let history = vec![
///     Operation::ok(1, 9, ListTxn(vec![TxnStep::read("x"), TxnStep::write("y", 1)]), vec![vec![]]),
///     Operation::ok(1, 9, ListTxn(vec![TxnStep::read("y"), TxnStep::write("x", 1)]), vec![vec![]]),
/// ];
/// let verdict = cycles::lists(&history, Level::Serializable);
/// assert_eq!(verdict.violation().unwrap().rule, "anti-dependency cycle (G2)");
/// // Snapshot isolation allows it.
/// assert!(cycles::lists(&history, Level::SnapshotIsolation).is_ok());
/// ```
pub fn lists(history: &History<ListTxn, Vec<Vec<Value>>>, level: Level) -> Verdict {
    check::<Lists<'_, '_>>(history, level).showing(history)
}

/// Checks whether transactions on registers keep the promises of a level, as far as a history of registers can show
/// it: see [the module page](self).
///
/// # Panics
///
/// Panics if a reply does not have one result for each read.
///
/// ```
/// use bowline_check::{Level, Operation, RegisterTxn, TxnStep, cycles};
///
/// let update = |value: i64| RegisterTxn(vec![TxnStep::read("x"), TxnStep::write("x", value)]);
/// let history = vec![
///     Operation::ok(1, 9, update(1), vec![None]),
///     Operation::ok(1, 9, update(2), vec![None]),
/// ];
/// let verdict = cycles::registers(&history, Level::SnapshotIsolation);
/// assert_eq!(verdict.violation().unwrap().rule, "lost update");
/// ```
pub fn registers(history: &History<RegisterTxn, Vec<Option<Value>>>, level: Level) -> Verdict {
    check::<Registers<'_, '_>>(history, level).showing(history)
}

fn check<D: Database>(history: &Txns<D>, level: Level) -> Verdict {
    let mut objects: BTreeMap<&str, Vec<TxnMember>> = BTreeMap::new();
    for (index, operation) in history.iter().enumerate() {
        objects.entry(&operation.object).or_default().push(TxnMember { place: index, index });
    }
    let mut verdict = Verdict::Ok;
    for (object, members) in objects {
        match judge::<D>(history, &members, level) {
            Ok(None) => {}
            Ok(Some(found)) => {
                let reason = found.smaller::<D>(history, &members, level);
                return Counterexample { object: object.to_owned(), ..reason }.into();
            }
            Err(why) => {
                let object = object.to_owned();
                verdict = verdict.and(Verdict::Undecided { object, why, explored: 0 });
            }
        }
    }
    verdict
}

/// Finds a violation among some transactions of a history.
fn judge<D: Database>(
    history: &Txns<D>,
    members: &[TxnMember],
    level: Level,
) -> Result<Option<CycleFound>, Undecided> {
    let book = TxnBook::new(history, members)?;
    let evidence = match D::evidence(&book, level) {
        Ok(evidence) => evidence,
        Err(reason) => return Ok(Some(CycleFound { reason: *reason, is_plain: true })),
    };
    let lost = || evidence.lost_update().filter(|_| level >= Level::SnapshotIsolation);
    let mut arrows = evidence.arrows(level);
    for of in timed(&book, &*evidence, level) {
        arrows.time(&of);
    }
    let graph = arrows.graph();
    let passes = level.passes();
    let view = |pass: &Pass| GraphView { graph: &graph, kinds: pass.kinds, apart: pass.apart };
    let covers_all = passes.last().expect("each level forbids something");
    if view(covers_all).is_acyclic() {
        return Ok(lost().map(|reason| CycleFound { reason, is_plain: true }));
    }
    let mut found: Option<(Pass, Vec<CycleStep>)> = None;
    for pass in passes {
        // A cycle of two transactions that lost an update is reported as a lost update.
        if found.is_none()
            && pass.allows_read_write_edges()
            && let Some(reason) = lost()
        {
            return Ok(Some(CycleFound { reason, is_plain: true }));
        }
        // Reports the worst anomaly, unless a milder one has a shorter cycle.
        let most = found.as_ref().map_or(usize::MAX, |(_, cycle)| cycle.len() - 1);
        if most <= 1 {
            break;
        }
        if let Some(cycle) = view(&pass).cycle(most) {
            found = Some((pass, cycle));
        }
    }
    let (pass, cycle) = found.expect("the last pass covers all, and it has a cycle");
    let cycle = evidence.joined(cycle, pass.apart);
    let rule = rules::of_cycle(&cycle, pass.apart, level == Level::SessionSerializable);
    let reason = reason(&book, &*evidence, &cycle, rule);
    Ok(Some(CycleFound { reason, is_plain: false }))
}

/// Start and end of a transaction.
type Span = (Node, At, Option<At>);

/// Returns the groups of transactions to which real-time order applies.
fn timed<Seen>(book: &TxnBook<'_, Seen>, evidence: &dyn Evidence, level: Level) -> Vec<Vec<Span>> {
    let mut groups: BTreeMap<Option<Process>, Vec<Span>> = BTreeMap::new();
    for node in book.nodes().filter(|node| evidence.is_certain(*node) && level.has_time()) {
        let one = book.one(node);
        let group = (level == Level::SessionSerializable).then_some(one.process);
        groups.entry(group).or_default().push((node, one.invoked, one.completed));
    }
    groups.into_values().collect()
}

/// Turns a cycle into a counterexample: its transactions in order, then the transactions that prove its steps.
fn reason<Seen>(
    book: &TxnBook<'_, Seen>,
    evidence: &dyn Evidence,
    cycle: &[CycleStep],
    rule: &'static str,
) -> Counterexample {
    let mut operations: Vec<Index> = Vec::new();
    let mut add = |node: Node| {
        let index = book.index(node);
        if !operations.contains(&index) {
            operations.push(index);
        }
    };
    cycle.iter().for_each(|step| add(step.from));
    cycle.iter().filter_map(|step| evidence.witness(step)).for_each(&mut add);
    let unknown = cycle.iter().map(|step| step.from).filter(|node| book.one(*node).seen.is_none());
    unknown.filter_map(|node| evidence.seen_by(node)).for_each(&mut add);
    let links: Vec<Link> = cycle
        .iter()
        .map(|step| Link {
            before: book.index(step.from),
            after: book.index(step.to),
            why: evidence.why(step),
        })
        .collect();
    let words =
        links.iter().map(|Link { before, after, why }| format!("#{before} before #{after}: {why}"));
    let why = words.collect::<Vec<_>>().join("; ");
    let why = format!("the transactions form a cycle. {why}");
    Counterexample { links, ..Counterexample::new(rule, "", operations, why) }
}

/// Maximum number of transactions in a reason that is still minimized.
const MINIMISED_MAX: usize = 100;

/// Maximum number of rounds until the reason names exactly the kept transactions. After that, the attempt is abandoned.
const ROUNDS_MAX: usize = 8;

/// A violation before it is minimized.
struct CycleFound {
    reason: Counterexample,
    /// Whether the violation needs no cycle.
    is_plain: bool,
}

impl CycleFound {
    /// Minimizes the violation: checks its transactions again without each of them.
    fn smaller<D: Database>(
        self,
        history: &Txns<D>,
        members: &[TxnMember],
        level: Level,
    ) -> Counterexample {
        let Ok(book) = TxnBook::new(history, members) else {
            return self.reason.with_minimality(false);
        };
        if self.reason.operations.len() > MINIMISED_MAX {
            return self.reason.with_minimality(false);
        }
        // Checks the kept transactions with all other outcomes unknown.
        let again = |kept: &[Index]| {
            let (rest, members) = let_off::<D>(&book, history, kept);
            judge::<D>(&rest, &members, level).ok().flatten()
        };
        // Repeats until the reason names exactly the kept transactions, so that they contradict each other on their
        // own.
        let alone = |kept: &[Index]| {
            let mut found = again(kept)?;
            for _ in 0..ROUNDS_MAX {
                let next = again(&found.reason.operations)?;
                let sorted = |found: &CycleFound| -> BTreeSet<Index> {
                    found.reason.operations.iter().copied().collect()
                };
                if sorted(&next) == sorted(&found) {
                    return Some(next);
                }
                found = next;
            }
            None
        };
        let Some(mut least) = alone(&self.reason.operations) else {
            return self.reason.with_minimality(false);
        };
        // Transactions outside the cycle come last in the list. These are tried first, because they are most
        // likely redundant.
        let mut place = least.reason.operations.len();
        while place > 0 {
            place -= 1;
            let mut fewer = least.reason.operations.clone();
            let one = fewer.remove(place);
            // The failure of a transaction is a fact that does not depend on the others.
            if matches!(history[one].outcome, Outcome::Failed { .. }) {
                continue;
            }
            let smaller = alone(&fewer)
                .filter(|found| found.reason.operations.len() < least.reason.operations.len());
            if let Some(smaller) = smaller {
                place = smaller.reason.operations.len();
                least = smaller;
            }
        }
        let is_certain = D::IS_EXHAUSTIVE && level >= Level::Serializable;
        least.reason.with_minimality(least.is_plain || is_certain)
    }
}

/// Returns a history of `kept` and the transactions whose writes they read. The outcomes of the latter become
/// unknown.
fn let_off<D: Database>(
    book: &TxnBook<'_, D::Seen>,
    history: &Txns<D>,
    kept: &[Index],
) -> (Txns<D>, Vec<TxnMember>) {
    let mut all: BTreeSet<Index> = kept.iter().copied().collect();
    for node in kept.iter().filter_map(|index| book.node(*index)) {
        for read in book.reads(node) {
            for value in D::values(read.seen) {
                match book.write(read.key, value).map(|write| write.by) {
                    Some(TxnBy::Txn(writer)) => all.insert(book.index(writer)),
                    Some(TxnBy::Failed(writer)) => all.insert(writer),
                    None => false,
                };
            }
        }
    }
    let mut rest = Vec::new();
    let mut members = Vec::new();
    for index in all {
        let mut operation = history[index].clone();
        if !kept.contains(&index) && matches!(operation.outcome, Outcome::Ok { .. }) {
            operation.outcome = Outcome::Unknown { at: None };
        }
        members.push(TxnMember { place: rest.len(), index });
        rest.push(operation);
    }
    (rest, members)
}
