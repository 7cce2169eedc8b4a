//! A workload of leases that are not renewed. A lease must not expire early, and must expire eventually. All its keys
//! must be deleted together, and must stay deleted.
//!
//! A lease exists as long as its keys exist. Late expiry is only checked in periods without faults and without leader
//! changes, because a new leader restarts the full TTL. If one leader has measured the whole TTL ([`late`]), the lease
//! must end soon after.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bowline_check::intervals::{self, LeaseCall, LeaseReply, leases};
use bowline_check::{At, History, Operation, Outcome, Value};

use super::{Client, Exhibit, Kind, Span, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply};
use crate::ledger::Book;
use crate::over::Over;

pub(super) const KIND: Kind = Kind {
    name: "lease",
    about: "leases do not expire early, delete all their keys at once, and do expire",
    least: &[("grant", 20), ("bind", 30), ("read", 60)],
    clients: 3,
    control: None,
    make: || Box::new(Leases::default()),
};

/// The message of a node when a key is to be attached to a lease that has ended.
const NO_LEASE: &str = "requested lease not found";
/// Number of keys per lease.
const KEYS: u64 = 2;
/// Bounds of the TTL. With a shorter TTL, the 100 ms that a leader counts for a clock jump would exceed the drift
/// bound.
const TTL_MS_MIN: u64 = 1000;
const TTL_MS_MAX: u64 = 2000;
/// Interval between two checks.
const LOOK_MS: u64 = 60;
/// How long a client checks a lease. The time is long enough to detect a late lease, unless faults follow each other
/// closely.
const WATCH_TIME: Duration = Duration::from_secs(30);
/// Margin that a leader adds to the TTL for clock drift, in percent.
const DRIFT_PERCENT: u64 = 10;
/// Maximum lease time that a leader counts between two of its iterations, in microseconds. The leader treats a longer
/// time as a stall of the process.
const STEP_MAX: u64 = 100_000;
/// Maximum time from the measured expiry of a lease to the deletion of its keys, in microseconds. Allows for a busy
/// disk.
const LATE: u64 = 12_000_000;
/// Maximum time after the last fault until all leases have ended: several of the longest TTLs, with elections between
/// them.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// The workload.
#[derive(Default)]
struct Leases {
    book: Book<LeaseCall, LeaseReply>,
    problems: Mutex<Vec<String>>,
    disturbed: Mutex<Vec<Span>>,
}

impl Leases {
    fn report_problem(&self, why: String) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).push(why);
    }

    /// Grants one lease and checks it until its keys are deleted. `name` is the prefix of the keys.
    fn live(&self, name: &str, caller: &mut Caller<'_>) -> Result<(), Miss> {
        let ttl_ms = match caller.fleet.setup().over {
            Over::Embedded => TTL_MS_MIN + caller.dice.below(TTL_MS_MAX - TTL_MS_MIN),
            // Lease TTLs of servers are whole seconds. The server would round up other TTLs.
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
                // The lease has ended, perhaps before it had a key that would show its existence.
                let look = LeaseCall::Look { lease: named() };
                let index = self.book.begin(caller.client, "", bind.invoked, look);
                let reply = LeaseReply { there: false, ttl: None };
                self.book.end(index, Outcome::Ok { at: At(bind.ended), reply });
            }
            return Err(miss.clone());
        }
        let begun = Instant::now();
        while begun.elapsed() < WATCH_TIME {
            thread::sleep(Duration::from_millis(caller.dice.below(LOOK_MS)));
            let list = Call::List { prefix: name.to_owned() };
            let mut keys = 0;
            let look = |caller: &mut Caller<'_>| {
                keys = caller.rows(&list)?.len() as u64;
                Ok(LeaseReply { there: keys > 0, ttl: None })
            };
            let look =
                caller.operation(&self.book, "read", "", LeaseCall::Look { lease: named() }, look);
            match look {
                Ok(_) if keys == 0 => break,
                Ok(_) if keys < KEYS => {
                    self.report_problem(format!("only {keys} keys of lease {name} exist"));
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
        // The result is ignored here, because the outcome is recorded in the book.
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
            let left = caller.rows(&Call::List { prefix: "t/".to_owned() })?.len();
            if left == 0 {
                return Ok(());
            }
            if caller.now() > until {
                self.report_problem(format!("{left} keys outlived their leases"));
                return Ok(());
            }
            thread::sleep(Duration::from_millis(LOOK_MS));
        }
    }

    fn was_disturbed(&self, spans: Vec<Span>) {
        *self.disturbed.lock().unwrap_or_else(PoisonError::into_inner) = spans;
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let judge = |history: &History<_, _>| leases(&intervals::Leases::default(), history);
        let history = self.book.history();
        let disturbed = self.disturbed.lock().unwrap_or_else(PoisonError::into_inner);
        problems.extend(late(&history, &disturbed));
        vec![
            Exhibit::new("leases", "--model leases", history, judge),
            Exhibit::problems("keys of leases", problems),
        ]
    }
}

/// How much of the TTL of a lease is known to have been measured.
struct Counted {
    ttl: u64,
    /// Minimum time measured since the grant or the last disturbance.
    counted: u64,
    /// Time at which the lease was last seen.
    seen: u64,
}

/// Returns the leases that still exist although one leader has certainly measured more than their TTL. Each check is a
/// read that the leader has confirmed. Between two checks, the leader has measured at least the time between them, up
/// to its maximum per iteration. A slow machine therefore never makes a lease seem late.
fn late(history: &History<LeaseCall, LeaseReply>, disturbed: &[Span]) -> Vec<String> {
    let (mut problems, mut all) = (Vec::new(), BTreeMap::new());
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
            problems.push(format!(
                "lease {lease} with a TTL of {ttl} us still exists at {seen}, after {counted} us"
            ));
            all.remove(lease);
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Judgement;

    const SECOND: u64 = 1_000_000;

    /// Checks a lease of one second that is seen repeatedly for this long.
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
