//! Changes that are undone if their caller stops waiting for them.
//!
//! A change is undone only once its outcome is known, because otherwise the change could be applied
//! after its undo. The undo is retried until it succeeds. So a call may be dropped at any time, and
//! its change does not stay:
//!
//! ```text
//!   proposed ──▶ outcome known, caller waits  ──▶ returned to the caller
//!      └───────▶ outcome known, call dropped  ──▶ undone in the background
//! ```

use std::sync::{Arc, Weak};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::api::{Effect, Error, Session};
use crate::model::{
    Command, Compare, Op, Put, PutLease, PutValue, Rejection, Reply, Revision, Txn,
};
use crate::node::{CallResult, ReplyTo, SessionEndReason, Shared};
use crate::watch::waking;

use crate::recipes::call::Until;

/// Returns the command that undoes a change, or `None` if the reply shows that there is nothing to
/// undo.
type Undo = dyn Fn(&Reply) -> Option<Command> + Send + Sync;

/// Runs a command. If this future is dropped before the reply has arrived, the command is undone.
///
/// # Errors
/// See [`Error`].
pub(crate) async fn run_undoable(
    shared: &Arc<Shared>,
    command: Command,
    undo: impl Fn(&Reply) -> Option<Command> + Send + Sync + 'static,
) -> Result<Reply, Error> {
    UndoOnDrop::begin(shared, command, undo)?.outcome().await
}

/// Like [`run_undoable`], for a change of a session. The command is also undone when the deadline
/// passes or the session ends.
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
            end = session.ended() => Err(Error::ended(end, session.shared()).halfway()),
        }
    };
    match until.within(outcome).await.map_err(Error::halfway)? {
        Err(Error::Rejected(Rejection::LeaseNotFound(_))) => {
            Err(Error::ended(SessionEndReason::LeaseEnded, session.shared()))
        }
        outcome => outcome,
    }
}

/// A change whose outcome is pending.
struct UndoOnDrop {
    shared: Weak<Shared>,
    receiver: oneshot::Receiver<CallResult<Reply>>,
    undo: Arc<Undo>,
}

impl UndoOnDrop {
    /// Proposes the change.
    ///
    /// # Errors
    /// See [`Error`]. After an error nothing is changed.
    fn begin(
        shared: &Arc<Shared>,
        command: Command,
        undo: impl Fn(&Reply) -> Option<Command> + Send + Sync + 'static,
    ) -> Result<UndoOnDrop, Error> {
        let undo: Arc<Undo> = Arc::new(undo);
        let (sender, receiver) = oneshot::channel();
        let (weak, undone) = (Arc::downgrade(shared), Arc::clone(&undo));
        let reply = ReplyTo::Call(Box::new(move |outcome| {
            if let Some(Err(outcome)) = waking(|| sender.send(outcome)) {
                undo_now(&weak, &*undone, outcome);
            }
        }));
        let change = UndoOnDrop { shared: Arc::downgrade(shared), receiver, undo };
        shared.propose_admitted_until_applied(command, reply)?;
        Ok(change)
    }

    async fn outcome(mut self) -> Result<Reply, Error> {
        match (&mut self.receiver).await {
            Ok(Ok(reply @ Reply::AppliedBefore { .. })) => {
                undo_now(&self.shared, &*self.undo, Ok(reply));
                Err(Error::Deadline { effect: Effect::Unknown })
            }
            Ok(outcome) => Ok(outcome?),
            // The driver ended without replying.
            Err(_) => Err(Error::Deadline { effect: Effect::Unknown }),
        }
    }
}

impl Drop for UndoOnDrop {
    fn drop(&mut self) {
        self.receiver.close();
        // The outcome may have arrived before the channel was closed. If the caller has already
        // received the outcome, the channel is empty.
        if let Ok(outcome) = self.receiver.try_recv() {
            undo_now(&self.shared, &*self.undo, outcome);
        }
    }
}

fn undo_now(shared: &Weak<Shared>, undo: &Undo, outcome: CallResult<Reply>) {
    let (Some(shared), Ok(reply)) = (shared.upgrade(), outcome) else { return };
    if let Some(command) = undo(&reply) {
        shared.propose_until_applied(command, ReplyTo::Nobody);
    }
}

/// Returns the command that deletes a key if it is still the one created at `since`.
pub(crate) fn delete_of(key: &Bytes, since: Revision) -> Command {
    Command::Txn(Txn {
        compares: vec![Compare::create_revision(key.clone()).eq(since)],
        success: vec![Op::delete(key.clone())],
        failure: Vec::new(),
    })
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
        let put = Put {
            key: key.clone(),
            value: PutValue::Set(value),
            lease: PutLease::Attach(session.lease()),
            prev_kv: false,
        };
        let command = Command::Txn(Txn {
            compares: vec![Compare::missing(key.clone())],
            success: vec![Op::Put(put)],
            failure: Vec::new(),
        });
        let made = key.clone();
        let undo = move |reply: &Reply| match reply {
            Reply::Txn(reply) if !reply.succeeded => None,
            // If the outcome is unknown, the create revision tells whether the key is this one.
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
            self.session.shared().propose_until_applied(command, ReplyTo::Nobody);
        }
    }
}

impl std::fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionKey").field("key", &self.key).field("since", &self.since).finish()
    }
}
