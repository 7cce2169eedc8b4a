//! The queue of a lock or an election, in the layout of etcd's concurrency package and of the library's locks. Each
//! lease in the queue has one key, `NAME/<lease in hexadecimal>`, where `NAME` is the name of the lock or election.
//! The order of the queue is the order in which the keys were created.

use std::time::Duration;

use bytes::Bytes;
use tonic::Response;

use crate::connect::{CallKind, Client, Link};
use crate::entry::{EntryValue, LockMode};
use crate::error::{Error, StatusMeaning};
use crate::into_bytes::IntoBytes;
use crate::kv::prefix_end;
use crate::session::Session;
use bowline_proto::etcdserverpb as pb;
use bowline_proto::mvccpb::event::EventType;
use bowline_proto::mvccpb::{Event, KeyValue};
use pb::compare::{CompareResult, TargetUnion};
use pb::watch_create_request::FilterType;

/// Pause before a retry after the servers could not be reached or did not answer.
const AGAIN: Duration = Duration::from_millis(200);

/// A queue entry.
#[derive(Clone, Debug)]
pub struct QueueEntry {
    name: Bytes,
    key: Bytes,
    /// Revision at which the key was created.
    created: i64,
    mode: LockMode,
}

/// Reason why a queue entry did not become a hold.
#[derive(Debug)]
pub enum NotHeld {
    /// The entry's key has been deleted.
    Gone,
    /// Other clients hold the lock, and the caller does not want to wait.
    Taken,
    /// The queue is in use by another kind of lock.
    OtherKind(LockMode),
    /// The servers rejected the request.
    Failed(Error),
}

/// A hold of a lock: the row of its queue entry, and the revision of the store at which the hold was confirmed.
#[derive(Clone, Debug)]
pub struct Held {
    /// The header of the response that confirmed the hold.
    pub header: Option<pb::ResponseHeader>,
    /// The row of the queue entry.
    pub row: KeyValue,
}

impl Held {
    /// Returns the fencing token, which increases with each holder of a lock. The token is the revision at which the
    /// hold was confirmed. The previous holder's key was deleted before that revision. The next holder can be
    /// confirmed only after this holder's key was deleted, which is at a higher revision.
    pub fn token(&self) -> i64 {
        self.header.map(|header| header.revision).unwrap_or_default()
    }
}

/// An exclusive lock that is held by a session.
#[derive(Clone, Debug)]
pub struct Lock {
    entry: QueueEntry,
    held: Held,
}

impl Lock {
    /// Returns the key of the lock's queue entry.
    pub fn key(&self) -> &Bytes {
        &self.entry.key
    }

    /// Returns the fencing token, which increases with each holder of the lock.
    pub fn token(&self) -> i64 {
        self.held.token()
    }

    /// Returns the condition that the lock is still held. A transaction with this condition changes nothing after the
    /// lock was lost.
    pub fn compare(&self) -> pb::Compare {
        self.entry.compare()
    }

    /// Waits until another client deletes the key of the lock. Returns the reason for the loss.
    pub async fn loss(&self, client: &Client) -> String {
        self.entry.loss(client, self.token() + 1).await
    }

    /// Releases the lock. The next request in the queue acquires it.
    ///
    /// # Errors
    /// Returns an error if no server confirms it. Then the lock is released with its session.
    pub async fn release(self, client: &Client) -> Result<(), Error> {
        let delete = pb::DeleteRangeRequest { key: self.entry.key.clone(), ..Default::default() };
        let request = pb::TxnRequest {
            compare: vec![self.compare()],
            success: vec![delete.into()],
            failure: Vec::new(),
        };
        let call = async |link: Link| link.kv().txn(request.clone()).await;
        client.call(CallKind::Repeatable, call).await.map(drop)
    }
}

impl Session {
    /// Acquires an exclusive lock, in the same queue as etcd's and Bowline's mutexes with this name. Call it within
    /// [`run`](Self::run), which renews the lease while the lock is waited for and held. If the returned future is
    /// dropped, the request stays in the queue until the session ends.
    ///
    /// # Errors
    /// Returns an error if a server rejects the request, or if the lease has ended.
    pub async fn lock(&self, name: impl IntoBytes) -> Result<Lock, Error> {
        let (client, mode) = (self.client(), LockMode::Alone);
        let value = EntryValue::ours(mode, "").to_value();
        let entry =
            QueueEntry::enter(client, &name.into_bytes(), self.lease(), mode, value).await?;
        match entry.turn(client, false).await {
            Ok(held) => Ok(Lock { entry, held }),
            Err(NotHeld::Failed(error)) => Err(error),
            Err(NotHeld::OtherKind(other)) => Err(Error::OtherKind(other.name())),
            Err(NotHeld::Gone | NotHeld::Taken) => {
                Err(Error::Lost("the queue entry was deleted".to_owned()))
            }
        }
    }
}

/// Returns the rows that are queue entries, in queue order.
pub fn queue_entries(name: &[u8], rows: Vec<KeyValue>) -> Vec<KeyValue> {
    let is_place = |row: &KeyValue| {
        row.lease != 0
            && row.key.len() > name.len() + 1
            && !row.key[name.len() + 1..].contains(&b'/')
    };
    let mut queue_entries: Vec<_> = rows.into_iter().filter(is_place).collect();
    queue_entries.sort_by(|a, b| (a.create_revision, &a.key).cmp(&(b.create_revision, &b.key)));
    queue_entries
}

fn created_at(key: &Bytes, revision: i64) -> pb::Compare {
    pb::Compare::new(key.clone(), CompareResult::Equal, TargetUnion::CreateRevision(revision))
}

/// Repeats an idempotent request until a server answers it. There is no time limit, so the caller must set one.
async fn call_until_answered<T>(
    client: &Client,
    call: impl AsyncFn(Link) -> Result<Response<T>, tonic::Status>,
) -> Result<T, Error> {
    loop {
        match client.call(CallKind::Repeatable, &call).await {
            Ok(answer) => return Ok(answer),
            Err(failure @ (Error::Config(_) | Error::File(..))) => return Err(failure),
            Err(Error::Refused(status)) if is_final(&status) => {
                return Err(Error::Refused(status));
            }
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
}

fn is_final(status: &tonic::Status) -> bool {
    StatusMeaning::of(status) == StatusMeaning::Refused
}

impl QueueEntry {
    /// Joins the queue of `name` with the key of a lease, and retries until the key certainly exists. A retry is safe
    /// because each lease has only one key in the queue. There is no time limit, so the caller must set one.
    ///
    /// # Errors
    /// Returns an error if a server rejects the request.
    pub async fn enter(
        client: &Client,
        name: &Bytes,
        lease: i64,
        mode: LockMode,
        value: Bytes,
    ) -> Result<Self, Error> {
        let key = Bytes::from([name, &b"/"[..], format!("{lease:x}").as_bytes()].concat());
        let put = pb::PutRequest { key: key.clone(), value, lease, ..Default::default() };
        let get = pb::RangeRequest { key: key.clone(), ..Default::default() };
        let request = pb::TxnRequest {
            compare: vec![created_at(&key, 0)],
            success: vec![put.into()],
            failure: vec![get.into()],
        };
        let answer =
            call_until_answered(client, async |link: Link| link.kv().txn(request.clone()).await)
                .await?;
        let found = answer.responses.first().and_then(|op| match &op.response {
            Some(pb::response_op::Response::ResponseRange(range)) => range.kvs.first(),
            _ => None,
        });
        let created = match found {
            Some(row) => row.create_revision,
            None => answer.header.map(|header| header.revision).unwrap_or_default(),
        };
        Ok(Self { name: name.clone(), key, created, mode })
    }

    /// Returns the key.
    pub fn key(&self) -> &Bytes {
        &self.key
    }

    /// Returns the condition that the entry still exists, for a transaction.
    pub fn compare(&self) -> pb::Compare {
        created_at(&self.key, self.created)
    }

    /// Waits until the entry holds the lock, or checks once whether it does.
    ///
    /// # Errors
    /// Returns the reason if the entry does not hold the lock.
    pub async fn turn(&self, client: &Client, only_looks: bool) -> Result<Held, NotHeld> {
        let (first, end) = self.keys();
        loop {
            let request = pb::RangeRequest {
                key: first.clone(),
                range_end: end.clone(),
                max_create_revision: self.created,
                ..Default::default()
            };
            let call = async |link: Link| link.kv().range(request.clone()).await;
            let answer = call_until_answered(client, call).await.map_err(NotHeld::Failed)?;
            let mut line = queue_entries(&self.name, answer.kvs);
            let own = line.iter().position(|row| row.key == self.key);
            let Some(at) = own.filter(|at| line[*at].create_revision == self.created) else {
                return Err(NotHeld::Gone);
            };
            let mode_of = |row: &KeyValue| EntryValue::parse(&row.value).mode;
            let before: Vec<_> = line[..at].iter().map(mode_of).collect();
            // The mode is read from the current row, because a resize of a semaphore also rewrites the rows of
            // waiters.
            let mode = mode_of(&line[at]);
            if mode.holds_after(&before) {
                return Ok(Held { header: answer.header, row: line.swap_remove(at) });
            }
            if let Some(head) = before.first()
                && mode != LockMode::Alone
                // A resize may have rewritten only one of the two rows so far.
                && ![mode, self.mode].iter().any(|mode| mode.is_compatible_with(*head))
            {
                return Err(NotHeld::OtherKind(*head));
            }
            if only_looks {
                return Err(NotHeld::Taken);
            }
            let from = answer.header.map(|header| header.revision + 1).unwrap_or_default();
            // An exclusive request waits for the entry directly ahead. In other modes, any entry ahead may make room,
            // not only by its deletion but also by a change of its row: a downgrade from write to read, or another
            // limit.
            let own = (self.key.clone(), Bytes::new());
            match mode {
                LockMode::Alone | LockMode::Write => {
                    let last = (line[at - 1].key.clone(), Bytes::new());
                    until_deleted(client, &[last, own], from).await;
                }
                _ => {
                    let is_news = |event: &Event| is_deletion(event) || self.is_change(event);
                    until(client, &[(first.clone(), end.clone())], &[], from, is_news).await;
                }
            }
        }
    }

    /// Waits until another client deletes the entry's key. Returns the reason for the loss.
    pub async fn loss(&self, client: &Client, mut from: i64) -> String {
        loop {
            until_deleted(client, &[(self.key.clone(), Bytes::new())], from).await;
            let request = pb::RangeRequest { key: self.key.clone(), ..Default::default() };
            let row = call_until_answered(client, async |link: Link| {
                link.kv().range(request.clone()).await
            })
            .await;
            let Ok(pb::RangeResponse { header, kvs, .. }) = row else {
                // A rejected read does not show whether the key exists. Whether the lease is still renewed is checked
                // elsewhere.
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            if kvs.first().is_none_or(|row| row.create_revision != self.created) {
                return "its key was deleted".to_owned();
            }
            // Older revisions may be compacted by now, so the watch continues from here.
            from = header.map_or(from, |header| header.revision + 1);
        }
    }

    /// Returns whether the event changes the row of this entry or of an entry ahead of it in the queue.
    fn is_change(&self, event: &Event) -> bool {
        let row = event.kv.as_ref();
        row.is_some_and(|row| row.version > 1 && row.create_revision <= self.created)
    }

    fn keys(&self) -> (Bytes, Bytes) {
        let prefix = [&self.name, &b"/"[..]].concat();
        let end = prefix_end(&prefix);
        (prefix.into(), end)
    }
}

/// Waits until a key in one of the ranges is deleted at or after a revision. Also returns if the watch for such
/// deletions fails. In either case the caller must read the queue again.
async fn until_deleted(client: &Client, ranges: &[(Bytes, Bytes)], from: i64) {
    until(client, ranges, &[FilterType::Noput], from, is_deletion).await;
}

fn is_deletion(event: &Event) -> bool {
    event.r#type == i32::from(EventType::Delete)
}

/// Like `until_deleted`, but waits for any event that `is_news` accepts.
async fn until(
    client: &Client,
    ranges: &[(Bytes, Bytes)],
    filters: &[FilterType],
    from: i64,
    is_news: impl Fn(&Event) -> bool,
) {
    let open = async |link: Link| {
        let create = |(key, range_end): &(Bytes, Bytes)| pb::WatchCreateRequest {
            key: key.clone(),
            range_end: range_end.clone(),
            start_revision: from,
            filters: filters.iter().map(|filter| i32::from(*filter)).collect(),
            ..Default::default()
        };
        let (requests, answers) = link.open_watches(ranges.iter().map(create)).await?;
        Ok(Response::new((requests, answers, link)))
    };
    let Ok((_requests, mut answers, link)) = client.call(CallKind::Repeatable, open).await else {
        return tokio::time::sleep(AGAIN).await;
    };
    let is_end = |answer: &pb::WatchResponse| answer.canceled || answer.events.iter().any(&is_news);
    loop {
        let answer = tokio::select! {
            answer = answers.message() => answer,
            // Another task, most likely the renewal, has found this server unresponsive.
            () = client.left(&link) => return,
        };
        match answer {
            Ok(Some(answer)) if is_end(&answer) => return,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => {
                client.leave(&link).await;
                return tokio::time::sleep(AGAIN).await;
            }
        }
    }
}
