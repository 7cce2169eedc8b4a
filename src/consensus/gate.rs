//! The gate: no message of a peer reaches raft before it has been judged here.
//!
//! The raft crate trusts what it is handed. Several messages that look valid make it panic (a commit
//! index beyond the log, a gap between entries), overflow (a term at the end of the numbers) or follow
//! a stranger. A correct member sends none of them. The gate knows what a correct member can send to
//! this one, and lets nothing else pass; what it refuses was not looked at by anybody.
//!
//! Who may speak is judged by what is applied here, and that may be old. A member that was removed is
//! refused. One that is not known is let in, since its connection has proven that it belongs to the
//! cluster: it has joined, and may even lead, while this one was away. And one that is known as a
//! learner may vote by now.
//!
//! It cannot see through a member that lies well (one that says to have stored what it has not): the
//! members of a cluster trust each other to crash, not to cheat.

use raft::eraftpb::{Message, MessageType};
use thiserror::Error;

use crate::model::{LogIndex, NodeId, SnapshotId, Term};

use super::round::RoundContext;
use super::snapshot;
use super::status::Role;
use super::wire::WireError;

/// Terms and indices stay below this: counting on never overflows.
const NUMBER_MAX: u64 = 1 << 62;

/// How far ahead of this member's term a peer's may be. A member that is off for a year of endless
/// elections is behind by less.
const TERM_LEAP_MAX: u64 = 1 << 20;

/// What a candidate sends with its vote request when its leader has told it to campaign.
const CAMPAIGN_TRANSFER: &[u8] = b"CampaignTransfer";

/// Why a message of a peer was not let in. Nothing of it was processed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub(crate) enum GateRejection {
    /// The bytes are not a message.
    #[error("not a message of the consensus: {0}")]
    Bytes(#[from] WireError),
    /// The message is in another member's name.
    #[error("in the name of member {claimed}")]
    Sender {
        /// Whose.
        claimed: u64,
    },
    /// The message is for somebody else.
    #[error("for member {to}")]
    Addressee {
        /// For whom.
        to: u64,
    },
    /// The sender is this member itself.
    #[error("from this member itself")]
    Oneself,
    /// The sender was a member, and is none any more.
    #[error("from a member that was removed")]
    Removed,
    /// A snapshot that no member sends, or not to this one.
    #[error("a snapshot that makes no sense here")]
    Snapshot,
    /// Messages of this kind do not cross the wire.
    #[error("messages of kind {kind} do not cross the wire")]
    Kind {
        /// The protocol's number of it.
        kind: i32,
    },
    /// A term that no member can have.
    #[error("term {term}, while this member is at term {mine}")]
    Term {
        /// Which.
        term: u64,
        /// The term here.
        mine: Term,
    },
    /// A number that cannot be what its name says.
    #[error("{name} {value}")]
    Number {
        /// The field.
        name: &'static str,
        /// Its value.
        value: u64,
    },
    /// A field that this kind of message does not have, or with other content.
    #[error("{name} that does not belong there")]
    Field {
        /// The field.
        name: &'static str,
    },
    /// Entries that do not follow one another.
    #[error("entry {index} of term {term} out of order")]
    Entries {
        /// The first that does not fit.
        index: u64,
        /// Its term.
        term: u64,
    },
    /// The sender's log differs from this one where this one is committed. One of them is damaged.
    #[error("its log differs at entry {index}, which is committed here")]
    Contradiction {
        /// Where.
        index: LogIndex,
    },
    /// The sender claims to lead a term that somebody else leads.
    #[error("a second leader of term {term}; the first is {leader}")]
    SecondLeader {
        /// The term.
        term: Term,
        /// Its leader.
        leader: NodeId,
    },
    /// The leader knows of entries that this member has acknowledged, and they are not here: this
    /// member has lost what it had synced, and must stop.
    #[error(
        "the leader knows that this member had entry {promised}, but its log ends at {last}: synced entries are lost"
    )]
    LogLost {
        /// What this member has acknowledged.
        promised: LogIndex,
        /// The last entry that is here.
        last: LogIndex,
    },
}

impl GateRejection {
    /// Whether this member must stop. Any other rejection is the sender's problem.
    pub(crate) fn is_fatal(&self) -> bool {
        matches!(self, GateRejection::LogLost { .. })
    }
}

/// What the gate must know about this member.
pub(super) trait Standpoint {
    fn id(&self) -> NodeId;
    fn is_removed(&self, node: NodeId) -> bool;
    fn role(&self) -> Role;
    fn term(&self) -> Term;
    fn leader(&self) -> Option<NodeId>;
    fn commit(&self) -> LogIndex;
    fn last(&self) -> LogIndex;
    fn term_at(&self, index: LogIndex) -> Option<Term>;
}

/// Whether `message`, which came over a connection proven to be `from`'s, may reach raft.
pub(super) fn judge(
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
    // A leader whose going is committed still leads its term, until it has applied that itself.
    let leads_me = here.leader() == Some(from) && message.term == here.term().get();
    if here.is_removed(from) && !leads_me {
        return Err(GateRejection::Removed);
    }
    judge_kind(message)?;
    judge_numbers(message, here.term())?;
    judge_fields(message)?;
    match message.get_msg_type() {
        MessageType::MsgAppend => {
            judge_leader(message, from, here)?;
            judge_append(message, here)
        }
        MessageType::MsgHeartbeat => {
            judge_leader(message, from, here)?;
            judge_heartbeat(message, here)
        }
        MessageType::MsgSnapshot => {
            judge_leader(message, from, here)?;
            judge_snapshot(message, here)
        }
        MessageType::MsgAppendResponse => judge_append_response(message, here),
        MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => judge_vote_request(message),
        MessageType::MsgTimeoutNow => {
            // Only a leader that this member follows, and knows to follow, may say so; what comes too
            // late is of an earlier term.
            if message.term > here.term().get() {
                return Err(GateRejection::Term { term: message.term, mine: here.term() });
            }
            judge_leader(message, from, here)
        }
        _ => Ok(()),
    }
}

fn judge_kind(message: &Message) -> Result<(), GateRejection> {
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
        // What a node says to itself, and what we say in words of our own (proposals, reads).
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

fn judge_numbers(message: &Message, mine: Term) -> Result<(), GateRejection> {
    let term = message.term;
    if term == 0 || term >= NUMBER_MAX || term > mine.get().saturating_add(TERM_LEAP_MAX) {
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

/// Fields that no message has, or that only some have.
fn judge_fields(message: &Message) -> Result<(), GateRejection> {
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
        ("a context", context_fits),
        ("entries", message.entries.is_empty() || kind == MessageType::MsgAppend),
        ("a snapshot", !message.has_snapshot() || kind == MessageType::MsgSnapshot),
        ("a snapshot request", message.request_snapshot == 0),
        ("a priority", message.priority == 0 && message.deprecated_priority == 0),
    ];
    match fields.into_iter().find(|(_, fits)| !fits) {
        Some((name, _)) => Err(GateRejection::Field { name }),
        None => Ok(()),
    }
}

/// A message that only a leader sends.
fn judge_leader(
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

fn judge_append(message: &Message, here: &impl Standpoint) -> Result<(), GateRejection> {
    // Everything starts from (1, 1). An index of 0, or a term of 0 at an index beyond the log, would
    // pass for a place where both logs agree.
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
        // Answered with the newer term, and not looked at.
        return Ok(());
    }
    // Whoever leads this term or a later one has every entry that is committed here.
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

fn judge_heartbeat(message: &Message, here: &impl Standpoint) -> Result<(), GateRejection> {
    // A leader tells each follower no more than what that follower has acknowledged in its term.
    let (promised, last) = (LogIndex(message.commit), here.last());
    if message.term >= here.term().get() && promised > last {
        return Err(GateRejection::LogLost { promised, last });
    }
    Ok(())
}

fn judge_snapshot(message: &Message, here: &impl Standpoint) -> Result<(), GateRejection> {
    let (id, configuration) =
        snapshot::from_raft(message.get_snapshot()).ok_or(GateRejection::Snapshot)?;
    let SnapshotId { index, term, .. } = id;
    // (1, 1) is where everybody starts. Raft panics at a configuration that makes no sense, and passes
    // over one without this member.
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

fn judge_append_response(message: &Message, here: &impl Standpoint) -> Result<(), GateRejection> {
    if message.reject {
        // (1, 1) is refused by nobody, so what is refused and what is hinted at lie after it.
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
    let answers_me = here.role() == Role::Leader && message.term == here.term().get();
    if answers_me && message.index > here.last().get() {
        return Err(GateRejection::Number { name: "acknowledged index", value: message.index });
    }
    Ok(())
}

fn judge_vote_request(message: &Message) -> Result<(), GateRejection> {
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
