//! The barrier: while it is held, those who come to it wait.
//!
//! It is one key, as in etcd's recipe: who makes it holds the barrier, and when it is deleted all go on.
//! Unlike there, a hold can be bound to a session, so that a holder that crashes does not keep
//! the others for ever.

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::api::{Client, Effect, Error, Session};
use crate::model::{KeyRange, LeaseId, Revision};

use super::call::Call;
use super::conditional::{CasOutcome, Expected};
use super::deed::{Entry, delete_of};
use super::look::look_until;

/// A gate that is held shut and let go; made by [`Client::barrier`].
///
/// A hold that is bound to a session ends with it, at the latest its time to live after the holder has
/// crashed, or has been paused or cut off for so long; whoever waits goes on then. So a holder that was
/// paused may find the gate open: what must not happen after that belongs under a lock. A waiter that is
/// cut off hears of the opening when it is back, also if the barrier is held anew by then.
#[derive(Clone, Debug)]
pub struct Barrier {
    client: Client,
    key: Bytes,
}

/// Why a barrier could not be held.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum BarrierError {
    /// It is held already. Nothing was changed.
    #[error("not applied: the barrier is held since revision {since}")]
    Held {
        /// The revision of the hold.
        since: Revision,
        /// The lease that the hold is bound to, if it is.
        lease: Option<LeaseId>,
    },
    /// The store could not, or would not.
    #[error(transparent)]
    Store(#[from] Error),
}

impl BarrierError {
    /// Whether the barrier was held. A hold that is bound to a session stays only where the call succeeds.
    pub fn effect(&self) -> Effect {
        match self {
            BarrierError::Held { .. } => Effect::NotApplied,
            BarrierError::Store(error) => error.effect(),
        }
    }

    /// Whether the same call may succeed later without anybody changing the program: it was held, or the cluster had no
    /// quorum.
    pub fn is_transient(&self) -> bool {
        match self {
            BarrierError::Held { .. } => true,
            BarrierError::Store(error) => error.is_transient(),
        }
    }
}

impl Client {
    /// The barrier in the key `name`.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let gate = node.client().barrier("maintenance");
    /// let hold = gate.hold(&node.session().block()?).block()?;
    /// assert!(gate.is_held().block()?);
    /// hold.release().block()?;
    /// gate.wait().block()?;
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn barrier(&self, name: impl Into<Bytes>) -> Barrier {
        Barrier { client: self.clone(), key: name.into() }
    }
}

impl Barrier {
    /// Holds it, as long as the session and the [`BarrierHold`] live. If the future is dropped, nothing
    /// is held.
    ///
    /// # Errors
    /// [`BarrierError::Held`]; [`Error::SessionEnded`], [`Error::Deadline`]: nothing is left behind. Where the effect is
    /// unknown it may have been held for a moment.
    pub fn hold(&self, session: &Session) -> Call<'static, BarrierHold, BarrierError> {
        let (Self { client, key }, session) = (self.clone(), session.clone());
        Call::new(&self.client, move |until| async move {
            let whole = client.scope.key(key.clone());
            let value: Bytes = session.shared().settings.label.clone().into();
            loop {
                let made =
                    Entry::make(&session, whole.clone(), value.clone(), &until, delete_of).await?;
                if let Some(entry) = made {
                    return Ok(BarrierHold { client, entry });
                }
                // If nobody holds it any more, it can be held.
                if let Some(row) = client.get(key.clone()).local().await? {
                    return Err(BarrierError::Held {
                        since: row.create_revision,
                        lease: row.lease,
                    });
                }
            }
        })
    }

    /// Holds it until somebody calls [`Barrier::release`], whatever becomes of this program. Answers with
    /// the revision of the hold.
    ///
    /// # Errors
    /// [`BarrierError::Held`]; [`BarrierError::Store`], which says whether it is held now.
    pub fn hold_without_session(&self) -> Call<'static, Revision, BarrierError> {
        let Self { client, key } = self.clone();
        Call::new(&self.client, move |until| async move {
            loop {
                let value = client.shared.settings.label.clone();
                let put = client.compare_and_set(key.clone(), Expected::Missing, value);
                match put.deadline(until.left()).await? {
                    CasOutcome::Done { revision } => return Ok(revision),
                    CasOutcome::Lost { row: Some(row) } => {
                        let (since, lease) = (row.create_revision, row.lease);
                        return Err(BarrierError::Held { since, lease });
                    }
                    CasOutcome::Lost { row: None } => {}
                }
            }
        })
    }

    /// Lets everybody through, whoever holds it. False if nobody did.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn release(&self) -> Call<'static, bool> {
        let Self { client, key } = self.clone();
        Call::new(&self.client, move |until| async move {
            Ok(client.delete(key).deadline(until.left()).await?.deleted > 0)
        })
    }

    /// Whether somebody holds it. Linearizable.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn is_held(&self) -> Call<'static, bool> {
        let Self { client, key } = self.clone();
        Call::new(&self.client, move |until| async move {
            Ok(client.get(key).deadline(until.left()).await?.is_some())
        })
    }

    /// Waits until the hold that is there now has ended: at once if there is none. Waits without end
    /// unless it is given a deadline, also while the cluster cannot answer. Dropping it leaves nothing
    /// behind.
    ///
    /// # Errors
    /// [`Error::Deadline`], and if the node stops.
    pub fn wait(&self) -> Call<'static, ()> {
        let Self { client, key } = self.clone();
        Call::endless(&self.client, move |until| async move {
            let mut held = None;
            look_until(&client, KeyRange::key(key), &until, |rows| {
                let since = rows.first().map(|row| row.create_revision);
                Ok((since.is_none() || since != *held.get_or_insert(since)).then_some(()))
            })
            .await
        })
    }
}

/// Holding a [`Barrier`]. Dropping it lets everybody through, in the background;
/// [`BarrierHold::release`] waits for that.
#[derive(Debug)]
#[must_use = "a barrier is let go when this is dropped"]
pub struct BarrierHold {
    client: Client,
    entry: Entry,
}

impl BarrierHold {
    /// The revision of the hold.
    pub fn since(&self) -> Revision {
        self.entry.since()
    }

    /// The session that the hold lives with.
    pub fn session(&self) -> &Session {
        self.entry.session()
    }

    /// Lets everybody through, and waits until that is durable. False if the hold had ended before: with
    /// the session, or by [`Barrier::release`].
    ///
    /// # Errors
    /// [`Error::Deadline`] if it could not be confirmed in time; the node goes on trying.
    pub fn release(self) -> Call<'static, bool> {
        let Self { client, entry } = self;
        Call::new(&client, move |until| async move { entry.leave(&until).await })
    }
}
