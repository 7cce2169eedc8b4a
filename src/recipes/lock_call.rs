//! A call for a lock of any kind: what is wanted, and on which terms. What it becomes is its guard's type.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::panic::Location;
use std::time::Duration;

use bytes::Bytes;

use crate::api::Session;
use crate::model::Moment;

use super::acquire::{Acquire, Asked, Enqueue, LockFuture};
use super::error::LockError;
use super::guard::OfHold;
use super::mutex::Guard;
use super::owner::{Mode, Owner};
use super::rule::Rule;

/// Takes a lock: made by [`Mutex::lock`](crate::Mutex::lock), [`RwLock::read`](crate::RwLock::read),
/// [`Semaphore::acquire`](crate::Semaphore::acquire), [`Session::lock_all`](crate::Session::lock_all) and
/// the like. Does nothing until it is awaited.
///
/// It becomes a future where it is awaited, and is none before: `tokio::spawn(async move { call.await })`, and
/// [`into_future`](IntoFuture::into_future) for `select!` and `join!`.
#[must_use = "a lock is not taken until this is awaited"]
pub struct LockCall<G = Guard> {
    session: Session,
    names: Vec<Bytes>,
    rule: Rule,
    caller: &'static Location<'static>,
    only_try: bool,
    deadline: Option<Duration>,
    cap: Option<Duration>,
    why: Option<Bytes>,
    owner: Option<Owner>,
    guard: PhantomData<fn() -> G>,
}

impl<G> LockCall<G> {
    /// Waits until the rule lets it hold.
    pub(crate) fn new(
        session: &Session,
        names: Vec<Bytes>,
        rule: Rule,
        caller: &'static Location<'static>,
    ) -> Self {
        let (session, guard) = (session.clone(), PhantomData);
        let (only_try, deadline, cap, why, owner) = (false, None, None, None, None);
        Self { session, names, rule, caller, only_try, deadline, cap, why, owner, guard }
    }

    /// Does not wait for others.
    pub(crate) fn only_try(mut self) -> Self {
        self.only_try = true;
        self
    }

    /// Gives up after this long. Without it, waits as long as the session lives.
    ///
    /// The node looks at its ticks whether the time is up, four times a heartbeat: the wait ends up to
    /// 25 ms late at the default [`Config::heartbeat`](crate::Config::heartbeat), and later where the
    /// node's own thread gets no processor. A lock that has come by the time at which the waiting task looks
    /// is granted, also if the deadline is just past, as with `tokio::time::timeout`. A deadline of zero is
    /// not a try: it may end before the cluster has been asked. For that there are the `try_` calls.
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }

    /// Says why, to whoever looks at the line. A wish for a mutex stands in the cluster's line then, not
    /// in this process's own queue.
    pub fn reason(mut self, reason: impl Into<Bytes>) -> Self {
        self.why = Some(reason.into());
        self
    }

    /// Holds it for so long at the most: then it is lost and free, whatever the session does, and also if
    /// the guard was leaked. Counted from the grant, not from the wish; it ends with the node's next tick, at
    /// most 25 ms later.
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.cap = Some(max);
        self
    }

    /// Takes it for an owner, which may hold it already, and whose waiting is looked after: see
    /// [`Owner`].
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }
}

impl<G: OfHold> LockCall<G> {
    /// Steps into line now. What comes back is the wish, which can be asked where it stands, and becomes
    /// the guard when it is awaited.
    ///
    /// # Errors
    /// What can be said at once; see [`LockError`].
    pub fn enqueue(self) -> Result<Acquire<G>, LockError> {
        let Self {
            session, names, rule, caller, only_try, deadline: timeout, cap, why, owner, ..
        } = self;
        if let Rule::Permits { limit, wants: asked } = rule
            && asked > limit
        {
            return Err(LockError::TooManyPermits { asked, limit });
        }
        if owner.as_ref().is_some_and(|owner| !owner.is_of(&session)) {
            return Err(LockError::ForeignOwner);
        }
        if let Some(owner) = &owner
            && let Some(again) = owner.again(&names, Mode::of(&rule))?
        {
            return Ok(Acquire::come_true(again));
        }
        let has_nothing_to_say = why.is_none() && cap.is_none() && owner.is_none();
        let is_shared = rule == Rule::Alone && names.len() == 1 && has_nothing_to_say;
        let why = why.unwrap_or_default();
        let deadline = deadline_of(&session, timeout, only_try);
        let asked = Asked { names, rule, caller, why, owner, is_shared, only_try, deadline, cap };
        Acquire::enqueue(&session, asked)
    }
}

/// When a wish gives up. Who only tries waits for the outcome of its entering, and no longer than any
/// call.
pub(super) fn deadline_of(
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
            rule: self.rule.clone(),
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
            .field("rule", &self.rule)
            .finish_non_exhaustive()
    }
}
