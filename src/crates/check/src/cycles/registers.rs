//! Order of register transactions. Registers show less than lists: a value identifies its writer, but the order of
//! two values of a register is known only in these cases:
//!
//! - the initial "none" comes before every value;
//! - one transaction read the first value and wrote the second;
//! - the level promises something about time, and the writer of the first value had ended before the writer of the
//!   second was called.
//!
//! "No cycle" therefore does not prove that an order exists. To prove an order, use transactions that append to
//! lists.

use std::collections::BTreeMap;

use super::book::{TxnBook, TxnBy};
use super::graph::{Arrows, EdgeKind, Key, Node};
use super::level::Level;
use super::search::CycleStep;
use super::{Database, Evidence, rules};
use crate::history::At;
use crate::models::RegisterTxn;
use crate::value::Value;
use crate::verdict::Counterexample;

type Seen = Option<Value>;

/// A value that a key held at some time.
#[derive(Debug, Default)]
struct Version {
    /// The writer, or `None` for the initial value and for the value of a failed transaction.
    by: Option<Node>,
    /// The readers, without the writer itself.
    readers: Vec<Node>,
    /// The readers that also wrote to the key.
    over: Vec<Node>,
}

#[derive(Debug)]
pub(super) struct Registers<'b, 'a> {
    book: &'b TxnBook<'a, Seen>,
    /// Versions by key and value.
    versions: BTreeMap<(Key, Option<&'a Value>), Version>,
    /// For each transaction, one transaction that read a value of it.
    seen_by: Vec<Option<Node>>,
    /// For each key, the transactions that took effect and wrote to it, in order of their calls.
    writers: Vec<Vec<Node>>,
    level: Level,
}

impl<'b, 'a> Registers<'b, 'a> {
    fn gather(book: &'b TxnBook<'a, Seen>, level: Level) -> Result<Self, Box<Counterexample>> {
        let mut registers = Self {
            book,
            versions: BTreeMap::new(),
            seen_by: vec![None; book.txns.len()],
            writers: book.keys.iter().map(|_| Vec::new()).collect(),
            level,
        };
        for by in book.nodes() {
            let written = book.written(by);
            for read in book.reads(by) {
                let value = read.seen.as_ref();
                let write = value.map(|value| book.write(read.key, value));
                if let (Some(value), Some(None)) = (value, write) {
                    return Err(rules::never_written(book, by, read.key, value).into());
                }
                let writer = match write.flatten().map(|write| write.by) {
                    Some(TxnBy::Txn(node)) => Some(node),
                    _ => None,
                };
                if writer == Some(by) || !read.own.is_empty() {
                    continue;
                }
                let version = registers.versions.entry((read.key, value)).or_default();
                version.by = writer;
                if version.readers.last() != Some(&by) {
                    version.readers.push(by);
                    if written.contains(&read.key) {
                        version.over.push(by);
                    }
                }
                if let Some(writer) = writer {
                    registers.seen_by[writer as usize].get_or_insert(by);
                }
            }
        }
        for by in book.nodes() {
            if registers.is_certain(by) {
                for key in book.written(by) {
                    registers.writers[key as usize].push(by);
                }
            }
        }
        for writers in &mut registers.writers {
            writers.sort_by_key(|by| (book.one(*by).invoked, *by));
        }
        Ok(registers)
    }

    fn uncommitted(&self, by: Node) -> Option<Counterexample> {
        let book = self.book;
        book.reads(by).iter().find_map(|read| {
            let value = read.seen.as_ref()?;
            let write = book.write(read.key, value)?;
            match write.by {
                TxnBy::Failed(_) => Some(rules::aborted(book, by, read.key, value)),
                TxnBy::Txn(node) if !write.is_last && node != by => {
                    Some(rules::intermediate(book, node, by, read.key, value))
                }
                TxnBy::Txn(_) => None,
            }
        })
    }

    fn internal(&self, by: Node) -> Option<Counterexample> {
        let book = self.book;
        let mut held: BTreeMap<Key, Option<&Value>> = BTreeMap::new();
        for read in book.reads(by) {
            let value = read.seen.as_ref();
            let own = value.and_then(|value| book.write(read.key, value));
            let is_own = own.is_some_and(|write| write.by == TxnBy::Txn(by));
            let expected = match read.own.last() {
                Some(own) => Some(Some(*own)),
                None => held.get(&read.key).copied(),
            };
            let says_so = expected.map_or(!is_own, |expected| expected == value);
            if says_so {
                held.entry(read.key).or_insert(value);
                continue;
            }
            let (index, name) = (book.index(by), book.name(read.key));
            let expected = match expected {
                Some(expected) => format!("but had to see {}", format_value(expected)),
                None => "before it wrote that value itself".to_owned(),
            };
            let why = format!("#{index} read {name} as {}, {expected}", format_value(value));
            return Some(Counterexample::new(rules::INTERNAL, "", [index], why));
        }
        None
    }

    /// Returns the earliest writers of the key that were called after `by` had ended. Omits writers that were called
    /// after another of them had ended, because these come later anyway.
    fn next(&self, by: Node, key: Key) -> Vec<Node> {
        let one = self.book.one(by);
        let Some(ended) = one.completed else { return Vec::new() };
        let writers = &self.writers[key as usize];
        let from = writers.partition_point(|other| self.book.one(*other).invoked <= ended);
        let mut until = At(u64::MAX);
        let mut next = Vec::new();
        for other in &writers[from..] {
            let other_one = self.book.one(*other);
            if other_one.invoked > until {
                break;
            }
            if self.level == Level::StrictSerializable || other_one.process == one.process {
                next.push(*other);
                until = until.min(other_one.completed.unwrap_or(At(u64::MAX)));
            }
        }
        next.sort_unstable();
        next
    }

    /// Returns a value that `from` read and its writer, if that writer had ended before `to` was called.
    fn before(&self, step: &CycleStep) -> Option<(Option<Node>, Option<&'a Value>)> {
        let called = self.book.one(step.to).invoked;
        let had_ended = |by: Node| self.book.one(by).completed.is_some_and(|ended| ended < called);
        let mut versions = self.of_key(step.key);
        let found = versions.find(|(_, version)| {
            version.readers.contains(&step.from) && version.by.is_some_and(had_ended)
        });
        found.map(|(value, version)| (version.by, value))
    }

    fn of_key(&self, key: Key) -> impl Iterator<Item = (Option<&'a Value>, &Version)> {
        let versions =
            self.versions.range((key, None)..).take_while(move |((of, _), _)| *of == key);
        versions.map(|((_, value), version)| (*value, version))
    }
}

fn format_value(value: Option<&Value>) -> String {
    value.map_or_else(|| "none".to_owned(), Value::to_string)
}

fn missed(readers: &[Node], kind: EdgeKind) -> Vec<(Node, EdgeKind)> {
    readers.iter().map(|reader| (*reader, kind)).collect()
}

impl<'b, 'a> Registers<'b, 'a> {
    fn new(book: &'b TxnBook<'a, Seen>, level: Level) -> Result<Self, Box<Counterexample>> {
        let registers = Self::gather(book, level)?;
        if level >= Level::ReadCommitted
            && let Some(why) = book.nodes().find_map(|by| registers.uncommitted(by))
        {
            return Err(why.into());
        }
        if level >= Level::SnapshotIsolation
            && let Some(why) = book.nodes().find_map(|by| registers.internal(by))
        {
            return Err(why.into());
        }
        Ok(registers)
    }
}

impl Database for Registers<'_, '_> {
    type Call = RegisterTxn;
    type Seen = Seen;

    const IS_EXHAUSTIVE: bool = false;

    fn values(seen: &Seen) -> &[Value] {
        seen.as_slice()
    }

    fn evidence<'b>(
        book: &'b TxnBook<'_, Seen>,
        level: Level,
    ) -> Result<Box<dyn Evidence + 'b>, Box<Counterexample>> {
        Ok(Box::new(Registers::new(book, level)?))
    }
}

impl Evidence for Registers<'_, '_> {
    fn lost_update(&self) -> Option<Counterexample> {
        self.versions.iter().find_map(|((key, value), version)| match version.over[..] {
            [one, other, ..] => {
                Some(rules::lost_update(self.book, one, other, *key, &format_value(*value)))
            }
            _ => None,
        })
    }

    fn is_certain(&self, node: Node) -> bool {
        self.book.one(node).seen.is_some() || self.seen_by[node as usize].is_some()
    }

    fn seen_by(&self, node: Node) -> Option<Node> {
        self.seen_by[node as usize]
    }

    fn witness(&self, step: &CycleStep) -> Option<Node> {
        match step.kind {
            EdgeKind::RwByTime => self.before(step).and_then(|(by, _)| by),
            _ => None,
        }
    }

    fn joined(&self, cycle: Vec<CycleStep>, _apart: bool) -> Vec<CycleStep> {
        cycle
    }

    fn arrows(&self, level: Level) -> Arrows {
        let mut arrows = Arrows::new(self.book.txns.len());
        for ((key, value), version) in &self.versions {
            let readers = missed(&version.readers, EdgeKind::Rw);
            if value.is_none() {
                let mut writers = self.writers[*key as usize].clone();
                writers.sort_unstable();
                arrows.fan(&readers, &writers, *key);
                continue;
            }
            let Some(by) = version.by else { continue };
            for reader in &version.readers {
                arrows.add(by, *reader, EdgeKind::Wr, *key);
            }
            // A transaction that reads uncommitted values may read a value that is later than its own write.
            if level >= Level::ReadCommitted {
                for over in &version.over {
                    arrows.add(by, *over, EdgeKind::Ww, *key);
                }
                arrows.fan(&readers, &version.over, *key);
            }
            if level.has_time() {
                let readers = missed(&version.readers, EdgeKind::RwByTime);
                arrows.fan(&readers, &self.next(by, *key), *key);
            }
        }
        arrows
    }

    fn why(&self, step: &CycleStep) -> String {
        let CycleStep { from, to, kind, key } = *step;
        let name = self.book.name(key);
        let find = |wanted: &dyn Fn(&Version) -> bool| {
            self.of_key(key).find(|(_, version)| wanted(version)).map(|(value, _)| value)
        };
        let has = |readers: &[Node], one: Node| readers.contains(&one);
        match kind {
            EdgeKind::Wr => {
                let value = find(&|version| version.by == Some(from) && has(&version.readers, to));
                format!(
                    "it wrote {} to {name}, which the other read",
                    format_value(value.flatten())
                )
            }
            EdgeKind::Ww => {
                let value = find(&|version| version.by == Some(from) && has(&version.over, to));
                let value = format_value(value.flatten());
                format!("it wrote {value} to {name}, which the other read and overwrote")
            }
            EdgeKind::Rw => {
                let over =
                    |version: &Version| has(&version.readers, from) && has(&version.over, to);
                match find(&over) {
                    Some(Some(value)) => {
                        format!(
                            "it read {name} as {value}, which the other also read and overwrote"
                        )
                    }
                    _ => format!("it read {name} as none, before the other wrote to it"),
                }
            }
            EdgeKind::RwByTime => {
                let (writer, value) = self.before(step).unwrap_or_default();
                let writer = writer.map_or(0, |writer| self.book.index(writer));
                format!(
                    "it read {name} as {} from #{writer}; the other wrote to {name} and was called after #{writer} had ended",
                    format_value(value)
                )
            }
            EdgeKind::Time | EdgeKind::On => rules::time(self.book, from, to),
        }
    }
}
