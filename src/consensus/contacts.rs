//! Tracks this member's contact with the other members, and decides when to replace a leader whose
//! process has ended without waiting for the election timeout.
//!
//! The rule decides only when this member campaigns and when it processes vote requests. The rule
//! does not decide the election: a candidate still needs a quorum of members that accept its log. A
//! member without evidence that the leader's process has ended ignores vote requests while it
//! receives messages from the leader. So a leader that reaches a quorum stays the leader.

use std::collections::{BTreeMap, BTreeSet};

use raft::eraftpb::Message;

use crate::model::{NodeId, Term};

/// The contact with the other members.
#[derive(Debug, Default)]
pub(super) struct Contacts {
    /// The last time each peer was heard from, in ticks since the start.
    pub(super) received: BTreeMap<NodeId, u64>,
    /// The peers whose processes have ended, as far as the connections show.
    ended: BTreeSet<NodeId>,
    pub(super) early: EarlyCampaign,
    /// The last pre-vote request of each voter since the leader was last heard from. Raft ignores
    /// these requests. If evidence arrives that the leader's process has ended, the best of these
    /// requests is processed again. Its sender may have had the same evidence earlier.
    ignored: BTreeMap<NodeId, Message>,
}

/// The campaign that does not wait for the election timeout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum EarlyCampaign {
    /// There is no reason for an early campaign.
    #[default]
    None,
    /// The process of the leader has ended, so this member will campaign soon.
    Due {
        /// The term of the leader.
        term: Term,
        /// The leader.
        leader: NodeId,
    },
    /// This member has campaigned.
    Done {
        /// The term of the leader.
        term: Term,
        /// The time of the campaign, in ticks since the start.
        at: u64,
    },
}

impl EarlyCampaign {
    /// Maximum duration of an early election, in ticks.
    const TICKS_MAX: u64 = 2;

    /// Records that the process of the leader of `term` has ended. Returns whether a campaign is
    /// due, which is at most once in `pause` ticks of a term.
    pub(super) fn begin(&mut self, term: Term, leader: NodeId, now: u64, pause: u64) -> bool {
        match *self {
            EarlyCampaign::Done { term: of, at } if of == term && now - at < pause => false,
            _ => {
                *self = EarlyCampaign::Due { term, leader };
                true
            }
        }
    }

    /// Cancels a due campaign if `peer` is the leader, because its process has not ended.
    fn withdraw(&mut self, peer: NodeId) {
        if matches!(*self, EarlyCampaign::Due { leader, .. } if leader == peer) {
            *self = EarlyCampaign::None;
        }
    }

    pub(super) fn is_due(self, term: Term) -> bool {
        matches!(self, EarlyCampaign::Due { term: of, .. } if of == term)
    }

    /// Returns whether this member started an early campaign in `term` at most `TICKS_MAX` ticks
    /// ago.
    pub(super) fn is_recent(self, term: Term, now: u64) -> bool {
        matches!(self, EarlyCampaign::Done { term: of, at } if of == term && now - at <= Self::TICKS_MAX)
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

    pub(super) fn has_ended(&self, peer: NodeId) -> bool {
        self.ended.contains(&peer)
    }

    /// Keeps a pre-vote request that raft ignores.
    pub(super) fn ignore(&mut self, from: NodeId, message: Message) {
        self.ignored.insert(from, message);
    }

    /// Forgets the ignored pre-vote requests. Returns the request of the candidate with the longest
    /// log. If several logs are equally long, chooses the candidate with the highest id.
    pub(super) fn take_ignored(&mut self) -> Option<Message> {
        let ignored = std::mem::take(&mut self.ignored);
        ignored.into_values().max_by_key(|asked| (asked.log_term, asked.index, asked.from))
    }

    /// Records that there is no connection with `peer`.
    pub(super) fn unreachable(&mut self, peer: NodeId) {
        self.received.remove(&peer);
        self.ignored.remove(&peer);
    }

    /// Keeps only these members.
    pub(super) fn retain(&mut self, keep: impl Fn(NodeId) -> bool) {
        self.received.retain(|id, _| keep(*id));
        self.ended.retain(|id| keep(*id));
        self.ignored.retain(|id, _| keep(*id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::node;

    const PAUSE: u64 = 10;

    #[test]
    fn member_campaigns_early_at_most_once_in_an_election_timeout_of_a_term() {
        let mut early = EarlyCampaign::default();
        assert!(early.begin(Term(3), node(1), 5, PAUSE) && early.is_due(Term(3)));
        assert!(!early.is_due(Term(4)), "another term has begun");
        early = EarlyCampaign::Done { term: Term(3), at: 5 };
        assert!(early.is_recent(Term(3), 7));
        assert!(!early.is_recent(Term(3), 8) && !early.is_recent(Term(4), 5));
        assert!(!early.begin(Term(3), node(1), 14, PAUSE));
        assert!(early.begin(Term(3), node(1), 15, PAUSE));
        early = EarlyCampaign::Done { term: Term(3), at: 15 };
        assert!(early.begin(Term(4), node(2), 15, PAUSE));
    }

    #[test]
    fn withdrawn_evidence_cancels_a_campaign_but_does_not_allow_a_second() {
        let mut contacts = Contacts::default();
        contacts.ended(node(1));
        assert!(contacts.early.begin(Term(3), node(1), 0, PAUSE));
        contacts.not_ended(node(2));
        assert!(contacts.early.is_due(Term(3)) && contacts.has_ended(node(1)));
        contacts.not_ended(node(1));
        assert!(!contacts.early.is_due(Term(3)) && !contacts.has_ended(node(1)));
        contacts.ended(node(1));
        assert!(contacts.early.begin(Term(3), node(1), 0, PAUSE));
        contacts.early = EarlyCampaign::Done { term: Term(3), at: 0 };
        contacts.not_ended(node(1));
        contacts.ended(node(1));
        assert!(!contacts.early.begin(Term(3), node(1), 0, PAUSE));
    }
}
