//! A counter: every adding of one is counted once, however often the library had to try, and its answer is its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};

use bowline::check::{History, Outcome};
use serde::Serialize;

use super::{Client, Exhibit, Kind, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply};
use crate::ledger::Book;

pub(super) const KIND: Kind = Kind {
    name: "counter",
    about: "every acknowledged adding of one is counted exactly once, unknown ones at most once",
    least: &[("add", 60), ("read", 30)],
    clients: 3,
    control: None,
    make: || Box::new(Counter::default()),
};

const KEY: &str = "counter";

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum CounterCall {
    Add,
    Read,
}

/// See the module.
#[derive(Default)]
struct Counter {
    book: Book<CounterCall, i64>,
    last: AtomicI64,
}

impl Counter {
    fn read(&self, caller: &mut Caller<'_>) -> Result<i64, Miss> {
        let get = Call::Get { key: KEY.to_owned(), local: false };
        let read = |caller: &mut Caller<'_>| match caller.call(&get)? {
            Reply::Rows { rows, .. } => {
                Ok(rows.first().map_or(0, |row| row.value.parse().unwrap_or(i64::MIN)))
            }
            reply => Err(Miss::nonsense(&reply)),
        };
        caller.operation(&self.book, "read", KEY, CounterCall::Read, read)
    }
}

impl Client for &Counter {
    fn step(&mut self, caller: &mut Caller<'_>) {
        if caller.dice.below(4) == 0 {
            drop(self.read(caller));
            return;
        }
        let add = |caller: &mut Caller<'_>| match caller
            .call(&Call::Add { key: KEY.to_owned(), by: 1 })?
        {
            Reply::Number(sum) => Ok(sum),
            reply => Err(Miss::nonsense(&reply)),
        };
        drop(caller.operation(&self.book, "add", KEY, CounterCall::Add, add));
    }
}

impl Workload for Counter {
    fn client<'a>(&'a self, _number: u64) -> Box<dyn Client + 'a> {
        Box::new(self)
    }

    fn conclude(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        self.last.store(self.read(caller)?, Ordering::Relaxed);
        Ok(())
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        let last = self.last.load(Ordering::Relaxed);
        let judge = move |history: &History<_, _>| complaints(history, last);
        vec![Exhibit::of_our_own("counter", self.book.history(), judge)]
    }
}

fn complaints(history: &History<CounterCall, i64>, last: i64) -> Vec<String> {
    let (mut complaints, mut sums) = (Vec::new(), BTreeMap::new());
    let (mut acknowledged, mut unknown) = (0, 0);
    // With what it saw, an operation stands at one place of the order.
    let mut places = Vec::new();
    for (index, operation) in history.iter().enumerate() {
        let is_add = matches!(operation.call, CounterCall::Add);
        match &operation.outcome {
            Outcome::Ok { at, reply } => {
                if is_add {
                    acknowledged += 1;
                    if let Some(other) = sums.insert(*reply, index) {
                        complaints.push(format!("{other} and {index} both made it {reply}"));
                    }
                }
                places.push((operation.invoked, *at, *reply, is_add, index));
            }
            Outcome::Unknown { .. } if is_add => unknown += 1,
            _ => {}
        }
    }
    if !(acknowledged..=acknowledged + unknown).contains(&last) {
        complaints.push(format!(
            "it stands at {last}, but {acknowledged} addings were acknowledged and {unknown} are unknown"
        ));
    }
    places.sort_unstable_by_key(|place| place.0);
    let mut by_end: Vec<_> = places.iter().collect();
    by_end.sort_unstable_by_key(|place| place.1);
    let (mut ended, mut highest) = (by_end.into_iter().peekable(), None);
    for (invoked, _, seen, is_add, index) in &places {
        while let Some(before) = ended.next_if(|before| before.1 < *invoked) {
            highest = highest.max(Some((before.2, before.4)));
        }
        if let Some((high, before)) = highest
            && (*seen < high || (*is_add && *seen == high))
        {
            complaints.push(format!("{index} sees {seen}, though {before} had seen {high} before"));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use bowline::check::Operation;

    use super::*;

    #[test]
    fn an_adding_that_is_lost_or_counted_twice_or_seen_too_late_is_found() {
        let add = |at, sum| Operation::ok(at, at + 1, CounterCall::Add, sum);
        let read = |at, seen| Operation::ok(at, at + 1, CounterCall::Read, seen);
        let unknown = || Operation::unknown(1, CounterCall::Add);
        assert!(complaints(&vec![add(1, 1), unknown(), read(5, 1)], 1).is_empty());
        assert!(complaints(&vec![add(1, 1), unknown(), read(5, 2)], 2).is_empty());
        assert_eq!(complaints(&vec![add(1, 1), unknown(), read(5, 3)], 3).len(), 1);
        assert_eq!(complaints(&vec![add(1, 1), add(1, 2), read(5, 1)], 2).len(), 1);
        assert_eq!(complaints(&vec![add(1, 1), add(1, 1), read(5, 2)], 2).len(), 1);
        assert_eq!(complaints(&vec![add(1, 2), add(5, 1), read(7, 2)], 2).len(), 1);
    }
}
