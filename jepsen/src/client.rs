//! Carries out, inside a node's process, what clients of workloads ask for ([`Call`]).

use std::thread;
use std::time::Duration;

use bowline::{
    Bytes, Client, Compare, CounterError, Effect, Error, GuardError, KeyRange, KeyValue, LeaseId,
    LockError, Node, Op, QueueError, Released, Revision, Session, Token, TxnReply, Wait,
};

use crate::calls::{Call, Change, Kind, Reply, Row};
use crate::patience;
use crate::slots::{Holding, Slots};
use crate::wire::Answer;

/// What a call may come to besides a reply.
enum Miss {
    /// It certainly has no effect, now or later.
    Refused(String),
    /// It may have one.
    Unknown(String),
}

impl From<Error> for Miss {
    fn from(error: Error) -> Self {
        match error.effect() {
            Effect::NotApplied => Miss::Refused(error.to_string()),
            Effect::Unknown | Effect::Applied => Miss::Unknown(error.to_string()),
        }
    }
}

impl From<LockError> for Miss {
    fn from(error: LockError) -> Self {
        // Nothing is left behind.
        Miss::Refused(error.to_string())
    }
}

impl From<CounterError> for Miss {
    fn from(error: CounterError) -> Self {
        match error {
            CounterError::Store(error) => error.into(),
            error => Miss::Refused(error.to_string()),
        }
    }
}

impl From<QueueError> for Miss {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Store(error) => error.into(),
            error => Miss::Refused(error.to_string()),
        }
    }
}

impl From<GuardError> for Miss {
    fn from(error: GuardError) -> Self {
        match error {
            GuardError::Store(error) => error.into(),
            error => Miss::Refused(error.to_string()),
        }
    }
}

/// How many batches of a watch are given in one answer.
const BATCHES_MAX: usize = 64;

/// Carries out a call.
pub fn carry_out(node: &Node, slots: &Slots, call: Call) -> Answer {
    match reply(node, slots, call) {
        Ok(reply) => Answer::Came(Box::new(reply)),
        Err(Miss::Refused(why)) => Answer::Refused(why),
        Err(Miss::Unknown(why)) => Answer::Unknown(why),
    }
}

fn reply(node: &Node, slots: &Slots, call: Call) -> Result<Reply, Miss> {
    let kv = node.client();
    match call {
        Call::Get { key, local } => {
            let range = kv.range(key);
            let reply = if local { range.local() } else { range }.wait()?;
            Ok(Reply::Rows { revision: reply.revision.get(), rows: rows(&reply.kvs) })
        }
        Call::List { prefix } => {
            let reply = kv.range(KeyRange::prefix(prefix)).wait()?;
            Ok(Reply::Rows { revision: reply.revision.get(), rows: rows(&reply.kvs) })
        }
        Call::Put { key, value, lease } => {
            let put = kv.put(key, value);
            let put = match lease.map(LeaseId::new) {
                Some(Some(lease)) => put.lease(lease),
                Some(None) => return Err(Miss::Refused("0 is no lease".to_owned())),
                None => put,
            };
            Ok(Reply::Done { revision: put.wait()?.revision.get() })
        }
        Call::Swap { key, expect, value } => {
            let when = match expect {
                Some(expect) => Compare::value(key.clone()).eq(expect),
                None => Compare::missing(key.clone()),
            };
            Ok(swapped(&kv.txn().when(when).then(Op::put(key, value)).commit().wait()?))
        }
        Call::Commit { when, put } => {
            let is_as = |(key, at): (String, u64)| Compare::mod_revision(key).eq(Revision(at));
            let txn = kv.txn().when_all(when.into_iter().map(is_as));
            let txn = put.into_iter().fold(txn, |txn, (key, value)| txn.then(Op::put(key, value)));
            Ok(swapped(&txn.commit().wait()?))
        }
        Call::Add { key, by } => Ok(Reply::Number(kv.counter(key).add(by).wait()?)),
        Call::Grant { ttl_ms } => {
            let lease = kv.grant(Duration::from_millis(ttl_ms)).wait()?;
            Ok(Reply::Lease(lease.id.get()))
        }
        Call::Acquire { slot, lock, kind, wait_ms } => {
            let session = session(node)?;
            let (token, holding) = acquire(&session, slots, lock, &kind, wait_ms)?;
            slots.put(slot, holding);
            Ok(granted(token))
        }
        Call::Campaign { slot, name, value, wait_ms } => {
            let campaign = session(node)?.election(name).campaign(value);
            let leadership = campaign.deadline(Duration::from_millis(wait_ms)).wait()?;
            let token = leadership.token();
            slots.put(slot, Holding::Leadership(leadership));
            Ok(granted(token))
        }
        Call::Forget { slot } => {
            slots.forget(slot);
            Ok(Reply::Held(false))
        }
        Call::Look { slot } => look(slots, slot),
        Call::Release { slot } => release(slots, &slot),
        Call::AddUnderLock { .. } => add_under_lock(node, &kv, call),
        Call::Leader { name } => {
            let leader = session(node)?.election(name).leader().wait()?;
            Ok(Reply::Leader(leader.map(|leader| text(&leader.value))))
        }
        Call::Offer { queue, value } => {
            kv.queue(queue).put(value).wait()?;
            Ok(Reply::Done { revision: 0 })
        }
        Call::Take { slot, queue, wait_ms } => {
            let taker = slots.taker(&session(node)?, &queue);
            match taker.take().deadline(Duration::from_millis(wait_ms)).wait() {
                Ok(delivery) => {
                    let item = (text(delivery.value()), numbers(delivery.token()));
                    slots.put(slot, Holding::Item(delivery));
                    Ok(Reply::Item(Some(item)))
                }
                Err(QueueError::TimedOut) => Ok(Reply::Item(None)),
                Err(error) => Err(error.into()),
            }
        }
        Call::Acknowledge { slot, key, value } => {
            let Some(Holding::Item(delivery)) = slots.take(&slot) else { return Err(empty(&slot)) };
            match delivery.ack_with([Op::put(key, value)]).wait() {
                Ok(_) => Ok(Reply::Held(true)),
                Err(QueueError::NotOurs) => Ok(Reply::Held(false)),
                Err(error) => Err(error.into()),
            }
        }
        Call::Watch { slot, prefix, from } => {
            let watch = kv.watch(KeyRange::prefix(prefix)).from(Revision(from)).wait();
            let watch = watch.map_err(|error| Miss::Refused(error.to_string()))?;
            slots.put(slot, Holding::Watch(Box::new(watch)));
            Ok(Reply::Done { revision: 0 })
        }
        Call::Events { slot, wait_ms } => events(slots, slot, Duration::from_millis(wait_ms)),
        Call::Transfer => {
            node.transfer_leadership(None).wait()?;
            Ok(Reply::Done { revision: 0 })
        }
        Call::Compact { keep } => {
            let to = kv.revision().get().saturating_sub(keep);
            Ok(Reply::Done { revision: kv.compact(Revision(to)).wait()?.get() })
        }
        Call::Backup { file } => {
            node.backup(file).wait()?;
            Ok(Reply::Done { revision: 0 })
        }
        Call::Promote { member } => {
            node.promote(id_of(node, &member)?).wait()?;
            Ok(Reply::Done { revision: 0 })
        }
        Call::Remove { member } => {
            node.remove_member(id_of(node, &member)?).wait()?;
            Ok(Reply::Done { revision: 0 })
        }
        Call::Members => {
            let members = node.members();
            let name = |id| members.get(id).map_or_else(String::new, |row| row.name.clone());
            Ok(Reply::Members {
                voters: members.voters().map(name).collect(),
                learners: members.learners().map(name).collect(),
            })
        }
    }
}

fn id_of(node: &Node, name: &str) -> Result<bowline::NodeId, Miss> {
    let unknown = || Miss::Refused(format!("there is no member {name}"));
    node.members().named(name).ok_or_else(unknown)
}

/// The node's own session; another one if the last has ended.
fn session(node: &Node) -> Result<Session, Miss> {
    Ok(node.session().wait()?)
}

fn acquire(
    session: &Session,
    slots: &Slots,
    name: String,
    kind: &Kind,
    wait_ms: u64,
) -> Result<(Token, Holding), Miss> {
    let wait = Duration::from_millis(wait_ms);
    if let Kind::Permits { want, limit } = kind {
        let permits = session.semaphore(name, *limit);
        let permit = permits.acquire_many(*want).deadline(wait).wait()?;
        return Ok((permit.token(), Holding::Permit(permit)));
    }
    let call = session.mutex(name).lock().deadline(wait);
    let call = match kind {
        Kind::Again { owner } => call.owner(&slots.owner(session, owner)),
        _ => call,
    };
    let guard = call.wait()?;
    Ok((guard.token(), Holding::Lock(guard)))
}

fn look(slots: &Slots, slot: String) -> Result<Reply, Miss> {
    let Some(holding) = slots.take(&slot) else { return Err(empty(&slot)) };
    let held = match &holding {
        Holding::Lock(guard) => guard.is_held(),
        Holding::Permit(permit) => permit.is_held(),
        Holding::Leadership(leadership) => leadership.is_leader(),
        Holding::Item(delivery) => delivery.is_ours(),
        Holding::Watch(_) => true,
    };
    slots.put(slot, holding);
    Ok(Reply::Held(held))
}

fn release(slots: &Slots, slot: &str) -> Result<Reply, Miss> {
    let released = match slots.take(slot) {
        Some(Holding::Lock(guard)) => guard.release().wait()?,
        Some(Holding::Permit(permit)) => permit.release().wait()?,
        Some(Holding::Leadership(leadership)) => leadership.resign().wait()?,
        Some(Holding::Item(delivery)) => {
            return match delivery.nack().wait() {
                Ok(()) => Ok(Reply::Held(true)),
                Err(QueueError::NotOurs) => Ok(Reply::Held(false)),
                Err(error) => Err(error.into()),
            };
        }
        Some(Holding::Watch(_)) => return Ok(Reply::Held(true)),
        None => return Err(empty(slot)),
    };
    Ok(Reply::Held(!matches!(released, Released::WasLost(_))))
}

fn add_under_lock(node: &Node, kv: &Client, call: Call) -> Result<Reply, Miss> {
    let Call::AddUnderLock { lock, key, element, think_ms, guarded, wait_ms } = call else {
        return Err(Miss::Refused("it is no such call".to_owned()));
    };
    let wait = Duration::from_millis(wait_ms);
    let guard = session(node)?.mutex(lock).lock().deadline(wait).wait()?;
    // Reads change nothing, whatever becomes of them.
    let row = kv.get(key.clone()).wait().map_err(|error| Miss::Refused(error.to_string()))?;
    let before = row.map_or_else(String::new, |row| text(&row.value) + ",");
    // This is the work under the lock, which takes its time.
    thread::sleep(Duration::from_millis(think_ms));
    let put = Op::put(key.clone(), format!("{before}{element}"));
    let revision = if guarded {
        guard.txn().then(put).commit().wait()?.revision
    } else {
        kv.txn().then(put).commit().wait()?.revision
    };
    // What becomes of the release is not what this is about.
    drop(guard.release().wait());
    Ok(Reply::Done { revision: revision.get() })
}

fn events(slots: &Slots, slot: String, wait: Duration) -> Result<Reply, Miss> {
    let Some(Holding::Watch(mut watch)) = slots.take(&slot) else { return Err(empty(&slot)) };
    let mut batches = Vec::new();
    let ended = patience::within(wait, async {
        while batches.len() < BATCHES_MAX {
            match watch.next().await {
                Some(Ok(batch)) => batches.push(batch),
                Some(Err(error)) => return Some(error.to_string()),
                None => return Some("the watch is over".to_owned()),
            }
        }
        None
    });
    if let Some(Some(why)) = ended {
        return Err(Miss::Refused(why));
    }
    slots.put(slot, Holding::Watch(watch));
    let until = batches.last().map_or(0, |batch| batch.revision.get());
    let change = |event: bowline::Event| Change {
        key: text(&event.kv.key),
        value: matches!(event.kind, bowline::EventKind::Put).then(|| text(&event.kv.value)),
        revision: event.revision().get(),
    };
    let events = batches.into_iter().flat_map(|batch| batch.events).map(change).collect();
    Ok(Reply::Events { events, until })
}

fn empty(slot: &str) -> Miss {
    Miss::Refused(format!("nothing is held as {slot}"))
}

fn granted(token: Token) -> Reply {
    Reply::Granted { token: numbers(token) }
}

fn numbers(token: Token) -> (u64, u64) {
    (token.revision().get(), token.hop())
}

fn swapped(reply: &TxnReply) -> Reply {
    Reply::Swapped { swapped: reply.succeeded, revision: reply.revision.get() }
}

fn rows(rows: &[KeyValue]) -> Vec<Row> {
    let row = |row: &KeyValue| Row {
        key: text(&row.key),
        value: text(&row.value),
        modified: row.mod_revision.get(),
    };
    rows.iter().map(row).collect()
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
