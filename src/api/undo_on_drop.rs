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

use tokio::sync::oneshot;

use crate::model::{Command, Reply};
use crate::node::{CallResult, ReplyTo, Shared};
use crate::watch::waking;

use super::{Effect, Error};

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

/// A change whose outcome is pending.
pub(crate) struct UndoOnDrop {
    shared: Weak<Shared>,
    receiver: oneshot::Receiver<CallResult<Reply>>,
    undo: Arc<Undo>,
}

impl UndoOnDrop {
    /// Proposes the change.
    ///
    /// # Errors
    /// See [`Error`]. After an error nothing is changed.
    pub(crate) fn begin(
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

    pub(crate) async fn outcome(mut self) -> Result<Reply, Error> {
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
        shared.propose_until_applied(command, ReplyTo::Discard);
    }
}
