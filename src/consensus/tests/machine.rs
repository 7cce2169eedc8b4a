//! A minimal state machine: the members, and a digest of everything applied.

use crate::consensus::fault::ConsensusFault;
use crate::consensus::member_change;
use crate::model::{LogIndex, Members, SnapshotId};
use crate::wal;

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Machine {
    pub(super) applied: wal::Base,
    pub(super) members: Members,
    digest: u64,
}

impl Machine {
    /// Creates the initial state.
    pub(super) fn new(members: Members) -> Self {
        Self { applied: wal::Base::default(), members, digest: 0 }
    }

    /// Creates a state after `applied` of which only the members are known.
    pub(super) fn made_up(applied: wal::Base, members: Members) -> Self {
        Self { applied, members, digest: 0 }
    }

    /// Applies an entry. An invalid membership change only advances the applied index.
    pub(super) fn apply(&mut self, entry: &wal::Entry) -> Result<(), ConsensusFault> {
        assert_eq!(entry.index, self.applied.index.next(), "R-APPLIED");
        if entry.kind == wal::EntryKind::Membership {
            let change = member_change(entry)?;
            if self.members.validate(&change).is_ok() {
                self.members.apply(entry.index, &change);
            }
        }
        for byte in &entry.data[..] {
            self.digest = (self.digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
        self.digest = self.digest.wrapping_add(entry.term.get()).rotate_left(7);
        self.applied = wal::Base { index: entry.index, term: entry.term };
        Ok(())
    }

    /// Returns the id of a snapshot of this state.
    pub(super) fn id(&self) -> SnapshotId {
        let wal::Base { index, term } = self.applied;
        SnapshotId { index, term, bytes: 100, checksum: self.digest }
    }

    pub(super) fn index(&self) -> LogIndex {
        self.applied.index
    }
}
