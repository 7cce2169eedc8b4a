//! The check that no branch of a transaction writes a key twice.
//!
//! A delete may overlap another delete. The two branches of a nested transaction may write the same
//! key, because only one of them runs. All replicas must return the same rejection, with the same
//! key in it. Therefore the writes are checked in a fixed order. The driver runs this check on
//! requests of other members, so n writes must cost no more than O(n log n).

use std::collections::BTreeSet;
use std::ops::Bound::{Included, Unbounded};

use super::key_set::KeySet;
use super::{KeyRange, Op, Rejection, Txn};

/// Checks both branches.
pub(super) fn check(txn: &Txn) -> Result<(), Rejection> {
    Written::of(&txn.success)?;
    Written::of(&txn.failure)?;
    Ok(())
}

/// The writes of one branch.
#[derive(Default)]
struct Written<'a> {
    puts: BTreeSet<&'a [u8]>,
    deletes: KeySet<&'a [u8]>,
    /// The deletes, in order.
    ranges: Vec<&'a KeyRange>,
}

impl<'a> Written<'a> {
    fn of(ops: &'a [Op]) -> Result<Self, Rejection> {
        let mut all = Self::default();
        // Collect deletes first: etcd rejects a put inside a delete's range in either order.
        for op in ops {
            if let Op::Delete(delete) = op {
                all.delete(&delete.range);
            }
        }
        for op in ops {
            match op {
                Op::Put(put) => all.put(&put.key)?,
                Op::Txn(nested) => all.nested(&nested.success, &nested.failure)?,
                Op::Range(_) | Op::Delete(_) => {}
            }
        }
        Ok(all)
    }

    /// Checks each branch of a nested transaction by itself, and then against the other operations
    /// of the parent. Does not check the two branches against each other.
    fn nested(&mut self, success: &'a [Op], failure: &'a [Op]) -> Result<(), Rejection> {
        let (success, failure) = (Self::of(success)?, Self::of(failure)?);
        let ranges = || success.ranges.iter().chain(&failure.ranges);
        for range in ranges() {
            if let Some(key) = first_within(&self.puts, range) {
                return Err(Rejection::DuplicateKey(key.to_vec().into()));
            }
        }
        for key in success.puts.union(&failure.puts) {
            self.put(key)?;
        }
        for range in ranges() {
            self.delete(range);
        }
        Ok(())
    }

    fn put(&mut self, key: &'a [u8]) -> Result<(), Rejection> {
        if !self.puts.insert(key) || self.deletes.has(key) {
            return Err(Rejection::DuplicateKey(key.to_vec().into()));
        }
        Ok(())
    }

    fn delete(&mut self, range: &'a KeyRange) {
        self.ranges.push(range);
        self.deletes.add(range, |bytes| &bytes[..]);
    }
}

/// Returns the first of these keys that is in a range.
fn first_within<'a>(keys: &BTreeSet<&'a [u8]>, range: &KeyRange) -> Option<&'a [u8]> {
    let from = keys.range::<[u8], _>((Included(&range.start()[..]), Unbounded)).next();
    from.copied().filter(|key| range.contains(key))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A simple but slow version of the same check, which compares all pairs of operations.
    #[derive(Default)]
    struct Pairs<'a> {
        puts: BTreeSet<&'a [u8]>,
        deletes: Vec<&'a KeyRange>,
    }

    impl<'a> Pairs<'a> {
        fn of(ops: &'a [Op]) -> Result<Self, Rejection> {
            let mut all = Self::default();
            let ranges = ops.iter().filter_map(|op| match op {
                Op::Delete(delete) => Some(&delete.range),
                _ => None,
            });
            all.deletes.extend(ranges);
            for op in ops {
                match op {
                    Op::Put(put) => all.put(&put.key)?,
                    Op::Txn(nested) => {
                        let mut inner = Self::of(&nested.success)?;
                        let failure = Self::of(&nested.failure)?;
                        inner.puts.extend(failure.puts);
                        inner.deletes.extend(failure.deletes);
                        for range in &inner.deletes {
                            if let Some(key) = all.puts.iter().find(|key| range.contains(key)) {
                                return Err(Rejection::DuplicateKey(key.to_vec().into()));
                            }
                        }
                        for key in inner.puts {
                            all.put(key)?;
                        }
                        all.deletes.extend(inner.deletes);
                    }
                    Op::Range(_) | Op::Delete(_) => {}
                }
            }
            Ok(all)
        }

        fn put(&mut self, key: &'a [u8]) -> Result<(), Rejection> {
            if !self.puts.insert(key) || self.deletes.iter().any(|range| range.contains(key)) {
                return Err(Rejection::DuplicateKey(key.to_vec().into()));
            }
            Ok(())
        }
    }

    fn keys() -> impl Strategy<Value = Vec<u8>> {
        (0..300_u16, 0..4_u8).prop_map(|(number, last)| match last {
            0 => format!("{number:03}\0").into_bytes(),
            _ => format!("{number:03}").into_bytes(),
        })
    }

    fn ranges() -> impl Strategy<Value = KeyRange> {
        prop_oneof![
            12 => keys().prop_map(KeyRange::key),
            4 => keys().prop_map(KeyRange::prefix),
            4 => (keys(), keys()).prop_map(|(start, end)| KeyRange::between(start, end)),
            1 => keys().prop_map(KeyRange::starting_at),
        ]
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let write = prop_oneof![
            3 => keys().prop_map(|key| Op::put(key, "")),
            2 => ranges().prop_map(Op::delete),
        ];
        let branch = |op| prop::collection::vec(op, 0..6);
        let op = write.prop_recursive(3, 40, 6, move |op| {
            (branch(op.clone()), branch(op)).prop_map(|(success, failure)| {
                Op::Txn(Txn { compares: Vec::new(), success, failure })
            })
        });
        prop::collection::vec(op, 0..8)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn duplicate_write_check_agrees_with_pairwise_comparison(ops in ops()) {
            prop_assert_eq!(Written::of(&ops).map(drop), Pairs::of(&ops).map(drop));
        }
    }

    #[test]
    fn duplicate_write_check_is_fast_for_many_writes() {
        let put = |n: u32| Op::put(format!("p{n:06}"), "");
        let delete = |n: u32| Op::delete(format!("d{n:06}"));
        let of = |ops: Vec<Op>| Op::Txn(Txn { success: ops, ..Txn::default() });
        // An implementation that compares all pairs would take 10,000,000,000 steps for this
        // transaction.
        let ops: Vec<Op> = (0..200)
            .map(|n| {
                let numbers = n / 2 * 1_000..(n / 2 + 1) * 1_000;
                of(match n % 2 {
                    0 => numbers.map(delete).collect(),
                    _ => numbers.map(put).collect(),
                })
            })
            .collect();
        let begun = std::time::Instant::now();
        assert!(Written::of(&ops).is_ok());
        let took = begun.elapsed();
        assert!(took.as_secs() < 5, "{took:?}");
    }
}
