//! Read rounds. In a read round, a leader asks a quorum to confirm that it was still the leader
//! when a read arrived.

use crate::model::{Incarnation, NodeId};

/// The id of a read round, chosen by the node. Each attempt needs a new id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct RoundId {
    /// The node that chose the id.
    pub(crate) node: NodeId,
    /// Incarnation of that node.
    pub(crate) incarnation: Incarnation,
    /// Number of the round.
    pub(crate) counter: u64,
}

/// The context of a round, which is sent with its heartbeats and returned in the replies.
///
/// Raft identifies a round by these bytes alone. If two rounds had the same bytes, a late reply to
/// the first round could confirm the second one. A read could then miss writes that were committed
/// in between. Therefore the leader adds an increasing serial number, so that no two rounds have
/// the same context, even if a node uses an id twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RoundContext {
    /// Number of rounds started in this process.
    pub(super) serial: u64,
    pub(super) id: RoundId,
}

impl RoundContext {
    /// Encoded length in bytes.
    pub(super) const BYTES: usize = 32;

    /// Encodes `serial | node | incarnation | counter`, 8 bytes each, little-endian.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let RoundId { node, incarnation, counter } = self.id;
        let mut bytes = Vec::with_capacity(Self::BYTES);
        for number in [self.serial, node.get(), incarnation.get(), counter] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Decodes a context. Returns `None` if the bytes are not a valid context.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks::<8>();
        let (&[serial, node, incarnation, counter], []) = (numbers, rest) else { return None };
        let node = NodeId::new(u64::from_le_bytes(node))?;
        let incarnation = Incarnation(u64::from_le_bytes(incarnation));
        let id = RoundId { node, incarnation, counter: u64::from_le_bytes(counter) };
        Some(Self { serial: u64::from_le_bytes(serial), id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_round_context_round_trips_and_rejects_other_bytes() {
        let id = RoundId {
            node: NodeId::new(3).unwrap(),
            incarnation: Incarnation(9),
            counter: u64::MAX,
        };
        let context = RoundContext { serial: 1, id };
        let bytes = context.to_bytes();
        assert_eq!(bytes.len(), RoundContext::BYTES);
        assert_eq!(RoundContext::from_bytes(&bytes), Some(context));
        assert_eq!(RoundContext::from_bytes(&bytes[..31]), None);
        assert_eq!(RoundContext::from_bytes(&[bytes.as_slice(), &[0]].concat()), None);
        assert_eq!(RoundContext::from_bytes(&[0; 32]), None, "node 0 names nobody");
    }
}
