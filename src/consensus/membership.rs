//! Converts memberships and membership changes for the raft crate.
//!
//! ```text
//! entry = transition 0 | changes in raft's encoding | context: the MemberChange, as codec encodes it
//!         (nothing at all: LeaveJoint, which raft proposes by itself)
//! ```
//!
//! An entry contains a change twice: as a `MemberChange`, and in raft's encoding, which is derived
//! from the `MemberChange`. If the two do not match, no correct member has written the entry, and
//! the entry is rejected.

use std::collections::BTreeSet;

use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState};
use thiserror::Error;

use crate::codec::{self, CodecError};
use crate::model::{MemberChange, Members, NodeId};
use crate::wal;

use super::fault::ConsensusFault;

/// Maximum size of a membership change in bytes. Names and addresses are the largest parts of a
/// change.
pub(super) const CHANGE_BYTES_MAX: usize = 4 << 10;

/// The reason why bytes are not a membership change.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub(crate) enum ChangeError {
    /// The bytes are longer than any change.
    #[error("membership change of {bytes} bytes exceeds the limit of {CHANGE_BYTES_MAX} bytes")]
    TooLong {
        /// Length in bytes.
        bytes: usize,
    },
    /// The bytes are not valid protobuf.
    #[error("membership change is not valid protobuf: {0}")]
    Protobuf(String),
    /// The contained change cannot be decoded.
    #[error(transparent)]
    Change(#[from] CodecError),
    /// The encoding differs from the one that a member writes for this change.
    #[error("membership change is not encoded in canonical form")]
    NotCanonical,
}

/// Decodes the change in a log entry.
///
/// # Errors
/// Fails if no member wrote this entry, or if a newer version wrote it.
pub(crate) fn member_change(entry: &wal::Entry) -> Result<MemberChange, ConsensusFault> {
    assert_eq!(entry.kind, wal::EntryKind::Membership, "entry {}", entry.index);
    read_change(&entry.data)
        .map_err(|error| ConsensusFault::Membership { index: entry.index, why: error.to_string() })
}

/// Decodes the change in the data of an entry.
pub(super) fn read_change(data: &Bytes) -> Result<MemberChange, ChangeError> {
    if data.is_empty() {
        return Ok(MemberChange::LeaveJoint);
    }
    if data.len() > CHANGE_BYTES_MAX {
        return Err(ChangeError::TooLong { bytes: data.len() });
    }
    let change = ConfChangeV2::parse_from_carllerche_bytes(data)
        .map_err(|error| ChangeError::Protobuf(error.to_string()))?;
    let change = codec::decode_member_change(change.context)?;
    if write_change(&change) != *data { Err(ChangeError::NotCanonical) } else { Ok(change) }
}

/// Encodes a change as the data of an entry.
pub(super) fn write_change(change: &MemberChange) -> Vec<u8> {
    to_raft(change).write_to_bytes().expect("every field of a change is optional")
}

pub(super) fn to_raft(change: &MemberChange) -> ConfChangeV2 {
    use ConfChangeType::{AddLearnerNode, AddNode, RemoveNode};
    let changes = match change {
        // Raft proposes LeaveJoint itself, as an empty change without a context.
        MemberChange::LeaveJoint => return ConfChangeV2::default(),
        // A claimed reserved member stays a learner, so raft's configuration does not change.
        MemberChange::Add { id, .. } | MemberChange::Take { id, .. } => vec![(AddLearnerNode, *id)],
        MemberChange::Promote(id) => vec![(AddNode, *id)],
        MemberChange::Remove(id) => vec![(RemoveNode, *id)],
        // With two changes at once, raft enters a joint configuration and leaves it by itself.
        MemberChange::Replace { old, new } => vec![(AddNode, *new), (RemoveNode, *old)],
    };
    let single = |(change_type, id): (ConfChangeType, NodeId)| ConfChangeSingle {
        change_type,
        node_id: id.get(),
        ..ConfChangeSingle::default()
    };
    ConfChangeV2 {
        changes: changes.into_iter().map(single).collect::<Vec<_>>().into(),
        context: codec::encode_member_change(change).into(),
        ..ConfChangeV2::default()
    }
}

/// The voters and learners.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Configuration {
    pub(super) voters: BTreeSet<NodeId>,
    /// The voters before a replacement in progress. Until the replacement completes, a majority of
    /// these voters must agree as well.
    pub(super) outgoing: BTreeSet<NodeId>,
    pub(super) learners: BTreeSet<NodeId>,
}

impl Configuration {
    /// Returns the configuration of these members.
    pub(super) fn of(members: &Members) -> Self {
        Self {
            voters: members.voters().collect(),
            outgoing: members.outgoing().clone(),
            learners: members.learners().collect(),
        }
    }

    /// Converts raft's configuration, in any order. Returns `None` if no membership can have this
    /// configuration.
    pub(super) fn from_raft(state: &ConfState) -> Option<Self> {
        let set = |ids: &[u64]| -> Option<BTreeSet<NodeId>> {
            let set: BTreeSet<NodeId> =
                ids.iter().copied().map(NodeId::new).collect::<Option<_>>()?;
            (set.len() == ids.len()).then_some(set)
        };
        let configuration = Self {
            voters: set(&state.voters)?,
            outgoing: set(&state.voters_outgoing)?,
            learners: set(&state.learners)?,
        };
        let Self { voters, outgoing, learners } = &configuration;
        // A voter never becomes a learner, so there are no pending learners.
        let makes_sense = !voters.is_empty()
            && learners.is_disjoint(voters)
            && learners.is_disjoint(outgoing)
            && state.learners_next.is_empty()
            && state.auto_leave == configuration.is_joint();
        makes_sense.then_some(configuration)
    }

    /// Converts the configuration for raft, in the order of the ids.
    pub(super) fn to_raft(&self) -> ConfState {
        let numbers = |set: &BTreeSet<NodeId>| set.iter().map(|id| id.get()).collect::<Vec<_>>();
        ConfState {
            voters: numbers(&self.voters),
            voters_outgoing: numbers(&self.outgoing),
            learners: numbers(&self.learners),
            auto_leave: self.is_joint(),
            ..ConfState::default()
        }
    }

    /// Returns the configuration after a valid change.
    pub(super) fn after(&self, change: &MemberChange) -> Self {
        let mut after = self.clone();
        match change {
            MemberChange::Add { id, .. } => drop(after.learners.insert(*id)),
            MemberChange::Take { .. } => {}
            MemberChange::Promote(id) => {
                after.learners.remove(id);
                after.voters.insert(*id);
            }
            MemberChange::Remove(id) => {
                after.learners.remove(id);
                after.voters.remove(id);
            }
            MemberChange::Replace { old, new } => {
                after.outgoing = self.voters.clone();
                after.voters.remove(old);
                after.learners.remove(new);
                after.voters.insert(*new);
            }
            MemberChange::LeaveJoint => after.outgoing.clear(),
        }
        after
    }

    pub(super) fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Returns whether the member is a voter before or after a replacement in progress.
    pub(super) fn is_voter(&self, id: NodeId) -> bool {
        self.voters.contains(&id) || self.outgoing.contains(&id)
    }

    pub(super) fn contains(&self, id: NodeId) -> bool {
        self.is_voter(id) || self.learners.contains(&id)
    }

    /// Returns all members in the order of their ids.
    pub(super) fn ids(&self) -> BTreeSet<NodeId> {
        self.voters.iter().chain(&self.outgoing).chain(&self.learners).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DiskId;
    use crate::model::samples::node;

    fn changes() -> Vec<MemberChange> {
        let add = MemberChange::Add {
            id: node(4),
            disk: DiskId(9),
            name: "delta".into(),
            address: "d:1".into(),
            replaces: Some(node(2)),
        };
        let replace = MemberChange::Replace { old: node(2), new: node(4) };
        let (promote, remove) = (MemberChange::Promote(node(4)), MemberChange::Remove(node(1)));
        vec![add, promote, remove, replace, MemberChange::LeaveJoint]
    }

    #[test]
    fn change_round_trips_and_an_empty_change_leaves_joint() {
        for change in changes() {
            assert_eq!(read_change(&write_change(&change).into()), Ok(change));
        }
        assert_eq!(read_change(&Bytes::new()), Ok(MemberChange::LeaveJoint));
        assert!(write_change(&MemberChange::LeaveJoint).is_empty());
    }

    #[test]
    fn change_with_mismatched_halves_is_rejected() {
        let mut change = to_raft(&MemberChange::Promote(node(4)));
        change.context = codec::encode_member_change(&MemberChange::Promote(node(5))).into();
        let bytes = change.write_to_bytes().unwrap();
        assert_eq!(read_change(&bytes.into()), Err(ChangeError::NotCanonical));
        let mut change = to_raft(&MemberChange::Remove(node(4)));
        change.set_transition(raft::eraftpb::ConfChangeTransition::Explicit);
        let bytes = change.write_to_bytes().unwrap();
        assert_eq!(read_change(&bytes.into()), Err(ChangeError::NotCanonical));
    }

    #[test]
    fn damaged_change_is_rejected_or_another_change() {
        for change in changes() {
            let whole = write_change(&change);
            for len in 1..whole.len() {
                assert!(read_change(&Bytes::copy_from_slice(&whole[..len])).is_err());
            }
            for bit in 0..8 * whole.len() {
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                if let Ok(other) = read_change(&bytes.clone().into()) {
                    assert_eq!(write_change(&other), bytes);
                }
            }
        }
        let long = vec![0x1a; CHANGE_BYTES_MAX + 1];
        let refused = Err(ChangeError::TooLong { bytes: long.len() });
        assert_eq!(read_change(&long.into()), refused);
    }

    #[test]
    fn a_configuration_follows_the_members_through_every_change() {
        let mut members = Members::founded(&(1..=3).map(|n| (node(n), DiskId(n.into()))).collect());
        let mut configuration = Configuration::of(&members);
        let [add, promote, remove, replace, leave] = &changes()[..] else { panic!() };
        let restored = Configuration::from_raft(&configuration.to_raft());
        assert_eq!(restored, Some(configuration.clone()));
        for change in [add, replace, leave, remove] {
            members.apply(crate::model::LogIndex(2), change);
            configuration = configuration.after(change);
            assert_eq!(configuration, Configuration::of(&members), "after {change:?}");
            let restored = Configuration::from_raft(&configuration.to_raft());
            assert_eq!(restored, Some(configuration.clone()));
        }
        assert!(members.validate(promote).is_err());
    }

    #[test]
    fn impossible_configurations_are_rejected() {
        let state = |change: fn(&mut ConfState)| {
            let mut state = ConfState { voters: vec![1, 2], ..ConfState::default() };
            change(&mut state);
            Configuration::from_raft(&state)
        };
        assert!(state(|_| ()).is_some());
        assert!(state(|s| s.voters.clear()).is_none());
        assert!(state(|s| s.voters.push(1)).is_none());
        assert!(state(|s| s.voters.push(0)).is_none());
        assert!(state(|s| s.learners.push(2)).is_none());
        assert!(state(|s| s.learners_next.push(3)).is_none());
        assert!(state(|s| s.auto_leave = true).is_none());
        assert!(state(|s| s.voters_outgoing = vec![1, 2]).is_none());
        let joint = |s: &mut ConfState| (s.voters_outgoing, s.auto_leave) = (vec![1, 3], true);
        assert!(state(joint).is_some());
    }
}
