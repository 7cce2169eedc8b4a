//! The line before a lock or an election, as etcd's concurrency package forms it: a key below the name for each
//! lease, in the order of their creation. The keys are the same as those of the library's own locks and elections,
//! so all of them stand in one line.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bowline::{
    Compare, Error, EventKind, KeyRange, KeyValue, LeaseId, Op, Put, PutLease, PutValue, Range,
    RangeReply, Revision, RevisionBounds, Sort, SortOrder, SortTarget, TxnResult,
};
use bytes::Bytes;
use tokio::sync::oneshot;
use tonic::Status;
use tracing::Instrument as _;

use super::identity::Identity;
use super::member::Member;
use super::wire::{Reason, refused};

/// How long the lease lives that is granted to who brings none. Nobody keeps it alive.
const LENT_TTL: Duration = Duration::from_secs(60);

/// How long it is tried to enter the line. Whoever asked is told much sooner that it has not come to be; but only who
/// knows how it ended can take back what may have become of it.
const ENTERS_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// How long it waits before it tries again to leave the line.
const LEAVES_AGAIN: Duration = Duration::from_millis(50);

/// A place in the line.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Its key.
    pub(super) key: Bytes,
    /// The lease that it hangs on.
    pub(super) lease: LeaseId,
    /// The revision at which it was created.
    pub(super) created: Revision,
    /// The store's revision when it was known to be the first.
    pub(super) revision: Revision,
}

/// The keys of a line.
pub(super) fn keys_of(name: &[u8]) -> KeyRange {
    KeyRange::prefix([name, b"/"].concat())
}

/// The first of a line, with the store's revision. Whoever looks has been asked who it is before.
pub(super) async fn first(
    member: &Member,
    who: &Identity,
    name: &[u8],
) -> Result<(Option<KeyValue>, Revision), Status> {
    let call = member.acting_still(who).range(keys_of(name)).limit(1);
    let reply = call.sort(SortTarget::Create, SortOrder::Ascend).await.map_err(refused)?;
    Ok((reply.kvs.into_iter().next(), reply.revision))
}

/// Enters the line and waits until this place is the first. Whoever drops the future leaves the line: as soon as it
/// is known whether it was entered, its key is deleted. `gone` is what is said when the place is lost meanwhile.
pub(super) async fn take_place(
    member: &Arc<Member>,
    who: Identity,
    name: Bytes,
    lease: i64,
    value: Bytes,
    gone: &'static str,
) -> Result<Place, Status> {
    let (caller, place) = oneshot::channel();
    let member = Arc::clone(member);
    // A task of its own: it must not end where its caller does.
    let stands = async move { stand(&member, &who, &name, lease, value, gone, caller).await };
    tokio::spawn(stands.in_current_span());
    place.await.unwrap_or_else(|_| Err(Reason::Stopped.into()))
}

/// Who waits for a place.
type Caller = oneshot::Sender<Result<Place, Status>>;

async fn stand(
    member: &Member,
    who: &Identity,
    name: &[u8],
    lease: i64,
    value: Bytes,
    gone: &'static str,
    mut caller: Caller,
) {
    let mut entering = pin!(enter(member, who, name, lease, value));
    let in_time = tokio::time::sleep(member.options().request_timeout());
    let entered = tokio::select! {
        biased;
        entered = &mut entering => entered,
        () = in_time => {
            // Nobody waits for it any more. When it is known whether it is there, it goes.
            drop(caller.send(Err(Reason::Timeout.into())));
            if let Ok(entered) = entering.await && entered.is_new {
                leave(member, &entered.place).await;
            }
            return;
        }
    };
    let entered = match entered {
        Ok(entered) => entered,
        // If nobody listens there is nobody to tell.
        Err(status) => return drop(caller.send(Err(status))),
    };
    let outcome = tokio::select! {
        biased;
        outcome = wait(member, who, name, &entered, gone) => Some(outcome),
        () = caller.closed() => None,
    };
    let left = match outcome {
        Some(outcome) => {
            let failed = outcome.is_err();
            let place = outcome.map(|revision| Place { revision, ..entered.place.clone() });
            let heard = caller.send(place).is_ok();
            failed || !heard
        }
        None => true,
    };
    // A place that was there before belongs to another call of the same lease, and so does one that another call has
    // come to since: its row says so.
    if left && entered.is_new {
        leave(member, &entered.place).await;
    }
}

struct Entered {
    place: Place,
    is_new: bool,
    /// Nobody stood before it when it was entered.
    is_first: bool,
}

/// As etcd's clients write it in their keys: a signed number.
fn hexadecimal(lease: LeaseId) -> String {
    let id = lease.get() as i64;
    format!("{}{:x}", if id < 0 { "-" } else { "" }, id.unsigned_abs())
}

async fn enter(
    member: &Member,
    who: &Identity,
    name: &[u8],
    lease: i64,
    value: Bytes,
) -> Result<Entered, Status> {
    let lease = match super::wire::lease_id(lease) {
        Some(lease) => lease,
        None => member.grant(who, LENT_TTL, None).await?.id,
    };
    let key = Bytes::from([name, b"/", hexadecimal(lease).as_bytes()].concat());
    let txn = member.acting(who)?.txn().when(Compare::create_revision(key.clone()).eq(0u64));
    let put = Put::new(key.clone(), value.clone()).lease(lease);
    // Who is first is said in the same breath: where nobody waits, entering is all that there is to do.
    let line = Range {
        limit: Some(1),
        sort: Sort { target: SortTarget::Create, order: SortOrder::Ascend },
        keys_only: true,
        ..Range::new(keys_of(name))
    };
    let txn = txn.then(put).then(Op::Range(line.clone()));
    // Another version of the row tells the call that made it, which may have been given up, that it is this one's too.
    let again = Put { value: PutValue::Keep, lease: PutLease::Keep, ..Put::new(key.clone(), "") };
    let txn = txn.or_else(again).or_else(Op::get(key.clone())).or_else(Op::Range(line));
    let reply = match txn.deadline(ENTERS_FOR).commit().await {
        Ok(reply) => reply,
        Err(error) => {
            if let Error::AnswerLost { revision } = error {
                // If it has come, then with this revision.
                let place = Place { key, lease, created: revision, revision };
                leave(member, &place).await;
            }
            return Err(refused(error));
        }
    };
    let place = |created| Place { key: key.clone(), lease, created, revision: reply.revision };
    let is_first = |line: &RangeReply| line.kvs.first().is_some_and(|first| first.key == key);
    let (row, is_first) = match &reply.results[..] {
        [TxnResult::Put(_), TxnResult::Range(line)] => {
            let (place, is_first) = (place(reply.revision), is_first(line));
            return Ok(Entered { place, is_new: true, is_first });
        }
        [TxnResult::Put(_), TxnResult::Range(own), TxnResult::Range(line)] => {
            (own.kvs.first(), is_first(line))
        }
        _ => return Err(Status::internal("bowline: a transaction without its answers")),
    };
    let Some(row) = row else {
        return Err(Status::internal("bowline: a key that is there and is not"));
    };
    let place = place(row.create_revision);
    if row.value != value {
        rename(member, who, &place, value).await?;
    }
    Ok(Entered { place, is_new: false, is_first })
}

/// Gives a place another value.
async fn rename(
    member: &Member,
    who: &Identity,
    place: &Place,
    value: Bytes,
) -> Result<(), Status> {
    let held = Compare::create_revision(place.key.clone()).eq(place.created);
    let put = Put::new(place.key.clone(), value).lease(place.lease);
    let reply = member.acting(who)?.txn().when(held).then(put).commit().await.map_err(refused)?;
    if reply.succeeded { Ok(()) } else { Err(Status::unknown("election: not leader")) }
}

/// Deletes a place, if it is still this one, and no other call has come to it: by the member itself, whatever its user
/// may do by now.
async fn leave(member: &Member, place: &Place) {
    let held = || Compare::create_revision(place.key.clone()).eq(place.created);
    let is_only = || Compare::version(place.key.clone()).eq(1u64);
    loop {
        let txn = member.client().txn().when(held()).when(is_only());
        let txn = txn.then(Op::delete(place.key.clone()));
        match txn.commit().await {
            Err(error) if error.is_transient() => {
                // Too much to do, or no leader: its lease ends it at the latest.
                let lives = member.client().leases().contains(&place.lease);
                if !lives {
                    return;
                }
                tokio::time::sleep(LEAVES_AGAIN).await;
            }
            _ => return,
        }
    }
}

/// Waits until nobody stands before a place. Says the store's revision.
async fn wait(
    member: &Member,
    who: &Identity,
    name: &[u8],
    entered: &Entered,
    gone: &'static str,
) -> Result<Revision, Status> {
    let place = &entered.place;
    if entered.is_first {
        return Ok(place.revision);
    }
    loop {
        let before = last_before(member, who, name, place).await?;
        // Read after the line was: the replica is at least as new.
        let row = member.acting_still(who).get(place.key.clone()).local().await.map_err(refused)?;
        if row.is_none_or(|row| row.create_revision != place.created) {
            return Err(Status::unknown(gone));
        }
        let (before, revision) = match before {
            (Some(before), revision) => (before, revision),
            (None, revision) => return Ok(revision),
        };
        tokio::select! {
            ended = until_deleted(member, who, before, revision.next()) => ended?,
            // Lost while it waits: nobody needs to get out of its way first.
            ended = until_deleted(member, who, place.key.clone(), revision.next()) => ended?,
        }
    }
}

/// The key of the last place before this one, and the store's revision.
async fn last_before(
    member: &Member,
    who: &Identity,
    name: &[u8],
    place: &Place,
) -> Result<(Option<Bytes>, Revision), Status> {
    let before = Revision(place.created.get() - 1);
    let bounds = RevisionBounds { create_max: Some(before), ..RevisionBounds::default() };
    let call = member.acting_still(who).range(keys_of(name)).bounds(bounds).limit(1).keys_only();
    let call = call.sort(SortTarget::Create, SortOrder::Descend);
    let reply = call.await.map_err(refused)?;
    Ok((reply.kvs.into_iter().next().map(|row| row.key), reply.revision))
}

/// Waits until a key is deleted at or after a revision. Ends too when the past has been forgotten: look again.
async fn until_deleted(
    member: &Member,
    who: &Identity,
    key: Bytes,
    from: Revision,
) -> Result<(), Status> {
    let mut watch =
        member.acting_still(who).watch(KeyRange::key(key)).from(from).await.map_err(refused)?;
    loop {
        match watch.next().await {
            Some(Ok(batch)) => {
                if batch.events.iter().any(|event| event.kind == EventKind::Delete) {
                    return Ok(());
                }
            }
            Some(Err(bowline::WatchError::Compacted { .. })) => return Ok(()),
            Some(Err(bowline::WatchError::Denied)) => {
                return Err(Reason::Denied.into());
            }
            Some(Err(_)) | None => return Err(Reason::Stopped.into()),
        }
    }
}
