//! The cluster that keys are taken from: pages of them at one revision, and a watch of what happens then.

use std::cell::Cell;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::difference::Row;
use super::parts::{Part, Span, around, next_key};
use super::side::Side;
use super::{EVERYTHING, Halt};
use crate::client::connect::{Effect, Link};
use crate::client::failure::Failure;
use crate::client::ordered::is_ordered;
use crate::generated::etcdserverpb as pb;
use pb::watch_request::RequestUnion;

/// How many rows a page may have, and how many the first has. How many it has is so chosen that it becomes as large
/// as is wished, by the rows that were seen; it at most doubles from one to the next.
const PAGE_ROWS_MAX: i64 = 512;
const PAGE_ROWS_FIRST: i64 = 16;
const PAGE_BYTES: usize = 1 << 20;

/// Requests of a watch that wait to be sent.
const REQUESTS: usize = 4;

/// Some rows of the source.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) rows: Vec<Row>,
    /// Where the next page begins, unless this is the last.
    pub(crate) until: Option<Bytes>,
}

/// A watch that is open.
pub(crate) struct Watch {
    pub(crate) requests: mpsc::Sender<pb::WatchRequest>,
    pub(crate) answers: Streaming<pb::WatchResponse>,
    pub(crate) link: Link,
    /// Whether it sees each revision, so that nothing else need say how far it has come.
    pub(crate) sees_all: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) side: Side,
    pub(crate) parts: Vec<Part>,
    limit: Cell<i64>,
}

impl Source {
    /// Nothing is asked yet.
    pub(crate) fn new(side: Side, parts: Vec<Part>) -> Self {
        Self { side, parts, limit: Cell::new(PAGE_ROWS_FIRST) }
    }

    /// Who it is, and which revision it has: no older than any that it has acknowledged.
    pub(crate) async fn header(&self) -> Result<pb::ResponseHeader, Failure> {
        self.side.header(&self.first_key()).await
    }

    /// A key that may be read if all of this may be. There need not be one.
    pub(crate) fn first_key(&self) -> Bytes {
        around(&self.parts).first
    }

    /// How many keys there are at a revision.
    pub(crate) async fn count(&self, revision: i64) -> Result<u64, Halt> {
        let mut count = 0;
        for part in &self.parts {
            let Span { first, end } = part.at_source(None);
            let request = pb::RangeRequest {
                key: first,
                range_end: end,
                revision,
                count_only: true,
                ..Default::default()
            };
            count += self.range(&request).await?.count;
        }
        Ok(u64::try_from(count).unwrap_or_default())
    }

    async fn range(&self, request: &pb::RangeRequest) -> Result<pb::RangeResponse, Halt> {
        let asked = self.side.ask(async |link: Link| link.kv().range(request.clone()).await).await;
        asked.map_err(|failure| match failure {
            Failure::Refused(status) if status.message().contains("has been compacted") => {
                Halt::Forgotten
            }
            other => Halt::Failed(other),
        })
    }

    /// The rows of a part from a key on, as they were at a revision.
    pub(crate) async fn page(
        &self,
        part: &Part,
        from: Option<&Bytes>,
        revision: i64,
    ) -> Result<Page, Halt> {
        let Span { first, end } = part.at_source(from);
        let limit = self.limit.get();
        let request =
            pb::RangeRequest { key: first, range_end: end, limit, revision, ..Default::default() };
        let answer = self.range(&request).await?;
        let until = match answer.kvs.last() {
            Some(last) if answer.more => Some(next_key(&last.key)),
            _ => None,
        };
        let bytes: usize = answer.kvs.iter().map(|row| row.key.len() + row.value.len()).sum();
        let mean = bytes / answer.kvs.len().max(1);
        let wanted = i64::try_from(PAGE_BYTES / mean.max(1)).unwrap_or(PAGE_ROWS_MAX);
        self.limit.set(wanted.clamp(1, PAGE_ROWS_MAX).min(limit * 2));
        let named = |mut row: crate::generated::mvccpb::KeyValue| {
            let key = part.rename(&row.key);
            let name = std::mem::replace(&mut row.key, key);
            Row { name, row }
        };
        let rows: Vec<_> = answer.kvs.into_iter().map(named).collect();
        if let Some(nameless) = rows.iter().find(|row| row.row.key.is_empty()) {
            let name = crate::client::quote::go(&nameless.name);
            let why = format!(
                "the key {name} would have no name at the target: give a longer --dest-prefix, or a longer --prefix"
            );
            return Err(Failure::Usage(why).into());
        }
        Ok(Page { rows, until })
    }

    /// What is to be watched at a server, and whether that is everything: what has happened elsewhere says how far the
    /// watch has come, where the server's word cannot be believed.
    async fn watched(&self, link: &Link) -> (Span, bool) {
        let is_everything = self.parts.iter().any(Part::is_everything);
        match is_everything || !is_ordered(link).await {
            true => (EVERYTHING, true),
            false => (around(&self.parts), false),
        }
    }

    /// Sees, before anything is copied, whether all that is to be watched may be.
    pub(crate) async fn may_be_watched(&self) -> Result<(), Failure> {
        let read = async |link: Link| {
            let (Span { first, end }, sees_all) = self.watched(&link).await;
            let request = pb::RangeRequest {
                key: first,
                range_end: end,
                limit: 1,
                keys_only: true,
                ..Default::default()
            };
            let read = link.kv().range(request).await;
            read.map_err(|status| match (status.code(), sees_all, self.parts.len()) {
                (Code::PermissionDenied, true, _) => {
                    with_advice(&status, "of this source all keys are watched, so all must be readable")
                }
                (Code::PermissionDenied, false, 2..) => with_advice(
                    &status,
                    "what lies between the prefixes is watched, too: one mirror for each needs no more than its own",
                ),
                _ => status,
            })
        };
        self.side.ask(read).await.map(drop)
    }

    /// A watch of what happens from a revision on.
    pub(crate) async fn watch(&self, from: i64) -> Result<Watch, Failure> {
        let open = async |link: Link| {
            let (range, sees_all) = self.watched(&link).await;
            let create = pb::WatchCreateRequest {
                key: range.first,
                range_end: range.end,
                start_revision: from,
                fragment: true,
                progress_notify: true,
                ..Default::default()
            };
            let (requests, stream) = mpsc::channel(REQUESTS);
            let union = Some(RequestUnion::CreateRequest(create));
            // It has room.
            drop(requests.send(pb::WatchRequest { request_union: union }).await);
            let answers = link.watch().watch(ReceiverStream::new(stream)).await?.into_inner();
            Ok(tonic::Response::new(Watch { requests, answers, link, sees_all }))
        };
        self.side.client.ask(Effect::Repeatable, open).await
    }

    /// What a key that has changed is called at the target; none if it is not taken along.
    pub(crate) fn rename(&self, key: &[u8]) -> Option<Bytes> {
        self.parts.iter().find(|part| part.has(key)).map(|part| part.rename(key))
    }
}

fn with_advice(status: &Status, advice: &str) -> Status {
    Status::new(status.code(), format!("{}: {advice}", status.message()))
}
