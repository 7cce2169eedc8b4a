//! An item in a taker's hands.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::api::{Client, Effect, Error, Session};
use crate::model::{
    Command, Compare, KeyValue, Op, Put, PutLease, Rejection, Reply, Revision, Txn, TxnReply,
    TxnResult,
};
use crate::mutant::{self, Mutant};
use crate::node::{CallError, CallResult, ReplyTo, SessionEndReason};
use crate::recipes::call::Until;
use crate::recipes::conditional::Granted;
use crate::recipes::{LostReason, Token};
use crate::watch::{WatchError, waking};

use super::{ItemId, Keys, Part, QueueError};

/// An item's claim, by one taking of it.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) session: Session,
    pub(super) keys: Keys,
    pub(super) id: ItemId,
    /// The revision that made the claim.
    pub(super) since: Revision,
}

impl Claim {
    pub(super) fn key(&self) -> Bytes {
        self.keys.key(Part::Claim, &self.id.0)
    }

    pub(super) fn item_key(&self) -> Bytes {
        self.keys.key(Part::Item, &self.id.0)
    }

    /// What acknowledges the item.
    fn done(&self) -> [Op; 2] {
        [Op::delete(self.item_key()), Op::delete(self.key())]
    }

    fn is_ours(&self) -> Compare {
        Compare::create_revision(self.key()).eq(self.since)
    }

    /// Whether its session was lost: then the lease gives it back, after the lock delay, and nobody else.
    fn is_left_to_its_lease(&self) -> bool {
        self.session.end() == Some(SessionEndReason::NotRenewed)
    }

    /// Lets go of the item, for as long as it takes.
    pub(super) fn give_back(&self, reply: ReplyTo<Reply>) {
        let compares = vec![self.is_ours()];
        let mut txn = Txn { compares, success: vec![Op::delete(self.key())], failure: vec![] };
        if mutant::is(Mutant::B11) {
            txn.success = self.done().into();
        }
        self.session.shared().insist(Command::Txn(txn), reply);
    }
}

/// An item that was taken, and is to be acknowledged: until then it is claimed by this taker's
/// session, and nobody else gets it. Dropping it gives it back, in the background.
///
/// - While the session lives, nobody else has it, however long the work takes.
/// - When this process crashes, or is cut off or paused for longer than the session's TTL, the session ends
///   and somebody else takes the item: there may be two then that work on it. At most one of them can
///   acknowledge it: [`Delivery::ack_with`] makes that the moment at which the work counts, and
///   [`Delivery::lost`] says early that it will not.
/// - What was not acknowledged is taken again, by anybody: at least once, not exactly once, unless all
///   that the work does is in [`Delivery::ack_with`], or in a transaction under a lock with
///   [`GuardTxn::ack`](crate::lock::GuardTxn::ack).
///
/// Take, lock, do; then result, acknowledgement and release in one entry. If by then the item is not this
/// taker's any more, or the lock is lost, none of it is done:
///
/// ```
/// # use bowline::{Blocking, Config, Node, Op};
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
/// # node.client().queue("jobs").put("42").block()?;
/// let session = node.session().block()?;
/// let job = session.queue("jobs").take().block()?;
/// let guard = session.mutex("locks/orders/42").lock().block()?;
/// let result = Op::put("orders/42/state", "paid"); // the work
/// guard.txn().then(result).ack(job).commit_and_release(guard).block()?;
/// # assert!(session.queue("jobs").is_empty().block()?);
/// # node.shutdown().block();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What the work does outside the store is fenced by [`Delivery::token`].
#[must_use = "an item is given back when this is dropped"]
pub struct Delivery {
    claim: Claim,
    value: Bytes,
    attempt: u64,
    priority: i16,
    put_at: Revision,
    /// Not acknowledged or given back yet.
    open: bool,
}

impl Delivery {
    pub(super) fn new(claim: Claim, item: KeyValue) -> Self {
        let priority = super::index::priority(&claim.id.0);
        let (attempt, put_at) = (item.version - 1, item.create_revision);
        Self { claim, value: item.value, attempt, priority, put_at, open: true }
    }

    /// What was put.
    pub fn value(&self) -> &Bytes {
        &self.value
    }

    /// The item's name.
    pub fn id(&self) -> &ItemId {
        &self.claim.id
    }

    /// How often it has been taken, with this time: 1 at first. Takings that came to nothing, by a crash
    /// or a future that was dropped at the wrong moment, count.
    pub fn attempt(&self) -> u64 {
        self.attempt
    }

    /// Its priority.
    pub fn priority(&self) -> i16 {
        self.priority
    }

    /// The revision at which it was put.
    pub fn put_at(&self) -> Revision {
        self.put_at
    }

    /// The fencing token of this taking: higher than that of every taking of this item before. For what
    /// the work does outside the store: a [`Fence`](crate::lock::Fence) for each item lets nobody in who had it
    /// before. Tokens of two items, or of an item and a lock, do not say which is the later one.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, lock::Fence};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let jobs = node.session().block()?.queue("jobs");
    /// # jobs.put("resize 1.png").block()?;
    /// let fence = Fence::default(); // kept with what is written
    /// let job = jobs.take().block()?;
    /// let first = job.token();
    /// job.nack().block()?; // or its session ends
    /// let again = jobs.take().block()?;
    /// assert!(fence.admit(again.token()).is_ok());
    /// assert!(fence.admit(first).is_err());
    /// # again.ack().block()?;
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "fencing_token")]
    pub fn token(&self) -> Token {
        Token { revision: self.claim.since, handoff: 0 }
    }

    /// The revision at which it was taken; [`Delivery::token`] is the same as a fencing token.
    pub fn taken_at(&self) -> Revision {
        self.claim.since
    }

    /// The condition that the item still is this taker's, for a transaction of your own.
    pub fn still_ours(&self) -> Compare {
        self.claim.is_ours()
    }

    /// Whether it is, as far as this node knows: the session is believed in, and the claim is there.
    pub fn is_ours(&self) -> bool {
        let shared = self.claim.session.shared();
        let row = || shared.reader.get(&self.claim.key()).0;
        self.claim.session.end().is_none()
            && row().is_some_and(|row| row.create_revision == self.claim.since)
    }

    /// Waits until it is not this taker's any more, and says why. To stop work in time that will not
    /// count.
    pub async fn lost(&self) -> LostReason {
        let session = &self.claim.session;
        let client = Client::new(Arc::clone(session.shared()));
        loop {
            if let Some(end) = session.end() {
                return LostReason::ended(end, session.shared());
            }
            let watch = client.watch(self.claim.key()).begin();
            if !self.is_ours() && session.end().is_none() {
                return LostReason::KeyDeleted;
            }
            let changed = async {
                match watch {
                    Ok(mut watch) => match watch.next().await {
                        // What was compacted is looked at anew.
                        Some(Ok(_) | Err(WatchError::Compacted { .. })) => {}
                        // The node has stopped, and the session with it.
                        Some(Err(_)) | None => drop(session.ended().await),
                    },
                    Err(_) => drop(session.ended().await),
                }
            };
            tokio::select! {
                biased;
                end = session.ended() => return LostReason::ended(end, session.shared()),
                () = changed => {}
            }
        }
    }

    /// It is done: deletes the item. What is begun is carried out, also if this future is dropped.
    ///
    /// # Errors
    /// [`QueueError::NotOurs`]: the session had ended before, and somebody else has the item, or will.
    /// [`Error::Deadline`] in [`QueueError::Store`]: it could not be confirmed in time; the node goes on
    /// trying.
    pub async fn ack(self) -> Result<(), QueueError> {
        self.ack_with(std::iter::empty::<Op>()).await.map(drop)
    }

    /// It is done, and these are its effects: deletes the item and carries out `ops`, in one
    /// transaction, if the item still is this taker's. So each item has its effects once, however often
    /// it is taken. It does not look at locks that this taker holds besides: what must be done under a lock
    /// goes with [`GuardTxn::ack`](crate::lock::GuardTxn::ack). Answers with what became of the operations. Their keys are
    /// whole ones: no [scope](Client::with_prefix) is added. To put into another queue, see
    /// [`Queue::op`](super::Queue::op). What is begun is carried out, also if this future is dropped.
    ///
    /// # Errors
    /// [`QueueError::NotOurs`]: nothing was changed. [`QueueError::Store`]: [`Error::effect`] says what
    /// was; where nothing was changed the item is given back. After [`Error::Deadline`] the node goes on
    /// trying, and gives the item back if that comes to nothing.
    pub async fn ack_with<O: Into<Op>>(
        mut self,
        ops: impl IntoIterator<Item = O>,
    ) -> Result<TxnReply, QueueError> {
        let ops = Txn { success: ops.into_iter().map(Into::into).collect(), ..Txn::default() };
        let mut txn = Txn {
            compares: match mutant::is(Mutant::B10) {
                false => vec![self.claim.is_ours()],
                true => Vec::new(),
            },
            success: self.claim.done().into(),
            failure: vec![],
        };
        let acknowledges_only = ops.success.is_empty();
        if !acknowledges_only {
            txn.success.push(ops.into());
        }
        let session = self.claim.session.clone();
        let shared = session.shared();
        let deadline = shared.deadline(None);
        let command = Command::Txn(txn);
        let outcome = if acknowledges_only {
            let (reply, outcome) = self.settling();
            shared.insist(command, reply);
            outcome
        } else {
            // Nothing is open if it is not let in: the item is given back as this is dropped.
            loop {
                let (sender, outcome) = oneshot::channel();
                let reply = self.settling_into(sender);
                match shared.insist_admitted(command.clone(), reply) {
                    Ok(()) => break outcome,
                    Err(CallError::Busy) if shared.now() < deadline => {
                        shared
                            .sleep_until(shared.now() + shared.settings.call_deadline / 100)
                            .await;
                    }
                    Err(error) => return Err(Error::from(error).into()),
                }
            }
        };
        self.open = false;
        let mut reply = self.until(deadline, outcome).await?;
        match reply.results.pop() {
            _ if !reply.succeeded => Err(QueueError::NotOurs),
            Some(TxnResult::Txn(inner)) if !acknowledges_only => Ok(inner),
            _ => Ok(TxnReply { results: vec![], ..reply }),
        }
    }

    /// What acknowledges it, under the condition that it still is this taker's.
    pub(in crate::recipes) fn done(&self) -> [Op; 2] {
        self.claim.done()
    }

    /// It was acknowledged: nothing is to be given back.
    pub(in crate::recipes) fn settled(mut self) {
        self.open = false;
    }

    /// Gives it back: it is free at once, where it stood, and this was one attempt. Waits until that is
    /// durable; dropping does the same in the background.
    ///
    /// # Errors
    /// [`QueueError::NotOurs`], which does no harm; [`Error::Deadline`] in [`QueueError::Store`]: the
    /// node goes on trying.
    pub async fn nack(mut self) -> Result<(), QueueError> {
        if self.claim.is_left_to_its_lease() {
            self.open = false;
            return Err(QueueError::NotOurs);
        }
        let (sender, outcome) = oneshot::channel();
        self.claim.give_back(ReplyTo::Waiting(sender));
        self.open = false;
        let deadline = self.claim.session.shared().deadline(None);
        match self.until(deadline, outcome).await?.succeeded {
            true => Ok(()),
            false => Err(QueueError::NotOurs),
        }
    }

    /// As [`Delivery::nack`], for later: nobody takes it again before this long has passed, in whole milliseconds,
    /// counted as [`PutItem::delay`](super::PutItem::delay) is. It keeps its place.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, queue::ItemState};
    /// # use std::time::Duration;
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let jobs = node.session().block()?.queue("jobs");
    /// # jobs.put("call ann").block()?;
    /// let job = jobs.take().block()?;
    /// // Ann is out: a minute for the first time, two for the second, ...
    /// let attempt = u32::try_from(job.attempt())?;
    /// job.nack_after(Duration::from_secs(60) * attempt).block()?;
    /// assert_eq!(jobs.items().block()?[0].state, ItemState::Delayed);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::NotOurs`], which does no harm. [`QueueError::Store`]: where nothing was changed, for want of room
    /// perhaps, the item is given back without delay. After [`Error::Deadline`] it is given back with or without.
    pub async fn nack_after(mut self, delay: Duration) -> Result<(), QueueError> {
        // Whole milliseconds, and never less than was asked for.
        let millis = delay.as_nanos().div_ceil(1_000_000);
        let delay = Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
        if delay.is_zero() || self.claim.is_left_to_its_lease() {
            return self.nack().await;
        }
        let session = self.claim.session.clone();
        let (shared, deadline) = (session.shared(), session.shared().deadline(None));
        let client = Client::new(Arc::clone(shared));
        // Until it is bound to the delay, it is ended if this is dropped.
        let granted = Granted::of(&client, delay, &Until::by(shared, deadline)).await?;
        let lease = granted.lease();
        let mut delayed = Put::new(self.claim.keys.key(Part::Delay, &self.claim.id.0), "");
        delayed.lease = PutLease::Attach(lease);
        let command = Command::Txn(Txn {
            compares: vec![self.claim.is_ours()],
            success: vec![Op::Put(delayed), Op::delete(self.claim.key())],
            failure: vec![],
        });
        // What is not carried out is given back by whoever hears of that.
        let (reply, outcome) = self.settling();
        shared.insist_admitted(command, reply).map_err(Error::from)?;
        self.open = false;
        // It ends by itself.
        granted.keep();
        let answer = self.until(deadline, outcome).await;
        let is_delayed = match &answer {
            Ok(reply) => reply.succeeded,
            Err(error) => error.effect() != Effect::NotApplied,
        };
        if !is_delayed {
            shared.insist(Command::Revoke(lease), ReplyTo::Nobody);
        }
        match answer {
            Ok(reply) if reply.succeeded => Ok(()),
            Ok(_) => Err(QueueError::NotOurs),
            // The delay was shorter than the way to the log.
            Err(Error::Rejected(Rejection::LeaseNotFound(id))) if id == lease => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn settling(&self) -> (ReplyTo<Reply>, oneshot::Receiver<CallResult<Reply>>) {
        let (sender, outcome) = oneshot::channel();
        (self.settling_into(sender), outcome)
    }

    /// Hears of the end of an acknowledgement: if it was not carried out, nobody else will end the claim.
    fn settling_into(&self, sender: oneshot::Sender<CallResult<Reply>>) -> ReplyTo<Reply> {
        let claim = self.claim.clone();
        ReplyTo::Call(Box::new(move |outcome| {
            if let Err(error) = &outcome
                && !matches!(error, CallError::Stopped { .. })
                && !claim.is_left_to_its_lease()
            {
                claim.give_back(ReplyTo::Nobody);
            }
            // A receiver that was dropped is a caller that went away.
            waking(|| drop(sender.send(outcome)));
        }))
    }

    async fn until(
        &self,
        deadline: crate::model::Moment,
        outcome: oneshot::Receiver<CallResult<Reply>>,
    ) -> Result<TxnReply, Error> {
        let late = Error::Deadline { effect: Effect::Unknown };
        tokio::select! {
            biased;
            outcome = outcome => match outcome {
                Ok(Ok(Reply::Txn(reply))) => Ok(reply),
                Ok(Ok(other)) => Err(Error::AnswerLost { revision: other.revision() }),
                Ok(Err(error)) => Err(error.into()),
                Err(_) => Err(late),
            },
            () = self.claim.session.shared().sleep_until(deadline) => Err(late),
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if self.open && !self.claim.is_left_to_its_lease() {
            self.claim.give_back(ReplyTo::Nobody);
        }
    }
}

impl std::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delivery")
            .field("id", &self.claim.id)
            .field("attempt", &self.attempt)
            .field("taken_at", &self.claim.since)
            .finish_non_exhaustive()
    }
}
