//! A hold: what every guard has in common.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::api::{Client, Effect, Error, Session};
use crate::model::{Compare, KeyValue, Moment, Op, Put, PutLease, PutValue, Reply, Revision, Txn};
use crate::mutant::{self, Mutant};
use crate::node::{CallResult, ReplyTo, SessionState, Shared};

use super::error::LostReason;
use super::guard_txn::GuardTxn;
use super::line::{Lines, parent, still_mine};
use super::operate::LockAdminError;
use super::order::ReleaseRequest;
use super::owner::Owner;
use super::place::{Grant, Place, Turn};
use super::rule::Rule;
use super::saved_hold::SavedHold;
use super::stance::Stance;
use super::token::Token;
use super::view::{self, LockEntry};

/// Whether a lock is still held. Judged anew at each look, by this machine's clock and what this
/// node's replica has applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockState {
    /// It is held, at least until this moment.
    Held(Moment),
    /// It is held until this moment, but renewals are overdue: it may be lost then.
    Unconfirmed(Moment),
    /// It is lost, for good.
    Lost(LostReason),
}

/// What a guard of any kind has: a lock that is held, until it is released or lost.
///
/// What it guarantees: while [`Hold::state`] says that it is held, no other hold that excludes it says
/// so, as long as ownership passes by release or expiry and clocks keep within the drift bound. A
/// program that was paused, or cut off, sees the loss at its first look afterwards. What was begun
/// before the pause is another matter: write through [`Hold::txn`], which the store judges, or hand
/// [`Hold::token`] to whatever is written to, and let it refuse older ones ([`Fence`](crate::lock::Fence)).
///
/// A guard becomes its hold where only that is wanted. A hold becomes no guard: of which kind one is, its lock says.
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
    session: Session,
    lines: Arc<Lines>,
    place: Arc<Place>,
    turn: Arc<Turn>,
    grant: Grant,
    owner: Option<Owner>,
    /// Whether it counts among the guards that stand for the turn's hold.
    is_counted: bool,
}

impl Hold {
    pub(crate) fn new(
        session: Session,
        lines: Arc<Lines>,
        place: Arc<Place>,
        turn: Arc<Turn>,
        grant: Grant,
        owner: Option<Owner>,
    ) -> Self {
        let is_counted = true;
        Self { session, lines, place, turn, grant, owner, is_counted }
    }

    /// The fencing token of this hold: higher than that of every earlier holder of this lock.
    #[doc(alias = "fencing_token")]
    pub fn token(&self) -> Token {
        self.grant.token
    }

    /// The key in the line that makes this the holder; the first, if it holds several locks at once.
    pub fn key(&self) -> &Bytes {
        &self.grant.keys[0]
    }

    /// All keys that make this the holder.
    pub fn keys(&self) -> &[Bytes] {
        &self.grant.keys
    }

    /// The revision that made the key.
    pub fn since(&self) -> Revision {
        self.grant.since
    }

    /// The session that the hold lives with.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Until when the lock is surely held if nothing is renewed. Compare with
    /// [`Node::now`](crate::Node::now). Once it is known to be lost, for whatever reason, that is a moment long past:
    /// [`Moment::default`].
    pub fn valid_until(&self) -> Moment {
        if self.is_lost().is_some() {
            return Moment::default();
        }
        let until = self.session.valid_until();
        self.turn.until().map_or(until, |cap| cap.min(until))
    }

    /// Whether it is held. Never says so after [`Hold::valid_until`].
    pub fn state(&self) -> LockState {
        if let Some(loss) = self.loss(self.session.shared().now()) {
            return LockState::Lost(loss);
        }
        match self.session.state() {
            SessionState::Active(_) => LockState::Held(self.valid_until()),
            SessionState::RenewalOverdue(_) => LockState::Unconfirmed(self.valid_until()),
            SessionState::Ended(end) => {
                LockState::Lost(LostReason::ended(end, self.session.shared()))
            }
        }
    }

    /// Whether it is held, in one word.
    pub fn is_held(&self) -> bool {
        self.loss(self.session.shared().now()).is_none()
    }

    fn loss(&self, now: Moment) -> Option<LostReason> {
        let ended = || self.session.shared_session().end(now).map(LostReason::SessionEnded);
        let loss = match self.turn.loss() {
            // The end of the session has deleted the key.
            Some(LostReason::KeyDeleted) => Some(ended().unwrap_or(LostReason::KeyDeleted)),
            Some(loss) => Some(loss),
            None => ended().or_else(|| {
                self.turn.until().filter(|until| *until <= now).map(|_| LostReason::HeldTooLong)
            }),
        };
        loss.map(|loss| loss.told(self.session.shared()))
    }

    /// Waits until it is lost, and says why: ready at the first poll after [`Hold::valid_until`], or as
    /// soon as this node has applied the loss. Cancel-safe.
    pub async fn lost(&self) -> LostReason {
        self.when(|now| self.loss(now)).await
    }

    /// Waits until it is at risk: its renewals are overdue, so that it may be lost soon, or it is lost
    /// already. Time to stop what must not be cut off in the middle. Cancel-safe.
    pub async fn at_risk(&self) -> LockState {
        self.when(|_| match self.state() {
            LockState::Held(_) => None,
            state => Some(state),
        })
        .await
    }

    /// Waits until somebody asks the holder to give the lock up ([`Locks::request_release`](crate::lock::Locks::request_release)).
    /// Never ends if nobody does. Cancel-safe.
    pub async fn asked_to_release(&self) -> ReleaseRequest {
        self.when(|_| self.turn.request()).await
    }

    /// What somebody asks of the holder, if somebody does.
    pub fn request(&self) -> Option<ReleaseRequest> {
        self.turn.request()
    }

    /// Lets go of it without releasing it.
    pub(super) fn detach(mut self) -> SavedHold {
        self.is_counted = false;
        self.to_ticket()
    }

    /// Asks this holder to give the lock up.
    pub(super) fn ask(&self, request: ReleaseRequest) {
        self.lines.ask(&self.turn, request);
    }

    /// Waits until a look finds something. Looks at each poll, whenever the hold changes, and when the
    /// session's standing may have.
    async fn when<T>(&self, look: impl Fn(Moment) -> Option<T>) -> T {
        let shared = self.session.shared();
        let mut change = pin!(async {
            let mut end = self.session.shared_session().watch();
            loop {
                let mut changed = pin!(self.turn.changed.notified());
                changed.as_mut().enable();
                // The present state was looked at before the first poll; whatever comes after that is
                // heard.
                tokio::select! {
                    biased;
                    () = changed => {}
                    // It lives as long as the session: it does not close.
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

    /// A transaction that is carried out only if this still is the holder, judged where the data is:
    /// even a holder that believes too long in its lock changes nothing. Its keys are whole ones: no
    /// [scope](Client::with_prefix) is added.
    ///
    /// The conditions that it still holds count among [`Limits::txn_ops_max`](crate::Limits::txn_ops_max): two for
    /// each key that makes it the holder, and a third for a writer's. Of 128 operations 126 are left to a mutex, a
    /// reader, a permit or a leader, 125 to a writer, 68 to 30 locks at once. [`GuardTxn::ack`] takes three
    /// for each item.
    pub fn txn(&self) -> GuardTxn {
        let client = Client::new(Arc::clone(self.session.shared()));
        GuardTxn::new(client, self.parts())
    }

    /// The conditions that this still is the holder, for a transaction of your own. From now on the lock
    /// is not passed on inside the node, but given back to the cluster, since nobody knows when that
    /// transaction will be over; [`Hold::txn`] costs less.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, Op};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let session = node.session().block()?;
    /// let from = session.mutex("accounts/ann").lock().block()?;
    /// let to = session.mutex("accounts/bob").lock().block()?;
    /// // Under both, and with a condition on the one that the transaction is not from:
    /// let both = from.txn().when_all(to.still_held()).then(Op::put("paid", "7")).commit().block()?;
    /// assert!(both.succeeded);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn still_held(&self) -> Vec<Compare> {
        let mut conditions = self.grant.still_held(&self.place);
        if !self.place.spend(&self.turn) {
            // Over, though another task of this process may hold by the same key.
            conditions.push(Compare::missing(self.key().clone()));
        }
        conditions
    }

    /// The parts of it that its owner keeps.
    pub(crate) fn parts(&self) -> (&Arc<Lines>, &Arc<Place>, &Arc<Turn>, &Grant) {
        (&self.lines, &self.place, &self.turn, &self.grant)
    }

    /// Whose it is.
    pub(crate) fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// Why it is over, if it is.
    pub(crate) fn is_lost(&self) -> Option<LostReason> {
        self.loss(self.session.shared().now())
    }

    /// By which rule it stands, as its row says.
    pub(crate) fn rule(&self) -> Rule {
        Stance::rule_of(self.key(), &self.place.lock().value)
    }

    /// What its row says by another rule.
    fn restated(&self, rule: Rule) -> Bytes {
        let value = self.place.lock().value.clone();
        let stance = Stance::parse(self.key(), &value);
        let mut stance = stance.unwrap_or_else(|| Stance::new(rule.clone(), String::new()));
        stance.rule = rule;
        stance.to_value()
    }

    /// What makes its row say another rule, if this still is the holder.
    pub(crate) fn restating(&self, rule: Rule) -> Txn {
        let put = Put {
            key: self.key().clone(),
            value: PutValue::Set(self.restated(rule)),
            lease: PutLease::Attach(self.place.session.lease),
            prev_kv: false,
        };
        let (compares, failure) = (self.conditions(), Vec::new());
        Txn { compares, success: vec![Op::Put(put)], failure }
    }

    /// Its row says that it writes, since this revision: it holds more than before, and has a token of its own.
    pub(crate) fn writes_since(&mut self, revision: Revision) {
        self.grant.value = self.restated(Rule::Write);
        if !mutant::is(Mutant::B03) {
            self.grant.token = Token { revision, handoff: 0 };
        }
    }

    /// It holds by the same grant as another guard of its owner.
    pub(crate) fn holds_by(&mut self, grant: Grant) {
        self.grant = grant;
    }

    /// What makes the row of a writer say that it reads: of several that are under way at most one is applied, so
    /// that none comes behind an upgrade.
    pub(crate) fn downgrading(&self) -> Txn {
        let mut txn = self.restating(Rule::Read);
        let (row, _) = self.session.shared().reader.get(self.key());
        let as_it_is = |row: KeyValue| Compare::mod_revision(row.key).eq(row.mod_revision);
        txn.compares.extend(row.map(as_it_is));
        txn
    }

    /// It only reads from now on, whatever its row says yet.
    pub(crate) fn only_reads(&mut self) {
        self.grant.value = self.restated(Rule::Read);
    }

    /// The conditions that this still is the holder, for a transaction whose effect is the hold's own.
    pub(crate) fn conditions(&self) -> Vec<Compare> {
        self.grant.still_held(&self.place)
    }

    /// Ends the hold, without waiting for anything; false if it is over already.
    pub(super) fn give_up(&self, why: LostReason, reply: ReplyTo<Reply>) -> bool {
        self.lines.release(&self.place, &self.turn, why, reply)
    }

    /// Releases it, for all who have it, in the background.
    pub(super) fn end_now(&self) {
        self.give_up(LostReason::Released, ReplyTo::Nobody);
    }

    /// Releases it, and waits until others may have it: as its guard's release does. Releasing what is lost does no
    /// harm and says so.
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
    /// [`Error::Deadline`] if it could not be confirmed in time; the node goes on trying.
    #[doc(alias = "unlock")]
    pub async fn release(mut self) -> Result<Released, Error> {
        if let Some(loss) = self.is_lost() {
            return Ok(Released::AlreadyLost(loss));
        }
        self.is_counted = false;
        match self.turn.unshare() {
            0 => self.end().await,
            times => Ok(Released::StillHeld { times }),
        }
    }

    /// Releases it, for all who have it, and waits until another may have it.
    pub(super) async fn end(&self) -> Result<Released, Error> {
        let shared = Arc::clone(self.session.shared());
        if let Some(loss) = self.loss(shared.now()) {
            return Ok(Released::AlreadyLost(loss));
        }
        // Most often the next task of this process has it at once, and nothing is to be waited for.
        if self.lines.pass_on(&self.place, &self.turn) {
            return Ok(Released::Now);
        }
        let (sender, mut receiver) = oneshot::channel();
        if !self.give_up(LostReason::Released, ReplyTo::Waiting(sender)) {
            return Ok(Released::AlreadyLost(self.is_lost().unwrap_or(LostReason::KeyDeleted)));
        }
        // Within the node it is known at once.
        let answer = match receiver.try_recv() {
            Ok(answer) => answer?,
            Err(_) => confirmed(&shared, receiver).await?,
        };
        Ok(Released::of(&answer))
    }
}

impl Released {
    /// What the answer to a parting says.
    pub(super) fn of(answer: &Reply) -> Self {
        match answer {
            Reply::Txn(reply) if !reply.succeeded => Released::AlreadyLost(LostReason::KeyDeleted),
            _ => Released::Now,
        }
    }
}

impl Hold {
    /// Gives it to one who waits in the same line, past those before that one. If the successor has gone, the
    /// next in line gets it.
    pub(crate) async fn transfer(self, successor: &LockEntry) -> Result<(), LockAdminError> {
        let shared = Arc::clone(self.session.shared());
        let line = parent(self.key()).map(Bytes::copy_from_slice).unwrap_or_default();
        if self.grant.keys.len() > 1 || parent(&successor.key) != Some(&line) {
            return Err(LockAdminError::NoSuccessor { successor: successor.key.clone() });
        }
        view::may_be_handed(successor, self.place.session.lease)?;
        view::is_for_ours_alone(&shared, &line)?;
        let (sender, receiver) = oneshot::channel();
        let (successor, reply) =
            ((successor.since, successor.key.clone()), ReplyTo::Waiting(sender));
        if !self.lines.transfer(&self.place, &self.turn, successor, reply) {
            return Err(LockAdminError::Gone);
        }
        drop(self);
        Ok(confirmed(&shared, receiver).await.map(drop)?)
    }
}

/// What came of something that the node goes on trying, if that is known in time.
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
        if self.is_counted && self.turn.unshare() == 0 {
            self.give_up(LostReason::Released, ReplyTo::Nobody);
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

impl Grant {
    /// The conditions that who was granted this still holds. A writer that has become a reader has its key and
    /// its lease still, and does not hold what it held.
    pub(super) fn still_held(&self, place: &Place) -> Vec<Compare> {
        let lease = place.session.lease;
        let since = match mutant::is(Mutant::B56) {
            true => self.since.next(),
            false => self.since,
        };
        let is_still = |key: &Bytes| {
            let writes = Stance::rule_of(key, &self.value) == Rule::Write;
            let says = writes.then(|| Compare::value(key.clone()).eq(self.value.clone()));
            still_mine(key, since, lease).into_iter().chain(says)
        };
        self.keys.iter().flat_map(is_still).collect()
    }
}

/// What a release came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Released {
    /// It was held, and is free now, or another task's.
    Now,
    /// Its owner holds it so many times still.
    StillHeld {
        /// How often.
        times: u32,
    },
    /// It had been lost before.
    AlreadyLost(LostReason),
}
