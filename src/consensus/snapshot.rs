//! A snapshot as raft sees it: an index, a term, a configuration, and which file holds the rest.
//!
//! Raft's message carries no state, only the [`SnapshotId`] of a file that the receiver fetches from
//! the sender by other messages. Until it has done so, raft is not told of the message.
//!
//! ```text
//! data = bytes u64 | checksum u64     little end first; index and term stand in the metadata
//! ```

use bytes::Bytes;
use raft::eraftpb::{Message, Snapshot, SnapshotMetadata};

use crate::model::{LogIndex, Members, NodeId, SnapshotId, Term};

use super::membership::Configuration;

/// A peer has a snapshot that this member needs. See [`Consensus::take_snapshot`].
///
/// [`Consensus::take_snapshot`]: super::Consensus::take_snapshot
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Offer {
    /// Who has it.
    pub(crate) from: NodeId,
    /// Which file.
    pub(crate) id: SnapshotId,
    pub(super) message: Box<Message>,
}

/// What became of a message that was stepped.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Stepped {
    /// It is done with.
    Done,
    /// It speaks of a snapshot, which must be here first.
    Offer(Offer),
}

/// What became of an offer whose file is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// A turn will say to install it.
    Installing,
    /// Nothing is to be installed: what it covers has come by other ways, or raft does not want it.
    Needless,
    /// Not now: nobody is known to lead, or another one is being installed. Try again, or drop it.
    Later,
}

/// The snapshot in raft's words.
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

/// Which file raft's snapshot speaks of, and who the members are there. `None`: no member sends this.
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
    // One that is being replaced is a member no more, and still there.
    let fits = configuration.ids().len() <= Members::MEMBERS_MAX + 1;
    // The same bytes, or another member wrote them.
    (fits && *snapshot == to_raft(id, &configuration)).then_some((id, configuration))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u64) -> NodeId {
        NodeId::new(id).unwrap()
    }

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
    fn what_no_member_writes_is_no_snapshot() {
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
