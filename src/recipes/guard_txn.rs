//! Transactions under a hold.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::api::{Client, Effect, Error};
use crate::model::{Compare, Op, Put, PutLease, PutValue, Reply, Txn, TxnReply, TxnResult};
use crate::mutant::{self, Mutant};
use crate::node::{CallError, CallResult, ReplyTo};

use super::error::LostReason;
use super::hold::Hold;
use super::line::Lines;
use super::place::{Bound, Grant, Load, Place, Turn};
use super::queue::Delivery;

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
    /// The guard that was given to [`GuardTxn::commit_and_release`] is of another hold than the transaction. Nothing
    /// was changed, but that this guard is dropped by it: what it held is released. What the transaction is of is
    /// held as before.
    #[error(
        "not applied: the guard that was to be released is of another hold than the transaction"
    )]
    ForeignGuard,
    /// A leader's value that begins as what Bowline writes into other lines. Nothing was changed.
    #[error("a leader's value must not begin with \"bowline:1 \"")]
    ReservedValue,
    /// The store could not, or would not.
    #[error(transparent)]
    Store(#[from] Error),
}

impl GuardError {
    /// Whether the transaction has changed anything.
    pub fn effect(&self) -> Effect {
        match self {
            GuardError::NotHeld
            | GuardError::NotOurs
            | GuardError::ForeignGuard
            | GuardError::ReservedValue => Effect::NotApplied,
            GuardError::Store(error) => error.effect(),
        }
    }

    /// Whether the same transaction may succeed later under the same guard: the cluster had no quorum. After
    /// [`GuardTxn::commit_and_release`] there is no guard: the lock was released, whatever came of the transaction, and
    /// must be taken again.
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
    /// One that does nothing yet, under the hold of these parts.
    pub(super) fn new(
        client: Client,
        (lines, place, turn, grant): (&Arc<Lines>, &Arc<Place>, &Arc<Turn>, &Grant),
    ) -> Self {
        Self {
            client,
            lines: Arc::clone(lines),
            place: Arc::clone(place),
            turn: Arc::clone(turn),
            grant: grant.clone(),
            txn: Txn::default(),
            bound: Vec::new(),
            items: Items::default(),
            leaving: Vec::new(),
            deadline: None,
        }
    }

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
    /// known to be there, must fit into 1.4 MiB. The error is [`TooManyOps`](crate::Rejection::TooManyOps) or
    /// [`RequestTooLarge`](crate::Rejection::RequestTooLarge), and nothing was changed.
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
    /// # use bowline::{Blocking, Config, Node, Op};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let session = node.session().block()?;
    /// let jobs = session.queue("jobs");
    /// jobs.put("pay 7 to ann").block()?;
    ///
    /// let job = jobs.take().block()?;
    /// let guard = session.mutex("accounts/ann").lock().block()?;
    /// let result = Op::put("results/ann", "7 paid"); // the work
    /// guard.txn().then(result).ack(job).commit_and_release(guard).block()?;
    /// assert!(jobs.is_empty().block()?);
    /// # node.shutdown().block();
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
        if !place.begin_txn(&turn, binds).map_err(Error::Rejected)? {
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
    /// [`GuardError::NotHeld`] if the lock was lost: nothing was changed. [`GuardError::ForeignGuard`] if
    /// `guard` is another than the one that this transaction is from. With any other error, also with one that has
    /// changed nothing (too busy, no room), the lock is released as well, as soon as that is possible: what has failed
    /// is begun anew by taking it again. To try again under the same guard, [commit](GuardTxn::commit), and
    /// [release](crate::Guard::release) it then.
    pub async fn commit_and_release(
        mut self,
        guard: impl Into<Hold>,
    ) -> Result<TxnReply, GuardError> {
        let hold: Hold = guard.into();
        if !Arc::ptr_eq(hold.parts().2, &self.turn) {
            return Err(GuardError::ForeignGuard);
        }
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
                hold.give_up(LostReason::Released, ReplyTo::Nobody);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Rejection, Revision};

    fn reply(succeeded: bool) -> TxnReply {
        TxnReply { revision: Revision(7), succeeded, results: Vec::new() }
    }

    /// A key that may have been bound is kept, so that the release deletes it if it is there.
    #[test]
    fn bound_keys_are_kept_unless_they_are_known_to_be_unwritten() {
        let guarded = |held: bool, own: bool| {
            let results = vec![TxnResult::Txn(reply(own))];
            Some(Ok(Reply::Txn(TxnReply { results, ..reply(held) })))
        };
        let deadline = |maybe_applied| Some(Err(CallError::Deadline { maybe_applied }));
        let applied_before = Some(Ok(Reply::AppliedBefore { revision: Revision(7) }));
        let too_many = Rejection::TooManyOps { count: 9, max: 8 };
        let table = [
            ("held", guarded(true, true), (true, true, Some(true))),
            ("held, and a condition failed", guarded(true, false), (true, false, None)),
            ("not held", guarded(false, false), (true, false, None)),
            ("applied, and the reply is lost", applied_before, (true, false, Some(false))),
            ("no reply", None, (false, false, Some(false))),
            ("deadline, perhaps applied", deadline(true), (false, false, Some(false))),
            ("deadline, not applied", deadline(false), (true, false, None)),
            ("rejected", Some(Err(CallError::Rejected(too_many))), (true, false, None)),
        ];
        for (case, outcome, expected) in table {
            let key = Bytes::from_static(b"bound");
            let bound = vec![Bound { key, value: Bytes::new(), is_sure: true }];
            let (is_known, is_done, kept) = what_is_done(outcome.as_ref(), false, bound);
            let kept = kept.first().map(|bound| bound.is_sure);
            assert_eq!((is_known, is_done, kept), expected, "{case}");
        }
    }
}
