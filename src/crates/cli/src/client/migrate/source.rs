//! The cluster that keys are read from: pages at one revision, and a watch of later changes.

use std::cell::Cell;

use bytes::Bytes;
use tokio::sync::mpsc;
use tonic::{Code, Status, Streaming};

use super::difference::Row;
use super::parts::{Part, Span, around, next_key};
use super::side::Side;
use super::{EVERYTHING, Halt};
use crate::client::connect::{CallKind, Link};
use crate::client::failure::Failure;
use bowline_client::is_ordered;
use bowline_proto::etcdserverpb as pb;

/// Limits of a page: its maximum number of rows, the number of rows in the first page, and its target size in bytes.
/// The number of rows is computed from the size of the rows seen so far, and at most doubles from one page to the
/// next.
const PAGE_ROWS_MAX: i64 = 512;
const PAGE_ROWS_FIRST: i64 = 16;
const PAGE_BYTES: usize = 1 << 20;

/// A page of the source's rows.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) rows: Vec<Row>,
    /// First key of the next page, or `None` for the last page.
    pub(crate) until: Option<Bytes>,
}

/// An open watch.
pub(crate) struct Watch {
    pub(crate) requests: mpsc::Sender<pb::WatchRequest>,
    pub(crate) answers: Streaming<pb::WatchResponse>,
    pub(crate) link: Link,
    /// Whether the watch receives every revision, so that no progress notifications are needed.
    pub(crate) covers_all_keys: bool,
}

/// The source of an import.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) side: Side,
    pub(crate) parts: Vec<Part>,
    limit: Cell<i64>,
}

impl Source {
    /// Returns a source without contacting it.
    pub(crate) fn new(side: Side, parts: Vec<Part>) -> Self {
        Self { side, parts, limit: Cell::new(PAGE_ROWS_FIRST) }
    }

    /// Returns the source's identity and its current revision. The read is linearizable.
    pub(crate) async fn header(&self) -> Result<pb::ResponseHeader, Failure> {
        self.side.header(&self.first_key()).await
    }

    /// Returns a key that every user with permission for all parts can read. The key need not exist.
    pub(crate) fn first_key(&self) -> Bytes {
        around(&self.parts).first
    }

    /// Returns the number of keys at a revision.
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

    /// Returns a page of rows of a part at a revision.
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
        let named = |mut row: bowline_proto::mvccpb::KeyValue| {
            let key = part.rename(&row.key);
            let name = std::mem::replace(&mut row.key, key);
            Row { name, row }
        };
        let rows: Vec<_> = answer.kvs.into_iter().map(named).collect();
        if let Some(nameless) = rows.iter().find(|row| row.row.key.is_empty()) {
            let name = crate::client::quote::go(&nameless.name);
            let why = format!(
                "the key {name} would have an empty name at the target: give a longer --dest-prefix, or a longer \
                 --prefix"
            );
            return Err(Failure::Usage(why).into());
        }
        Ok(Page { rows, until })
    }

    /// Returns the range to watch at a server, and whether the range covers all keys. If the server's progress
    /// notifications are unreliable, all keys are watched. Changes of unrelated keys then show the progress.
    async fn watched(&self, link: &Link) -> (Span, bool) {
        let is_everything = self.parts.iter().any(Part::is_everything);
        match is_everything || !is_ordered(link).await {
            true => (EVERYTHING, true),
            false => (around(&self.parts), false),
        }
    }

    /// Checks, before anything is copied, that the user may watch the required range.
    pub(crate) async fn may_be_watched(&self) -> Result<(), Failure> {
        let read = async |link: Link| {
            let (Span { first, end }, covers_all_keys) = self.watched(&link).await;
            let request = pb::RangeRequest {
                key: first,
                range_end: end,
                limit: 1,
                keys_only: true,
                ..Default::default()
            };
            let read = link.kv().range(request).await;
            read.map_err(|status| match (status.code(), covers_all_keys, self.parts.len()) {
                (Code::PermissionDenied, true, _) => {
                    with_advice(&status,
                        "all keys of this source are watched, so the user needs permission to read all")
                }
                (Code::PermissionDenied, false, 2..) => with_advice(
                    &status,
                    "the keys between the prefixes are watched, too; a separate mirror for each prefix needs \
                     permission for that prefix only",
                ),
                _ => status,
            })
        };
        self.side.ask(read).await.map(drop)
    }

    /// Opens a watch from a revision.
    pub(crate) async fn watch(&self, from: i64) -> Result<Watch, Failure> {
        let open = async |link: Link| {
            let (range, covers_all_keys) = self.watched(&link).await;
            let create = pb::WatchCreateRequest {
                key: range.first,
                range_end: range.end,
                start_revision: from,
                fragment: true,
                progress_notify: true,
                ..Default::default()
            };
            let (requests, answers) = link.open_watches([create]).await?;
            Ok(tonic::Response::new(Watch { requests, answers, link, covers_all_keys }))
        };
        self.side.client.ask(CallKind::Repeatable, open).await
    }

    /// Maps a changed key to the target. Returns `None` if the key is not copied.
    pub(crate) fn rename(&self, key: &[u8]) -> Option<Bytes> {
        self.parts.iter().find(|part| part.has(key)).map(|part| part.rename(key))
    }
}

fn with_advice(status: &Status, advice: &str) -> Status {
    Status::new(status.code(), format!("{}: {advice}", status.message()))
}
