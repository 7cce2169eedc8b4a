//! A workload of registers: clients read, write, and compare and set a few keys. Every key must be linearizable.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bowline_check::{History, Register, RegisterCall, RegisterReply, Value, linear};

use super::{Client, Control, Exhibit, Kind, Workload, budget};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply};
use crate::ledger::Book;
use crate::run::wait_limited;

pub(super) const KIND: Kind = Kind {
    name: "register",
    about: "reads, writes and compare-and-sets on a few keys are linearizable",
    least: &[("read", 60), ("write", 60), ("cas", 30)],
    clients: 3,
    control: None,
    make: || Box::new(Registers::default()),
};

pub(super) const LOCAL: Kind = Kind {
    name: "register-local",
    about: "a control that must fail: the same, but reads are local, so that some are stale",
    least: KIND.least,
    clients: 3,
    control: Some(Control { under: "partition-halves", may_stop: false }),
    make: || Box::new(Registers { reads_locally: true, ..Registers::default() }),
};

/// Number of keys in use at a time.
const KEYS: u64 = 3;
/// Number of operations after which new keys are used, because short histories are checked faster.
const KEY_OPERATIONS: u64 = 600;

/// The workload.
#[derive(Default)]
pub(super) struct Registers {
    reads_locally: bool,
    book: Book<RegisterCall, RegisterReply>,
    operations: AtomicU64,
    values: AtomicI64,
}

/// Returns the generation of the keys that an operation uses.
fn generation(operation: u64) -> u64 {
    operation / (KEYS * KEY_OPERATIONS)
}

fn key(generation: u64, number: u64) -> String {
    format!("r/{generation}/{number}")
}

impl Registers {
    fn read(&self, key: &str, local: bool, caller: &mut Caller<'_>) -> Result<RegisterReply, Miss> {
        let get = Call::Get { key: key.to_owned(), local };
        let read = |caller: &mut Caller<'_>| {
            let rows = caller.rows(&get)?;
            let value = rows.first().and_then(|row| row.value.parse().ok());
            Ok(RegisterReply::Read(value.map(|value: i64| value.into())))
        };
        caller.operation(&self.book, "read", key, RegisterCall::Read, read)
    }

    fn step(&self, seen: &mut Option<(String, i64)>, caller: &mut Caller<'_>) {
        let number = self.operations.fetch_add(1, Ordering::Relaxed);
        let key = key(generation(number), caller.dice.below(KEYS));
        let value = self.values.fetch_add(1, Ordering::Relaxed);
        let held = |value: i64| Some(Value::from(value));
        // A client that has seen a value tries to replace exactly that value.
        let expect = seen.take().filter(|(of, _)| *of == key).map(|(_, value)| value);
        match (caller.dice.below(5), expect) {
            (0 | 1, _) | (4, None) => {
                let reply = self.read(&key, self.reads_locally, caller);
                if let Ok(RegisterReply::Read(Some(Value::Number(value)))) = reply {
                    *seen = Some((key, value));
                }
            }
            (4, Some(expect)) => {
                let call = RegisterCall::CompareAndSet { expect: held(expect), value: held(value) };
                let swap = Call::Swap {
                    key: key.clone(),
                    expect: Some(expect.to_string()),
                    value: value.to_string(),
                };
                let compared = |caller: &mut Caller<'_>| match caller.call(&swap)? {
                    Reply::Swapped { swapped, .. } => Ok(RegisterReply::Compared { swapped }),
                    reply => Err(Miss::nonsense(&reply)),
                };
                drop(caller.operation(&self.book, "cas", &key, call, compared));
            }
            _ => {
                let put = Call::Put { key: key.clone(), value: value.to_string(), lease: None };
                let write = |caller: &mut Caller<'_>| match caller.call(&put)? {
                    Reply::Done { .. } => Ok(RegisterReply::Written),
                    reply => Err(Miss::nonsense(&reply)),
                };
                let call = RegisterCall::Write(held(value));
                drop(caller.operation(&self.book, "write", &key, call, write));
                *seen = Some((key, value));
            }
        }
    }
}

struct Hand<'a> {
    registers: &'a Registers,
    seen: Option<(String, i64)>,
}

impl Client for Hand<'_> {
    fn step(&mut self, caller: &mut Caller<'_>) {
        self.registers.step(&mut self.seen, caller);
    }
}

impl Workload for Registers {
    fn client<'a>(&'a self, _number: u64) -> Box<dyn Client + 'a> {
        Box::new(Hand { registers: self, seen: None })
    }

    /// Reads all keys. Otherwise the loss of a key that was not read since its last write would not be noticed. A
    /// control must fail before this read.
    fn conclude(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        let last = generation(self.operations.load(Ordering::Relaxed));
        let mut keys = (0..=last).flat_map(|of| (0..KEYS).map(move |number| key(of, number)));
        keys.try_for_each(|key| {
            wait_limited(caller, |caller| self.read(&key, false, caller).map(drop))
        })
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        let judge =
            |history: &History<_, _>| linear::check(&Register::default(), history, budget());
        vec![Exhibit::new("registers", "--model register", self.book.history(), judge)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Answer;
    use crate::fleet::tests::{answers, shell};
    use crate::ledger::Ledger;
    use crate::workload::Judgement;
    use bowline_check::Operation;

    /// Checks a run with this last write and an empty final state.
    fn emptied(number: u64, operations: u64) -> Judgement {
        let write = RegisterCall::Write(Some(7.into()));
        let write = Operation::ok(1, 2, write, RegisterReply::Written);
        let written = write.on(&key(generation(number), 1));
        let registers = Registers {
            book: Book::of(vec![written]),
            operations: AtomicU64::new(operations),
            ..Registers::default()
        };
        let empty = Reply::Rows { revision: 9, rows: Vec::new() };
        let fleet = shell(&answers(&Answer::Came(Box::new(empty))));
        let ledger = Ledger::default();
        while ledger.now() < 10 {}
        registers.conclude(&mut Caller::new(&fleet, &ledger, 1, 0, 1)).unwrap();
        registers.exhibits().remove(0).judge().judgement
    }

    #[test]
    fn stale_read_of_the_last_write_is_a_violation() {
        let generation = KEYS * KEY_OPERATIONS;
        for (number, operations) in
            [(0, 1), (0, 3 * generation), (2 * generation, 2 * generation + 1)]
        {
            let judged = emptied(number, operations);
            assert!(matches!(judged, Judgement::Violation(_)), "{number}: {judged:?}");
        }
    }
}
