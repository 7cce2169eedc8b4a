//! How much a command may make the state grow. What may grow it is refused where the quota is reached or
//! a disk is full; what cannot, and what makes it smaller, always goes on, so that there is a way back.

use crate::machine::{BOUND_KEY_BYTES, LEASE_BYTES};
use crate::model::{Command, Op, Put, PutLease, PutValue, Txn};

/// What a row counts for beside its key and its value, in bytes.
const ROW_BYTES: u64 = 128;

/// By how many bytes a command may make the state grow, about; `None` if it is none of those that are
/// there to make it grow. A deletion leaves its mark in history, and yet it is the way back.
pub(crate) fn growth(command: &Command) -> Option<u64> {
    match command.deed() {
        Command::Put(put) => Some(of_put(put)),
        Command::Txn(txn) => of_txn(txn),
        Command::Grant { session, .. } => {
            Some(LEASE_BYTES + session.as_ref().map_or(0, |session| session.label.len() as u64))
        }
        Command::Delete(_)
        | Command::Compact(_)
        | Command::Revoke(_)
        | Command::Announce(_)
        | Command::Move { .. }
        | Command::Raise(_)
        | Command::Access(_)
        | Command::Alarm(_)
        | Command::As(..) => None,
    }
}

fn of_put(put: &Put) -> u64 {
    let value = match &put.value {
        PutValue::Set(value) => value.len() as u64,
        // As long as it was: a guess is as good as a search.
        PutValue::Keep => 0,
    };
    let key = put.key.len() as u64;
    let bound = match put.lease {
        PutLease::Attach(_) => BOUND_KEY_BYTES + key,
        PutLease::None | PutLease::Keep => 0,
    };
    ROW_BYTES + key + value + bound
}

/// The branch that grows more; which one it will be is not known yet.
fn of_txn(txn: &Txn) -> Option<u64> {
    let branch = |ops: &[Op]| {
        let each = ops.iter().filter_map(|op| match op {
            Op::Put(put) => Some(of_put(put)),
            Op::Txn(nested) => of_txn(nested),
            Op::Range(_) | Op::Delete(_) => None,
        });
        each.fold(None, |sum: Option<u64>, more| Some(sum.unwrap_or(0).saturating_add(more)))
    };
    branch(&txn.success).max(branch(&txn.failure))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Compare, Delete, LeaseId, Revision, SessionInfo};
    use std::time::Duration;

    #[test]
    fn only_puts_and_grants_grow_the_state() {
        let txn = |success: Vec<Op>, failure: Vec<Op>| {
            Command::Txn(Txn { compares: vec![Compare::exists("k")], success, failure })
        };
        let nested = || Op::Txn(Txn { success: vec![Op::put("kk", "vv")], ..Txn::default() });
        let session = SessionInfo { label: "abc".to_owned(), own: true };
        let grant = |session| Command::Grant { id: None, ttl: Duration::from_secs(1), session };
        let mut bound = Put::new("k", "value");
        bound.lease = PutLease::Attach(LeaseId::new(7).unwrap());
        let cases = [
            (Command::Put(Put::new("k", "value")), Some(ROW_BYTES + 6)),
            (Command::Put(bound), Some(ROW_BYTES + BOUND_KEY_BYTES + 7)),
            (Command::Delete(Delete::new("k")), None),
            (Command::Compact(Revision(7)), None),
            (Command::Revoke(LeaseId::new(7).unwrap()), None),
            (grant(None), Some(LEASE_BYTES)),
            (grant(Some(session)), Some(LEASE_BYTES + 3)),
            (txn(vec![Op::delete("a"), Op::get("b")], vec![]), None),
            (txn(vec![Op::put("a", "1")], vec![]), Some(ROW_BYTES + 2)),
            (txn(vec![], vec![Op::delete("a"), Op::put("a", "1")]), Some(ROW_BYTES + 2)),
            (
                txn(vec![Op::put("a", "1"), nested()], vec![Op::put("a", "123")]),
                Some(2 * ROW_BYTES + 6),
            ),
        ];
        for (command, expected) in cases {
            assert_eq!(growth(&command), expected, "{command:?}");
        }
    }
}
