//! A workload of bank transfers: transactions move money between accounts. The transactions must be strictly
//! serializable, and every read of all accounts must return the same total.
//!
//! An account stores its balance and the name of the transaction that wrote the balance, as in `83 by 2.117`. No two
//! transactions write the same value, so the checker knows which write a read returned.

use std::sync::atomic::{AtomicU64, Ordering};

use bowline_check::{History, Level, Outcome, RegisterTxn, TxnStep, Value, cycles};

use super::{Client, Exhibit, Kind, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply, Row};
use crate::ledger::Book;

pub(super) const KIND: Kind = Kind {
    name: "bank",
    about: "transfers between accounts are strictly serializable, and every read sees the same sum",
    least: &[("transfer", 60), ("read", 60)],
    clients: 3,
    control: None,
    make: || Box::new(Bank::default()),
};

const PREFIX: &str = "b/";
const ACCOUNTS: u64 = 8;
const FIRST: i64 = 100;
const AMOUNT_MAX: u64 = 20;

/// The workload.
#[derive(Default)]
struct Bank {
    book: Book<RegisterTxn, Vec<Option<Value>>>,
    transactions: AtomicU64,
}

fn account(number: u64) -> String {
    format!("{PREFIX}{number}")
}

fn all(caller: &Caller<'_>) -> Result<Vec<Row>, Miss> {
    caller.rows(&Call::List { prefix: PREFIX.to_owned() })
}

/// Returns the balance in the value of an account.
fn balance(held: &str) -> i64 {
    held.split_once(' ').and_then(|(balance, _)| balance.parse().ok()).unwrap_or(i64::MIN / 1000)
}

fn seen<'a>(rows: &'a [Row], key: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.key == key)
}

fn value(row: Option<&Row>) -> Option<Value> {
    row.map(|row| Value::from(row.value.as_str()))
}

impl Bank {
    /// Returns a new transaction name.
    fn name(&self, caller: &Caller<'_>) -> String {
        format!("{}.{}", caller.client, self.transactions.fetch_add(1, Ordering::Relaxed))
    }

    fn read(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        let steps = (0..ACCOUNTS).map(|number| TxnStep::read(&account(number))).collect();
        let read = |caller: &mut Caller<'_>| {
            let rows = all(caller)?;
            Ok((0..ACCOUNTS).map(|number| value(seen(&rows, &account(number)))).collect())
        };
        caller.operation(&self.book, "read", "", RegisterTxn(steps), read).map(drop)
    }

    fn transfer(&self, caller: &mut Caller<'_>) {
        let from = caller.dice.below(ACCOUNTS);
        let to = (from + 1 + caller.dice.below(ACCOUNTS - 1)) % ACCOUNTS;
        let amount = 1 + caller.dice.below(AMOUNT_MAX).cast_signed();
        let (from, to, name) = (account(from), account(to), self.name(caller));
        // The written values depend on the values read, so the call can be recorded only after the read.
        let rows = match all(caller) {
            Ok(rows) => rows,
            Err(miss) => {
                let failed = |_: &mut Caller<'_>| Err::<(), _>(miss.harmless());
                return drop(caller.timed("transfer", failed).result);
            }
        };
        let (Some(has), Some(gets)) = (seen(&rows, &from), seen(&rows, &to)) else { return };
        let (has_then, gets_then) = (balance(&has.value) - amount, balance(&gets.value) + amount);
        if has_then < 0 {
            return;
        }
        let [has_then, gets_then] = [has_then, gets_then].map(|sum| format!("{sum} by {name}"));
        let call = RegisterTxn(vec![
            TxnStep::read(&from),
            TxnStep::read(&to),
            TxnStep::write(&from, has_then.as_str()),
            TxnStep::write(&to, gets_then.as_str()),
        ]);
        let commit = Call::Commit {
            when: vec![(from.clone(), has.modified), (to.clone(), gets.modified)],
            put: vec![(from, has_then), (to, gets_then)],
        };
        let transfer = |caller: &mut Caller<'_>| match caller.call(&commit)? {
            Reply::Swapped { swapped: true, .. } => Ok(vec![value(Some(has)), value(Some(gets))]),
            Reply::Swapped { swapped: false, .. } => {
                Err(Miss::Failed("conflicting write".to_owned()))
            }
            reply => Err(Miss::nonsense(&reply)),
        };
        drop(caller.operation(&self.book, "transfer", "", call, transfer));
    }
}

impl Client for &Bank {
    fn step(&mut self, caller: &mut Caller<'_>) {
        if caller.dice.below(3) == 0 {
            // The result is ignored here, because the outcome is recorded in the book.
            drop(self.read(caller));
        } else {
            self.transfer(caller);
        }
    }
}

impl Workload for Bank {
    fn begin(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        let name = self.name(caller);
        let first: Vec<(String, String)> =
            (0..ACCOUNTS).map(|number| (account(number), format!("{FIRST} by {name}"))).collect();
        let write = |(key, held): &(String, String)| TxnStep::write(key, held.as_str());
        let call = RegisterTxn(first.iter().map(write).collect());
        let commit = Call::Commit { when: Vec::new(), put: first };
        let open = |caller: &mut Caller<'_>| caller.call(&commit).map(|_| Vec::new());
        caller.operation(&self.book, "open", "", call, open).map(drop)
    }

    fn client<'a>(&'a self, _number: u64) -> Box<dyn Client + 'a> {
        Box::new(self)
    }

    fn conclude(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        self.read(caller)
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        let judge = |history: &History<_, _>| cycles::registers(history, Level::StrictSerializable);
        let history = self.book.history();
        let sums = Exhibit::problems("sums", sums(&history));
        vec![Exhibit::new("accounts", "--model write-read", history, judge), sums]
    }
}

/// Returns the reads of all accounts with a wrong total or a wrong number of accounts.
fn sums(history: &History<RegisterTxn, Vec<Option<Value>>>) -> Vec<String> {
    let mut problems = Vec::new();
    for (index, operation) in history.iter().enumerate() {
        let Outcome::Ok { reply, .. } = &operation.outcome else { continue };
        if reply.len() as u64 != ACCOUNTS {
            continue;
        }
        let holds = |held: &Option<Value>| match held {
            Some(Value::Text(held)) => balance(held),
            _ => 0,
        };
        let sum: i64 = reply.iter().map(holds).sum();
        if sum != FIRST * ACCOUNTS.cast_signed() {
            problems.push(format!("#{index} read a total of {sum}: {reply:?}"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use bowline_check::Operation;

    use super::*;

    #[test]
    fn bank_read_with_a_wrong_sum_is_reported() {
        let read = |first: &str| {
            let mut reply = vec![Some(Value::from("100 by 1.0")); 8];
            reply[0] = Some(Value::from(first));
            vec![Operation::ok(1, 2, RegisterTxn(Vec::new()), reply)]
        };
        assert_eq!(sums(&read("100 by 2.7")).len(), 0);
        assert_eq!(sums(&read("101 by 2.7")).len(), 1);
        assert_eq!(sums(&read("nonsense")).len(), 1);
    }
}
