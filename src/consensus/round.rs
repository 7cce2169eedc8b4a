//! Read rounds: how a leader learns that it still led when a question came.

use crate::model::{Incarnation, NodeId};

/// A round's name, given by the node for its own book-keeping. Use a new one for each attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct RoundId {
    /// Who named it.
    pub(crate) node: NodeId,
    /// In which of its lives.
    pub(crate) incarnation: Incarnation,
    /// Counts rounds.
    pub(crate) counter: u64,
}

/// What travels with the heartbeats of a round and back.
///
/// Raft confirms a round by these bytes alone: were they used a second time, an answer to the first
/// round could confirm the second one, at an index from before it was asked. So the leader adds a
/// number of its own, that only rises; whatever names the node gives, no two rounds look alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RoundContext {
    /// Counts the rounds begun in this process.
    pub(super) serial: u64,
    pub(super) id: RoundId,
}

impl RoundContext {
    /// Its length, in bytes.
    pub(super) const BYTES: usize = 32;

    /// `serial | node | incarnation | counter`, 8 bytes each, little end first.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let RoundId { node, incarnation, counter } = self.id;
        let mut bytes = Vec::with_capacity(Self::BYTES);
        for number in [self.serial, node.get(), incarnation.get(), counter] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// The round of these bytes, if they are a round's.
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
    fn a_context_reads_back_as_it_was_written_and_nothing_else_reads_as_one() {
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
