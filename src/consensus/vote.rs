//! Decodes votes and acknowledgements in messages, for the checkers of tests, which observe the
//! messages of a cluster.

use bytes::Bytes;
use raft::eraftpb::MessageType;

use super::wire;
use crate::model::{LogIndex, NodeId, Term};

/// A vote in a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Vote {
    pub(crate) voter: NodeId,
    pub(crate) candidate: NodeId,
    pub(crate) term: Term,
}

impl Vote {
    /// Returns the vote in a message: a granted vote, or the candidate's own vote, which its vote
    /// request implies.
    pub(crate) fn in_message(bytes: &Bytes) -> Option<Vote> {
        // Most messages are of another kind, which their first bytes reveal.
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

/// The claim of a message about its sender's disk. The message may be sent only when the claim is
/// true.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Durable {
    /// The owner of the disk.
    pub(crate) of: NodeId,
    /// The disk contains this term or a later term.
    pub(crate) term: Term,
    /// Highest index up to which the sender's log matches that of the term's leader, if the message
    /// states it.
    pub(crate) has: Option<LogIndex>,
}

impl Durable {
    /// Returns the claim in a reply to a leader or in a vote.
    pub(crate) fn in_message(bytes: &Bytes) -> Option<Durable> {
        const KINDS: [MessageType; 4] = [
            MessageType::MsgAppendResponse,
            MessageType::MsgHeartbeatResponse,
            MessageType::MsgRequestVote,
            MessageType::MsgRequestVoteResponse,
        ];
        if !KINDS.iter().any(|kind| bytes.starts_with(&[8, *kind as u8])) {
            return None;
        }
        let message = wire::decode(bytes).ok()?;
        let has = message.get_msg_type() == MessageType::MsgAppendResponse && !message.reject;
        Some(Durable {
            of: NodeId::new(message.from)?,
            term: Term(message.term),
            has: has.then_some(LogIndex(message.index)),
        })
    }
}

/// The statement of a message about the terms of its cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TermStatement {
    /// The sender leads this term.
    Leader(Term),
    /// The leader of the term before has asked this member to campaign.
    Transfer { candidate: NodeId, term: Term },
    /// The message has this term, and is not a vote request.
    Other(Term),
}

impl TermStatement {
    /// Returns the statement of a message, or `None` for a vote request.
    pub(crate) fn in_message(bytes: &Bytes) -> Option<TermStatement> {
        let message = wire::decode(bytes).ok()?;
        let (from, term) = (NodeId::new(message.from)?, Term(message.term));
        match message.get_msg_type() {
            MessageType::MsgAppend | MessageType::MsgHeartbeat => Some(TermStatement::Leader(term)),
            MessageType::MsgTimeoutNow => {
                let (candidate, term) = (NodeId::new(message.to)?, Term(message.term + 1));
                Some(TermStatement::Transfer { candidate, term })
            }
            MessageType::MsgRequestVote if !message.context.is_empty() => {
                Some(TermStatement::Transfer { candidate: from, term })
            }
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => None,
            // A granted pre-vote has the term of the election that may follow.
            MessageType::MsgRequestPreVoteResponse if !message.reject => None,
            _ => Some(TermStatement::Other(term)),
        }
    }
}

#[cfg(test)]
mod tests {
    use raft::eraftpb::Message;

    use super::*;

    #[test]
    fn only_granted_vote_messages_carry_a_vote() {
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

    #[test]
    fn response_reports_what_its_sender_has_made_durable() {
        let durable = |kind, reject| {
            let (from, term, index) = (2, 7, 9);
            let message =
                Message { msg_type: kind, from, term, index, reject, ..Message::default() };
            Durable::in_message(&wire::encode(&message))
        };
        let expected = |has| Some(Durable { of: NodeId::new(2).unwrap(), term: Term(7), has });
        assert_eq!(durable(MessageType::MsgAppendResponse, false), expected(Some(LogIndex(9))));
        assert_eq!(durable(MessageType::MsgAppendResponse, true), expected(None));
        assert_eq!(durable(MessageType::MsgHeartbeatResponse, false), expected(None));
        assert_eq!(durable(MessageType::MsgRequestVoteResponse, false), expected(None));
        // A pre-vote request does not start its term.
        assert_eq!(durable(MessageType::MsgRequestPreVote, false), None);
    }
}
