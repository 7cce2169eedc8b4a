//! Transactions.

use std::time::Duration;

use crate::model::{Command, Compare, Op, Reply, Txn, TxnReply};

use super::call::Consistency;
use super::{Client, Error};

/// If all compares hold, one list of operations, else the other, as one step; see [`Client::txn`].
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
#[derive(Debug)]
#[must_use = "a transaction does nothing until it is committed: call .commit()"]
pub struct TxnCall {
    client: Client,
    txn: Txn,
    consistency: Consistency,
    deadline: Option<Duration>,
}

impl TxnCall {
    pub(crate) fn new(client: Client) -> Self {
        let consistency = Consistency::Linearizable;
        Self { client, txn: Txn::default(), consistency, deadline: None }
    }

    /// One more condition: all must hold.
    pub fn when(mut self, compare: Compare) -> Self {
        self.txn.compares.push(compare);
        self
    }

    /// Several more conditions: all must hold. Those of a lock
    /// ([`Hold::still_held`](crate::lock::Hold::still_held)), for one.
    pub fn when_all(mut self, compares: impl IntoIterator<Item = Compare>) -> Self {
        self.txn.compares.extend(compares);
        self
    }

    /// One more operation for the case that all conditions hold.
    pub fn then(mut self, op: impl Into<Op>) -> Self {
        self.txn.success.push(op.into());
        self
    }

    /// One more operation for the case that a condition does not hold.
    pub fn or_else(mut self, op: impl Into<Op>) -> Self {
        self.txn.failure.push(op.into());
        self
    }

    /// Reads what this replica has, without asking anybody. Only for transactions that write nothing.
    pub fn local(mut self) -> Self {
        self.consistency = Consistency::Local;
        self
    }

    /// How long the call may take.
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }

    /// Carries it out. A transaction that writes nothing in either case is a read: it does not go
    /// through the log, and is linearizable all the same, even if it has nothing but compares.
    ///
    /// # Errors
    /// See [`Error`]. If any operation is refused, none is carried out.
    pub async fn commit(self) -> Result<TxnReply, Error> {
        let Self { client, txn, consistency, deadline: timeout } = self;
        let command = Command::Txn(client.scope.txn(txn));
        let reply = match &command {
            Command::Txn(txn) if !txn.writes() => {
                client.shared.settings.limits.check(&command)?;
                client.may_do(&command)?;
                client.be_current(consistency, client.shared.deadline(timeout)).await?;
                let reply = client.shared.read_txn(txn)?;
                client.may_do(&command)?;
                reply
            }
            _ => match client.propose(command, timeout).await? {
                Reply::Txn(reply) => reply,
                other => unreachable!("a transaction is answered by {other:?}"),
            },
        };
        Ok(client.scope.strip_txn(reply))
    }
}
