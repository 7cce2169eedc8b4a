//! The queue of a lock or an election, in the layout of etcd's concurrency package and of the library's locks. Each
//! lease in the queue has one key, `NAME/<lease in hexadecimal>`, where `NAME` is the name of the lock or election.
//! The order of the queue is the order in which the keys were created.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Response;

use super::connect::{Client, Effect, Link};
use super::failure::Failure;
use super::range::prefix_end;
use super::stance::{Rule, Stance};
use bowline_proto::etcdserverpb as pb;
use bowline_proto::mvccpb::event::EventType;
use bowline_proto::mvccpb::{Event, KeyValue};
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::request_op::Request;
use pb::watch_create_request::FilterType;
use pb::watch_request::RequestUnion;

/// Pause before a retry after the servers could not be reached or did not answer.
const AGAIN: Duration = Duration::from_millis(200);

/// A queue entry.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    name: Bytes,
    pub(crate) key: Bytes,
    /// Revision at which the key was created.
    created: i64,
    rule: Rule,
}

/// Reason why a queue entry did not become a hold.
#[derive(Debug)]
pub(crate) enum Misfortune {
    /// The entry's key has been deleted.
    Gone,
    /// Other clients hold the lock, and the caller does not want to wait.
    Taken,
    /// The queue is in use by another kind of lock.
    Misfit(Rule),
    /// The servers rejected the request.
    Failed(Failure),
}

/// A hold of a lock: the row of its queue entry, and the revision of the store at which the hold was confirmed.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) header: Option<pb::ResponseHeader>,
    pub(crate) row: KeyValue,
}

impl Held {
    /// Returns the fencing token, which increases with each holder of a lock. The token is the revision at which the
    /// hold was confirmed. The previous holder's key was deleted before that revision. The next holder can be
    /// confirmed only after this holder's key was deleted, which is at a higher revision.
    pub(crate) fn token(&self) -> i64 {
        self.header.map(|header| header.revision).unwrap_or_default()
    }
}

/// Returns the rows that are queue entries, in queue order.
pub(crate) fn places(name: &[u8], rows: Vec<KeyValue>) -> Vec<KeyValue> {
    let is_place = |row: &KeyValue| {
        row.lease != 0
            && row.key.len() > name.len() + 1
            && !row.key[name.len() + 1..].contains(&b'/')
    };
    let mut places: Vec<_> = rows.into_iter().filter(is_place).collect();
    places.sort_by(|a, b| (a.create_revision, &a.key).cmp(&(b.create_revision, &b.key)));
    places
}

/// Joins the queue: creates the key of the lease, and retries until the key certainly exists. A retry is safe because
/// each lease has only one key in the queue.
pub(crate) async fn enter(
    client: &Client,
    name: &Bytes,
    lease: i64,
    rule: Rule,
    value: Bytes,
) -> Result<Place, Failure> {
    let key = Bytes::from([name, &b"/"[..], format!("{lease:x}").as_bytes()].concat());
    let put = pb::PutRequest { key: key.clone(), value, lease, ..Default::default() };
    let get = pb::RangeRequest { key: key.clone(), ..Default::default() };
    let request = pb::TxnRequest {
        compare: vec![created_at(&key, 0)],
        success: vec![pb::RequestOp { request: Some(Request::RequestPut(put)) }],
        failure: vec![pb::RequestOp { request: Some(Request::RequestRange(get)) }],
    };
    let answer = insist(client, async |link: Link| link.kv().txn(request.clone()).await).await?;
    let found = answer.responses.first().and_then(|op| match &op.response {
        Some(pb::response_op::Response::ResponseRange(range)) => range.kvs.first(),
        _ => None,
    });
    let created = match found {
        Some(row) => row.create_revision,
        None => answer.header.map(|header| header.revision).unwrap_or_default(),
    };
    Ok(Place { name: name.clone(), key, created, rule })
}

fn created_at(key: &Bytes, revision: i64) -> pb::Compare {
    pb::Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.clone(),
        range_end: Bytes::new(),
        target_union: Some(TargetUnion::CreateRevision(revision)),
    }
}

/// Repeats an idempotent request until a server answers it. The caller limits the time.
async fn insist<T>(
    client: &Client,
    call: impl AsyncFn(Link) -> Result<Response<T>, tonic::Status>,
) -> Result<T, Failure> {
    loop {
        match client.ask(Effect::Repeatable, &call).await {
            Ok(answer) => return Ok(answer),
            Err(failure @ (Failure::Usage(_) | Failure::Local(..))) => return Err(failure),
            Err(Failure::Refused(status)) if is_final(&status) => {
                return Err(Failure::Refused(status));
            }
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
}

fn is_final(status: &tonic::Status) -> bool {
    super::failure::outcome(status) == super::failure::Outcome::Refused
}

impl Place {
    /// Waits until the entry holds the lock, or checks once whether it does.
    pub(crate) async fn turn(
        &self,
        client: &Arc<Client>,
        only_looks: bool,
    ) -> Result<Held, Misfortune> {
        let (first, end) = self.keys();
        loop {
            let request = pb::RangeRequest {
                key: first.clone(),
                range_end: end.clone(),
                max_create_revision: self.created,
                ..Default::default()
            };
            let call = async |link: Link| link.kv().range(request.clone()).await;
            let answer = insist(client, call).await.map_err(Misfortune::Failed)?;
            let mut line = places(&self.name, answer.kvs);
            let own = line.iter().position(|row| row.key == self.key);
            let Some(at) = own.filter(|at| line[*at].create_revision == self.created) else {
                return Err(Misfortune::Gone);
            };
            let rule_of = |row: &KeyValue| Stance::parse(&row.value).rule;
            let before: Vec<_> = line[..at].iter().map(rule_of).collect();
            // The mode is read from the current row, because a resize of a semaphore also rewrites the rows of
            // waiters.
            let rule = rule_of(&line[at]);
            if rule.holds_behind(&before) {
                return Ok(Held { header: answer.header, row: line.swap_remove(at) });
            }
            if let Some(head) = before.first()
                && rule != Rule::Alone
                // A resize may have rewritten only one of the two rows so far.
                && ![rule, self.rule].iter().any(|rule| rule.goes_with(*head))
            {
                return Err(Misfortune::Misfit(*head));
            }
            if only_looks {
                return Err(Misfortune::Taken);
            }
            let from = answer.header.map(|header| header.revision + 1).unwrap_or_default();
            // An exclusive request waits for the entry directly ahead. In other modes, any entry ahead may make room,
            // not only by its deletion but also by a change of its row: a downgrade from write to read, or another
            // limit.
            let own = (self.key.clone(), Bytes::new());
            match rule {
                Rule::Alone | Rule::Write => {
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
    pub(crate) async fn loss(&self, client: &Client, mut from: i64) -> String {
        loop {
            until_deleted(client, &[(self.key.clone(), Bytes::new())], from).await;
            let request = pb::RangeRequest { key: self.key.clone(), ..Default::default() };
            let row =
                insist(client, async |link: Link| link.kv().range(request.clone()).await).await;
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
        let (requests, stream) = mpsc::channel(ranges.len().max(1));
        for (key, range_end) in ranges {
            let create = pb::WatchCreateRequest {
                key: key.clone(),
                range_end: range_end.clone(),
                start_revision: from,
                filters: filters.iter().map(|filter| i32::from(*filter)).collect(),
                ..Default::default()
            };
            let union = Some(RequestUnion::CreateRequest(create));
            // Sending does not wait, because the channel is empty.
            drop(requests.send(pb::WatchRequest { request_union: union }).await);
        }
        let answers = link.watch().watch(ReceiverStream::new(stream)).await?;
        Ok(Response::new((requests, answers.into_inner(), link)))
    };
    let Ok((_requests, mut answers, link)) = client.ask(Effect::Repeatable, open).await else {
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
