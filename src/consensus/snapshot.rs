//! Snapshots in raft's format: an index, a term, a configuration, and the id of the file with the
//! state.
//!
//! Raft's snapshot message does not contain the state, only the [`SnapshotId`] of a file with the
//! state. The receiver fetches this file from the sender with separate messages. Raft processes the
//! snapshot message only after the file was fetched.
//!
//! ```text
//! data = bytes u64 | checksum u64     little-endian; index and term are in the metadata
//! ```

use bytes::Bytes;
use raft::eraftpb::{Message, Snapshot, SnapshotMetadata};

use crate::model::{LogIndex, Members, NodeId, SnapshotId, Term};

use super::membership::Configuration;

/// An offer by a peer of a snapshot that this member needs. See [`Consensus::take_snapshot`].
///
/// [`Consensus::take_snapshot`]: super::Consensus::take_snapshot
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Offer {
    /// The peer that offers the snapshot.
    pub(crate) from: NodeId,
    /// Id of the file.
    pub(crate) id: SnapshotId,
    pub(super) message: Box<Message>,
}

/// The result of processing a message.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Stepped {
    /// The message was processed.
    Done,
    /// The message refers to a snapshot, which must be fetched first.
    Offer(Offer),
}

/// The result of accepting a fetched snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// A later turn contains the snapshot in its field `install`.
    Installing,
    /// The snapshot need not be installed: its entries have arrived in another way, or raft rejects
    /// it.
    Needless,
    /// The snapshot cannot be accepted now, because no leader is known or another snapshot is being
    /// installed. The caller may retry or drop the snapshot.
    Later,
}

pub(super) fn to_raft(id: SnapshotId, configuration: &Configuration) -> Snapshot {
    let mut data = Vec::with_capacity(16);
    data.extend_from_slice(&id.bytes.to_le_bytes());
    data.extend_from_slice(&id.checksum.to_le_bytes());
    let metadata = SnapshotMetadata {
        conf_state: Some(configuration.to_raft()).into(),
        index: id.index.get(),
        term: id.term.get(),
        ..SnapshotMetadata::default()
    };
    Snapshot { data: Bytes::from(data), metadata: Some(metadata).into(), ..Snapshot::default() }
}

/// Returns the file and the configuration in raft's snapshot. Returns `None` if no member sends
/// this snapshot.
pub(super) fn from_raft(snapshot: &Snapshot) -> Option<(SnapshotId, Configuration)> {
    let metadata = snapshot.get_metadata();
    let (numbers, rest) = snapshot.data.as_chunks::<8>();
    let (&[bytes, checksum], []) = (numbers, rest) else { return None };
    let id = SnapshotId {
        index: LogIndex(metadata.index),
        term: Term(metadata.term),
        bytes: u64::from_le_bytes(bytes),
        checksum: u64::from_le_bytes(checksum),
    };
    let configuration = Configuration::from_raft(metadata.get_conf_state())?;
    // A voter that is being replaced is in the configuration, in addition to the members.
    let fits = configuration.ids().len() <= Members::MEMBERS_MAX + 1;
    // Accept only the exact encoding that a member writes.
    (fits && *snapshot == to_raft(id, &configuration)).then_some((id, configuration))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::node;

    fn snapshot() -> Snapshot {
        let id = SnapshotId { index: LogIndex(9), term: Term(3), bytes: 1 << 40, checksum: 77 };
        let configuration = Configuration {
            voters: [1, 2, 4].map(node).into(),
            outgoing: [1, 2, 3].map(node).into(),
            learners: [7].map(node).into(),
        };
        let snapshot = to_raft(id, &configuration);
        assert_eq!(from_raft(&snapshot), Some((id, configuration)));
        snapshot
    }

    #[test]
    fn impossible_raft_snapshots_are_rejected() {
        let changed = |change: fn(&mut Snapshot)| {
            let mut snapshot = snapshot();
            change(&mut snapshot);
            from_raft(&snapshot)
        };
        assert!(changed(|_| ()).is_some());
        assert!(changed(|s| s.data = Bytes::new()).is_none());
        assert!(changed(|s| s.data = vec![0; 17].into()).is_none());
        assert!(changed(|s| s.mut_metadata().mut_conf_state().voters.reverse()).is_none());
        assert!(changed(|s| s.mut_metadata().mut_conf_state().voters.push(4)).is_none());
        assert!(changed(|s| s.mut_metadata().clear_conf_state()).is_none());
        assert!(changed(|s| s.clear_metadata()).is_none());
        let many = |s: &mut Snapshot| {
            s.mut_metadata().mut_conf_state().learners = (8..80).collect();
        };
        assert!(changed(many).is_none());
    }
}
