//! How long ago this member was in touch with those who decide, and how far it is behind them: for
//! whoever asks after its health. Nothing in the consensus depends on it.

use super::*;

impl Consensus {
    /// The newest entry of this member's log.
    pub(crate) fn last_index(&self) -> LogIndex {
        self.last()
    }

    /// Ticks since a quorum was last known to be there: as a leader, since the last moment at which enough
    /// voters to decide had been heard of; otherwise since the leader was heard of. `None`: no leader is
    /// known, or too few were ever heard of.
    pub(crate) fn out_of_touch(&self) -> Option<u64> {
        if self.is_leader() {
            let Configuration { voters, outgoing, .. } = &self.configuration;
            let ages = [voters, outgoing].map(|voters| self.age_of_quorum(voters.iter().copied()));
            // While members are being replaced, both quorums decide.
            return ages.into_iter().collect::<Option<Vec<_>>>()?.into_iter().max();
        }
        self.age(self.leader()?)
    }

    fn age(&self, member: NodeId) -> Option<u64> {
        if member == self.config.id {
            return Some(0);
        }
        self.heard.get(&member).map(|heard| self.ticks - heard)
    }

    /// The longest of the shortest silences that make a quorum; 0 where nobody votes.
    fn age_of_quorum(&self, voters: impl Iterator<Item = NodeId>) -> Option<u64> {
        let mut ages: Vec<u64> = voters.map(|voter| self.age(voter).unwrap_or(u64::MAX)).collect();
        if ages.is_empty() {
            return Some(0);
        }
        ages.sort_unstable();
        Some(ages[ages.len() / 2]).filter(|age| *age != u64::MAX)
    }

    /// The newest entry that a leader is known to have committed; this member may not have it yet.
    pub(crate) fn known_commit(&self) -> LogIndex {
        self.told_commit.max(self.commit())
    }

    /// Takes note of what a leader says to be committed.
    pub(super) fn hear_commit(&mut self, message: &Message) {
        let leads =
            matches!(message.get_msg_type(), MessageType::MsgAppend | MessageType::MsgHeartbeat);
        if leads && Term(message.term) >= self.term() {
            self.told_commit = self.told_commit.max(LogIndex(message.commit));
        }
    }
}
