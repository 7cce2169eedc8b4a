//! The questions that a leader answers, and the rounds in which it confirms its leadership for them.
//!
//! Linearizable reads, renewals of leases and calls for leases need the same proof: after the
//! question has arrived, a quorum confirms that the answering node is still the leader. Only
//! renewals need no such proof while the leader lease lasts (`node/leader/lessor.rs`). Questions
//! from all nodes, including the leader, share one confirmation round of the consensus. A round
//! that is not confirmed in time is started again under a new number. So a confirmation of the old
//! round does not count for the new one.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::consensus::RoundId;
use crate::model::{Incarnation, LeaseId, LeaseLife, LogIndex, Moment, NodeId, PeerMessage};

/// The origin of a query to the leader: a node, which may be the leader itself, and the number of its query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueryOrigin {
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) round: u64,
}

/// A question that a leader answers once a quorum has confirmed its leadership.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Question {
    /// Asks for the index that a linearizable read must wait for.
    Read,
    /// Asks to renew the leases of sessions.
    Renew(Vec<LeaseId>),
    /// Asks about leases that callers keep alive themselves.
    Leases(LeaseQuestion),
}

/// A question to the leader about several leases.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LeaseQuestion {
    /// Leases to renew.
    pub(crate) renew: Vec<LeaseId>,
    /// Leases whose TTL is asked for.
    pub(crate) look: Vec<LeaseId>,
}

/// The answer to a question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// The index for a read, or `None` if the answering node does not lead.
    Read(Option<LogIndex>),
    /// The leases that were renewed, and those that do not exist any more.
    Renewed { renewed: Vec<LeaseId>, gone: Vec<LeaseId> },
    /// The remaining TTLs of the existing leases, and the leases that do not exist any more.
    Leases { living: Vec<LeaseLife>, gone: Vec<LeaseId> },
}

/// A question with its origin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LeaderQuery {
    pub(crate) origin: QueryOrigin,
    pub(crate) question: Question,
}

impl LeaderQuery {
    /// Returns the message to a leader on another node.
    pub(crate) fn into_message(self) -> PeerMessage {
        let QueryOrigin { incarnation, round, .. } = self.origin;
        match self.question {
            Question::Read => PeerMessage::ReadAsk { round, incarnation },
            Question::Renew(leases) => PeerMessage::Renew { round, incarnation, leases },
            Question::Leases(LeaseQuestion { renew, look }) => {
                PeerMessage::LeaseAsk { round, incarnation, renew, look }
            }
        }
    }
}

impl QueryOrigin {
    /// Returns the message with the answer to this query.
    pub(crate) fn message(self, answer: Answer) -> PeerMessage {
        let QueryOrigin { incarnation, round, .. } = self;
        match answer {
            Answer::Read(index) => PeerMessage::ReadAnswer { round, incarnation, index },
            Answer::Renewed { renewed, gone } => {
                PeerMessage::Renewed { round, incarnation, renewed, gone }
            }
            Answer::Leases { living, gone } => {
                PeerMessage::LeaseAnswer { round, incarnation, living, gone }
            }
        }
    }
}

/// The questions that this node answers as the leader, and their confirmation rounds.
#[derive(Debug)]
pub(crate) struct Rounds {
    node: NodeId,
    incarnation: Incarnation,
    counter: u64,
    pending: Vec<LeaderQuery>,
    open_rounds: BTreeMap<u64, (Moment, Vec<LeaderQuery>)>,
    start_again: Duration,
}

/// Maximum number of unconfirmed rounds.
const OPEN_ROUNDS_MAX: usize = 4;

/// Maximum number of questions that the leader holds. Further questions are dropped, and the node that asked repeats
/// them.
const PENDING_MAX: usize = 16_384;

impl Rounds {
    pub(crate) fn new(node: NodeId, incarnation: Incarnation, start_again: Duration) -> Self {
        let (pending, open_rounds) = (Vec::new(), BTreeMap::new());
        Self { node, incarnation, counter: 0, pending, open_rounds, start_again }
    }

    pub(crate) fn join(&mut self, query: LeaderQuery) {
        if mutant!(B29)
            && let Some(mut in_progress) = self.open_rounds.last_entry()
        {
            return in_progress.get_mut().1.push(query);
        }
        if self.pending.len() < PENDING_MAX {
            self.pending.push(query);
        }
    }

    /// Starts a round for all waiting questions, if there are any.
    pub(crate) fn start(&mut self, now: Moment) -> Option<RoundId> {
        if self.pending.is_empty() || self.open_rounds.len() >= OPEN_ROUNDS_MAX {
            return None;
        }
        self.counter += u64::from(!mutant!(M07) || self.open_rounds.is_empty());
        self.open_rounds.insert(self.counter, (now, std::mem::take(&mut self.pending)));
        Some(RoundId { node: self.node, incarnation: self.incarnation, counter: self.counter })
    }

    /// Returns the questions of a round that could not be started. The number of the round is not
    /// used again.
    pub(crate) fn not_started(&mut self, round: RoundId) {
        if let Some((_, queries)) = self.open_rounds.remove(&round.counter)
            && !mutant!(B48)
        {
            self.pending.extend(queries);
        }
    }

    /// Queues the questions of unconfirmed rounds again, for rounds with new numbers.
    pub(crate) fn start_again(&mut self, now: Moment) {
        while let Some(entry) = self.open_rounds.first_entry()
            && !mutant!(B49)
        {
            if now.since(entry.get().0) < self.start_again {
                break;
            }
            self.pending.extend(entry.remove().1);
        }
    }

    /// Returns the time at which an unconfirmed round began.
    pub(crate) fn began(&self, round: RoundId) -> Option<Moment> {
        self.open_rounds.get(&round.counter).map(|(began, _)| *began)
    }

    /// Takes the questions of a round that a quorum has confirmed.
    pub(crate) fn confirmed(&mut self, round: RoundId) -> Vec<LeaderQuery> {
        assert_eq!((round.node, round.incarnation), (self.node, self.incarnation));
        self.open_rounds.remove(&round.counter).map(|(_, queries)| queries).unwrap_or_default()
    }

    /// Takes all questions when this node stops leading, so that the driver can answer that it does
    /// not lead.
    pub(crate) fn end(&mut self) -> Vec<LeaderQuery> {
        let open_rounds =
            std::mem::take(&mut self.open_rounds).into_values().flat_map(|(_, queries)| queries);
        open_rounds.chain(std::mem::take(&mut self.pending)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::at;

    #[test]
    fn excess_reads_are_dropped_and_rounds_are_bounded() {
        let (node, incarnation) = (NodeId::new(1).unwrap(), Incarnation(1));
        let mut rounds = Rounds::new(node, incarnation, Duration::from_millis(500));
        let query = |round| LeaderQuery {
            origin: QueryOrigin { node, incarnation, round },
            question: Question::Read,
        };
        for round in 0..2 * PENDING_MAX as u64 {
            rounds.join(query(round));
        }
        assert_eq!(rounds.pending.len(), PENDING_MAX);
        let mut started = 0;
        while rounds.start(at(0)).is_some() {
            started += 1;
            rounds.join(query(0));
        }
        assert_eq!(started, OPEN_ROUNDS_MAX);
    }
}
