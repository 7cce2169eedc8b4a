//! A state taken out of its cluster, to begin a new one with.
//!
//! What was in the old cluster after the backup is lost, but its clients may still be about: they
//! remember revisions, and hand them to other systems as fencing tokens. So the revisions of the new
//! cluster begin far above (as etcd restores with `--bump-revision` and `--mark-compacted`), and
//! everything before is compacted: a watch that goes on from an old revision is told so, and nobody
//! takes the new past for the old one.
//!
//! Its log begins one entry later than that of other clusters, so that a member whose log is empty is
//! never taken for one that has this state.
//!
//! Rows keep the revisions at which they were created and modified, and their versions. All leases
//! end, since their holders counted on another leader, and their keys are deleted, at the first
//! revision of the new cluster; their ids are not minted again. Users and roles stay, and what
//! was handed out to users is void: it may be of a time after the backup. Alarms end: they
//! are about the members and the disks of the old cluster. The answers are dropped: whoever waits for one waits at a member
//! of the old cluster.

use std::sync::Arc;

use super::dedup_table::DedupTable;
use super::digest::mix;
use super::history::History;
use super::index::Index;
use super::lease::LeaseTable;
use super::row::{Row, Rows};
use super::shared::Published;
use super::store::{Store, expect_sound};
use super::{Machine, RestoreError};
use crate::model::{Fault, LogIndex, Members, Revision, Term};

/// By how much revisions rise when a backup begins a new cluster, unless somebody says otherwise:
/// more than any cluster writes between a backup and its loss.
pub const REVISION_JUMP: u64 = 1_000_000_000;

/// The greatest revision: etcd's clients read revisions as signed numbers.
const REVISION_MAX: u64 = i64::MAX as u64;

/// The greatest revision that a new cluster may begin with: it is left at least as many to write at.
pub const RESEEDED_REVISION_MAX: u64 = REVISION_MAX / 2;

/// How a state begins a new cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reseed {
    /// Who founds it; nobody, if they will say so when they have met ([`Machine::found`]).
    pub members: Members,
    /// By how much the revision rises, at least 1. More than the old cluster wrote after the backup
    /// was taken, or tokens repeat. See [`REVISION_JUMP`].
    pub revision_jump: u64,
}

/// The log entry that a state stands for which begins a new cluster, and its term. See the module.
pub const RESEEDED_AT: (LogIndex, Term) = (LogIndex(2), Term(1));

impl Machine {
    /// The state with which a new cluster begins, at [`RESEEDED_AT`]: the same keys, but for those
    /// of leases. See the module.
    ///
    /// # Errors
    /// The jump is 0 or leads beyond [`RESEEDED_REVISION_MAX`], or a row has changed in memory.
    pub fn reseed(self, how: Reseed) -> Result<Machine, RestoreError> {
        let before = self.store.revision();
        let Some(revision) = before
            .get()
            .checked_add(how.revision_jump)
            .filter(|&revision| how.revision_jump > 0 && revision <= RESEEDED_REVISION_MAX)
            .map(Revision)
        else {
            let jump = how.revision_jump;
            return Err(RestoreError::Malformed(format!("a jump of {jump} from {before}")));
        };
        let (mut index, mut deleted) = (Index::default(), Vec::new());
        let (mut live, mut past, mut bytes) = (0u64, mix(self.store.past() ^ revision.get()), 0);
        let mut scratch = Vec::new();
        let shared = Arc::clone(self.store.shared());
        for row in shared.state().index.iter().filter_map(|rows| rows.live(before)) {
            expect_sound(row).map_err(rotten)?;
            if row.meta().lease.is_some() {
                let tombstone = Row::tombstone(&mut scratch, row.key(), revision);
                past = mix(past.wrapping_add(tombstone.view().fingerprint()));
                deleted.push(tombstone);
            } else {
                live = live.wrapping_add(row.fingerprint());
                bytes += row.bytes();
                index.push(row.to_row());
            }
        }
        let mut history = History::from(revision);
        history.push(revision, Rows::collect(deleted));
        let published = Published { revision, compacted: Some(revision) };
        let store = Store::restored(index, history, published, bytes, (live, past));
        let next = shared.leases().next();
        *store.shared().leases_mut() = LeaseTable::counting_from(next).expect("it counted so far");
        let mut machine = Machine {
            options: self.options,
            applied: RESEEDED_AT.0,
            term: RESEEDED_AT.1,
            store,
            dedup: DedupTable::default(),
            members: Arc::default(),
            access: Arc::default(),
            alarms: Arc::default(),
            version: self.version,
            configuration: 0,
            asker: None,
        };
        machine.set_members(how.members);
        machine.set_access(Arc::new(self.access.reseeded(how.revision_jump)));
        Ok(machine)
    }
}

fn rotten(fault: Fault) -> RestoreError {
    RestoreError::Malformed(fault.to_string())
}
