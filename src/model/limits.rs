//! The limits on requests, with their names and units.

use std::time::Duration;

use super::written;
use super::{Command, KeyRange, MemberAttributes, Op, PutValue, Range, RangeEnd, Rejection, Txn};

/// Limits on the size of requests. The node where a call is made checks the limits before it
/// proposes the request, and the state machine does not check them again. Therefore all members
/// should have the same limits. Each limit has a minimum, so that locks, elections and queues still
/// work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Maximum length of a key in bytes. Default: 4 KiB. Range: 128 bytes to `request_bytes_max`.
    pub key_bytes_max: usize,
    /// Maximum length of a value in bytes. Default: 1 MiB. Range: 1 KiB to `request_bytes_max`.
    pub value_bytes_max: usize,
    /// Maximum size of a request in bytes: all keys and values plus a fixed cost per operation.
    /// Default: 1.5 MiB, as in etcd. Range: 8 KiB to 3 MiB.
    pub request_bytes_max: usize,
    /// Maximum number of compares, and of operations per branch, in one level of a transaction. A
    /// nested transaction counts the operations of its parent too. Default: 128, as in etcd. Range:
    /// 16 to 10,000.
    pub txn_ops_max: usize,
    /// Maximum nesting depth of transactions. A transaction under a lock has depth two, or three if
    /// it acknowledges a queue item. Default: 8. Range: 3 to [`Limits::TXN_DEPTH_CEILING`].
    pub txn_depth_max: usize,
    /// Maximum number of keys that the ranges of one transaction may visit, in its compares and
    /// both branches, including nested ones. Deleted keys that are not compacted count too. A
    /// transaction may always visit up to four times as many keys as the store contains, deleted
    /// keys included. The limit exists because a replica does nothing else while it applies a
    /// transaction. Default: 262,144. Minimum: 1.
    pub txn_keys_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            key_bytes_max: 4 << 10,
            value_bytes_max: 1 << 20,
            request_bytes_max: 1_572_864,
            txn_ops_max: 128,
            txn_depth_max: 8,
            txn_keys_max: 1 << 18,
        }
    }
}

impl Limits {
    /// Maximum TTL of a lease: 9,000,000,000 seconds, as in etcd.
    pub const LEASE_TTL_MAX: Duration = Duration::from_secs(9_000_000_000);

    /// Minimum TTL of a session: 100 milliseconds. A session with a shorter TTL would expire before
    /// it can be used.
    pub const SESSION_TTL_MIN: Duration = Duration::from_millis(100);

    /// Minimum of `key_bytes_max` in bytes: enough for a lock with a short name and the suffix of
    /// its queue entries.
    pub const KEY_BYTES_LEAST: usize = 128;

    /// Minimum of `value_bytes_max` in bytes: enough for the description of a lock's holder.
    pub const VALUE_BYTES_LEAST: usize = 1 << 10;

    /// Minimum of `request_bytes_max` in bytes.
    pub const REQUEST_BYTES_LEAST: usize = 8 << 10;

    /// Minimum of `txn_ops_max`.
    pub const TXN_OPS_LEAST: usize = 16;

    /// Maximum lock delay of a session: ten minutes. To delay the next holder of a lock for longer,
    /// use a longer TTL instead: during the TTL, the current holder can still use the lock.
    pub const LOCK_DELAY_MAX: Duration = Duration::from_secs(600);

    /// Upper bound of `txn_depth_max`, the maximum nesting depth of transactions. A log entry or
    /// message with a deeper transaction cannot be decoded.
    pub const TXN_DEPTH_CEILING: usize = 16;

    /// Number of bytes that an operation adds to the size of a request, in addition to its keys and
    /// values.
    const OP_BYTES: usize = 16;

    /// Checks that no branch of a transaction writes a key twice. Checks no size limits.
    ///
    /// # Errors
    /// Returns the [`Rejection`] that names the key.
    pub(crate) fn check_written(txn: &Txn) -> Result<(), Rejection> {
        written::check(txn)
    }

    /// Checks that `command` is within the limits. Also checks the rules that do not depend on the
    /// state: keys are not empty, and no branch of a transaction writes a key twice.
    ///
    /// # Errors
    /// Returns the [`Rejection`] that names the limit and the actual value.
    #[doc(hidden)]
    pub fn check(&self, command: &Command) -> Result<(), Rejection> {
        let bytes = match command {
            Command::Put(put) => self.check_put(put)?,
            Command::Delete(delete) => self.check_keys(&delete.range)?,
            Command::Txn(txn) => self.check_txn(txn)?,
            Command::Grant { ttl, session, .. } => {
                if ttl.as_millis() == 0 || *ttl > Self::LEASE_TTL_MAX {
                    return Err(Rejection::LeaseTtl { asked: *ttl, max: Self::LEASE_TTL_MAX });
                }
                session.as_ref().map_or(0, |session| session.label.len())
            }
            Command::Announce(MemberAttributes { name, address, endpoints }) => {
                name.len() + address.len() + endpoints.iter().map(String::len).sum::<usize>()
            }
            Command::Move { address, .. } => address.len(),
            Command::Compact(_) | Command::Revoke(_) | Command::Raise(_) | Command::Alarm(_) => 0,
            Command::Access(change) => change.bytes(),
            Command::As(caller, command) => {
                self.check(command)?;
                caller.user.as_ref().map_or(0, String::len)
            }
        };
        if bytes > self.request_bytes_max {
            return Err(Rejection::RequestTooLarge { bytes, max: self.request_bytes_max });
        }
        Ok(())
    }

    /// Checks that a read is within the limits.
    ///
    /// # Errors
    /// Returns the [`Rejection`] that names the limit and the actual value.
    #[doc(hidden)]
    pub fn check_range(&self, range: &Range) -> Result<(), Rejection> {
        self.check_keys(&range.range).map(|_| ())
    }

    fn check_key(&self, key: &[u8]) -> Result<(), Rejection> {
        if key.is_empty() {
            return Err(Rejection::EmptyKey);
        }
        if key.len() > self.key_bytes_max {
            return Err(Rejection::KeyTooLarge { bytes: key.len(), max: self.key_bytes_max });
        }
        Ok(())
    }

    fn check_keys(&self, range: &KeyRange) -> Result<usize, Rejection> {
        let start = range.start();
        let end = match range.end() {
            RangeEnd::Single => {
                return self.check_key(start).map(|()| Self::OP_BYTES + start.len());
            }
            RangeEnd::Before(end) => end.len(),
            RangeEnd::Unbounded => 0,
        };
        if start.is_empty() {
            return Err(Rejection::EmptyKey);
        }
        // The start and the end may be one byte longer than a key: the successor of a key with the
        // maximum length has one more byte.
        let (bytes, max) = (start.len().max(end), self.key_bytes_max);
        if bytes > max.saturating_add(1) {
            return Err(Rejection::KeyTooLarge { bytes, max });
        }
        Ok(Self::OP_BYTES + start.len() + end)
    }

    fn check_put(&self, put: &super::Put) -> Result<usize, Rejection> {
        self.check_key(&put.key)?;
        let value = match &put.value {
            PutValue::Set(value) => value.len(),
            PutValue::Keep => 0,
        };
        if value > self.value_bytes_max {
            return Err(Rejection::ValueTooLarge { bytes: value, max: self.value_bytes_max });
        }
        Ok(Self::OP_BYTES + put.key.len() + value)
    }

    fn check_txn(&self, txn: &Txn) -> Result<usize, Rejection> {
        let bytes = self.check_level(txn, self.txn_ops_max, 1)?;
        // A transaction that is too large is rejected anyway, so its writes need no check.
        if bytes <= self.request_bytes_max {
            written::check(txn)?;
        }
        Ok(bytes)
    }

    fn check_level(&self, txn: &Txn, budget: usize, depth: usize) -> Result<usize, Rejection> {
        let depth_max = self.txn_depth_max.min(Self::TXN_DEPTH_CEILING);
        if depth > depth_max {
            return Err(Rejection::TooDeep { max: depth_max });
        }
        let count = txn.compares.len().max(txn.success.len()).max(txn.failure.len());
        if count > budget {
            return Err(Rejection::TooManyOps { count, max: budget });
        }
        let mut bytes = 0;
        for compare in &txn.compares {
            bytes += self.check_keys(&compare.range)?;
            if let super::CompareTarget::Value(value) = &compare.target {
                if value.len() > self.value_bytes_max {
                    let (bytes, max) = (value.len(), self.value_bytes_max);
                    return Err(Rejection::ValueTooLarge { bytes, max });
                }
                bytes += value.len();
            }
        }
        for op in txn.success.iter().chain(&txn.failure) {
            bytes += match op {
                Op::Range(range) => self.check_keys(&range.range)?,
                Op::Put(put) => self.check_put(put)?,
                Op::Delete(delete) => self.check_keys(&delete.range)?,
                Op::Txn(nested) => self.check_level(nested, budget - count, depth + 1)?,
            };
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Compare, Delete, LeaseId, Put, Revision, SessionInfo};

    fn small() -> Limits {
        Limits {
            key_bytes_max: 4,
            value_bytes_max: 8,
            request_bytes_max: 200,
            txn_ops_max: 3,
            txn_depth_max: 2,
            ..Limits::default()
        }
    }

    fn then(success: Vec<Op>) -> Txn {
        Txn { success, ..Txn::default() }
    }

    fn check(txn: Txn) -> Result<(), Rejection> {
        Limits::default().check(&Command::Txn(txn))
    }

    #[test]
    fn keys_and_values_have_length_limits() {
        let put = |key: &'static str, value: &'static str| {
            small().check(&Command::Put(Put::new(key, value)))
        };
        assert_eq!(put("four", "eightttt"), Ok(()));
        assert_eq!(put("", ""), Err(Rejection::EmptyKey));
        assert_eq!(put("fives", ""), Err(Rejection::KeyTooLarge { bytes: 5, max: 4 }));
        assert_eq!(put("k", "nine bytes"), Err(Rejection::ValueTooLarge { bytes: 10, max: 8 }));
        let delete =
            |range: KeyRange| small().check(&Command::Delete(Delete { range, prev_kv: false }));
        assert_eq!(delete(KeyRange::all()), Ok(()));
        assert_eq!(delete(KeyRange::prefix("four")), Ok(()));
        assert_eq!(
            delete(KeyRange::between("a", "fives")),
            Ok(()),
            "the successor of a longest key"
        );
        let long = KeyRange::between("a", "sixsix");
        assert_eq!(delete(long), Err(Rejection::KeyTooLarge { bytes: 6, max: 4 }));
        let longest = KeyRange::prefix("four").after("four");
        assert_eq!(delete(longest.clone()), Ok(()), "the page after a longest key");
        let long = KeyRange::all().after("fives");
        assert_eq!(delete(long), Err(Rejection::KeyTooLarge { bytes: 6, max: 4 }));
        assert_eq!(
            delete(KeyRange::key("fives")),
            Err(Rejection::KeyTooLarge { bytes: 5, max: 4 })
        );
        assert_eq!(delete(KeyRange::starting_at("")), Ok(()));
        for end in [RangeEnd::Single, RangeEnd::Before("b".into()), RangeEnd::Unbounded] {
            assert_eq!(delete(KeyRange::from_parts("", end)), Err(Rejection::EmptyKey));
        }
        assert_eq!(small().check_range(&Range::new("")), Err(Rejection::EmptyKey));
        assert_eq!(small().check_range(&Range::new("four")), Ok(()));
        let compare = |compare| {
            small().check(&Command::Txn(Txn { compares: vec![compare], ..Txn::default() }))
        };
        assert_eq!(compare(Compare::missing("")), Err(Rejection::EmptyKey));
        let long = compare(Compare::value("k").eq("nine bytes"));
        assert_eq!(long, Err(Rejection::ValueTooLarge { bytes: 10, max: 8 }));
    }

    #[test]
    fn request_size_is_the_sum_of_its_parts() {
        let put = |key: &'static str| Op::put(key, "12345678");
        let nested = then(vec![put("c")]);
        let fits = Txn {
            compares: vec![Compare::value("k").eq("12345678"); 2],
            success: vec![put("a"), nested.into()],
            failure: vec![put("a"), put("b")],
        };
        let bytes = 6 * 25;
        let exact = Limits { request_bytes_max: bytes, ..small() };
        assert_eq!(exact.check(&Command::Txn(fits.clone())), Ok(()));
        let max = bytes - 1;
        let tight = Limits { request_bytes_max: max, ..small() };
        let rejection = Rejection::RequestTooLarge { bytes, max };
        assert_eq!(tight.check(&Command::Txn(fits)), Err(rejection));
        let label = "l".repeat(201);
        let session = Some(SessionInfo { label, own: true });
        let grant = Command::Grant { id: None, ttl: Duration::from_secs(1), session };
        let rejection = Rejection::RequestTooLarge { bytes: 201, max: 200 };
        assert_eq!(small().check(&grant), Err(rejection));
    }

    #[test]
    fn nested_transaction_has_the_remaining_operation_budget() {
        let gets = |count| vec![Op::get("k"); count];
        let max = Limits::default().txn_ops_max;
        let compares = vec![Compare::exists("k"); max];
        let full = Txn { compares, success: gets(max), failure: gets(max) };
        assert_eq!(check(full), Ok(()), "each list has the limit to itself");
        let too_many = |count, max| Err(Rejection::TooManyOps { count, max });
        assert_eq!(check(then(gets(max + 1))), too_many(max + 1, max));
        let compares = vec![Compare::exists("k"); max + 1];
        assert_eq!(check(Txn { compares, ..Txn::default() }), too_many(max + 1, max));
        assert_eq!(check(then(vec![then(gets(max - 1)).into()])), Ok(()));
        assert_eq!(check(then(vec![then(gets(max)).into()])), too_many(max, max - 1));
    }

    #[test]
    fn transaction_depth_is_limited() {
        let deep = |depth| (1..depth).fold(Txn::default(), |txn, _| then(vec![txn.into()]));
        let depth_max = Limits::default().txn_depth_max;
        assert_eq!(check(deep(depth_max)), Ok(()));
        assert_eq!(check(deep(depth_max + 1)), Err(Rejection::TooDeep { max: depth_max }));
        let max = Limits::TXN_DEPTH_CEILING;
        let unlimited = Limits { txn_depth_max: usize::MAX, ..Limits::default() };
        assert_eq!(unlimited.check(&Command::Txn(deep(max))), Ok(()));
        assert_eq!(unlimited.check(&Command::Txn(deep(max + 1))), Err(Rejection::TooDeep { max }));
    }

    #[test]
    fn transaction_writes_each_key_at_most_once() {
        let put = || Op::put("k", "");
        let delete = || Op::delete(KeyRange::prefix("k"));
        let other = || Op::put("other", "");
        let branches = |success, failure| Op::Txn(Txn { compares: vec![], success, failure });
        let free = [
            vec![put(), other()],
            vec![delete(), delete(), Op::delete("k")],
            vec![put(), Op::delete(KeyRange::between("l", "z")), Op::get("k")],
            vec![put(), Op::delete(KeyRange::between("z", "a"))],
            vec![branches(vec![put()], vec![put()])],
            vec![branches(vec![put()], vec![delete()])],
            vec![branches(vec![delete()], vec![put()])],
            vec![branches(vec![delete()], vec![other()]), delete()],
        ];
        for ops in free {
            assert_eq!(check(then(ops.clone())), Ok(()), "{ops:?}");
            let txn = Txn { success: vec![put()], failure: ops, ..Txn::default() };
            assert_eq!(check(txn), Ok(()), "branches do not meet");
        }
        let twice = [
            vec![put(), put()],
            vec![put(), delete()],
            vec![delete(), put()],
            vec![branches(vec![other()], vec![put()]), put()],
            vec![put(), branches(vec![put()], vec![])],
            vec![put(), branches(vec![], vec![delete()])],
            vec![branches(vec![], vec![delete()]), put()],
            vec![delete(), branches(vec![put()], vec![])],
            vec![branches(vec![put()], vec![]), branches(vec![], vec![put()])],
            vec![branches(vec![put()], vec![]), branches(vec![], vec![delete()])],
            vec![branches(vec![branches(vec![], vec![put()])], vec![]), put()],
        ];
        for ops in twice {
            let rejection = Err(Rejection::DuplicateKey("k".into()));
            assert_eq!(check(then(ops.clone())), rejection, "{ops:?}");
            let txn = Txn { failure: ops, ..Txn::default() };
            assert_eq!(check(txn), rejection, "in the branch that will not run, too");
        }
    }

    #[test]
    fn lease_ttl_has_a_minimum_and_a_maximum() {
        let max = Limits::LEASE_TTL_MAX;
        let grant = |ttl| Limits::default().check(&Command::Grant { id: None, ttl, session: None });
        assert_eq!(grant(Duration::from_millis(1)), Ok(()));
        assert_eq!(grant(max), Ok(()));
        for asked in [Duration::ZERO, Duration::from_nanos(999_999), max + Duration::from_nanos(1)]
        {
            assert_eq!(grant(asked), Err(Rejection::LeaseTtl { asked, max }));
        }
    }

    #[test]
    fn command_without_payload_is_never_too_large() {
        let nothing = Limits { request_bytes_max: 0, ..Limits::default() };
        assert_eq!(nothing.check(&Command::Compact(Revision(u64::MAX))), Ok(()));
        let lease = LeaseId::new(1).expect("not 0");
        assert_eq!(nothing.check(&Command::Revoke(lease)), Ok(()));
    }
}
