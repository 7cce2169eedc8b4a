//! Order of list-append transactions. A list shows all earlier appends to its key, in order.
//!
//! The longest list that any transaction read of a key is therefore the order of the writes to it, and every other
//! list of the key must be a prefix of it. Values that are missing from a list were appended later. The order of
//! all relevant writes is then known, and "no cycle" means "some order explains the history".
//!
//! At levels where uncommitted values may be read, a list may contain values that are rolled back later. At these
//! levels only acknowledged values are compared and ordered.

use std::collections::BTreeMap;

use super::book::{Places, Read, TxnBook, TxnBy};
use super::graph::{Arrows, EdgeKind, Key, Node};
use super::level::Level;
use super::search::CycleStep;
use super::{Database, Evidence, rules};
use crate::models::ListTxn;
use crate::value::Value;
use crate::verdict::Counterexample;

type Seen = Vec<Value>;

/// Maximum number of values of a list that a report shows, counted from its end.
const VALUES_SHOWN: usize = 3;

/// The order of the appends to one key.
#[derive(Debug, Default)]
struct ListOrder<'a> {
    /// The longest list that was read.
    values: &'a [Value],
    /// The transaction that appended each value, or `None` if that transaction failed.
    by: Vec<Option<Node>>,
    /// The transaction that read the list.
    read_by: Option<Node>,
    /// Transactions that took effect and appended a value that no transaction read.
    unseen: Vec<Node>,
}

/// A read of values that other transactions had appended.
#[derive(Clone, Copy, Debug)]
struct ListLook {
    by: Node,
    key: Key,
    /// Length of the list without the values of the reader itself.
    length: usize,
}

#[derive(Debug)]
pub(super) struct Lists<'b, 'a> {
    book: &'b TxnBook<'a, Seen>,
    orders: Vec<ListOrder<'a>>,
    /// Position of each value that was read in the order of its key.
    places: Places<'a>,
    looks: Vec<ListLook>,
    /// For each transaction, one transaction that read a value of it.
    seen_by: Vec<Option<Node>>,
}

impl<'b, 'a> Lists<'b, 'a> {
    /// Returns the orders of all keys.
    fn orders(
        book: &'b TxnBook<'a, Seen>,
        level: Level,
    ) -> Result<Vec<ListOrder<'a>>, Box<Counterexample>> {
        // Values that were read uncommitted may be rolled back, so they are not ordered.
        let is_dirty = level < Level::ReadCommitted;
        let mut orders: Vec<ListOrder<'a>> =
            book.keys.iter().map(|_| ListOrder::default()).collect();
        let mut longest = vec![(0, 0); orders.len()];
        for by in book.nodes() {
            for read in book.reads(by) {
                let sure = if is_dirty { committed(book, read.key, read.seen).count() } else { 0 };
                let (length, key) = ((sure, read.seen.len()), read.key as usize);
                if length > longest[key] {
                    longest[key] = length;
                    (orders[key].values, orders[key].read_by) = (read.seen, Some(by));
                }
            }
        }
        for (key, order) in orders.iter_mut().enumerate() {
            let key = key as Key;
            let Some(reader) = order.read_by else { continue };
            if let Some(twice) = repeated(order.values) {
                return Err(rules::twice(book, reader, key, twice).into());
            }
            for value in order.values {
                order.by.push(match book.write(key, value) {
                    None => return Err(rules::never_written(book, reader, key, value).into()),
                    Some(write) => match write.by {
                        TxnBy::Txn(node) if is_dirty && book.one(node).seen.is_none() => None,
                        TxnBy::Txn(node) => Some(node),
                        TxnBy::Failed(_) => None,
                    },
                });
            }
        }
        for by in book.nodes() {
            for read in book.reads(by) {
                let ListOrder { values, read_by: Some(longest), .. } = &orders[read.key as usize]
                else {
                    continue;
                };
                if values.starts_with(read.seen) {
                    continue;
                }
                if let Some(twice) = repeated(read.seen) {
                    return Err(rules::twice(book, by, read.key, twice).into());
                }
                let both = [(by, read.seen.as_slice()), (*longest, *values)];
                if is_dirty {
                    let [one, other] = both.map(|(_, list)| committed(book, read.key, list));
                    if one.zip(other).all(|(one, other)| one == other) {
                        continue;
                    }
                } else if let Some((by, value)) =
                    both.iter().find_map(|(by, list)| Some((*by, failed(book, read.key, list)?)))
                {
                    return Err(rules::aborted(book, by, read.key, value).into());
                }
                let name = book.name(read.key);
                let why = format!(
                    "#{} read {name} as {}, and #{} as {}: neither is a prefix of the other",
                    book.index(by),
                    format_value(read.seen, read.seen.len()),
                    book.index(*longest),
                    format_value(values, values.len()),
                );
                let operations = [book.index(by), book.index(*longest)];
                return Err(Counterexample::new(rules::TWO_ORDERS, "", operations, why).into());
            }
        }
        Ok(orders)
    }

    /// Checks the reads of a transaction against its own earlier reads and appends.
    fn internal(&self, by: Node) -> Option<Counterexample> {
        let book = self.book;
        let mut first: BTreeMap<Key, &[Value]> = BTreeMap::new();
        for read in book.reads(by) {
            let others = others(&read);
            let expected = first.get(&read.key).copied();
            let says_so = others.is_some_and(|others| {
                expected.is_none_or(|expected| expected == others)
                    && !self.own(by, read.key).any(|own| self.is_within(own, others.len()))
            });
            if says_so {
                first.entry(read.key).or_insert(others.unwrap_or_default());
                continue;
            }
            let name = book.name(read.key);
            let own: Vec<Value> = read.own.iter().map(|value| (*value).clone()).collect();
            let before = expected.map_or_else(String::new, |before| {
                format!(
                    " although it had read {} from other transactions before",
                    format_value(before, before.len())
                )
            });
            let why = format!(
                "#{} read {name} as {}{before} and had appended {} itself",
                book.index(by),
                format_value(read.seen, read.seen.len()),
                format_value(&own, own.len()),
            );
            return Some(Counterexample::new(rules::INTERNAL, "", [book.index(by)], why));
        }
        None
    }

    /// Returns the values that a transaction wrote to a key, in order.
    fn own(&self, by: Node, key: Key) -> impl Iterator<Item = (Key, &'a Value)> {
        let steps = self.book.one(by).steps.iter();
        steps
            .filter_map(move |(other, own)| Some((*other, (*own)?)))
            .filter(move |own| own.0 == key)
    }

    /// Returns whether a value is among the first `length` values of its key.
    fn is_within(&self, own: (Key, &Value), length: usize) -> bool {
        self.places.get(&own).is_some_and(|place| *place < length)
    }

    /// Finds a read of a failed transaction, or of an intermediate value.
    fn uncommitted(&self) -> Option<Counterexample> {
        let book = self.book;
        for (key, order) in self.orders.iter().enumerate() {
            let (Some(reader), Some(place)) =
                (order.read_by, order.by.iter().position(Option::is_none))
            else {
                continue;
            };
            return Some(rules::aborted(book, reader, key as Key, &order.values[place]));
        }
        self.looks.iter().find_map(|look| {
            let order = &self.orders[look.key as usize];
            let last = &order.values[look.length.checked_sub(1)?];
            let write = book.write(look.key, last)?;
            match write.by {
                TxnBy::Txn(node) if !write.is_last && node != look.by => {
                    Some(rules::intermediate(book, node, look.by, look.key, last))
                }
                _ => None,
            }
        })
    }
}

/// Returns the values that other transactions had appended, or `None` if the list does not end with the reader's own.
fn others<'a>(read: &Read<'a, Seen>) -> Option<&'a [Value]> {
    let length = read.seen.len().checked_sub(read.own.len())?;
    let (others, own) = read.seen.split_at(length);
    own.iter().eq(read.own.iter().copied()).then_some(others)
}

fn is_own(book: &TxnBook<'_, Seen>, by: Node, key: Key, value: &Value) -> bool {
    book.write(key, value).is_some_and(|write| write.by == TxnBy::Txn(by))
}

/// Returns the values of a list, without those that were appended by a failed transaction or by a transaction of
/// unknown outcome.
fn committed<'a>(
    book: &TxnBook<'a, Seen>,
    key: Key,
    list: &'a [Value],
) -> impl Iterator<Item = &'a Value> {
    list.iter().filter(move |value| match book.write(key, value).map(|write| write.by) {
        Some(TxnBy::Txn(node)) => book.one(node).seen.is_some(),
        Some(TxnBy::Failed(_)) => false,
        None => true,
    })
}

/// Returns a value of the list that a failed transaction appended.
fn failed<'a>(book: &TxnBook<'a, Seen>, key: Key, list: &'a [Value]) -> Option<&'a Value> {
    let by = |value: &Value| book.write(key, value).map(|write| write.by);
    list.iter().find(|value| matches!(by(value), Some(TxnBy::Failed(_))))
}

/// Returns a value that occurs in the list twice.
fn repeated(list: &[Value]) -> Option<&Value> {
    let mut sorted: Vec<&Value> = list.iter().collect();
    sorted.sort_unstable();
    sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

/// Formats the first `length` values of a list, of which only the last [`VALUES_SHOWN`] are written out.
fn format_value(list: &[Value], length: usize) -> String {
    let left_out = length.saturating_sub(VALUES_SHOWN);
    let values: Vec<String> = list[left_out..length].iter().map(Value::to_string).collect();
    match left_out {
        0 => format!("[{}]", values.join(", ")),
        _ => format!("[.. {left_out} more, {}]", values.join(", ")),
    }
}

impl<'b, 'a> Lists<'b, 'a> {
    fn new(book: &'b TxnBook<'a, Seen>, level: Level) -> Result<Self, Box<Counterexample>> {
        let orders = Self::orders(book, level)?;
        let mut places = Places::default();
        for (key, order) in orders.iter().enumerate() {
            let values = order.values.iter().enumerate();
            places.extend(values.map(|(place, value)| ((key as Key, value), place)));
        }
        let seen_by = vec![None; book.txns.len()];
        let mut lists = Self { book, orders, places, looks: Vec::new(), seen_by };
        // At a level that allows uncommitted reads, the order of the readers is unknown.
        for by in book.nodes().filter(|_| level >= Level::ReadCommitted) {
            for read in book.reads(by) {
                let others = others(&read);
                let others = others.filter(|list| {
                    !list.last().is_some_and(|last| is_own(book, by, read.key, last))
                });
                if let Some(others) = others {
                    lists.looks.push(ListLook { by, key: read.key, length: others.len() });
                }
            }
        }
        for order in &lists.orders {
            for node in order.by.iter().flatten() {
                lists.seen_by[*node as usize] = order.read_by;
            }
        }
        for by in book.nodes() {
            if book.one(by).seen.is_none() && lists.seen_by[by as usize].is_none() {
                continue;
            }
            for (key, value) in &book.one(by).steps {
                let order = &mut lists.orders[*key as usize];
                let is_unseen =
                    value.is_some_and(|value| !lists.places.contains_key(&(*key, value)));
                if is_unseen && order.unseen.last() != Some(&by) {
                    order.unseen.push(by);
                }
            }
        }
        if level >= Level::ReadCommitted
            && let Some(why) = lists.uncommitted()
        {
            return Err(why.into());
        }
        if level >= Level::SnapshotIsolation
            && let Some(why) = book.nodes().find_map(|by| lists.internal(by))
        {
            return Err(why.into());
        }
        Ok(lists)
    }
}

impl Database for Lists<'_, '_> {
    type Call = ListTxn;
    type Seen = Seen;

    const IS_EXHAUSTIVE: bool = true;

    fn values(seen: &Seen) -> &[Value] {
        seen.as_slice()
    }

    fn evidence<'b>(
        book: &'b TxnBook<'_, Seen>,
        level: Level,
    ) -> Result<Box<dyn Evidence + 'b>, Box<Counterexample>> {
        Ok(Box::new(Lists::new(book, level)?))
    }
}

impl Evidence for Lists<'_, '_> {
    fn lost_update(&self) -> Option<Counterexample> {
        let mut updates: BTreeMap<(Key, usize), Node> = BTreeMap::new();
        for look in &self.looks {
            if !self.book.written(look.by).contains(&look.key) {
                continue;
            }
            let first = *updates.entry((look.key, look.length)).or_insert(look.by);
            if first != look.by {
                let order = &self.orders[look.key as usize];
                let held = format_value(order.values, look.length);
                return Some(rules::lost_update(self.book, first, look.by, look.key, &held));
            }
        }
        None
    }

    fn is_certain(&self, node: Node) -> bool {
        self.book.one(node).seen.is_some() || self.seen_by[node as usize].is_some()
    }

    fn seen_by(&self, node: Node) -> Option<Node> {
        self.seen_by[node as usize]
    }

    fn witness(&self, step: &CycleStep) -> Option<Node> {
        match step.kind {
            EdgeKind::Ww => self.orders[step.key as usize].read_by,
            _ => None,
        }
    }

    fn joined(&self, mut cycle: Vec<CycleStep>, apart: bool) -> Vec<CycleStep> {
        // A transaction that appended a value comes before all later appends, and before their readers. A transaction
        // that did not read a value comes before all later appends too. If `apart` is set, a read-write step is not
        // merged with a write-write step: if the merged step were next to another read-write step, the level would
        // allow the cycle.
        let mut place = 0;
        while cycle.len() > 2 && place < cycle.len() {
            let after = (place + 1) % cycle.len();
            let (one, next) = (cycle[place], cycle[after]);
            let kind = match (one.kind, next.kind) {
                (EdgeKind::Ww, EdgeKind::Ww) => Some(EdgeKind::Ww),
                (EdgeKind::Ww, EdgeKind::Wr) => Some(EdgeKind::Wr),
                (EdgeKind::Rw, EdgeKind::Ww) if !apart => Some(EdgeKind::Rw),
                _ => None,
            };
            match kind {
                Some(kind) if one.key == next.key && one.from != next.to => {
                    cycle[place] = CycleStep { kind, to: next.to, ..one };
                    cycle.remove(after);
                    place = 0;
                }
                _ => place += 1,
            }
        }
        cycle
    }

    fn arrows(&self, _level: Level) -> Arrows {
        let mut arrows = Arrows::new(self.book.txns.len());
        let mut at_end: Vec<Vec<(Node, EdgeKind)>> =
            self.orders.iter().map(|_| Vec::new()).collect();
        for (key, order) in self.orders.iter().enumerate() {
            let certain: Vec<Node> = order.by.iter().flatten().copied().collect();
            for pair in certain.windows(2) {
                arrows.add(pair[0], pair[1], EdgeKind::Ww, key as Key);
            }
            at_end[key].extend(certain.last().map(|last| (*last, EdgeKind::Ww)));
        }
        for look in &self.looks {
            let by = &self.orders[look.key as usize].by;
            let before = look.length.checked_sub(1).and_then(|last| by[last]);
            if let Some(writer) = before {
                arrows.add(writer, look.by, EdgeKind::Wr, look.key);
            }
            match by[look.length..].iter().flatten().next() {
                Some(writer) => arrows.add(look.by, *writer, EdgeKind::Rw, look.key),
                None => at_end[look.key as usize].push((look.by, EdgeKind::Rw)),
            }
        }
        for (key, order) in self.orders.iter().enumerate() {
            arrows.fan(&at_end[key], &order.unseen, key as Key);
        }
        arrows
    }

    fn why(&self, step: &CycleStep) -> String {
        let CycleStep { from, to, kind, key } = *step;
        let order = &self.orders[key as usize];
        let name = self.book.name(key);
        let is_unseen = |own: &(Key, &Value)| !self.places.contains_key(own);
        let unseen = || self.own(to, key).find(is_unseen).map(|(_, value)| value);
        let word = |value: Option<&Value>| value.map_or_else(String::new, Value::to_string);
        match kind {
            EdgeKind::Wr => {
                let mut reads = self.looks.iter().filter(|look| look.by == to && look.key == key);
                let own =
                    |length: usize| order.by[..length].iter().rposition(|by| *by == Some(from));
                let read = reads.find_map(|look| Some((look.length, own(look.length)?)));
                let value = word(read.map(|(_, place)| &order.values[place]));
                let held = format_value(order.values, read.map_or(0, |(length, _)| length));
                format!("it appended {value}, which the other read in {name} = {held}")
            }
            EdgeKind::Rw | EdgeKind::RwByTime => {
                // The shortest list that lacks the value also lacks everything that was appended after it.
                let reads = self.looks.iter().filter(|look| look.by == from && look.key == key);
                let length = reads.map(|look| look.length).min().unwrap_or(0);
                let lacks = (length..order.by.len()).find(|place| order.by[*place] == Some(to));
                let lacks = word(lacks.map(|place| &order.values[place]).or_else(unseen));
                let held = format_value(order.values, length);
                format!("it read {name} as {held}, which lacks {lacks}, appended by the other")
            }
            EdgeKind::Ww => {
                let reader = order.read_by.map_or(0, |reader| self.book.index(reader));
                let place = |of: Node| order.by.iter().position(|by| *by == Some(of));
                let one = place(from);
                let last = order.by.iter().rposition(|by| *by == Some(to));
                match one.zip(last).filter(|(one, last)| one < last) {
                    Some((one, other)) => {
                        let (one, other) = (&order.values[one], &order.values[other]);
                        format!(
                            "#{reader} read {name} with its value {one} before the value {other} of the other"
                        )
                    }
                    None => {
                        let (own, unseen) =
                            (word(one.map(|one| &order.values[one])), word(unseen()));
                        format!(
                            "#{reader} read {name} with its value {own} and without the value {unseen} of the other"
                        )
                    }
                }
            }
            EdgeKind::Time | EdgeKind::On => rules::time(self.book, from, to),
        }
    }
}
