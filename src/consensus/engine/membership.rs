//! Membership changes. Only one change is in progress at a time, and a change takes effect when it
//! is applied.
//!
//! The state machine validates a change at its log index, with the same result on all members. If
//! the change is valid, it is then passed to raft. Afterwards, raft's configuration is compared
//! with the members in the state machine, because the two must agree.

use raft::eraftpb;

use super::Consensus;
use crate::consensus::fault::ConsensusFault;
use crate::consensus::gate::Standpoint;
use crate::consensus::membership as changes;
use crate::consensus::membership::Configuration;
use crate::consensus::status::PeerState;
use crate::model::{
    LogIndex, MemberChange, Members, MembershipError, NodeId, ProposeRejection, Term,
};
use crate::wal;

/// Maximum number of committed entries that a caught-up learner may lack. In a busy cluster, about
/// this many entries are always in flight.
const CAUGHT_UP_ENTRIES: u64 = 256;

impl Consensus {
    /// Appends a membership change to the log, if this member is the leader and no other change is
    /// in progress. The state machine decides whether the change is valid when it applies it.
    ///
    /// Returns the term and index. If the entry that is applied at this index has this term and is
    /// a membership change, it is the proposed change. If that entry has this term and no data,
    /// raft has discarded the change.
    ///
    /// If the change would remove the leader itself, the leader transfers its leadership instead
    /// and returns `Busy`. The reason: the remaining members must learn that the change is
    /// committed, and this is only certain if one of them is the leader.
    ///
    /// # Errors
    /// Returns an error if the change was not proposed. Such a change will never be applied.
    pub(crate) fn propose_membership(
        &mut self,
        change: &MemberChange,
    ) -> Result<(Term, LogIndex), ProposeRejection> {
        assert_ne!(*change, MemberChange::LeaveJoint, "raft leaves by itself");
        if !self.is_leader() {
            return Err(ProposeRejection::NotLeader(self.leader()));
        }
        if !self.is_ready_to_lead()
            || self.is_changing()
            || self.is_transferring()
            || self.fault.is_some()
        {
            return Err(ProposeRejection::Busy);
        }
        if !self.configuration.after(change).voters.contains(&self.config.id) {
            if let Some(successor) = self.best_transferee() {
                self.transfer_to(successor);
            }
            return Err(ProposeRejection::Busy);
        }
        let change = changes::to_raft(change);
        let pending = self.raw.raft.pending_conf_index;
        if let Err(error) = self.with_raft(|raw| raw.propose_conf_change(Vec::new(), change)) {
            // Raft records the pending index before it checks its limits, so restore it.
            self.raw.raft.pending_conf_index = pending;
            tracing::debug!(%error, "raft rejected a membership change");
            return Err(ProposeRejection::Busy);
        }
        let proposed = self.raw.raft.raft_log.unstable_entries().last();
        match proposed.map(eraftpb::Entry::get_entry_type) {
            Some(eraftpb::EntryType::EntryConfChangeV2) => Ok((self.term(), self.last())),
            // Raft has discarded the change and appended an empty entry instead.
            _ => Err(ProposeRejection::Busy),
        }
    }

    /// As the leader, returns whether the log may contain a membership change that is not applied
    /// here, or a replacement is in progress.
    pub(crate) fn is_changing(&self) -> bool {
        self.raw.raft.has_pending_conf() || self.configuration.is_joint()
    }

    /// Records that the machine has applied a membership change, and that `members` is the result.
    /// Must be called in log order, before [`Consensus::applied`].
    ///
    /// A change that the state machine has rejected changes nothing in raft either.
    ///
    /// # Errors
    /// Returns an error if the machine and raft disagree about the voters. This member must stop.
    pub(crate) fn applied_membership(
        &mut self,
        entry: &wal::Entry,
        members: &Members,
    ) -> Result<(), ConsensusFault> {
        let index = entry.index;
        assert!(index <= self.handed && index > self.applied_index(), "entry {index} out of turn");
        let result = self.change_configuration(entry, Configuration::of(members));
        if let Err(fault) = result {
            return Err(self.fault.insert(fault).clone());
        }
        self.members = members.clone();
        self.contacts.retain(|id| !members.is_removed(id));
        self.leave_if_removed();
        Ok(())
    }

    fn change_configuration(
        &mut self,
        entry: &wal::Entry,
        now: Configuration,
    ) -> Result<(), ConsensusFault> {
        let change = changes::member_change(entry)?;
        if now == self.configuration || mutant!(M30) {
            return Ok(());
        }
        let disagreement = |of: &str| ConsensusFault::Membership {
            index: entry.index,
            why: format!("the state has {now:?} after {change:?}, {of}"),
        };
        let expected = self.configuration.after(&change);
        if now != expected {
            return Err(disagreement(&format!("expected {expected:?}")));
        }
        let applied = self.with_raft(|raw| raw.apply_conf_change(&changes::to_raft(&change)));
        match applied.map(|state| Configuration::from_raft(&state)) {
            Ok(Some(of_raft)) if of_raft == now => {
                self.configuration = now;
                Ok(())
            }
            Ok(other) => Err(disagreement(&format!("but raft has {other:?}"))),
            Err(error) => Err(disagreement(&format!("but raft rejects the change: {error}"))),
        }
    }

    /// Makes a leader that is no longer a voter step down at once. Otherwise the raft crate would
    /// continue to lead, and would panic at the next committed entry, because the leader is not in
    /// its own configuration. Before stepping down, this member informs the other members that its
    /// removal is committed, and asks one of the members to campaign.
    fn leave_if_removed(&mut self) {
        if !self.is_leader() || self.configuration.is_voter(self.config.id) {
            return;
        }
        let successor = self.best_transferee();
        tracing::info!(?successor, "stepping down: this leader was removed from the cluster");
        let term = self.raw.raft.term;
        self.with_raft(|raw| {
            raw.raft.bcast_append();
            if let Some(successor) = successor {
                raw.raft.send_timeout_now(successor.get());
            }
            raw.raft.become_follower(term, raft::INVALID_ID);
        });
    }

    /// Returns a rejection if too few voters would be active after a change. Only a leader knows
    /// which members are active.
    pub(crate) fn would_lose_quorum(&self, change: &MemberChange) -> Option<MembershipError> {
        let after = self.configuration.after(change);
        let is_there = |id: &&NodeId| **id == self.config.id || self.is_active(**id);
        [&after.voters, &after.outgoing].into_iter().filter(|voters| !voters.is_empty()).find_map(
            |voters| {
                let (active, needed) =
                    (voters.iter().filter(is_there).count(), voters.len() / 2 + 1);
                let voters = voters.len();
                (active < needed).then_some(MembershipError::LosesQuorum { active, voters, needed })
            },
        )
    }

    /// As the leader, returns whether a member is active and has nearly all committed entries. A
    /// quorum that includes this member then does not have to wait until it catches up.
    pub(crate) fn is_caught_up(&self, learner: NodeId) -> bool {
        self.peers().iter().any(|peer| {
            peer.id == learner
                && peer.active
                && peer.state == PeerState::Replicate
                && peer.matched.get() + CAUGHT_UP_ENTRIES >= self.commit().get()
        })
    }
}
