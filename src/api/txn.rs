//! Transactions: compares, and one of two lists of operations, applied atomically.

use std::time::Duration;

use crate::model::{Command, Compare, Op, Reply, Txn, TxnReply};

use super::call::{Consistency, deadline_option};
use super::{Client, Error};

/// An atomic transaction: if all compares hold, runs the first list of operations, otherwise the
/// second list. See [`Client::txn`].
///
/// ```
/// # use bowline::{Blocking, Compare, Config, Node, Op};
/// # let dir = tempfile::tempdir().unwrap();
/// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
/// # let kv = node.client();
/// let created = kv
///     .txn()
///     .when(Compare::create_revision("k").eq(0))
///     .then(Op::put("k", "v"))
///     .or_else(Op::get("k"))
///     .commit()
///     .block()?;
/// assert!(created.succeeded);
/// # node.shutdown().block();
/// # Ok::<(), bowline::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a transaction does nothing until it is committed: call .commit()"]
pub struct TxnCall {
    client: Client,
    txn: Txn,
    /// Compares whose keys already include every prefix.
    complete: Vec<Compare>,
    /// Operations of the success branch whose keys already include every prefix.
    complete_ops: Vec<Op>,
    consistency: Consistency,
    deadline: Option<Duration>,
}

impl TxnCall {
    pub(crate) fn new(client: Client) -> Self {
        let consistency = Consistency::Linearizable;
        let (complete, complete_ops) = (Vec::new(), Vec::new());
        Self { client, txn: Txn::default(), complete, complete_ops, consistency, deadline: None }
    }

    /// Adds a compare. The success branch runs only if all compares hold.
    pub fn when(mut self, compare: Compare) -> Self {
        self.txn.compares.push(compare);
        self
    }

    /// Adds several compares. The prefix of the client is added to their keys, as to the keys of
    /// operations. For the compares of a lock, a fence or a queue's item, whose keys are complete,
    /// use [`TxnCall::when_complete`].
    pub fn when_all(mut self, compares: impl IntoIterator<Item = Compare>) -> Self {
        self.txn.compares.extend(compares);
        self
    }

    /// Adds compares whose keys are complete: those of a lock
    /// ([`Hold::still_held`](crate::lock::Hold::still_held)), of a fence
    /// ([`StoredFence::condition`](crate::lock::StoredFence::condition)) or of a queue's item
    /// ([`Delivery::still_claimed`](crate::queue::Delivery::still_claimed)). The
    /// [prefix](Client::with_prefix) of the client is not added to these keys.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, Op};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let app = node.client().with_prefix("app/");
    /// let guard = node.session().block()?.mutex("app/locks/bill").lock().block()?;
    /// let paid = app.txn().when_complete(guard.still_held()).then(Op::put("bill", "paid"));
    /// assert!(paid.commit().block()?.succeeded);
    /// assert_eq!(node.client().get("app/bill").block()?.unwrap().value, "paid");
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Adds operations whose keys are complete to the success branch: those that
    /// [`Queue::put_op`](crate::queue::Queue::put_op) and
    /// [`Typed::put_op`](crate::typed::Typed::put_op) return. The [prefix](Client::with_prefix) of
    /// the client is not added to these keys. The operations run after all others, and so their
    /// results are the last ones.
    pub fn then_complete(mut self, ops: impl IntoIterator<Item = Op>) -> Self {
        self.complete_ops.extend(ops);
        self
    }

    /// Adds an operation to the failure branch, which runs if any compare does not hold.
    pub fn or_else(mut self, op: impl Into<Op>) -> Self {
        self.txn.failure.push(op.into());
        self
    }

    /// Reads the local replica without contacting the leader. This option has an effect only on
    /// transactions that write nothing.
    pub fn local(mut self) -> Self {
        self.consistency = Consistency::Local;
        self
    }

    deadline_option!();

    /// Runs the transaction. A transaction that writes nothing in either branch is a linearizable
    /// read and is not appended to the log.
    ///
    /// # Errors
    /// See [`Error`]. If any operation is rejected, no operation is applied.
    pub async fn commit(self) -> Result<TxnReply, Error> {
        let Self { client, txn, complete, complete_ops, consistency, deadline: timeout } = self;
        let mut txn = client.scope.txn(txn);
        txn.compares.extend(complete);
        let scoped_ops = txn.success.len();
        txn.success.extend(complete_ops);
        let command = Command::Txn(txn);
        let mut reply = match &command {
            Command::Txn(txn) if !txn.writes() => {
                client.shared.settings.limits.check(&command)?;
                client.may_do(&command)?;
                client.wait_until_current(consistency, client.shared.deadline(timeout)).await?;
                let reply = client.shared.read_txn(txn)?;
                client.may_do(&command)?;
                reply
            }
            _ => match client.propose(command, timeout).await? {
                Reply::Txn(reply) => reply,
                other => unreachable!("unexpected reply to a transaction: {other:?}"),
            },
        };
        let of_complete = match reply.succeeded {
            true => reply.results.split_off(scoped_ops),
            false => Vec::new(),
        };
        let mut reply = client.scope.strip_txn(reply);
        reply.results.extend(of_complete);
        Ok(reply)
    }
}
