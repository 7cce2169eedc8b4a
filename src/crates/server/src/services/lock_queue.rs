//! The queue of a lock or an election, in the layout of etcd's concurrency package. Each lease in the queue has one
//! key below the name of the lock, and the order of the queue is the order in which the keys were created. The
//! library's own locks and elections use the same keys, so all clients share one queue.
//!
//! All calls with the same lease share the lease's key. If a call succeeds, the key stays. If no call that created or
//! adopted the key succeeds, the last of these calls deletes the key:
//!
//! ```text
//!   call ──▶ join or leave, one call at a time ──▶ wait to be first ──▶ success: the key stays
//!                                                         └───────────▶ no success: the last call deletes the key
//! ```

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bowline::{
    Compare, Error, EventKind, KeyRange, KeyValue, LeaseId, Op, Put, RangeReply, Revision,
    SortOrder, SortTarget, TxnResult, Watch, WatchBatch, WatchError,
    kv::{PutLease, PutValue, Range, RangeCall, RevisionBounds, Sort},
};
use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use tracing::Instrument as _;

use crate::identity::Identity;
use crate::member::Member;
use crate::services::lease_ids::LeaseIds;
use crate::wire::{Reason, refused};

/// TTL of the lease granted to a caller without a lease. It is not renewed.
const GENERATED_LEASE_TTL: Duration = Duration::from_secs(60);

/// Time limit for the attempt to join the queue. The caller times out much earlier, but the attempt continues, because
/// its outcome must be known before its key can be deleted.
const ENTER_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// Initial pause before another attempt to leave the queue; it doubles each time.
const LEAVE_RETRY_DELAY: Duration = Duration::from_millis(50);
const LEAVE_RETRY_DELAY_MAX: Duration = Duration::from_secs(5);

/// Pause before a read is repeated that no leader has confirmed in time.
const READ_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The queues of all locks and elections, as this member's calls use them.
pub(crate) struct LockQueues {
    pub(crate) member: Arc<Member>,
    lease_ids: Arc<LeaseIds>,
    keys: KeyLocks,
}

impl LockQueues {
    pub(crate) fn new(member: &Arc<Member>, lease_ids: &Arc<LeaseIds>) -> Arc<Self> {
        let (member, lease_ids) = (Arc::clone(member), Arc::clone(lease_ids));
        Arc::new(Self { member, lease_ids, keys: KeyLocks::default() })
    }

    /// Returns the caller's lease, or grants one.
    async fn lease_of(&self, who: &Identity, lease: i64) -> Result<LeaseId, Status> {
        match crate::wire::lease_id(lease) {
            Some(lease) => Ok(lease),
            None => {
                Ok(self.lease_ids.grant(&self.member, who, GENERATED_LEASE_TTL, None).await?.id)
            }
        }
    }
}

/// The keys of running calls at this member, in all queues.
#[derive(Default)]
struct KeyLocks(Mutex<HashMap<Bytes, Arc<KeyLock>>>);

/// A key. Joining and leaving the queue hold its lock.
#[derive(Default)]
struct KeyLock(tokio::sync::Mutex<KeyState>);

/// State of a key that calls share.
#[derive(Default, Debug)]
struct KeyState {
    /// Number of calls that have joined and not ended.
    entered: usize,
    /// If one of the calls created the key: the revision at which the key was created, and the revision at which a
    /// call last joined it. `None` if the key existed before, so that it belongs to another client.
    own: Option<(Revision, Revision)>,
    /// Whether a call was answered with the key, so that it belongs to the client now.
    is_answered: bool,
}

impl KeyState {
    /// Records that a call has joined.
    fn enters(&mut self, entered: &Entered) {
        self.entered += 1;
        let QueueEntry { created, revision, .. } = entered.entry;
        self.own = match self.own {
            _ if entered.is_new => {
                self.is_answered = false;
                Some((created, revision))
            }
            Some((own, _)) if own == created => Some((created, revision)),
            _ => None,
        };
    }

    /// Records that a call has ended. If it is the last, returns the revisions of the key to delete, if any.
    fn is_over(&mut self) -> Option<(Revision, Revision)> {
        self.entered -= 1;
        self.own.filter(|_| self.entered == 0 && !self.is_answered)
    }
}

impl KeyLocks {
    fn at(&self, key: &Bytes) -> Arc<KeyLock> {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(keys.entry(key.clone()).or_default())
    }

    /// Releases a key.
    fn release(&self, key: &Bytes, key_lock: Arc<KeyLock>) {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(key_lock);
        if keys.get(key).is_some_and(|key_lock| Arc::strong_count(key_lock) == 1) {
            keys.remove(key);
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct QueueEntry {
    pub(crate) key: Bytes,
    /// Lease to which the key is attached.
    pub(crate) lease: LeaseId,
    /// Revision at which the key was created.
    pub(crate) created: Revision,
    /// The store's revision at which the entry was known to be the first.
    pub(crate) revision: Revision,
}

/// Returns the key range of a queue.
pub(crate) fn keys_of(name: &[u8]) -> KeyRange {
    KeyRange::prefix([name, b"/"].concat())
}

/// Returns the first entry of a queue and the store's revision. The caller must be identified already.
pub(crate) async fn first(
    member: &Member,
    who: &Identity,
    name: &[u8],
) -> Result<(Option<KeyValue>, Revision), Status> {
    let reply = first_of(member, who, name).await.map_err(refused)?;
    Ok((reply.kvs.into_iter().next(), reply.revision))
}

fn first_of(member: &Member, who: &Identity, name: &[u8]) -> RangeCall {
    let call = member.client_of_running(who).range(keys_of(name)).limit(1);
    call.sort(SortTarget::Create, SortOrder::Ascend)
}

/// Like [`first`], for a call that waits anyway: repeats the read until a leader has confirmed it.
pub(crate) async fn first_at_last(
    member: &Member,
    who: &Identity,
    name: &[u8],
) -> Result<(Option<KeyValue>, Revision), Status> {
    let reply = read_again(|| first_of(member, who, name)).await?;
    Ok((reply.kvs.into_iter().next(), reply.revision))
}

/// Repeats a read until a leader has confirmed it. Used by calls that wait anyway and that an election must not end.
pub(crate) async fn read_again<T, R>(mut read: impl FnMut() -> R) -> Result<T, Status>
where
    R: IntoFuture<Output = Result<T, Error>>,
{
    loop {
        match read().await {
            Err(Error::Deadline { .. } | Error::Busy) => tokio::time::sleep(READ_RETRY_DELAY).await,
            outcome => return outcome.map_err(refused),
        }
    }
}

/// Joins the queue and waits until the entry is the first. If the future is dropped, the entry leaves the queue: its
/// key is deleted as soon as the outcome of the join is known. `gone` is the error text if the entry is deleted while
/// waiting.
pub(crate) async fn enqueue(
    queues: &Arc<LockQueues>,
    who: Identity,
    name: Bytes,
    lease: i64,
    value: Bytes,
    gone: &'static str,
) -> Result<QueueEntry, Status> {
    let (caller, entry) = oneshot::channel();
    let (queues, call) = (Arc::clone(queues), Call { who, name, value, gone });
    // The request runs as a separate task, because it must not end when its caller does.
    let request = async move { run_request(&queues, &call, lease, caller).await };
    tokio::spawn(request.in_current_span());
    entry.await.unwrap_or_else(|_| Err(Reason::Stopped.into()))
}

/// The receiver of the result.
type Caller = oneshot::Sender<Result<QueueEntry, Status>>;

/// The request without its lease.
struct Call {
    who: Identity,
    name: Bytes,
    value: Bytes,
    gone: &'static str,
}

async fn run_request(queues: &LockQueues, call: &Call, lease: i64, mut caller: Caller) {
    let member = &*queues.member;
    let in_time = Instant::now() + member.settings().request_timeout();
    let lease = tokio::select! {
        biased;
        lease = queues.lease_of(&call.who, lease) => lease,
        () = sleep_until(in_time) => Err(Reason::Timeout.into()),
        () = caller.closed() => return,
    };
    let lease = match lease {
        Ok(lease) => lease,
        // Sending fails only if the caller no longer waits.
        Err(status) => return drop(caller.send(Err(status))),
    };
    let key = Bytes::from([&call.name, &b"/"[..], hexadecimal(lease).as_bytes()].concat());
    let key_lock = queues.keys.at(&key);
    run_with_key(member, call, (key.clone(), lease), &key_lock, caller, in_time).await;
    queues.keys.release(&key, key_lock);
}

async fn run_with_key(
    member: &Member,
    call: &Call,
    at: (Bytes, LeaseId),
    key_lock: &KeyLock,
    mut caller: Caller,
    in_time: Instant,
) {
    let state = tokio::select! {
        biased;
        state = key_lock.0.lock() => Some(state),
        () = sleep_until(in_time) => None,
        () = caller.closed() => return,
    };
    // Nothing was sent to the cluster so far, so nothing needs to be undone.
    let Some(mut state) = state else { return drop(caller.send(Err(Reason::Timeout.into()))) };
    let mut caller = Some(caller);
    let entered = {
        let mut entering = pin!(enter(member, call, at, &mut state));
        tokio::select! {
            biased;
            entered = &mut entering => entered,
            () = sleep_until(in_time) => {
                // Report the timeout to the caller now. The attempt to enqueue the key continues until its outcome is
                // known. Then the key is deleted.
                caller.take().map(|caller| caller.send(Err(Reason::Timeout.into())));
                entering.await
            }
        }
    };
    let entered = match (entered, caller.as_ref()) {
        (Ok(entered), Some(_)) => entered,
        (Ok(entered), None) => return over(member, &entered.entry, &mut state).await,
        (Err(status), _) => {
            drop(caller.map(|caller| caller.send(Err(status))));
            return;
        }
    };
    drop(state);
    let Some(mut caller) = caller else { return };
    let outcome = tokio::select! {
        biased;
        outcome = wait(member, call, &entered) => Some(outcome),
        () = caller.closed() => None,
    };
    let is_answered = outcome.is_some_and(|outcome| {
        let is_first = outcome.is_ok();
        let entry = outcome.map(|revision| QueueEntry { revision, ..entered.entry.clone() });
        caller.send(entry).is_ok() && is_first
    });
    let mut state = key_lock.0.lock().await;
    let is_own = state.own.is_some_and(|(created, _)| created == entered.entry.created);
    state.is_answered |= is_answered && is_own;
    over(member, &entered.entry, &mut state).await;
}

/// Ends a call that has joined. If it is the last one for its key, and none was answered with it, deletes the key.
async fn over(member: &Member, entry: &QueueEntry, state: &mut KeyState) {
    if let Some((created, last)) = state.is_over() {
        leave(member, entry, created, last).await;
        state.own = None;
    }
}

struct Entered {
    entry: QueueEntry,
    is_new: bool,
    /// Whether no entry was ahead when it joined.
    is_first: bool,
}

/// Formats a lease id as etcd's clients do in their keys: as a signed number.
fn hexadecimal(lease: LeaseId) -> String {
    let id = lease.get() as i64;
    format!("{}{:x}", if id < 0 { "-" } else { "" }, id.unsigned_abs())
}

async fn enter(
    member: &Member,
    Call { who, name, value, .. }: &Call,
    (key, lease): (Bytes, LeaseId),
    state: &mut KeyState,
) -> Result<Entered, Status> {
    let txn = member.client_of(who)?.txn().when(Compare::create_revision(key.clone()).eq(0u64));
    let put = Put::new(key.clone(), value.clone()).lease(lease);
    // The first entry is read in the same transaction, so that acquiring a free lock takes only one transaction.
    let queue = Range {
        limit: Some(1),
        sort: Sort { target: SortTarget::Create, order: SortOrder::Ascend },
        keys_only: true,
        ..Range::new(keys_of(name))
    };
    let txn = txn.then(put).then(Op::Range(queue.clone()));
    // Write a new version of the row, so that the call that created the row, and may have been abandoned, does not
    // delete the shared key.
    let again = Put { value: PutValue::Keep, lease: PutLease::Keep, ..Put::new(key.clone(), "") };
    let txn = txn.or_else(again).or_else(Op::get(key.clone())).or_else(Op::Range(queue));
    let reply = match txn.deadline(ENTER_TIMEOUT).commit().await {
        Ok(reply) => reply,
        Err(error) => {
            if let Error::AnswerLost { revision } = error {
                match &mut state.own {
                    // The key is shared with running calls, which will delete it.
                    Some((_, last)) if state.entered > 0 => *last = revision,
                    // If this call created the key, the key was created at this revision.
                    _ => {
                        let entry = QueueEntry { key, lease, created: revision, revision };
                        leave(member, &entry, revision, revision).await;
                    }
                }
            }
            return Err(refused(error));
        }
    };
    let entry = |created| QueueEntry { key: key.clone(), lease, created, revision: reply.revision };
    let is_first = |queue: &RangeReply| queue.kvs.first().is_some_and(|first| first.key == key);
    let (row, is_first) = match &reply.results[..] {
        [TxnResult::Put(_), TxnResult::Range(queue)] => {
            let (entry, is_first) = (entry(reply.revision), is_first(queue));
            let entered = Entered { entry, is_new: true, is_first };
            state.enters(&entered);
            return Ok(entered);
        }
        [TxnResult::Put(_), TxnResult::Range(own), TxnResult::Range(queue)] => {
            (own.kvs.first(), is_first(queue))
        }
        _ => return Err(Status::internal("bowline: incomplete response to a transaction")),
    };
    let Some(row) = row else {
        return Err(Status::internal("bowline: contradictory responses about a key"));
    };
    let mut entered = Entered { entry: entry(row.create_revision), is_new: false, is_first };
    if row.value != *value {
        let renamed = rename(member, who, &entered.entry, value.clone()).await;
        match renamed {
            Ok(revision) => entered.entry.revision = revision,
            Err(status) => {
                state.enters(&entered);
                over(member, &entered.entry, state).await;
                return Err(status);
            }
        }
    }
    state.enters(&entered);
    Ok(entered)
}

/// Changes the value of an entry. Returns the revision of the change.
async fn rename(
    member: &Member,
    who: &Identity,
    entry: &QueueEntry,
    value: Bytes,
) -> Result<Revision, Status> {
    let held = Compare::create_revision(entry.key.clone()).eq(entry.created);
    let put = Put::new(entry.key.clone(), value).lease(entry.lease);
    let reply =
        member.client_of(who)?.txn().when(held).then(put).commit().await.map_err(refused)?;
    if reply.succeeded { Ok(reply.revision) } else { Err(Status::unknown("election: not leader")) }
}

/// Deletes an entry if it still has the same creation revision and no other call has joined it since then. The member
/// itself deletes the entry, so the user's current permissions do not matter.
async fn leave(member: &Member, entry: &QueueEntry, created: Revision, last: Revision) {
    let held = || Compare::create_revision(entry.key.clone()).eq(created);
    // A call at another member writes a new version of the row when it joins.
    let is_last = || Compare::mod_revision(entry.key.clone()).eq(last);
    let mut pause = LEAVE_RETRY_DELAY;
    loop {
        let txn = member.client().txn().when(held()).when(is_last());
        let txn = txn.then(Op::delete(entry.key.clone()));
        match txn.commit().await {
            Err(error) if error.is_transient() => {
                // The server is overloaded, or there is no leader. The key is deleted when its lease expires, at the
                // latest.
                if !member.client().has_lease(entry.lease) {
                    return;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LEAVE_RETRY_DELAY_MAX);
            }
            _ => return,
        }
    }
}

/// Waits until no entry is ahead. Returns the store's revision.
async fn wait(
    member: &Member,
    Call { who, name, gone, .. }: &Call,
    entered: &Entered,
) -> Result<Revision, Status> {
    let entry = &entered.entry;
    if entered.is_first {
        return Ok(entry.revision);
    }
    loop {
        let before = last_before(member, who, name, entry).await?;
        // The row is read after the queue, so it is at least as recent as the queue.
        let row =
            member.client_of_running(who).get(entry.key.clone()).local().await.map_err(refused)?;
        if row.is_none_or(|row| row.create_revision != entry.created) {
            return Err(Status::unknown(*gone));
        }
        let (before, revision) = match before {
            (Some(before), revision) => (before, revision),
            (None, revision) => return Ok(revision),
        };
        let until_deleted =
            |key| until_event(member, who, KeyRange::key(key), revision.next(), EventKind::Delete);
        tokio::select! {
            ended = until_deleted(before) => ended?,
            // If the entry is deleted while waiting, the deletion is noticed even before the entry ahead of it is gone.
            ended = until_deleted(entry.key.clone()) => ended?,
        }
    }
}

/// Returns the key of the entry directly ahead, and the store's revision.
async fn last_before(
    member: &Member,
    who: &Identity,
    name: &[u8],
    entry: &QueueEntry,
) -> Result<(Option<Bytes>, Revision), Status> {
    let before = Revision(entry.created.get() - 1);
    let bounds = RevisionBounds { create_max: Some(before), ..RevisionBounds::default() };
    let read = || {
        let call = member.client_of_running(who).range(keys_of(name)).bounds(bounds);
        call.limit(1).keys_only().sort(SortTarget::Create, SortOrder::Descend)
    };
    let reply = read_again(read).await?;
    Ok((reply.kvs.into_iter().next().map(|row| row.key), reply.revision))
}

/// Waits for an event of this kind at or after a revision. Also returns if that part of the history was compacted; the
/// caller must then read the keys again.
pub(crate) async fn until_event(
    member: &Member,
    who: &Identity,
    keys: KeyRange,
    from: Revision,
    kind: EventKind,
) -> Result<(), Status> {
    let mut watch = member.client_of_running(who).watch(keys).from(from).await.map_err(refused)?;
    while let Some(batch) = next_batch(&mut watch).await? {
        if batch.events.iter().any(|event| event.kind == kind) {
            break;
        }
    }
    Ok(())
}

/// Returns the next events of a watch, or `None` if that part of the history was compacted.
pub(crate) async fn next_batch(watch: &mut Watch) -> Result<Option<WatchBatch>, Status> {
    match watch.next().await {
        Some(Ok(batch)) => Ok(Some(batch)),
        Some(Err(WatchError::Compacted { .. })) => Ok(None),
        Some(Err(WatchError::Denied)) => Err(Reason::Denied.into()),
        Some(Err(_)) | None => Err(Reason::Stopped.into()),
    }
}
