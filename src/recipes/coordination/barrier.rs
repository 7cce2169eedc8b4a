//! The barrier: while one task holds it, other tasks wait.
//!
//! The barrier is one key, as in etcd's recipe: the creator of the key holds the barrier, and all
//! waiters continue when the key is deleted. Unlike in etcd, a hold can be attached to a session,
//! so that a crashed holder does not block the waiters forever.

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::api::{Client, Effect, Error, Session};
use crate::model::{IntoBytes, KeyRange, LeaseId, Revision};

use super::conditional::{CasOutcome, Expected};
use super::undo_on_drop::{SessionKey, delete_of};
use super::wait_until::wait_until;
use crate::recipes::call::Call;

/// A barrier that can be held and released. Created by [`Client::barrier`].
///
/// A hold that is attached to a session ends with the session: at the latest one TTL after the
/// holder has crashed, or has been paused or partitioned for that long. The waiters then continue.
/// So a holder that was paused may find the barrier open. If some work must not happen while the
/// barrier is open, protect it with a lock. A partitioned waiter is notified when it is connected
/// again, even if the barrier has been held again by then.
#[derive(Clone, Debug)]
pub struct Barrier {
    client: Client,
    key: Bytes,
}

/// Error of holding a barrier.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum BarrierError {
    /// The barrier is already held. Nothing was changed.
    #[error("not applied: the barrier is already held since revision {since}")]
    Held {
        /// Revision of the hold.
        since: Revision,
        /// Lease of the hold, if the hold is attached to a lease.
        lease: Option<LeaseId>,
    },
    /// Error of the store.
    #[error(transparent)]
    Store(#[from] Error),
}

impl BarrierError {
    /// Returns whether the failed call held the barrier. A hold that is attached to a session
    /// remains only if the call succeeds.
    pub fn effect(&self) -> Effect {
        match self {
            BarrierError::Held { .. } => Effect::NotApplied,
            BarrierError::Store(error) => error.effect(),
        }
    }

    /// Reports whether the same call may succeed later without intervention, for example because
    /// the barrier was held or the cluster had no quorum.
    pub fn is_transient(&self) -> bool {
        match self {
            BarrierError::Held { .. } => true,
            BarrierError::Store(error) => error.is_transient(),
        }
    }
}

impl Client {
    /// Returns the barrier in the key `name`.
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
    pub fn barrier(&self, name: impl IntoBytes) -> Barrier {
        Barrier { client: self.clone(), key: name.into_bytes() }
    }
}

impl Barrier {
    /// Holds the barrier as long as both the session and the returned [`BarrierHold`] live.
    /// Dropping the future leaves no hold behind.
    ///
    /// # Errors
    /// Returns [`BarrierError::Held`] if the barrier is held. After any other error, such as
    /// [`Error::SessionEnded`] and [`Error::Deadline`], nothing is left behind. If the effect is
    /// unknown, the barrier may have been held for a short time.
    pub fn hold(&self, session: &Session) -> Call<'static, BarrierHold, BarrierError> {
        let (Self { client, key }, session) = (self.clone(), session.clone());
        Call::new(&self.client, move |until| async move {
            let whole = client.scope.key(key.clone());
            let value: Bytes = session.shared().settings.label.clone().into();
            loop {
                let made =
                    SessionKey::make(&session, whole.clone(), value.clone(), &until, delete_of)
                        .await?;
                if let Some(entry) = made {
                    return Ok(BarrierHold { client, entry });
                }
                // If the hold has ended meanwhile, try again.
                if let Some(row) = client.get(key.clone()).local().await? {
                    return Err(BarrierError::Held {
                        since: row.create_revision,
                        lease: row.lease,
                    });
                }
            }
        })
    }

    /// Holds the barrier until [`Barrier::release`] is called, even if this program ends. Returns
    /// the revision of the hold.
    ///
    /// # Errors
    /// Returns [`BarrierError::Held`] if the barrier is held. The effect of [`BarrierError::Store`]
    /// states whether the barrier is held now.
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

    /// Releases the barrier, regardless of its holder, so that all waiters continue. Returns
    /// `false` if the barrier was not held.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn release(&self) -> Call<'static, bool> {
        let Self { client, key } = self.clone();
        Call::new(&self.client, move |until| async move {
            Ok(client.delete(key).deadline(until.left()).await?.deleted > 0)
        })
    }

    /// Reports whether the barrier is held, with a linearizable read.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn is_held(&self) -> Call<'static, bool> {
        let Self { client, key } = self.clone();
        Call::new(&self.client, move |until| async move {
            Ok(client.get(key).deadline(until.left()).await?.is_some())
        })
    }

    /// Waits until the current hold has ended. Returns at once if the barrier is not held. Waits
    /// without limit unless a deadline is set, even while the cluster is unavailable. Dropping the
    /// future leaves nothing behind.
    ///
    /// # Errors
    /// Returns [`Error::Deadline`] if the deadline passes, and [`Error::Stopped`] if the node
    /// stops.
    pub fn wait(&self) -> Call<'static, ()> {
        let Self { client, key } = self.clone();
        Call::without_deadline(&self.client, move |until| async move {
            let mut held = None;
            wait_until(&client, KeyRange::key(key), &until, |rows| {
                let since = rows.first().map(|row| row.create_revision);
                Ok((since.is_none() || since != *held.get_or_insert(since)).then_some(()))
            })
            .await
        })
    }
}

/// A hold on a [`Barrier`]. Dropping the hold releases the barrier in the background.
/// [`BarrierHold::release`] also waits until the barrier is released.
#[derive(Debug)]
#[must_use = "the barrier is released when this is dropped"]
pub struct BarrierHold {
    client: Client,
    entry: SessionKey,
}

impl BarrierHold {
    /// Returns the revision of the hold.
    pub fn since(&self) -> Revision {
        self.entry.since()
    }

    /// Returns the session of the hold.
    pub fn session(&self) -> &Session {
        self.entry.session()
    }

    /// Releases the barrier and waits until the release is durable. Returns `false` if the hold had
    /// already ended, with the session or by [`Barrier::release`].
    ///
    /// # Errors
    /// Returns [`Error::Deadline`] if the release was not confirmed in time. The node keeps
    /// retrying in the background.
    pub fn release(self) -> Call<'static, bool> {
        let Self { client, entry } = self;
        Call::new(&client, move |until| async move { entry.leave(&until).await })
    }
}
