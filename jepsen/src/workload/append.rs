//! A workload of list transactions: each transaction atomically reads a few lists and appends to some of them. The
//! checker looks for an order of all transactions that agrees with real time and explains every read (strict
//! serializability).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_check::{History, Level, ListTxn, TxnStep, Value, cycles};

use super::{Client, Exhibit, Kind, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply, Row};
use crate::ledger::Book;

pub(super) const KIND: Kind = Kind {
    name: "append",
    about: "transactions that read and append to lists are strictly serializable",
    least: &[("append", 60), ("read", 30)],
    clients: 3,
    control: None,
    make: || Box::new(Lists::default()),
};

/// Number of lists in use at a time.
const LISTS: u64 = 4;
/// Number of elements after which new lists are used, because reads return all elements.
const ELEMENTS: u64 = 120;

/// The workload.
#[derive(Default)]
struct Lists {
    book: Book<ListTxn, Vec<Vec<Value>>>,
    next: AtomicU64,
}

/// Returns the elements of a row, which are separated by commas.
pub(super) fn elements(value: &str) -> Vec<Value> {
    value.split(',').map(|word| word.parse().map_or_else(|_| word.into(), i64::into)).collect()
}

impl Lists {
    /// Reads lists at one revision and appends to some of them if none has changed since.
    fn run(
        &self,
        caller: &mut Caller<'_>,
        group: &str,
        read: &BTreeSet<String>,
        append: &BTreeMap<String, u64>,
    ) -> Result<(), Miss> {
        let appended = |(key, element): (&String, &u64)| TxnStep::write(key, element.cast_signed());
        let reads = read.iter().map(|key| TxnStep::read(key));
        let txn = ListTxn(reads.chain(append.iter().map(appended)).collect());
        let kind = if append.is_empty() { "read" } else { "append" };
        let work = |caller: &mut Caller<'_>| {
            let list = Call::List { prefix: group.to_owned() };
            let rows = caller.rows(&list).map_err(Miss::harmless)?;
            let find = |key: &String| rows.iter().find(|row| row.key == *key);
            let seen = |key| find(key).map_or_else(Vec::new, |row: &Row| elements(&row.value));
            let seen = read.iter().map(seen).collect();
            if append.is_empty() {
                return Ok(seen);
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
                Reply::Swapped { swapped: true, .. } => Ok(seen),
                Reply::Swapped { swapped: false, .. } => {
                    Err(Miss::Failed("conflicting write".to_owned()))
                }
                reply => Err(Miss::nonsense(&reply)),
            }
        };
        caller.operation(&self.book, kind, "", txn, work).map(drop)
    }
}

fn group_of(number: u64) -> String {
    format!("a/{number:04}/")
}

impl Client for &Lists {
    fn step(&mut self, caller: &mut Caller<'_>) {
        let group = group_of(self.next.load(Ordering::Relaxed) / ELEMENTS);
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
        // The result is ignored here, because the outcome is recorded in the book.
        drop(self.run(caller, &group, &lists, &append));
    }
}

impl Workload for Lists {
    fn client<'a>(&'a self, _number: u64) -> Box<dyn Client + 'a> {
        Box::new(self)
    }

    fn conclude(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        (0..=self.next.load(Ordering::Relaxed) / ELEMENTS).try_for_each(|number| {
            let group = group_of(number);
            let all = (0..LISTS).map(|list| format!("{group}{list}")).collect();
            self.run(caller, &group, &all, &BTreeMap::new())
        })
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        let judge = |history: &History<_, _>| cycles::lists(history, Level::StrictSerializable);
        vec![Exhibit::new("lists", "--model list-append", self.book.history(), judge)]
    }
}
