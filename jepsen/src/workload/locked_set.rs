//! A set under a lock: each client takes the lock, reads the set, thinks, and writes it with one more element. With
//! `guard.txn` nothing is ever lost. Without, a holder that was paused writes what it had read before others wrote: that
//! must be seen to happen, or this harness could not see it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline::check::{History, Level, ListTxn, Step, Value, cycles};

use super::append::elements;
use super::{Client, Control, Exhibit, Kind, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply};
use crate::fleet::Setup;
use crate::ledger::Book;

pub(super) const GUARDED: Kind = Kind {
    name: "locked-set",
    about: "elements added under a lock by guarded transactions are never lost",
    least: &[("add", 30)],
    clients: 2,
    control: None,
    make: || Box::new(LockedSet::new(true)),
};

pub(super) const UNGUARDED: Kind = Kind {
    name: "locked-set-unguarded",
    about: "a control that must fail under pause: the same without guarded transactions loses some",
    least: &[("add", 30)],
    clients: 2,
    control: Some(Control { under: "pause", may_stop: false }),
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
    /// To add is to append: what was added is in the list, behind what was there.
    book: Book<ListTxn, Vec<Vec<Value>>>,
    next: AtomicU64,
}

impl LockedSet {
    fn new(guarded: bool) -> Self {
        Self { guarded, book: Book::default(), next: AtomicU64::new(0) }
    }
}

fn name_of(group: u64, which: u64) -> String {
    format!("ls/{group:04}/{which}")
}

impl Client for &LockedSet {
    fn step(&mut self, caller: &mut Caller<'_>) {
        let element = self.next.fetch_add(1, Ordering::Relaxed);
        // A control that thinks for long is likely to be paused while it does.
        let think_ms =
            if self.guarded { 2 + caller.dice.below(15) } else { 100 + caller.dice.below(100) };
        let which = caller.dice.below(SETS);
        let set = name_of(element / ELEMENTS, which);
        let call = Call::AddUnderLock {
            lock: format!("lock/{which}"),
            key: set.clone(),
            element,
            think_ms,
            guarded: self.guarded,
            wait_ms: WAIT_MS,
        };
        let add = |caller: &mut Caller<'_>| match caller.call(&call)? {
            Reply::Done { .. } => Ok(Vec::new()),
            reply => Err(Miss::nonsense(&reply)),
        };
        let txn = ListTxn(vec![Step::write(&set, element.cast_signed())]);
        drop(caller.operation(&self.book, "add", "", txn, add));
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
        let groups = 0..=self.next.load(Ordering::Relaxed) / ELEMENTS;
        let mut sets = groups.flat_map(|group| (0..SETS).map(move |which| name_of(group, which)));
        sets.try_for_each(|set| {
            let get = Call::Get { key: set.clone(), local: false };
            let read = |caller: &mut Caller<'_>| match caller.call(&get)? {
                Reply::Rows { rows, .. } => {
                    Ok(vec![rows.first().map_or_else(Vec::new, |row| elements(&row.value))])
                }
                reply => Err(Miss::nonsense(&reply)),
            };
            caller
                .operation(&self.book, "read", "", ListTxn(vec![Step::read(&set)]), read)
                .map(drop)
        })
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        let judge = |history: &History<_, _>| cycles::lists(history, Level::StrictSerializable);
        vec![Exhibit::new("addings", "--model list-append", self.book.history(), judge)]
    }
}
