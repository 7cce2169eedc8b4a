//! A hold: what every guard has in common, and the transactions under it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error as ThisError;
use tokio::sync::oneshot;

use crate::api::{Client, Effect, Error, Session};
use crate::model::{
    Compare, Moment, Op, Put, PutLease, PutValue, Reply, Revision, Txn, TxnReply, TxnResult,
};
use crate::mutant::{self, Mutant};
use crate::node::{CallError, CallResult, ReplyTo, Shared, Standing};

use super::error::Loss;
use super::line::{Lines, parent, still_mine};
use super::operate::OrderError;
use super::order::Request;
use super::owner::Owner;
use super::place::{Bound, Grant, Load, Place, Turn};
use super::queue::Delivery;
use super::rule::Rule;
use super::stance::Stance;
use super::ticket::Ticket;
use super::token::Token;
use super::view::{self, Contender};

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

/// What a guard of any kind has: a lock that is held, until it is released or lost.
///
/// What it guarantees: while [`Hold::state`] says that it is held, no other hold that excludes it says
/// so, as long as ownership passes by release or expiry and clocks keep within the drift bound. A
/// program that was paused, or cut off, sees the loss at its first look afterwards. What was begun
/// before the pause is another matter: write through [`Hold::txn`], which the store judges, or hand
/// [`Hold::token`] to whatever is written to, and let it refuse older ones ([`Fence`](crate::Fence)).
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
    /// [`Node::now`](crate::Node::now).
    pub fn valid_until(&self) -> Moment {
        let until = self.session.valid_until();
        self.turn.until().map_or(until, |cap| cap.min(until))
    }

    /// Whether it is held. Never says so after [`Hold::valid_until`].
    pub fn state(&self) -> LockState {
        if let Some(loss) = self.loss(self.session.shared().now()) {
            return LockState::Lost(loss);
        }
        match self.session.standing() {
            Standing::Confirmed(_) => LockState::Held(self.valid_until()),
            Standing::Overdue(_) => LockState::Unconfirmed(self.valid_until()),
            Standing::Ended(end) => LockState::Lost(Loss::ended(end, self.session.shared())),
        }
    }

    /// Whether it is held, in one word.
    pub fn is_held(&self) -> bool {
        self.loss(self.session.shared().now()).is_none()
    }

    fn loss(&self, now: Moment) -> Option<Loss> {
        let ended = || self.session.state().end(now).map(Loss::SessionEnded);
        let loss = match self.turn.loss() {
            // The end of the session has deleted the key.
            Some(Loss::KeyDeleted) => Some(ended().unwrap_or(Loss::KeyDeleted)),
            Some(loss) => Some(loss),
            None => ended().or_else(|| {
                self.turn.until().filter(|until| *until <= now).map(|_| Loss::HeldTooLong)
            }),
        };
        loss.map(|loss| loss.told(self.session.shared()))
    }

    /// Waits until it is lost, and says why: ready at the first poll after [`Hold::valid_until`], or as
    /// soon as this node has applied the loss. Cancel-safe.
    pub async fn lost(&self) -> Loss {
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

    /// Waits until somebody asks the holder to give the lock up ([`Locks::ask`](crate::Locks::ask)).
    /// Never ends if nobody does. Cancel-safe.
    pub async fn asked_to_release(&self) -> Request {
        self.when(|_| self.turn.request()).await
    }

    /// What somebody asks of the holder, if somebody does.
    pub fn request(&self) -> Option<Request> {
        self.turn.request()
    }

    /// Lets go of it without releasing it.
    pub(super) fn leak(mut self) -> Ticket {
        self.is_counted = false;
        self.ticket()
    }

    /// Asks this holder to give the lock up.
    pub(super) fn ask(&self, request: Request) {
        self.lines.ask(&self.turn, request);
    }

    /// Waits until a look finds something. Looks at each poll, whenever the hold changes, and when the
    /// session's standing may have.
    async fn when<T>(&self, look: impl Fn(Moment) -> Option<T>) -> T {
        let shared = self.session.shared();
        let mut change = pin!(async {
            let mut end = self.session.state().watch();
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
    /// even a holder that believes too long in its lock changes nothing.
    pub fn txn(&self) -> GuardTxn {
        GuardTxn {
            client: Client::new(Arc::clone(self.session.shared())),
            lines: Arc::clone(&self.lines),
            place: Arc::clone(&self.place),
            turn: Arc::clone(&self.turn),
            grant: self.grant.clone(),
            txn: Txn::default(),
            bound: Vec::new(),
            items: Items::default(),
            leaving: Vec::new(),
            deadline: None,
        }
    }

    /// The conditions that this still is the holder, for a transaction of your own. From now on the lock
    /// is not passed on inside the node, but given back to the cluster, since nobody knows when that
    /// transaction will be over; [`Hold::txn`] costs less.
    ///
    /// ```
    /// # use bowline::{Config, Node, Op, Wait};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).wait()?;
    /// # let session = node.session().wait()?;
    /// let from = session.mutex("accounts/ann").lock().wait()?;
    /// let to = session.mutex("accounts/bob").lock().wait()?;
    /// // Under both, and with a condition on the one that the transaction is not from:
    /// let both = from.txn().when_all(to.still_held()).then(Op::put("paid", "7")).commit().wait()?;
    /// assert!(both.succeeded);
    /// # node.shutdown().wait();
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
    pub(crate) fn is_lost(&self) -> Option<Loss> {
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

    /// Its row says another rule now; what holds more than before has a token of its own.
    pub(crate) fn has_become(&mut self, rule: Rule, more_since: Option<Revision>) {
        let value = self.restated(rule);
        self.place.lock().value = value;
        if let Some(revision) = more_since.filter(|_| !mutant::is(Mutant::B03)) {
            self.grant.token = Token { revision, hop: 0 };
        }
    }

    /// The conditions that this still is the holder, for a transaction whose effect is the hold's own.
    pub(crate) fn conditions(&self) -> Vec<Compare> {
        self.grant.still_held(&self.place)
    }

    /// Ends the hold, without waiting for anything; false if it is over already.
    fn give_up(&self, why: Loss, reply: ReplyTo<Reply>) -> bool {
        self.lines.release(&self.place, &self.turn, why, reply)
    }

    /// Releases it, for all who have it, in the background.
    pub(super) fn end_now(&self) {
        self.give_up(Loss::Released, ReplyTo::Nobody);
    }

    /// Releases it, and waits until another may have it.
    pub(crate) async fn release(mut self) -> Result<Released, Error> {
        if let Some(loss) = self.is_lost() {
            return Ok(Released::WasLost(loss));
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
            return Ok(Released::WasLost(loss));
        }
        // Most often the next task of this process has it at once, and nothing is to be waited for.
        if self.lines.pass_on(&self.place, &self.turn) {
            return Ok(Released::Now);
        }
        let (sender, mut receiver) = oneshot::channel();
        if !self.give_up(Loss::Released, ReplyTo::Waiting(sender)) {
            return Ok(Released::WasLost(self.is_lost().unwrap_or(Loss::KeyDeleted)));
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
            Reply::Txn(reply) if !reply.succeeded => Released::WasLost(Loss::KeyDeleted),
            _ => Released::Now,
        }
    }
}

impl Hold {
    /// Gives it to one who waits in the same line, past those before that one. If the heir has gone, the
    /// next in line gets it.
    pub(crate) async fn hand_over(self, heir: &Contender) -> Result<(), OrderError> {
        let shared = Arc::clone(self.session.shared());
        let line = parent(self.key()).map(Bytes::copy_from_slice).unwrap_or_default();
        if self.grant.keys.len() > 1 || parent(&heir.key) != Some(&line) {
            return Err(OrderError::NoHeir { heir: heir.key.clone() });
        }
        view::may_be_handed(heir, self.place.session.lease)?;
        view::is_for_ours_alone(&shared, &line)?;
        let (sender, receiver) = oneshot::channel();
        let (heir, reply) = (heir.key.clone(), ReplyTo::Waiting(sender));
        if !self.lines.hand_over(&self.place, &self.turn, heir, reply) {
            return Err(OrderError::Gone);
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
            self.give_up(Loss::Released, ReplyTo::Nobody);
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
    fn still_held(&self, place: &Place) -> Vec<Compare> {
        let lease = place.session.lease;
        self.keys.iter().flat_map(|key| still_mine(key, self.since, lease)).collect()
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
    WasLost(Loss),
}

/// Why a guarded transaction was not carried out, or may not have been.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum GuardError {
    /// This is not the holder any more. Nothing was changed.
    #[error("not applied: the lock is not held any more")]
    NotHeld,
    /// An item that was to be acknowledged ([`GuardTxn::ack`]) is not this taker's any more. Nothing was
    /// changed, but that [`GuardTxn::commit_and_release`] has released the lock.
    #[error("not applied: the item is not this taker's any more")]
    NotOurs,
    /// A leader's value that begins as what Bowline writes into other lines. Nothing was changed.
    #[error("a leader's value must not begin with \"bowline:1 \"")]
    ReservedValue,
    /// The store could not, or would not.
    #[error(transparent)]
    Store(#[from] Error),
}

impl GuardError {
    /// Whether the same transaction may succeed later under the same guard: the cluster had no quorum.
    pub fn is_transient(&self) -> bool {
        matches!(self, GuardError::Store(error) if error.is_transient())
    }
}

/// A transaction under a lock; see [`Hold::txn`].
#[must_use = "a transaction does nothing until it is committed: call .commit() or .commit_and_release(guard)"]
pub struct GuardTxn {
    client: Client,
    lines: Arc<Lines>,
    place: Arc<Place>,
    turn: Arc<Turn>,
    grant: Grant,
    txn: Txn,
    bound: Vec<Bound>,
    items: Items,
    /// What releases the lock in the same entry, if that is to be.
    leaving: Vec<Op>,
    deadline: Option<Duration>,
}

/// The items that a transaction acknowledges. Those that it does not are given back as they are dropped.
#[derive(Default)]
struct Items {
    deliveries: Vec<Delivery>,
}

impl Items {
    /// The transaction, if all of them are still their takers'.
    fn around(&self, mut txn: Txn) -> Txn {
        if self.deliveries.is_empty() {
            return txn;
        }
        // Last, so that the results of the caller's own operations stand where he knows them.
        txn.success.extend(self.deliveries.iter().flat_map(Delivery::done));
        let compares = self.deliveries.iter().map(Delivery::still_ours).collect();
        Txn { compares, success: vec![Op::Txn(txn)], failure: Vec::new() }
    }

    /// The reply of the transaction itself; `None` if one of them was somebody else's.
    fn inside(is_any: bool, reply: &TxnReply) -> Option<&TxnReply> {
        match reply.results.last() {
            _ if !is_any => Some(reply),
            Some(TxnResult::Txn(inner)) if reply.succeeded => Some(inner),
            _ => None,
        }
    }

    /// This is what became of it. What is not surely acknowledged is given back: behind an
    /// acknowledgement that comes true all the same, that does nothing.
    fn settle(self, is_done: bool) {
        if is_done {
            self.deliveries.into_iter().for_each(Delivery::settled);
        }
    }
}

impl GuardTxn {
    /// One more condition: all must hold.
    pub fn when(mut self, compare: Compare) -> Self {
        self.txn.compares.push(compare);
        self
    }

    /// Several more conditions: all must hold. [`Hold::still_held`] of another lock, for one.
    pub fn when_all(mut self, compares: impl IntoIterator<Item = Compare>) -> Self {
        self.txn.compares.extend(compares);
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

    /// Puts a key that lives exactly as long as the hold: it goes in the same entry that frees the lock,
    /// whatever the reason; but where somebody else deletes the lock's own key, only with the session.
    /// A lock that is held with such keys is not passed on inside the node, but given back. At most 1,000
    /// keys go with one hold; what deletes them, which names each key twice and its value too until it is
    /// known to be there, must fit into 1.4 MiB. The error is [`TooManyOps`](crate::Refusal::TooManyOps) or
    /// [`RequestTooLarge`](crate::Refusal::RequestTooLarge), and nothing was changed.
    pub fn then_while_held(mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        let (key, value) = (key.into(), value.into());
        self.txn.success.push(Op::Put(Put {
            key: key.clone(),
            value: PutValue::Set(value.clone()),
            lease: PutLease::Attach(self.place.session.lease),
            prev_kv: false,
        }));
        self.bound.push(Bound { key, value, is_sure: true });
        self
    }

    /// Acknowledges an item of a queue in the same entry, if all conditions hold; with
    /// [`GuardTxn::commit_and_release`] the result, the release of the lock and the acknowledgement are one
    /// step. If the item is not this taker's any more nothing is done, not even what
    /// [`GuardTxn::or_else`] says, and the error is [`GuardError::NotOurs`].
    ///
    /// In every other case in which it is not acknowledged (the lock is lost, a condition does not hold, the
    /// transaction is refused, or dropped before it was begun) the item is given back, as if the delivery
    /// had been dropped: somebody takes it again. After an unknown outcome, too: then it is either
    /// acknowledged or given back.
    ///
    /// ```
    /// # use bowline::{Config, Node, Op, Wait};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).wait()?;
    /// let session = node.session().wait()?;
    /// let jobs = session.queue("jobs");
    /// jobs.put("pay 7 to ann").wait()?;
    ///
    /// let job = jobs.take().wait()?;
    /// let guard = session.mutex("accounts/ann").lock().wait()?;
    /// let result = Op::put("results/ann", "7 paid"); // the work
    /// guard.txn().then(result).ack(job).commit_and_release(guard).wait()?;
    /// assert!(jobs.is_empty().wait()?);
    /// # node.shutdown().wait();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ack(mut self, delivery: Delivery) -> Self {
        self.items.deliveries.push(delivery);
        self
    }

    /// How long the call may take.
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }

    /// Carries it out.
    ///
    /// # Errors
    /// [`GuardError::NotHeld`] if the lock is lost: nothing was changed.
    pub async fn commit(self) -> Result<TxnReply, GuardError> {
        let Self { client, lines, place, turn, grant, txn, bound, items, leaving, deadline } = self;
        let is_any = !items.deliveries.is_empty();
        let txn = items.around(txn);
        let mut still_held = grant.still_held(&place);
        if mutant::is(Mutant::B27) {
            still_held.clear();
        }
        let txn = Txn { compares: still_held, success: vec![Op::Txn(txn)], failure: Vec::new() };
        if leaving.is_empty() && !txn.writes() {
            let call = txn.success.into_iter().fold(client.txn(), crate::api::TxnCall::then);
            let mut call = txn.compares.into_iter().fold(call, crate::api::TxnCall::when);
            if let Some(timeout) = deadline {
                call = call.deadline(timeout);
            }
            let reply = judged(call.commit().await?, is_any);
            // A task that had passed the lock on inside the node is not told that it still held.
            return if place.is_held_by(&turn) { reply } else { Err(GuardError::NotHeld) };
        }
        // As much as it may be if the outcome is unknown.
        let binds = Load::of(&unsure(bound.clone()));
        if !place.begin_txn(&turn, binds).map_err(Error::Refused)? {
            return Err(GuardError::NotHeld);
        }
        let hook = move |outcome: Option<&CallResult<Reply>>| {
            let (is_known, is_done, bound) = what_is_done(outcome, is_any, bound);
            lines.end_txn(&place, binds, is_known, bound);
            items.settle(is_done);
        };
        let shared = &client.shared;
        let deadline = shared.deadline(deadline);
        match shared.write_hooked(txn, leaving, deadline, hook).await.map_err(Error::from)? {
            Reply::Txn(reply) => judged(reply, is_any),
            other => unreachable!("a transaction is answered by {other:?}"),
        }
    }

    /// Carries it out and releases the lock, in one entry: there is no moment at which the one is done
    /// and the other is not. `guard` must be the one that this transaction is from. If the lock is lost,
    /// or a condition does not hold, the lock is released all the same.
    ///
    /// # Errors
    /// [`GuardError::NotHeld`] if the lock was lost: nothing was changed. If the outcome is unknown the
    /// lock is released as soon as that is possible.
    pub async fn commit_and_release(
        mut self,
        guard: impl Into<Hold>,
    ) -> Result<TxnReply, GuardError> {
        let hold: Hold = guard.into();
        assert!(Arc::ptr_eq(&hold.turn, &self.turn), "the guard that the transaction is from");
        if hold.is_lost().is_some() {
            return Err(GuardError::NotHeld);
        }
        // Whatever the transaction's own conditions say, the keys go.
        self.leaving = self.grant.keys.iter().cloned().map(Op::delete).collect();
        self.leaving.extend(self.place.unbinding());
        // It is not passed on: its key goes.
        if !self.place.spend(&self.turn) {
            return Err(GuardError::NotHeld);
        }
        let committing = self.commit();
        let mut committing = pin!(committing);
        let mut hold = Some(hold);
        poll_fn(|context| {
            let polled = committing.as_mut().poll(context);
            // The transaction is on its way: the belief ends here, whoever shares it, and the lock is
            // given up behind it.
            if let Some(hold) = hold.take() {
                hold.give_up(Loss::Released, ReplyTo::Nobody);
            }
            polled
        })
        .await
    }
}

/// Whether the outcome of a guarded transaction is known, whether its conditions are known to have held,
/// and which keys it has bound, or may have.
fn what_is_done(
    outcome: Option<&CallResult<Reply>>,
    is_any: bool,
    bound: Vec<Bound>,
) -> (bool, bool, Vec<Bound>) {
    match outcome {
        Some(Ok(Reply::Txn(reply))) => {
            let is_done = match reply.results.first() {
                Some(TxnResult::Txn(inner)) if reply.succeeded => {
                    Items::inside(is_any, inner).is_some_and(|own| own.succeeded)
                }
                _ => false,
            };
            (true, is_done, if is_done { sure(bound) } else { Vec::new() })
        }
        None
        | Some(Err(
            CallError::Deadline { maybe_applied: true }
            | CallError::Stopped { maybe_applied: true, .. },
        )) => (false, false, unsure(bound)),
        // It was applied, and nobody knows which of its branches.
        Some(Ok(_)) => (true, false, unsure(bound)),
        Some(Err(_)) => (true, false, Vec::new()),
    }
}

/// That is there, whatever it says.
fn sure(bound: Vec<Bound>) -> Vec<Bound> {
    bound.into_iter().map(|bound| Bound::of_key(bound.key)).collect()
}

fn unsure(bound: Vec<Bound>) -> Vec<Bound> {
    bound.into_iter().map(|bound| Bound { is_sure: false, ..bound }).collect()
}

fn judged(reply: TxnReply, is_any: bool) -> Result<TxnReply, GuardError> {
    // What releases the lock stands behind it.
    match reply.results.into_iter().next() {
        Some(TxnResult::Txn(inner)) if reply.succeeded => {
            Items::inside(is_any, &inner).cloned().ok_or(GuardError::NotOurs)
        }
        _ => Err(GuardError::NotHeld),
    }
}

impl std::fmt::Debug for GuardTxn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuardTxn").field("txn", &self.txn).finish_non_exhaustive()
    }
}
