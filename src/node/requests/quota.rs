//! Estimates by how much a command may make the state grow. When the quota is reached or a disk is
//! full, commands that may make the state grow are rejected. All other commands are accepted, so
//! that an operator can make room.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::machine::{BOUND_KEY_BYTES, LEASE_BYTES};
use crate::model::{
    Command, LogIndex, Op, ProposeRejection, Put, PutLease, PutValue, RequestId, Txn,
};

/// Estimated overhead of a row in bytes, in addition to its key and value.
const ROW_BYTES: u64 = 128;

/// Minimum estimate in bytes for a put that keeps the value. Shorter values in unapplied entries
/// are not recorded.
const KEPT_BYTES_MIN: u64 = 128;

/// Estimates the number of bytes by which a command may make the state grow. Returns `None` for a
/// command that cannot make the state grow. Deletions also return `None`, although they add to the
/// history, because an operator needs deletions to make room. `len_of` returns the length of a
/// key's value, including values in unapplied entries. The length is needed because a put that
/// keeps the value stores another copy of it.
pub(crate) fn growth(command: &Command, len_of: &dyn Fn(&[u8]) -> u64) -> Option<u64> {
    match command.inner() {
        Command::Put(put) => Some(of_put(put, len_of)),
        Command::Txn(txn) => of_txn(txn, len_of),
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

fn of_put(put: &Put, len_of: &dyn Fn(&[u8]) -> u64) -> u64 {
    let value = match &put.value {
        PutValue::Set(value) => value.len() as u64,
        PutValue::Keep => len_of(&put.key).max(KEPT_BYTES_MIN),
    };
    let key = put.key.len() as u64;
    let bound = match put.lease {
        PutLease::Attach(_) => BOUND_KEY_BYTES + key,
        PutLease::None | PutLease::Keep => 0,
    };
    ROW_BYTES + key + value + bound
}

/// Returns the larger growth of the two branches, because it is unknown which branch will run.
fn of_txn(txn: &Txn, len_of: &dyn Fn(&[u8]) -> u64) -> Option<u64> {
    let branch = |ops: &[Op]| {
        let each = ops.iter().filter_map(|op| match op {
            Op::Put(put) => Some(of_put(put, len_of)),
            Op::Txn(nested) => of_txn(nested, len_of),
            Op::Range(_) | Op::Delete(_) => None,
        });
        each.fold(None, |sum: Option<u64>, more| Some(sum.unwrap_or(0).saturating_add(more)))
    };
    branch(&txn.success).max(branch(&txn.failure))
}

/// If the state must not grow by `more` bytes now, returns the reason. `bytes` is the size of the
/// state, including the growth by unapplied requests. `no_space` is set if no disk space is left
/// for growth. Both the node of a caller and the leader decide with this function.
pub(crate) fn rejection(
    no_space: bool,
    bytes: u64,
    more: u64,
    quota: u64,
) -> Option<ProposeRejection> {
    if no_space {
        return Some(ProposeRejection::NoSpace);
    }
    (bytes.saturating_add(more) > quota).then_some(ProposeRejection::QuotaExceeded)
}

/// The requests that a leader has proposed and not applied yet, and the growth that they may cause.
#[derive(Default)]
pub(crate) struct Proposed {
    /// The growth of each request.
    requests: BTreeMap<RequestId, u64>,
    /// The sum of the growth of all requests.
    growth: u64,
    values: Values,
}

impl Proposed {
    /// Returns whether the request is proposed and undecided.
    pub(crate) fn contains(&self, id: &RequestId) -> bool {
        self.requests.contains_key(id)
    }

    /// Returns the estimated growth by all requests, in bytes.
    pub(crate) fn growth(&self) -> u64 {
        self.growth
    }

    pub(crate) fn values(&self) -> &Values {
        &self.values
    }

    /// Records that the entry at `index` holds a request that may make the state grow by `more` bytes.
    pub(crate) fn proposed(
        &mut self,
        id: RequestId,
        index: LogIndex,
        command: &Command,
        more: u64,
    ) {
        self.values.add(command, index);
        let before = self.requests.insert(id, more).unwrap_or(0);
        self.growth = self.growth - before + more;
    }

    pub(crate) fn decided(&mut self, id: &RequestId) {
        self.growth -= self.requests.remove(id).unwrap_or(0);
    }

    /// Forgets the values of the entries up to `index`, which are applied.
    pub(crate) fn applied(&mut self, index: LogIndex) {
        self.values.applied(index);
    }
}

/// The lengths of the values that unapplied entries set. Values shorter than [`KEPT_BYTES_MIN`] are
/// left out.
#[derive(Default)]
pub(crate) struct Values {
    /// For each key: the last entry that sets it, and the greatest length.
    longest: BTreeMap<Bytes, (LogIndex, u64)>,
    order: VecDeque<(LogIndex, Bytes)>,
}

impl Values {
    /// Returns the greatest length that is set for this key, in bytes. Returns 0 if no value is
    /// recorded for this key.
    pub(crate) fn len_of(&self, key: &[u8]) -> u64 {
        self.longest.get(key).map_or(0, |(_, bytes)| *bytes)
    }

    /// Records the values that a command sets in any of its branches, in the entry at `index`.
    pub(crate) fn add(&mut self, command: &Command, index: LogIndex) {
        match command.inner() {
            Command::Put(put) => self.add_put(put, index),
            Command::Txn(txn) => self.add_txn(txn, index),
            _ => {}
        }
    }

    fn add_txn(&mut self, txn: &Txn, index: LogIndex) {
        for op in txn.success.iter().chain(&txn.failure) {
            match op {
                Op::Put(put) => self.add_put(put, index),
                Op::Txn(nested) => self.add_txn(nested, index),
                Op::Range(_) | Op::Delete(_) => {}
            }
        }
    }

    fn add_put(&mut self, put: &Put, index: LogIndex) {
        let bytes = match &put.value {
            PutValue::Set(value) => value.len() as u64,
            PutValue::Keep => 0,
        };
        if bytes <= KEPT_BYTES_MIN {
            return;
        }
        let (last, longest) = self.longest.entry(put.key.clone()).or_default();
        (*last, *longest) = (index, bytes.max(*longest));
        self.order.push_back((index, put.key.clone()));
    }

    fn applied(&mut self, index: LogIndex) {
        while self.order.front().is_some_and(|(at, _)| *at <= index) {
            let (at, key) = self.order.pop_front().expect("it was just seen");
            if self.longest.get(&key).is_some_and(|(last, _)| *last == at) {
                self.longest.remove(&key);
            }
        }
    }
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
            assert_eq!(growth(&command, &|_| 0), expected, "{command:?}");
        }
    }

    #[test]
    fn kept_value_counts_with_its_current_size() {
        let keep = |key: &'static str| Put { value: PutValue::Keep, ..Put::new(key, "") };
        let len_of = |key: &[u8]| if key == b"long" { 1_000 } else { 5 };
        let puts = vec![Op::Put(keep("long")), Op::Put(keep("short"))];
        let (long, short) = (ROW_BYTES + 4 + 1_000, ROW_BYTES + 5 + KEPT_BYTES_MIN);
        assert_eq!(growth(&Command::Put(keep("long")), &len_of), Some(long));
        let both = Command::Txn(Txn { failure: puts, ..Txn::default() });
        assert_eq!(growth(&both, &len_of), Some(long + short));
    }

    #[test]
    fn logged_growth_is_counted_until_applied() {
        let id = |seq| RequestId {
            node: crate::model::NodeId::new(1).unwrap(),
            incarnation: crate::model::Incarnation(1),
            seq,
        };
        let put = |key: &'static str, bytes: usize| Command::Put(Put::new(key, vec![b'v'; bytes]));
        let nested = Txn { failure: vec![Op::put("n", vec![b'v'; 700])], ..Txn::default() };
        let nested = Txn { success: vec![Op::Txn(nested)], ..Txn::default() };
        let mut in_log = Proposed::default();
        in_log.proposed(id(1), LogIndex(5), &put("k", 900), 1_000);
        in_log.proposed(id(2), LogIndex(5), &put("short", 128), 200);
        in_log.proposed(id(3), LogIndex(6), &put("k", 500), 600);
        in_log.proposed(id(4), LogIndex(6), &Command::Txn(nested), 800);
        let known = |in_log: &Proposed| {
            let len_of = |key: &str| in_log.values().len_of(key.as_bytes());
            (in_log.growth(), len_of("k"), len_of("short"), len_of("n"))
        };
        assert_eq!(known(&in_log), (2_600, 900, 0, 700));
        [1, 2].into_iter().for_each(|seq| in_log.decided(&id(seq)));
        in_log.applied(LogIndex(5));
        assert!(!in_log.contains(&id(1)) && in_log.contains(&id(3)));
        assert_eq!(known(&in_log), (1_400, 900, 0, 700));
        [3, 4, 4].into_iter().for_each(|seq| in_log.decided(&id(seq)));
        in_log.applied(LogIndex(6));
        assert_eq!(known(&in_log), (0, 0, 0, 0));
        assert!(in_log.values.order.is_empty() && in_log.values.longest.is_empty());
    }
}
