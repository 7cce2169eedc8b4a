//! Tracks the leader that this node knows, and the last contact with a leader.

use crate::model::{Moment, NodeId, Term};

/// The known leader, and the last contact with a leader.
#[derive(Debug, Default)]
pub(super) struct LeaderContact {
    /// The term and its leader, as known after the last turn.
    known: (Term, Option<NodeId>),
    /// The last contact with a leader, for the health of the node. Kept after the connection is lost or the term
    /// ends, because the next election may succeed soon.
    last: Option<Contacted>,
    /// The last term in which this node was a candidate.
    last_candidacy: Term,
    /// Time of the campaign that this node starts because the process of the leader has ended.
    campaign_at: Option<Moment>,
}

/// A contact with a leader. On the leader itself, a contact with a quorum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contacted {
    pub(super) leader: NodeId,
    pub(super) at: Moment,
}

/// The changes since the last known term and leader.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct ContactChange {
    /// Whether this node is a candidate in a new term.
    pub(super) is_new_candidacy: bool,
    /// Whether another leader is known than before.
    pub(super) has_another_leader: bool,
}

impl LeaderContact {
    pub(super) fn term(&self) -> Term {
        self.known.0
    }

    pub(super) fn leader(&self) -> Option<NodeId> {
        self.known.1
    }

    pub(super) fn is_known(&self, known: (Term, Option<NodeId>)) -> bool {
        self.known == known
    }

    /// Records the term and its leader. `takes_part` is true if this node is a candidate or the leader.
    pub(super) fn observe(
        &mut self,
        known: (Term, Option<NodeId>),
        takes_part: bool,
    ) -> ContactChange {
        let is_new_candidacy = takes_part && known.0 > self.last_candidacy;
        if takes_part {
            self.last_candidacy = known.0;
        }
        let has_another_leader = known.1.is_some() && known.1 != self.known.1;
        self.known = known;
        ContactChange { is_new_candidacy, has_another_leader }
    }

    /// Records a contact with `leader`, if its time is known. The recorded time never decreases.
    pub(super) fn touched(&mut self, leader: NodeId, at: Option<Moment>) {
        let last = self.last.map(|contact| contact.at);
        self.last = at.max(last).map(|at| Contacted { leader, at });
    }

    pub(super) fn last(&self) -> Option<Contacted> {
        self.last
    }

    /// Returns the time of the next early campaign.
    pub(super) fn campaign_at(&self) -> Option<Moment> {
        self.campaign_at
    }

    /// Sets or clears the time of the next early campaign.
    pub(super) fn set_campaign(&mut self, at: Option<Moment>) {
        self.campaign_at = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::{at, node};

    #[test]
    fn leader_that_returns_after_an_unknown_one_is_another() {
        let mut contact = LeaderContact::default();
        let mut observe = |term, leader: Option<u64>, takes_part| {
            let change = contact.observe((Term(term), leader.map(node)), takes_part);
            (change.is_new_candidacy, change.has_another_leader)
        };
        assert_eq!(observe(1, None, true), (true, false));
        assert_eq!(observe(1, Some(1), true), (false, true), "it won the same election");
        assert_eq!(observe(2, Some(1), true), (true, false), "the same leader in a new term");
        assert_eq!(observe(3, None, false), (false, false));
        assert_eq!(observe(3, Some(1), false), (false, true));
    }

    #[test]
    fn last_contact_outlives_the_connection_and_does_not_go_back() {
        let mut contact = LeaderContact::default();
        contact.touched(node(1), None);
        assert!(contact.last().is_none());
        contact.touched(node(1), Some(at(50)));
        contact.touched(node(2), Some(at(40)));
        contact.touched(node(2), None);
        let last = contact.last().unwrap();
        assert_eq!((last.leader, last.at), (node(2), at(50)));
    }
}
