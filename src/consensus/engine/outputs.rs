//! The outputs of the consensus: the work that a turn returns, and messages whose required state is
//! now durable.

use raft::eraftpb::{Message, MessageType};

use super::{Consensus, Outbound, Pending, SEALED_MAX, Turn};
use crate::consensus::cache::entry_bytes;
use crate::consensus::fault::ConsensusFault;
use crate::consensus::gate::Standpoint;
use crate::consensus::round::RoundContext;
use crate::consensus::seal::Sealed;
use crate::consensus::store::to_wal;
use crate::consensus::wire;
use crate::model::{Lane, LogIndex, NodeId, PeerMessage, Term};
use crate::wal;

impl Consensus {
    /// Returns the work that the caller must do, or `None` if there is no work until the next
    /// input. The caller must repeat the call until it returns `None`.
    ///
    /// # Errors
    /// Returns a fault after which this member must stop.
    pub(crate) fn turn(&mut self) -> Result<Option<Turn>, ConsensusFault> {
        self.check_fault()?;
        self.miscount();
        if !self.raw.has_ready() || !self.can_turn() {
            return Ok(None);
        }
        if let Err(fault) = self.prefetch() {
            return Err(self.fault.insert(fault).clone());
        }
        let mut turn = Turn::default();
        let mut ready = self.with_raft(|raw| raw.ready());
        let leads = self.is_leader();
        let mut messages = ready.take_messages();
        messages.append(&mut ready.take_persisted_messages());
        for state in ready.take_read_states() {
            let context = RoundContext::from_bytes(&state.request_ctx);
            let context = context.expect("only rounds of our own come back");
            turn.rounds.push((context.id, LogIndex(state.index)));
        }
        turn.commit = ready.take_committed_entries().into_iter().map(to_wal).collect();
        if let Some(entry) = turn.commit.last() {
            self.handed = entry.index;
        }
        turn.persist = self.group_of(&ready);
        turn.install = self.begin_install(&ready);
        self.raw.mut_store().append(ready.entries());
        let number = ready.number();
        self.with_raft(|raw| raw.advance_append_async(ready));
        if turn.persist.is_none() {
            match self.pending.back_mut() {
                Some(pending) => pending.ready = number,
                None => self.with_raft(|raw| raw.on_persist_ready(number)),
            }
        }
        for message in messages {
            self.seal(message, leads);
        }
        turn.send = self.unseal();
        self.check_fault()?;
        Ok(Some(turn))
    }

    /// Returns the group with the part of this batch that must be durable, if any.
    ///
    /// A commit index alone does not cause a group: the next group includes it.
    fn group_of(&mut self, ready: &raft::Ready) -> Option<wal::Group> {
        let now = self.raw.raft.hard_state();
        let has_vowed = (now.term, now.vote) != (self.written.term, self.written.vote);
        let base = Self::base_of(ready);
        let must_sync = has_vowed || !ready.entries().is_empty() || base.is_some();
        assert_eq!(must_sync, ready.must_sync(), "raft and its driver disagree on what is new");
        if !must_sync {
            return None;
        }
        self.group = ready.number();
        if has_vowed {
            self.term_group = self.group;
        }
        let hard_state = (now != self.written).then(|| wal::HardState {
            term: Term(now.term),
            vote: NodeId::new(now.vote).filter(|_| !mutant!(M03)),
            commit: LogIndex(now.commit),
        });
        self.written = now;
        self.pending.push_back(Pending {
            group: self.group,
            ready: ready.number(),
            entries: ready
                .entries()
                .first()
                .zip(ready.entries().last())
                .map(|(first, last)| (LogIndex(first.index), LogIndex(last.index))),
            bytes: ready.entries().iter().map(entry_bytes).sum(),
        });
        Some(wal::Group {
            number: self.group,
            hard_state,
            base,
            entries: ready.entries().iter().cloned().map(to_wal).collect(),
            ..wal::Group::default()
        })
    }

    /// Seals a message with the group that contains the state it depends on.
    ///
    /// A leader's message depends only on the leader's term. Such a message does not claim that the
    /// leader's own entries are durable, because they are written while the message is in flight.
    /// But the term must be durable, because a single voter becomes leader before its term is
    /// durable. A reply to a heartbeat depends only on the term as well. Every other message
    /// (votes, vote requests, acknowledgements of entries) depends on the whole state.
    fn seal(&mut self, mut message: Message, leads: bool) {
        let kind = message.get_msg_type();
        let of_the_term = leads || kind == MessageType::MsgHeartbeatResponse;
        let group = if of_the_term { self.term_group } else { self.group };
        if kind == MessageType::MsgAppend && !self.repair(&mut message) {
            return;
        }
        wire::split(message, |part| {
            self.sealed.extend(outbound(&part).map(|out| Sealed::new(group, out)));
        });
        while self.sealed.len() > SEALED_MAX {
            drop(self.sealed.pop_front());
        }
    }

    /// Repairs a message after raft's `batch_append`. If a waiting message is empty or of an
    /// earlier term, raft appends entries to it without checking that they follow the entries of
    /// the message. Returns `false` if the message cannot be repaired.
    fn repair(&self, message: &mut Message) -> bool {
        let Some(first) = message.entries.first() else { return true };
        let (prev, terms_fit) =
            (first.index - 1, message.entries.iter().all(|entry| entry.term <= message.term));
        if message.index == prev {
            return terms_fit;
        }
        if !terms_fit || !self.is_leader() || message.term != self.raw.raft.term {
            return false;
        }
        match self.term_at(LogIndex(prev)) {
            Some(term) => {
                (message.index, message.log_term) = (prev, term.get());
                true
            }
            None => false,
        }
    }

    /// Returns the messages that may be sent, because the state that they depend on is durable.
    pub(super) fn unseal(&mut self) -> Vec<Outbound> {
        let mut open = Vec::new();
        for _ in 0..self.sealed.len() {
            let sealed = self.sealed.pop_front().expect("counted a line ago");
            match sealed.open(self.proof.as_ref()) {
                Ok(message) => open.push(message),
                Err(sealed) => self.sealed.push_back(sealed),
            }
        }
        open
    }
}

/// Encodes a message, if it is of a kind that is sent to peers.
fn outbound(message: &Message) -> Option<Outbound> {
    let to = NodeId::new(message.to)?;
    let kind = message.get_msg_type();
    let lane = match kind {
        MessageType::MsgAppend if !message.entries.is_empty() => Lane::Bulk,
        MessageType::MsgAppend
        | MessageType::MsgAppendResponse
        | MessageType::MsgRequestVote
        | MessageType::MsgRequestVoteResponse
        | MessageType::MsgSnapshot
        | MessageType::MsgHeartbeat
        | MessageType::MsgHeartbeatResponse
        | MessageType::MsgTimeoutNow
        | MessageType::MsgRequestPreVote
        | MessageType::MsgRequestPreVoteResponse => Lane::Control,
        // Raft uses these kinds to forward proposals and reads, and this module never asks raft to
        // forward anything.
        _ => return None,
    };
    Some(Outbound { to, lane, message: PeerMessage::Raft(wire::encode(message)) })
}
