//! Reports for health checks how long ago this member was in contact with a quorum or the leader,
//! and how far its log lags behind. The consensus itself does not use these values.

use raft::eraftpb::{Message, MessageType};

use super::Consensus;
use crate::consensus::gate::Standpoint;
use crate::consensus::membership::Configuration;
use crate::model::{LogIndex, NodeId, Term};

impl Consensus {
    /// Returns the index of the last entry in this member's log.
    pub(crate) fn last_index(&self) -> LogIndex {
        self.last()
    }

    /// Returns the number of ticks since this member was last known to be in contact with a quorum.
    /// For a leader, this is the time since it last heard from a quorum. For another member, this
    /// is the time since the member last heard from the leader. Returns `None` if no leader is
    /// known, or if too few voters were ever heard from.
    pub(crate) fn ticks_since_contact(&self) -> Option<u64> {
        if self.is_leader() {
            let Configuration { voters, outgoing, .. } = &self.configuration;
            let ages = [voters, outgoing].map(|voters| self.age_of_quorum(voters.iter().copied()));
            // During a replacement, the leader needs a quorum of the old voters and a quorum of the
            // new voters, so the greater of the two times counts.
            return ages.into_iter().collect::<Option<Vec<_>>>()?.into_iter().max();
        }
        self.age(self.leader()?)
    }

    fn age(&self, member: NodeId) -> Option<u64> {
        if member == self.config.id {
            return Some(0);
        }
        self.contacts.received.get(&member).map(|received| self.ticks - received)
    }

    /// Returns the shortest time within which this member has heard from a quorum, or 0 if there
    /// are no voters.
    fn age_of_quorum(&self, voters: impl Iterator<Item = NodeId>) -> Option<u64> {
        let mut ages: Vec<u64> = voters.map(|voter| self.age(voter).unwrap_or(u64::MAX)).collect();
        if ages.is_empty() {
            return Some(0);
        }
        ages.sort_unstable();
        Some(ages[ages.len() / 2]).filter(|age| *age != u64::MAX)
    }

    /// Returns the highest index that a leader has reported as committed. This member may not have
    /// received the entry at that index yet.
    pub(crate) fn known_commit(&self) -> LogIndex {
        self.reported_commit.max(self.commit())
    }

    /// Records the commit index in a leader's message.
    pub(super) fn record_commit(&mut self, message: &Message) {
        let leads =
            matches!(message.get_msg_type(), MessageType::MsgAppend | MessageType::MsgHeartbeat);
        if leads && Term(message.term) >= self.term() {
            self.reported_commit = self.reported_commit.max(LogIndex(message.commit));
        }
    }
}
