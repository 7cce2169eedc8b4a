//! Leases that nobody renews: they never end early, their keys go with them, all at once and for good, and they do end.
//!
//! Whether a lease lives is seen by its keys.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use bowline::check::intervals::{self, LeaseCall, LeaseReply, leases};
use bowline::check::{At, History, Outcome, Value};

use super::{Client, Exhibit, Kind, Workload};
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
/// How many looks a client has patience for.
const LOOKS_MAX: usize = 200;
/// How long after the last fault all leases must have ended: a few of the longest, and elections between them.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Default)]
struct Leases {
    book: Book<LeaseCall, LeaseReply>,
    complaints: Mutex<Vec<String>>,
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
        for _ in 0..LOOKS_MAX {
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

    fn exhibits(&self) -> Vec<Exhibit> {
        let complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let judge = |history: &History<_, _>| leases(&intervals::Leases::default(), history);
        vec![
            Exhibit::new("leases", "--model leases", self.book.history(), judge),
            Exhibit::complaints("keys of leases", complaints),
        ]
    }
}
