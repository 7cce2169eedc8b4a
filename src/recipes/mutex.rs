//! The mutex: whoever stands first in line holds.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::{Pin, pin};
use std::str::FromStr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error as ThisError;
use tokio::sync::oneshot;

use crate::api::{Client, Effect, Error, Session};
use crate::model::{
    Compare, KeyRange, LeaseId, Moment, Op, Range, Revision, SortOrder, SortTarget, Txn, TxnReply,
    TxnResult,
};
use crate::node::{ReplyTo, Shared};

use super::line::{Lines, Loss, Phase, Place, is_place};

/// A fencing token: rises with every grant of a lock, over restarts and leader changes too. Hand it to
/// whatever the lock protects outside the store, and let that refuse tokens lower than the highest it
/// has seen: then a holder that was paused for too long does no harm.
///
/// It is written `revision.hop` and can be parsed again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token {
    revision: Revision,
    hop: u64,
}

impl Token {
    /// The revision that the holder's replica had reached when the lock was granted.
    pub fn revision(self) -> Revision {
        self.revision
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.revision, self.hop)
    }
}

impl FromStr for Token {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (revision, hop) = text.split_once('.').unwrap_or((text, "0"));
        Ok(Token { revision: Revision(revision.parse()?), hop: hop.parse()? })
    }
}

/// Why a lock was not taken. Nothing is left behind: a key that was put in the line is deleted.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody else holds it; only from [`Mutex::try_lock`].
    #[error("somebody else holds the lock")]
    WouldBlock {
        /// Who, as this node's replica knows it.
        holder: Option<Holder>,
    },
    /// The wait has ended without the lock.
    #[error("the lock was not taken: {0}")]
    Lost(#[from] Loss),
    /// A lock needs a name.
    #[error("a lock's name must not be empty")]
    EmptyName,
}

/// One place in the line for a lock, as the replica has it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// Its key.
    pub key: Bytes,
    /// What its key says: who waits, and why. For an election: the candidate's value.
    pub value: Bytes,
    /// Since which revision it stands in line.
    pub since: Revision,
    /// The lease that it lives with.
    pub lease: LeaseId,
    /// The label of the session, if the lease is a session's.
    pub label: Option<String>,
}

/// A lock: at most one holder in the whole cluster. Fair: granted in the order in which the wishes came
/// to the log. Made by [`Session::mutex`].
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
    /// Waits until this is the holder. Dropping the future leaves the line.
    pub fn lock(&self) -> LockCall {
        LockCall { mutex: self.clone(), deadline: None, value: None, only_try: false }
    }

    /// Takes the lock if nobody holds or wants it.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`] names the holder.
    pub fn try_lock(&self) -> LockCall {
        LockCall { mutex: self.clone(), deadline: None, value: None, only_try: true }
    }

    /// The line, the holder first, as this node's replica has it: perhaps not the newest.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn line(&self) -> Result<Vec<Holder>, Error> {
        line_of(self.session.shared(), &self.name)
    }
}

/// The places in the line for `name`, in order.
pub(crate) fn line_of(shared: &Arc<Shared>, name: &Bytes) -> Result<Vec<Holder>, Error> {
    let prefix: Bytes = [&name[..], b"/"].concat().into();
    let mut range = Range::new(KeyRange::prefix(prefix.clone()));
    range.sort.target = SortTarget::Create;
    range.sort.order = SortOrder::Ascend;
    let rows = shared.reader.range(&range)?.kvs.into_iter();
    let places = rows.filter(|row| is_place(row, &prefix)).filter_map(|row| {
        let lease = row.lease?;
        let label = shared
            .reader
            .lease(lease)
            .and_then(|info| info.session.map(|(_, _, session)| session.label));
        Some(Holder { key: row.key, value: row.value, since: row.create_revision, lease, label })
    });
    Ok(places.collect())
}

/// Takes a lock; see [`Mutex::lock`].
#[derive(Debug)]
#[must_use = "a lock is not taken until this is awaited"]
pub struct LockCall {
    mutex: Mutex,
    deadline: Option<Duration>,
    value: Option<Bytes>,
    only_try: bool,
}

impl LockCall {
    /// Gives up after this long. Without it, waits as long as the session lives.
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }

    /// Says why, to whoever looks at the line.
    pub fn why(mut self, why: impl Into<Bytes>) -> Self {
        self.value = Some(why.into());
        self
    }
}

impl IntoFuture for LockCall {
    type Output = Result<Guard, LockError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { mutex, deadline, value, only_try } = self;
            let value = value.unwrap_or_else(|| {
                let label = &mutex.session.shared().settings.label;
                format!("mutex {label}").into()
            });
            take(&mutex.session, &mutex.name, value, deadline, only_try).await
        })
    }
}

/// Stands in the line for `name` until it is the head.
pub(crate) async fn take(
    session: &Session,
    name: &Bytes,
    value: Bytes,
    timeout: Option<Duration>,
    only_try: bool,
) -> Result<Guard, LockError> {
    if name.is_empty() {
        return Err(LockError::EmptyName);
    }
    let shared = session.shared();
    let lines = Lines::of(shared);
    // Who only tries waits for the outcome of its entering, and no longer than any call.
    let timeout = timeout.or_else(|| only_try.then_some(shared.settings.call_deadline));
    let deadline = timeout.map(|timeout| shared.now() + timeout);
    let place = lines.enter(name, value, session.state(), deadline);
    // From here on, whatever happens to this future, the place is left unless a guard has it.
    let hold = Hold { lines, place };
    let mut phase = hold.place.phase();
    let mut end = session.state().watch_end();
    loop {
        if let Some(loss) = hold.place.loss(shared.now()) {
            return Err(loss.into());
        }
        let now = phase.borrow_and_update().clone();
        match now {
            Phase::Held { since, granted } => {
                let token = Token { revision: granted, hop: 0 };
                return Ok(Guard { session: session.clone(), hold, since, token });
            }
            Phase::Waiting { .. } if only_try => {
                let holder = line_of(shared, name).ok().and_then(|line| line.into_iter().next());
                return Err(LockError::WouldBlock { holder });
            }
            Phase::Waiting { .. } | Phase::Entering => {}
            Phase::Gone(loss) => return Err(loss.into()),
        }
        tokio::select! {
            biased;
            _ = phase.changed() => {}
            _ = end.changed() => {}
        }
    }
}

/// A place that is left when this is dropped.
struct Hold {
    lines: Arc<Lines>,
    place: Arc<Place>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.lines.leave(&self.place, Loss::Released, ReplyTo::Nobody);
    }
}

/// Whether a lock is still held. Judged anew at each look, by this machine's clock and what this
/// node's replica has applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockState {
    /// It is held, at least until this moment.
    Held(Moment),
    /// It is held until this moment, but renewals are overdue: it may be lost then.
    Unconfirmed(Moment),
    /// It is lost, for good.
    Lost(Loss),
}

/// A held lock. Dropping it releases it, in the background; [`Guard::release`] waits for that.
#[must_use = "a lock is released when its guard is dropped"]
pub struct Guard {
    session: Session,
    hold: Hold,
    since: Revision,
    token: Token,
}

impl Guard {
    /// The fencing token of this hold: higher than that of every earlier holder of this lock.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The key in the line that makes this the holder.
    pub fn key(&self) -> &Bytes {
        &self.hold.place.key
    }

    /// The revision that made the key: `Compare::create_revision(guard.key()).eq(guard.since())` holds
    /// exactly as long as this is the holder.
    pub fn since(&self) -> Revision {
        self.since
    }

    /// The session that the hold lives with.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Until when the lock is surely held if nothing is renewed. Compare with
    /// [`Node::now`](crate::Node::now).
    pub fn valid_until(&self) -> Moment {
        self.session.valid_until()
    }

    /// Whether it is held. Never says so after [`Guard::valid_until`].
    pub fn state(&self) -> LockState {
        let shared = self.session.shared();
        let now = shared.now();
        if let Some(loss) = self.hold.place.loss(now) {
            return LockState::Lost(loss);
        }
        let until = self.valid_until();
        let trust = shared.settings.drift.trust_for(self.session.ttl());
        if until.since(now) < trust / 3 {
            LockState::Unconfirmed(until)
        } else {
            LockState::Held(until)
        }
    }

    /// Whether it is held, in one word.
    pub fn is_held(&self) -> bool {
        !matches!(self.state(), LockState::Lost(_))
    }

    /// Waits until it is lost, and says why: ready at the first poll after
    /// [`Guard::valid_until`], or as soon as this node has applied the loss.
    pub async fn lost(&self) -> Loss {
        let place = &self.hold.place;
        let mut phase = place.phase();
        let mut end = self.session.state().watch_end();
        let mut change = pin!(async move {
            // Both channels live as long as this guard and its session: they do not close.
            loop {
                tokio::select! {
                    biased;
                    _ = phase.changed() => {}
                    _ = end.changed() => {}
                }
            }
        });
        poll_fn(|context| {
            let _: Poll<()> = change.as_mut().poll(context);
            match place.loss(self.session.shared().now()) {
                Some(loss) => Poll::Ready(loss),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// A transaction that is carried out only if this still is the holder, judged where the data is:
    /// even a holder that believes too long in its lock changes nothing.
    pub fn txn(&self) -> GuardTxn {
        GuardTxn {
            client: Client::new(Arc::clone(self.session.shared())),
            still_held: self.still_held(),
            txn: Txn::default(),
            timeout: None,
        }
    }

    /// The condition that this still is the holder, for a transaction of your own.
    pub fn still_held(&self) -> Compare {
        Compare::create_revision(self.key().clone()).eq(self.since)
    }

    /// Releases it, and waits until that is durable. Releasing what is lost does no harm and says so.
    ///
    /// # Errors
    /// [`Error::Deadline`] if it could not be confirmed in time; the node goes on trying.
    pub async fn release(self) -> Result<Released, Error> {
        let shared = self.session.shared();
        if let Some(loss) = self.hold.place.loss(shared.now()) {
            return Ok(Released::WasLost(loss));
        }
        let (sender, receiver) = oneshot::channel();
        if !self.hold.lines.leave(&self.hold.place, Loss::Released, ReplyTo::Waiting(sender)) {
            return Ok(Released::WasLost(Loss::KeyDeleted));
        }
        tokio::select! {
            biased;
            answer = receiver => match answer {
                Ok(Ok(crate::model::Reply::Txn(reply))) if !reply.succeeded => {
                    Ok(Released::WasLost(Loss::KeyDeleted))
                }
                Ok(Ok(_)) => Ok(Released::Now),
                Ok(Err(error)) => Err(error.into()),
                Err(_) => Err(Error::Deadline { effect: Effect::Unknown }),
            },
            () = shared.sleep_until(shared.deadline(None)) => {
                Err(Error::Deadline { effect: Effect::Unknown })
            }
        }
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard")
            .field("key", self.key())
            .field("token", &self.token)
            .field("state", &self.state())
            .finish()
    }
}

/// What a release came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Released {
    /// It was held, and is free now.
    Now,
    /// It had been lost before.
    WasLost(Loss),
}

/// Why a guarded transaction was not carried out, or may not have been.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum GuardError {
    /// This is not the holder any more. Nothing was changed.
    #[error("not applied: the lock is not held any more")]
    NotHeld,
    /// The store could not, or would not.
    #[error(transparent)]
    Store(#[from] Error),
}

/// A transaction under a lock; see [`Guard::txn`].
#[derive(Debug)]
#[must_use = "a transaction does nothing until it is committed"]
pub struct GuardTxn {
    client: Client,
    still_held: Compare,
    txn: Txn,
    timeout: Option<Duration>,
}

impl GuardTxn {
    /// One more condition: all must hold.
    pub fn when(mut self, compare: Compare) -> Self {
        self.txn.compares.push(compare);
        self
    }

    /// One more operation for the case that all conditions hold.
    pub fn then(mut self, op: impl Into<Op>) -> Self {
        self.txn.success.push(op.into());
        self
    }

    /// One more operation for the case that a condition does not hold. Not for the case that the lock is
    /// lost: then nothing is done.
    pub fn or_else(mut self, op: impl Into<Op>) -> Self {
        self.txn.failure.push(op.into());
        self
    }

    /// How long the call may take.
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Carries it out.
    ///
    /// # Errors
    /// [`GuardError::NotHeld`] if the lock is lost: nothing was changed.
    pub async fn commit(self) -> Result<TxnReply, GuardError> {
        let mut call = self.client.txn().when(self.still_held).then(Op::Txn(self.txn));
        if let Some(timeout) = self.timeout {
            call = call.deadline(timeout);
        }
        let mut reply = call.commit().await?;
        match reply.results.pop() {
            Some(TxnResult::Txn(inner)) if reply.succeeded => Ok(inner),
            _ => Err(GuardError::NotHeld),
        }
    }
}
