//! Builds a state machine from a warm copy.
//!
//! The copy contains the rows of the base in key order, and the changes in the order of their
//! revisions. The base revision may be older than the compacted revision. Therefore the changes up
//! to the compacted revision are merged into the rows: the newest version of each key becomes its
//! row, and later versions remain changes. The result must have the digest that the head contains.

use std::collections::{BTreeMap, btree_map};
use std::iter::Peekable;

use bytes::Bytes;
use thiserror::Error;

use super::guard::Guarded;
use super::layout::{CopyHead, CopyKind, RecordError, key, open_head, open_piece};
use super::store::{StoreError, Visit};
use crate::machine::{Machine, MachineOptions, Restore, RestoreError};
use crate::model::{KeyValue, RowChange, SnapshotRecord};

/// Maximum number of changes in one piece.
const CHANGES_MAX: usize = 1 << 10;

/// The reason why a copy cannot be loaded.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(super) enum LoadError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    State(#[from] RestoreError),
    #[error("warm copy: a record of kind {0:?} has unexpected contents")]
    Foreign(CopyKind),
}

/// Returns the head of a copy, or `None` if the copy was never completed.
pub(super) fn read_head(store: &mut Guarded) -> Result<Option<CopyHead>, LoadError> {
    let record = store.with(|store| store.get(&key(CopyKind::Head, 0)))?;
    record.map(|record| Ok(open_head(&record)?)).transpose()
}

/// Builds a machine from the copy with this head.
pub(super) fn load(
    store: &mut Guarded,
    head: &CopyHead,
    options: MachineOptions,
) -> Result<Machine, LoadError> {
    let mut restore = Restore::new(options, head.state.clone())?;
    let (overlay, changes) = read_changes(store, head)?;
    let mut overlay = overlay.into_iter().peekable();
    each_piece(store, CopyKind::Rows, head.rows, &mut |record, _| {
        let SnapshotRecord::Rows(rows) = record else {
            return Err(LoadError::Foreign(CopyKind::Rows));
        };
        Ok(restore.add(SnapshotRecord::Rows(merge(&mut overlay, rows)))?)
    })?;
    restore.add(SnapshotRecord::Rows(overlay.filter_map(|(_, row)| row).collect()))?;
    let mut changes = changes.into_iter().peekable();
    while changes.peek().is_some() {
        restore.add(SnapshotRecord::Changes(changes.by_ref().take(CHANGES_MAX).collect()))?;
    }
    let mut sums = head.tables.iter();
    each_piece(store, CopyKind::Table, head.tables.len() as u64, &mut |record, sum| {
        let number = head.tables.len() as u64 - sums.len() as u64;
        if sums.next() != Some(&sum) {
            return Err(RecordError::Damaged { kind: CopyKind::Table, number }.into());
        }
        Ok(restore.add(record)?)
    })?;
    Ok(restore.finish()?)
}

/// The newest change of each key up to the compacted revision; `None` for a deletion.
type Overlay = BTreeMap<Bytes, Option<KeyValue>>;

/// Returns the newest change of each key up to the compacted revision, and the list of changes
/// since the compacted revision (inclusive).
fn read_changes(
    store: &mut Guarded,
    head: &CopyHead,
) -> Result<(Overlay, Vec<RowChange>), LoadError> {
    let compacted = head.state.compacted.unwrap_or_default();
    let (mut overlay, mut since) = (Overlay::new(), Vec::new());
    each_piece(store, CopyKind::Changes, head.changes, &mut |record, _| {
        let SnapshotRecord::Changes(changes) = record else {
            return Err(LoadError::Foreign(CopyKind::Changes));
        };
        for change in changes {
            let revision = change.revision();
            if revision <= compacted && revision > head.base {
                match &change {
                    RowChange::Put(kv) => overlay.insert(kv.key.clone(), Some(kv.clone())),
                    RowChange::Delete { key, .. } => overlay.insert(key.clone(), None),
                };
            }
            if (compacted..=head.state.revision).contains(&revision) {
                since.push(change);
            }
        }
        Ok(())
    })?;
    Ok((overlay, since))
}

/// Merges a page of the base with the part of the overlay up to the last key of the page. Versions
/// in the overlay replace those of the base.
fn merge(
    overlay: &mut Peekable<btree_map::IntoIter<Bytes, Option<KeyValue>>>,
    rows: Vec<KeyValue>,
) -> Vec<KeyValue> {
    let mut merged = Vec::with_capacity(rows.len());
    for row in rows {
        let mut newer = false;
        while let Some((key, newest)) = overlay.next_if(|(key, _)| *key <= row.key) {
            newer = key == row.key;
            merged.extend(newest);
        }
        if !newer {
            merged.push(row);
        }
    }
    merged
}

/// Passes the first `count` pieces of a kind to `visit`. All these pieces must exist.
fn each_piece(
    store: &mut Guarded,
    kind: CopyKind,
    count: u64,
    show: &mut dyn FnMut(SnapshotRecord, u32) -> Result<(), LoadError>,
) -> Result<(), LoadError> {
    let mut number = 0;
    let mut result = Ok(());
    if count > 0 {
        let visit = &mut |found: &[u8], record: &[u8]| {
            result = if found == key(kind, number) {
                open_piece(kind, number, record)
                    .map_err(LoadError::from)
                    .and_then(|(record, sum)| show(record, sum))
            } else {
                Err(RecordError::Missing { kind, number }.into())
            };
            number += 1;
            if result.is_ok() && number < count { Visit::On } else { Visit::Enough }
        };
        store.with(|store| store.scan(&key(kind, 0), visit))?;
    }
    result?;
    if number < count {
        return Err(RecordError::Missing { kind, number }.into());
    }
    Ok(())
}
