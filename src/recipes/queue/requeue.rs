//! Calls of operators for a chosen item: [`Queue::requeue`] moves a dead letter back into its queue,
//! and [`Queue::remove`] deletes an item.

use crate::model::{Compare, Op, TxnResult};
use crate::recipes::call::Call;

use super::{ItemId, KeyPart, Queue, QueueError};

impl Queue {
    /// Moves an item from the dead-letter queue of this queue ([`Queue::dead_letters`]) back into
    /// this queue, for example after the cause of its failures was fixed. Returns whether the item
    /// was moved. A call on the dead-letter queue does the same: `jobs.dead_letters().requeue(&id)`
    /// puts the item into `jobs`. Every queue whose name ends in `/dead` counts as a dead-letter queue.
    ///
    /// The item keeps its id, its value and its priority. It is placed after all items of its
    /// priority, and its next delivery is attempt 1. A delay
    /// ([`Delivery::nack_after`](super::Delivery::nack_after)) that a taker of the dead-letter queue
    /// gave to the item is dropped. The reason is deleted.
    ///
    /// Returns `false`, and changes nothing, if:
    ///
    /// - the dead-letter queue has no item with this id: it was taken and acknowledged, or another
    ///   call has requeued it. Of several concurrent calls for the same item, one moves it;
    /// - a taker of the dead-letter queue has the item;
    /// - this queue itself has an item or a claim with this id. Only programs that write the keys
    ///   of the queue themselves, or use a [`Queue::put_op`] twice, can cause this.
    ///
    /// The move is one transaction, so the item is always in exactly one of the two queues. A call
    /// is applied at most once. After an error with unknown effect, repeat the call: the item is
    /// not duplicated.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let jobs = node.session().block()?.queue("jobs");
    /// for name in ["1.png", "2.png"] {
    ///     jobs.put(name).block()?;
    ///     jobs.take().block()?.dead_letter("disk full").block()?;
    /// }
    /// // An operator chooses one of the dead letters.
    /// let dead = jobs.dead_letters().items().block()?;
    /// let chosen = dead.iter().find(|item| item.value == "2.png").unwrap();
    /// assert!(jobs.requeue(&chosen.id).block()?);
    ///
    /// let job = jobs.take().block()?;
    /// assert_eq!((job.text()?, job.attempt()), ("2.png", 1));
    /// # job.ack().block()?;
    /// assert_eq!(jobs.dead_letters().len().block()?, 1);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - [`QueueError::Full`]: this handle has a [limit](Queue::limit), and the queue has reached
    ///   it. Nothing was changed.
    /// - [`QueueError::EmptyName`]: the name of the queue is empty. Nothing was changed.
    /// - [`QueueError::Store`]: [`QueueError::effect`] states whether the item was moved.
    #[doc(alias = "retry", alias = "redrive")]
    pub fn requeue(&self, id: &ItemId) -> Call<'static, bool, QueueError> {
        let (queue, id) = (self.requeue_target(), id.0.clone());
        Call::new(&self.client, move |until| async move {
            queue.check()?;
            if !ItemId::is_valid(&id) {
                return Ok(false);
            }
            let (here, dead) = (&queue.keys, queue.keys.dead());
            let letter = dead.key(KeyPart::Item, &id);
            // None of these keys may exist: the claim of a taker that has the dead letter, and an
            // item and a claim of this queue with the same id. The holder of such a claim could
            // acknowledge the requeued item.
            let blockers = [
                dead.key(KeyPart::Claim, &id),
                here.key(KeyPart::Item, &id),
                here.key(KeyPart::Claim, &id),
            ];
            loop {
                let keys = std::iter::once(&letter).chain(&blockers);
                let read = keys.fold(queue.client.txn(), |txn, key| txn.then(Op::get(key)));
                let reply = read.deadline(until.left()).commit().await?;
                let mut rows = reply.results.into_iter().map(|result| match result {
                    TxnResult::Range(range) => range.kvs.into_iter().next(),
                    other => unreachable!("unexpected reply to a range: {other:?}"),
                });
                let Some(Some(row)) = rows.next() else { return Ok(false) };
                if rows.any(|blocker| blocker.is_some()) {
                    return Ok(false);
                }
                queue.check_room(1).await?;
                let requeue = queue
                    .client
                    .txn()
                    .when(Compare::mod_revision(letter.clone()).eq(row.mod_revision))
                    .when_all(blockers.iter().cloned().map(Compare::missing))
                    .then(Op::put(here.key(KeyPart::Item, &id), row.value))
                    .then(Op::delete(letter.clone()))
                    .then(Op::delete(dead.key(KeyPart::Delay, &id)))
                    .then(Op::delete(dead.key(KeyPart::Reason, &id)));
                // Another client has changed one of the keys: read them again.
                if requeue.deadline(until.left()).commit().await?.succeeded {
                    return Ok(true);
                }
            }
        })
    }

    /// Deletes an item that no taker has. Returns whether it was deleted. Call it on
    /// [`Queue::dead_letters`] to delete a dead letter with its reason.
    ///
    /// Returns `false`, and changes nothing, if the queue has no item with this id or if a taker has
    /// the item. After an error with unknown effect, repeat the call.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let jobs = node.session().block()?.queue("jobs");
    /// jobs.put("1.png").block()?;
    /// jobs.take().block()?.dead_letter("not an image").block()?;
    /// let dead = jobs.dead_letters();
    /// for item in dead.items().block()? {
    ///     assert!(dead.remove(&item.id).block()?);
    /// }
    /// assert_eq!(dead.len().block()?, 0);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - [`QueueError::EmptyName`]: the name of the queue is empty. Nothing was changed.
    /// - [`QueueError::Store`]: [`QueueError::effect`] states whether the item was deleted.
    #[doc(alias = "delete", alias = "discard", alias = "purge")]
    pub fn remove(&self, id: &ItemId) -> Call<'static, bool, QueueError> {
        let (queue, id) = (self.clone(), id.0.clone());
        Call::new(&self.client, move |until| async move {
            queue.check()?;
            if !ItemId::is_valid(&id) {
                return Ok(false);
            }
            let item = queue.keys.key(KeyPart::Item, &id);
            let remove = queue
                .client
                .txn()
                .when(Compare::exists(item.clone()))
                .when(Compare::missing(queue.keys.key(KeyPart::Claim, &id)))
                .then(Op::delete(item))
                .then(Op::delete(queue.keys.key(KeyPart::Delay, &id)))
                .then(Op::delete(queue.keys.key(KeyPart::Reason, &id)));
            Ok(remove.deadline(until.left()).commit().await?.succeeded)
        })
    }
}
