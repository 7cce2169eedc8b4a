//! The line before a lock or an election, as etcd's concurrency package forms it and the library's locks, too: a key
//! below the name for each lease, `NAME/<lease in hexadecimal>`, in the order of creation. All of them stand in one
//! line.

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
use crate::generated::etcdserverpb as pb;
use crate::generated::mvccpb::event::EventType;
use crate::generated::mvccpb::{Event, KeyValue};
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::request_op::Request;
use pb::watch_create_request::FilterType;
use pb::watch_request::RequestUnion;

/// How long to wait before servers are asked again that could not be reached, or did not answer.
const AGAIN: Duration = Duration::from_millis(200);

/// A place in a line.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    name: Bytes,
    /// Its key.
    pub(crate) key: Bytes,
    /// The revision at which it was created.
    created: i64,
    rule: Rule,
}

/// Why a place did not become a hold.
#[derive(Debug)]
pub(crate) enum Misfortune {
    /// The key is not there any more.
    Gone,
    /// Others hold, and waiting was not wanted.
    Taken,
    /// The line is for something else.
    Misfit(Rule),
    /// The servers say no.
    Failed(Failure),
}

/// A hold: its row, and the store's revision when it was known to hold.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) header: Option<pb::ResponseHeader>,
    pub(crate) row: KeyValue,
}

impl Held {
    /// Rises with each holder of a name: nobody held before it was read, and nobody else does until this key is
    /// deleted, which has a higher revision.
    pub(crate) fn token(&self) -> i64 {
        self.header.map(|header| header.revision).unwrap_or_default()
    }
}

/// The rows of a line that are places, in order.
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

/// Enters the line. Asks until it is known that the key is there: it cannot be there twice.
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

/// Asks what may be asked twice until there is an answer. Whoever waits decides for how long.
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
    /// Waits until it holds, or looks once.
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
            // What it says by now: a resize rewrites the rows of those who wait, too.
            let rule = rule_of(&line[at]);
            if rule.holds_behind(&before) {
                return Ok(Held { header: answer.header, row: line.swap_remove(at) });
            }
            if let Some(head) = before.first()
                && rule != Rule::Alone
                // A resize may have come to one of the two only.
                && ![rule, self.rule].iter().any(|rule| rule.goes_with(*head))
            {
                return Err(Misfortune::Misfit(*head));
            }
            if only_looks {
                return Err(Misfortune::Taken);
            }
            let from = answer.header.map(|header| header.revision + 1).unwrap_or_default();
            // Who stands alone waits for the last before it; otherwise any of them may make room, also by a change of
            // its row: a writer that becomes a reader, another limit.
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

    /// Waits until it is gone, which it should not be.
    pub(crate) async fn loss(&self, client: &Client, mut from: i64) -> String {
        loop {
            until_deleted(client, &[(self.key.clone(), Bytes::new())], from).await;
            let request = pb::RangeRequest { key: self.key.clone(), ..Default::default() };
            let row =
                insist(client, async |link: Link| link.kv().range(request.clone()).await).await;
            let Ok(pb::RangeResponse { header, kvs, .. }) = row else {
                // Refused, which says nothing of the key. That the lease is renewed is somebody else's to see.
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            if kvs.first().is_none_or(|row| row.create_revision != self.created) {
                return "somebody has deleted its key".to_owned();
            }
            // What was before may be compacted by now: it is not asked for again.
            from = header.map_or(from, |header| header.revision + 1);
        }
    }

    /// Whether somebody's row has changed who does not stand behind this place.
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

/// Waits until something is deleted in one of these ranges, at a revision or later; or until that cannot be told: then
/// the line is to be looked at again.
async fn until_deleted(client: &Client, ranges: &[(Bytes, Bytes)], from: i64) {
    until(client, ranges, &[FilterType::Noput], from, is_deletion).await;
}

fn is_deletion(event: &Event) -> bool {
    event.r#type == i32::from(EventType::Delete)
}

/// As `until_deleted`, for other news.
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
            // It has room.
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
            // By a renewal, most likely: this server stands still.
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
