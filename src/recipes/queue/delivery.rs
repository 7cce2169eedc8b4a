//! [`Delivery`]: a taken item of a queue.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::api::{Effect, Error, Granted, Session};
use crate::model::{
    Command, Compare, DecodeError, KeyValue, Limits, Moment, Op, Put, Rejection, Reply, Revision,
    Txn, TxnReply, TxnResult, decode_parse, decode_text,
};
use crate::node::{CallError, CallResult, ReplyTo, SessionEndReason};
use crate::recipes::call::Until;
use crate::recipes::{LostReason, Token};
use crate::watch::{WatchError, waking};

use super::{DeadLetter, ItemId, KeyPart, QueueError, QueueKeys};

/// The claim of one delivery of an item.
#[derive(Clone, Debug)]
pub(super) struct DeliveryClaim {
    pub(super) session: Session,
    pub(super) keys: QueueKeys,
    pub(super) id: ItemId,
    /// Create revision of the claim.
    pub(super) since: Revision,
}

impl DeliveryClaim {
    pub(super) fn key(&self) -> Bytes {
        self.keys.key(KeyPart::Claim, &self.id.0)
    }

    pub(super) fn item_key(&self) -> Bytes {
        self.keys.key(KeyPart::Item, &self.id.0)
    }

    /// Key of the reason for which an item of a dead-letter queue is there.
    pub(super) fn reason_key(&self) -> Bytes {
        self.keys.key(KeyPart::Reason, &self.id.0)
    }

    /// Returns the operations that acknowledge the item.
    fn done(&self) -> [Op; 2] {
        [Op::delete(self.item_key()), Op::delete(self.key())]
    }

    fn is_claimed(&self) -> Compare {
        Compare::create_revision(self.key()).eq(self.since)
    }

    /// Reports whether the session was lost. The claim is then deleted with the lease, after the
    /// lock delay.
    fn is_left_to_its_lease(&self) -> bool {
        self.session.end() == Some(SessionEndReason::NotRenewed)
    }

    /// Releases the item in the background, unless its lease does.
    fn release(&self) {
        if !self.is_left_to_its_lease() {
            self.give_back(ReplyTo::Discard);
        }
    }

    /// Releases the item, retrying until it succeeds.
    pub(super) fn give_back(&self, reply: ReplyTo<Reply>) {
        let mut txn = Txn::if_all([self.is_claimed()], [Op::delete(self.key())]);
        mutant!(B11, txn.success = self.done().into());
        self.session.shared().propose_until_applied(Command::Txn(txn), reply);
    }
}

/// A taken item that must be acknowledged. Until the acknowledgement the item is claimed by this
/// taker's session, and no other taker gets it. Dropping the delivery releases the item in the
/// background.
///
/// - While the session lives, no other taker gets the item, however long the work takes.
/// - If this process crashes, or is partitioned or paused for longer than the session's TTL, the
///   session ends and another taker gets the item. For a while both takers may work on the item. At
///   most one of the two takers can acknowledge the item. With [`Delivery::ack_with`] the effects
///   of the work are applied together with the acknowledgement. [`Delivery::lost`] reports early
///   that an acknowledgement is no longer possible.
/// - An item that was not acknowledged is delivered again, so delivery is at-least-once. Processing
///   is exactly-once if all effects of the work are in [`Delivery::ack_with`], or in a transaction
///   under a lock with [`GuardTxn::ack`](crate::lock::GuardTxn::ack).
///
/// The following example takes an item, acquires a lock and works. The taker then writes the
/// result, acknowledges the item and releases the lock in one log entry. If the item does not
/// belong to this taker any more, or the lock is lost, none of these changes is applied:
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
/// For effects outside the store, use [`Delivery::token`] as a fencing token.
#[must_use = "the item is released when this is dropped"]
pub struct Delivery {
    claim: DeliveryClaim,
    value: Bytes,
    attempt: u64,
    priority: i16,
    put_at: Revision,
    dead_letter: Option<DeadLetter>,
    /// Limit of the taker, [`QueueTaker::attempts_max`](super::QueueTaker::attempts_max).
    pub(super) attempts_max: Option<u64>,
    /// Whether the item is neither acknowledged nor released yet.
    open: bool,
}

impl Delivery {
    pub(super) fn new(
        claim: DeliveryClaim,
        item: KeyValue,
        dead_letter: Option<DeadLetter>,
        attempts_max: Option<u64>,
    ) -> Self {
        let priority = super::index::priority(&claim.id.0);
        let (attempt, put_at) = (item.version - 1, item.create_revision);
        let value = item.value;
        Self { claim, value, attempt, priority, put_at, dead_letter, attempts_max, open: true }
    }

    /// Key of the item.
    pub(in crate::recipes) fn key(&self) -> Bytes {
        self.claim.item_key()
    }

    /// If this is an item of a dead-letter queue, returns why it is there. Returns `None` for other
    /// items, and for items that an older version of Bowline moved there.
    pub fn as_dead_letter(&self) -> Option<&DeadLetter> {
        self.dead_letter.as_ref()
    }

    /// Moves the item to the dead-letter queue
    /// ([`Queue::dead_letters`](super::Queue::dead_letters)) at once, because another attempt would
    /// fail as well. The reason and the number of attempts are kept with it; the reason is cut to
    /// [`DeadLetter::REASON_BYTES_MAX`]. Once this future has been polled, the item is moved even if
    /// the future is dropped.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let jobs = node.session().block()?.queue("jobs");
    /// jobs.put("resize 1.txt").block()?;
    /// jobs.take().block()?.dead_letter("not an image").block()?;
    /// let dead = jobs.dead_letters().items().block()?.remove(0);
    /// let letter = dead.dead_letter.unwrap();
    /// assert_eq!((letter.attempts, &*letter.reason), (1, "not an image"));
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Like [`Delivery::ack_with`].
    #[doc(alias = "reject", alias = "bury")]
    pub async fn dead_letter(self, reason: impl Into<String>) -> Result<(), QueueError> {
        let letter = DeadLetter::new(self.attempt, reason);
        let ops = letter.put(&self.claim.keys, &self.claim.id.0, self.value.clone());
        self.ack_with(ops).await.map(drop)
    }

    /// Returns the value of the item.
    pub fn value(&self) -> &Bytes {
        &self.value
    }

    /// Returns the value of the item as text.
    ///
    /// # Errors
    /// If the value is not UTF-8 text, returns an error with the key and the value of the item.
    pub fn text(&self) -> Result<&str, DecodeError> {
        decode_text(&self.claim.item_key(), &self.value)
    }

    /// Parses the value of the item, which must be text, for example a decimal number.
    ///
    /// # Errors
    /// If the value is not UTF-8 text or cannot be parsed, returns an error with the key and the
    /// value of the item.
    pub fn parse<T>(&self) -> Result<T, DecodeError>
    where
        T: FromStr<Err: Display>,
    {
        decode_parse(&self.claim.item_key(), &self.value)
    }

    /// Returns the id of the item.
    pub fn id(&self) -> &ItemId {
        &self.claim.id
    }

    /// Returns how often the item has been taken, including this time: 1 for the first delivery.
    /// Deliveries that did not reach a taker, because of a crash or a dropped future, count as
    /// well.
    pub fn attempt(&self) -> u64 {
        self.attempt
    }

    /// Returns the priority of the item.
    pub fn priority(&self) -> i16 {
        self.priority
    }

    /// Returns the revision at which the item was put.
    pub fn put_at(&self) -> Revision {
        self.put_at
    }

    /// Returns the fencing token of this delivery, which is higher than that of every earlier
    /// delivery of this item. Use the token for effects outside the store: a
    /// [`Fence`](crate::lock::Fence) per item rejects earlier takers of that item. Tokens of
    /// different items, or of an item and a lock, cannot be compared.
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

    /// Returns the revision at which the item was taken. [`Delivery::token`] returns this revision
    /// as a fencing token.
    pub fn taken_at(&self) -> Revision {
        self.claim.since
    }

    /// Returns the condition that the item still belongs to this taker, for use in your own
    /// transaction.
    pub fn still_claimed(&self) -> Compare {
        self.claim.is_claimed()
    }

    /// Reports whether the item still belongs to this taker, as far as this node knows: the session
    /// is valid and the claim exists.
    pub fn is_claimed(&self) -> bool {
        let shared = self.claim.session.shared();
        let row = || shared.reader.get(&self.claim.key()).0;
        self.claim.session.end().is_none()
            && row().is_some_and(|row| row.create_revision == self.claim.since)
    }

    /// Waits until the item no longer belongs to this taker, and returns the reason. Use
    /// this method to stop work that can no longer be acknowledged.
    pub async fn lost(&self) -> LostReason {
        let session = &self.claim.session;
        let client = session.client();
        loop {
            if let Some(end) = session.end() {
                return LostReason::ended(end, session.shared());
            }
            let watch = client.watch(self.claim.key()).begin();
            if !self.is_claimed() && session.end().is_none() {
                return LostReason::KeyDeleted;
            }
            let changed = async {
                match watch {
                    Ok(mut watch) => match watch.next().await {
                        // The history was compacted: check again.
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

    /// Acknowledges the item, which deletes it. Once this future has been polled, the item is
    /// acknowledged even if the future is dropped.
    ///
    /// # Errors
    /// - [`QueueError::ClaimLost`]: the session had ended before. Another taker has the item, or will
    ///   get it.
    /// - [`QueueError::Store`] with [`Error::Deadline`]: the deletion was not confirmed in time.
    ///   The node keeps retrying in the background.
    pub async fn ack(self) -> Result<(), QueueError> {
        self.ack_with(std::iter::empty::<Op>()).await.map(drop)
    }

    /// Acknowledges the item and applies `ops` in one transaction, if the item still belongs to
    /// this taker. So `ops` are applied once, however often the item is delivered. Returns the
    /// results of the operations.
    ///
    /// No client [prefix](crate::Client::with_prefix) is added to the keys. To put into another
    /// queue, see [`Queue::put_op`](super::Queue::put_op). Locks of this taker are not checked; for
    /// work under a lock, use [`GuardTxn::ack`](crate::lock::GuardTxn::ack). Once this future has
    /// been polled, the transaction is carried out even if the future is dropped.
    ///
    /// # Errors
    /// - [`QueueError::ClaimLost`]: the item no longer belongs to this taker. Nothing was
    ///   changed.
    /// - [`QueueError::Store`]: [`Error::effect`] states whether anything was changed. If nothing
    ///   was changed, the item is released. After [`Error::Deadline`] the node keeps trying, and
    ///   releases the item if the transaction fails.
    pub async fn ack_with<O: Into<Op>>(
        mut self,
        ops: impl IntoIterator<Item = O>,
    ) -> Result<TxnReply, QueueError> {
        let success = ops.into_iter().map(Into::into).collect();
        let reply = self.acknowledge(Txn { success, ..Txn::default() }).await?;
        Ok(reply.expect("there are no compares"))
    }

    /// Acknowledges the item and applies the operations of `effects`, like [`Delivery::ack_with`].
    /// Returns `None` if a compare of `effects` does not hold. The delivery then stays open, and
    /// also if the transaction was certainly not applied, for example because it is too large or a
    /// lease does not exist.
    pub(super) async fn acknowledge(
        &mut self,
        mut effects: Txn,
    ) -> Result<Option<TxnReply>, QueueError> {
        let acknowledges_only = effects == Txn::default();
        let conditions = std::mem::take(&mut effects.compares);
        let mut txn = Txn::if_all([self.claim.is_claimed()], self.done());
        mutant!(B10, txn.compares.clear());
        if !conditions.is_empty() {
            // This tells a condition that does not hold from a lost claim.
            let is_claimed = vec![self.claim.is_claimed()];
            txn.failure.push(Txn { compares: is_claimed, ..Txn::default() }.into());
        }
        txn.compares.extend(conditions);
        if !acknowledges_only {
            txn.success.push(effects.into());
        }
        let session = self.claim.session.clone();
        let shared = session.shared();
        let deadline = shared.deadline(None);
        let command = Command::Txn(txn);
        let outcome = if acknowledges_only {
            let (reply, outcome) = self.settling();
            shared.propose_until_applied(command, reply);
            outcome
        } else {
            // If the request is not admitted, nothing is in flight, and dropping the delivery
            // releases the item.
            self.propose(&command, deadline).await?
        };
        self.open = false;
        let mut reply = self.until(deadline, outcome).await?;
        if has_failed_condition(&reply) {
            return Ok(None);
        }
        match reply.results.pop() {
            _ if !reply.succeeded => Err(QueueError::ClaimLost),
            Some(TxnResult::Txn(inner)) if !acknowledges_only => Ok(Some(inner)),
            _ => Ok(Some(TxnReply { results: vec![], ..reply })),
        }
    }

    /// Reports whether the item is neither acknowledged nor released yet.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Returns a delivery of the same item that neither acknowledges nor releases it when it is
    /// dropped.
    pub(super) fn view(&self) -> Self {
        Self {
            claim: self.claim.clone(),
            value: self.value.clone(),
            dead_letter: self.dead_letter.clone(),
            open: false,
            ..*self
        }
    }

    /// Returns the operations that acknowledge the item, to be applied if it still belongs to this
    /// taker.
    pub(in crate::recipes) fn done(&self) -> Vec<Op> {
        let mut ops = Vec::from(self.claim.done());
        ops.extend(self.dead_letter.as_ref().map(|_| Op::delete(self.claim.reason_key())));
        ops
    }

    /// Records that the item was acknowledged and must not be released.
    pub(in crate::recipes) fn settled(mut self) {
        self.open = false;
    }

    /// Releases the item, which is then available at once at its old position. This delivery counts
    /// as an attempt. Waits until the release is durable. Dropping the delivery releases the item
    /// in the background.
    ///
    /// # Errors
    /// - [`QueueError::ClaimLost`]: the item did not belong to this taker any more. Nothing was
    ///   changed.
    /// - [`QueueError::Store`] with [`Error::Deadline`]: the release was not confirmed in time. The
    ///   node keeps trying.
    pub async fn nack(mut self) -> Result<(), QueueError> {
        if self.claim.is_left_to_its_lease() {
            self.open = false;
            return Err(QueueError::ClaimLost);
        }
        let (reply, outcome) = self.settling();
        self.claim.give_back(reply);
        self.open = false;
        let deadline = self.claim.session.shared().deadline(None);
        match self.until(deadline, outcome).await?.succeeded {
            true => Ok(()),
            false => Err(QueueError::ClaimLost),
        }
    }

    /// Releases the item like [`Delivery::nack`], but with a delay: no taker gets the item before
    /// `delay` has passed. The delay is rounded up to whole milliseconds, and counted like
    /// [`PutItem::delay`](super::PutItem::delay). The item keeps its position.
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
    /// - [`QueueError::ClaimLost`]: the item did not belong to this taker any more. Nothing was
    ///   changed.
    /// - [`QueueError::Store`]: if nothing was changed, for example for lack of space, the item is
    ///   released without delay. After [`Error::Deadline`] the item is released with or without the
    ///   delay.
    pub async fn nack_after(mut self, delay: Duration) -> Result<(), QueueError> {
        // Round up to whole milliseconds.
        let millis = delay.as_nanos().div_ceil(1_000_000);
        let delay = Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
        let delay = delay.min(Limits::LEASE_TTL_MAX);
        if delay.is_zero() || self.claim.is_left_to_its_lease() {
            return self.nack().await;
        }
        let session = self.claim.session.clone();
        let (shared, deadline) = (session.shared(), session.shared().deadline(None));
        let client = session.client();
        // If this future is dropped before the delay is attached to the lease, the lease is
        // revoked.
        let granted = Granted::of(&client, delay, &Until::by(shared, deadline)).await?;
        let lease = granted.lease();
        let delay_key = self.claim.keys.key(KeyPart::Delay, &self.claim.id.0);
        let delayed = Put::new(delay_key, "").lease(lease);
        let ops = [Op::Put(delayed), Op::delete(self.claim.key())];
        let command = Command::Txn(Txn::if_all([self.claim.is_claimed()], ops));
        let outcome = self.propose(&command, deadline).await?;
        self.open = false;
        // The transaction may now use the lease, so do not revoke it any more. The lease expires by
        // itself.
        granted.keep();
        let answer = self.until(deadline, outcome).await;
        let is_delayed = match &answer {
            Ok(reply) => reply.succeeded,
            Err(error) => error.effect() != Effect::NotApplied,
        };
        if !is_delayed {
            shared.propose_until_applied(Command::Revoke(lease), ReplyTo::Discard);
        }
        match answer {
            Ok(reply) if reply.succeeded => Ok(()),
            Ok(_) => Err(QueueError::ClaimLost),
            // The lease expired before the transaction was applied, so the delay has ended.
            Err(Error::Rejected(Rejection::LeaseNotFound(id))) if id == lease => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the handler of the outcome of a command that settles the item, and its receiver. If
    /// the command may have left the claim in place, the claim goes to the receiver. If there is none
    /// any more, the claim is released at once, because no other code would.
    fn settling(&self) -> (ReplyTo<Reply>, oneshot::Receiver<Settled>) {
        let (sender, receiver) = oneshot::channel();
        let claim = self.claim.clone();
        let reply = ReplyTo::Call(Box::new(move |outcome| {
            let is_kept = match &outcome {
                Ok(Reply::Txn(reply)) => has_failed_condition(reply),
                Err(CallError::Stopped { .. }) => false,
                // Without its reply, an acknowledgement may have had a condition that did not hold.
                Ok(_) | Err(_) => true,
            };
            let settled = Settled { outcome, kept: is_kept.then(|| KeptClaim(Some(claim))) };
            waking(|| drop(sender.send(settled)));
        }));
        (reply, receiver)
    }

    /// Proposes a command that settles the item. Retries until the node admits the command or the
    /// deadline has passed.
    async fn propose(
        &self,
        command: &Command,
        deadline: Moment,
    ) -> Result<oneshot::Receiver<Settled>, Error> {
        let shared = self.claim.session.shared();
        loop {
            let (reply, outcome) = self.settling();
            match shared.propose_admitted_until_applied(command.clone(), reply) {
                Ok(()) => return Ok(outcome),
                Err(CallError::Busy) if shared.now() < deadline => {
                    shared.sleep_until(shared.now() + shared.settings.call_deadline / 100).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for the outcome. If the claim may still be in place, the delivery is open again.
    async fn until(
        &mut self,
        deadline: Moment,
        mut outcome: oneshot::Receiver<Settled>,
    ) -> Result<TxnReply, Error> {
        let settled = tokio::select! {
            biased;
            settled = &mut outcome => settled.ok(),
            () = self.claim.session.shared().sleep_until(deadline) => None,
        };
        let Some(Settled { outcome, kept }) = settled else {
            return Err(Error::Deadline { effect: Effect::Unknown });
        };
        if let Some(kept) = kept {
            kept.disarm();
            self.open = true;
        }
        match outcome {
            Ok(Reply::Txn(reply)) => Ok(reply),
            Ok(other) => Err(Error::AnswerLost { revision: other.revision() }),
            Err(error) => Err(error.into()),
        }
    }
}

/// Reports whether an acknowledgement was not applied because of its conditions, although the item
/// belonged to its taker.
fn has_failed_condition(reply: &TxnReply) -> bool {
    let is_claimed = |result: &TxnResult| matches!(result, TxnResult::Txn(txn) if txn.succeeded);
    !reply.succeeded && reply.results.last().is_some_and(is_claimed)
}

/// The outcome of a command that settles an item.
struct Settled {
    outcome: CallResult<Reply>,
    /// The claim, if it may still be in place.
    kept: Option<KeptClaim>,
}

/// A claim that is released when this is dropped.
struct KeptClaim(Option<DeliveryClaim>);

impl KeptClaim {
    /// Lets another owner release the claim.
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for KeptClaim {
    fn drop(&mut self) {
        if let Some(claim) = self.0.take() {
            claim.release();
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if self.open {
            self.claim.release();
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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::{Blocking, Config, Node};

    #[test]
    fn dropped_acknowledgement_with_a_failed_condition_releases_its_item() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
        let jobs = node.session().block().unwrap().queue("jobs");
        jobs.put("x").block().unwrap();
        let mut job = jobs.take().block().unwrap();
        let effects = Txn { compares: vec![Compare::exists("no key")], ..Txn::default() };
        let is_pending = {
            let mut acknowledging = pin!(job.acknowledge(effects));
            let mut context = Context::from_waker(Waker::noop());
            acknowledging.as_mut().poll(&mut context).is_pending()
        };
        assert!(is_pending && !job.is_open());
        let again = jobs.take().deadline(Duration::from_secs(20)).block().unwrap();
        assert_eq!(again.attempt(), 2);
        again.ack().block().unwrap();
        node.shutdown().block();
    }
}
