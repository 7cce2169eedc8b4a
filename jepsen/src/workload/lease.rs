//! Leases that nobody renews: they never end early, their keys go with them, all at once and for good, and they do end.
//!
//! Whether a lease lives is seen by its keys. That it ends in time is judged where nothing is broken and nobody else comes to
//! lead, who would give it all of its time anew: whoever leads has counted it to the end ([`late`]), and ends it soon.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bowline::check::intervals::{self, LeaseCall, LeaseReply, leases};
use bowline::check::{At, History, Operation, Outcome, Value};

use super::{Client, Exhibit, Kind, Span, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply};
use crate::ledger::Book;
use crate::over::Over;

pub(super) const KIND: Kind = Kind {
    name: "lease",
    about: "leases do not end early, take all their keys with them at once, and do end",
    least: &[("grant", 20), ("bind", 30), ("read", 60)],
    clients: 3,
    control: None,
    make: || Box::new(Leases::default()),
};

/// What a node says that is to bind a key to a lease that has ended.
const NO_LEASE: &str = "requested lease not found";
/// The keys of a lease.
const KEYS: u64 = 2;
/// Of a shorter one, the 100 ms that a leader counts when its clock jumps would be more than the drift bound.
const TTL_MS_MIN: u64 = 1000;
const TTL_MS_MAX: u64 = 2000;
/// How long between two looks.
const LOOK_MS: u64 = 60;
/// For how long a client looks: longer than it takes to see that one is late, unless fault comes after fault.
const LOOKS_FOR: Duration = Duration::from_secs(30);
/// How much more than a lease's time its leader waits, in percent: for the drift of clocks.
const DRIFT_PERCENT: u64 = 10;
/// The most that a leader counts between two of its turns, in microseconds: what is more it takes for a stall.
const STEP_MAX: u64 = 100_000;
/// How long a leader may take until a lease has ended whose time it has counted, in microseconds: a disk may be busy.
const LATE: u64 = 12_000_000;
/// How long after the last fault all leases must have ended: a few of the longest, and elections between them.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Default)]
struct Leases {
    book: Book<LeaseCall, LeaseReply>,
    complaints: Mutex<Vec<String>>,
    disturbed: Mutex<Vec<Span>>,
}

impl Leases {
    fn complain(&self, why: String) {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).push(why);
    }

    /// One lease, from its grant until its keys are gone. Its keys' beginning is its name.
    fn live(&self, name: &str, caller: &mut Caller<'_>) -> Result<(), Miss> {
        let ttl_ms = match caller.fleet.setup().over {
            Over::Embedded => TTL_MS_MIN + caller.dice.below(TTL_MS_MAX - TTL_MS_MIN),
            // There they have whole seconds, and the server would give more.
            Over::Server => [TTL_MS_MIN, TTL_MS_MAX][caller.dice.one_of(2)],
        };
        let named = || Value::from(name);
        let mut lease = 0;
        let grant = LeaseCall::Grant { lease: named(), ttl: ttl_ms * 1000 };
        caller.operation(&self.book, "grant", "", grant, |caller| {
            match caller.call(&Call::Grant { ttl_ms })? {
                Reply::Lease(id) => {
                    lease = id;
                    Ok(LeaseReply { there: true, ttl: None })
                }
                reply => Err(Miss::nonsense(&reply)),
            }
        })?;
        for key in 0..KEYS {
            let key = format!("{name}{key}");
            let put = Call::Put { key, value: "bound".to_owned(), lease: Some(lease) };
            let bind = caller.timed("bind", |caller| caller.call(&put));
            let Err(miss) = &bind.result else { continue };
            if matches!(miss, Miss::Failed(why) if why.contains(NO_LEASE)) {
                // It has ended, perhaps before it had a key by which it is seen.
                let look = LeaseCall::Look { lease: named() };
                let index = self.book.begin(caller.client, "", bind.invoked, look);
                let reply = LeaseReply { there: false, ttl: None };
                self.book.end(index, Outcome::Ok { at: At(bind.ended), reply });
            }
            return Err(miss.clone());
        }
        let begun = Instant::now();
        while begun.elapsed() < LOOKS_FOR {
            thread::sleep(Duration::from_millis(caller.dice.below(LOOK_MS)));
            let list = Call::List { prefix: name.to_owned() };
            let mut keys = 0;
            let look = |caller: &mut Caller<'_>| match caller.call(&list)? {
                Reply::Rows { rows, .. } => {
                    keys = rows.len() as u64;
                    Ok(LeaseReply { there: keys > 0, ttl: None })
                }
                reply => Err(Miss::nonsense(&reply)),
            };
            let look =
                caller.operation(&self.book, "read", "", LeaseCall::Look { lease: named() }, look);
            match look {
                Ok(_) if keys == 0 => break,
                Ok(_) if keys < KEYS => {
                    self.complain(format!("only {keys} keys of lease {name} are there"));
                }
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
            if left == 0 {
                return Ok(());
            }
            if caller.now() > until {
                self.complain(format!("{left} keys outlive their leases"));
                return Ok(());
            }
            thread::sleep(Duration::from_millis(LOOK_MS));
        }
    }

    fn was_disturbed(&self, spans: Vec<Span>) {
        *self.disturbed.lock().unwrap_or_else(PoisonError::into_inner) = spans;
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let judge = |history: &History<_, _>| leases(&intervals::Leases::default(), history);
        let history = self.book.history();
        let disturbed = self.disturbed.lock().unwrap_or_else(PoisonError::into_inner);
        complaints.extend(late(&history, &disturbed));
        vec![
            Exhibit::new("leases", "--model leases", history, judge),
            Exhibit::complaints("keys of leases", complaints),
        ]
    }
}

/// How far a lease is known to have been counted.
struct Counted {
    ttl: u64,
    /// So much of it, at least, since it was granted or something was broken.
    counted: u64,
    /// When it was seen last.
    seen: u64,
}

/// Leases that are there still when their leader has surely counted their time, and more. Each look is a read that a leader
/// has answered for: between two of them it has counted the time that lies between them, or as much as it does at once. So
/// no machine that is too busy makes a lease late.
fn late(history: &History<LeaseCall, LeaseReply>, disturbed: &[Span]) -> Vec<String> {
    let (mut complaints, mut all) = (Vec::new(), BTreeMap::new());
    for Operation { invoked, call, outcome, .. } in history {
        let Outcome::Ok { at, reply: LeaseReply { there: true, .. } } = outcome else { continue };
        if let LeaseCall::Grant { lease, ttl } = call {
            all.insert(lease, Counted { ttl: *ttl, counted: 0, seen: at.0 });
            continue;
        }
        let Some(of) = all.get_mut(call.lease()) else { continue };
        let is_disturbed = disturbed.iter().any(|(from, to)| *from <= at.0 && of.seen <= *to);
        let counted = of.counted + invoked.0.saturating_sub(of.seen).min(STEP_MAX);
        (of.counted, of.seen) = (if is_disturbed { 0 } else { counted }, at.0);
        if of.counted > of.ttl + of.ttl / 100 * DRIFT_PERCENT + LATE {
            let (lease, Counted { ttl, counted, seen }) = (call.lease(), of);
            complaints.push(format!(
                "lease {lease} of {ttl} us is there at {seen}, counted for {counted}"
            ));
            all.remove(lease);
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Judgement;

    const SECOND: u64 = 1_000_000;

    /// What is said of a lease of a second that is seen again and again for so long.
    fn seen_for(seconds: u64, every_ms: u64, disturbed: &[Span]) -> Judgement {
        let there = LeaseReply { there: true, ttl: None };
        let lease = || Value::from("t/1.1/");
        let grant = LeaseCall::Grant { lease: lease(), ttl: SECOND };
        let looks = (1..seconds * 1000 / every_ms).map(|look| look * every_ms * 1000);
        let look = |at| Operation::ok(at, at + 1000, LeaseCall::Look { lease: lease() }, there);
        let granted = Operation::ok(0, 1000, grant, there);
        let book = Book::of([granted].into_iter().chain(looks.map(look)).collect());
        let leases = Leases { book, ..Leases::default() };
        leases.was_disturbed(disturbed.to_vec());
        leases.exhibits().pop().unwrap().judge().judgement
    }

    #[test]
    fn late_lease_expiry_without_a_fault_is_a_violation() {
        let is_late = |said: Judgement| matches!(said, Judgement::Violation(_));
        assert!(is_late(seen_for(15, 60, &[])));
        assert!(is_late(seen_for(25, 60, &[(5 * SECOND, 6 * SECOND)])));
        assert!(!is_late(seen_for(12, 60, &[])));
        assert!(!is_late(seen_for(15, 60, &[(5 * SECOND, 6 * SECOND)])), "a fault was there");
        assert!(!is_late(seen_for(15, 60, &[(5 * SECOND, u64::MAX)])));
        assert!(!is_late(seen_for(60, 1000, &[])), "its leader may have stood still between looks");
    }
}
