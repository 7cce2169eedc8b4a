//! A set under a lock: each client takes the lock, reads the set, thinks, and writes it with one more element. With
//! `guard.txn` nothing is ever lost. Without, a holder that was paused writes what it had read before others wrote: that
//! must be seen to happen, or this harness could not see it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bowline::check::{History, Outcome};

use super::{Client, Judgement, Kind, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply};
use crate::fleet::Setup;
use crate::ledger::{Book, lines};

pub(super) const GUARDED: Kind = Kind {
    name: "locked-set",
    about: "elements added under a lock by guarded transactions are never lost",
    least: &[("add", 30)],
    clients: 2,
    is_control: false,
    make: || Box::new(LockedSet::new(true)),
};

pub(super) const UNGUARDED: Kind = Kind {
    name: "locked-set-unguarded",
    about: "a control that must fail under pause: the same without guarded transactions loses some",
    least: &[("add", 30)],
    clients: 2,
    is_control: true,
    make: || Box::new(LockedSet::new(false)),
};

/// How many sets and locks there are at a time: whoever dies with two of them leaves one for the others.
const SETS: u64 = 3;
/// After so many elements there are other sets.
const ELEMENTS: u64 = 600;
const WAIT_MS: u64 = 4000;
/// The shorter, the more often a pause outlasts it.
const SESSION: Duration = Duration::from_millis(1700);

/// See the module.
struct LockedSet {
    guarded: bool,
    book: Book<u64, u64>,
    next: AtomicU64,
    last: Mutex<BTreeMap<String, Vec<u64>>>,
}

impl LockedSet {
    fn new(guarded: bool) -> Self {
        Self { guarded, book: Book::default(), next: AtomicU64::new(0), last: Mutex::default() }
    }
}

impl Client for &LockedSet {
    fn step(&mut self, caller: &mut Caller<'_>) {
        let element = self.next.fetch_add(1, Ordering::Relaxed);
        // A control that thinks for long is likely to be paused while it does.
        let think_ms =
            if self.guarded { 2 + caller.dice.below(15) } else { 100 + caller.dice.below(100) };
        let which = caller.dice.below(SETS);
        let set = format!("ls/{:04}/{which}", element / ELEMENTS);
        let call = Call::AddUnderLock {
            lock: format!("lock/{which}"),
            key: set.clone(),
            element,
            think_ms,
            guarded: self.guarded,
            wait_ms: WAIT_MS,
        };
        let add = |caller: &mut Caller<'_>| match caller.call(&call)? {
            Reply::Done { revision } => Ok(revision),
            reply => Err(Miss::nonsense(&reply)),
        };
        drop(caller.operation(&self.book, "add", &set, element, add));
    }
}

impl Workload for LockedSet {
    fn prepare(&self, setup: &mut Setup) {
        setup.session = SESSION;
    }

    fn client<'a>(&'a self, _number: u64) -> Box<dyn Client + 'a> {
        Box::new(self)
    }

    fn conclude(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        match caller.call(&Call::List { prefix: "ls/".to_owned() })? {
            Reply::Rows { rows, .. } => {
                let elements = |value: &str| {
                    value.split(',').map(|word| word.parse().unwrap_or(u64::MAX)).collect()
                };
                let last = rows.into_iter().map(|row| (row.key, elements(&row.value))).collect();
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = last;
                Ok(())
            }
            reply => Err(Miss::nonsense(&reply)),
        }
    }

    fn judge(&self) -> Judgement {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let history = self.book.history();
        let (lost, others) = complaints(&history, &last);
        let found = Judgement::of_complaints(others, format!("{} addings", history.len()));
        found.and(match (self.guarded, lost.len()) {
            (true, _) => Judgement::of_complaints(lost, "none was lost"),
            (false, 0) => Judgement::Invalid("the control lost nothing".to_owned()),
            (false, many) => Judgement::Ok(format!("{many} were lost, as they must")),
        })
    }

    fn lines(&self) -> String {
        lines(&self.book.history())
    }
}

/// Elements that were acknowledged and are not there; and everything else that is wrong.
fn complaints(
    history: &History<u64, u64>,
    last: &BTreeMap<String, Vec<u64>>,
) -> (Vec<String>, Vec<String>) {
    let (mut lost, mut others) = (Vec::new(), Vec::new());
    for (index, operation) in history.iter().enumerate() {
        let element = operation.call;
        let set = last.get(&*operation.object);
        let times = set.map_or(0, |set| set.iter().filter(|there| **there == element).count());
        match &operation.outcome {
            Outcome::Ok { .. } if times == 0 => {
                lost.push(format!("{element}, added by {index}, is lost"));
            }
            Outcome::Failed { .. } if times > 0 => {
                others.push(format!("{element} is there, but adding it ({index}) was refused"));
            }
            _ if times > 1 => others.push(format!("{element} is there {times} times")),
            _ => {}
        }
    }
    (lost, others)
}
