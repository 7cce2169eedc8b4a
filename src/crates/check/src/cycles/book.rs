//! An index over the transactions of one object that may have taken effect: which transaction wrote which value to
//! which key.

use std::collections::hash_map::{DefaultHasher, HashMap};
use std::hash::BuildHasherDefault;

use super::graph::{Key, Node};
use crate::history::{At, History, Index, Outcome, Process};
use crate::models::TxnStep;
use crate::value::Value;
use crate::verdict::Undecided;

/// A hasher without a random seed, so that every run iterates in the same order.
type Fixed = BuildHasherDefault<DefaultHasher>;

/// The position of each value in the order of its key.
pub(super) type Places<'a> = HashMap<(Key, &'a Value), usize, Fixed>;

/// A call that consists of steps.
pub(super) trait TxnSteps {
    fn steps(&self) -> &[TxnStep];
}

/// A transaction of the history under check.
#[derive(Clone, Copy, Debug)]
pub(super) struct TxnMember {
    /// Index in the history that is being checked, which may be a part of the whole history.
    pub(super) place: usize,
    /// Index in the whole history, which identifies the transaction in reports.
    pub(super) index: Index,
}

/// A transaction that did not fail.
#[derive(Debug)]
pub(super) struct One<'a, Seen> {
    pub(super) index: Index,
    pub(super) process: Process,
    pub(super) invoked: At,
    /// Time by which the transaction had certainly taken effect.
    pub(super) completed: Option<At>,
    /// For each step, its key and the value that it wrote, or `None` for a read.
    pub(super) steps: Vec<(Key, Option<&'a Value>)>,
    /// Results of the reads, if known.
    pub(super) seen: Option<&'a [Seen]>,
}

/// The writer of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TxnBy {
    /// A transaction that may have taken effect.
    Txn(Node),
    /// A transaction that certainly did not take effect.
    Failed(Index),
}

/// A write of a value to a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct TxnWrite {
    pub(super) by: TxnBy,
    /// Whether this is the last write of the transaction to the key.
    pub(super) is_last: bool,
}

/// A read whose result is known.
#[derive(Debug)]
pub(super) struct Read<'a, Seen> {
    pub(super) key: Key,
    pub(super) seen: &'a Seen,
    /// Values that the transaction itself had written to the key before this read, in order.
    pub(super) own: Vec<&'a Value>,
}

#[derive(Debug)]
pub(super) struct TxnBook<'a, Seen> {
    pub(super) txns: Vec<One<'a, Seen>>,
    pub(super) keys: Vec<&'a str>,
    writes: HashMap<(Key, &'a Value), TxnWrite, Fixed>,
}

impl<'a, Seen> TxnBook<'a, Seen> {
    /// Builds the index of `members`.
    ///
    /// # Errors
    ///
    /// Returns [`Undecided::Repeated`] if two transactions that may have taken effect wrote the same value to the
    /// same key.
    pub(super) fn new<C: TxnSteps>(
        history: &'a History<C, Vec<Seen>>,
        members: &[TxnMember],
    ) -> Result<Self, Undecided> {
        let mut keys: Vec<&str> = Vec::new();
        let mut numbers: HashMap<&str, Key, Fixed> = HashMap::default();
        let mut book = Self { txns: Vec::new(), keys: Vec::new(), writes: HashMap::default() };
        for TxnMember { place, index } in members.iter().copied() {
            let operation = &history[place];
            let mut steps = Vec::new();
            for step in operation.call.steps() {
                let key = *numbers.entry(step.key()).or_insert_with(|| {
                    keys.push(step.key());
                    (keys.len() - 1) as Key
                });
                let written = match step {
                    TxnStep::Read(_) => None,
                    TxnStep::Write(_, value) => Some(value),
                };
                steps.push((key, written));
            }
            let (seen, completed) = match &operation.outcome {
                Outcome::Ok { at, reply } => (Some(reply.as_slice()), Some(*at)),
                Outcome::Unknown { .. } => (None, None),
                Outcome::Failed { .. } => {
                    book.wrote(TxnBy::Failed(index), index, &steps)?;
                    continue;
                }
            };
            let reads = steps.iter().filter(|(_, written)| written.is_none()).count();
            assert!(seen.is_none_or(|seen| seen.len() == reads), "each read has one result");
            book.wrote(TxnBy::Txn(book.txns.len() as Node), index, &steps)?;
            let (process, invoked) = (operation.process, operation.invoked);
            book.txns.push(One { index, process, invoked, completed, steps, seen });
        }
        book.keys = keys;
        Ok(book)
    }

    fn wrote(
        &mut self,
        by: TxnBy,
        index: Index,
        steps: &[(Key, Option<&'a Value>)],
    ) -> Result<(), Undecided> {
        for (place, (key, value)) in steps.iter().enumerate() {
            let Some(value) = *value else { continue };
            let later = &steps[place + 1..];
            let is_last = !later.iter().any(|(other, value)| other == key && value.is_some());
            let write = TxnWrite { by, is_last };
            match (self.writes.get(&(*key, value)).map(|write| write.by), by) {
                // A failed transaction may be retried with the same value.
                (None | Some(TxnBy::Failed(_)), _) => {
                    self.writes.insert((*key, value), write);
                }
                (Some(TxnBy::Txn(_)), TxnBy::Failed(_)) => {}
                (Some(TxnBy::Txn(before)), TxnBy::Txn(_)) => {
                    // `before` is not indexed yet if the same transaction wrote the value twice.
                    let before = self.txns.get(before as usize).map_or(index, |one| one.index);
                    return Err(Undecided::Repeated(before, index));
                }
            }
        }
        Ok(())
    }

    pub(super) fn write(&self, key: Key, value: &Value) -> Option<TxnWrite> {
        self.writes.get(&(key, value)).copied()
    }

    pub(super) fn one(&self, node: Node) -> &One<'a, Seen> {
        &self.txns[node as usize]
    }

    pub(super) fn index(&self, node: Node) -> Index {
        self.one(node).index
    }

    pub(super) fn node(&self, index: Index) -> Option<Node> {
        self.txns.binary_search_by_key(&index, |one| one.index).ok().map(|node| node as Node)
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = Node> + use<Seen> {
        0..self.txns.len() as Node
    }

    /// Returns the reads of a transaction whose results are known, in order.
    pub(super) fn reads(&self, by: Node) -> Vec<Read<'a, Seen>> {
        let one = self.one(by);
        let Some(seen) = one.seen else { return Vec::new() };
        let mut seen = seen.iter();
        let mut reads = Vec::new();
        for (place, (key, written)) in one.steps.iter().enumerate() {
            if written.is_some() {
                continue;
            }
            let Some(seen) = seen.next() else { break };
            let before = one.steps[..place].iter();
            let own = before.filter(|(other, _)| other == key).filter_map(|(_, own)| *own);
            reads.push(Read { key: *key, seen, own: own.collect() });
        }
        reads
    }

    /// Returns the keys that a transaction wrote, without duplicates.
    pub(super) fn written(&self, by: Node) -> Vec<Key> {
        let steps = self.one(by).steps.iter();
        let mut keys: Vec<Key> =
            steps.filter(|(_, own)| own.is_some()).map(|(key, _)| *key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Returns the name of a key as reports print it.
    pub(super) fn name(&self, key: Key) -> String {
        let name = self.keys[key as usize];
        let is_plain =
            !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_-./".contains(c));
        if is_plain { name.to_owned() } else { format!("{name:?}") }
    }
}
