//! Keys of a session, and other changes of a session, that are undone if their caller stops waiting
//! for them; see [`UndoOnDrop`].

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::api::{Effect, Error, Session, UndoOnDrop};
use crate::model::{Command, Compare, Op, Put, Rejection, Reply, Revision, Txn};
use crate::node::{ReplyTo, SessionEndReason};

use crate::recipes::call::Until;

/// Runs a command of a session. If this future is dropped before the reply has arrived, if the
/// deadline passes, or if the session ends, the command is undone.
///
/// # Errors
/// See [`Error`]. A change that is undone may have been visible for a while, so the effect of the
/// error is [unknown](Effect::Unknown).
pub(crate) async fn run_undoable_within(
    session: &Session,
    command: Command,
    until: &Until,
    undo: impl Fn(&Reply) -> Option<Command> + Send + Sync + 'static,
) -> Result<Reply, Error> {
    if let Some(end) = session.end() {
        return Err(Error::ended(end, session.shared()));
    }
    let change = UndoOnDrop::begin(session.shared(), command, undo)?;
    let outcome = async {
        tokio::select! {
            biased;
            reply = change.outcome() => reply,
            end = session.ended() => Err(Error::ended(end, session.shared()).after_partial_change()),
        }
    };
    match until.within(outcome).await.map_err(Error::after_partial_change)? {
        Err(Error::Rejected(Rejection::LeaseNotFound(_))) => {
            Err(Error::ended(SessionEndReason::LeaseEnded, session.shared()))
        }
        outcome => outcome,
    }
}

/// Returns the command that deletes a key if it is still the one created at `since`.
pub(crate) fn delete_of(key: &Bytes, since: Revision) -> Command {
    let is_same = Compare::create_revision(key.clone()).eq(since);
    Command::Txn(Txn::if_all([is_same], [Op::delete(key.clone())]))
}

/// A key of a session that is deleted in the background when this value is dropped.
pub(crate) struct SessionKey {
    session: Session,
    key: Bytes,
    since: Revision,
    deletion: Deletion,
    is_left: bool,
}

/// Returns the command that deletes an entry, given its key and create revision.
type Deletion = fn(&Bytes, Revision) -> Command;

impl SessionKey {
    /// Creates the key unless it exists. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// See [`Error`]. Returns [`Error::SessionEnded`] as soon as the end of the session is known.
    /// After an error nothing is left behind. If the effect is unknown, other clients may see the
    /// key until it is deleted.
    pub(crate) async fn make(
        session: &Session,
        key: Bytes,
        value: Bytes,
        until: &Until,
        deletion: Deletion,
    ) -> Result<Option<SessionKey>, Error> {
        let put = Put::new(key.clone(), value).lease(session.lease());
        let txn = Txn::if_all([Compare::missing(key.clone())], [Op::Put(put)]);
        let command = Command::Txn(txn);
        let made = key.clone();
        let undo = move |reply: &Reply| match reply {
            Reply::Txn(reply) if !reply.succeeded => None,
            // If the outcome is unknown, the create revision shows whether this call created the
            // key.
            reply => Some(deletion(&made, reply.revision())),
        };
        match run_undoable_within(session, command, until, undo).await? {
            Reply::Txn(reply) => Ok(reply.succeeded.then(|| SessionKey {
                session: session.clone(),
                key,
                since: reply.revision,
                deletion,
                is_left: false,
            })),
            other => unreachable!("unexpected reply to a transaction: {other:?}"),
        }
    }

    pub(crate) fn key(&self) -> &Bytes {
        &self.key
    }

    pub(crate) fn since(&self) -> Revision {
        self.since
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Reports whether the session was lost. The key then belongs to the lease, and stays for the
    /// lock delay.
    fn is_left_to_its_lease(&self) -> bool {
        self.session.end() == Some(SessionEndReason::NotRenewed) && !mutant!(B36)
    }

    /// Deletes the key and waits until the deletion is durable. Returns `false` if the key was
    /// already gone. Also returns `false` if the session was lost, because the key is then deleted
    /// with the lease.
    ///
    /// # Errors
    /// Returns [`Error::Deadline`] if the deletion was not confirmed in time. The node keeps
    /// trying.
    pub(crate) async fn leave(mut self, until: &Until) -> Result<bool, Error> {
        self.is_left = true;
        if self.is_left_to_its_lease() {
            return Ok(false);
        }
        let (sender, receiver) = oneshot::channel();
        let command = (self.deletion)(&self.key, self.since);
        self.session.shared().propose_until_applied(command, ReplyTo::Waiting(sender));
        let unknown = Error::Deadline { effect: Effect::Unknown };
        match until.within(receiver).await {
            Ok(Ok(outcome)) => match outcome? {
                Reply::Txn(reply) => Ok(reply.succeeded),
                _ => Err(unknown),
            },
            Ok(Err(_)) | Err(_) => Err(unknown),
        }
    }
}

impl Drop for SessionKey {
    fn drop(&mut self) {
        if !self.is_left && !self.is_left_to_its_lease() {
            let command = (self.deletion)(&self.key, self.since);
            self.session.shared().propose_until_applied(command, ReplyTo::Discard);
        }
    }
}

impl std::fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionKey").field("key", &self.key).field("since", &self.since).finish()
    }
}
