//! Runs the calls of workload clients ([`Call`]) inside the process of a node.

use std::thread;
use std::time::Duration;

use bowline::{
    Blocking, Bytes, Client, Compare, Effect, Error, GuardError, KeyRange, KeyValue, LeaseId,
    LockError, Node, Op, Released, Revision, Session, Token, TxnReply, coordination::CounterError,
    queue::QueueError,
};

use crate::calls::{Call, Change, Kind, Reply, Row};
use crate::moment;
use crate::patience;
use crate::slots::{Holding, Slots};
use crate::wire::Answer;

/// The reason why a call has no reply.
enum Miss {
    /// The call certainly had no effect and will have none.
    Refused(String),
    /// The outcome is unknown: the call may have had an effect.
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
        // A failed acquisition leaves no key behind, so it had no effect.
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

/// Maximum number of batches of a watch in one reply.
const BATCHES_MAX: usize = 64;

/// Runs a call and returns the reply.
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
            let reply = if local { range.local() } else { range }.block()?;
            Ok(Reply::Rows { revision: reply.revision.get(), rows: rows(&reply.kvs) })
        }
        Call::List { prefix } => {
            let reply = kv.range(KeyRange::prefix(prefix)).block()?;
            Ok(Reply::Rows { revision: reply.revision.get(), rows: rows(&reply.kvs) })
        }
        Call::Put { key, value, lease } => {
            let put = kv.put(key, value);
            let put = match lease.map(LeaseId::new) {
                Some(Some(lease)) => put.lease(lease),
                Some(None) => return Err(Miss::Refused("0 is not a lease id".to_owned())),
                None => put,
            };
            Ok(Reply::Done { revision: put.block()?.revision.get() })
        }
        Call::Swap { key, expect, value } => {
            let when = match expect {
                Some(expect) => Compare::value(key.clone()).eq(expect),
                None => Compare::missing(key.clone()),
            };
            Ok(swapped(&kv.txn().when(when).then(Op::put(key, value)).commit().block()?))
        }
        Call::Commit { when, put } => {
            let is_as = |(key, at): (String, u64)| Compare::mod_revision(key).eq(Revision(at));
            let txn = kv.txn().when_all(when.into_iter().map(is_as));
            let txn = put.into_iter().fold(txn, |txn, (key, value)| txn.then(Op::put(key, value)));
            Ok(swapped(&txn.commit().block()?))
        }
        Call::Add { key, by } => Ok(Reply::Number(kv.counter(key).add(by).block()?)),
        Call::Grant { ttl_ms } => {
            let lease = kv.grant(Duration::from_millis(ttl_ms)).block()?;
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
            let leadership = campaign.deadline(Duration::from_millis(wait_ms)).block()?;
            let token = leadership.token();
            slots.put(slot, Holding::Leadership(leadership));
            Ok(granted(token))
        }
        Call::Forget { slot } => {
            slots.forget(slot);
            Ok(Reply::Held { held: false, at: None })
        }
        Call::Look { slot } => look(slots, slot),
        Call::Release { slot } => release(slots, &slot),
        Call::AddUnderLock { .. } => add_under_lock(node, &kv, call),
        Call::CommitHeld { slot, missing, put, limit_ms } => {
            let Some(holding) = slots.take(&slot) else { return Err(empty(&slot)) };
            let Holding::Lock(guard) = &holding else { return Err(empty(&slot)) };
            let txn = guard.txn().when(Compare::missing(missing));
            let txn = put.into_iter().fold(txn, |txn, (key, value)| txn.then(Op::put(key, value)));
            let committed = txn.deadline(Duration::from_millis(limit_ms)).commit().block();
            slots.put(slot, holding);
            match committed {
                Ok(reply) => Ok(swapped(&reply)),
                Err(GuardError::NotHeld) => Ok(Reply::Held { held: false, at: None }),
                Err(error) => Err(error.into()),
            }
        }
        Call::Leader { name } => {
            let leader = session(node)?.election(name).leader().block()?;
            Ok(Reply::Leader(leader.map(|leader| text(&leader.value))))
        }
        Call::Offer { queue, value } => {
            kv.queue(queue).put(value).block()?;
            Ok(Reply::Done { revision: 0 })
        }
        Call::Take { slot, queue, wait_ms } => {
            let taker = slots.taker(&session(node)?, &queue);
            match taker.take().deadline(Duration::from_millis(wait_ms)).block() {
                Ok(delivery) => {
                    let item = (text(delivery.value()), numbers(delivery.token()));
                    slots.put(slot, Holding::Item(delivery));
                    Ok(Reply::Item(Some(item)))
                }
                Err(QueueError::TimedOut { .. }) => Ok(Reply::Item(None)),
                Err(error) => Err(error.into()),
            }
        }
        Call::Acknowledge { slot, key, value } => {
            let Some(holding) = slots.take(&slot) else { return Err(empty(&slot)) };
            let at = held_at(&holding);
            let Holding::Item(delivery) = holding else { return Err(empty(&slot)) };
            match delivery.ack_with([Op::put(key, value)]).block() {
                Ok(_) => Ok(Reply::Held { held: true, at }),
                Err(QueueError::ClaimLost) => Ok(Reply::Held { held: false, at }),
                Err(error) => Err(error.into()),
            }
        }
        Call::Watch { slot, prefix, from } => {
            let watch = kv.watch(KeyRange::prefix(prefix)).from(Revision(from)).block();
            let watch = watch.map_err(|error| Miss::Refused(error.to_string()))?;
            slots.put(slot, Holding::Watch(Box::new(watch)));
            Ok(Reply::Done { revision: 0 })
        }
        Call::Events { slot, wait_ms } => events(slots, slot, Duration::from_millis(wait_ms)),
        Call::Transfer => {
            node.transfer_leadership(None).block()?;
            Ok(Reply::Done { revision: 0 })
        }
        Call::Backup { file } => {
            node.backup(file).block()?;
            Ok(Reply::Done { revision: 0 })
        }
        Call::Promote { member } => {
            node.promote(id_of(node, &member)?).block()?;
            Ok(Reply::Done { revision: 0 })
        }
        Call::Remove { member } => {
            node.remove_member(id_of(node, &member)?).block()?;
            Ok(Reply::Done { revision: 0 })
        }
        Call::Members => {
            let members = node.members();
            let name = |id| members.get(id).map_or_else(String::new, |row| row.name.clone());
            Ok(Reply::Members {
                voters: members.voters().map(name).collect(),
                learners: members.learners().map(name).collect(),
                joint: members.is_joint(),
            })
        }
    }
}

fn id_of(node: &Node, name: &str) -> Result<bowline::NodeId, Miss> {
    let unknown = || Miss::Refused(format!("no member is named {name}"));
    node.members().named(name).ok_or_else(unknown)
}

/// Returns the session of the node. Opens a new session if the last one has ended.
fn session(node: &Node) -> Result<Session, Miss> {
    Ok(node.session().block()?)
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
        let permit = permits.acquire_many(*want).deadline(wait).block()?;
        return Ok((permit.token(), Holding::Permit(permit)));
    }
    let call = session.mutex(name).lock().deadline(wait);
    let call = match kind {
        Kind::Again { owner } => call.owner(&slots.owner(session, owner)),
        _ => call,
    };
    let guard = call.block()?;
    Ok((guard.token(), Holding::Lock(guard)))
}

/// Returns a time at which the holder considered its hold valid. The clock is read before the state of the hold. If
/// the process pauses between the two, the reply is still true for the time that was read.
fn held_at(holding: &Holding) -> Option<u64> {
    let at = moment::now();
    let is_held = match holding {
        Holding::Lock(guard) => guard.is_held(),
        Holding::Permit(permit) => permit.is_held(),
        Holding::Leadership(leadership) => leadership.is_leader(),
        Holding::Item(delivery) => delivery.is_claimed(),
        Holding::Watch(_) => true,
        Holding::Over(_) => false,
    };
    is_held.then_some(at)
}

fn look(slots: &Slots, slot: String) -> Result<Reply, Miss> {
    let Some(holding) = slots.take(&slot) else { return Err(empty(&slot)) };
    let at = held_at(&holding);
    slots.put(slot, holding);
    Ok(Reply::Held { held: at.is_some(), at })
}

fn release(slots: &Slots, slot: &str) -> Result<Reply, Miss> {
    let Some(holding) = slots.take(slot) else { return Err(empty(slot)) };
    let at = held_at(&holding);
    let released = match holding {
        Holding::Lock(guard) => guard.release().block()?,
        Holding::Permit(permit) => permit.release().block()?,
        Holding::Leadership(leadership) => leadership.resign().block()?,
        Holding::Item(delivery) => {
            return match delivery.nack().block() {
                Ok(()) => Ok(Reply::Held { held: true, at }),
                Err(QueueError::ClaimLost) => Ok(Reply::Held { held: false, at }),
                Err(error) => Err(error.into()),
            };
        }
        Holding::Watch(_) | Holding::Over(_) => return Ok(Reply::Held { held: at.is_some(), at }),
    };
    Ok(Reply::Held { held: !matches!(released, Released::AlreadyLost(_)), at })
}

fn add_under_lock(node: &Node, kv: &Client, call: Call) -> Result<Reply, Miss> {
    let Call::AddUnderLock { lock, key, element, think_ms, guarded, wait_ms } = call else {
        return Err(Miss::Refused("call not supported here".to_owned()));
    };
    let wait = Duration::from_millis(wait_ms);
    let guard = session(node)?.mutex(lock).lock().deadline(wait).block()?;
    // A failed read changes nothing, so report it as rejected.
    let row = kv.get(key.clone()).block().map_err(|error| Miss::Refused(error.to_string()))?;
    let before = row.map_or_else(String::new, |row| text(&row.value) + ",");
    // The pause simulates work under the lock.
    thread::sleep(Duration::from_millis(think_ms));
    let put = Op::put(key.clone(), format!("{before}{element}"));
    let revision = if guarded {
        guard.txn().then(put).commit().block()?.revision
    } else {
        kv.txn().then(put).commit().block()?.revision
    };
    // The outcome of the release does not matter here.
    drop(guard.release().block());
    Ok(Reply::Done { revision: revision.get() })
}

fn events(slots: &Slots, slot: String, wait: Duration) -> Result<Reply, Miss> {
    let mut watch = match slots.take(&slot) {
        Some(Holding::Watch(watch)) => watch,
        Some(Holding::Over(why)) => return Err(Miss::Refused(why)),
        _ => return Err(empty(&slot)),
    };
    let mut batches = Vec::new();
    let ended = patience::within(wait, async {
        while batches.len() < BATCHES_MAX {
            match watch.next().await {
                Some(Ok(batch)) => batches.push(batch),
                Some(Err(error)) => return Some(error.to_string()),
                None => return Some("the watch has ended".to_owned()),
            }
        }
        None
    });
    let (batches, end) = batches_or_end(batches, ended.flatten());
    let batches = batches.map_err(Miss::Refused)?;
    slots.put(slot, end.map_or(Holding::Watch(watch), Holding::Over));
    let until = batches.last().map_or(0, |batch| batch.revision.get());
    let change = |event: bowline::Event| Change {
        key: text(&event.kv.key),
        value: matches!(event.kind, bowline::EventKind::Put).then(|| text(&event.kv.value)),
        revision: event.revision().get(),
    };
    let events = batches.into_iter().flat_map(|batch| batch.events).map(change).collect();
    Ok(Reply::Events { events, until })
}

/// Returns the batches that arrived before the end of a watch, and stores the end for the next call. If there are no
/// batches, returns the end at once.
fn batches_or_end<B>(
    batches: Vec<B>,
    end: Option<String>,
) -> (Result<Vec<B>, String>, Option<String>) {
    match end {
        Some(why) if batches.is_empty() => (Err(why), None),
        end => (Ok(batches), end),
    }
}

fn empty(slot: &str) -> Miss {
    Miss::Refused(format!("slot {slot} is empty"))
}

fn granted(token: Token) -> Reply {
    Reply::Granted { token: numbers(token) }
}

fn numbers(token: Token) -> (u64, u64) {
    (token.revision().get(), token.handoff())
}

fn swapped(reply: &TxnReply) -> Reply {
    Reply::Swapped { swapped: reply.succeeded, revision: reply.revision.get() }
}

fn rows(rows: &[KeyValue]) -> Vec<Row> {
    let row = |row: &KeyValue| Row {
        key: text(&row.key),
        value: text(&row.value),
        modified: row.mod_revision.get(),
        version: row.version,
    };
    rows.iter().map(row).collect()
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline::Config;

    #[test]
    fn held_reply_carries_the_moment_of_the_check() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
        let (slots, slot) = (Slots::default(), || "s".to_owned());
        let kind = Kind::Mutex;
        let acquire = Call::Acquire { slot: slot(), lock: "l".to_owned(), kind, wait_ms: 5000 };
        assert!(matches!(reply(&node, &slots, acquire), Ok(Reply::Granted { .. })));
        for call in [Call::Look { slot: slot() }, Call::Release { slot: slot() }] {
            let before = moment::now();
            let (held, at) = match reply(&node, &slots, call) {
                Ok(Reply::Held { held, at }) => (held, at),
                _ => panic!("no reply about its hold"),
            };
            assert!(held && at.is_some_and(|at| (before..=moment::now()).contains(&at)));
        }
        let stands = Call::Campaign {
            slot: slot(),
            name: "e".to_owned(),
            value: "v".to_owned(),
            wait_ms: 5000,
        };
        assert!(matches!(reply(&node, &slots, stands), Ok(Reply::Granted { .. })));
        // When a node shuts down, its holds end.
        node.shutdown().block();
        let look = look(&slots, slot());
        assert!(matches!(look, Ok(Reply::Held { held: false, at: None })));
    }

    #[test]
    fn watch_events_received_before_the_end_are_reported_before_the_end() {
        let over = || Some("it has ended".to_owned());
        assert_eq!(batches_or_end(vec![1, 2], over()), (Ok(vec![1, 2]), over()));
        assert_eq!(batches_or_end(vec![1, 2], None), (Ok(vec![1, 2]), None));
        assert_eq!(batches_or_end::<u64>(vec![], over()), (Err("it has ended".to_owned()), None));
        let slots = Slots::default();
        slots.put("s".to_owned(), Holding::Over("it has ended".to_owned()));
        let ask = || events(&slots, "s".to_owned(), Duration::ZERO);
        assert!(matches!(ask(), Err(Miss::Refused(why)) if why == "it has ended"));
        assert!(matches!(ask(), Err(Miss::Refused(why)) if why.contains("is empty")));
    }
}
