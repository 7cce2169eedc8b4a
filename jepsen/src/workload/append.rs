//! Transactions over lists: each reads a few lists and appends to some of them, atomically. What it read must be what
//! all transactions before it had appended, in one order of all of them that keeps to real time.
//!
//! The order is the revisions', which every acknowledged transaction knows; so it need not be searched for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use bowline::check::{History, Index, Outcome};
use serde::Serialize;

use super::revisions::{self, Mark};
use super::{Client, Judgement, Kind, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply};
use crate::ledger::{Book, lines};

pub(super) const KIND: Kind = Kind {
    name: "append",
    about: "transactions that read and append to lists are strictly serializable",
    least: &[("append", 60), ("read", 30)],
    clients: 3,
    is_control: false,
    make: || Box::new(Lists::default()),
};

/// How many lists are used at a time.
const LISTS: u64 = 4;
/// After so many elements there are other lists: reads answer with all of them.
const ELEMENTS: u64 = 200;

type Elements = Vec<u64>;

#[derive(Clone, Debug, Serialize)]
struct Txn {
    /// Which lists are read.
    read: BTreeSet<String>,
    /// What is appended, to lists that are read.
    append: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Serialize)]
struct Done {
    revision: u64,
    /// What the lists held before it.
    read: BTreeMap<String, Elements>,
}

/// See the module.
#[derive(Default)]
struct Lists {
    book: Book<Txn, Done>,
    next: AtomicU64,
    last: std::sync::Mutex<BTreeMap<String, Elements>>,
}

fn elements(value: &str) -> Elements {
    value.split(',').map(|word| word.parse().unwrap_or(u64::MAX)).collect()
}

impl Lists {
    fn run(&self, caller: &mut Caller<'_>, group: &str, txn: Txn) {
        let kind = if txn.append.is_empty() { "read" } else { "append" };
        let (read, append) = (txn.read.clone(), txn.append.clone());
        let work = |caller: &mut Caller<'_>| {
            let list = Call::List { prefix: group.to_owned() };
            let (at, rows) = match caller.call(&list).map_err(Miss::harmless)? {
                Reply::Rows { revision, rows } => (revision, rows),
                reply => return Err(Miss::nonsense(&reply)),
            };
            let find = |key: &String| rows.iter().find(|row| row.key == *key);
            let seen = |key: &String| find(key).map_or_else(Vec::new, |row| elements(&row.value));
            let seen: BTreeMap<_, _> = read.iter().map(|key| (key.clone(), seen(key))).collect();
            if append.is_empty() {
                return Ok(Done { revision: at, read: seen });
            }
            let is_at = |key: &String| (key.clone(), find(key).map_or(0, |row| row.modified));
            let grown = |(key, element): (&String, &u64)| {
                let before = find(key).map_or_else(String::new, |row| format!("{},", row.value));
                (key.clone(), format!("{before}{element}"))
            };
            let commit = Call::Commit {
                when: read.iter().map(is_at).collect(),
                put: append.iter().map(grown).collect(),
            };
            match caller.call(&commit)? {
                Reply::Swapped { swapped: true, revision } => Ok(Done { revision, read: seen }),
                Reply::Swapped { swapped: false, .. } => {
                    Err(Miss::Failed("another was faster".to_owned()))
                }
                reply => Err(Miss::nonsense(&reply)),
            }
        };
        drop(caller.operation(&self.book, kind, "", txn, work));
    }
}

impl Client for &Lists {
    fn step(&mut self, caller: &mut Caller<'_>) {
        let first = self.next.load(Ordering::Relaxed);
        let group = format!("a/{:04}/", first / ELEMENTS);
        let mut lists = BTreeSet::new();
        for _ in 0..=caller.dice.below(3) {
            lists.insert(format!("{group}{}", caller.dice.below(LISTS)));
        }
        let mut append = BTreeMap::new();
        if caller.dice.below(3) > 0 {
            for list in &lists {
                if append.is_empty() || caller.dice.below(2) == 0 {
                    append.insert(list.clone(), self.next.fetch_add(1, Ordering::Relaxed));
                }
            }
        }
        self.run(caller, &group, Txn { read: lists, append });
    }
}

impl Workload for Lists {
    fn client<'a>(&'a self, _number: u64) -> Box<dyn Client + 'a> {
        Box::new(self)
    }

    fn conclude(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        match caller.call(&Call::List { prefix: "a/".to_owned() })? {
            Reply::Rows { rows, .. } => {
                let last = rows.into_iter().map(|row| (row.key, elements(&row.value))).collect();
                *self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = last;
                Ok(())
            }
            reply => Err(Miss::nonsense(&reply)),
        }
    }

    fn judge(&self) -> Judgement {
        let history = self.book.history();
        let last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let mut found = complaints(&history, &last);
        found.extend(revisions::complaints(&history, |txn, done| {
            Some(Mark { revision: done.revision, is_change: !txn.append.is_empty() })
        }));
        Judgement::of_complaints(found, format!("{} transactions fit", history.len()))
    }

    fn lines(&self) -> String {
        lines(&self.book.history())
    }
}

/// What does not fit the lists as they are in the end, or the order of revisions.
fn complaints(history: &History<Txn, Done>, last: &BTreeMap<String, Elements>) -> Vec<String> {
    let none = Vec::new();
    let mut complaints = Vec::new();
    // Of each element, who appended it, and at which revision if it was acknowledged; refused ones have none.
    let mut appended: BTreeMap<u64, (Index, Option<u64>)> = BTreeMap::new();
    for (index, operation) in history.iter().enumerate() {
        for (list, element) in &operation.call.append {
            let times = last.get(list).unwrap_or(&none).iter().filter(|e| *e == element).count();
            let revision = match &operation.outcome {
                Outcome::Ok { reply, .. } => Some(reply.revision),
                _ => None,
            };
            let fits = match &operation.outcome {
                Outcome::Ok { .. } => times == 1,
                Outcome::Failed { .. } => times == 0,
                Outcome::Unknown { .. } => times <= 1,
            };
            if !fits {
                complaints.push(format!("{element}, appended by {index}, is there {times} times"));
            }
            appended.insert(*element, (index, revision));
        }
    }
    for (list, elements) in last {
        let invented = elements.iter().filter(|element| !appended.contains_key(element));
        complaints.extend(invented.map(|e| format!("{list} has {e}, which nobody appended")));
    }
    for (index, operation) in history.iter().enumerate() {
        let Outcome::Ok { reply, .. } = &operation.outcome else { continue };
        // What changes something has read what was there just before it.
        let is_change = !operation.call.append.is_empty();
        let read_at = reply.revision - u64::from(is_change);
        for (list, seen) in &reply.read {
            let whole = last.get(list).unwrap_or(&none);
            if !whole.starts_with(seen) {
                complaints.push(format!("{index} read {seen:?} in {list}, which is {whole:?}"));
                continue;
            }
            if let Some(element) = operation.call.append.get(list)
                && whole.get(seen.len()) != Some(element)
            {
                complaints.push(format!("between {index}'s read and append {list} has changed"));
            }
            for (place, element) in whole.iter().enumerate() {
                let revision = appended.get(element).and_then(|(_, revision)| *revision);
                let wrong =
                    revision.is_some_and(|revision| (place < seen.len()) != (revision <= read_at));
                if wrong {
                    complaints.push(format!(
                        "{index} read {list} as of revision {read_at}: {seen:?}; but {element} was \
                         appended at {revision:?}"
                    ));
                }
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use bowline::check::Operation;

    use super::*;

    fn txn(at: u64, read: &[u64], append: Option<u64>) -> Operation<Txn, Done> {
        let list = || "x".to_owned();
        let call = Txn {
            read: [list()].into(),
            append: append.into_iter().map(|element| (list(), element)).collect(),
        };
        let read = [(list(), read.to_vec())].into();
        Operation::ok(at, at, call, Done { revision: at, read })
    }

    fn found(history: History<Txn, Done>, last: &[u64]) -> usize {
        complaints(&history, &[("x".to_owned(), last.to_vec())].into()).len()
    }

    #[test]
    fn a_lost_append_a_stale_read_and_a_changed_past_are_seen() {
        let first = || txn(2, &[], Some(1));
        assert_eq!(found(vec![first(), txn(3, &[1], Some(2)), txn(3, &[1, 2], None)], &[1, 2]), 0);
        assert_eq!(found(vec![first(), txn(3, &[1], Some(2))], &[1]), 2);
        assert_eq!(found(vec![first(), txn(3, &[1], Some(2)), txn(3, &[1], None)], &[1, 2]), 1);
        assert_eq!(found(vec![first(), txn(3, &[], Some(2))], &[1, 2]), 2);
        assert_eq!(found(vec![first(), txn(3, &[1], Some(2))], &[2, 1]), 2);
    }
}
