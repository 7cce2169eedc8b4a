//! Rebuilds a machine from the records of a snapshot.
//!
//! The records come from a disk or a peer, and are not trusted: every property that other code
//! relies on is checked. At the end, the digest of the result is compared with the digest in the
//! head of the snapshot.

use std::sync::Arc;

use thiserror::Error;

use super::dedup_table::DedupTable;
use super::history::EventHistory;
use super::index::Index;
use super::lease::LeaseTable;
use super::row::{Meta, StoredRow, StoredRows};
use super::shared::Published;
use super::store::RowStore;
use super::{Machine, MachineOptions};
use crate::model::{Fault, KeyValue, LeaseRow, Revision, RowChange, SnapshotRecord, StateHead};

/// A machine that is being rebuilt. Pieces are added in the order in which an image returns them.
pub struct Restore {
    options: MachineOptions,
    head: StateHead,
    stage: RestoreStage,
    index: Index,
    history: EventHistory,
    /// The changes of the current revision, which may continue in the next piece.
    open: Option<(Revision, Vec<StoredRow>)>,
    leases: LeaseTable,
    dedup: DedupTable,
    bytes: u64,
    scratch: Vec<u8>,
}

/// The kinds of pieces in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum RestoreStage {
    Rows,
    Changes,
    Leases,
    Lives,
    DedupTable,
}

/// The reason why no machine can be built from these pieces.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RestoreError {
    /// The pieces do not form a valid state.
    #[error("invalid state: {0}")]
    Malformed(String),
    /// The pieces belong to a cluster that uses features of a newer release.
    #[error(transparent)]
    Outgrown(Fault),
    /// The digest of the pieces differs from the digest in the head.
    #[error("the digest of the state is {found:016x}, expected {expected:016x}")]
    Digest {
        /// The digest in the head.
        expected: u64,
        /// The digest of the pieces.
        found: u64,
    },
}

fn malformed(why: impl Into<String>) -> RestoreError {
    RestoreError::Malformed(why.into())
}

impl Restore {
    /// Begins to rebuild the state that `head` describes.
    ///
    /// # Errors
    /// Fails if the head contradicts itself.
    pub fn new(options: MachineOptions, head: StateHead) -> Result<Self, RestoreError> {
        let (version, known) = (head.version, options.known);
        if version > known {
            return Err(RestoreError::Outgrown(Fault::Outgrown { version, known }));
        }
        let compacted = head.compacted.unwrap_or_default();
        if head.revision < Revision::FIRST || head.revision < compacted {
            return Err(malformed(format!(
                "invalid revision {} (compacted at {compacted})",
                head.revision
            )));
        }
        let leases = LeaseTable::counting_from(head.next_lease)
            .ok_or_else(|| malformed("the next lease id is out of range"))?;
        Ok(Self {
            options,
            history: EventHistory::from(compacted.max(Revision::FIRST.next())),
            head,
            stage: RestoreStage::Rows,
            index: Index::default(),
            open: None,
            leases,
            dedup: DedupTable::default(),
            bytes: 0,
            scratch: Vec::new(),
        })
    }

    /// Adds the next piece.
    ///
    /// # Errors
    /// Fails if this piece is invalid, or cannot follow the pieces before it.
    pub fn add(&mut self, record: SnapshotRecord) -> Result<(), RestoreError> {
        let stage = match &record {
            SnapshotRecord::Rows(_) => RestoreStage::Rows,
            SnapshotRecord::Changes(_) => RestoreStage::Changes,
            SnapshotRecord::Leases(_) => RestoreStage::Leases,
            SnapshotRecord::Lives(_) => RestoreStage::Lives,
            SnapshotRecord::DedupTable(_) => RestoreStage::DedupTable,
        };
        if stage < self.stage {
            return Err(malformed(format!(
                "unexpected records of kind {stage:?} after {:?}",
                self.stage
            )));
        }
        self.stage = stage;
        match record {
            SnapshotRecord::Rows(rows) => rows.iter().try_for_each(|kv| self.row(kv)),
            SnapshotRecord::Changes(changes) => {
                changes.iter().try_for_each(|change| self.change(change))
            }
            SnapshotRecord::Leases(leases) => {
                leases.into_iter().try_for_each(|lease| self.lease(lease))
            }
            SnapshotRecord::Lives(lives) => lives.into_iter().try_for_each(|life| {
                let node = life.node;
                let new = self.dedup.revive(life);
                new.then_some(()).ok_or_else(|| malformed(format!("node {node} occurs twice")))
            }),
            SnapshotRecord::DedupTable(dedup) => dedup.into_iter().try_for_each(|(id, outcome)| {
                let known = self.dedup.restore_reply(id, &outcome);
                known.then_some(()).ok_or_else(|| malformed(format!("unexpected reply to {id:?}")))
            }),
        }
    }

    /// Adds a row that is live at the compacted revision.
    fn row(&mut self, kv: &KeyValue) -> Result<(), RestoreError> {
        let compacted = self.head.compacted.unwrap_or_default();
        if kv.mod_revision > compacted {
            return Err(malformed(format!(
                "a row of revision {} cannot be live at revision {compacted}",
                kv.mod_revision
            )));
        }
        let last = self.index.last();
        if last.is_some_and(|last| last.newest().key() >= &kv.key[..]) {
            return Err(malformed("rows are out of order"));
        }
        let row = self.make(kv)?;
        self.push(row);
        Ok(())
    }

    fn change(&mut self, change: &RowChange) -> Result<(), RestoreError> {
        let revision = change.revision();
        let due = self.open.as_ref().map_or(self.history.next(), |(open, _)| *open);
        // A revision without changes is only possible as the first revision of a store that was
        // restored from a backup.
        let first = self.history.next() == self.history.first();
        let skips = first && self.open.is_none() && Some(due) == self.head.compacted;
        if revision != due {
            let follows = revision == due.next() && (self.open.is_some() || skips);
            if !follows || revision > self.head.revision {
                return Err(malformed(format!(
                    "found changes of revision {revision}, expected {due}"
                )));
            }
            self.close();
        }
        if revision > self.head.revision {
            return Err(malformed(format!(
                "revision {revision} is greater than that of the state, {}",
                self.head.revision
            )));
        }
        let row = self.changed(change, revision)?;
        self.open.get_or_insert((revision, Vec::new())).1.push(row);
        Ok(())
    }

    /// Completes the current revision, if there is one.
    fn close(&mut self) {
        let next = self.history.next();
        let (revision, rows) = self.open.take().unwrap_or((next, Vec::new()));
        self.history.push(revision, StoredRows::collect(rows));
    }

    fn changed(
        &mut self,
        change: &RowChange,
        revision: Revision,
    ) -> Result<StoredRow, RestoreError> {
        let key = match change {
            RowChange::Put(kv) => &kv.key,
            RowChange::Delete { key, .. } => key,
        };
        let before = self.index.get(key).and_then(|rows| rows.live(revision));
        let compacted = self.head.compacted == Some(revision);
        match (change, before) {
            // A row that is live at the compacted revision was added already.
            (RowChange::Put(kv), Some(row)) if compacted && row.key_value() == *kv => {
                Ok(row.to_row())
            }
            (RowChange::Delete { .. }, None) if compacted && !key.is_empty() => {
                Ok(StoredRow::tombstone(&mut self.scratch, key, revision))
            }
            (RowChange::Put(kv), _) if !compacted => {
                let row = self.make(kv)?;
                self.push(row.clone());
                Ok(row)
            }
            (RowChange::Delete { .. }, Some(_)) if !compacted => {
                let row = StoredRow::tombstone(&mut self.scratch, key, revision);
                self.push(row.clone());
                Ok(row)
            }
            _ => {
                let key = key.escape_ascii();
                Err(malformed(format!("invalid change of key {key} at revision {revision}")))
            }
        }
    }

    fn make(&mut self, kv: &KeyValue) -> Result<StoredRow, RestoreError> {
        let KeyValue { key, value, create_revision, mod_revision, version, lease } = kv;
        let sound = !key.is_empty()
            && u32::try_from(key.len()).is_ok()
            && (Revision::FIRST..=*mod_revision).contains(create_revision)
            && *version > 0;
        if !sound {
            let key = key.escape_ascii();
            return Err(malformed(format!("invalid row of key {key}")));
        }
        let (create, modified) = (*create_revision, *mod_revision);
        let meta = Meta { create, modified, version: *version, lease: *lease };
        Ok(StoredRow::new(&mut self.scratch, key, value, meta))
    }

    fn push(&mut self, row: StoredRow) {
        self.bytes += row.view().bytes();
        self.index.push(row);
    }

    fn lease(&mut self, LeaseRow { id, ttl, session }: LeaseRow) -> Result<(), RestoreError> {
        if self.leases.contains(id) {
            return Err(malformed(format!("lease {id} occurs twice")));
        }
        self.leases.grant(id, ttl, session);
        Ok(())
    }

    /// Builds the machine and publishes its whole state.
    ///
    /// # Errors
    /// Fails if pieces are missing or differ from what was written.
    pub fn finish(mut self) -> Result<Machine, RestoreError> {
        let due = self.history.next();
        if self.open.is_some() || (due <= self.head.revision && self.head.compacted == Some(due)) {
            self.close();
        }
        let next = self.history.next();
        if next <= self.head.revision {
            return Err(malformed(format!("missing changes from revision {next} on")));
        }
        let StateHead {
            version,
            index: applied,
            term,
            revision,
            compacted,
            past,
            members,
            access,
            alarms,
            digest,
            ..
        } = self.head;
        let (mut live, leases) = (0u64, &mut self.leases);
        for versions in self.index.iter() {
            let Some(row) = versions.live(revision) else { continue };
            live = live.wrapping_add(row.fingerprint());
            if let Some(lease) = row.meta().lease {
                if !leases.contains(lease) {
                    return Err(malformed(format!(
                        "a row is attached to lease {lease}, which does not exist"
                    )));
                }
                leases.attach(row.key(), None, Some(lease));
            }
        }
        let published = Published { revision, compacted };
        let store =
            RowStore::restored(self.index, self.history, published, self.bytes, (live, past));
        *store.shared().leases_mut() = self.leases;
        let (dedup, new) = (self.dedup, Machine::new(self.options));
        let mut machine = Machine { applied, term, store, dedup, version, ..new };
        machine.set_members(members);
        machine.set_access(Arc::new(access));
        machine.set_alarms(Arc::new(alarms));
        let found = machine.digest();
        if found != digest {
            return Err(RestoreError::Digest { expected: digest, found });
        }
        Ok(machine)
    }
}

impl std::fmt::Debug for Restore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Restore").field("index", &self.head.index).finish_non_exhaustive()
    }
}
