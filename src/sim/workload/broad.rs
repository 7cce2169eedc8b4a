//! Requests of clients about many keys: nested transactions, deletions of ranges, and range reads with limits,
//! sorting and filters, with previous rows. Every reply is compared as a whole with the result of
//! [`plain`](crate::sim::plain).

use std::ops::Range as Span;

use bytes::Bytes;

use super::super::caller::Fate;
use super::super::judge::{BROAD, Sign};
use super::super::plan::{index, one_in};
use super::WorkloadClient;
use crate::env::Entropy;
use crate::model::{
    Compare, CompareBuilder, CompareWith, Delete, KeyRange, KeyValue, LeaseId, Op, Put, PutLease,
    PutValue, Range, Revision, RevisionBounds, Sort, SortOrder, SortTarget, Txn, TxnReply,
    TxnResult,
};

const KEYS: usize = 10;

/// Maximum number of operations of a branch, and maximum nesting depth of transactions.
const OPS_MAX: u64 = 3;
const DEPTH_MAX: usize = 2;

/// A lease that is never granted.
const NO_LEASE: u64 = 0x7fff_ffff_ffff_fff1;

/// Maximum age of a past read, in revisions.
const PAST: u64 = 40;

/// The state while a transaction is drawn. A branch may write each key once: the keys that are left, and the puts so
/// far.
struct Drawing {
    free: Span<usize>,
    puts: Vec<(Bytes, Bytes)>,
}

fn key(at: usize) -> Bytes {
    format!("{BROAD}{at}").into()
}

impl WorkloadClient {
    pub(super) async fn broad(&mut self) {
        match self.rng.below(4) {
            0 => self.broad_read().await,
            1 => self.delete_a_range().await,
            _ => self.broad_transaction().await,
        }
    }

    /// Reads a range with random options, linearizably or from this replica.
    async fn broad_read(&mut self) {
        let (range, local) = (self.draw_range(), one_in(&self.rng, 3));
        let floor = if local { self.seen } else { self.scene.judge.borrow().floor() };
        let asked = self.caller.read(range.clone(), local);
        let Some(answer) = self.asked("broad read", Sign::Nothing, asked).await else { return };
        let mut judge = self.scene.judge.borrow_mut();
        match answer {
            Ok(reply) => {
                judge.read_broadly(floor, local, &range, &reply);
                drop(judge);
                self.saw(reply.revision);
            }
            Err(Fate::Refused(why)) => {
                judge.check_past_rejection(range.revision.unwrap_or_default(), &why);
            }
            Err(Fate::NotApplied | Fate::Unknown) => {}
        }
    }

    async fn delete_a_range(&mut self) {
        let delete = Delete { range: self.draw_keys(), prev_kv: one_in(&self.rng, 2) };
        let txn = Txn { success: vec![Op::Delete(delete.clone())], ..Txn::default() };
        let floor = self.scene.judge.borrow().floor();
        let asked = self.caller.delete(delete);
        let answer = self.asked("range deleted", Sign::Nothing, asked).await;
        let Some(Ok(reply)) = answer else { return };
        let revision = reply.revision;
        let results = vec![TxnResult::Delete(reply)];
        let reply = TxnReply { revision, succeeded: true, results };
        self.scene.judge.borrow_mut().changed_broadly("range deleted", floor, &txn, &reply);
        self.saw(revision);
    }

    async fn broad_transaction(&mut self) {
        // Reads the current rows, so that about half of the compares succeed.
        let all = Range::new(KeyRange::prefix(BROAD));
        let Ok(known) = self.caller.read(all, true).await else { return };
        let mut drawing = Drawing { free: index(&self.rng, KEYS)..KEYS, puts: Vec::new() };
        let txn = self.draw_transaction(&mut drawing, &known.kvs, DEPTH_MAX);
        let floor = self.scene.judge.borrow().floor();
        let asked = self.caller.transact(txn.clone());
        let what = "broad transaction";
        let answer = self.asked(what, Sign::Puts(&drawing.puts), asked).await;
        let mut judge = self.scene.judge.borrow_mut();
        match answer {
            Some(Ok(reply)) => {
                judge.changed_broadly(what, floor, &txn, &reply);
                drop(judge);
                self.saw(reply.revision);
            }
            Some(Err(Fate::Refused(why))) => judge.refused_broadly(floor, &txn, &why),
            Some(Err(_)) | None => {}
        }
    }

    fn draw_transaction(&self, drawing: &mut Drawing, rows: &[KeyValue], depth: usize) -> Txn {
        let compares = (0..self.rng.below(3)).map(|_| self.draw_compare(rows)).collect();
        let free = drawing.free.clone();
        let success = self.draw_branch(drawing, rows, depth);
        // Both branches may write the keys that were free before.
        let left = std::mem::replace(&mut drawing.free, free);
        let failure = self.draw_branch(drawing, rows, depth);
        drawing.free.start = drawing.free.start.max(left.start);
        Txn { compares, success, failure }
    }

    fn draw_branch(&self, drawing: &mut Drawing, rows: &[KeyValue], depth: usize) -> Vec<Op> {
        let ops = (0..self.rng.below(OPS_MAX + 1)).filter_map(|_| match self.rng.below(8) {
            0..3 => self.draw_put(drawing).map(Op::Put),
            3..5 => self.draw_deletion(drawing).map(Op::Delete),
            5 if depth > 0 => Some(Op::Txn(self.draw_transaction(drawing, rows, depth - 1))),
            _ => Some(Op::Range(self.draw_range())),
        });
        ops.collect()
    }

    fn draw_put(&self, drawing: &mut Drawing) -> Option<Put> {
        let (key, value) = (key(drawing.free.next()?), self.scene.value("broad"));
        drawing.puts.push((key.clone(), value.clone()));
        let lease = match self.rng.below(12) {
            0 => PutLease::Attach(LeaseId::new(NO_LEASE).expect("not zero")),
            // A lease of another program, whose end deletes the key. That lease may have ended.
            1 | 2 => {
                let known = self.scene.known_leases.borrow();
                let lease = known.get(index(&self.rng, known.len().max(1)));
                lease.map_or(PutLease::None, |(lease, _)| PutLease::Attach(*lease))
            }
            // The key may be missing.
            3 => PutLease::Keep,
            _ => PutLease::None,
        };
        let prev_kv = one_in(&self.rng, 3);
        Some(Put { key, value: PutValue::Set(value), lease, prev_kv })
    }

    fn draw_deletion(&self, drawing: &mut Drawing) -> Option<Delete> {
        let first = drawing.free.next()?;
        let last = (first + 1 + index(&self.rng, 3)).min(KEYS - 1).max(first + 1);
        drawing.free.start = drawing.free.start.max(last);
        let range = KeyRange::between(key(first), key(last));
        Some(Delete { range, prev_kv: one_in(&self.rng, 2) })
    }

    /// Returns some of the keys, one key, or all of them.
    fn draw_keys(&self) -> KeyRange {
        match self.rng.below(4) {
            0 => KeyRange::prefix(BROAD),
            1 => KeyRange::key(key(index(&self.rng, KEYS))),
            _ => {
                let first = index(&self.rng, KEYS - 1);
                let last = first + 1 + index(&self.rng, KEYS - 1 - first);
                KeyRange::between(key(first), key(last))
            }
        }
    }

    fn draw_range(&self) -> Range {
        const TARGETS: [SortTarget; 5] = [
            SortTarget::Key,
            SortTarget::Version,
            SortTarget::Create,
            SortTarget::Mod,
            SortTarget::Value,
        ];
        let sometimes = |times, what: &dyn Fn() -> Revision| one_in(&self.rng, times).then(what);
        let about_now = || self.about_now();
        Range {
            range: self.draw_keys(),
            revision: sometimes(8, &about_now),
            limit: one_in(&self.rng, 3).then(|| 1 + self.rng.below(4)),
            sort: Sort {
                target: TARGETS[index(&self.rng, TARGETS.len())],
                order: if one_in(&self.rng, 2) { SortOrder::Ascend } else { SortOrder::Descend },
            },
            keys_only: one_in(&self.rng, 6),
            count_only: one_in(&self.rng, 8),
            bounds: RevisionBounds {
                mod_min: sometimes(6, &about_now),
                mod_max: sometimes(8, &about_now),
                create_min: sometimes(8, &about_now),
                create_max: sometimes(6, &about_now),
            },
        }
    }

    /// Returns a recent revision.
    fn about_now(&self) -> Revision {
        let newest = self.scene.judge.borrow().floor();
        Revision(newest.get().saturating_sub(self.rng.below(PAST)).max(1))
    }

    fn draw_compare(&self, rows: &[KeyValue]) -> Compare {
        fn relate<T>(
            rng: &dyn Entropy,
            compare: CompareBuilder<T>,
            right: impl CompareWith<T>,
        ) -> Compare {
            match rng.below(4) {
                0 | 1 => compare.eq(right),
                2 => compare.ne(right),
                _ if rng.below(2) == 0 => compare.gt(right),
                _ => compare.lt(right),
            }
        }
        let row = rows.get(index(&self.rng, rows.len().max(1)));
        let keys = match row {
            Some(row) if !one_in(&self.rng, 3) => KeyRange::key(row.key.clone()),
            _ => self.draw_keys(),
        };
        let number = |field: fn(&KeyValue) -> u64| row.map_or(0, field);
        let revision = |field: fn(&KeyValue) -> Revision| row.map_or(Revision(0), field);
        match self.rng.below(5) {
            0 => relate(&self.rng, Compare::version(keys), number(|row| row.version)),
            1 => {
                let right = revision(|row| row.create_revision);
                relate(&self.rng, Compare::create_revision(keys), right)
            }
            2 => {
                let right = revision(|row| row.mod_revision);
                relate(&self.rng, Compare::mod_revision(keys), right)
            }
            3 => {
                let right = row.map(|row| row.value.clone()).unwrap_or_default();
                relate(&self.rng, Compare::value(keys), right)
            }
            _ => relate(&self.rng, Compare::lease(keys), 0_u64),
        }
    }
}
