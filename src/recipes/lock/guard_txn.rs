//! [`GuardTxn`]: transactions that are applied only while a lock is held.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error as ThisError;

use crate::api::{Client, Effect, Error, Scope, deadline_option};
use crate::model::{Compare, DecodeError, IntoBytes, Op, Put, Reply, Txn, TxnReply, TxnResult};
use crate::node::{CallError, CallResult, ReplyTo};

use super::core::bound::{BoundKey, Load};
use super::core::holding::Holding;
use super::hold::Hold;
use crate::recipes::lock::core::error::LostReason;
use crate::recipes::queue::Delivery;

/// Error of a guarded transaction.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum GuardError {
    /// The lock is not held any more. Nothing was changed.
    #[error("not applied: the lock is not held any more")]
    NotHeld,
    /// A queue item that the transaction acknowledges ([`GuardTxn::ack`]) does not belong to this
    /// taker any more. Nothing was changed, except that [`GuardTxn::commit_and_release`] has
    /// released the lock.
    #[error("not applied: the item no longer belongs to this taker")]
    ClaimLost,
    /// The guard passed to [`GuardTxn::commit_and_release`] and the transaction belong to different
    /// holds. Nothing was changed, except that the guard was dropped and its lock released. The
    /// hold of the transaction is not affected.
    #[error("not applied: the transaction belongs to another guard than the one to release")]
    ForeignGuard,
    /// A leader's value begins with the prefix that is reserved for Bowline's own entries. Nothing
    /// was changed.
    #[error("not applied: a leader's value must not begin with \"bowline:1 \"")]
    ReservedValue,
    /// Error of the store.
    #[error(transparent)]
    Store(#[from] Error),
}

impl From<DecodeError> for GuardError {
    fn from(error: DecodeError) -> Self {
        GuardError::Store(error.into())
    }
}

impl GuardError {
    /// Returns whether the transaction has changed anything.
    pub fn effect(&self) -> Effect {
        match self {
            GuardError::NotHeld
            | GuardError::ClaimLost
            | GuardError::ForeignGuard
            | GuardError::ReservedValue => Effect::NotApplied,
            GuardError::Store(error) => error.effect(),
        }
    }

    /// Reports whether the same transaction may succeed later under the same guard, for example
    /// because the cluster had no quorum. After [`GuardTxn::commit_and_release`] there is no guard:
    /// the lock was released regardless of the outcome, and must be acquired again.
    pub fn is_transient(&self) -> bool {
        matches!(self, GuardError::Store(error) if error.is_transient())
    }
}

/// A transaction under a lock; see [`Hold::txn`].
#[must_use = "a transaction does nothing until it is committed: call .commit() or .commit_and_release(guard)"]
pub struct GuardTxn {
    client: Client,
    /// The prefix of the caller's keys.
    scope: Scope,
    holding: Holding,
    txn: Txn,
    /// Compares whose keys are complete.
    complete: Vec<Compare>,
    bound: Vec<BoundKey>,
    items: Items,
    /// Operations that release the lock in the same entry, if requested.
    leaving: Vec<Op>,
    deadline: Option<Duration>,
}

/// The items that a transaction acknowledges. Items that it does not acknowledge are released when
/// they are dropped.
#[derive(Default)]
struct Items {
    deliveries: Vec<Delivery>,
}

impl Items {
    /// Wraps the transaction with the condition that all items still belong to their takers.
    fn around(&self, mut txn: Txn) -> Txn {
        if self.deliveries.is_empty() {
            return txn;
        }
        // Append these operations after the caller's own, so that the results of the caller's
        // operations keep their indices.
        txn.success.extend(self.deliveries.iter().flat_map(Delivery::done));
        let compares: Vec<Compare> = self.deliveries.iter().map(Delivery::still_claimed).collect();
        Txn::if_all(compares, [Op::Txn(txn)])
    }

    /// Returns the reply of the inner transaction, or `None` if an item belonged to another taker.
    fn inside(is_any: bool, reply: &TxnReply) -> Option<&TxnReply> {
        match reply.results.last() {
            _ if !is_any => Some(reply),
            Some(TxnResult::Txn(inner)) if reply.succeeded => Some(inner),
            _ => None,
        }
    }

    /// Handles the outcome. Items that are not known to be acknowledged are released. If the
    /// acknowledgement is applied later, the release has no effect.
    fn settle(self, is_done: bool) {
        if is_done {
            self.deliveries.into_iter().for_each(Delivery::settled);
        }
    }
}

impl Hold {
    /// Starts a guarded transaction, which is applied only if this guard is still the holder. The
    /// store checks this condition, so a holder that has lost the lock without noticing changes
    /// nothing.
    ///
    /// No [prefix](Client::with_prefix) is added to the keys, because sessions have no prefix. For
    /// a transaction on the keys of a client with a prefix, use [`Hold::txn_for`].
    ///
    /// The guard conditions count towards [`Limits::txn_ops_max`](crate::Limits::txn_ops_max): two
    /// for each key of the hold, and a third for a writer. With the default limit of 128
    /// operations, 126 remain for a mutex, reader, permit or leader, 125 for a writer, and 68 for
    /// 30 locks at once. [`GuardTxn::ack`] uses three operations for each item.
    pub fn txn(&self) -> GuardTxn {
        self.txn_for(&self.holding().session.client())
    }

    /// Starts a guarded transaction like [`Hold::txn`], on the keys of `client`. The
    /// [prefix](Client::with_prefix) of `client` is added to the keys of all operations and
    /// compares, also to those of [`GuardTxn::then_while_held`]. It is removed from the keys in the
    /// reply. The names of the lock and of acknowledged items stay complete. Only the prefix of
    /// `client` counts.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, Op};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let app = node.client().with_prefix("app/");
    /// let leadership = node.session().block()?.election("app/leader").campaign("n1").block()?;
    /// leadership.txn_for(&app).then(Op::put("report", "monday")).commit().block()?;
    /// assert_eq!(app.get("report").block()?.unwrap().value, "monday");
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn txn_for(&self, client: &Client) -> GuardTxn {
        GuardTxn::new(self.holding().clone(), client)
    }
}

impl GuardTxn {
    /// Creates an empty transaction under a hold, on the keys of a client.
    fn new(holding: Holding, client: &Client) -> Self {
        Self {
            client: holding.session.client(),
            scope: client.scope.clone(),
            holding,
            txn: Txn::default(),
            complete: Vec::new(),
            bound: Vec::new(),
            items: Items::default(),
            leaving: Vec::new(),
            deadline: None,
        }
    }

    /// Adds a compare. The success branch runs only if all compares hold.
    pub fn when(mut self, compare: Compare) -> Self {
        self.txn.compares.push(compare);
        self
    }

    /// Adds several compares.
    pub fn when_all(mut self, compares: impl IntoIterator<Item = Compare>) -> Self {
        self.txn.compares.extend(compares);
        self
    }

    /// Adds compares whose keys are complete, for example those of another lock
    /// ([`Hold::still_held`]). Differs from [`GuardTxn::when_all`] only in transactions with a
    /// prefix: [`Hold::txn_for`].
    pub fn when_complete(mut self, compares: impl IntoIterator<Item = Compare>) -> Self {
        self.complete.extend(compares);
        self
    }

    /// Adds an operation to the success branch, which runs if all compares hold.
    pub fn then(mut self, op: impl Into<Op>) -> Self {
        self.txn.success.push(op.into());
        self
    }

    /// Adds several operations to the success branch.
    pub fn then_all(mut self, ops: impl IntoIterator<Item = Op>) -> Self {
        self.txn.success.extend(ops);
        self
    }

    /// Adds an operation to the failure branch, which runs if any compare does not hold. If the
    /// lock is lost, neither branch runs.
    pub fn or_else(mut self, op: impl Into<Op>) -> Self {
        self.txn.failure.push(op.into());
        self
    }

    /// Puts a key that lives exactly as long as the hold: the log entry that frees the lock also
    /// deletes the key. Exception: if another client deletes the lock's own key, the attached key
    /// stays until the session ends. A lock with attached keys is not handed off within the node.
    ///
    /// At most 1,000 keys can be attached to one hold. The operations that delete them must fit
    /// into 1.4 MiB. These operations contain each key twice, and its value until the put is
    /// confirmed. Above these limits the call fails with
    /// [`TooManyOps`](crate::Rejection::TooManyOps) or
    /// [`RequestTooLarge`](crate::Rejection::RequestTooLarge), and nothing is changed.
    pub fn then_while_held(mut self, key: impl IntoBytes, value: impl IntoBytes) -> Self {
        let (key, value) = (key.into_bytes(), value.into_bytes());
        // The keys of the transaction get the prefix when it is committed.
        let bound = self.scope.key(key.clone());
        let put = Put::new(key, value.clone()).lease(self.holding.entry.session.lease);
        self.txn.success.push(Op::Put(put));
        self.bound.push(BoundKey { key: bound, value, is_sure: true });
        self
    }

    /// Acknowledges a queue item in the same log entry, if all compares hold. With
    /// [`GuardTxn::commit_and_release`], the result, the release of the lock and the
    /// acknowledgement are one atomic step. If the item no longer belongs to this taker,
    /// nothing is applied, not even the operations of [`GuardTxn::or_else`], and the error is
    /// [`GuardError::ClaimLost`].
    ///
    /// There are other cases in which the item is not acknowledged: the lock is lost, a compare
    /// does not hold, or the transaction is rejected or dropped before it was sent. The item is
    /// then released as if the delivery had been dropped, and is delivered again. If the outcome is
    /// unknown, the item is either acknowledged or released.
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

    deadline_option!();

    /// Runs the transaction.
    ///
    /// # Errors
    /// If the lock is lost, returns [`GuardError::NotHeld`], and nothing was changed. The store decides
    /// this when it applies the transaction. Shortly after a pause of the process, the guard may
    /// report the loss while its lease still exists in the store. The transaction is then applied,
    /// because no other client has acquired the lock.
    pub async fn commit(self) -> Result<TxnReply, GuardError> {
        let scope = self.scope.clone();
        self.run().await.map(|reply| scope.strip_txn(reply))
    }

    /// Runs the transaction and returns its reply with complete keys.
    async fn run(self) -> Result<TxnReply, GuardError> {
        let Self { client, scope, holding, txn, complete, bound, items, leaving, deadline } = self;
        let is_any = !items.deliveries.is_empty();
        let mut txn = scope.txn(txn);
        txn.compares.extend(complete);
        let txn = items.around(txn);
        let mut still_held = holding.still_held();
        mutant!(B27, still_held.clear());
        let Holding { table, entry, waiter, .. } = holding;
        let txn = Txn::if_all(still_held, [Op::Txn(txn)]);
        if leaving.is_empty() && !txn.writes() {
            let call = txn.success.into_iter().fold(client.txn(), crate::api::TxnCall::then);
            let mut call = txn.compares.into_iter().fold(call, crate::api::TxnCall::when);
            if let Some(timeout) = deadline {
                call = call.deadline(timeout);
            }
            let reply = inner_reply(call.commit().await?, is_any);
            // If this task has meanwhile handed the lock off inside the node, do not report that
            // the task still holds the lock.
            return if entry.is_held_by(&waiter) { reply } else { Err(GuardError::NotHeld) };
        }
        // Reserve space for the keys as if the outcome were unknown, because this case needs the
        // most space.
        let binds = Load::of(&uncertain(bound.clone()));
        if !entry.begin_txn(&waiter, binds).map_err(Error::Rejected)? {
            return Err(GuardError::NotHeld);
        }
        let hook = move |outcome: Option<&CallResult<Reply>>| {
            let (is_known, is_done, bound) = known_effects(outcome, is_any, bound);
            table.end_txn(&entry, binds, is_known, bound);
            items.settle(is_done);
        };
        let shared = &client.shared;
        let deadline = shared.deadline(deadline);
        match shared.write_hooked(txn, leaving, deadline, hook).await.map_err(Error::from)? {
            Reply::Txn(reply) => inner_reply(reply, is_any),
            other => unreachable!("unexpected reply to a transaction: {other:?}"),
        }
    }

    /// Runs the transaction and releases the lock in one log entry, so that both happen atomically.
    /// `guard` must be the guard that this transaction was created from. The lock is released even
    /// if a compare does not hold.
    ///
    /// # Errors
    /// - [`GuardError::NotHeld`]: the lock was lost. Nothing was changed.
    /// - [`GuardError::ForeignGuard`]: `guard` is not the guard that this transaction was created
    ///   from.
    ///
    /// After any other error the lock is also released, as soon as possible, even if the
    /// transaction has changed nothing (for example because the node was busy). To retry, acquire
    /// the lock again. To be able to retry under the same guard, call [commit](GuardTxn::commit)
    /// and then [release](crate::Guard::release).
    pub async fn commit_and_release(
        mut self,
        guard: impl Into<Hold>,
    ) -> Result<TxnReply, GuardError> {
        let hold: Hold = guard.into();
        if !Arc::ptr_eq(&hold.holding().waiter, &self.holding.waiter) {
            return Err(GuardError::ForeignGuard);
        }
        if hold.is_lost().is_some() {
            return Err(GuardError::NotHeld);
        }
        // The keys are deleted whether or not the transaction's own compares hold.
        self.leaving = self.holding.grant.keys.iter().cloned().map(Op::delete).collect();
        self.leaving.extend(self.holding.entry.delete_bound());
        // Prevent a handoff, because the key will be deleted.
        if !self.holding.entry.prevent_handoff(&self.holding.waiter) {
            return Err(GuardError::NotHeld);
        }
        let committing = self.commit();
        let mut committing = pin!(committing);
        let mut hold = Some(hold);
        poll_fn(|context| {
            let polled = committing.as_mut().poll(context);
            // The transaction is now proposed. Invalidate the hold for all guards that share it,
            // and release the lock once the transaction has ended.
            if let Some(hold) = hold.take() {
                hold.holding().give_up(LostReason::Released, ReplyTo::Discard);
            }
            polled
        })
        .await
    }
}

/// Returns whether the outcome of a guarded transaction is known, whether its conditions are known
/// to have held, and which keys the transaction has attached or may have attached.
fn known_effects(
    outcome: Option<&CallResult<Reply>>,
    is_any: bool,
    bound: Vec<BoundKey>,
) -> (bool, bool, Vec<BoundKey>) {
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
        )) => (false, false, uncertain(bound)),
        // The transaction was applied, but it is not known which branch ran.
        Some(Ok(_)) => (true, false, uncertain(bound)),
        Some(Err(_)) => (true, false, Vec::new()),
    }
}

/// Marks keys as known to be written, so that their values need not be compared.
fn sure(bound: Vec<BoundKey>) -> Vec<BoundKey> {
    bound.into_iter().map(|bound| BoundKey::of_key(bound.key)).collect()
}

fn uncertain(bound: Vec<BoundKey>) -> Vec<BoundKey> {
    bound.into_iter().map(|bound| BoundKey { is_sure: false, ..bound }).collect()
}

fn inner_reply(reply: TxnReply, is_any: bool) -> Result<TxnReply, GuardError> {
    // The results of the release follow this result.
    match reply.results.into_iter().next() {
        Some(TxnResult::Txn(inner)) if reply.succeeded => {
            Items::inside(is_any, &inner).cloned().ok_or(GuardError::ClaimLost)
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
    use bytes::Bytes;

    use super::*;
    use crate::model::{Rejection, Revision};

    fn reply(succeeded: bool) -> TxnReply {
        TxnReply { revision: Revision(7), succeeded, results: Vec::new() }
    }

    /// A key that may have been attached is kept in the list, so that the release deletes it if it
    /// exists.
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
            let bound = vec![BoundKey { key, value: Bytes::new(), is_sure: true }];
            let (is_known, is_done, kept) = known_effects(outcome.as_ref(), false, bound);
            let kept = kept.first().map(|bound| bound.is_sure);
            assert_eq!((is_known, is_done, kept), expected, "{case}");
        }
    }
}
