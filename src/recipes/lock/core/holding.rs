//! A grant of a lock, with the entry and the waiter that have it.

use std::sync::Arc;

use bytes::Bytes;

use crate::api::Session;
use crate::lock_format::{EntryMetadata, LockMode};
use crate::model::{Compare, Moment, Reply};
use crate::node::ReplyTo;

use super::entry::QueueEntry;
use super::error::LostReason;
use super::lock_table::LockTable;
use super::release_plan::still_mine;
use super::waiter::{Grant, Waiter};

/// A grant of a lock. Guards, owners and transactions under the lock share it.
#[derive(Clone)]
pub(crate) struct Holding {
    pub(crate) session: Session,
    pub(crate) table: Arc<LockTable>,
    pub(crate) entry: Arc<QueueEntry>,
    pub(crate) waiter: Arc<Waiter>,
    pub(crate) grant: Grant,
}

impl Holding {
    /// Returns why the hold has ended, or `None` if it has not.
    pub(crate) fn loss(&self, now: Moment) -> Option<LostReason> {
        let ended = || self.session.shared_session().end(now).map(LostReason::SessionEnded);
        let loss = match self.waiter.loss() {
            // The key was deleted because the session ended: report that instead.
            Some(LostReason::KeyDeleted) => Some(ended().unwrap_or(LostReason::KeyDeleted)),
            Some(loss) => Some(loss),
            None => ended().or_else(|| {
                self.waiter.until().filter(|until| *until <= now).map(|_| LostReason::HeldTooLong)
            }),
        };
        loss.map(|loss| loss.into_public(self.session.shared()))
    }

    /// Starts the release without waiting. Returns `false` if the hold has already ended.
    pub(crate) fn give_up(&self, why: LostReason, reply: ReplyTo<Reply>) -> bool {
        self.table.release(&self.entry, &self.waiter, why, reply)
    }

    /// Removes a guard from the hold. The last guard releases the lock.
    pub(crate) fn drop_share(&self) {
        if self.waiter.unshare() == 0 {
            self.give_up(LostReason::Released, ReplyTo::Discard);
        }
    }

    /// Returns the conditions under which the grant still holds. A downgraded writer still has its
    /// key and lease, but no longer holds for writing.
    pub(crate) fn still_held(&self) -> Vec<Compare> {
        let (lease, value) = (self.entry.session.lease, &self.grant.value);
        let mut since = self.grant.since;
        mutant!(B56, since = since.next());
        let is_still = |key: &Bytes| {
            let writes = EntryMetadata::mode_of(key, value) == LockMode::Write;
            let same_value = writes.then(|| Compare::value(key.clone()).eq(value.clone()));
            still_mine(key, since, lease).into_iter().chain(same_value)
        };
        self.grant.keys.iter().flat_map(is_still).collect()
    }
}
