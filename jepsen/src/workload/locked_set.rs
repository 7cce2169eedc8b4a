//! A workload of a set under a lock: each client acquires the lock, reads the set, pauses, and writes the set with one
//! more element. If the write uses `guard.txn`, no element may be lost. Without `guard.txn`, a holder that was paused
//! too long overwrites the elements of other clients. A run without `guard.txn` must show such a loss, as proof that
//! the harness detects it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_check::{History, Level, ListTxn, TxnStep, Value, cycles};

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
    about: "a control that must fail under pause: without guarded transactions some are lost",
    least: &[("add", 30)],
    clients: 2,
    control: Some(Control { under: "pause", may_stop: false }),
    make: || Box::new(LockedSet::new(false)),
};

/// Number of sets and locks in use at a time. If a crash blocks two of them, one is left for the other clients.
const SETS: u64 = 3;
/// Number of elements after which new sets are used.
const ELEMENTS: u64 = 600;
const WAIT_MS: u64 = 4000;
/// Session TTL. The TTL is short, so that pauses often outlast it.
const SESSION: Duration = Duration::from_millis(1700);

/// The workload.
struct LockedSet {
    guarded: bool,
    /// Adding an element appends it to a list.
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
        // The unguarded workload (a control, which must fail) pauses longer in each step, so that a fault is likely to
        // suspend the process that executes the step between its read and its write.
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
        let txn = ListTxn(vec![TxnStep::write(&set, element.cast_signed())]);
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
            let read = |caller: &mut Caller<'_>| {
                let rows = caller.rows(&get)?;
                Ok(vec![rows.first().map_or_else(Vec::new, |row| elements(&row.value))])
            };
            caller
                .operation(&self.book, "read", "", ListTxn(vec![TxnStep::read(&set)]), read)
                .map(drop)
        })
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        let judge = |history: &History<_, _>| cycles::lists(history, Level::StrictSerializable);
        vec![Exhibit::new("addings", "--model list-append", self.book.history(), judge)]
    }
}
