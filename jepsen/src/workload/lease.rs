//! Leases that nobody renews: they never end early, their keys go with them, all at once and for good, and they do end.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use bowline::check::{History, Index, Outcome};
use serde::Serialize;

use super::{Client, Judgement, Kind, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply};
use crate::ledger::{Book, lines};

pub(super) const KIND: Kind = Kind {
    name: "lease",
    about: "leases do not end early, take all their keys with them at once, and do end",
    least: &[("grant", 20), ("bind", 30), ("read", 60)],
    clients: 3,
    is_control: false,
    make: || Box::new(Leases::default()),
};

/// The keys of a lease.
const KEYS: u64 = 2;
/// Of a shorter one, the 100 ms that a leader counts when its clock jumps would be more than the drift bound.
const TTL_MS_MIN: u64 = 1000;
const TTL_MS_MAX: u64 = 2000;
/// How long between two looks.
const LOOK_MS: u64 = 60;
/// How many looks a client has patience for.
const LOOKS_MAX: usize = 200;
/// How long after the last fault all leases must have ended: a few of the longest, and elections between them.
const GONE_WITHIN: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum LeaseCall {
    Grant { ttl_ms: u64 },
    Bind { key: u64 },
    Read,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum LeaseReply {
    Granted,
    Bound,
    /// Which of its keys are there, at which revision.
    Seen {
        keys: Vec<u64>,
        revision: u64,
    },
    /// At the very end: how many keys of leases are there.
    Left(usize),
}

/// See the module.
#[derive(Default)]
struct Leases {
    /// Each lease is an object, by the name of its keys.
    book: Book<LeaseCall, LeaseReply>,
}

impl Leases {
    fn live(&self, name: &str, caller: &mut Caller<'_>) -> Result<(), Miss> {
        let ttl_ms = TTL_MS_MIN + caller.dice.below(TTL_MS_MAX - TTL_MS_MIN);
        let mut lease = 0;
        let grant = LeaseCall::Grant { ttl_ms };
        caller.operation(&self.book, "grant", name, grant, |caller| {
            match caller.call(&Call::Grant { ttl_ms })? {
                Reply::Lease(id) => {
                    lease = id;
                    Ok(LeaseReply::Granted)
                }
                reply => Err(Miss::nonsense(&reply)),
            }
        })?;
        for key in 0..KEYS {
            let put = Call::Put {
                key: format!("{name}{key}"),
                value: "bound".to_owned(),
                lease: Some(lease),
            };
            let bind = |caller: &mut Caller<'_>| caller.call(&put).map(|_| LeaseReply::Bound);
            caller.operation(&self.book, "bind", name, LeaseCall::Bind { key }, bind)?;
        }
        for _ in 0..LOOKS_MAX {
            thread::sleep(Duration::from_millis(caller.dice.below(LOOK_MS)));
            let list = Call::List { prefix: name.to_owned() };
            let read = |caller: &mut Caller<'_>| match caller.call(&list)? {
                Reply::Rows { revision, rows } => {
                    let key = |key: &str| key[name.len()..].parse().unwrap_or(u64::MAX);
                    let keys = rows.iter().map(|row| key(&row.key)).collect();
                    Ok(LeaseReply::Seen { keys, revision })
                }
                reply => Err(Miss::nonsense(&reply)),
            };
            let seen = caller.operation(&self.book, "read", name, LeaseCall::Read, read);
            match seen {
                Ok(LeaseReply::Seen { keys, .. }) if keys.is_empty() => break,
                Err(_) if !caller.has_somebody() => break,
                _ => {}
            }
        }
        Ok(())
    }
}

struct Holder<'a> {
    leases: &'a Leases,
    number: u64,
}

impl Client for Holder<'_> {
    fn step(&mut self, caller: &mut Caller<'_>) {
        self.number += 1;
        let name = format!("t/{}.{}/", caller.client, self.number);
        // Whatever came back is in the book.
        drop(self.leases.live(&name, caller));
    }
}

impl Workload for Leases {
    fn client<'a>(&'a self, _number: u64) -> Box<dyn Client + 'a> {
        Box::new(Holder { leases: self, number: 0 })
    }

    fn conclude(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        let until = caller.now() + u64::try_from(GONE_WITHIN.as_micros()).unwrap_or(u64::MAX / 2);
        loop {
            let left = match caller.call(&Call::List { prefix: "t/".to_owned() })? {
                Reply::Rows { rows, .. } => rows.len(),
                reply => return Err(Miss::nonsense(&reply)),
            };
            if left == 0 || caller.now() > until {
                let last = |_: &mut Caller<'_>| Ok(LeaseReply::Left(left));
                return caller.operation(&self.book, "end", "", LeaseCall::Read, last).map(drop);
            }
            thread::sleep(Duration::from_millis(LOOK_MS));
        }
    }

    fn judge(&self) -> Judgement {
        let history = self.book.history();
        let (found, leases) = complaints(&history);
        Judgement::of_complaints(found, format!("{leases} leases, {} operations", history.len()))
    }

    fn lines(&self) -> String {
        lines(&self.book.history())
    }
}

/// What is known of one lease.
#[derive(Default)]
struct Life {
    /// Before this it must not end.
    until: Option<u64>,
    /// Its keys that were bound, when that was known, and by which operation.
    bound: Vec<(u64, u64)>,
    /// From when on its keys were seen to be gone, and at which revision.
    gone: Option<(u64, Index)>,
}

fn complaints(history: &History<LeaseCall, LeaseReply>) -> (Vec<String>, usize) {
    let mut complaints = Vec::new();
    let mut lives: BTreeMap<&str, Life> = BTreeMap::new();
    // Each lease has one client, so that its operations stand in their order.
    for (index, operation) in history.iter().enumerate() {
        let Outcome::Ok { at, reply } = &operation.outcome else { continue };
        let (invoked, ended) = (operation.invoked.0, at.0);
        let life = lives.entry(&operation.object).or_default();
        match (&operation.call, reply) {
            (LeaseCall::Grant { ttl_ms }, _) => {
                // No lease counts from before it was asked for.
                life.until = Some(invoked + ttl_ms * 1000);
            }
            (LeaseCall::Bind { key }, _) => life.bound.push((*key, ended)),
            (LeaseCall::Read, LeaseReply::Seen { keys, revision }) => {
                let missing: Vec<_> =
                    life.bound.iter().filter(|(key, _)| !keys.contains(key)).collect();
                if life.until.is_some_and(|until| ended < until) && !missing.is_empty() {
                    complaints.push(format!("read {index}: the lease has ended early"));
                }
                if !missing.is_empty() && !keys.is_empty() {
                    complaints.push(format!("read {index}: only {keys:?} of its keys are there"));
                }
                if let (false, Some((at, before))) = (keys.is_empty(), life.gone) {
                    complaints.push(format!(
                        "read {index} at revision {revision} sees keys that were gone at {at}, {before}"
                    ));
                }
                if keys.is_empty() && !life.bound.is_empty() {
                    life.gone = Some((*revision, index));
                }
            }
            (LeaseCall::Read, LeaseReply::Left(left)) if *left > 0 => {
                complaints.push(format!("{left} keys outlive their leases"));
            }
            _ => {}
        }
    }
    (complaints, lives.values().filter(|life| life.until.is_some()).count())
}

#[cfg(test)]
mod tests {
    use bowline::check::Operation;

    use super::*;

    fn found(reads: &[(u64, &[u64])]) -> usize {
        let mut history =
            vec![Operation::ok(0, 10, LeaseCall::Grant { ttl_ms: 1 }, LeaseReply::Granted)];
        for key in 0..2 {
            history.push(Operation::ok(20, 30, LeaseCall::Bind { key }, LeaseReply::Bound));
        }
        for (at, keys) in reads {
            let seen = LeaseReply::Seen { keys: keys.to_vec(), revision: *at };
            history.push(Operation::ok(*at, at + 1, LeaseCall::Read, seen));
        }
        complaints(&history).0.len()
    }

    #[test]
    fn a_lease_that_ends_early_or_in_parts_or_comes_back_is_seen() {
        assert_eq!(found(&[(500, &[0, 1]), (1200, &[0, 1]), (1500, &[])]), 0);
        assert_eq!(found(&[(500, &[])]), 1);
        assert_eq!(found(&[(1500, &[1])]), 1);
        assert_eq!(found(&[(1500, &[]), (1600, &[0, 1])]), 1);
    }
}
