//! Taking up a hold that an earlier life of the program has left: its key is still there, and its lease
//! is kept by a session of this node now.
//!
//! The key is touched first, in the log, on the condition that it still is the one of the ticket. That
//! is the proof that the hold is not over, and it makes the new fencing token higher than all before.
//! Then this node's book of lines takes the key for a place of its own: from there on it is a wish like
//! any other, that holds or waits as the line says.

use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::api::{Client, Error, Session};
use crate::model::{Command, KeyValue, LeaseId, Op, Put, PutLease, PutValue, Reply, Txn};
use crate::node::{SessionState, Shared};

use super::book::{Book, Standing};
use super::election::{Election, Leadership};
use super::error::LockError;
use super::hold::Hold;
use super::line::{Lines, parent, prefix_of, still_mine};
use super::mutex::{Guard, Mutex};
use super::place::{Acts, Phase, Place};
use super::ticket::Ticket;
use super::wish::Wish;

/// Why a hold was not taken up again. Nothing was changed, unless it says otherwise.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum ResumeError {
    /// The hold is over: it was released, its lease has ended, or there never was one.
    #[error("not resumed: that hold is over")]
    Over,
    /// Something on this node has it: the guard that the ticket is from, or one that was resumed before.
    #[error("not resumed: a guard on this node has it")]
    InUse,
    /// The ticket is of another lease than the session, which is to be resumed first.
    #[error("not resumed: the ticket is of lease {ticket}, and the session's is {session}")]
    AnotherLease {
        /// The ticket's.
        ticket: LeaseId,
        /// The session's.
        session: LeaseId,
    },
    /// The ticket is of another lock or election.
    #[error("not resumed: the ticket is of another lock: {}", key.escape_ascii())]
    AnotherName {
        /// The ticket's key.
        key: Bytes,
    },
    /// It could not be waited for: nobody stands for it any more.
    #[error(transparent)]
    NotTaken(#[from] LockError),
    /// The store could not, or would not. It may be tried again.
    #[error(transparent)]
    Store(#[from] Error),
}

impl Hold {
    /// What to save, to take this up again in the program's next life. The session must be one of
    /// [`Node::open_session`](crate::Node::open_session): a node's own ends with the node. Of several
    /// locks that are held at once, it names the first.
    pub fn ticket(&self) -> Ticket {
        let (lease, since) = (self.session().lease(), self.since());
        Ticket { lease, since, key: self.key().clone() }
    }
}

impl Guard {
    /// Lets go of the guard without releasing the lock, for whoever resumes it: its key stays as long as
    /// the lease does. Let the session go by [`Session::orphan`], since it is closed when its last
    /// handle is dropped, and the lock is free then.
    pub fn leak(self) -> Ticket {
        Hold::from(self).leak()
    }
}

impl Leadership {
    /// Lets go of the handle without resigning; see [`Guard::leak`].
    pub fn leak(self) -> Ticket {
        Hold::from(self).leak()
    }
}

impl Mutex {
    /// Takes up a hold that an earlier life of this program, or another program, has left. The session
    /// is the one that has resumed its lease. If the key was not yet the first in line, waits for its
    /// turn; dropping the future then leaves the line. The token is higher than those before.
    ///
    /// ```
    /// # use bowline::{Config, Node, Ticket, Wait};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).wait()?;
    /// let session = node.open_session().wait()?;
    /// let guard = session.mutex("import").lock().wait()?;
    /// let token = guard.token();
    /// let saved = guard.ticket().to_string();
    /// session.orphan();
    /// drop(guard);
    /// // In the next life of the program:
    /// let ticket: Ticket = saved.parse()?;
    /// let session = node.resume_session(ticket.lease()).wait()?;
    /// let guard = session.mutex("import").resume(&ticket).wait()?;
    /// assert!(guard.is_held() && guard.token() > token);
    /// # node.shutdown().wait();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`ResumeError`].
    pub async fn resume(&self, ticket: &Ticket) -> Result<Guard, ResumeError> {
        resume(self.session(), self.name(), ticket).await
    }
}

impl Election {
    /// Takes up a leadership, or a candidacy, that an earlier life of this program has left; see
    /// [`Mutex::resume`].
    ///
    /// # Errors
    /// See [`ResumeError`].
    pub async fn resume(&self, ticket: &Ticket) -> Result<Leadership, ResumeError> {
        resume(self.session(), self.name(), ticket).await
    }
}

async fn resume<G: From<Hold>>(
    session: &Session,
    name: &Bytes,
    ticket: &Ticket,
) -> Result<G, ResumeError> {
    let Ticket { lease, since, key } = ticket;
    if *lease != session.lease() {
        return Err(ResumeError::AnotherLease { ticket: *lease, session: session.lease() });
    }
    if parent(key) != Some(&prefix_of(name)) {
        return Err(ResumeError::AnotherName { key: key.clone() });
    }
    let lines = Lines::of(session.shared());
    if lines.has(session.state(), key) {
        return Err(ResumeError::InUse);
    }
    let touch =
        Put { key: key.clone(), value: PutValue::Keep, lease: PutLease::Keep, prev_kv: false };
    let command = Command::Txn(Txn {
        compares: still_mine(key, *since, *lease).to_vec(),
        success: vec![Op::Put(touch)],
        failure: Vec::new(),
    });
    match Client::new(Arc::clone(session.shared())).propose(command, None).await? {
        Reply::Txn(reply) if reply.succeeded => {}
        _ => return Err(ResumeError::Over),
    }
    let (place, turn) = lines.adopt(session.state(), ticket)?;
    let wish: Wish<G> = Wish::of(session, lines, place, turn);
    Ok(wish.await?)
}

impl Lines {
    /// Whether a place of this session has the key.
    fn has(&self, session: &Arc<SessionState>, key: &Bytes) -> bool {
        self.lock().has(session, key)
    }

    /// Takes a key that is there, and that nobody on this node has, for a place.
    fn adopt(
        self: &Arc<Self>,
        session: &Arc<SessionState>,
        ticket: &Ticket,
    ) -> Result<Standing, ResumeError> {
        let Some(shared) = self.upgrade() else { return Err(ResumeError::Over) };
        if let Some(reason) = shared.stop_reason() {
            return Err(LockError::NodeStopped(reason).into());
        }
        if let Some(end) = session.end(shared.now()) {
            return Err(LockError::SessionEnded(end).into());
        }
        let mut acts = Acts::default();
        let adopted = self.lock().adopt(&shared, session, ticket, &mut acts);
        self.perform(acts);
        adopted
    }
}

impl Book {
    /// Whether a place that lives with this session has the key: one of an earlier session with the same
    /// lease is over, or will be told so.
    fn has(&self, session: &Arc<SessionState>, key: &Bytes) -> bool {
        let place = parent(key).and_then(|prefix| self.local(prefix, key));
        place.is_some_and(|place| {
            Arc::ptr_eq(&place.session, session) || place.session.ended().is_none()
        })
    }

    fn adopt(
        &mut self,
        shared: &Shared,
        session: &Arc<SessionState>,
        ticket: &Ticket,
        acts: &mut Acts,
    ) -> Result<Standing, ResumeError> {
        let Ticket { lease, since, key } = ticket;
        if self.has(session, key) {
            return Err(ResumeError::InUse);
        }
        // It was there when it was touched; what has come since is looked at here.
        let is_mine = |row: &KeyValue| row.create_revision == *since && row.lease == Some(*lease);
        let (row, _) = shared.reader.get(key);
        let row = row.filter(is_mine).ok_or(ResumeError::Over)?;
        let prefix = parent(key).map(Bytes::copy_from_slice).ok_or(ResumeError::Over)?;
        let keys: Arc<[Bytes]> = [key.clone()].into();
        let (id, session) = (self.number(), Arc::clone(session));
        let known = Arc::clone(&keys);
        let place = Arc::new(Place::new(id, [prefix].into(), known, session, row.value, false));
        self.welcome(&place);
        let turn = place.lock().queue(false, None, None, false);
        self.has_entered(shared, &place, &keys, *since, acts);
        debug_assert_ne!(place.lock().phase, Phase::Entering, "the line has the key");
        Ok((place, turn))
    }
}
