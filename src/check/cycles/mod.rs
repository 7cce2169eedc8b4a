//! Transactions: is there an order in which one after the other would have said the same? And if the database
//! promises less, is at least that kept?
//!
//! What transactions read and wrote tells who must come before whom; if that goes round in a circle, there is no
//! order. The circle is the reason, and how it looks says what is broken. That is Elle's way ("Elle:
//! Inferring Isolation Anomalies from Experimental Observations", Kingsbury and Alvaro, 2020), and it judges in
//! seconds what a search for the order could not judge at all:
//!
//! | arrow | why one comes before the other |
//! |---|---|
//! | write, write | the other wrote over what it wrote, or appended after it |
//! | write, read | the other read what it wrote |
//! | read, write | it read what was there before the other wrote |
//! | time | it had ended when the other was called |
//!
//! Which circles are forbidden is the [`Level`]'s. What needs no circle is looked for as well: a read of what nobody
//! wrote, of what failed (G1a), or of what its writer wrote over itself (G1b); a transaction that does not see
//! its own writes; one list in two orders; two updates of one value, of which one is lost.
//!
//! An unknown outcome counts as committed if somebody read it, and else as never done. Every value must be written
//! to its key by one transaction only (of those that did not fail): else nobody knows who was read, and
//! the verdict is undecided.
//!
//! | of | "ok" means |
//! |---|---|
//! | [`lists`], at [`Level::Serializable`] and above | there is such an order |
//! | [`lists`] below, and [`registers`] | nothing was found that contradicts one |
//!
//! A violation is certain with both. Its operations are those of the circle, and then those without whose reads
//! nobody would know of it.

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
use book::{Book, By, Member, Steps};
use graph::{Arrows, Node};
pub use level::Level;
use level::Pass;
use lists::Lists;
use registers::Registers;
use search::{Step, View};

/// What kind of transactions there are.
trait Database {
    type Call: Steps + Clone;
    /// What a read sees.
    type Seen: Clone;

    /// Whether no circle means that there is an order.
    const TELLS_ALL: bool;

    /// What is in a result.
    fn values(seen: &Self::Seen) -> &[Value];

    /// Gathers what reads and writes tell; or says what is broken without any circle.
    fn evidence<'b>(
        book: &'b Book<'_, Self::Seen>,
        level: Level,
    ) -> Result<Box<dyn Evidence + 'b>, Box<Counterexample>>;
}

/// A history of such transactions.
type Txns<D> = History<<D as Database>::Call, Vec<<D as Database>::Seen>>;

/// What reads and writes tell of the order of transactions.
trait Evidence {
    /// Whether a transaction took effect for certain.
    fn is_certain(&self, node: Node) -> bool;

    /// Who read something that the transaction wrote.
    fn seen_by(&self, node: Node) -> Option<Node>;

    /// Two that read the same and wrote over it.
    fn lost_update(&self) -> Option<Counterexample>;

    /// Who must come before whom, but for time.
    fn arrows(&self, level: Level) -> Arrows;

    /// The same circle with fewer steps, if some of them are one; `apart` as in [`View`].
    fn joined(&self, cycle: Vec<Step>, apart: bool) -> Vec<Step>;

    /// Why one step of a circle is one: what "it" did, which comes before "the other".
    fn why(&self, step: &Step) -> String;

    /// A third one, without which it would not be known.
    fn witness(&self, step: &Step) -> Option<Node>;
}

impl Steps for ListTxn {
    fn steps(&self) -> &[models::Step] {
        &self.0
    }
}

impl Steps for RegisterTxn {
    fn steps(&self) -> &[models::Step] {
        &self.0
    }
}

/// Whether transactions on lists keep what a level promises.
///
/// Of each object by itself, where an object is a whole database with its keys. It takes time and memory in proportion
/// to the history, which includes the lists that were read. [`Undecided::Repeated`] is the only way not to answer.
///
/// # Panics
///
/// If a reply has not one result for each read.
///
/// ```
/// use bowline::check::{Level, ListTxn, Operation, Step, cycles};
///
/// // Each reads what the other one writes, and does not see it: no order explains both.
/// let history = vec![
///     Operation::ok(1, 9, ListTxn(vec![Step::read("x"), Step::write("y", 1)]), vec![vec![]]),
///     Operation::ok(1, 9, ListTxn(vec![Step::read("y"), Step::write("x", 1)]), vec![vec![]]),
/// ];
/// let verdict = cycles::lists(&history, Level::Serializable);
/// assert_eq!(verdict.violation().unwrap().rule, "reads that miss each other's writes (G2)");
/// // Snapshot isolation allows it.
/// assert!(cycles::lists(&history, Level::SnapshotIsolation).is_ok());
/// ```
pub fn lists(history: &History<ListTxn, Vec<Vec<Value>>>, level: Level) -> Verdict {
    check::<Lists<'_, '_>>(history, level)
}

/// Whether transactions on registers keep what a level promises, as far as it can be known: see
/// [the page](self).
///
/// # Panics
///
/// If a reply has not one result for each read.
///
/// ```
/// use bowline::check::{Level, Operation, RegisterTxn, Step, cycles};
///
/// let update = |value: i64| RegisterTxn(vec![Step::read("x"), Step::write("x", value)]);
/// let history = vec![
///     Operation::ok(1, 9, update(1), vec![None]),
///     Operation::ok(1, 9, update(2), vec![None]),
/// ];
/// let verdict = cycles::registers(&history, Level::SnapshotIsolation);
/// assert_eq!(verdict.violation().unwrap().rule, "a lost update");
/// ```
pub fn registers(history: &History<RegisterTxn, Vec<Option<Value>>>, level: Level) -> Verdict {
    check::<Registers<'_, '_>>(history, level)
}

fn check<D: Database>(history: &Txns<D>, level: Level) -> Verdict {
    let mut objects: BTreeMap<&str, Vec<Member>> = BTreeMap::new();
    for (index, operation) in history.iter().enumerate() {
        objects.entry(&operation.object).or_default().push(Member { place: index, index });
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

/// What is broken among some transactions of a history.
fn judge<D: Database>(
    history: &Txns<D>,
    members: &[Member],
    level: Level,
) -> Result<Option<Found>, Undecided> {
    let book = Book::new(history, members)?;
    let evidence = match D::evidence(&book, level) {
        Ok(evidence) => evidence,
        Err(reason) => return Ok(Some(Found { reason: *reason, is_plain: true })),
    };
    let lost = || evidence.lost_update().filter(|_| level >= Level::SnapshotIsolation);
    let mut arrows = evidence.arrows(level);
    for of in timed(&book, &*evidence, level) {
        arrows.time(&of);
    }
    let graph = arrows.graph();
    let passes = level.passes();
    let view = |pass: &Pass| View { graph: &graph, kinds: pass.kinds, apart: pass.apart };
    let covers_all = passes.last().expect("each level forbids something");
    if view(covers_all).is_acyclic() {
        return Ok(lost().map(|reason| Found { reason, is_plain: true }));
    }
    let mut found: Option<(Pass, Vec<Step>)> = None;
    for pass in passes {
        // A circle of two that lost an update is better called so.
        if found.is_none()
            && pass.goes_by_misses()
            && let Some(reason) = lost()
        {
            return Ok(Some(Found { reason, is_plain: true }));
        }
        // The worst is said, unless a milder one is shorter.
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
    Ok(Some(Found { reason, is_plain: false }))
}

/// A transaction's call and end.
type Span = (Node, At, Option<At>);

/// Among whom time counts: the members of each group.
fn timed<Seen>(book: &Book<'_, Seen>, evidence: &dyn Evidence, level: Level) -> Vec<Vec<Span>> {
    let mut groups: BTreeMap<Option<Process>, Vec<Span>> = BTreeMap::new();
    for node in book.nodes().filter(|node| evidence.is_certain(*node) && level.has_time()) {
        let one = book.one(node);
        let group = (level == Level::SessionSerializable).then_some(one.process);
        groups.entry(group).or_default().push((node, one.invoked, one.completed));
    }
    groups.into_values().collect()
}

/// A circle, as a reason: its transactions in order, then those without whom it would not be known.
fn reason<Seen>(
    book: &Book<'_, Seen>,
    evidence: &dyn Evidence,
    cycle: &[Step],
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
    let why = format!("they come before each other in a circle. {why}");
    Counterexample { links, ..Counterexample::new(rule, "", operations, why) }
}

/// Of more transactions than these no smaller reason is looked for.
const SMALLER_MAX: usize = 100;

/// How often a reason may name others than those of whom it was made.
const ROUNDS_MAX: usize = 8;

/// What was found, before it is made smaller.
struct Found {
    reason: Counterexample,
    /// Whether it needs no circle.
    is_plain: bool,
}

impl Found {
    /// A violation of as few of its transactions as possible: they are judged again without each of them.
    fn smaller<D: Database>(
        self,
        history: &Txns<D>,
        members: &[Member],
        level: Level,
    ) -> Counterexample {
        let Ok(book) = Book::new(history, members) else { return self.reason.perhaps(false) };
        if self.reason.operations.len() > SMALLER_MAX {
            return self.reason.perhaps(false);
        }
        // Judged with nothing known of the others.
        let again = |kept: &[Index]| {
            let (rest, members) = let_off::<D>(&book, history, kept);
            judge::<D>(&rest, &members, level).ok().flatten()
        };
        // The same until it names just those who are known, so that they are a reason alone.
        let alone = |kept: &[Index]| {
            let mut found = again(kept)?;
            for _ in 0..ROUNDS_MAX {
                let next = again(&found.reason.operations)?;
                let sorted = |found: &Found| -> BTreeSet<Index> {
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
            return self.reason.perhaps(false);
        };
        // Those that are in no circle are behind the others: they can be spared first.
        let mut place = least.reason.operations.len();
        while place > 0 {
            place -= 1;
            let mut fewer = least.reason.operations.clone();
            let one = fewer.remove(place);
            // That it failed is a fact, whoever is let off.
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
        let is_certain = D::TELLS_ALL && level >= Level::Serializable;
        least.reason.perhaps(least.is_plain || is_certain)
    }
}

/// A history of `kept` and of those whose writes they read, but of these nobody knows what came of them.
fn let_off<D: Database>(
    book: &Book<'_, D::Seen>,
    history: &Txns<D>,
    kept: &[Index],
) -> (Txns<D>, Vec<Member>) {
    let mut all: BTreeSet<Index> = kept.iter().copied().collect();
    for node in kept.iter().filter_map(|index| book.node(*index)) {
        for read in book.reads(node) {
            for value in D::values(read.seen) {
                match book.write(read.key, value).map(|write| write.by) {
                    Some(By::Txn(writer)) => all.insert(book.index(writer)),
                    Some(By::Failed(writer)) => all.insert(writer),
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
        members.push(Member { place: rest.len(), index });
        rest.push(operation);
    }
    (rest, members)
}
