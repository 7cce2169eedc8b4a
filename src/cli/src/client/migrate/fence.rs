//! What keeps out an attempt to write whose answer was lost, and that arrives when the world has moved on.
//!
//! A transaction compares the keys that it writes, and so does nothing if a later one has written them. Of a key that
//! was deleted since then there is nothing to compare. So each compares one key more, the fence, which is not there.
//! When an answer is lost it is put: whatever was sent before finds another fence than it was sent with. When nothing
//! can be on its way any more it is taken down.

use std::cell::Cell;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::side::Side;
use crate::client::connect::Link;
use crate::client::failure::Failure;
use crate::generated::etcdserverpb as pb;
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::request_op::Request;

/// How long after a lost answer an attempt might still arrive: several times what servers give a request.
const ON_ITS_WAY: Duration = Duration::from_secs(15);

/// What stands in the fence, for who finds it.
const WORDS: &[u8] = b"`bowline import` was interrupted here; nothing needs this key any more";

/// See the module.
#[derive(Debug)]
pub(crate) struct Fence {
    /// The key.
    pub(crate) key: Bytes,
    /// Which revision it was put at, while it stands; and when an answer was lost for the last time.
    stands: Cell<Option<(i64, Instant)>>,
}

impl Fence {
    /// None yet, among keys that begin so.
    pub(crate) fn among(prefix: &[u8]) -> Self {
        let own = std::process::id();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.unwrap_or_default().as_nanos();
        let key = [prefix, format!("bowline-import-fence-{now:x}-{own:x}").as_bytes()].concat();
        Self { key: key.into(), stands: Cell::new(None) }
    }

    /// Whether it stands.
    pub(crate) fn stands(&self) -> bool {
        self.stands.get().is_some()
    }

    /// That it is as it was when this was made.
    pub(crate) fn compare(&self) -> pb::Compare {
        pb::Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: self.key.clone(),
            range_end: Bytes::new(),
            target_union: Some(TargetUnion::ModRevision(
                self.stands.get().map_or(0, |(revision, _)| revision),
            )),
        }
    }

    /// An answer was lost: nothing that was sent before may have an effect from here on.
    pub(crate) async fn put(&self, side: &Side) -> Result<(), Failure> {
        if self.stands.get().is_none() {
            // From here on it may be there, also if nobody waits for the answer.
            self.stands.set(Some((0, Instant::now())));
        }
        let request =
            pb::PutRequest { key: self.key.clone(), value: WORDS.into(), ..Default::default() };
        let call = async |link: Link| link.kv().put(request.clone()).await;
        let revision = side.ask(call).await?.header.unwrap_or_default().revision;
        self.stands.set(Some((revision, Instant::now())));
        // An earlier attempt to put it may have arrived later.
        self.look(side).await
    }

    /// Looks whether it stands, and at which revision it was put: a put whose answer was lost may have come late.
    pub(crate) async fn look(&self, side: &Side) -> Result<(), Failure> {
        let request = pb::RangeRequest { key: self.key.clone(), ..Default::default() };
        let call = async |link: Link| link.kv().range(request.clone()).await;
        let found = side.ask(call).await?.kvs.first().map(|row| row.mod_revision);
        match (found, self.stands.get()) {
            (Some(revision), stands) => {
                let lost = stands.map_or_else(Instant::now, |(_, lost)| lost);
                self.stands.set(Some((revision, lost)));
            }
            // Somebody has deleted it. A new one is another one.
            (None, Some(_)) => return Box::pin(self.put(side)).await,
            (None, None) => {}
        }
        Ok(())
    }

    /// Takes it down, if nothing can be on its way any more; or at once.
    pub(crate) async fn take_down(&self, side: &Side, at_once: bool) -> Result<(), Failure> {
        while let Some((_, lost)) = self.stands.get() {
            if !at_once && lost.elapsed() < ON_ITS_WAY {
                return Ok(());
            }
            let delete = pb::DeleteRangeRequest { key: self.key.clone(), ..Default::default() };
            let request = pb::TxnRequest {
                compare: vec![self.compare()],
                success: vec![pb::RequestOp { request: Some(Request::RequestDeleteRange(delete)) }],
                failure: Vec::new(),
            };
            // If it was gone already, an attempt whose answer was lost has done that.
            side.ask(async |link: Link| link.kv().txn(request.clone()).await).await?;
            let request = pb::RangeRequest { key: self.key.clone(), ..Default::default() };
            let call = async |link: Link| link.kv().range(request.clone()).await;
            let found = side.ask(call).await?.kvs.first().map(|row| row.mod_revision);
            self.stands.set(found.map(|revision| (revision, lost)));
        }
        Ok(())
    }
}
