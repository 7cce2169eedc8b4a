//! Every limit on what a caller may ask, with its name and unit.

use std::time::Duration;

use super::{Command, KeyRange, Op, PutValue, Range, RangeEnd, Refusal, Txn};

/// How large requests may be. Judged where the call is made, before anything is proposed, so all
/// members should be configured alike; the state machine itself takes what the log holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The longest key, in bytes. Default 4 KiB.
    pub key_bytes_max: usize,
    /// The longest value, in bytes. Default 1 MiB.
    pub value_bytes_max: usize,
    /// The largest request, all keys, values and a fixed cost for each operation together, in bytes.
    /// Default 1.5 MiB, etcd's.
    pub request_bytes_max: usize,
    /// The most compares, or operations of one branch, in one level of a transaction; the operations
    /// of a parent count against its children. Default 128, etcd's.
    pub txn_ops_max: usize,
    /// How deep transactions may be nested, at most [`Limits::TXN_DEPTH_CEILING`]. Default 8.
    pub txn_depth_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            key_bytes_max: 4 << 10,
            value_bytes_max: 1 << 20,
            request_bytes_max: 1_572_864,
            txn_ops_max: 128,
            txn_depth_max: 8,
        }
    }
}

impl Limits {
    /// The longest life of a lease: etcd's nine thousand million seconds.
    pub const LEASE_TTL_MAX: Duration = Duration::from_secs(9_000_000_000);

    /// Transactions are never nested deeper than this, whatever `txn_depth_max` says: a log entry or
    /// a message with a deeper one is not read.
    pub const TXN_DEPTH_CEILING: usize = 16;

    /// What an operation counts for beside its keys and values, in bytes.
    const OP_BYTES: usize = 16;

    /// Whether `command` is within the limits, and well formed as far as that can be said without
    /// the state: keys not empty, no key put twice in one branch.
    ///
    /// # Errors
    /// The [`Refusal`] that names the limit and the figure.
    pub fn check(&self, command: &Command) -> Result<(), Refusal> {
        let bytes = match command {
            Command::Put(put) => self.check_put(put)?,
            Command::Delete(delete) => self.check_keys(&delete.range)?,
            Command::Txn(txn) => self.check_txn(txn)?,
            Command::Grant { ttl, session, .. } => {
                if ttl.as_millis() == 0 || *ttl > Self::LEASE_TTL_MAX {
                    return Err(Refusal::LeaseTtl { asked: *ttl, max: Self::LEASE_TTL_MAX });
                }
                session.as_ref().map_or(0, |session| session.label.len())
            }
            Command::Compact(_) | Command::Revoke(_) => 0,
        };
        if bytes > self.request_bytes_max {
            return Err(Refusal::RequestTooLarge { bytes, max: self.request_bytes_max });
        }
        Ok(())
    }

    /// The same for a read that does not travel through the log.
    ///
    /// # Errors
    /// The [`Refusal`] that names the limit and the figure.
    pub fn check_range(&self, range: &Range) -> Result<(), Refusal> {
        self.check_keys(&range.range).map(|_| ())
    }

    fn check_key(&self, key: &[u8]) -> Result<(), Refusal> {
        if key.is_empty() {
            return Err(Refusal::EmptyKey);
        }
        if key.len() > self.key_bytes_max {
            return Err(Refusal::KeyTooLarge { bytes: key.len(), max: self.key_bytes_max });
        }
        Ok(())
    }

    fn check_keys(&self, range: &KeyRange) -> Result<usize, Refusal> {
        self.check_key(range.start())?;
        let end = match range.end() {
            // One byte more than a key: the end of the prefix of a longest key, and its successor.
            RangeEnd::Before(end) if end.len() > self.key_bytes_max + 1 => {
                return Err(Refusal::KeyTooLarge { bytes: end.len(), max: self.key_bytes_max });
            }
            RangeEnd::Before(end) => end.len(),
            RangeEnd::Single | RangeEnd::Unbounded => 0,
        };
        Ok(Self::OP_BYTES + range.start().len() + end)
    }

    fn check_put(&self, put: &super::Put) -> Result<usize, Refusal> {
        self.check_key(&put.key)?;
        let value = match &put.value {
            PutValue::Set(value) => value.len(),
            PutValue::Keep => 0,
        };
        if value > self.value_bytes_max {
            return Err(Refusal::ValueTooLarge { bytes: value, max: self.value_bytes_max });
        }
        Ok(Self::OP_BYTES + put.key.len() + value)
    }

    fn check_txn(&self, txn: &Txn) -> Result<usize, Refusal> {
        let bytes = self.check_level(txn, self.txn_ops_max, 1)?;
        let mut branches = [Written::default(), Written::default()];
        for (branch, ops) in branches.iter_mut().zip([&txn.success, &txn.failure]) {
            branch.collect(ops)?;
        }
        Ok(bytes)
    }

    fn check_level(&self, txn: &Txn, budget: usize, depth: usize) -> Result<usize, Refusal> {
        let depth_max = self.txn_depth_max.min(Self::TXN_DEPTH_CEILING);
        if depth > depth_max {
            return Err(Refusal::TooDeep { max: depth_max });
        }
        let count = txn.compares.len().max(txn.success.len()).max(txn.failure.len());
        if count > budget {
            return Err(Refusal::TooManyOps { count, max: budget });
        }
        let mut bytes = 0;
        for compare in &txn.compares {
            bytes += self.check_keys(&compare.range)?;
            if let super::CompareTarget::Value(value) = &compare.target {
                if value.len() > self.value_bytes_max {
                    let (bytes, max) = (value.len(), self.value_bytes_max);
                    return Err(Refusal::ValueTooLarge { bytes, max });
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

/// What one branch of a transaction writes, to find a key that is written twice. A delete may overlap
/// a delete; the two branches of a nested transaction may write the same key, since only one runs.
#[derive(Default)]
struct Written<'a> {
    puts: std::collections::BTreeSet<&'a [u8]>,
    deletes: Vec<&'a KeyRange>,
}

impl<'a> Written<'a> {
    fn collect(&mut self, ops: &'a [Op]) -> Result<(), Refusal> {
        // Deletes first: etcd refuses a put inside a delete's range in whichever order they stand.
        for op in ops {
            if let Op::Delete(delete) = op {
                self.delete(&delete.range)?;
            }
        }
        for op in ops {
            match op {
                Op::Put(put) => self.put(&put.key)?,
                Op::Txn(nested) => {
                    let mut branches = [Written::default(), Written::default()];
                    for (branch, ops) in branches.iter_mut().zip([&nested.success, &nested.failure])
                    {
                        branch.collect(ops)?;
                    }
                    self.nested(branches)?;
                }
                Op::Range(_) | Op::Delete(_) => {}
            }
        }
        Ok(())
    }

    /// The branches of a nested transaction, each judged already, against what stands beside it.
    fn nested(&mut self, [mut branch, failure]: [Written<'a>; 2]) -> Result<(), Refusal> {
        branch.puts.extend(failure.puts);
        branch.deletes.extend(failure.deletes);
        // Both lists are judged before either is added: the branches do not meet each other.
        for range in &branch.deletes {
            self.check_delete(range)?;
        }
        for key in branch.puts {
            self.put(key)?;
        }
        self.deletes.extend(branch.deletes);
        Ok(())
    }

    fn put(&mut self, key: &'a [u8]) -> Result<(), Refusal> {
        if !self.puts.insert(key) || self.deletes.iter().any(|range| range.contains(key)) {
            return Err(Refusal::DuplicateKey(key.to_vec().into()));
        }
        Ok(())
    }

    fn check_delete(&self, range: &KeyRange) -> Result<(), Refusal> {
        match self.puts.iter().find(|key| range.contains(key)) {
            Some(key) => Err(Refusal::DuplicateKey(key.to_vec().into())),
            None => Ok(()),
        }
    }

    fn delete(&mut self, range: &'a KeyRange) -> Result<(), Refusal> {
        self.check_delete(range)?;
        self.deletes.push(range);
        Ok(())
    }
}
