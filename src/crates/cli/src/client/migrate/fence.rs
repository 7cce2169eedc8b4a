//! Prevents a write whose response was lost from taking effect late.
//!
//! A transaction compares the keys that it writes, so a late attempt does nothing if a later transaction has written
//! these keys. But if the later transaction deleted a key, nothing is left to compare. Therefore each transaction also
//! compares one additional key, the fence, which normally does not exist. When a response is lost, the fence key is
//! written. All earlier transactions then fail, because they expect that the fence does not exist. The fence is
//! removed when no earlier transaction can arrive any more.

use std::cell::Cell;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::side::Side;
use crate::client::connect::Link;
use crate::client::failure::Failure;
use bowline_proto::etcdserverpb as pb;
use pb::compare::{CompareResult, TargetUnion};

/// Time after a lost response during which the lost request might still arrive. Several times a server's request
/// timeout.
const IN_FLIGHT_MAX: Duration = Duration::from_secs(15);

/// Value of the fence key. The value explains the key to a user who finds it.
const WORDS: &[u8] = b"`bowline import` was interrupted here; nothing needs this key any more";

/// A key that all transactions of an import compare. Writing the key invalidates earlier transactions whose responses
/// were lost: see the [module](self).
#[derive(Debug)]
pub(crate) struct Fence {
    pub(crate) key: Bytes,
    /// While the fence exists: the revision at which it was put, and the time of the last lost response.
    stands: Cell<Option<(i64, Instant)>>,
}

impl Fence {
    /// Returns a fence with a key under the prefix. The key is not written yet.
    pub(crate) fn among(prefix: &[u8]) -> Self {
        let own = std::process::id();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.unwrap_or_default().as_nanos();
        let key = [prefix, format!("bowline-import-fence-{now:x}-{own:x}").as_bytes()].concat();
        Self { key: key.into(), stands: Cell::new(None) }
    }

    /// Returns whether the fence key exists.
    pub(crate) fn stands(&self) -> bool {
        self.stands.get().is_some()
    }

    /// Returns a compare that succeeds if the fence key is still in the last known state.
    pub(crate) fn compare(&self) -> pb::Compare {
        let revision = self.stands.get().map_or(0, |(revision, _)| revision);
        let revision = TargetUnion::ModRevision(revision);
        pb::Compare::new(self.key.clone(), CompareResult::Equal, revision)
    }

    /// Writes the fence key after a lost response, so that no earlier transaction can take effect any more.
    pub(crate) async fn put(&self, side: &Side) -> Result<(), Failure> {
        if self.stands.get().is_none() {
            // Set before the request is sent: from now on the fence key may exist, even if the caller stops waiting.
            self.stands.set(Some((0, Instant::now())));
        }
        let request =
            pb::PutRequest { key: self.key.clone(), value: WORDS.into(), ..Default::default() };
        let call = async |link: Link| link.kv().put(request.clone()).await;
        let revision = side.ask(call).await?.header.unwrap_or_default().revision;
        self.stands.set(Some((revision, Instant::now())));
        // An earlier attempt to write the fence key may have been applied after this one.
        self.look(side).await
    }

    /// Reads the revision of the fence key, because a put whose response was lost may have been applied late.
    pub(crate) async fn look(&self, side: &Side) -> Result<(), Failure> {
        let request = pb::RangeRequest { key: self.key.clone(), ..Default::default() };
        let call = async |link: Link| link.kv().range(request.clone()).await;
        let found = side.ask(call).await?.kvs.first().map(|row| row.mod_revision);
        match (found, self.stands.get()) {
            (Some(revision), stands) => {
                let lost = stands.map_or_else(Instant::now, |(_, lost)| lost);
                self.stands.set(Some((revision, lost)));
            }
            // Another client has deleted the fence key. The fence key is written again, with a new revision.
            (None, Some(_)) => return Box::pin(self.put(side)).await,
            (None, None) => {}
        }
        Ok(())
    }

    /// Deletes the fence key if no earlier transaction can arrive any more. With `at_once`, deletes it
    /// unconditionally.
    pub(crate) async fn take_down(&self, side: &Side, at_once: bool) -> Result<(), Failure> {
        while let Some((_, lost)) = self.stands.get() {
            if !at_once && lost.elapsed() < IN_FLIGHT_MAX {
                return Ok(());
            }
            let delete = pb::DeleteRangeRequest { key: self.key.clone(), ..Default::default() };
            let request = pb::TxnRequest {
                compare: vec![self.compare()],
                success: vec![delete.into()],
                failure: Vec::new(),
            };
            // If the fence key no longer exists, an attempt whose response was lost has removed it.
            side.ask(async |link: Link| link.kv().txn(request.clone()).await).await?;
            let request = pb::RangeRequest { key: self.key.clone(), ..Default::default() };
            let call = async |link: Link| link.kv().range(request.clone()).await;
            let found = side.ask(call).await?.kvs.first().map(|row| row.mod_revision);
            self.stands.set(found.map(|revision| (revision, lost)));
        }
        Ok(())
    }
}
