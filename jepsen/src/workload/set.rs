//! Sets: every element whose adding was acknowledged is there, in each later read and in the end; what was refused
//! never is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use bowline::check::{History, Outcome};
use serde::Serialize;

use super::revisions::{self, Mark};
use super::{Client, Judgement, Kind, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply};
use crate::ledger::{Book, lines};

pub(super) const KIND: Kind = Kind {
    name: "set",
    about: "every acknowledged element is in each later read and there in the end, nothing else is",
    least: &[("add", 100), ("read", 20)],
    clients: 3,
    is_control: false,
    make: || Box::new(Sets::default()),
};

/// After so many elements there is another set: reads answer with all of one.
const ELEMENTS: u64 = 300;

/// One operation of eight is a read.
const READ_IN: u64 = 8;

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SetCall {
    Add(u64),
    Read,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SetReply {
    Added { revision: u64 },
    Read { revision: u64, elements: BTreeSet<u64> },
}

/// See the module.
#[derive(Default)]
struct Sets {
    book: Book<SetCall, SetReply>,
    next: AtomicU64,
}

impl Sets {
    fn add(&self, caller: &mut Caller<'_>) {
        let element = self.next.fetch_add(1, Ordering::Relaxed);
        let set = name_of(element / ELEMENTS);
        let put = Call::Put { key: format!("{set}{element:06}"), value: "in".into(), lease: None };
        let add = |caller: &mut Caller<'_>| match caller.call(&put)? {
            Reply::Done { revision } => Ok(SetReply::Added { revision }),
            reply => Err(Miss::nonsense(&reply)),
        };
        drop(caller.operation(&self.book, "add", &set, SetCall::Add(element), add));
    }

    fn read(&self, caller: &mut Caller<'_>, set: &str) -> Result<SetReply, Miss> {
        let list = Call::List { prefix: set.to_owned() };
        let read = |caller: &mut Caller<'_>| match caller.call(&list)? {
            Reply::Rows { revision, rows } => {
                let element = |key: &str| key[set.len()..].parse().unwrap_or(u64::MAX);
                let elements = rows.iter().map(|row| element(&row.key)).collect();
                Ok(SetReply::Read { revision, elements })
            }
            reply => Err(Miss::nonsense(&reply)),
        };
        caller.operation(&self.book, "read", set, SetCall::Read, read)
    }
}

fn name_of(number: u64) -> String {
    format!("s/{number:04}/")
}

impl Client for &Sets {
    fn step(&mut self, caller: &mut Caller<'_>) {
        if caller.dice.below(READ_IN) == 0 {
            let set = name_of(self.next.load(Ordering::Relaxed) / ELEMENTS);
            drop(self.read(caller, &set));
        } else {
            self.add(caller);
        }
    }
}

impl Workload for Sets {
    fn client<'a>(&'a self, _number: u64) -> Box<dyn Client + 'a> {
        Box::new(self)
    }

    fn conclude(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        let sets = self.next.load(Ordering::Relaxed).div_ceil(ELEMENTS);
        (0..sets).try_for_each(|set| self.read(caller, &name_of(set)).map(drop))
    }

    fn judge(&self) -> Judgement {
        let history = self.book.history();
        let (mut found, unknown) = complaints(&history);
        found.extend(revisions::complaints(&history, |_, reply| {
            Some(match reply {
                SetReply::Added { revision } => Mark { revision: *revision, is_change: true },
                SetReply::Read { revision, .. } => Mark { revision: *revision, is_change: false },
            })
        }));
        let well = format!("{} operations; {unknown} unknown ones are there", history.len());
        Judgement::of_complaints(found, well)
    }

    fn lines(&self) -> String {
        lines(&self.book.history())
    }
}

/// What reads have that they must not have, or lack; and how many elements of unknown fate some read has.
pub(super) fn complaints(history: &History<SetCall, SetReply>) -> (Vec<String>, usize) {
    let mut adds = BTreeMap::new();
    let mut reads = Vec::new();
    for (index, operation) in history.iter().enumerate() {
        match (&operation.call, &operation.outcome) {
            (SetCall::Add(element), _) => drop(adds.insert(*element, (index, operation))),
            (SetCall::Read, Outcome::Ok { at, reply: SetReply::Read { elements, .. } }) => {
                reads.push((index, operation, *at, elements));
            }
            _ => {}
        }
    }
    let (mut complaints, mut unknown) = (Vec::new(), BTreeSet::new());
    for (read, by, ended, elements) in reads {
        for (element, (add, operation)) in &adds {
            if operation.object != by.object {
                continue;
            }
            match (&operation.outcome, elements.contains(element)) {
                (Outcome::Ok { at, .. }, false) if *at < by.invoked => complaints
                    .push(format!("read {read} lacks {element}, which {add} had added before")),
                (Outcome::Failed { .. }, true) => complaints
                    .push(format!("read {read} has {element}, whose adding {add} was refused")),
                (_, true) if operation.invoked > ended => complaints
                    .push(format!("read {read} has {element} before it was added by {add}")),
                (Outcome::Unknown { .. }, true) => drop(unknown.insert(*element)),
                _ => {}
            }
        }
        let invented = elements.iter().filter(|element| !adds.contains_key(element));
        complaints.extend(invented.map(|e| format!("read {read} has {e}, which nobody added")));
    }
    (complaints, unknown.len())
}

#[cfg(test)]
mod tests {
    use bowline::check::Operation;

    use super::*;

    fn read(invoked: u64, elements: &[u64]) -> Operation<SetCall, SetReply> {
        let elements = elements.iter().copied().collect();
        let reply = SetReply::Read { revision: invoked, elements };
        Operation::ok(invoked, invoked + 1, SetCall::Read, reply)
    }

    fn add(invoked: u64, element: u64) -> Operation<SetCall, SetReply> {
        let reply = SetReply::Added { revision: invoked };
        Operation::ok(invoked, invoked + 1, SetCall::Add(element), reply)
    }

    #[test]
    fn a_lost_element_an_invented_one_and_one_that_was_refused_are_seen() {
        let unknown = Operation::unknown(1, SetCall::Add(8));
        let refused = Operation::failed(1, SetCall::Add(9));
        let all = |last| vec![add(1, 7), unknown.clone(), refused.clone(), last];
        assert_eq!(complaints(&all(read(5, &[7]))), (vec![], 0));
        assert_eq!(complaints(&all(read(5, &[7, 8]))), (vec![], 1));
        assert_eq!(complaints(&all(read(2, &[]))).0, Vec::<String>::new());
        for bad in [read(5, &[]), read(5, &[7, 9]), read(5, &[7, 3])] {
            assert_eq!(complaints(&all(bad)).0.len(), 1);
        }
    }
}
