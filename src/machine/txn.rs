//! What a transaction will do, decided before it does anything.
//!
//! All compares, those of nested transactions too, are judged on the state before the first write;
//! what follows is a path through the branches. Along the path everything that could be refused is
//! looked for: once the first write is made, nothing can fail.

use super::read::resolve;
use super::shared::{Published, Replaced, Snapshot};
use crate::model::{Command, KeyRange, Op, Put, PutLease, PutValue, Rejection, Txn};

/// Which branch a transaction takes, and which ones those nested in that branch take, in order.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Path {
    pub(super) succeeded: bool,
    pub(super) nested: Vec<Path>,
}

/// Why a transaction cannot be executed on the state at hand.
pub(super) enum Unfit {
    /// It is refused.
    Refused(Rejection),
    /// The state is another one by now.
    Replaced,
}

impl From<Rejection> for Unfit {
    fn from(refusal: Rejection) -> Self {
        Unfit::Refused(refusal)
    }
}

impl From<Replaced> for Unfit {
    fn from(_: Replaced) -> Self {
        Unfit::Replaced
    }
}

impl Path {
    pub(super) fn judge(txn: &Txn, before: &Snapshot<'_>) -> Result<Self, Replaced> {
        let mut succeeded = true;
        for compare in &txn.compares {
            if !before.holds(compare)? {
                succeeded = false;
                break;
            }
        }
        let nested = branch(txn, succeeded).iter().filter_map(|op| match op {
            Op::Txn(nested) => Some(Self::judge(nested, before)),
            Op::Range(_) | Op::Put(_) | Op::Delete(_) => None,
        });
        Ok(Self { succeeded, nested: nested.collect::<Result<_, _>>()? })
    }

    /// The operations that will be executed, those of nested transactions in their place.
    pub(super) fn branch<'t>(&self, txn: &'t Txn) -> &'t [Op] {
        branch(txn, self.succeeded)
    }

    /// Refuses what cannot be executed. Of several reasons that of the first operation is said, as in etcd 3.6.
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

/// Whether a put can be executed: its lease exists, and so does what it wants to keep.
pub(super) fn check_put(put: &Put, before: &Snapshot<'_>) -> Result<(), Unfit> {
    check_lease(put, before)?;
    check_kept(put, before)
}

/// The same in a transaction, where etcd looks the other way round.
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

/// All ranges that a transaction may look at, whichever branches it takes; of a put, none.
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

/// Whether a command looks at ranges of keys, not only at single ones.
pub fn is_wide(command: &Command) -> bool {
    match command.deed() {
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

/// Whether a transaction only reads, whichever branches it takes: then no log entry is needed.
pub fn only_reads(txn: &Txn) -> bool {
    txn.success.iter().chain(&txn.failure).all(|op| match op {
        Op::Range(_) => true,
        Op::Put(_) | Op::Delete(_) => false,
        Op::Txn(nested) => only_reads(nested),
    })
}
