//! [`LockCall`]: a lock request of any kind with its options. The type parameter is the type of the
//! guard.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::panic::Location;
use std::time::Duration;

use bytes::Bytes;

use crate::api::Session;
use crate::lock_format::LockMode;
use crate::model::Moment;

use super::acquire::{Acquire, Asked, Enqueue, LockFuture};
use super::guard::OfHold;
use super::mutex::Guard;
use super::owner::{Owner, OwnerMode};
use crate::recipes::lock::core::error::LockError;

/// A call that acquires a lock. Returned by [`Mutex::lock`](crate::Mutex::lock),
/// [`RwLock::read`](crate::RwLock::read), [`Semaphore::acquire`](crate::Semaphore::acquire),
/// [`Session::lock_all`](crate::Session::lock_all) and similar methods. A call does nothing until
/// it is awaited.
///
/// A call implements [`IntoFuture`], not `Future`: spawn it as `tokio::spawn(async move {
/// call.await })`, and use [`into_future`](IntoFuture::into_future) in `select!` and `join!`.
#[must_use = "the lock is not acquired until this is awaited"]
pub struct LockCall<G = Guard> {
    session: Session,
    names: Vec<Bytes>,
    mode: LockMode,
    caller: &'static Location<'static>,
    only_try: bool,
    deadline: Option<Duration>,
    cap: Option<Duration>,
    why: Option<Bytes>,
    owner: Option<Owner>,
    guard: PhantomData<fn() -> G>,
}

impl<G> LockCall<G> {
    /// Creates a call that waits until the lock can be held in its mode.
    pub(crate) fn new(
        session: &Session,
        names: Vec<Bytes>,
        mode: LockMode,
        caller: &'static Location<'static>,
    ) -> Self {
        let (session, guard) = (session.clone(), PhantomData);
        let (only_try, deadline, cap, why, owner) = (false, None, None, None, None);
        Self { session, names, mode, caller, only_try, deadline, cap, why, owner, guard }
    }

    /// Makes the call fail instead of waiting for other requests.
    pub(crate) fn only_try(mut self) -> Self {
        self.only_try = true;
        self
    }

    /// Limits the wait. By default the call waits as long as the session lives.
    ///
    /// The node checks deadlines at its ticks, four times per heartbeat. So the wait ends up to 25
    /// ms late with the default [`Config::heartbeat`](crate::Config::heartbeat), and later if the
    /// node's thread gets no processor time. If the lock has been granted by the time the waiting
    /// task is polled, the call succeeds even if the deadline has just passed, as with
    /// `tokio::time::timeout`. For a call that does not wait, use a `try_` method: with a deadline
    /// of zero the call may fail before it has contacted the cluster.
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }

    /// Attaches a reason, shown to operators who list the lock. A request for a mutex with a reason
    /// has its own entry in the cluster's queue. Such a request does not share an entry with other
    /// tasks of this session.
    pub fn reason(mut self, reason: impl Into<Bytes>) -> Self {
        self.why = Some(reason.into());
        self
    }

    /// Limits the hold time. After `max` the lock is released, even if the guard was leaked and the
    /// session lives on. The time counts from the grant, not from the request. The release happens
    /// at the node's next tick, at most 25 ms later.
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.cap = Some(max);
        self
    }

    /// Acquires the lock for an owner, which may acquire it again while holding it, and whose waits
    /// are checked for deadlocks: see [`Owner`].
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }
}

impl<G: OfHold> LockCall<G> {
    /// Enqueues the request now. Returns a future that resolves to the guard and can report its
    /// position in the queue.
    ///
    /// # Errors
    /// Returns errors that are known immediately; see [`LockError`].
    pub fn enqueue(self) -> Result<Acquire<G>, LockError> {
        let Self {
            session, names, mode, caller, only_try, deadline: timeout, cap, why, owner, ..
        } = self;
        if let LockMode::Permits { limit, wants: asked } = mode
            && asked > limit
        {
            return Err(LockError::TooManyPermits { asked, limit });
        }
        if owner.as_ref().is_some_and(|owner| !owner.is_of(&session)) {
            return Err(LockError::ForeignOwner);
        }
        if let Some(owner) = &owner
            && let Some(again) = owner.again(&names, OwnerMode::of(&mode))?
        {
            return Ok(Acquire::come_true(again));
        }
        let has_nothing_to_say = why.is_none() && cap.is_none() && owner.is_none();
        let is_shared = mode == LockMode::Mutex && names.len() == 1 && has_nothing_to_say;
        let why = why.unwrap_or_default();
        let deadline = deadline_of(&session, timeout, only_try);
        let asked = Asked { names, mode, caller, why, owner, is_shared, only_try, deadline, cap };
        Acquire::enqueue(&session, asked)
    }
}

/// Returns the deadline of a request. A `try_` call waits for the outcome of its enqueue, at most
/// for the default deadline of calls.
pub(crate) fn deadline_of(
    session: &Session,
    timeout: Option<Duration>,
    only_try: bool,
) -> Option<Moment> {
    let shared = session.shared();
    let timeout = timeout.or_else(|| only_try.then_some(shared.settings.call_deadline));
    timeout.map(|timeout| shared.now() + timeout)
}

impl<G: OfHold> Enqueue for LockCall<G> {
    type Guard = G;

    fn enqueue(self) -> Result<Acquire<G>, LockError> {
        LockCall::enqueue(self)
    }
}

impl<G: OfHold> IntoFuture for LockCall<G> {
    type Output = Result<G, LockError>;
    type IntoFuture = LockFuture<LockCall<G>>;

    fn into_future(self) -> Self::IntoFuture {
        LockFuture::of(self)
    }
}

impl<G> Clone for LockCall<G> {
    fn clone(&self) -> Self {
        Self {
            session: self.session.clone(),
            names: self.names.clone(),
            mode: self.mode.clone(),
            why: self.why.clone(),
            owner: self.owner.clone(),
            ..*self
        }
    }
}

impl<G> std::fmt::Debug for LockCall<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockCall")
            .field("names", &self.names)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
