//! [`RunOnce`]: work that is completed at most once in the whole cluster, with a stored result.
//!
//! The result is an ordinary key. The caller that runs the work holds the mutex of the same name,
//! and writes the result in a guarded transaction, which is applied only if the caller still holds
//! the mutex. So there is one result, even if several callers have started the work. Waiting
//! callers queue for the mutex and watch for the result at the same time.

use std::future::Future;

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::api::{Client, Effect, Error, Session};
use crate::model::{Compare, IntoBytes, KeyRange, KeyValue, Op};

use super::wait_until::wait_until;
use crate::recipes::call::{Call, Until};
use crate::recipes::lock::core::error::{LockError, LostReason};
use crate::recipes::lock::guard::Guard;
use crate::recipes::lock::guard_txn::GuardError;

/// Work that is completed at most once in the whole cluster. Created by [`Client::run_once`].
///
/// The work is *completed* at most once: there is one result, kept until [`RunOnce::forget`], and
/// all callers get this result. The work may be *started* more than once: if the caller that runs
/// it crashes, fails, or is paused or partitioned for longer than its session lives, another caller
/// starts the work again. The first caller's future is dropped as soon as its node notices the
/// loss, and its result is rejected. Effects of the first run outside the store remain. Write
/// changes in the store with conditions, and make other effects idempotent.
#[derive(Clone, Debug)]
pub struct RunOnce {
    session: Session,
    key: Bytes,
}

/// The outcome of work that is run once.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RunOutcome {
    /// Result of the completed work.
    pub result: Bytes,
    /// Whether this call has run the work. Otherwise another call has run it.
    pub is_here: bool,
}

/// Error of work that is run once.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum RunOnceError<E> {
    /// The work has failed. No result is stored, and the next caller runs the work again.
    #[error("the work failed: {0}")]
    Failed(E),
    /// The work was started and then interrupted, because the lock was lost. Another caller may run
    /// the work now. No result of this run is stored.
    #[error("the work was interrupted: {0}")]
    Lost(LostReason),
    /// The work was not started.
    #[error("the work was not started: {0}")]
    NotBegun(LockError),
    /// Error of the store. If the effect is unknown, the result may be stored. Call again to read
    /// it.
    #[error(transparent)]
    Store(#[from] Error),
}

impl<E> RunOnceError<E> {
    /// Returns whether a result was stored.
    pub fn effect(&self) -> Effect {
        match self {
            RunOnceError::Failed(_) | RunOnceError::Lost(_) | RunOnceError::NotBegun(_) => {
                Effect::NotApplied
            }
            RunOnceError::Store(error) => error.effect(),
        }
    }

    /// Reports whether the same call may succeed later without intervention. Work with a stored
    /// result is not run again. Only the program knows whether failed work would fail again.
    pub fn is_transient(&self) -> bool {
        match self {
            RunOnceError::Failed(_) => false,
            RunOnceError::Lost(LostReason::SessionEnded(_) | LostReason::NodeStopped(_)) => false,
            RunOnceError::Lost(_) => true,
            RunOnceError::NotBegun(why) => why.is_transient(),
            RunOnceError::Store(error) => error.is_transient(),
        }
    }
}

impl<E> From<LockError> for RunOnceError<E> {
    fn from(why: LockError) -> Self {
        RunOnceError::NotBegun(why)
    }
}

impl Client {
    /// Returns work that is completed at most once. The key `name` will contain the result, and the
    /// keys below `name/` are the queue of the callers.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let migration = node.client().run_once("migrations/7", &node.session().block()?);
    /// let first = migration.run(|| async { Ok::<_, std::io::Error>("42 rows") }).block()?;
    /// assert!(first.is_here);
    /// let second = migration.run(|| async { Ok::<_, std::io::Error>("never") }).block()?;
    /// assert_eq!((second.is_here, &second.result[..]), (false, &b"42 rows"[..]));
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_once(&self, name: impl IntoBytes, session: &Session) -> RunOnce {
        RunOnce { session: session.clone(), key: self.scope.key(name.into_bytes()) }
    }
}

impl RunOnce {
    /// Runs `work` unless it has already been completed. If another caller is running it, waits for
    /// the result of that caller. Waits without limit unless a deadline is set, which then includes
    /// the work itself. Dropping the future drops the work, and another caller may start it.
    ///
    /// # Errors
    /// See [`RunOnceError`].
    pub fn run<'a, F, W, V, E>(&self, work: F) -> Call<'a, RunOutcome, RunOnceError<E>>
    where
        F: FnOnce() -> W + Send + 'a,
        W: Future<Output = Result<V, E>> + Send + 'a,
        V: IntoBytes,
    {
        let once = self.clone();
        let client = once.session.client();
        Call::without_deadline(&client.clone(), move |until| async move {
            let begun = match once.result_or_turn(&client, &until).await? {
                RunOnceTurn::Done(result) => return Ok(RunOutcome { result, is_here: false }),
                RunOnceTurn::Mine(guard) => guard,
            };
            let working = async {
                tokio::select! {
                    biased;
                    loss = begun.lost() => Err(RunOnceError::Lost(loss)),
                    result = work() => result.map_err(RunOnceError::Failed),
                }
            };
            let result = until.within(working).await??.into_bytes();
            once.keep(&client, begun, result, &until).await
        })
    }

    /// Returns the result, or `None` if the work has not been completed. The read is linearizable.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn result(&self) -> Call<'static, Option<Bytes>> {
        let (client, key) = (self.session.client(), self.key.clone());
        Call::new(&client.clone(), move |until| async move {
            Ok(client.get(key).deadline(until.left()).await?.map(|row| row.value))
        })
    }

    /// Deletes the result, so that the next caller runs the work again. Returns `false` if there
    /// was none.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn forget(&self) -> Call<'static, bool> {
        let (client, key) = (self.session.client(), self.key.clone());
        Call::new(&client.clone(), move |until| async move {
            Ok(client.delete(key).deadline(until.left()).await?.deleted > 0)
        })
    }

    async fn result_or_turn<E>(
        &self,
        client: &Client,
        until: &Until,
    ) -> Result<RunOnceTurn, RunOnceError<E>> {
        let found = |rows: &[KeyValue]| Ok(rows.first().map(|row| row.value.clone()));
        let result = wait_until::<_, Error>(client, self.key.clone().into(), until, found);
        let outcome = async {
            // Fast path: if the work is already completed, the caller need not queue.
            match client.get(self.key.clone()).deadline(until.left()).await {
                Ok(Some(row)) => return Ok(RunOnceTurn::Done(row.value)),
                Err(error) if !error.is_transient() => return Err(error.into()),
                Ok(None) | Err(_) => {}
            }
            let guard = until.within(self.session.mutex(self.key.clone()).lock().into_future());
            let guard = guard.await??;
            // This node has applied the changes of all earlier holders.
            Ok(match client.get(self.key.clone()).local().await? {
                Some(row) if !mutant!(B16) => RunOnceTurn::Done(row.value),
                _ => RunOnceTurn::Mine(guard),
            })
        };
        tokio::select! {
            biased;
            outcome = outcome => outcome,
            result = result => Ok(RunOnceTurn::Done(result?)),
        }
    }

    /// Stores the result, if this caller still holds the mutex.
    async fn keep<E>(
        &self,
        client: &Client,
        begun: Guard,
        result: Bytes,
        until: &Until,
    ) -> Result<RunOutcome, RunOnceError<E>> {
        let missing = Compare::missing(self.key.clone());
        let put = Op::put(self.key.clone(), result.clone());
        let missing = Some(missing).filter(|_| !mutant!(B16));
        let txn = begun.txn().when_all(missing).then(put).deadline(until.left());
        match txn.commit().await {
            Ok(reply) if reply.succeeded => Ok(RunOutcome { result, is_here: true }),
            // Another client has written the key without running the work.
            Ok(_) => {
                let range = KeyRange::key(self.key.clone());
                let found = |rows: &[KeyValue]| Ok(rows.first().map(|row| row.value.clone()));
                let result = wait_until::<_, Error>(client, range, until, found).await?;
                Ok(RunOutcome { result, is_here: false })
            }
            Err(
                GuardError::NotHeld
                | GuardError::ClaimLost
                | GuardError::ForeignGuard
                | GuardError::ReservedValue,
            ) => Err(RunOnceError::Lost(begun.lost().await)),
            Err(GuardError::Store(error)) => Err(error.into()),
        }
    }
}

/// The next step of a caller.
enum RunOnceTurn {
    /// The work is done.
    Done(Bytes),
    /// This caller runs the work.
    Mine(Guard),
}
