//! A queue: what was put is taken by somebody, and counts once: acknowledged together with a row that says by whom.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bowline::check::{History, Outcome};
use serde::Serialize;

use super::{Client, Exhibit, Kind, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply};
use crate::ledger::Book;

pub(super) const KIND: Kind = Kind {
    name: "queue",
    about: "every item that was put is acknowledged exactly once, with its effect",
    least: &[("put", 60), ("take", 60), ("ack", 60)],
    clients: 2,
    control: None,
    make: || Box::new(Items::default()),
};

const QUEUE: &str = "q/work";
const DONE: &str = "q-done/";
const WAIT_MS: u64 = 500;
/// In the end the queue must get emptier within so long, again and again.
const EMPTIER_WITHIN: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum ItemCall {
    Put(u64),
    Take,
    /// By whom.
    Ack(u64, String),
}

/// See the module.
#[derive(Default)]
struct Items {
    /// A take answers with the item, an acknowledgement with 1 if it counted and 0 if not.
    book: Book<ItemCall, Option<u64>>,
    next: AtomicU64,
    takes: AtomicU64,
    /// Which items have their row, and by whom.
    done: Mutex<BTreeMap<u64, String>>,
}

impl Items {
    fn put(&self, caller: &mut Caller<'_>) {
        let item = self.next.fetch_add(1, Ordering::Relaxed);
        let offer = Call::Offer { queue: QUEUE.to_owned(), value: item.to_string() };
        let put = |caller: &mut Caller<'_>| caller.call(&offer).map(|_| None);
        drop(caller.operation(&self.book, "put", QUEUE, ItemCall::Put(item), put));
    }

    /// Takes one and acknowledges it; whether there was one.
    fn take(&self, caller: &mut Caller<'_>) -> Result<bool, Miss> {
        let who = format!("{}.{}", caller.client, self.takes.fetch_add(1, Ordering::Relaxed));
        let call = Call::Take { slot: who.clone(), queue: QUEUE.to_owned(), wait_ms: WAIT_MS };
        let taken = caller.operation(&self.book, "take", QUEUE, ItemCall::Take, |caller| {
            match caller.call(&call)? {
                Reply::Item(item) => Ok(item.map(|item| item.parse().unwrap_or(u64::MAX))),
                reply => Err(Miss::nonsense(&reply)),
            }
        });
        if matches!(taken, Err(Miss::Unknown(_))) {
            // It may come yet.
            caller.forget(who.clone());
        }
        let Some(item) = taken? else { return Ok(false) };
        if caller.dice.below(10) == 0 {
            // It is given back, for somebody else.
            caller.call(&Call::Release { slot: who })?;
            return Ok(true);
        }
        let call = Call::Acknowledge {
            slot: who.clone(),
            key: format!("{DONE}{item:06}"),
            value: who.clone(),
        };
        let ack = ItemCall::Ack(item, who.clone());
        caller.operation(&self.book, "ack", QUEUE, ack, |caller| match caller.call(&call)? {
            Reply::Held(true) => Ok(Some(1)),
            Reply::Held(false) => Err(Miss::Failed("it is another's".to_owned())),
            reply => Err(Miss::nonsense(&reply)),
        })?;
        Ok(true)
    }
}

impl Client for &Items {
    fn step(&mut self, caller: &mut Caller<'_>) {
        if caller.dice.below(2) == 0 {
            self.put(caller);
        } else {
            drop(self.take(caller));
        }
    }
}

impl Workload for Items {
    fn client<'a>(&'a self, _number: u64) -> Box<dyn Client + 'a> {
        Box::new(self)
    }

    fn conclude(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        // Whatever is claimed by somebody who is gone comes back when its session has ended.
        let (mut least, mut since) = (usize::MAX, Instant::now());
        loop {
            let some = self.take(caller).unwrap_or(true);
            let left = match caller.call(&Call::List { prefix: format!("{QUEUE}/item/") })? {
                Reply::Rows { rows, .. } => rows.len(),
                reply => return Err(Miss::nonsense(&reply)),
            };
            if !some && left == 0 {
                break;
            }
            if left < least {
                (least, since) = (left, Instant::now());
            }
            if since.elapsed() > EMPTIER_WITHIN {
                return Err(Miss::Failed(format!("{left} items are never taken")));
            }
        }
        match caller.call(&Call::List { prefix: DONE.to_owned() })? {
            Reply::Rows { rows, .. } => {
                let item = |key: &str| key[DONE.len()..].parse().unwrap_or(u64::MAX);
                let done = rows.into_iter().map(|row| (item(&row.key), row.value)).collect();
                *self.done.lock().unwrap_or_else(PoisonError::into_inner) = done;
                Ok(())
            }
            reply => Err(Miss::nonsense(&reply)),
        }
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let judge = move |history: &History<_, _>| complaints(history, &done);
        vec![Exhibit::of_our_own("items", self.book.history(), judge)]
    }
}

fn complaints(
    history: &History<ItemCall, Option<u64>>,
    done: &BTreeMap<u64, String>,
) -> Vec<String> {
    let mut complaints = Vec::new();
    let (mut put, mut refused) = (BTreeSet::new(), BTreeSet::new());
    let mut acknowledged: BTreeMap<u64, &str> = BTreeMap::new();
    for (index, operation) in history.iter().enumerate() {
        match (&operation.call, &operation.outcome) {
            (ItemCall::Put(item), Outcome::Ok { .. }) => drop(put.insert(*item)),
            (ItemCall::Put(item), Outcome::Failed { .. }) => drop(refused.insert(*item)),
            (ItemCall::Ack(item, who), Outcome::Ok { .. }) => {
                if let Some(other) = acknowledged.insert(*item, who) {
                    complaints.push(format!("{item} was acknowledged by {other} and {who}"));
                }
                if done.get(item) != Some(who) {
                    let by = done.get(item);
                    complaints.push(format!("{item} was acknowledged by {who}, done by {by:?}"));
                }
            }
            (ItemCall::Ack(item, who), Outcome::Failed { .. }) if done.get(item) == Some(who) => {
                complaints.push(format!("{item} was done by {who}, who was refused ({index})"));
            }
            (ItemCall::Take, Outcome::Ok { reply: Some(item), .. }) if refused.contains(item) => {
                complaints.push(format!("{item} was taken ({index}) and never put"));
            }
            _ => {}
        }
    }
    let lost = put.iter().filter(|item| !done.contains_key(item));
    complaints.extend(lost.map(|item| format!("{item} was put, and is never done")));
    complaints
}
