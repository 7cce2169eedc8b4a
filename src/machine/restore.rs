//! A machine made of the parts of another one.
//!
//! What comes in was written by a disk or a peer: nothing in it is taken for granted that a later
//! step would rely on, and in the end the digest of what was made is compared with the one that the
//! parts came with.

use std::sync::Arc;

use thiserror::Error;

use super::dedup_table::DedupTable;
use super::history::History;
use super::index::Index;
use super::lease::LeaseTable;
use super::row::{Meta, Row, Rows};
use super::shared::Published;
use super::store::Store;
use super::{Machine, MachineOptions};
use crate::model::{Fault, KeyValue, LeaseRow, Revision, RowChange, SnapshotRecord, StateHead};

/// A machine in the making. Pieces go in, in the order in which an image hands them out.
pub struct Restore {
    options: MachineOptions,
    head: StateHead,
    stage: Stage,
    index: Index,
    history: History,
    /// The changes of the revision at hand, which may go on in the next piece.
    open: Option<(Revision, Vec<Row>)>,
    leases: LeaseTable,
    dedup: DedupTable,
    bytes: u64,
    scratch: Vec<u8>,
}

/// The kinds of pieces, in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    Rows,
    Changes,
    Leases,
    Lives,
    DedupTable,
}

/// Why no machine can be made of these parts.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RestoreError {
    /// They are not the parts of any state.
    #[error("not the state of a store: {0}")]
    Malformed(String),
    /// They are of a cluster that uses what only a newer build understands.
    #[error(transparent)]
    Outgrown(Fault),
    /// They are not the parts of the state that they claim to be.
    #[error("the state has digest {found:016x}, {expected:016x} was written with it")]
    Digest {
        /// What came with the parts.
        expected: u64,
        /// What the parts amount to.
        found: u64,
    },
}

fn malformed(why: impl Into<String>) -> RestoreError {
    RestoreError::Malformed(why.into())
}

impl Restore {
    /// Begins with what is known beforehand.
    ///
    /// # Errors
    /// The head contradicts itself.
    pub fn new(options: MachineOptions, head: StateHead) -> Result<Self, RestoreError> {
        let (version, known) = (head.version, options.known);
        if version > known {
            return Err(RestoreError::Outgrown(Fault::Outgrown { version, known }));
        }
        let compacted = head.compacted.unwrap_or_default();
        if head.revision < Revision::FIRST || head.revision < compacted {
            return Err(malformed(format!("revision {}, compacted at {compacted}", head.revision)));
        }
        let leases = LeaseTable::counting_from(head.next_lease)
            .ok_or_else(|| malformed("no lease can have the next number"))?;
        Ok(Self {
            options,
            history: History::from(compacted.max(Revision::FIRST.next())),
            head,
            stage: Stage::Rows,
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
    /// It cannot be one of this state, here.
    pub fn add(&mut self, record: SnapshotRecord) -> Result<(), RestoreError> {
        let stage = match &record {
            SnapshotRecord::Rows(_) => Stage::Rows,
            SnapshotRecord::Changes(_) => Stage::Changes,
            SnapshotRecord::Leases(_) => Stage::Leases,
            SnapshotRecord::Lives(_) => Stage::Lives,
            SnapshotRecord::DedupTable(_) => Stage::DedupTable,
        };
        if stage < self.stage {
            return Err(malformed(format!("{stage:?} after {:?}", self.stage)));
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
                new.then_some(()).ok_or_else(|| malformed(format!("node {node} asks twice")))
            }),
            SnapshotRecord::DedupTable(dedup) => dedup.into_iter().try_for_each(|(id, outcome)| {
                let known = self.dedup.recall(id, &outcome);
                known.then_some(()).ok_or_else(|| malformed(format!("an answer to {id:?}")))
            }),
        }
    }

    /// A row live at the compacted revision.
    fn row(&mut self, kv: &KeyValue) -> Result<(), RestoreError> {
        let compacted = self.head.compacted.unwrap_or_default();
        if kv.mod_revision > compacted {
            return Err(malformed(format!(
                "a row of revision {}, live at {compacted}",
                kv.mod_revision
            )));
        }
        let last = self.index.last();
        if last.is_some_and(|last| last.newest().key() >= &kv.key[..]) {
            return Err(malformed("rows out of order"));
        }
        let row = self.make(kv)?;
        self.push(row);
        Ok(())
    }

    fn change(&mut self, change: &RowChange) -> Result<(), RestoreError> {
        let revision = change.revision();
        let due = self.open.as_ref().map_or(self.history.next(), |(open, _)| *open);
        // Only the first revision of a store made from a backup may have changed nothing.
        let first = self.history.next() == self.history.first();
        let skips = first && self.open.is_none() && Some(due) == self.head.compacted;
        if revision != due {
            let follows = revision == due.next() && (self.open.is_some() || skips);
            if !follows || revision > self.head.revision {
                return Err(malformed(format!("revision {revision} where {due} is due")));
            }
            self.close();
        }
        if revision > self.head.revision {
            return Err(malformed(format!("revision {revision} of {}", self.head.revision)));
        }
        let row = self.changed(change, revision)?;
        self.open.get_or_insert((revision, Vec::new())).1.push(row);
        Ok(())
    }

    /// Makes the changes at hand, if there are any, those of their revision.
    fn close(&mut self) {
        let next = self.history.next();
        let (revision, rows) = self.open.take().unwrap_or((next, Vec::new()));
        self.history.push(revision, Rows::collect(rows));
    }

    fn changed(&mut self, change: &RowChange, revision: Revision) -> Result<Row, RestoreError> {
        let key = match change {
            RowChange::Put(kv) => &kv.key,
            RowChange::Delete { key, .. } => key,
        };
        let before = self.index.get(key).and_then(|rows| rows.live(revision));
        let compacted = self.head.compacted == Some(revision);
        match (change, before) {
            // A row that is live at the compacted revision has come already.
            (RowChange::Put(kv), Some(row)) if compacted && row.key_value() == *kv => {
                Ok(row.to_row())
            }
            (RowChange::Delete { .. }, None) if compacted && !key.is_empty() => {
                Ok(Row::tombstone(&mut self.scratch, key, revision))
            }
            (RowChange::Put(kv), _) if !compacted => {
                let row = self.make(kv)?;
                self.push(row.clone());
                Ok(row)
            }
            (RowChange::Delete { .. }, Some(_)) if !compacted => {
                let row = Row::tombstone(&mut self.scratch, key, revision);
                self.push(row.clone());
                Ok(row)
            }
            _ => {
                let key = key.escape_ascii();
                Err(malformed(format!("a change of key {key} at {revision} that cannot have been")))
            }
        }
    }

    fn make(&mut self, kv: &KeyValue) -> Result<Row, RestoreError> {
        let KeyValue { key, value, create_revision, mod_revision, version, lease } = kv;
        let sound = !key.is_empty()
            && u32::try_from(key.len()).is_ok()
            && (Revision::FIRST..=*mod_revision).contains(create_revision)
            && *version > 0;
        if !sound {
            let key = key.escape_ascii();
            return Err(malformed(format!("a row of key {key} that cannot have been")));
        }
        let (create, modified) = (*create_revision, *mod_revision);
        let meta = Meta { create, modified, version: *version, lease: *lease };
        Ok(Row::new(&mut self.scratch, key, value, meta))
    }

    fn push(&mut self, row: Row) {
        self.bytes += row.view().bytes();
        self.index.push(row);
    }

    fn lease(&mut self, LeaseRow { id, ttl, session }: LeaseRow) -> Result<(), RestoreError> {
        if self.leases.contains(id) {
            return Err(malformed(format!("lease {id} twice")));
        }
        self.leases.grant(id, ttl, session);
        Ok(())
    }

    /// Makes the machine, with everything published.
    ///
    /// # Errors
    /// The parts are not all, or not those that were written.
    pub fn finish(mut self) -> Result<Machine, RestoreError> {
        let due = self.history.next();
        if self.open.is_some() || (due <= self.head.revision && self.head.compacted == Some(due)) {
            self.close();
        }
        let next = self.history.next();
        if next <= self.head.revision {
            return Err(malformed(format!("nothing since revision {next}")));
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
                    return Err(malformed(format!("a row of lease {lease}, which is not there")));
                }
                leases.attach(row.key(), None, Some(lease));
            }
        }
        let published = Published { revision, compacted };
        let store = Store::restored(self.index, self.history, published, self.bytes, (live, past));
        *store.shared().leases_mut() = self.leases;
        let mut machine = Machine {
            options: self.options,
            applied,
            term,
            store,
            dedup: self.dedup,
            members: Arc::default(),
            access: Arc::default(),
            alarms: Arc::default(),
            version,
            configuration: 0,
            asker: None,
        };
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
