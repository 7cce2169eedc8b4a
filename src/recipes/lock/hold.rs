//! [`Hold`]: the common part of all guards.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::api::{Effect, Error, Session};
use crate::lock_format::{EntryMetadata, LockMode, QueuePosition, ReleaseRequest, parent};
use crate::model::{Compare, KeyValue, Moment, Op, Put, Reply, Revision, Txn};
use crate::node::{CallResult, ReplyTo, SessionState, Shared};

use super::admin::{LockAdminError, check_all_bowline, check_successor};
use super::core::holding::Holding;
use super::core::view::LockEntry;
use super::core::waiter::Grant;
use super::owner::Owner;
use crate::recipes::lock::core::error::LostReason;
use crate::recipes::lock::core::token::Token;

/// Whether a lock is still held. [`Hold::state`] computes it at each call from this machine's clock
/// and the changes that the local replica has applied.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LockState {
    /// The lock is held at least until this time.
    Held(Moment),
    /// Renewals are overdue. The lock is held until this time, and may be lost afterwards.
    Unconfirmed(Moment),
    /// The lock is lost: this guard never reports it as held again. [`Hold::txn`] asks the store, which
    /// may notice the loss later.
    Lost(LostReason),
}

/// A held lock, until it is released or lost. Every guard dereferences to it.
///
/// Guarantee: at any time, [`Hold::state`] reports the lock as held for at most one of two
/// conflicting holds, provided that ownership changes by release or expiry and that clocks stay
/// within the drift bound. After a pause or a partition, the first call reports the loss. The
/// guarantee does not cover work that was started before the pause. For such work, write through
/// [`Hold::txn`], which the store checks, or pass [`Hold::token`] to the resource and let the
/// resource reject older tokens ([`Fence`](crate::lock::Fence)).
///
/// A guard can be converted into its hold. A hold cannot be converted back into a guard.
///
/// ```
/// fn plain(read: bowline::lock::ReadGuard) -> bowline::lock::Hold {
///     bowline::lock::Hold::from(read)
/// }
/// ```
///
/// ```compile_fail,E0308
/// fn forged(read: bowline::lock::ReadGuard) -> bowline::lock::WriteGuard {
///     bowline::lock::WriteGuard::from(bowline::lock::Hold::from(read))
/// }
/// ```
pub struct Hold {
    holding: Holding,
    owner: Option<Owner>,
    /// Whether this guard counts towards the number of guards that share the hold.
    is_counted: bool,
}

impl Hold {
    pub(crate) fn new(holding: Holding, owner: Option<Owner>) -> Self {
        Self { holding, owner, is_counted: true }
    }

    /// Returns the fencing token of this hold, which is higher than that of every earlier holder of
    /// this lock.
    #[doc(alias = "fencing_token")]
    pub fn token(&self) -> Token {
        self.holding.grant.token
    }

    /// Returns the key of the hold's queue entry. For a hold of several locks, returns the first
    /// key.
    pub fn key(&self) -> &Bytes {
        &self.holding.grant.keys[0]
    }

    /// Returns the keys of all queue entries of the hold.
    pub fn keys(&self) -> &[Bytes] {
        &self.holding.grant.keys
    }

    /// Returns the create revision of the key: when the request joined the queue, not when it
    /// acquired the lock.
    pub fn since(&self) -> Revision {
        self.holding.grant.since
    }

    /// Returns the session of the hold.
    pub fn session(&self) -> &Session {
        &self.holding.session
    }

    /// Returns the time until which the lock is guaranteed to be held without further renewals.
    /// Compare this time with [`Node::now`](crate::Node::now). If the lock is known to be lost,
    /// returns a time in the distant past, [`Moment::default`].
    pub fn valid_until(&self) -> Moment {
        if self.is_lost().is_some() {
            return Moment::default();
        }
        let until = self.holding.session.valid_until();
        self.holding.waiter.until().map_or(until, |cap| cap.min(until))
    }

    /// Returns whether the lock is held. After [`Hold::valid_until`] the lock is never reported as
    /// held.
    pub fn state(&self) -> LockState {
        if let Some(loss) = self.loss(self.holding.session.shared().now()) {
            return LockState::Lost(loss);
        }
        match self.holding.session.state() {
            SessionState::Active(_) => LockState::Held(self.valid_until()),
            SessionState::RenewalOverdue(_) => LockState::Unconfirmed(self.valid_until()),
            SessionState::Ended(end) => {
                LockState::Lost(LostReason::ended(end, self.holding.session.shared()))
            }
        }
    }

    /// Reports whether the lock is held.
    pub fn is_held(&self) -> bool {
        self.loss(self.holding.session.shared().now()).is_none()
    }

    fn loss(&self, now: Moment) -> Option<LostReason> {
        self.holding.loss(now)
    }

    /// Waits until the lock is lost, and returns the reason. The future is ready at the first poll
    /// after [`Hold::valid_until`], or as soon as this node has applied the loss. Cancel-safe.
    pub async fn lost(&self) -> LostReason {
        self.when(|now| self.loss(now)).await
    }

    /// Waits until the lock is at risk: the renewals are overdue, so that the lock may be lost
    /// soon, or the lock is already lost. Use this method to stop work that must not be interrupted
    /// halfway. Cancel-safe.
    pub async fn at_risk(&self) -> LockState {
        self.when(|_| match self.state() {
            LockState::Held(_) => None,
            state => Some(state),
        })
        .await
    }

    /// Waits until the holder is asked to release the lock
    /// ([`Locks::request_release`](crate::lock::Locks::request_release)), and returns the request.
    /// Without a request the future never completes. Cancel-safe.
    pub async fn asked_to_release(&self) -> ReleaseRequest {
        self.when(|_| self.holding.waiter.request()).await
    }

    /// Returns the pending request to release the lock, if there is one.
    pub fn request(&self) -> Option<ReleaseRequest> {
        self.holding.waiter.request()
    }

    /// Consumes the hold without releasing the lock.
    pub(crate) fn leak(mut self) {
        self.is_counted = false;
    }

    /// Delivers a release request to this hold.
    pub(crate) fn ask(&self, request: ReleaseRequest) {
        let Holding { table, entry, waiter, .. } = &self.holding;
        table.request_release(entry, waiter, request);
    }

    /// Waits until `look` returns a value. Calls it at each poll, when the hold changes, and when
    /// the state of the session may have changed.
    async fn when<T>(&self, look: impl Fn(Moment) -> Option<T>) -> T {
        let shared = self.holding.session.shared();
        let mut change = pin!(async {
            let mut end = self.holding.session.shared_session().watch();
            loop {
                let mut changed = pin!(self.holding.waiter.changed.notified());
                changed.as_mut().enable();
                // The current state is checked before the first wait; later changes wake this task.
                tokio::select! {
                    biased;
                    () = changed => {}
                    // The channel lives as long as the session, so it never closes.
                    _ = end.changed() => {}
                }
            }
        });
        poll_fn(|context| {
            let _: Poll<()> = change.as_mut().poll(context);
            look(shared.now()).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Returns the conditions under which this guard is still the holder, for use in your own
    /// transaction. The library does not know when your transaction ends. So from this call on, the
    /// lock is no longer handed off within the node: when it is released, its key is deleted.
    /// [`Hold::txn`] costs less. The keys are complete: pass the conditions to
    /// [`TxnCall::when_complete`](crate::TxnCall::when_complete), because other compares of a
    /// client with a prefix get the prefix.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, Op};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let session = node.session().block()?;
    /// let from = session.mutex("accounts/ann").lock().block()?;
    /// let to = session.mutex("accounts/bob").lock().block()?;
    /// // Under both, and with a condition on the one that the transaction is not from:
    /// let both = from.txn().when_complete(to.still_held()).then(Op::put("paid", "7")).commit().block()?;
    /// assert!(both.succeeded);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn still_held(&self) -> Vec<Compare> {
        let mut conditions = self.holding.still_held();
        if !self.holding.entry.prevent_handoff(&self.holding.waiter) {
            // The hold has ended, but another task of this process may hold the lock with the same
            // key. So add a condition that never holds.
            conditions.push(Compare::missing(self.key().clone()));
        }
        conditions
    }

    pub(crate) fn holding(&self) -> &Holding {
        &self.holding
    }

    pub(crate) fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// Returns why the hold has ended, or `None` if it has not.
    pub(crate) fn is_lost(&self) -> Option<LostReason> {
        self.loss(self.holding.session.shared().now())
    }

    /// Returns the lock mode in the hold's row.
    pub(crate) fn mode(&self) -> LockMode {
        EntryMetadata::mode_of(self.key(), &self.holding.entry.value())
    }

    /// Returns the row's value with another lock mode.
    fn value_with_mode(&self, mode: LockMode) -> Bytes {
        let value = self.holding.entry.value();
        let metadata = EntryMetadata::parse(self.key(), &value);
        let mut metadata =
            metadata.unwrap_or_else(|| EntryMetadata::new(mode.clone(), String::new()));
        metadata.mode = mode;
        metadata.to_value()
    }

    /// Returns the transaction that writes another lock mode into the row, if this is still the
    /// holder.
    pub(crate) fn mode_change(&self, mode: LockMode) -> Txn {
        let put = Put::new(self.key().clone(), self.value_with_mode(mode));
        let put = put.lease(self.holding.entry.session.lease);
        Txn::if_all(self.conditions(), [Op::Put(put)])
    }

    /// Records that the row states the write mode since this revision. A writer has more rights
    /// than a reader, so it gets a new token.
    pub(crate) fn writes_since(&mut self, revision: Revision) {
        self.holding.grant.value = self.value_with_mode(LockMode::Write);
        if !mutant!(B03) {
            self.holding.grant.token = Token { revision, handoff: 0 };
        }
    }

    /// Replaces the grant by that of another guard of the same owner.
    pub(crate) fn holds_by(&mut self, grant: Grant) {
        self.holding.grant = grant;
    }

    /// Returns the transaction that turns a writer's row into a reader's. The transaction compares
    /// the row's revision. So if several of these transactions are in flight, only one is applied,
    /// and none is applied after a later upgrade.
    pub(crate) fn downgrading(&self) -> Txn {
        let mut txn = self.mode_change(LockMode::Read);
        let (row, _) = self.holding.session.shared().reader.get(self.key());
        let as_it_is = |row: KeyValue| Compare::mod_revision(row.key).eq(row.mod_revision);
        txn.compares.extend(row.map(as_it_is));
        txn
    }

    /// Like [`Hold::only_reads`], for a hold of an owner. Returns `false` if the owner has other
    /// guards for writing.
    pub(crate) fn only_reads_for(&mut self, owner: &Owner, name: &Bytes) -> bool {
        let value = self.value_with_mode(LockMode::Read);
        owner.only_read(name, &mut self.holding, |holding| holding.grant.value = value)
    }

    /// Uses the read mode from now on, regardless of the row.
    pub(crate) fn only_reads(&mut self) {
        self.holding.grant.value = self.value_with_mode(LockMode::Read);
    }

    /// Returns the conditions that this is still the holder, for a transaction of the hold itself.
    pub(crate) fn conditions(&self) -> Vec<Compare> {
        self.holding.still_held()
    }

    /// Releases the lock in the background, for all guards that share the hold.
    pub(crate) fn release_in_background(&self) {
        self.holding.give_up(LostReason::Released, ReplyTo::Discard);
    }

    /// Releases the lock and waits until another task can acquire it, like `release` of the guard.
    /// Releasing a lost lock has no effect and returns [`Released::AlreadyLost`].
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, Released, lock::Hold};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let session = node.session().block()?;
    /// // Of different kinds, and all to be let go of:
    /// let reads = Hold::from(session.rw_lock("index").read().block()?);
    /// let permit = Hold::from(session.semaphore("downloads", 3).acquire().block()?);
    /// for hold in [reads, permit] {
    ///     assert_eq!(hold.release().block()?, Released::Now);
    /// }
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`Error::Deadline`] if the release was not confirmed in time. The node keeps
    /// retrying in the background.
    #[doc(alias = "unlock")]
    pub async fn release(mut self) -> Result<Released, Error> {
        if let Some(loss) = self.is_lost() {
            return Ok(Released::AlreadyLost(loss));
        }
        self.is_counted = false;
        match self.holding.waiter.unshare() {
            0 => self.end().await,
            times => Ok(Released::StillHeld { times }),
        }
    }

    /// Releases the lock for all guards that share the hold, and waits until another task can
    /// acquire it.
    pub(crate) async fn end(&self) -> Result<Released, Error> {
        let shared = Arc::clone(self.holding.session.shared());
        if let Some(loss) = self.loss(shared.now()) {
            return Ok(Released::AlreadyLost(loss));
        }
        // Fast path: usually the next waiter is in this process and gets the lock at once.
        if self.holding.table.hand_off(&self.holding.entry, &self.holding.waiter) {
            return Ok(Released::Now);
        }
        let (sender, mut receiver) = oneshot::channel();
        if !self.holding.give_up(LostReason::Released, ReplyTo::Waiting(sender)) {
            return Ok(Released::AlreadyLost(self.is_lost().unwrap_or(LostReason::KeyDeleted)));
        }
        // A handoff within the node completes at once.
        let answer = match receiver.try_recv() {
            Ok(answer) => answer?,
            Err(_) => confirmed(&shared, receiver).await?,
        };
        Ok(Released::of(&answer))
    }
}

impl Released {
    /// Converts the reply to a release.
    pub(crate) fn of(answer: &Reply) -> Self {
        match answer {
            Reply::Txn(reply) if !reply.succeeded => Released::AlreadyLost(LostReason::KeyDeleted),
            _ => Released::Now,
        }
    }
}

impl Hold {
    /// Transfers the lock to a waiter of the same queue, even if other waiters are ahead of it. If
    /// the successor has left the queue, the next waiter gets the lock.
    pub(crate) async fn transfer(self, successor: &LockEntry) -> Result<(), LockAdminError> {
        let shared = Arc::clone(self.holding.session.shared());
        let prefix = parent(self.key()).map(Bytes::copy_from_slice).unwrap_or_default();
        if self.holding.grant.keys.len() > 1 || parent(&successor.key) != Some(&prefix) {
            return Err(LockAdminError::NoSuccessor { successor: successor.key.clone() });
        }
        check_successor(successor, self.holding.entry.session.lease)?;
        check_all_bowline(&shared, &prefix)?;
        let (sender, receiver) = oneshot::channel();
        let (successor, reply) =
            (QueuePosition::new(successor.since, successor.key.clone()), ReplyTo::Waiting(sender));
        if !self.holding.table.transfer(&self.holding.entry, &self.holding.waiter, successor, reply)
        {
            return Err(LockAdminError::Gone);
        }
        drop(self);
        Ok(confirmed(&shared, receiver).await.map(drop)?)
    }
}

/// Waits up to the default deadline for the outcome of a request that the node retries.
pub(crate) async fn confirmed(
    shared: &Shared,
    mut answer: oneshot::Receiver<CallResult<Reply>>,
) -> Result<Reply, Error> {
    let unknown = Error::Deadline { effect: Effect::Unknown };
    tokio::select! {
        biased;
        answer = &mut answer => match answer {
            Ok(answer) => answer.map_err(Error::from),
            Err(_) => Err(unknown),
        },
        () = shared.sleep_until(shared.deadline(None)) => Err(unknown),
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.is_counted {
            self.holding.drop_share();
        }
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hold")
            .field("key", self.key())
            .field("token", &self.token())
            .field("state", &self.state())
            .finish()
    }
}

/// The result of a release.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Released {
    /// The lock was released: it is free, or another task holds it now.
    Now,
    /// The owner still holds the lock with other guards.
    StillHeld {
        /// Number of remaining guards.
        times: u32,
    },
    /// The lock had already been lost before the release.
    AlreadyLost(LostReason),
}
