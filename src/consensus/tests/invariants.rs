//! Checks of the safety properties of Raft, named as in the Raft paper.

use std::collections::BTreeMap;

use raft::eraftpb::MessageType;

use super::world::{Flying, Member, World};
use crate::consensus::fault::ConsensusFault;
use crate::consensus::gate::Standpoint;
use crate::consensus::{Outbound, RaftRole};
use crate::model::{LogIndex, Members, NodeId, PeerMessage, Term};
use crate::wal;

impl World {
    pub(super) fn send(&mut self, from: NodeId, messages: Vec<Outbound>) {
        for Outbound { to, message, .. } in messages {
            let PeerMessage::Raft(bytes) = message else { panic!("a message of raft's") };
            for byte in &bytes[..] {
                self.trace = (self.trace ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
            }
            let flying = Flying { from, to, bytes };
            self.audit(&flying);
            self.flying.push(flying);
        }
    }

    /// Checks R-PERSIST: the state that a message depends on is on its sender's disk when it is
    /// sent.
    fn audit(&self, flying: &Flying) {
        let message = flying.message();
        let disk = self.members[&flying.from].disk.look();
        let (durable, term) = (&disk.hard_state, Term(message.term));
        let kind = message.get_msg_type();
        let in_term = durable.term == term;
        let holds = match kind {
            MessageType::MsgRequestVote => {
                let last = (disk.last(), disk.term(disk.last()));
                let claimed = (LogIndex(message.index), Some(Term(message.log_term)));
                (in_term && durable.vote == Some(flying.from) && last == claimed)
                    || durable.term > term
            }
            MessageType::MsgRequestPreVote => {
                let claimed = (LogIndex(message.index), Some(Term(message.log_term)));
                durable.term.next() > term || (disk.last(), disk.term(disk.last())) == claimed
            }
            MessageType::MsgRequestVoteResponse if !message.reject => {
                (in_term && durable.vote == Some(flying.to)) || durable.term > term
            }
            // A granted pre-vote needs no durable state, because its term has not begun.
            MessageType::MsgRequestPreVoteResponse if !message.reject => true,
            MessageType::MsgAppendResponse if !message.reject => {
                (in_term && disk.last() >= LogIndex(message.index)) || durable.term > term
            }
            MessageType::MsgAppend
            | MessageType::MsgSnapshot
            | MessageType::MsgHeartbeat
            | MessageType::MsgTimeoutNow => {
                (in_term && durable.vote == Some(flying.from)) || durable.term > term
            }
            MessageType::MsgAppendResponse
            | MessageType::MsgHeartbeatResponse
            | MessageType::MsgRequestVoteResponse
            | MessageType::MsgRequestPreVoteResponse => durable.term >= term,
            kind => panic!("{kind:?} left"),
        };
        assert!(holds, "R-PERSIST: {} has {durable:?}, and sends {message:?}", flying.from);
    }

    /// Checks R-SM and R-QUORUM: all members commit the same entries, and a quorum has each of
    /// them.
    pub(super) fn commit(&mut self, id: NodeId, entry: &wal::Entry) -> Result<(), ConsensusFault> {
        let recorded = self.history.entry(entry.index).or_insert_with(|| entry.clone());
        assert_eq!(recorded, entry, "R-SM: {id}");
        assert!(self.is_on_a_quorum(entry), "R-QUORUM: {entry:?}");
        let member = self.members.get_mut(&id).unwrap();
        assert!(member.disk.look().holds(entry.index, entry.term), "on its own");
        member.machine.apply(entry)?;
        member.applied = entry.index;
        let machine = member.machine.clone();
        if entry.kind == wal::EntryKind::Membership {
            let consensus = member.consensus.as_mut().expect("it runs");
            let led = consensus.is_leader();
            consensus.applied_membership(entry, &machine.members)?;
            self.removed_leaders += usize::from(led && !consensus.is_leader());
        }
        let joined: Vec<NodeId> = machine.members.rows().keys().copied().collect();
        let state = self.states.entry(entry.index).or_insert_with(|| machine.clone());
        assert_eq!(*state, machine, "R-SM: {id}");
        for new in joined {
            if !self.members.contains_key(&new) {
                self.create(new);
                if self.stays_dark != Some(new) {
                    self.start(new);
                }
            }
        }
        Ok(())
    }

    /// Returns whether a majority of voters has the entry, according to one of the last two
    /// configurations before the entry. When a leader counts acknowledgements, it has applied all
    /// changes except at most the last.
    fn is_on_a_quorum(&self, entry: &wal::Entry) -> bool {
        let holds = |id: &NodeId| {
            self.members.get(id).is_some_and(|m| m.disk.look().holds(entry.index, entry.term))
        };
        let most = |ids: Vec<NodeId>| ids.iter().filter(|id| holds(id)).count() * 2 > ids.len();
        let agrees = |members: &Members| {
            most(members.voters().collect())
                && (!members.is_joint() || most(members.outgoing().iter().copied().collect()))
        };
        let deciders = |m: &Members| (m.voters().collect::<Vec<_>>(), m.outgoing().clone());
        let before = self.states.range(..entry.index).rev().map(|(_, machine)| &machine.members);
        let mut last = None;
        for members in before.chain([self.founded()]) {
            if agrees(members) {
                return true;
            }
            match &last {
                None => last = Some(deciders(members)),
                Some(last) if *last != deciders(members) => return false,
                Some(_) => {}
            }
        }
        false
    }

    pub(super) fn look_at(&mut self, id: NodeId) {
        let member = self.members.get_mut(&id).unwrap();
        let Some(consensus) = &member.consensus else { return };
        let status = consensus.status();
        assert!(status.applied <= status.commit && status.commit <= status.last, "R-ORDER");
        let (term, commit) = member.highest;
        assert!(status.term >= term && status.commit >= commit, "R-TERM, R-COMMIT: {status:?}");
        member.highest = (status.term, status.commit);
        if status.role == RaftRole::Leader {
            let leader = *self.leaders.entry(status.term).or_insert(id);
            assert_eq!(leader, id, "R-ELECT: two leaders of term {}", status.term);
            assert!(member.machine.members.is_voter(id), "R-LEARNER: {id} leads");
            let (base, newest) = (member.disk.look().base.index, self.history.last_key_value());
            // The check does not apply to a leader that has not noticed that a later term has
            // begun.
            if newest.is_some_and(|(_, entry)| entry.term > status.term) {
                return;
            }
            for entry in self.history.range(base.next()..).map(|(_, entry)| entry) {
                let term = consensus.term_at(entry.index);
                assert_eq!(term, Some(entry.term), "R-COMPLETE: {id} lacks {entry:?}");
            }
        }
    }

    /// Checks R-MATCH, and that every committed entry is unchanged.
    pub(super) fn check_logs(&self) {
        let log = |member: &Member| -> BTreeMap<LogIndex, wal::Entry> {
            let disk = member.disk.look();
            disk.entries.iter().map(|entry| (entry.index, entry.clone())).collect()
        };
        let logs: Vec<_> = self.members.values().map(log).collect();
        for (i, a) in logs.iter().enumerate() {
            for b in &logs[i + 1..] {
                let same =
                    |index: &&LogIndex| b.get(*index).map(|e| e.term) == Some(a[*index].term);
                let Some(last) = a.keys().rev().find(same) else { continue };
                for (index, entry) in a.range(..=last) {
                    assert!(b.get(index).is_none_or(|other| other == entry), "R-MATCH");
                }
            }
        }
    }
}
