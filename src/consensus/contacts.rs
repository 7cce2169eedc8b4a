//! The contact of a member with the other members, and the rule by which it replaces a leader whose
//! process has ended without waiting for an election timeout.
//!
//! The rule decides only when this member campaigns and when it processes the vote requests of
//! others. It does not decide who wins: a candidate still needs a quorum of members that accept its
//! log. A member without evidence ignores vote requests while it hears from its leader, so a leader
//! that reaches a quorum stays.

use std::collections::{BTreeMap, BTreeSet};

use raft::eraftpb::Message;

use crate::model::{NodeId, Term};

/// The contact with the other members.
#[derive(Debug, Default)]
pub(super) struct Contacts {
    /// The last time each peer was heard from, in ticks since the start.
    pub(super) heard: BTreeMap<NodeId, u64>,
    /// The peers whose processes have ended, as far as the connections show.
    ended: BTreeSet<NodeId>,
    pub(super) early: EarlyCampaign,
    /// The last pre-vote request of each peer since the leader was last heard from. Raft ignores
    /// these requests. If evidence arrives that the leader's process has ended, they are processed
    /// again, because the peers may have had the same evidence earlier.
    ignored: BTreeMap<NodeId, Message>,
}

/// The campaign that does not wait for the election timeout: at most one in a term, and therefore
/// at most one for each leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum EarlyCampaign {
    /// There is no reason for one.
    #[default]
    None,
    /// The process of the leader has ended, so this member will campaign soon.
    Due {
        /// The term of the leader.
        term: Term,
        /// The leader.
        leader: NodeId,
    },
    /// In this term, this member has campaigned early, or supported the campaign of a peer.
    Spent(Term),
}

impl EarlyCampaign {
    /// The process of the leader of `term` has ended. Returns whether a campaign is due.
    pub(super) fn begin(&mut self, term: Term, leader: NodeId) -> bool {
        if *self != EarlyCampaign::Spent(term) {
            *self = EarlyCampaign::Due { term, leader };
        }
        self.is_due(term)
    }

    /// The evidence about `peer` is withdrawn.
    fn withdraw(&mut self, peer: NodeId) {
        if matches!(*self, EarlyCampaign::Due { leader, .. } if leader == peer) {
            *self = EarlyCampaign::None;
        }
    }

    /// This member has campaigned in `term`, or has supported the campaign of a peer.
    pub(super) fn spend(&mut self, term: Term) {
        *self = EarlyCampaign::Spent(term);
    }

    pub(super) fn is_due(self, term: Term) -> bool {
        matches!(self, EarlyCampaign::Due { term: of, .. } if of == term)
    }

    pub(super) fn is_spent(self, term: Term) -> bool {
        self == EarlyCampaign::Spent(term)
    }
}

impl Contacts {
    /// Records that the process of `peer` has ended.
    pub(super) fn ended(&mut self, peer: NodeId) {
        self.ended.insert(peer);
    }

    /// Records that the process of `peer` has not ended after all.
    pub(super) fn not_ended(&mut self, peer: NodeId) {
        if self.ended.remove(&peer) {
            self.early.withdraw(peer);
        }
    }

    /// Returns whether the process of `peer` has ended.
    pub(super) fn has_ended(&self, peer: NodeId) -> bool {
        self.ended.contains(&peer)
    }

    /// Keeps a pre-vote request that raft ignores.
    pub(super) fn ignore(&mut self, from: NodeId, message: Message) {
        self.ignored.insert(from, message);
    }

    /// Removes and returns the ignored pre-vote requests.
    pub(super) fn take_ignored(&mut self) -> impl Iterator<Item = Message> + use<> {
        std::mem::take(&mut self.ignored).into_values()
    }

    /// Keeps only these members.
    pub(super) fn retain(&mut self, keep: impl Fn(NodeId) -> bool) {
        self.heard.retain(|id, _| keep(*id));
        self.ended.retain(|id| keep(*id));
        self.ignored.retain(|id, _| keep(*id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> NodeId {
        NodeId::new(number).unwrap()
    }

    #[test]
    fn member_campaigns_early_at_most_once_in_a_term() {
        let mut early = EarlyCampaign::default();
        assert!(early.begin(Term(3), id(1)) && early.is_due(Term(3)));
        assert!(!early.is_due(Term(4)), "another term has begun");
        early.spend(Term(3));
        assert!(!early.begin(Term(3), id(1)) && early.is_spent(Term(3)));
        assert!(early.begin(Term(4), id(2)));
    }

    #[test]
    fn withdrawn_evidence_cancels_a_campaign_but_does_not_allow_a_second() {
        let mut contacts = Contacts::default();
        contacts.ended(id(1));
        assert!(contacts.early.begin(Term(3), id(1)));
        contacts.not_ended(id(2));
        assert!(contacts.early.is_due(Term(3)) && contacts.has_ended(id(1)));
        contacts.not_ended(id(1));
        assert!(!contacts.early.is_due(Term(3)) && !contacts.has_ended(id(1)));
        contacts.ended(id(1));
        assert!(contacts.early.begin(Term(3), id(1)));
        contacts.early.spend(Term(3));
        contacts.not_ended(id(1));
        contacts.ended(id(1));
        assert!(!contacts.early.begin(Term(3), id(1)));
    }
}
