//! Changes that must not be left behind: taken back when nobody waits for them any more, and undone
//! for as long as it takes.
//!
//! A change is taken back only when its outcome is known: an earlier attempt could be overtaken by the
//! change itself. So a call may be dropped at every point; what it did, it leaves undone:
//!
//! ```text
//!   asked ──▶ outcome known, waited for ──▶ the caller's
//!     └─────▶ outcome known, dropped ─────▶ taken back, in the background
//! ```

use std::sync::{Arc, Weak};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::api::{Effect, Error, Session};
use crate::model::{
    Command, Compare, Op, Put, PutLease, PutValue, Rejection, Reply, Revision, Txn,
};
use crate::mutant::{self, Mutant};
use crate::node::{CallResult, ReplyTo, SessionEndReason, Shared};
use crate::watch::waking;

use super::call::Until;

/// What takes a change back, if the reply says that there is something to take back.
type Undo = dyn Fn(&Reply) -> Option<Command> + Send + Sync;

/// Carries out a command, which is taken back if this future is dropped before it has the reply.
///
/// # Errors
/// See [`Error`].
pub(crate) async fn carry_out(
    shared: &Arc<Shared>,
    command: Command,
    undo: impl Fn(&Reply) -> Option<Command> + Send + Sync + 'static,
) -> Result<Reply, Error> {
    Deed::begin(shared, command, undo)?.outcome().await
}

/// As [`carry_out`], for something of a session, in the time that there is: with that, and with the session's end, it
/// is taken back.
///
/// # Errors
/// See [`Error`]. What is taken back may be applied before: then that is [unknown](Effect::Unknown).
pub(crate) async fn carry_out_within(
    session: &Session,
    command: Command,
    until: &Until,
    undo: impl Fn(&Reply) -> Option<Command> + Send + Sync + 'static,
) -> Result<Reply, Error> {
    if let Some(end) = session.end() {
        return Err(Error::ended(end, session.shared()));
    }
    let deed = Deed::begin(session.shared(), command, undo)?;
    let outcome = async {
        tokio::select! {
            biased;
            reply = deed.outcome() => reply,
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

/// A change whose outcome is waited for.
struct Deed {
    shared: Weak<Shared>,
    receiver: oneshot::Receiver<CallResult<Reply>>,
    undo: Arc<Undo>,
}

impl Deed {
    /// Asks for it.
    ///
    /// # Errors
    /// See [`Error`]: nothing will be changed.
    fn begin(
        shared: &Arc<Shared>,
        command: Command,
        undo: impl Fn(&Reply) -> Option<Command> + Send + Sync + 'static,
    ) -> Result<Deed, Error> {
        let undo: Arc<Undo> = Arc::new(undo);
        let (sender, receiver) = oneshot::channel();
        let (weak, undone) = (Arc::downgrade(shared), Arc::clone(&undo));
        let reply = ReplyTo::Call(Box::new(move |outcome| {
            if let Some(Err(outcome)) = waking(|| sender.send(outcome)) {
                take_back(&weak, &*undone, outcome);
            }
        }));
        let deed = Deed { shared: Arc::downgrade(shared), receiver, undo };
        shared.insist_admitted(command, reply)?;
        Ok(deed)
    }

    async fn outcome(mut self) -> Result<Reply, Error> {
        match (&mut self.receiver).await {
            Ok(Ok(reply @ Reply::AppliedBefore { .. })) => {
                take_back(&self.shared, &*self.undo, Ok(reply));
                Err(Error::Deadline { effect: Effect::Unknown })
            }
            Ok(outcome) => Ok(outcome?),
            // The driver went away with the call inside.
            Err(_) => Err(Error::Deadline { effect: Effect::Unknown }),
        }
    }
}

impl Drop for Deed {
    fn drop(&mut self) {
        self.receiver.close();
        // It may have come in the meantime. What was received already is not found here.
        if let Ok(outcome) = self.receiver.try_recv() {
            take_back(&self.shared, &*self.undo, outcome);
        }
    }
}

fn take_back(shared: &Weak<Shared>, undo: &Undo, outcome: CallResult<Reply>) {
    let (Some(shared), Ok(reply)) = (shared.upgrade(), outcome) else { return };
    if let Some(command) = undo(&reply) {
        shared.insist(command, ReplyTo::Nobody);
    }
}

/// Deletes a key, if it still is the one that was made at `since`.
pub(crate) fn delete_of(key: &Bytes, since: Revision) -> Command {
    Command::Txn(Txn {
        compares: vec![Compare::create_revision(key.clone()).eq(since)],
        success: vec![Op::delete(key.clone())],
        failure: Vec::new(),
    })
}

/// A key that lives with a session, and no longer than this value: dropping it deletes the key in the
/// background.
pub(crate) struct Entry {
    session: Session,
    key: Bytes,
    since: Revision,
    farewell: Farewell,
    is_left: bool,
}

/// How an entry is deleted, by its key and the revision that made it.
type Farewell = fn(&Bytes, Revision) -> Command;

impl Entry {
    /// Makes the key, unless there is one. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::SessionEnded`] as soon as that is known. Nothing is left behind. Where the effect is
    /// unknown, others may see the key, or have seen it, until it is deleted.
    pub(crate) async fn make(
        session: &Session,
        key: Bytes,
        value: Bytes,
        until: &Until,
        farewell: Farewell,
    ) -> Result<Option<Entry>, Error> {
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
            // If it is not known, the revision tells whether the key is this one.
            reply => Some(farewell(&made, reply.revision())),
        };
        match carry_out_within(session, command, until, undo).await? {
            Reply::Txn(reply) => Ok(reply.succeeded.then(|| Entry {
                session: session.clone(),
                key,
                since: reply.revision,
                farewell,
                is_left: false,
            })),
            other => unreachable!("a transaction is answered by {other:?}"),
        }
    }

    /// The key.
    pub(crate) fn key(&self) -> &Bytes {
        &self.key
    }

    /// The revision that made it.
    pub(crate) fn since(&self) -> Revision {
        self.since
    }

    /// The session that it lives with.
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Whether its session was lost: then the key is its lease's, and lives through the lock delay.
    fn is_left_to_its_lease(&self) -> bool {
        self.session.end() == Some(SessionEndReason::NotRenewed) && !mutant::is(Mutant::B36)
    }

    /// Deletes the key, and waits until that is durable. False if it was gone already, or goes with the
    /// lease, because the session was lost.
    ///
    /// # Errors
    /// [`Error::Deadline`] if it could not be confirmed in time; the node goes on trying.
    pub(crate) async fn leave(mut self, until: &Until) -> Result<bool, Error> {
        self.is_left = true;
        if self.is_left_to_its_lease() {
            return Ok(false);
        }
        let (sender, receiver) = oneshot::channel();
        let command = (self.farewell)(&self.key, self.since);
        self.session.shared().insist(command, ReplyTo::Waiting(sender));
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

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.is_left && !self.is_left_to_its_lease() {
            let command = (self.farewell)(&self.key, self.since);
            self.session.shared().insist(command, ReplyTo::Nobody);
        }
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("key", &self.key).field("since", &self.since).finish()
    }
}
