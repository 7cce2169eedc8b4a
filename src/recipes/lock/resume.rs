//! Resumes a hold that an earlier run of the program has left behind. The key of the hold still
//! exists, as long as the lease of the earlier session.
//!
//! One log entry attaches the key to the new session's lease, provided that it is still the key of
//! the saved hold. Afterwards, operations of the earlier run that are still in flight are not
//! applied, because their conditions compare the lease. The end of the earlier session does not
//! delete the key. The new fencing token is higher than all earlier tokens. When the driver applies
//! the entry, the lock table adopts the key as a queue entry of this run. The entry is then treated
//! like any other request, and holds or waits according to its position.
//!
//! Invariant: only the node that created the key resumes the hold. On this node the earlier run has
//! ended, or has noticed the end of its session. A run on another node might still consider the
//! lock held.

use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error as ThisError;
use tokio::sync::oneshot;

use crate::api::{Effect, Error, Session};
use crate::lock_format::{
    AdminRequest, EntryMetadata, LockMode, MARK, admin_request_target, parent, prefix_of,
};
use crate::model::{Command, KeyValue, LeaseId, NodeId, Op, Put, Reply, Revision, Txn};
use crate::node::{CallError, CallResult, ReplyTo, Shared, SharedSession, StopReason};
use crate::watch::waking;

use super::acquire::Acquire;
use super::core::entry::{AdminRow, DeferredActions, EntryData, EntryEvent, Phase, QueueEntry};
use super::core::holding::Holding;
use super::core::release_plan::still_mine;
use super::core::waiter::WaiterOptions;
use super::guard::{Guard, OfHold};
use super::hold::Hold;
use super::mutex::Mutex;
use super::saved_hold::SavedHold;
use crate::recipes::election::{Election, Leadership};
use crate::recipes::lock::core::error::{LockError, LostReason};
use crate::recipes::lock::core::lock_table::LockTable;
use crate::recipes::lock::core::table_state::{LockTableState, QueuedWaiter};

/// Error of resuming a hold. [`ResumeError::effect`] states whether anything was changed.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum ResumeError {
    /// The hold has ended: it was released, its lease has ended, or it was already resumed.
    #[error("not resumed: the hold has ended")]
    Over,
    /// The hold belongs to an active session of this node.
    #[error("not resumed: an active session of this node still holds the lock")]
    InUse,
    /// The hold belongs to another node, which may still consider it held. If that node is gone,
    /// the lock becomes free when its session expires. To move an active hold to another node,
    /// transfer the lock.
    #[error("not resumed: only node {ticket} can resume the hold, but this is node {own}")]
    AnotherNode {
        /// The node that is stored in the saved hold.
        ticket: NodeId,
        /// This node.
        own: NodeId,
    },
    /// The session has the same lease as the saved hold. Use another session, so that operations of
    /// the earlier run that are still in flight are not applied to the resumed hold.
    #[error(
        "not resumed: the session itself has the lease {0} of the saved hold; use another session"
    )]
    SameLease(LeaseId),
    /// The saved hold is of another lock or election, or of a lock of another kind.
    #[error("not resumed: the saved hold is of another lock or another kind of lock: {}", key.escape_ascii())]
    AnotherLock {
        /// The key of the saved hold.
        key: Bytes,
    },
    /// The wait for the lock failed, and the request has left the queue. The hold may have been
    /// resumed and then released.
    #[error(transparent)]
    NotTaken(#[from] LockError),
    /// Error of the store. The call may be repeated.
    #[error(transparent)]
    Store(#[from] Error),
}

impl ResumeError {
    /// Returns whether the hold was resumed. If the effect is unknown, the hold may have been
    /// resumed and released afterwards.
    pub fn effect(&self) -> Effect {
        match self {
            ResumeError::Over
            | ResumeError::InUse
            | ResumeError::AnotherNode { .. }
            | ResumeError::SameLease(_)
            | ResumeError::AnotherLock { .. } => Effect::NotApplied,
            ResumeError::NotTaken(_) => Effect::Unknown,
            ResumeError::Store(error) => error.effect(),
        }
    }

    /// Reports whether the same call may succeed later without intervention.
    pub fn is_transient(&self) -> bool {
        matches!(self, ResumeError::Store(error) if error.is_transient())
    }
}

impl Hold {
    /// Returns the data for resuming this hold.
    pub(crate) fn to_ticket(&self) -> SavedHold {
        let node = self.session().shared().state.status.borrow().id;
        let Holding { entry, waiter, .. } = self.holding();
        entry.prevent_handoff(waiter);
        let since = match waiter.loss() {
            // Another task of this process may hold the lock with the same key. Revision 0 never
            // matches.
            Some(LostReason::Released | LostReason::HeldTooLong) => Revision(0),
            _ => self.since(),
        };
        SavedHold { node, lease: self.session().lease(), since, key: self.key().clone() }
    }
}

impl Hold {
    /// Consumes the hold without releasing the lock.
    pub(crate) fn detach(self) -> SavedHold {
        let saved = self.to_ticket();
        self.leak();
        saved
    }
}

impl Guard {
    /// Returns the data with which the next run of the program on this node can resume this hold
    /// ([`Mutex::resume`]). The data must not match a later hold with the same key. So from this
    /// call on, the lock is no longer handed off within the node: when it is released, its key is
    /// deleted. If the hold has ended, its data cannot be resumed.
    pub fn saved_hold(&self) -> SavedHold {
        self.to_ticket()
    }

    /// Consumes the guard without releasing the lock, so that the hold can be resumed. The key
    /// exists until the lease ends. Also [detach](Session::detach) the session. Otherwise the
    /// session is closed when its last handle is dropped, which releases the lock.
    pub fn detach(self) -> SavedHold {
        Hold::from(self).detach()
    }
}

impl Leadership {
    /// Returns the data for resuming this leadership with [`Election::resume`]; see
    /// [`Guard::saved_hold`].
    pub fn saved_hold(&self) -> SavedHold {
        self.to_ticket()
    }

    /// Consumes the handle without resigning; see [`Guard::detach`].
    pub fn detach(self) -> SavedHold {
        Hold::from(self).detach()
    }
}

impl Mutex {
    /// Resumes a hold that an earlier run of this program has left on this node, by a crash or with
    /// a [detached](Session::detach) session. This is possible within the TTL of the earlier
    /// session. If the key is not the first in the queue, waits until it is. Dropping the future
    /// removes the queue entry. The hold keeps its position and gets a token higher than all
    /// earlier tokens. Keys that were attached to the hold stay with the earlier session's lease
    /// and are deleted when that lease ends.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, lock::SavedHold};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let session = node.open_session().block()?;
    /// let guard = session.mutex("import").lock().block()?;
    /// let token = guard.token();
    /// let saved = guard.saved_hold().to_string();
    /// session.detach();
    /// drop(guard);
    /// // In the next life of the program:
    /// let ticket: SavedHold = saved.parse()?;
    /// let guard = node.session().block()?.mutex("import").resume(&ticket).block()?;
    /// assert!(guard.is_held() && guard.token() > token);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`ResumeError`].
    pub async fn resume(&self, ticket: &SavedHold) -> Result<Guard, ResumeError> {
        let is_mutex =
            |row: &KeyValue| EntryMetadata::mode_of(&row.key, &row.value) == LockMode::Mutex;
        resume(self.session(), self.name(), ticket, is_mutex).await
    }
}

impl Election {
    /// Resumes a leadership, or a candidacy, that an earlier run of this program has left; see
    /// [`Mutex::resume`].
    ///
    /// # Errors
    /// See [`ResumeError`].
    pub async fn resume(&self, ticket: &SavedHold) -> Result<Leadership, ResumeError> {
        let is_candidate = |row: &KeyValue| !row.value.starts_with(MARK);
        resume(self.session(), self.name(), ticket, is_candidate).await
    }
}

async fn resume<G: OfHold + 'static>(
    session: &Session,
    name: &Bytes,
    ticket: &SavedHold,
    fits: impl Fn(&KeyValue) -> bool,
) -> Result<G, ResumeError> {
    let SavedHold { node, lease, since, key } = ticket;
    let shared = session.shared();
    let own = shared.state.status.borrow().id;
    if *node != own {
        return Err(ResumeError::AnotherNode { ticket: *node, own });
    }
    if *lease == session.lease() {
        return Err(ResumeError::SameLease(*lease));
    }
    let table = LockTable::of(shared);
    if table.lock().is_in_use(shared, key, *lease) {
        return Err(ResumeError::InUse);
    }
    if parent(key) != Some(&prefix_of(name)) {
        return Err(ResumeError::AnotherLock { key: key.clone() });
    }
    let row = session.client().get(key.clone()).await?;
    let is_left = |row: &KeyValue| {
        let mut made = row.create_revision;
        mutant!(B51, made = row.mod_revision);
        made == *since && row.lease == Some(*lease)
    };
    let row = row.filter(is_left).ok_or(ResumeError::Over)?;
    if !fits(&row) {
        return Err(ResumeError::AnotherLock { key: key.clone() });
    }
    let take = Put::keeping_value(key.clone()).lease(session.lease());
    let txn = Txn::if_all(still_mine(key, *since, *lease), [Op::Put(take)]);
    let command = Command::Txn(txn);
    let (sender, receiver) = oneshot::channel();
    let (by, ticket) = (Arc::clone(session.shared_session()), ticket.clone());
    let (taken, taker) = (Arc::clone(&table), session.clone());
    let reply = ReplyTo::Call(Box::new(move |outcome| {
        // If the caller is gone, the request is dropped, which cancels it.
        let adopted = taken.taken(&by, &ticket, outcome);
        let acquire = adopted.map(|queued| Acquire::<G>::of(&taker, taken, queued, None));
        waking(|| drop(sender.send(acquire)));
    }));
    shared.propose_admitted_until_applied(command, reply).map_err(Error::from)?;
    let stopped = || LockError::NodeStopped(shared.stop_reason().unwrap_or(StopReason::Shutdown));
    let acquire = tokio::select! {
        biased;
        adopted = receiver => adopted.unwrap_or_else(|_| Err(stopped().into()))?,
        end = session.ended() => return Err(LockError::SessionEnded(end).into()),
    };
    Ok(acquire.await?)
}

impl LockTable {
    /// Handles the outcome of taking over a key, on the driver's thread, where it is applied.
    fn taken(
        self: &Arc<Self>,
        session: &Arc<SharedSession>,
        ticket: &SavedHold,
        outcome: CallResult<Reply>,
    ) -> Result<QueuedWaiter, ResumeError> {
        let Some(shared) = self.upgrade() else { return Err(ResumeError::Over) };
        match outcome {
            Ok(Reply::Txn(reply)) if reply.succeeded => {}
            // The change was applied while this node was disconnected, and its reply was lost. The
            // current row shows the outcome.
            Ok(Reply::AppliedBefore { .. }) => {}
            Ok(_) => return Err(ResumeError::Over),
            Err(CallError::Stopped { reason, .. }) => {
                return Err(LockError::NodeStopped(reason).into());
            }
            Err(error) => return Err(Error::from(error).into()),
        }
        self.deferring(|actions| self.lock().adopt(&shared, session, ticket, actions))
    }
}

impl LockTableState {
    /// Reports whether an entry of an active session has the key with this lease.
    fn is_in_use(&self, shared: &Shared, key: &Bytes, lease: LeaseId) -> bool {
        let entry = self.local(key);
        entry.is_some_and(|entry| {
            entry.session.lease == lease && entry.session.end(shared.now()).is_none()
        })
    }

    /// Adopts a key that now belongs to this session as a queue entry.
    fn adopt(
        &mut self,
        shared: &Shared,
        session: &Arc<SharedSession>,
        ticket: &SavedHold,
        actions: &mut DeferredActions,
    ) -> Result<QueuedWaiter, ResumeError> {
        let SavedHold { since, key, .. } = ticket;
        let is_mine =
            |row: &KeyValue| row.create_revision == *since && row.lease == Some(session.lease);
        let (row, _) = shared.reader.get(key);
        let row = row.filter(is_mine).ok_or(ResumeError::Over)?;
        let prefix = parent(key).map(Bytes::copy_from_slice).ok_or(ResumeError::Over)?;
        let is_taken = |entry: &Arc<QueueEntry>| {
            entry.session.lease == session.lease && entry.phase() != Phase::Gone
        };
        if self.local(key).is_some_and(is_taken) {
            // The key was already adopted, as a hold transferred to another task of this session.
            return Err(ResumeError::InUse);
        }
        let keys: Arc<[Bytes]> = [key.clone()].into();
        let (id, session) = (self.number(), Arc::clone(session));
        let prefixes: Box<[Bytes]> = [prefix.clone()].into();
        let data = EntryData::new(Arc::clone(&keys), row.value, self.counts(&prefixes));
        let entry = QueueEntry::new(id, prefixes, session, false, data);
        self.insert(&entry);
        let waiter = entry.add_waiter(WaiterOptions::default());
        self.enqueued(shared, &entry, &keys, *since, actions);
        // Run admin requests that arrived while no program had the hold.
        let requests = super::core::view::request_rows(shared, &prefix);
        for row in requests.iter().filter(|row| admin_request_target(&row.key) == Some(&key[..])) {
            if let Some(request) = AdminRequest::parse(&row.value) {
                let admin = AdminRow { request, key: key.clone(), row: row.key.clone() };
                entry.apply(EntryEvent::Admin(admin), actions);
            }
        }
        Ok((entry, waiter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blocking, Config, Node};

    #[test]
    fn key_already_handed_to_another_task_is_not_adopted() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
        let session = node.session().block().unwrap();
        let guard = session.mutex("import").lock().block().unwrap();
        let (table, ticket) = (LockTable::of(session.shared()), guard.saved_hold());
        let adopt = || {
            let mut actions = DeferredActions::default();
            table.lock().adopt(session.shared(), session.shared_session(), &ticket, &mut actions)
        };
        assert_eq!(adopt().err(), Some(ResumeError::InUse));
        assert!(guard.is_held());
        node.shutdown().block();
    }
}
