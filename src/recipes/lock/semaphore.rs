//! The semaphore: a fixed number of permits, granted in the order of the requests.

use std::panic::Location;

use bytes::Bytes;

use crate::api::{Client, Effect, Error, Session};
use crate::lock_format::{EntryMetadata, LockKind, LockMode, is_entry, lock_of, prefix_of};
use crate::model::{
    Command, Compare, CompareOp, CompareTarget, IntoBytes, KeyRange, KeyValue, Op, Put, Txn,
};

use super::guard::guard;
use super::guard_txn::GuardError;
use super::lock_call::LockCall;
use crate::recipes::call::{Call, Until};
use crate::recipes::lock::core::error::LockError;
use crate::recipes::lock::core::token::Token;
use crate::recipes::lock::core::view::{self, LockEntry};

/// Maximum number of rows that one log entry of a resize rewrites.
const ROWS_MAX: usize = 100;

/// Maximum number of slots that one log entry claims.
const SLOTS_MAX: usize = 50;

/// A fixed number of permits, shared by several holders. Created by [`Session::semaphore`].
///
/// Permits are granted strictly in the order of the requests: a later request for few permits does
/// not overtake an earlier request for many permits, even if enough permits are free for the later
/// one. Each request states the limit, which is stored in its queue entry. A request whose limit
/// differs from that of the first entry is rejected with
/// [`LimitMismatch`](LockError::LimitMismatch). When there are no holders and no waiters, the store
/// has no keys of the semaphore, and the next request may use another limit.
///
/// To limit how long a permit is held even if it is leaked, use `.acquire().max_hold(d)`
/// ([`LockCall::max_hold`]).
///
/// After a pause or a partition, [`Hold::state`](crate::lock::Hold::state) of a permit reports the
/// loss before another holder gets the permit. The semaphore cannot guarantee that the holder
/// checks the state. If the program of the holder crashes, the permit becomes free when the session
/// expires. A permit of [`Node::session`](crate::Node::session) becomes free earlier if the node
/// restarts, because a starting node revokes its earlier session. [Deadlock](crate::Owner)
/// detection ignores permits, because a different permit may be released first.
#[derive(Clone, Debug)]
pub struct Semaphore {
    session: Session,
    name: Bytes,
    limit: u32,
}

impl Session {
    /// Returns the semaphore with this name and this number of permits. The queue of the semaphore
    /// uses the keys below `name/`, and its [slots](Permit::slots) use the keys below `name/slot/`.
    /// Do not put other keys there.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, LockError, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let session = node.session().block()?;
    /// let downloads = session.semaphore("limits/downloads", 3);
    /// let (one, two) = (downloads.acquire().block()?, downloads.acquire_many(2).block()?);
    /// assert_eq!(downloads.available_permits(), 0);
    /// let refused = downloads.try_acquire().block().unwrap_err();
    /// assert!(matches!(refused, LockError::WouldBlock { .. }));
    /// // Which of the three: 0, 1 or 2.
    /// let slot = &one.slots().block()?[0];
    /// assert!(slot.number < 3);
    /// two.release().block()?;
    /// # drop(one);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn semaphore(&self, name: impl IntoBytes, limit: u32) -> Semaphore {
        Semaphore { session: self.clone(), name: name.into_bytes(), limit }
    }
}

impl Semaphore {
    /// Returns the name.
    pub fn name(&self) -> &Bytes {
        &self.name
    }

    /// Returns the number of permits according to this handle.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Waits for one permit. Dropping the future removes the request from the queue.
    #[track_caller]
    pub fn acquire(&self) -> LockCall<Permit> {
        self.call(1, Location::caller())
    }

    /// Waits until `permits` permits can be acquired together. Dropping the future leaves the
    /// queue.
    ///
    /// # Errors
    /// Returns [`LockError::TooManyPermits`] if `permits` exceeds the limit.
    #[track_caller]
    pub fn acquire_many(&self, permits: u32) -> LockCall<Permit> {
        self.call(permits, Location::caller())
    }

    /// Acquires one permit if one is free and there are no waiters. Waits for the reply of the
    /// cluster, at most for the deadline of a call.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`] contains the first entry of the queue.
    #[track_caller]
    pub fn try_acquire(&self) -> LockCall<Permit> {
        self.call(1, Location::caller()).only_try()
    }

    /// Like [`Semaphore::try_acquire`], for several permits together.
    ///
    /// # Errors
    /// Returns [`LockError::WouldBlock`], or [`LockError::TooManyPermits`] if `permits` exceeds the
    /// limit.
    #[track_caller]
    pub fn try_acquire_many(&self, permits: u32) -> LockCall<Permit> {
        self.call(permits, Location::caller()).only_try()
    }

    /// Returns how many permits are neither held nor requested, as known to the local replica. A
    /// new request for at most this number would not have to wait. Returns 0 if the name is in use
    /// by a lock of another kind.
    pub fn available_permits(&self) -> u32 {
        let rows = view::rows(self.session.shared(), &prefix_of(&self.name));
        rows.iter().fold(self.limit, |free, row| {
            match EntryMetadata::mode_of(&row.key, &row.value) {
                LockMode::Permits { wants, .. } => free.saturating_sub(wants),
                _ => 0,
            }
        })
    }

    /// Returns the queue, holders first, as known to the local replica, which may lag behind the
    /// leader.
    ///
    /// # Errors
    /// Returns [`Error::Rejected`] if the name is not valid for a lock.
    pub fn queue(&self) -> Result<Vec<LockEntry>, Error> {
        view::list(self.session.shared(), &self.name)
    }

    /// Changes the number of permits for all holders and waiters, and returns the semaphore with
    /// the new limit. After the change, requests with the old limit are rejected while the queue is
    /// not empty. Permits that are held stay held, even if they exceed a smaller limit. In that
    /// case, new permits are granted once enough permits have been released. Waiters that want more
    /// permits than the new limit fail with [`TooManyPermits`](LockError::TooManyPermits).
    ///
    /// The limit is stored in each entry of the queue, and one log entry rewrites up to 100 rows. A
    /// resize of a longer queue needs several log entries. Until all rows are rewritten, each
    /// request uses the smallest limit among its own entry and the entries before it, so that too
    /// many permits are never granted. If a resize was interrupted, call `resize` again.
    ///
    /// # Errors
    /// Returns [`LockError::KindMismatch`] if the name is in use by a lock of another kind, and
    /// [`LockError::Store`] for an error of the store. If the effect of that error is unknown, some
    /// or all rows may have been rewritten.
    pub fn resize(&self, limit: u32) -> Call<'static, Semaphore, LockError> {
        let semaphore = Semaphore { limit, ..self.clone() };
        let client = self.session.client();
        Call::new(&client.clone(), move |until| async move {
            semaphore.rewrite(&client, &until).await?;
            Ok(semaphore)
        })
    }

    async fn rewrite(&self, client: &Client, until: &Until) -> Result<(), LockError> {
        let prefix = prefix_of(&self.name);
        let rows_max = client.shared.settings.limits.txn_ops_max.saturating_sub(1);
        let mut is_begun = false;
        loop {
            let refused = |error: Error| {
                LockError::Store(if is_begun { error.after_partial_change() } else { error })
            };
            let range = client.range(KeyRange::prefix(prefix.clone())).deadline(until.left());
            let mut rows = range.await.map_err(refused)?.kvs;
            rows.retain(|row| is_entry(row, &prefix));
            rows.sort_unstable_by_key(|row| row.create_revision);
            let kind =
                rows.first().map(|row| EntryMetadata::mode_in_queue(&row.key, &row.value).kind());
            if let Some(stored) = kind.filter(|kind| !matches!(kind, LockKind::Semaphore(_))) {
                return Err(LockError::KindMismatch { stored });
            }
            let resized = rows.iter().filter_map(|row| resized(row, self.limit));
            let success: Vec<Op> = resized.take(rows_max.clamp(1, ROWS_MAX)).collect();
            if success.is_empty() {
                return Ok(());
            }
            if until.is_over() {
                return Err(refused(Error::Deadline { effect: Effect::NotApplied }));
            }
            let txn = Txn { success, ..Txn::default() };
            client.propose(Command::Txn(txn), Some(until.left())).await.map_err(refused)?;
            is_begun = true;
        }
    }

    fn call(&self, wants: u32, caller: &'static Location<'static>) -> LockCall<Permit> {
        let mode = LockMode::Permits { limit: self.limit, wants };
        LockCall::new(&self.session, vec![self.name.clone()], mode, caller)
    }
}

/// Returns the operation that sets a new limit in a row if the row is unchanged, or `None` if the
/// row already has it.
fn resized(row: &KeyValue, new: u32) -> Option<Op> {
    let mut metadata = EntryMetadata::parse(&row.key, &row.value)?;
    match &mut metadata.mode {
        LockMode::Permits { limit, .. } if *limit != new => *limit = new,
        _ => return None,
    }
    let put = Put::new(row.key.clone(), metadata.to_value()).keep_lease();
    let is_unchanged = Compare::mod_revision(row.key.clone()).eq(row.mod_revision);
    Some(Op::Txn(Txn::if_all([is_unchanged], [Op::Put(put)])))
}

guard! {
    /// Permits of a semaphore. Dropping the guard releases the permits in the background.
    /// [`Permit::release`] also waits until they are released. See [`Hold`](crate::lock::Hold) for
    /// its methods.
    Permit
}

/// A numbered slot of a semaphore; see [`Permit::slots`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Slot {
    /// Number of the slot, from 0 to the limit (exclusive). No other permit has this number at the
    /// same time.
    pub number: u32,
    /// Fencing token of the slot, higher than that of every earlier holder of the slot.
    pub token: Token,
}

impl Permit {
    /// Returns the number of permits of this guard.
    pub fn permits(&self) -> u32 {
        match self.mode() {
            LockMode::Permits { wants, .. } => wants,
            _ => 0,
        }
    }

    /// Claims one numbered slot per permit, each with its own fencing token, for example to assign
    /// one of several identical resources. No other permit of this semaphore has the same slot at
    /// the same time. The slots are released with the permits, in the same log entry. Further calls
    /// return the same slots. The call costs one commit, and is retried if other permits claim
    /// slots at the same time.
    ///
    /// After a resize to a smaller limit, earlier permits may still have claimed the low numbers.
    /// The call then waits until they are released. After a resize to a larger limit, permits that
    /// were acquired before the resize may get any number below the new limit.
    ///
    /// # Errors
    /// Returns [`GuardError::NotHeld`] if the permits were lost before or during the call. Returns
    /// [`GuardError::Store`] with a deadline error if no slots became free within the deadline of a
    /// call, or the cluster did not reply.
    pub async fn slots(&self) -> Result<Vec<Slot>, GuardError> {
        let LockMode::Permits { limit, wants } = self.mode() else { return Ok(Vec::new()) };
        let client = self.session().client();
        let until = Until::of_call(&client);
        let below: Bytes = [&lock_of(self.key())[..], b"/slot/"].concat().into();
        let whose = format!("{} {} ", self.key().escape_ascii(), self.since());
        loop {
            let range = client.range(KeyRange::prefix(below.clone())).deadline(until.left());
            let rows = range.await?.kvs;
            let mine: Vec<Slot> = rows
                .iter()
                .filter(|row| row.value.starts_with(whose.as_bytes()))
                .filter_map(|row| slot(row, &below))
                .collect();
            if mine.len() >= wants as usize {
                // The permits may have been lost while the reply was in flight. In that case
                // another permit has these slots or will get them.
                if !self.is_held() {
                    return Err(GuardError::NotHeld);
                }
                return Ok(mine);
            }
            let key =
                |number: &u32| Bytes::from([&below[..], number.to_string().as_bytes()].concat());
            let is_taken = |key: &Bytes| rows.iter().any(|row| row.key == *key);
            let free = (0..limit).map(|number| key(&number)).filter(|key| !is_taken(key));
            let due = (wants as usize - mine.len()).min(SLOTS_MAX);
            let free: Vec<Bytes> = free.take(due).collect();
            if free.len() == due {
                // Tasks that claim at the same time write the same stamp, so that only one of them
                // succeeds.
                let stamp = Bytes::from(format!("{whose}{}", mine.len() / SLOTS_MAX));
                let is_first = Compare {
                    range: KeyRange::prefix(below.clone()),
                    target: match rows.is_empty() {
                        true => CompareTarget::Version(0),
                        false => CompareTarget::Value(stamp.clone()),
                    },
                    op: match rows.is_empty() {
                        true => CompareOp::Equal,
                        false => CompareOp::NotEqual,
                    },
                };
                let claim = self.txn().deadline(until.left()).when(is_first);
                let claim = free.into_iter().fold(claim, |txn, key| {
                    let is_free = Some(Compare::missing(key.clone()));
                    let is_free = is_free.filter(|_| !mutant!(B05));
                    txn.when_all(is_free).then_while_held(key, stamp.clone())
                });
                claim.commit().await?;
            } else if !self.is_held() {
                return Err(GuardError::NotHeld);
            } else {
                until.pause().await;
            }
            if until.is_over() {
                return Err(Error::Deadline { effect: Effect::Unknown }.into());
            }
        }
    }
}

fn slot(row: &KeyValue, below: &Bytes) -> Option<Slot> {
    let number = std::str::from_utf8(row.key.strip_prefix(&below[..])?).ok()?.parse().ok()?;
    Some(Slot { number, token: Token { revision: row.mod_revision, handoff: 0 } })
}
