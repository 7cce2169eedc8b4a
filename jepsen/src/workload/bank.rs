//! A bank: money moves between accounts in transactions. Every read of all accounts sees the same sum, and
//! what each operation sees is what the changes before its revision have made.

use std::collections::BTreeMap;

use bowline::check::{History, Outcome};
use serde::Serialize;

use super::revisions::{self, Mark};
use super::{Client, Judgement, Kind, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply, Row};
use crate::ledger::{Book, lines};

pub(super) const KIND: Kind = Kind {
    name: "bank",
    about: "transfers between accounts: every read sees the same sum, at its place in the order of revisions",
    least: &[("transfer", 60), ("read", 60)],
    clients: 3,
    is_control: false,
    make: || Box::new(Bank::default()),
};

const ACCOUNTS: u64 = 8;
const FIRST: i64 = 100;
const AMOUNT_MAX: u64 = 20;

/// How much there is of each account.
type Balances = BTreeMap<String, i64>;

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum BankCall {
    Read,
    Transfer { from: String, to: String, amount: i64 },
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum BankReply {
    Read {
        revision: u64,
        balances: Balances,
    },
    /// And what the two accounts hold then.
    Moved {
        revision: u64,
        from: i64,
        to: i64,
    },
}

/// See the module.
#[derive(Default)]
struct Bank {
    book: Book<BankCall, BankReply>,
}

fn account(number: u64) -> String {
    format!("b/{number}")
}

fn all(caller: &Caller<'_>) -> Result<(u64, Vec<Row>), Miss> {
    match caller.call(&Call::List { prefix: "b/".to_owned() })? {
        Reply::Rows { revision, rows } => Ok((revision, rows)),
        reply => Err(Miss::nonsense(&reply)),
    }
}

fn holds(row: &Row) -> i64 {
    row.value.parse().unwrap_or(i64::MIN)
}

impl Bank {
    fn read(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        let read = |caller: &mut Caller<'_>| {
            let (revision, rows) = all(caller)?;
            let balances = rows.iter().map(|row| (row.key.clone(), holds(row))).collect();
            Ok(BankReply::Read { revision, balances })
        };
        caller.operation(&self.book, "read", "bank", BankCall::Read, read).map(drop)
    }

    fn transfer(&self, caller: &mut Caller<'_>) {
        let from = caller.dice.below(ACCOUNTS);
        let to = (from + 1 + caller.dice.below(ACCOUNTS - 1)) % ACCOUNTS;
        let amount = 1 + caller.dice.below(AMOUNT_MAX).cast_signed();
        let (from, to) = (account(from), account(to));
        let call = BankCall::Transfer { from: from.clone(), to: to.clone(), amount };
        let transfer = |caller: &mut Caller<'_>| {
            let (_, rows) = all(caller).map_err(Miss::harmless)?;
            let find = |key: &str| rows.iter().find(|row| row.key == key);
            let (Some(has), Some(gets)) = (find(&from), find(&to)) else {
                return Err(Miss::Failed("there is no such account".to_owned()));
            };
            let (has_then, gets_then) = (holds(has) - amount, holds(gets) + amount);
            if has_then < 0 {
                return Err(Miss::Failed("there is not enough".to_owned()));
            }
            let commit = Call::Commit {
                when: vec![(from.clone(), has.modified), (to.clone(), gets.modified)],
                put: vec![(from, has_then.to_string()), (to, gets_then.to_string())],
            };
            match caller.call(&commit)? {
                Reply::Swapped { swapped: true, revision } => {
                    Ok(BankReply::Moved { revision, from: has_then, to: gets_then })
                }
                Reply::Swapped { swapped: false, .. } => {
                    Err(Miss::Failed("another was faster".to_owned()))
                }
                reply => Err(Miss::nonsense(&reply)),
            }
        };
        drop(caller.operation(&self.book, "transfer", "bank", call, transfer));
    }
}

impl Client for &Bank {
    fn step(&mut self, caller: &mut Caller<'_>) {
        if caller.dice.below(3) == 0 {
            drop(self.read(caller));
        } else {
            self.transfer(caller);
        }
    }
}

impl Workload for Bank {
    fn begin(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        let put = (0..ACCOUNTS).map(|number| (account(number), FIRST.to_string())).collect();
        caller.call(&Call::Commit { when: Vec::new(), put }).map(drop)
    }

    fn client<'a>(&'a self, _number: u64) -> Box<dyn Client + 'a> {
        Box::new(self)
    }

    fn conclude(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        self.read(caller)
    }

    fn judge(&self) -> Judgement {
        let history = self.book.history();
        let mut complaints = sums(&history);
        complaints.extend(states(&history));
        complaints.extend(revisions::complaints(&history, |_, reply| {
            Some(match reply {
                BankReply::Read { revision, .. } => Mark { revision: *revision, is_change: false },
                BankReply::Moved { revision, .. } => Mark { revision: *revision, is_change: true },
            })
        }));
        Judgement::of_complaints(complaints, format!("{} operations fit", history.len()))
    }

    fn lines(&self) -> String {
        lines(&self.book.history())
    }
}

/// Reads that see another sum, or another number of accounts.
fn sums(history: &History<BankCall, BankReply>) -> Vec<String> {
    let sum = FIRST * ACCOUNTS.cast_signed();
    let mut complaints = Vec::new();
    for (index, operation) in history.iter().enumerate() {
        if let Outcome::Ok { reply: BankReply::Read { balances, .. }, .. } = &operation.outcome {
            let seen: i64 = balances.values().sum();
            if seen != sum || balances.len() as u64 != ACCOUNTS {
                complaints.push(format!("read {index} sees {seen} in all: {balances:?}"));
            }
        }
    }
    complaints
}

/// Reads that do not see the last acknowledged change of an account before their revision, unless a transfer of unknown
/// fate may have changed it since.
fn states(history: &History<BankCall, BankReply>) -> Vec<String> {
    let mut changes: BTreeMap<&str, BTreeMap<u64, i64>> = BTreeMap::new();
    let mut doubtful: Vec<&str> = Vec::new();
    for operation in history {
        if let BankCall::Transfer { from, to, .. } = &operation.call {
            match &operation.outcome {
                Outcome::Ok {
                    reply: BankReply::Moved { revision, from: has, to: gets }, ..
                } => {
                    changes.entry(from).or_default().insert(*revision, *has);
                    changes.entry(to).or_default().insert(*revision, *gets);
                }
                Outcome::Unknown { .. } => doubtful.extend([from.as_str(), to.as_str()]),
                _ => {}
            }
        }
    }
    let mut complaints = Vec::new();
    for (index, operation) in history.iter().enumerate() {
        let Outcome::Ok { reply: BankReply::Read { revision, balances }, .. } = &operation.outcome
        else {
            continue;
        };
        for (account, seen) in balances {
            let last = changes.get(account.as_str());
            let last = last.and_then(|changes| changes.range(..=*revision).next_back());
            let is = last.map_or(FIRST, |(_, holds)| *holds);
            if is != *seen && !doubtful.contains(&account.as_str()) {
                complaints.push(format!(
                    "read {index} at revision {revision} sees {seen} in {account}, which holds {is}"
                ));
            }
        }
    }
    complaints
}
