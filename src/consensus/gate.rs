//! The gate validates every message of a peer before raft processes it.
//!
//! The raft crate trusts its input. Some messages that look valid make the crate panic, for example
//! a commit index beyond the log. Other messages make the crate overflow (a term near the maximum),
//! or accept a stranger as its leader. A correct member never sends such a message. The gate
//! accepts the messages that a correct member can send to this member, and rejects every other
//! message before raft processes it.
//!
//! The gate compares the sender with the members in the applied state, which may be outdated. A
//! message from a removed member is rejected. An unknown sender is accepted, because the transport
//! has verified that it belongs to the cluster. Such a sender may have joined while this member was
//! disconnected, and may even be the leader. A sender that the applied state lists as a learner may
//! have become a voter in the meantime.
//!
//! The gate cannot detect a plausible lie: for example, if a member acknowledges an entry that it
//! has not stored. Bowline tolerates crashed members, but not malicious ones.

use raft::eraftpb::{Message, MessageType};
use thiserror::Error;

use crate::model::{LogIndex, NodeId, SnapshotId, Term};

use super::round::RoundContext;
use super::snapshot;
use super::status::RaftRole;
use super::wire::WireError;

/// Terms and indices must be below this number, so that incrementing them never overflows.
const NUMBER_MAX: u64 = 1 << 62;

/// Maximum difference between a peer's term and this member's term. Even if a member is down for a
/// year of continuous elections, the difference stays below this limit.
const TERM_JUMP_MAX: u64 = 1 << 20;

/// The context of a vote request that a transfer of leadership has caused.
const CAMPAIGN_TRANSFER: &[u8] = b"CampaignTransfer";

/// The reason why a message of a peer was rejected. No part of the message was processed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub(crate) enum GateRejection {
    /// The bytes are not a message.
    #[error("invalid raft message: {0}")]
    Bytes(#[from] WireError),
    /// The message claims another sender.
    #[error("the message claims to be from member {claimed}")]
    Sender {
        /// The claimed sender.
        claimed: u64,
    },
    /// The message is addressed to another member.
    #[error("the message is addressed to member {to}")]
    Addressee {
        /// The addressee.
        to: u64,
    },
    /// The sender is this member itself.
    #[error("the message claims to be from this member itself")]
    Oneself,
    /// The sender was removed from the cluster.
    #[error("the sender of the message was removed from the cluster")]
    Removed,
    /// An invalid snapshot, or one that is not sent to this member.
    #[error("the message contains an invalid snapshot")]
    Snapshot,
    /// Messages of this kind are never sent to peers.
    #[error("messages of kind {kind} are never sent to peers")]
    Kind {
        /// The protocol's number of the kind.
        kind: i32,
    },
    /// A term that no member can have.
    #[error("the message has the invalid term {term}: this member is at term {mine}")]
    Term {
        /// The term in the message.
        term: u64,
        /// The term of this member.
        mine: Term,
    },
    /// A field has an impossible value.
    #[error("the message has an invalid {name}: {value}")]
    Number {
        /// Name of the field.
        name: &'static str,
        /// Value of the field.
        value: u64,
    },
    /// A field that this kind of message does not have, or that must have other contents.
    #[error("the message has an unexpected {name}")]
    Field {
        /// Name of the field.
        name: &'static str,
    },
    /// Entries that do not follow one another.
    #[error("entry {index} of term {term} is out of order in the message")]
    Entries {
        /// Index of the first entry that does not fit.
        index: u64,
        /// Term of that entry.
        term: u64,
    },
    /// The sender's log differs from this member's log at a committed index. One of the two is
    /// damaged.
    #[error("the sender's log differs at entry {index}, which is committed here")]
    Contradiction {
        /// The index.
        index: LogIndex,
    },
    /// The sender claims to lead a term that has another leader.
    #[error("the sender claims to lead term {term}, whose leader is {leader}")]
    SecondLeader {
        /// The term.
        term: Term,
        /// The leader of the term.
        leader: NodeId,
    },
    /// The leader's message refers to entries that this member has acknowledged but does not have.
    /// This member has lost synced data and must stop.
    #[error(
        "this member has acknowledged entry {promised} to the leader, but its log ends at entry {last}: synced entries \
         are lost"
    )]
    LogLost {
        /// The index that this member has acknowledged.
        promised: LogIndex,
        /// The last index of this member's log.
        last: LogIndex,
    },
}

impl GateRejection {
    /// Returns whether this member must stop. All other errors are faults of the sender.
    pub(crate) fn is_fatal(&self) -> bool {
        matches!(self, GateRejection::LogLost { .. })
    }
}

/// The state of this member that the gate needs.
pub(super) trait Standpoint {
    fn id(&self) -> NodeId;
    fn is_removed(&self, node: NodeId) -> bool;
    fn role(&self) -> RaftRole;
    fn term(&self) -> Term;
    fn leader(&self) -> Option<NodeId>;
    fn commit(&self) -> LogIndex;
    fn last(&self) -> LogIndex;
    fn term_at(&self, index: LogIndex) -> Option<Term>;
}

/// Checks whether `message`, from a connection verified to be that of `from`, may be processed by
/// raft.
pub(super) fn check(
    message: &Message,
    from: NodeId,
    here: &impl Standpoint,
) -> Result<(), GateRejection> {
    if message.from != from.get() {
        return Err(GateRejection::Sender { claimed: message.from });
    }
    if message.to != here.id().get() {
        return Err(GateRejection::Addressee { to: message.to });
    }
    if from == here.id() {
        return Err(GateRejection::Oneself);
    }
    // A leader whose removal is committed continues to lead its term until it has applied the
    // removal itself.
    let leads_me = here.leader() == Some(from) && message.term == here.term().get();
    if here.is_removed(from) && !leads_me {
        return Err(GateRejection::Removed);
    }
    check_kind(message)?;
    check_numbers(message, here.term())?;
    check_fields(message)?;
    match message.get_msg_type() {
        MessageType::MsgAppend => {
            check_leader(message, from, here)?;
            check_append(message, here)
        }
        MessageType::MsgHeartbeat => {
            check_leader(message, from, here)?;
            check_heartbeat(message, here)
        }
        MessageType::MsgSnapshot => {
            check_leader(message, from, here)?;
            check_snapshot(message, here)
        }
        MessageType::MsgAppendResponse => check_append_response(message, here),
        MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => check_vote_request(message),
        MessageType::MsgTimeoutNow => {
            // Only the current leader of this member may send a message of this kind in this term.
            // A delayed message of another leader has an earlier term.
            if message.term > here.term().get() {
                return Err(GateRejection::Term { term: message.term, mine: here.term() });
            }
            check_leader(message, from, here)
        }
        _ => Ok(()),
    }
}

fn check_kind(message: &Message) -> Result<(), GateRejection> {
    match message.get_msg_type() {
        MessageType::MsgAppend
        | MessageType::MsgAppendResponse
        | MessageType::MsgRequestVote
        | MessageType::MsgRequestVoteResponse
        | MessageType::MsgSnapshot
        | MessageType::MsgHeartbeat
        | MessageType::MsgHeartbeatResponse
        | MessageType::MsgTimeoutNow
        | MessageType::MsgRequestPreVote
        | MessageType::MsgRequestPreVoteResponse => Ok(()),
        // Messages that a node sends to itself, and messages that this project replaces by its own
        // (proposals, reads).
        kind @ (MessageType::MsgHup
        | MessageType::MsgBeat
        | MessageType::MsgPropose
        | MessageType::MsgUnreachable
        | MessageType::MsgSnapStatus
        | MessageType::MsgCheckQuorum
        | MessageType::MsgTransferLeader
        | MessageType::MsgReadIndex
        | MessageType::MsgReadIndexResp) => Err(GateRejection::Kind { kind: kind as i32 }),
    }
}

fn check_numbers(message: &Message, mine: Term) -> Result<(), GateRejection> {
    let term = message.term;
    if term == 0 || term >= NUMBER_MAX || term > mine.get().saturating_add(TERM_JUMP_MAX) {
        return Err(GateRejection::Term { term, mine });
    }
    let numbers = [
        ("log term", message.log_term, term),
        ("index", message.index, NUMBER_MAX),
        ("commit", message.commit, NUMBER_MAX),
        ("commit term", message.commit_term, term),
        ("reject hint", message.reject_hint, NUMBER_MAX),
    ];
    for (name, value, max) in numbers {
        if value > max {
            return Err(GateRejection::Number { name, value });
        }
    }
    Ok(())
}

/// Checks the fields that no message has, or that only some kinds have.
fn check_fields(message: &Message) -> Result<(), GateRejection> {
    let kind = message.get_msg_type();
    let context_fits = match kind {
        MessageType::MsgHeartbeat | MessageType::MsgHeartbeatResponse => {
            message.context.is_empty() || message.context.len() == RoundContext::BYTES
        }
        MessageType::MsgRequestVote => {
            message.context.is_empty() || message.context == CAMPAIGN_TRANSFER
        }
        _ => message.context.is_empty(),
    };
    let fields = [
        ("context", context_fits),
        ("entries", message.entries.is_empty() || kind == MessageType::MsgAppend),
        ("snapshot", !message.has_snapshot() || kind == MessageType::MsgSnapshot),
        ("snapshot request", message.request_snapshot == 0),
        ("priority", message.priority == 0 && message.deprecated_priority == 0),
    ];
    match fields.into_iter().find(|(_, fits)| !fits) {
        Some((name, _)) => Err(GateRejection::Field { name }),
        None => Ok(()),
    }
}

/// Checks a message that only a leader sends.
fn check_leader(
    message: &Message,
    from: NodeId,
    here: &impl Standpoint,
) -> Result<(), GateRejection> {
    match here.leader() {
        Some(leader) if leader != from && message.term == here.term().get() => {
            Err(GateRejection::SecondLeader { term: here.term(), leader })
        }
        _ => Ok(()),
    }
}

fn check_append(message: &Message, here: &impl Standpoint) -> Result<(), GateRejection> {
    // Every log starts with a synthetic entry of index 1 and term 1. If a message contains index 0,
    // or term 0 at an index beyond the log, raft would assume that both logs agree at this index.
    if message.index == 0 {
        return Err(GateRejection::Number { name: "index", value: 0 });
    }
    if message.log_term == 0 {
        return Err(GateRejection::Number { name: "log term", value: 0 });
    }
    let mut prev_term = message.log_term;
    for (entry, index) in message.entries.iter().zip(message.index + 1..) {
        let term = entry.term;
        if entry.index != index || term < prev_term || term > message.term {
            return Err(GateRejection::Entries { index: entry.index, term });
        }
        prev_term = term;
    }
    if message.term < here.term().get() {
        // Raft answers a message of an earlier term only with the current term, so the rest of the
        // message need not be checked.
        return Ok(());
    }
    // The leader of this term or of a later term has every entry that this member knows to be
    // committed.
    let commit = here.commit();
    let places = std::iter::once((message.index, message.log_term))
        .chain(message.entries.iter().map(|entry| (entry.index, entry.term)));
    for (index, term) in places.take_while(|(index, _)| *index <= commit.get()) {
        if here.term_at(LogIndex(index)).is_some_and(|mine| mine.get() != term) {
            return Err(GateRejection::Contradiction { index: LogIndex(index) });
        }
    }
    Ok(())
}

fn check_heartbeat(message: &Message, here: &impl Standpoint) -> Result<(), GateRejection> {
    // A leader's commit index for a follower never exceeds what that follower has acknowledged in
    // its term.
    let (promised, last) = (LogIndex(message.commit), here.last());
    if message.term >= here.term().get() && promised > last {
        return Err(GateRejection::LogLost { promised, last });
    }
    Ok(())
}

fn check_snapshot(message: &Message, here: &impl Standpoint) -> Result<(), GateRejection> {
    let (id, configuration) =
        snapshot::from_raft(message.get_snapshot()).ok_or(GateRejection::Snapshot)?;
    let SnapshotId { index, term, .. } = id;
    // Every log starts with a synthetic entry of index 1 and term 1, so a snapshot has a greater
    // index. Raft panics at an invalid configuration, and ignores one without this member.
    let makes_sense = (2..NUMBER_MAX).contains(&index.get())
        && (1..=message.term).contains(&term.get())
        && configuration.contains(here.id())
        && (message.index, message.log_term, message.commit) == (0, 0, 0);
    if !makes_sense {
        return Err(GateRejection::Snapshot);
    }
    let differs = here.term_at(index).is_some_and(|mine| mine != term);
    if message.term >= here.term().get() && index <= here.commit() && differs {
        return Err(GateRejection::Contradiction { index });
    }
    Ok(())
}

fn check_append_response(message: &Message, here: &impl Standpoint) -> Result<(), GateRejection> {
    if message.reject {
        // Every log contains the synthetic entry of index 1 and term 1, so both the rejected index
        // and the hint are greater than 1.
        if message.index < 2 {
            return Err(GateRejection::Number { name: "rejected index", value: message.index });
        }
        if message.reject_hint == 0 || message.reject_hint > message.index {
            let value = message.reject_hint;
            return Err(GateRejection::Number { name: "reject hint", value });
        }
        if message.log_term == 0 {
            return Err(GateRejection::Number { name: "log term", value: 0 });
        }
    }
    let answers_me = here.role() == RaftRole::Leader && message.term == here.term().get();
    if answers_me && message.index > here.last().get() {
        return Err(GateRejection::Number { name: "acknowledged index", value: message.index });
    }
    Ok(())
}

fn check_vote_request(message: &Message) -> Result<(), GateRejection> {
    let numbers = [
        ("index", message.index, message.index >= 1),
        ("log term", message.log_term, message.log_term >= 1 && message.log_term < message.term),
        ("commit", message.commit, message.commit <= message.index),
        ("commit term", message.commit_term, message.commit_term <= message.log_term),
    ];
    match numbers.into_iter().find(|(_, _, fits)| !fits) {
        Some((name, value, _)) => Err(GateRejection::Number { name, value }),
        None => Ok(()),
    }
}
