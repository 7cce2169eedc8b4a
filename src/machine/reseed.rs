//! Prepares the state of a backup as the start of a new cluster.
//!
//! Everything that the old cluster wrote after the backup is lost, but clients of the old cluster
//! may still run. These clients remember revisions, and pass revisions to other systems as fencing
//! tokens. Therefore the revisions of the new cluster begin far higher (like etcd's restore with
//! `--bump-revision` and `--mark-compacted`), and everything before is compacted. A watch that
//! continues from an old revision gets an error, so no client mistakes the new history for the old
//! one.
//!
//! The log of the new cluster begins one entry later than that of other clusters. Therefore a
//! member with an empty log is never mistaken for one with this state.
//!
//! - Rows keep their versions and the revisions at which they were created and modified.
//! - All leases end at the first revision of the new cluster, because their holders relied on
//!   another leader. The keys of these leases are deleted, and the ids of the leases are not
//!   assigned again.
//! - Users and roles are kept. Authentication tokens that the old cluster issued become invalid,
//!   because they may be newer than the backup.
//! - Alarms are cleared, because they concern the members and disks of the old cluster.
//! - The dedup table is dropped, because only members of the old cluster could retry the requests
//!   in it.

use std::sync::Arc;

use super::digest::mix;
use super::history::EventHistory;
use super::index::Index;
use super::lease::LeaseTable;
use super::row::{StoredRow, StoredRows};
use super::shared::Published;
use super::store::{RowStore, expect_sound};
use super::{Machine, RestoreError};
use crate::model::{Fault, LogIndex, Members, Revision, Term};

/// Default number that is added to the revision when a backup starts a new cluster: more than any
/// cluster writes between a backup and its loss.
pub const REVISION_JUMP: u64 = 1_000_000_000;

/// The highest revision, because etcd's clients treat revisions as signed numbers.
const REVISION_MAX: u64 = i64::MAX as u64;

/// The highest first revision of a new cluster. At least as many revisions remain for the writes of
/// the new cluster.
pub const RESEEDED_REVISION_MAX: u64 = REVISION_MAX / 2;

/// The options for starting a new cluster from a state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reseed {
    /// The founders of the new cluster. Empty if the founders will be set later
    /// ([`Machine::found`]).
    pub members: Members,
    /// Number that is added to the revision, at least 1. The jump must be larger than the number of
    /// revisions that the old cluster has written after the backup was taken. Otherwise fencing
    /// tokens repeat. See [`REVISION_JUMP`].
    pub revision_jump: u64,
}

/// Index and term at which the log of a restored cluster begins. See the module page.
pub const RESEEDED_AT: (LogIndex, Term) = (LogIndex(2), Term(1));

impl Machine {
    /// Returns the state with which a restored cluster begins, at [`RESEEDED_AT`]. The new state
    /// contains the same keys, except for the keys of leases. See the module page.
    ///
    /// # Errors
    /// Fails if the jump is 0 or leads beyond [`RESEEDED_REVISION_MAX`], or if the memory of a row
    /// was corrupted.
    pub fn reseed(self, how: Reseed) -> Result<Machine, RestoreError> {
        let before = self.store.revision();
        let Some(revision) = before
            .get()
            .checked_add(how.revision_jump)
            .filter(|&revision| how.revision_jump > 0 && revision <= RESEEDED_REVISION_MAX)
            .map(Revision)
        else {
            let jump = how.revision_jump;
            return Err(RestoreError::Malformed(format!(
                "invalid revision jump of {jump} from {before}"
            )));
        };
        let (mut index, mut deleted) = (Index::default(), Vec::new());
        let (mut live, mut past, mut bytes) = (0u64, mix(self.store.past() ^ revision.get()), 0);
        let mut scratch = Vec::new();
        let shared = Arc::clone(self.store.shared());
        for row in shared.state().index.iter().filter_map(|rows| rows.live(before)) {
            expect_sound(row).map_err(rotten)?;
            if row.meta().lease.is_some() {
                let tombstone = StoredRow::tombstone(&mut scratch, row.key(), revision);
                past = mix(past.wrapping_add(tombstone.view().fingerprint()));
                deleted.push(tombstone);
            } else {
                live = live.wrapping_add(row.fingerprint());
                bytes += row.bytes();
                index.push(row.to_row());
            }
        }
        let mut history = EventHistory::from(revision);
        history.push(revision, StoredRows::collect(deleted));
        let published = Published { revision, compacted: Some(revision) };
        let store = RowStore::restored(index, history, published, bytes, (live, past));
        let next = shared.leases().next();
        *store.shared().leases_mut() = LeaseTable::counting_from(next).expect("it counted so far");
        let mut machine = Machine {
            applied: RESEEDED_AT.0,
            term: RESEEDED_AT.1,
            store,
            version: self.version,
            ..Machine::new(self.options)
        };
        machine.set_members(how.members);
        machine.set_access(Arc::new(self.access.reseeded(how.revision_jump)));
        Ok(machine)
    }
}

fn rotten(fault: Fault) -> RestoreError {
    RestoreError::Malformed(fault.to_string())
}
