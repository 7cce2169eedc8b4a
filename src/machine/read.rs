//! Evaluates ranges and compares at one revision. Readers use this module, and so do transactions,
//! which see their own writes so far.

use std::cmp::Ordering;

use super::row::{RowRef, StoredRow};
use super::shared::{Published, Replaced, Scan, Snapshot};
use crate::model::{
    Compare, CompareOp, CompareTarget, LeaseId, Range, RangeReply, Rejection, Revision,
    RevisionBounds, Sort, SortOrder, SortTarget,
};

/// Returns the revision at which a range must be read, if that revision exists and is not
/// compacted. As in etcd, 0 means the newest revision.
pub(super) fn resolve(
    asked: Option<Revision>,
    Published { revision: newest, compacted }: Published,
) -> Result<Revision, Rejection> {
    let Some(asked) = asked.filter(|&asked| asked > Revision(0)) else { return Ok(newest) };
    if asked > newest {
        return Err(Rejection::Future { asked, newest });
    }
    match compacted {
        Some(compacted) if asked < compacted && !mutant!(M37) => {
            Err(Rejection::Compacted { asked, compacted })
        }
        _ => Ok(asked),
    }
}

impl Snapshot<'_> {
    /// Evaluates a range whose revision is that of this snapshot. `newest` is the store's revision
    /// for the reply.
    pub(super) fn range(&self, range: &Range, newest: Revision) -> Result<RangeReply, Replaced> {
        let mut collector = Collector::new(range);
        self.scan(&range.range, |row| {
            collector.visit(row);
            Scan::On
        })?;
        Ok(collector.finish(newest))
    }

    /// Evaluates a range, but stops one row after the limit, or at the row that would exceed
    /// `bytes_max`. The count then covers only the visited rows.
    pub(super) fn page(
        &self,
        range: &Range,
        newest: Revision,
        bytes_max: u64,
    ) -> Result<RangeReply, Replaced> {
        let mut collector = Collector::new(range);
        collector.bytes_left = bytes_max;
        self.scan(&range.range, |row| {
            collector.visit(row);
            if collector.more { Scan::Enough } else { Scan::On }
        })?;
        Ok(collector.finish(newest))
    }

    /// Returns whether every key of the compare's range satisfies it. A range without keys is
    /// evaluated once, as a missing key.
    pub(super) fn holds(&self, compare: &Compare) -> Result<bool, Replaced> {
        let mut empty = true;
        let mut holds = true;
        self.scan(&compare.range, |row| {
            empty = false;
            holds = satisfies(Some(row), compare);
            if holds { Scan::On } else { Scan::Enough }
        })?;
        Ok(if empty { satisfies(None, compare) } else { holds })
    }
}

fn satisfies(row: Option<RowRef<'_>>, compare: &Compare) -> bool {
    let meta = row.map(RowRef::meta);
    let number = |found: u64, given: u64| found.cmp(&given);
    let order = match &compare.target {
        CompareTarget::Version(given) => number(meta.map_or(0, |meta| meta.version), *given),
        CompareTarget::Create(given) => {
            number(meta.map_or(0, |meta| meta.create.get()), given.get())
        }
        CompareTarget::Mod(given) => {
            number(meta.map_or(0, |meta| meta.modified.get()), given.get())
        }
        CompareTarget::Lease(given) => {
            number(meta.and_then(|meta| meta.lease).map_or(0, LeaseId::get), *given)
        }
        CompareTarget::Value(given) => match row {
            Some(row) => row.value().cmp(given),
            // A missing key has no value, so the compare fails whatever the operator.
            None => return false,
        },
    };
    match compare.op {
        CompareOp::Equal => order == Ordering::Equal,
        CompareOp::NotEqual => order != Ordering::Equal,
        CompareOp::Greater => order == Ordering::Greater,
        CompareOp::Less => order == Ordering::Less,
    }
}

/// Number of bytes that the revisions and other numbers of a row add to the size of a page.
const ROW_BYTES: usize = 64;

/// Collects the rows of one range. If rows arrive in the order of the reply, rows after the limit
/// are counted but not stored.
pub(super) struct Collector<'a> {
    range: &'a Range,
    limit: usize,
    /// Whether rows arrive in the order of the reply, and all of them belong to the reply.
    direct: bool,
    /// Number of bytes that the rows may still add. Applies only if `direct` is set.
    bytes_left: u64,
    rows: Vec<StoredRow>,
    more: bool,
    count: u64,
}

impl<'a> Collector<'a> {
    pub(super) fn new(range: &'a Range) -> Self {
        let limit = range.limit.map_or(usize::MAX, |limit| limit.try_into().unwrap_or(usize::MAX));
        let unbounded =
            range.bounds == RevisionBounds::default() || (mutant!(B59) && range.limit.is_some());
        let direct = unbounded && range.sort == Sort::default();
        Self { range, limit, direct, bytes_left: u64::MAX, rows: Vec::new(), more: false, count: 0 }
    }

    pub(super) fn visit(&mut self, row: RowRef<'_>) {
        self.count += 1;
        if self.range.count_only {
            return;
        }
        if self.direct && (self.rows.len() == self.limit || !self.has_room(row)) {
            self.more = true;
            return;
        }
        if self.direct || within(&self.range.bounds, row) {
            self.rows.push(row.to_row());
        }
    }

    /// Counts the bytes of a row. Returns false if the reply has rows and no room for this one.
    fn has_room(&mut self, row: RowRef<'_>) -> bool {
        let value_bytes = if self.range.keys_only { 0 } else { row.value().len() };
        let bytes = (row.key().len() + value_bytes + ROW_BYTES) as u64;
        let fits = bytes <= self.bytes_left || self.rows.is_empty();
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        fits
    }

    pub(super) fn finish(mut self, newest: Revision) -> RangeReply {
        if !self.direct {
            sort(&mut self.rows, self.range.sort);
            self.more = self.rows.len() > self.limit;
            self.rows.truncate(self.limit);
        }
        let keys_only = self.range.keys_only;
        let kvs = self.rows.iter().map(|row| {
            let mut kv = row.view().key_value();
            if keys_only {
                kv.value.clear();
            }
            kv
        });
        RangeReply { revision: newest, kvs: kvs.collect(), more: self.more, count: self.count }
    }
}

fn within(bounds: &RevisionBounds, row: RowRef<'_>) -> bool {
    let meta = row.meta();
    bounds.mod_min.is_none_or(|min| meta.modified >= min)
        && bounds.mod_max.is_none_or(|max| meta.modified <= max)
        && bounds.create_min.is_none_or(|min| meta.create >= min)
        && bounds.create_max.is_none_or(|max| meta.create <= max)
}

/// Sorts rows that arrive in key order. The sort is stable in both directions, so rows that compare
/// as equal stay in key order.
fn sort(rows: &mut [StoredRow], sort: Sort) {
    let compare = |a: &StoredRow, b: &StoredRow| {
        let (a, b) = (a.view(), b.view());
        match sort.target {
            SortTarget::Key => a.key().cmp(b.key()),
            SortTarget::Version => a.meta().version.cmp(&b.meta().version),
            SortTarget::Create => a.meta().create.cmp(&b.meta().create),
            SortTarget::Mod => a.modified().cmp(&b.modified()),
            SortTarget::Value => a.value().cmp(b.value()),
        }
    };
    match sort.order {
        SortOrder::Ascend => rows.sort_by(compare),
        SortOrder::Descend => rows.sort_by(|a, b| compare(b, a)),
    }
}
