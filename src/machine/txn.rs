//! The plan of a transaction: which branches it will execute. The plan is made and checked before
//! the transaction changes anything.
//!
//! All compares, including those of nested transactions, are evaluated on the state before the
//! first write. The result is the list of branches that will be executed. Every reason to reject an
//! operation of these branches is checked before the first write. So no operation can fail after
//! the first write.

use super::read::resolve;
use super::shared::{Published, Replaced, Snapshot};
use crate::model::{Command, KeyRange, Op, Put, PutLease, PutValue, Rejection, Txn};

/// The branch that a transaction takes, and the paths of the nested transactions in this branch, in
/// order.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct TxnPath {
    pub(super) succeeded: bool,
    pub(super) nested: Vec<TxnPath>,
}

/// The reason why a transaction cannot be executed on the current state.
pub(super) enum Unfit {
    /// The transaction is rejected.
    Refused(Rejection),
    /// The state has been replaced meanwhile.
    Replaced,
}

impl From<Rejection> for Unfit {
    fn from(rejection: Rejection) -> Self {
        Unfit::Refused(rejection)
    }
}

impl From<Replaced> for Unfit {
    fn from(_: Replaced) -> Self {
        Unfit::Replaced
    }
}

impl TxnPath {
    pub(super) fn evaluate(txn: &Txn, before: &Snapshot<'_>) -> Result<Self, Replaced> {
        let mut succeeded = true;
        for compare in &txn.compares {
            if !before.holds(compare)? {
                succeeded = false;
                break;
            }
        }
        let nested = branch(txn, succeeded).iter().filter_map(|op| match op {
            Op::Txn(nested) => Some(Self::evaluate(nested, before)),
            Op::Range(_) | Op::Put(_) | Op::Delete(_) => None,
        });
        Ok(Self { succeeded, nested: nested.collect::<Result<_, _>>()? })
    }

    /// Returns the operations of the branch that the transaction takes.
    pub(super) fn branch<'t>(&self, txn: &'t Txn) -> &'t [Op] {
        branch(txn, self.succeeded)
    }

    /// Rejects a transaction that cannot be executed. If several operations are invalid, reports
    /// the reason of the first one, as etcd 3.6 does.
    pub(super) fn check(
        &self,
        txn: &Txn,
        before: &Snapshot<'_>,
        published: Published,
    ) -> Result<(), Unfit> {
        let mut nested = self.nested.iter();
        for op in self.branch(txn) {
            match op {
                Op::Put(put) => check_inner_put(put, before)?,
                Op::Range(range) => drop(resolve(range.revision, published)?),
                Op::Delete(_) => {}
                Op::Txn(txn) => {
                    let path = nested.next().expect("a path for each nested transaction");
                    path.check(txn, before, published)?;
                }
            }
        }
        Ok(())
    }
}

fn branch(txn: &Txn, succeeded: bool) -> &[Op] {
    if succeeded { &txn.success } else { &txn.failure }
}

/// Checks that a put can be executed: its lease must exist, and if it keeps the current value or
/// lease, the key must exist.
pub(super) fn check_put(put: &Put, before: &Snapshot<'_>) -> Result<(), Unfit> {
    check_lease(put, before)?;
    check_kept(put, before)
}

/// Checks a put inside a transaction. The conditions are those of [`check_put`], but in the
/// opposite order, as in etcd.
fn check_inner_put(put: &Put, before: &Snapshot<'_>) -> Result<(), Unfit> {
    check_kept(put, before)?;
    check_lease(put, before)
}

fn check_lease(put: &Put, before: &Snapshot<'_>) -> Result<(), Unfit> {
    match put.lease {
        PutLease::Attach(lease) if !before.has_lease(lease) => {
            Err(Rejection::LeaseNotFound(lease).into())
        }
        _ => Ok(()),
    }
}

fn check_kept(put: &Put, before: &Snapshot<'_>) -> Result<(), Unfit> {
    let keeps = put.value == PutValue::Keep || put.lease == PutLease::Keep;
    match keeps && before.get(&put.key)?.is_none() {
        true => Err(Rejection::KeyNotFound.into()),
        false => Ok(()),
    }
}

/// Returns all ranges that a transaction may visit, in all its branches. Puts have none.
pub(super) fn ranges(txn: &Txn) -> impl Iterator<Item = &KeyRange> {
    let compared = txn.compares.iter().map(|compare| &compare.range);
    let ops = txn.success.iter().chain(&txn.failure).flat_map(|op| {
        let (own, nested): (Option<&KeyRange>, Option<Box<dyn Iterator<Item = &KeyRange>>>) =
            match op {
                Op::Range(range) => (Some(&range.range), None),
                Op::Delete(delete) => (Some(&delete.range), None),
                Op::Put(_) => (None, None),
                Op::Txn(nested) => (None, Some(Box::new(ranges(nested)))),
            };
        own.into_iter().chain(nested.into_iter().flatten())
    });
    compared.chain(ops)
}

/// Returns whether a command visits ranges of keys, and not only single keys.
pub fn is_wide(command: &Command) -> bool {
    match command.inner() {
        Command::Delete(delete) => delete.range.as_single().is_none(),
        Command::Txn(txn) => ranges(txn).any(|range| range.as_single().is_none()),
        Command::Put(_)
        | Command::Compact(_)
        | Command::Grant { .. }
        | Command::Revoke(_)
        | Command::Announce(_)
        | Command::Move { .. }
        | Command::Raise(_)
        | Command::Access(_)
        | Command::Alarm(_)
        | Command::As(..) => false,
    }
}

/// Returns whether a transaction only reads, in all its branches. A transaction that only reads
/// needs no log entry.
pub fn only_reads(txn: &Txn) -> bool {
    txn.success.iter().chain(&txn.failure).all(|op| match op {
        Op::Range(_) => true,
        Op::Put(_) | Op::Delete(_) => false,
        Op::Txn(nested) => only_reads(nested),
    })
}
