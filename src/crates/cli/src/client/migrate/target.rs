//! The cluster that keys are written to.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::change::{Change, large_transaction, transaction};
use super::fence::Fence;
use super::parts::{Span, next_key};
use super::side::{Away, Side};
use crate::client::connect::{CallKind, Link};
use crate::client::failure::{Failure, passes};
use crate::client::quote;
use bowline_proto::etcdserverpb as pb;
use bowline_proto::mvccpb::KeyValue;

/// Default limits that servers have for one transaction. If a server with lower limits rejects a transaction, the
/// import reduces its own limits.
const OPS_MAX: usize = 128;
const BYTES_MAX: usize = 1 << 20;

/// Number of keys in a page of a keys-only read.
const KEYS: i64 = 10_000;

/// Maximum number of attempts when other clients write the same keys, and the pause between two attempts.
const RACES_MAX: u32 = 20;
const RACE_PAUSE: Duration = Duration::from_millis(100);

/// Outcome of one attempt.
#[derive(Debug)]
enum Attempt {
    /// The transaction was applied at this revision.
    Done(i64),
    /// The transaction was not applied, because a compared key has changed.
    Differs,
    /// The outcome is unknown.
    Lost(Failure),
    /// The transaction was rejected because of too many operations.
    TooMany,
    /// The transaction was rejected because of too many bytes.
    TooLarge,
}

/// Outcome of writing a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Written {
    /// All changes are applied.
    All,
    /// A key was not in the known state; the caller must read it again.
    Stale,
}

/// The target of an import.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) side: Side,
    pub(crate) fence: Fence,
    ops_max: Cell<usize>,
    bytes_max: Cell<usize>,
    /// Revisions that this import made, as ranges from first to last.
    ours: RefCell<BTreeMap<i64, i64>>,
    /// Whether the target may contain changes of this import.
    is_touched: Cell<bool>,
}

impl Target {
    /// Returns a target without contacting it. `prefix` is a prefix of some keys that the import will write.
    pub(crate) fn new(side: Side, prefix: &[u8]) -> Self {
        Self {
            side,
            fence: Fence::among(prefix),
            ops_max: Cell::new(OPS_MAX),
            bytes_max: Cell::new(BYTES_MAX),
            ours: RefCell::default(),
            is_touched: Cell::new(false),
        }
    }

    /// Returns whether this import made the revision.
    pub(crate) fn is_own_revision(&self, revision: i64) -> bool {
        let ours = self.ours.borrow();
        ours.range(..=revision).next_back().is_some_and(|(_, last)| revision <= *last)
    }

    /// Returns whether the target may contain changes of this import.
    pub(crate) fn is_touched(&self) -> bool {
        self.is_touched.get()
    }

    /// Records that this import made the revision.
    pub(crate) fn claim(&self, revision: i64) {
        let mut ours = self.ours.borrow_mut();
        match ours.range_mut(..=revision).next_back() {
            Some((_, last)) if revision <= *last + 1 => *last = revision.max(*last),
            _ => drop(ours.insert(revision, revision)),
        }
    }

    /// Returns the first `limit` rows of a range.
    pub(crate) async fn page(
        &self,
        span: &Span,
        limit: usize,
    ) -> Result<pb::RangeResponse, Failure> {
        self.range(span, i64::try_from(limit).unwrap_or(i64::MAX), false).await
    }

    /// Returns all rows of a range, and the revision at which they were read.
    pub(crate) async fn all(&self, span: &Span) -> Result<(Vec<KeyValue>, i64), Failure> {
        let answer = self.range(span, 0, false).await?;
        Ok((answer.kvs, answer.header.unwrap_or_default().revision))
    }

    async fn range(
        &self,
        span: &Span,
        limit: i64,
        keys_only: bool,
    ) -> Result<pb::RangeResponse, Failure> {
        let request = pb::RangeRequest {
            key: span.first.clone(),
            range_end: span.end.clone(),
            limit,
            keys_only,
            ..Default::default()
        };
        self.side.ask(async |link: Link| link.kv().range(request.clone()).await).await
    }

    pub(crate) async fn count(&self, span: &Span) -> Result<u64, Failure> {
        let request = pb::RangeRequest {
            key: span.first.clone(),
            range_end: span.end.clone(),
            count_only: true,
            ..Default::default()
        };
        let call = async |link: Link| link.kv().range(request.clone()).await;
        Ok(u64::try_from(self.side.ask(call).await?.count).unwrap_or_default())
    }

    /// Writes changes in as few transactions as the server allows. A change is applied only if its keys have not
    /// changed since the revision `known`. `written` counts the changes that are certainly applied.
    pub(crate) async fn write(
        &self,
        changes: &[Change],
        known: i64,
        written: &Cell<u64>,
    ) -> Result<Written, Failure> {
        let mut rest = changes;
        let mut away = Away::default();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(self.fitting_count(rest));
            match self.attempt(transaction(now, known)).await? {
                Attempt::Done(revision) => {
                    away.is_over(&self.side);
                    away = Away::default();
                    self.claim(revision);
                    written.set(written.get() + now.len() as u64);
                    rest = later;
                }
                Attempt::Differs => {
                    self.fence.look(&self.side).await?;
                    return Ok(Written::Stale);
                }
                Attempt::Lost(failure) => {
                    // The caller reads the keys again and finds out whether the attempt was applied.
                    away.wait(&self.side, failure).await?;
                    self.fence.put(&self.side).await?;
                    return Ok(Written::Stale);
                }
                Attempt::TooMany if now.len() > 1 => self.ops_max.set(now.len() / 2 + 1),
                Attempt::TooLarge if now.len() > 1 => {
                    let bytes: usize = now.iter().map(Change::bytes).sum();
                    self.bytes_max.set(bytes / 2);
                }
                Attempt::TooMany | Attempt::TooLarge => return Err(too_large(&now[0])),
            }
        }
        Ok(Written::All)
    }

    /// Returns how many of the changes fit into one transaction. The result is at least one.
    fn fitting_count(&self, changes: &[Change]) -> usize {
        let mut bytes = 0;
        let fits = |change: &&Change| {
            bytes += change.bytes();
            bytes <= self.bytes_max.get()
        };
        changes.iter().take(self.changes_max()).take_while(fits).count().max(1)
    }

    /// Returns the maximum number of changes in a transaction. The compare of the fence key counts as one operation.
    fn changes_max(&self) -> usize {
        (self.ops_max.get() - 1).max(1)
    }

    async fn attempt(&self, mut request: pb::TxnRequest) -> Result<Attempt, Failure> {
        request.compare.push(self.fence.compare());
        let before = self.side.reached();
        let call = async |link: Link| link.kv().txn(request.clone()).await;
        let failure = match self.side.client.ask(CallKind::Change, call).await {
            Ok(answer) if answer.succeeded => {
                self.is_touched.set(true);
                let header = answer.header.unwrap_or_default();
                self.side.recognise(&header, before)?;
                return Ok(Attempt::Done(header.revision));
            }
            Ok(_) => return Ok(Attempt::Differs),
            Err(failure) => failure,
        };
        if let Failure::Refused(status) = &failure {
            let mentions = |words: &str| status.message().contains(words);
            if mentions("too many operations") {
                return Ok(Attempt::TooMany);
            }
            if mentions("request is too large") || mentions("message larger than max") {
                return Ok(Attempt::TooLarge);
            }
        }
        if !passes(&failure) {
            return Err(self.side.named(failure));
        }
        if !matches!(failure, Failure::Unreachable(_)) {
            self.is_touched.set(true);
        }
        Ok(Attempt::Lost(failure))
    }

    /// Applies all changes of one source revision in one transaction, exactly once. `known` is a revision of the
    /// target. Returns the revision at which the changes are in place, or a conflict if another client has written one
    /// of these keys after `known`.
    pub(crate) async fn make(
        &self,
        changes: &BTreeMap<Bytes, Change>,
        known: i64,
        overwrite: bool,
    ) -> Result<Made, Failure> {
        let list: Vec<Change> = changes.values().cloned().collect();
        let since = known;
        let mut known = known;
        let mut away = Away::default();
        let mut races = 0;
        loop {
            let is_small = list.len() <= self.changes_max();
            let request = match is_small {
                true => transaction(&list, known),
                false => match self.large(changes, &mut known).await? {
                    Some(request) => request,
                    None => return Ok(Made::TooMany),
                },
            };
            let differs = match self.attempt(request).await? {
                Attempt::Done(revision) => {
                    away.is_over(&self.side);
                    self.claim(revision);
                    return Ok(Made::At(revision));
                }
                Attempt::Differs => {
                    self.fence.look(&self.side).await?;
                    true
                }
                Attempt::Lost(failure) => {
                    away.wait(&self.side, failure).await?;
                    self.fence.put(&self.side).await?;
                    false
                }
                Attempt::TooMany if is_small && list.len() > 1 => {
                    self.ops_max.set(list.len() / 2 + 1);
                    false
                }
                Attempt::TooMany => return Ok(Made::TooMany),
                Attempt::TooLarge => return Ok(Made::TooLarge),
            };
            // Either an attempt whose response was lost has applied the changes, or another client has written.
            let (rows, revision) = self.rows(changes).await?;
            if list.iter().all(|change| change.is_applied(rows.get(change.key()))) {
                away.is_over(&self.side);
                rows.values()
                    .filter(|row| row.mod_revision > since)
                    .for_each(|row| self.claim(row.mod_revision));
                return Ok(Made::At(revision.max(known)));
            }
            if differs {
                let foreign = rows.values().find(|row| row.mod_revision > known);
                races += 1;
                match foreign {
                    Some(row) if !overwrite || races > RACES_MAX => {
                        return Ok(Made::Foreign(row.clone()));
                    }
                    _ if races > RACES_MAX => return Ok(Made::Disturbed),
                    _ => tokio::time::sleep(RACE_PAUSE).await,
                }
            }
            known = known.max(revision);
        }
    }

    /// Builds a transaction for many changes from the target's current keys.
    async fn large(
        &self,
        changes: &BTreeMap<Bytes, Change>,
        known: &mut i64,
    ) -> Result<Option<pb::TxnRequest>, Failure> {
        let (Some(first), Some(last)) = (changes.keys().next(), changes.keys().next_back()) else {
            return Ok(None);
        };
        let mut span = Span { first: first.clone(), end: next_key(last) };
        let (mut there, mut oldest) = (Vec::new(), None);
        loop {
            let page = self.range(&span, KEYS, true).await?;
            // The compare uses the revision of the first page. The compare therefore detects every change made since
            // any page was read.
            oldest = oldest.or(page.header.map(|header| header.revision));
            let more = page.more;
            there.extend(page.kvs.into_iter().map(|row| row.key));
            match there.last() {
                Some(last) if more => span.first = next_key(last),
                _ => break,
            }
        }
        // The other keys of the span are not part of the import. They may have been written at any time before the
        // first page was read, so `known` is raised to the revision of that page.
        *known = (*known).max(oldest.unwrap_or_default());
        Ok(large_transaction(changes, &there, *known, self.ops_max.get()))
    }

    /// Returns the rows of these keys, and a revision that is not newer than any revision at which they were read.
    async fn rows(
        &self,
        changes: &BTreeMap<Bytes, Change>,
    ) -> Result<(BTreeMap<Bytes, KeyValue>, i64), Failure> {
        let keys: Vec<&Bytes> = changes.keys().collect();
        let (mut rows, mut revision) = (BTreeMap::new(), i64::MAX);
        for keys in keys.chunks(self.ops_max.get().max(1)) {
            let read = |key: &&Bytes| {
                let range = pb::RangeRequest { key: (*key).clone(), ..Default::default() };
                pb::RequestOp::from(range)
            };
            let request =
                pb::TxnRequest { success: keys.iter().map(read).collect(), ..Default::default() };
            let answer = self.side.ask(async |link: Link| link.kv().txn(request.clone()).await);
            let answer = answer.await?;
            revision = revision.min(answer.header.unwrap_or_default().revision);
            for op in answer.responses {
                if let Some(pb::response_op::Response::ResponseRange(range)) = op.response {
                    rows.extend(range.kvs.into_iter().map(|row| (row.key.clone(), row)));
                }
            }
        }
        Ok((rows, revision))
    }
}

/// Outcome of applying one source revision.
#[derive(Debug)]
pub(crate) enum Made {
    /// The changes are in place at this revision. The changes were applied at this revision or before.
    At(i64),
    /// Another client has written one of the keys.
    Foreign(KeyValue),
    /// The transaction was rejected because of too many operations.
    TooMany,
    /// The transaction was rejected because of too many bytes.
    TooLarge,
    /// Other clients kept writing these keys until the attempts were used up.
    Disturbed,
}

fn too_large(change: &Change) -> Failure {
    let (name, bytes) = (quote::go(change.key()), change.bytes());
    Failure::Failed(format!(
        "the target's limit for a request is too low for the key {name}, which needs about {bytes} bytes: increase \
         --max-request-bytes of the target's servers"
    ))
}
