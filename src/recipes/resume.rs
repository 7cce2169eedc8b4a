//! Taking up a hold that an earlier life of the program has left: its key is still there, kept by the
//! earlier session's lease until that ends.
//!
//! One entry gives the key to this session's lease, on the condition that it still is the one of the
//! ticket. Then nothing fits the hold any more that the earlier life may still have under way, the end of
//! the earlier session does not take it along, and the new fencing token is higher than all before. On
//! the driver's thread, as the entry is applied, the book of lines takes the key for a place of this
//! life: from there on it is a wish like any other, that holds or waits as the line says.
//!
//! Invariant: only the node that has made the key takes it up. Its earlier life is over, or has seen its
//! session end; another node's might still believe that it holds, and nobody could tell.

use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error as ThisError;
use tokio::sync::oneshot;

use crate::api::{Effect, Error, Session};
use crate::model::{
    Command, KeyValue, LeaseId, NodeId, Op, Put, PutLease, PutValue, Reply, Revision, Txn,
};
use crate::mutant::{self, Mutant};
use crate::node::{CallError, CallResult, ReplyTo, Shared, SharedSession, StopReason};
use crate::watch::waking;

use super::acquire::Acquire;
use super::book::{Book, QueuedWaiter};
use super::election::{Election, Leadership};
use super::error::{LockError, LostReason};
use super::guard::OfHold;
use super::hold::Hold;
use super::line::{Lines, parent, prefix_of, still_mine};
use super::mutex::{Guard, Mutex};
use super::order::{self, Order};
use super::place::{Acts, Phase, Place};
use super::rule::Rule;
use super::saved_hold::SavedHold;
use super::stance::{MARK, Stance};

/// Why a hold was not taken up again: [`ResumeError::effect`] says whether anything was changed.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum ResumeError {
    /// The hold is over: it was released, its lease has ended, or it was taken up already.
    #[error("not resumed: that hold is over")]
    Over,
    /// A session of this node that has not ended has it.
    #[error("not resumed: a session on this node that has not ended has it")]
    InUse,
    /// It is held on another node, where somebody may believe in it still. When that has gone for good the
    /// lock is free as soon as its session has expired; a hold that lives is handed over instead.
    #[error("not resumed: only node {ticket} can take that hold up again, and this is {own}")]
    AnotherNode {
        /// The ticket's.
        ticket: NodeId,
        /// This one.
        own: NodeId,
    },
    /// The session has the lease that the ticket is of: it takes another, so that what the earlier life
    /// may have under way does not fit the hold any more.
    #[error("not resumed: the ticket is of this very session's lease {0}; take another session")]
    SameLease(LeaseId),
    /// The ticket is of another lock or election, or of a lock that is not of this kind.
    #[error("not resumed: the ticket is of another lock, or kind of lock: {}", key.escape_ascii())]
    AnotherLock {
        /// The ticket's key.
        key: Bytes,
    },
    /// It could not be waited for: nobody stands for it any more. It may have been taken up, and given up then.
    #[error(transparent)]
    NotTaken(#[from] LockError),
    /// The store could not, or would not. It may be tried again.
    #[error(transparent)]
    Store(#[from] Error),
}

impl ResumeError {
    /// Whether the hold was taken up. Where that is unknown it may have been given up then, so that there is none any
    /// more.
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

    /// Whether the same call may succeed later without anybody changing the program.
    pub fn is_transient(&self) -> bool {
        matches!(self, ResumeError::Store(error) if error.is_transient())
    }
}

impl Hold {
    /// What to save, to take this up again.
    pub(super) fn to_ticket(&self) -> SavedHold {
        let node = self.session().shared().status.borrow().id;
        let (_, place, turn, _) = self.parts();
        place.spend(turn);
        let since = match turn.loss() {
            // Another task of this process may hold by the same key.
            Some(LostReason::Released | LostReason::HeldTooLong) => Revision(0),
            _ => self.since(),
        };
        SavedHold { node, lease: self.session().lease(), since, key: self.key().clone() }
    }
}

impl Guard {
    /// What to save, to take this up again in the program's next life on this node ([`Mutex::resume`]). From now on the
    /// lock is not passed on inside the node, but given back to the cluster: the ticket is of this hold alone. That of a
    /// hold which is over takes up nothing.
    pub fn saved_hold(&self) -> SavedHold {
        self.to_ticket()
    }

    /// Lets go of the guard without releasing the lock, for whoever resumes it: its key stays as long as
    /// the lease does. Let the session go by [`Session::detach`], since it is closed when its last
    /// handle is dropped, and the lock is free then.
    pub fn detach(self) -> SavedHold {
        Hold::from(self).detach()
    }
}

impl Leadership {
    /// What to save, to take this up again with [`Election::resume`]; see [`Guard::saved_hold`].
    pub fn saved_hold(&self) -> SavedHold {
        self.to_ticket()
    }

    /// Lets go of the handle without resigning; see [`Guard::detach`].
    pub fn detach(self) -> SavedHold {
        Hold::from(self).detach()
    }
}

impl Mutex {
    /// Takes up a hold that an earlier life of this program has left on this node, by a crash or with an
    /// [detached](Session::detach) session; within the TTL of that session. If the key was not yet the
    /// first in line, waits for its turn. Dropping the future leaves the line. The hold keeps its place
    /// and gets a token that is higher than those before; keys that were bound to it go with the earlier
    /// session's lease.
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
        let is_mutex = |row: &KeyValue| Stance::rule_of(&row.key, &row.value) == Rule::Alone;
        resume(self.session(), self.name(), ticket, is_mutex).await
    }
}

impl Election {
    /// Takes up a leadership, or a candidacy, that an earlier life of this program has left; see
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
    let own = shared.status.borrow().id;
    if *node != own {
        return Err(ResumeError::AnotherNode { ticket: *node, own });
    }
    if *lease == session.lease() {
        return Err(ResumeError::SameLease(*lease));
    }
    let lines = Lines::of(shared);
    if lines.lock().is_in_use(shared, key, *lease) {
        return Err(ResumeError::InUse);
    }
    if parent(key) != Some(&prefix_of(name)) {
        return Err(ResumeError::AnotherLock { key: key.clone() });
    }
    let row = session.client().get(key.clone()).await?;
    let made = |row: &KeyValue| match mutant::is(Mutant::B51) {
        false => row.create_revision,
        true => row.mod_revision,
    };
    let is_left = |row: &KeyValue| made(row) == *since && row.lease == Some(*lease);
    let row = row.filter(is_left).ok_or(ResumeError::Over)?;
    if !fits(&row) {
        return Err(ResumeError::AnotherLock { key: key.clone() });
    }
    let take = Put {
        key: key.clone(),
        value: PutValue::Keep,
        lease: PutLease::Attach(session.lease()),
        prev_kv: false,
    };
    let command = Command::Txn(Txn {
        compares: still_mine(key, *since, *lease).to_vec(),
        success: vec![Op::Put(take)],
        failure: Vec::new(),
    });
    let (sender, receiver) = oneshot::channel();
    let (by, ticket) = (Arc::clone(session.shared_session()), ticket.clone());
    let (taken, taker) = (Arc::clone(&lines), session.clone());
    let reply = ReplyTo::Call(Box::new(move |outcome| {
        // A wish that nobody waits for, or has waited for, gives itself up as it is dropped.
        let adopted = taken.taken(&by, &ticket, outcome);
        let acquire = adopted.map(|(place, turn)| Acquire::<G>::of(&taker, taken, place, turn));
        waking(|| drop(sender.send(acquire)));
    }));
    shared.insist_admitted(command, reply).map_err(Error::from)?;
    let stopped = || LockError::NodeStopped(shared.stop_reason().unwrap_or(StopReason::Shutdown));
    let acquire = tokio::select! {
        biased;
        adopted = receiver => adopted.unwrap_or_else(|_| Err(stopped().into()))?,
        end = session.ended() => return Err(LockError::SessionEnded(end).into()),
    };
    Ok(acquire.await?)
}

impl Lines {
    /// On the driver's thread: what came of taking a key is applied here.
    fn taken(
        self: &Arc<Self>,
        session: &Arc<SharedSession>,
        ticket: &SavedHold,
        outcome: CallResult<Reply>,
    ) -> Result<QueuedWaiter, ResumeError> {
        let Some(shared) = self.upgrade() else { return Err(ResumeError::Over) };
        match outcome {
            Ok(Reply::Txn(reply)) if reply.succeeded => {}
            // It was applied while this node was cut off: the row says what came of it.
            Ok(Reply::AppliedBefore { .. }) => {}
            Ok(_) => return Err(ResumeError::Over),
            Err(CallError::Stopped { reason, .. }) => {
                return Err(LockError::NodeStopped(reason).into());
            }
            Err(error) => return Err(Error::from(error).into()),
        }
        let mut acts = Acts::default();
        let adopted = self.lock().adopt(&shared, session, ticket, &mut acts);
        self.perform(acts);
        adopted
    }
}

impl Book {
    /// Whether a place of a session that lives has the key, with this lease.
    fn is_in_use(&self, shared: &Shared, key: &Bytes, lease: LeaseId) -> bool {
        let place = self.local(key);
        place.is_some_and(|place| {
            place.session.lease == lease && place.session.end(shared.now()).is_none()
        })
    }

    /// Takes a key that is this session's now for a place.
    fn adopt(
        &mut self,
        shared: &Shared,
        session: &Arc<SharedSession>,
        ticket: &SavedHold,
        acts: &mut Acts,
    ) -> Result<QueuedWaiter, ResumeError> {
        let SavedHold { since, key, .. } = ticket;
        let is_mine =
            |row: &KeyValue| row.create_revision == *since && row.lease == Some(session.lease);
        let (row, _) = shared.reader.get(key);
        let row = row.filter(is_mine).ok_or(ResumeError::Over)?;
        let prefix = parent(key).map(Bytes::copy_from_slice).ok_or(ResumeError::Over)?;
        let is_taken = |place: &Arc<Place>| {
            place.session.lease == session.lease && place.lock().phase != Phase::Gone
        };
        if self.local(key).is_some_and(is_taken) {
            // It was taken for what somebody has handed to another task of this session.
            return Err(ResumeError::InUse);
        }
        let keys: Arc<[Bytes]> = [key.clone()].into();
        let (id, session) = (self.number(), Arc::clone(session));
        let prefixes: Box<[Bytes]> = [prefix.clone()].into();
        let (known, counts) = (Arc::clone(&keys), self.counts(&prefixes));
        let place = Place::new(id, prefixes, known, session, row.value, false, counts);
        let place = Arc::new(place);
        self.welcome(&place);
        let turn = place.lock().queue(false, None, None, false);
        self.has_entered(shared, &place, &keys, *since, acts);
        // What was ordered while nobody had it.
        let orders = order::rows(shared, &prefix);
        for row in orders.iter().filter(|row| order::addressee(&row.key) == Some(&key[..])) {
            if let Some(order) = Order::parse(&row.value) {
                place.obey(order, key, &row.key, acts);
            }
        }
        Ok((place, turn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blocking, Config, Node};

    #[test]
    fn a_key_that_another_task_was_found_to_have_been_handed_is_not_taken_up_too() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
        let session = node.session().block().unwrap();
        let guard = session.mutex("import").lock().block().unwrap();
        let (lines, ticket) = (Lines::of(session.shared()), guard.saved_hold());
        let adopt = || {
            let mut acts = Acts::default();
            lines.lock().adopt(session.shared(), session.shared_session(), &ticket, &mut acts)
        };
        assert_eq!(adopt().err(), Some(ResumeError::InUse));
        assert!(guard.is_held());
        node.shutdown().block();
    }
}
