//! [`LockCall`]: a lock request of any kind with its options. The type parameter is the type of the
//! guard.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::panic::Location;
use std::time::Duration;

use bytes::Bytes;

use crate::api::{Session, timeout_option};
use crate::lock_format::LockMode;
use crate::model::IntoBytes;

use super::acquire::{Acquire, Enqueue, LockFuture};
use super::core::request::{LockRequest, WaitLimit};
use super::guard::{Guard, OfHold};
use super::hold::Hold;
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
    request: LockRequest,
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
        let request = LockRequest::new(session, names, mode, caller);
        Self { request, owner: None, guard: PhantomData }
    }

    /// Makes the call fail instead of waiting for other requests.
    pub(crate) fn only_try(mut self) -> Self {
        self.request.only_try = true;
        self
    }

    /// Limits the wait. By default the call waits as long as the session lives.
    ///
    /// The node checks deadlines only four times per heartbeat. So the wait may end up to 25 ms
    /// after the deadline with the default [`Config::heartbeat`](crate::Config::heartbeat), and
    /// later if the node's thread gets no processor time. If the lock has been granted by the time
    /// the waiting task is polled, the call succeeds even if the deadline has just passed, as with
    /// `tokio::time::timeout`. For a call that does not wait, use a `try_` method: with a deadline
    /// of zero the call may fail before it has contacted the cluster.
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.request.wait = WaitLimit::For(timeout);
        self
    }

    timeout_option!();

    /// Attaches a reason, shown to operators who list the lock. A request for a mutex with a reason
    /// has its own entry in the cluster's queue. Such a request does not share an entry with other
    /// tasks of this session.
    pub fn reason(mut self, reason: impl IntoBytes) -> Self {
        self.request.set_reason(reason.into_bytes());
        self
    }

    /// Limits the hold time. After `max` the lock is released, even if the guard was leaked and the
    /// session lives on. The time counts from the grant, not from the request. The release happens
    /// at the node's next tick, at most 25 ms later.
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.request.max_hold = Some(max);
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
        let Self { request, owner, .. } = self;
        if let LockMode::Permits { limit, wants: asked } = *request.mode()
            && asked > limit
        {
            return Err(LockError::TooManyPermits { asked, limit });
        }
        if let Some(owner) = &owner {
            if !owner.is_of(&request.session) {
                return Err(LockError::ForeignOwner);
            }
            if let Some(again) = owner.again(&request.names, OwnerMode::of(request.mode()))? {
                return Ok(Acquire::granted(Hold::new(again, Some(owner.clone()))));
            }
        }
        Acquire::enqueue(request, owner)
    }
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
        let (request, owner) = (self.request.clone(), self.owner.clone());
        Self { request, owner, guard: PhantomData }
    }
}

impl<G> std::fmt::Debug for LockCall<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockCall")
            .field("names", &self.request.names)
            .field("mode", self.request.mode())
            .finish_non_exhaustive()
    }
}
