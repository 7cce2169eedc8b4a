//! The mutex: whoever stands first in line holds.

use std::future::{Future, IntoFuture};
use std::ops::Deref;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::api::{Client, Error, Session};
use crate::model::{Command, KeyValue, Moment, Op, Reply, Revision, Txn};

use super::error::{LockError, Loss};
use super::hold::{Hold, Released};
use super::line::{prefix_of, still_mine};
use super::operate::OrderError;
use super::owner::{Mode, Owner};
use super::rule::Rule;
use super::stance::{self, Stance};
use super::view::{self, Contender};
use super::wish::{Asked, Enters, Locking, Wish};

/// A lock: at most one holder in the whole cluster. Made by [`Session::mutex`].
///
/// Fair: granted in the order in which the wishes came to the log. Tasks of this process that share
/// the session wait in the process, and the lock passes from one to the next without a word to the
/// cluster, up to 16 times while others in the cluster wait, and as often as it likes while nobody
/// does. A wish with something to say ([`LockCall::why`], [`LockCall::owner`], [`LockCall::at_most`])
/// stands in the cluster's own line, for all to see.
///
/// Under a pause or a partition the holder's [`Hold::state`] says "lost" before anybody else is granted
/// the lock; after a crash the lock is free when the session has expired, or as soon as the program is
/// back. What it does not guarantee: that a holder looks. See [`Hold`].
#[derive(Clone, Debug)]
pub struct Mutex {
    session: Session,
    name: Bytes,
}

impl Session {
    /// The lock of this name. Keys below `name/` are its line: nothing else should be put there.
    ///
    /// ```
    /// # use bowline::{Config, Node, Op, Wait};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).wait()?;
    /// let session = node.session().wait()?;
    /// let guard = session.mutex("locks/orders/42").lock().wait()?;
    /// guard.txn().then(Op::put("orders/42/state", "paid")).commit().wait()?;
    /// guard.release().wait()?;
    /// # node.shutdown().wait();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mutex(&self, name: impl Into<Bytes>) -> Mutex {
        Mutex { session: self.clone(), name: name.into() }
    }
}

impl Mutex {
    /// Its name.
    pub fn name(&self) -> &Bytes {
        &self.name
    }

    /// Waits until this is the holder. Dropping the future leaves the line.
    #[track_caller]
    pub fn lock(&self) -> LockCall {
        LockCall::new(self, Location::caller(), false)
    }

    /// Takes the lock if nobody holds or wants it. Waits for the cluster's answer, and no longer than any
    /// call.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`] names who is first in line.
    #[track_caller]
    pub fn try_lock(&self) -> LockCall {
        LockCall::new(self, Location::caller(), true)
    }

    /// Locks, runs `work`, and releases, waiting until another may have the lock. If the future is
    /// dropped, `work` is dropped first and the lock is released behind it.
    ///
    /// The lock may be lost while `work` runs: it has the guard to look, or to write through.
    ///
    /// ```
    /// # use bowline::{Config, Node, Op, Wait};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).wait()?;
    /// # let session = node.session().wait()?;
    /// let reply = std::pin::pin!(session.mutex("orders/42").with(async |guard| {
    ///     guard.txn().then(Op::put("orders/42/state", "paid")).commit().await
    /// }))
    /// .wait()?;
    /// assert!(reply?.succeeded);
    /// # node.shutdown().wait();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Mutex::lock`]: then `work` has not begun. What the release comes to is not an error
    /// here: a lock that was lost meanwhile is gone anyway.
    #[track_caller]
    pub fn with<T>(
        &self,
        work: impl AsyncFnOnce(&Guard) -> T,
    ) -> impl Future<Output = Result<T, LockError>> {
        let call = self.lock();
        async move {
            let guard = call.await?;
            let result = work(&guard).await;
            // Where it cannot be confirmed the node goes on trying.
            let _: Result<Released, Error> = guard.release().await;
            Ok(result)
        }
    }

    /// The line, the holder first, as this node's replica has it: perhaps not the newest.
    ///
    /// # Errors
    /// [`Error::Refused`] if the name cannot be a lock's.
    pub fn line(&self) -> Result<Vec<Contender>, Error> {
        view::line_of(self.session.shared(), &self.name)
    }

    /// Releases a hold of this session whose guard is not at hand: the one that the lock's key of
    /// revision `since` stands for. Never by the name alone: what another holds is left alone.
    ///
    /// # Errors
    /// See [`Error`]. If there is no such hold, that is [`Released::WasLost`].
    pub async fn release(&self, since: Revision) -> Result<Released, Error> {
        let lease = self.session.lease();
        let rows = view::rows(self.session.shared(), &prefix_of(&self.name));
        let mine = |row: &KeyValue| row.lease == Some(lease) && row.create_revision == since;
        let gone = Released::WasLost(Loss::KeyDeleted);
        let Some(row) = rows.into_iter().find(mine) else { return Ok(gone) };
        let command = Command::Txn(Txn {
            compares: still_mine(&row.key, since, lease).to_vec(),
            success: vec![Op::delete(row.key.clone())],
            failure: Vec::new(),
        });
        match Client::new(Arc::clone(self.session.shared())).propose(command, None).await? {
            Reply::Txn(reply) if reply.succeeded => Ok(Released::Now),
            _ => Ok(gone),
        }
    }
}

/// Takes a lock; see [`Mutex::lock`].
#[derive(Clone, Debug)]
#[must_use = "a lock is not taken until this is awaited"]
pub struct LockCall {
    session: Session,
    name: Bytes,
    caller: &'static Location<'static>,
    only_try: bool,
    timeout: Option<Duration>,
    cap: Option<Duration>,
    why: Option<Bytes>,
    owner: Option<Owner>,
}

impl LockCall {
    fn new(mutex: &Mutex, caller: &'static Location<'static>, only_try: bool) -> Self {
        let Mutex { session, name } = mutex.clone();
        let (timeout, cap, why, owner) = (None, None, None, None);
        Self { session, name, caller, only_try, timeout, cap, why, owner }
    }

    /// Gives up after this long. Without it, waits as long as the session lives.
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Says why, to whoever looks at the line. The wish stands in the cluster's line then, not in this
    /// process's own queue.
    pub fn why(mut self, why: impl Into<Bytes>) -> Self {
        self.why = Some(why.into());
        self
    }

    /// Holds it for so long at the most: then it is lost and free, whatever the session does.
    pub fn at_most(mut self, cap: Duration) -> Self {
        self.cap = Some(cap);
        self
    }

    /// Takes it for an owner, which may hold it already, and whose waiting is looked after: see
    /// [`Owner`].
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Steps into line now. What comes back is the wish, which can be asked where it stands, and becomes
    /// the guard when it is awaited.
    ///
    /// # Errors
    /// What can be said at once; see [`LockError`].
    pub fn enter(self) -> Result<Wish<Guard>, LockError> {
        let Self { session, name, caller, only_try, timeout, cap, why, owner } = self;
        if let Some(owner) = &owner
            && let Some(again) = owner.again(&name, Mode::Alone)?
        {
            return Ok(Wish::come_true(again));
        }
        let is_shared = why.is_none() && cap.is_none() && owner.is_none();
        let mut stance = Stance::new(Rule::Alone, stance::site(caller));
        stance.why = why.unwrap_or_default();
        let deadline = deadline_of(&session, timeout, only_try);
        let asked = Asked { names: vec![name], stance, owner, is_shared, only_try, deadline, cap };
        Wish::enter(&session, asked)
    }
}

impl Enters for LockCall {
    type Guard = Guard;

    fn enter(self) -> Result<Wish<Guard>, LockError> {
        LockCall::enter(self)
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

impl IntoFuture for LockCall {
    type Output = Result<Guard, LockError>;
    type IntoFuture = Locking<LockCall>;

    fn into_future(self) -> Self::IntoFuture {
        Locking::of(self)
    }
}

/// A held lock. Dropping it releases it, in the background; [`Guard::release`] waits for that. Everything
/// else is in [`Hold`].
#[derive(Debug)]
#[must_use = "a lock is released when its guard is dropped"]
pub struct Guard(Hold);

impl Guard {
    /// Releases it, and waits until another may have it. Releasing what is lost does no harm and says so.
    ///
    /// # Errors
    /// [`Error::Deadline`] if it could not be confirmed in time; the node goes on trying.
    pub async fn release(self) -> Result<Released, Error> {
        self.0.release().await
    }
}

impl Guard {
    /// Gives it to one who waits for it ([`Mutex::line`]), past those before that one, which gets a token
    /// of its own. This belief ends first. If the heir has gone by then, the next in line gets it. Refused
    /// while a client that is not Bowline's stands in the line: it would not know.
    ///
    /// # Errors
    /// See [`OrderError`]: the lock is released then, and the next in line gets it.
    pub async fn hand_over(self, heir: &Contender) -> Result<(), OrderError> {
        self.0.hand_over(heir).await
    }
}

impl Deref for Guard {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.0
    }
}

impl From<Hold> for Guard {
    fn from(hold: Hold) -> Self {
        Guard(hold)
    }
}

impl From<Guard> for Hold {
    fn from(guard: Guard) -> Self {
        guard.0
    }
}
