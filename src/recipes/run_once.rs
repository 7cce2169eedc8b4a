//! Run once: something is done to its end at most once in the whole cluster, and what came of it is kept.
//!
//! The result is an ordinary key. Who runs holds the mutex of the same name, and writes the result in a
//! transaction that is carried out only if it still does: so there is one result, however many have
//! begun. Who waits stands in the mutex's line, and looks for the result at the same time.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::api::{Client, Effect, Error, Session};
use crate::model::{Compare, KeyRange, KeyValue, Op};
use crate::mutant::{self, Mutant};

use super::call::{Call, Until};
use super::error::{LockError, LostReason};
use super::guard_txn::GuardError;
use super::look::look_until;
use super::mutex::Guard;

/// Something that is to be done once; made by [`Client::run_once`].
///
/// It is *completed* at most once: there is one result, kept until [`RunOnce::forget`], and everybody gets
/// it. It may be *begun* more than once: if the one that runs it crashes, fails, or is paused or cut off
/// for longer than its session lives, another one begins anew. The first one's future is dropped as
/// soon as its node knows, and its result is refused; but what it did to the world outside the store
/// until then, or does in a pause nobody can see, is done. Write what it changes in the store with
/// conditions, or make it such that doing it twice does no harm.
#[derive(Clone, Debug)]
pub struct RunOnce {
    session: Session,
    key: Bytes,
}

/// What was run once.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RunOutcome {
    /// What came of it.
    pub result: Bytes,
    /// Whether it was run by this call, and not by another one before.
    pub is_here: bool,
}

/// Why there is no result.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum RunOnceError<E> {
    /// What was run has failed. Nothing is kept: whoever comes next runs it anew.
    #[error("it has failed: {0}")]
    Failed(E),
    /// It was begun, and taken from this one: others may run it now. Nothing of this run is kept.
    #[error("it was interrupted: {0}")]
    Lost(LostReason),
    /// It was not begun.
    #[error("it was not begun: {0}")]
    NotBegun(LockError),
    /// The store could not, or would not. If the effect is unknown, call again: the result may be there.
    #[error(transparent)]
    Store(#[from] Error),
}

impl<E> RunOnceError<E> {
    /// Whether a result was kept.
    pub fn effect(&self) -> Effect {
        match self {
            RunOnceError::Failed(_) | RunOnceError::Lost(_) | RunOnceError::NotBegun(_) => {
                Effect::NotApplied
            }
            RunOnceError::Store(error) => error.effect(),
        }
    }

    /// Whether the same call may succeed later without anybody changing the program: what is kept by then is not run
    /// again. Whether what has failed would fail again only the program knows.
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
    /// Something that is to be done once. The key `name` will have the result, and keys below `name/`
    /// are the line of those who want to do it.
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
    pub fn run_once(&self, name: impl Into<Bytes>, session: &Session) -> RunOnce {
        RunOnce { session: session.clone(), key: self.scope.key(name.into()) }
    }
}

impl RunOnce {
    /// Runs `work` to its end, unless somebody has done so or does so now: then waits for what comes of
    /// that. Waits without end unless it is given a deadline, which counts for the work too. Dropping it
    /// drops the work, and another one may begin.
    ///
    /// # Errors
    /// See [`RunOnceError`].
    pub fn run<'a, F, W, V, E>(&self, work: F) -> Call<'a, RunOutcome, RunOnceError<E>>
    where
        F: FnOnce() -> W + Send + 'a,
        W: Future<Output = Result<V, E>> + Send + 'a,
        V: Into<Bytes>,
    {
        let once = self.clone();
        let client = once.client();
        Call::endless(&client.clone(), move |until| async move {
            let begun = match once.result_or_turn(&client, &until).await? {
                Turn::Done(result) => return Ok(RunOutcome { result, is_here: false }),
                Turn::Mine(guard) => guard,
            };
            let working = async {
                tokio::select! {
                    biased;
                    loss = begun.lost() => Err(RunOnceError::Lost(loss)),
                    result = work() => result.map_err(RunOnceError::Failed),
                }
            };
            let result: Bytes = until.within(working).await??.into();
            once.keep(&client, begun, result, &until).await
        })
    }

    /// What came of it, if it has been run. Linearizable.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn result(&self) -> Call<'static, Option<Bytes>> {
        let (client, key) = (self.client(), self.key.clone());
        Call::new(&client.clone(), move |until| async move {
            Ok(client.get(key).deadline(until.left()).await?.map(|row| row.value))
        })
    }

    /// Forgets the result, so that it is run anew by whoever comes next. False if there was none.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn forget(&self) -> Call<'static, bool> {
        let (client, key) = (self.client(), self.key.clone());
        Call::new(&client.clone(), move |until| async move {
            Ok(client.delete(key).deadline(until.left()).await?.deleted > 0)
        })
    }

    fn client(&self) -> Client {
        Client::new(Arc::clone(self.session.shared()))
    }

    async fn result_or_turn<E>(
        &self,
        client: &Client,
        until: &Until,
    ) -> Result<Turn, RunOnceError<E>> {
        let found = |rows: &[KeyValue]| Ok(rows.first().map(|row| row.value.clone()));
        let result = look_until::<_, Error>(client, self.key.clone().into(), until, found);
        let turn = async {
            // Most come when it is done: then nobody stands in line.
            match client.get(self.key.clone()).deadline(until.left()).await {
                Ok(Some(row)) => return Ok(Turn::Done(row.value)),
                Err(error) if !error.is_transient() => return Err(error.into()),
                Ok(None) | Err(_) => {}
            }
            let guard = until.within(self.session.mutex(self.key.clone()).lock().into_future());
            let guard = guard.await??;
            // This node has applied what the holders before this one have done.
            Ok(match client.get(self.key.clone()).local().await? {
                Some(row) if !mutant::is(Mutant::B16) => Turn::Done(row.value),
                _ => Turn::Mine(guard),
            })
        };
        tokio::select! {
            biased;
            turn = turn => turn,
            result = result => Ok(Turn::Done(result?)),
        }
    }

    /// Keeps the result, if it still is this one's to say.
    async fn keep<E>(
        &self,
        client: &Client,
        begun: Guard,
        result: Bytes,
        until: &Until,
    ) -> Result<RunOutcome, RunOnceError<E>> {
        let missing = Compare::missing(self.key.clone());
        let put = Op::put(self.key.clone(), result.clone());
        let missing = Some(missing).filter(|_| !mutant::is(Mutant::B16));
        let txn = begun.txn().when_all(missing).then(put).deadline(until.left());
        match txn.commit().await {
            Ok(reply) if reply.succeeded => Ok(RunOutcome { result, is_here: true }),
            // Somebody has put something there without running.
            Ok(_) => {
                let range = KeyRange::key(self.key.clone());
                let found = |rows: &[KeyValue]| Ok(rows.first().map(|row| row.value.clone()));
                let result = look_until::<_, Error>(client, range, until, found).await?;
                Ok(RunOutcome { result, is_here: false })
            }
            Err(
                GuardError::NotHeld
                | GuardError::NotOurs
                | GuardError::ForeignGuard
                | GuardError::ReservedValue,
            ) => Err(RunOnceError::Lost(begun.lost().await)),
            Err(GuardError::Store(error)) => Err(error.into()),
        }
    }
}

/// Who is to run.
enum Turn {
    /// Nobody: it is done.
    Done(Bytes),
    /// This one.
    Mine(Guard),
}
