//! Votes as they cross the wire, for whoever judges a cluster from outside.

use bytes::Bytes;
use raft::eraftpb::MessageType;

use super::wire;
use crate::model::{NodeId, Term};

/// A vote that a message carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Vote {
    /// Who votes.
    pub(crate) voter: NodeId,
    /// For whom.
    pub(crate) candidate: NodeId,
    /// In which term.
    pub(crate) term: Term,
}

impl Vote {
    /// The vote in a message of the consensus: one that is given, or a candidate's own, which goes with
    /// its request for others.
    pub(crate) fn in_message(bytes: &Bytes) -> Option<Vote> {
        // Most messages are something else, and say so first.
        let asks = [8, MessageType::MsgRequestVote as u8];
        let answers = [8, MessageType::MsgRequestVoteResponse as u8];
        if !bytes.starts_with(&asks) && !bytes.starts_with(&answers) {
            return None;
        }
        let message = wire::decode(bytes).ok()?;
        let (from, to) = (NodeId::new(message.from)?, NodeId::new(message.to)?);
        let candidate = match message.get_msg_type() {
            MessageType::MsgRequestVote => from,
            MessageType::MsgRequestVoteResponse if !message.reject => to,
            _ => return None,
        };
        Some(Vote { voter: from, candidate, term: Term(message.term) })
    }
}

#[cfg(test)]
mod tests {
    use raft::eraftpb::Message;

    use super::*;

    #[test]
    fn a_vote_is_found_in_the_messages_that_carry_one_and_in_no_others() {
        let vote = |kind, reject| {
            let (from, to, term) = (2, 3, 7);
            let message = Message { msg_type: kind, from, to, term, reject, ..Message::default() };
            Vote::in_message(&wire::encode(&message))
        };
        let given = |candidate| {
            let (voter, candidate) = (NodeId::new(2).unwrap(), NodeId::new(candidate).unwrap());
            Some(Vote { voter, candidate, term: Term(7) })
        };
        assert_eq!(vote(MessageType::MsgRequestVote, false), given(2));
        assert_eq!(vote(MessageType::MsgRequestVoteResponse, false), given(3));
        assert_eq!(vote(MessageType::MsgRequestVoteResponse, true), None);
        assert_eq!(vote(MessageType::MsgRequestPreVoteResponse, false), None);
        assert_eq!(vote(MessageType::MsgHeartbeat, false), None);
    }
}
