//! Registers: clients read, write, and change what they have seen, on a few keys. Every key must be linearizable.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bowline::check::{History, Register, RegisterCall, RegisterReply, Value, linear};

use super::{Client, Control, Exhibit, Kind, Workload, budget};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply};
use crate::ledger::Book;

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

/// How many keys are used at a time.
const KEYS: u64 = 3;
/// After so many operations there are other keys: the fewer a key has, the faster it is judged.
const KEY_OPERATIONS: u64 = 600;

/// See the module.
#[derive(Default)]
pub(super) struct Registers {
    reads_locally: bool,
    book: Book<RegisterCall, RegisterReply>,
    operations: AtomicU64,
    values: AtomicI64,
}

impl Registers {
    fn step(&self, seen: &mut Option<(String, i64)>, caller: &mut Caller<'_>) {
        let number = self.operations.fetch_add(1, Ordering::Relaxed);
        let key = format!("r/{}/{}", number / (KEYS * KEY_OPERATIONS), caller.dice.below(KEYS));
        let value = self.values.fetch_add(1, Ordering::Relaxed);
        let held = |value: i64| Some(Value::from(value));
        // Whoever has seen a value tries to change just that one.
        let expect = seen.take().filter(|(of, _)| *of == key).map(|(_, value)| value);
        match (caller.dice.below(5), expect) {
            (0 | 1, _) | (4, None) => {
                let get = Call::Get { key: key.clone(), local: self.reads_locally };
                let read = |caller: &mut Caller<'_>| match caller.call(&get)? {
                    Reply::Rows { rows, .. } => {
                        let value = rows.first().and_then(|row| row.value.parse().ok());
                        Ok(RegisterReply::Read(value.map(|value: i64| value.into())))
                    }
                    reply => Err(Miss::nonsense(&reply)),
                };
                let reply = caller.operation(&self.book, "read", &key, RegisterCall::Read, read);
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

    fn exhibits(&self) -> Vec<Exhibit> {
        let judge =
            |history: &History<_, _>| linear::check(&Register::default(), history, budget());
        vec![Exhibit::new("registers", "--model register", self.book.history(), judge)]
    }
}
