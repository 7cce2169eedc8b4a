//! A workload of sets. An element whose addition was acknowledged must be in each later read and in the final read. An
//! element whose addition was rejected must never be in a read.
//!
//! An element is stored as a row, and all rows of a set are read at one revision. For the checker, a read of a set is
//! therefore one read of each of its rows at that revision, including the rows that do not exist.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_check::{At, History, KvCall, KvReply, Outcome, Seen, Total, Value, total};

use super::{Client, Control, Exhibit, Kind, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply};
use crate::fleet::{DOORS, Setup};
use crate::ledger::Book;

pub(super) const KIND: Kind = Kind {
    name: "set",
    about: "every acknowledged element, and nothing else, is in each later read and at the end",
    least: &[("add", 100), ("read", 10)],
    clients: 3,
    control: None,
    make: || Box::new(Sets::default()),
};

pub(super) const UNSYNCED: Kind = Kind {
    name: "set-unsynced",
    about: "a control that must fail under power cuts: the same, on disks that confirm syncs without syncing",
    least: KIND.least,
    clients: 3,
    control: Some(Control { under: "power-all", may_stop: true }),
    make: || Box::new(Sets { without_syncs: true, ..Sets::default() }),
};

/// Number of elements after which a new set is used, because reads return a whole set.
const ELEMENTS: u64 = 100;

/// One operation in this many is a read.
const READ_IN: u64 = 16;

/// Value of the row of an element.
const IN: &str = "in";

/// The workload.
#[derive(Default)]
struct Sets {
    without_syncs: bool,
    book: Book<KvCall, KvReply>,
    next: AtomicU64,
}

fn name_of(number: u64) -> String {
    format!("s/{number:04}/")
}

fn key_of(element: u64) -> String {
    format!("{}{element:06}", name_of(element / ELEMENTS))
}

impl Sets {
    fn add(&self, caller: &mut Caller<'_>) {
        let key = key_of(self.next.fetch_add(1, Ordering::Relaxed));
        let put = Call::Put { key: key.clone(), value: IN.to_owned(), lease: None };
        let add = |caller: &mut Caller<'_>| match caller.call(&put)? {
            Reply::Done { revision } => {
                Ok(KvReply { seen: Seen::Written, revision: Some(revision) })
            }
            reply => Err(Miss::nonsense(&reply)),
        };
        let call = KvCall::Put { key: key.into(), value: Value::from(IN) };
        drop(caller.operation(&self.book, "add", "", call, add));
    }

    /// Reads a set. The check covers all elements that may have been added by now.
    fn read(&self, caller: &mut Caller<'_>, number: u64) -> Result<(), Miss> {
        let list = Call::List { prefix: name_of(number) };
        let timed = caller.timed("read", |caller| match caller.call(&list)? {
            Reply::Rows { revision, rows } => Ok((revision, rows)),
            reply => Err(Miss::nonsense(&reply)),
        });
        let (revision, rows) = timed.result?;
        let rows: BTreeMap<&str, _> = rows.iter().map(|row| (row.key.as_str(), row)).collect();
        let all = number * ELEMENTS..(number + 1) * ELEMENTS;
        let may_be_there = all.end.min(self.next.load(Ordering::Relaxed));
        let keys: Vec<String> = (all.start..may_be_there).map(key_of).collect();
        let invented = rows.keys().filter(|key| !keys.iter().any(|k| k == *key));
        for key in keys.iter().map(String::as_str).chain(invented.copied()) {
            let row = rows.get(key);
            let value = row.map(|row| Value::from(row.value.as_str()));
            let seen = Seen::Read { value, modified: row.map(|row| row.modified) };
            let reply = KvReply { seen, revision: Some(revision) };
            let call = KvCall::Get { key: key.into() };
            let index = self.book.begin(caller.client, "", timed.invoked, call);
            self.book.end(index, Outcome::Ok { at: At(timed.ended), reply });
        }
        Ok(())
    }
}

impl Client for &Sets {
    fn step(&mut self, caller: &mut Caller<'_>) {
        if caller.dice.below(READ_IN) == 0 {
            // The result is ignored here, because the outcome is recorded in the book.
            drop(self.read(caller, self.next.load(Ordering::Relaxed) / ELEMENTS));
        } else {
            self.add(caller);
        }
    }
}

impl Workload for Sets {
    fn prepare(&self, setup: &mut Setup) {
        if self.without_syncs {
            setup.variables.push((DOORS.to_owned(), "no-sync".to_owned()));
        }
    }

    fn client<'a>(&'a self, _number: u64) -> Box<dyn Client + 'a> {
        Box::new(self)
    }

    fn conclude(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        let sets = self.next.load(Ordering::Relaxed).div_ceil(ELEMENTS);
        (0..sets).try_for_each(|set| self.read(caller, set))
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        let judge = |history: &History<_, _>| total::check(&Total::default(), history);
        vec![Exhibit::new("sets", "--model revisions", self.book.history(), judge)]
    }
}
