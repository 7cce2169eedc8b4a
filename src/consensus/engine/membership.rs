//! Changes of the members: proposed one at a time, and made when they are applied.
//!
//! The state machine judges a change at its place in the log, the same on all members, and raft is
//! told of it only then. What raft makes of it is compared with what the machine did.

use super::*;

/// How many committed entries a learner may lack to count as caught up: what a busy cluster has on
/// its way at any time.
const CAUGHT_UP_ENTRIES: u64 = 256;

impl Consensus {
    /// Puts a change of the members into the log, if this member leads and no other change is under
    /// way. Whether it is taken is judged by the state machine when it is applied.
    ///
    /// Returns where: if the entry applied there is of that term and changes the members, it is this
    /// one. If it is of that term and has no data, raft has put it aside.
    ///
    /// A leader that would go by it hands the leadership over instead, and is busy: those that stay
    /// must know that the change is committed, and only a leader among them is sure to.
    ///
    /// # Errors
    /// It was not proposed, and nothing will come of it.
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
            // raft counts on it before it has made room for it.
            self.raw.raft.pending_conf_index = pending;
            tracing::debug!(%error, "a change of the members was not taken");
            return Err(ProposeRejection::Busy);
        }
        let proposed = self.raw.raft.raft_log.unstable_entries().last();
        match proposed.map(eraftpb::Entry::get_entry_type) {
            Some(eraftpb::EntryType::EntryConfChangeV2) => Ok((self.term(), self.last())),
            // An empty entry stands in its place, and does nothing.
            _ => Err(ProposeRejection::Busy),
        }
    }

    /// As a leader: whether the log may have a change of the members that is not applied here, or a replacement is under
    /// way.
    pub(crate) fn is_changing(&self) -> bool {
        self.raw.raft.has_pending_conf() || self.configuration.is_joint()
    }

    /// The machine has applied an entry that changes the members, and these are the members now. Told
    /// in the order of the log, before [`Consensus::applied`].
    ///
    /// A change that the machine judged to be void has changed nothing there, and does not here.
    ///
    /// # Errors
    /// The machine and raft do not agree on who decides. This member must stop.
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
        self.heard.retain(|id, _| !members.is_removed(*id));
        self.leave_if_removed();
        Ok(())
    }

    fn change_configuration(
        &mut self,
        entry: &wal::Entry,
        now: Configuration,
    ) -> Result<(), ConsensusFault> {
        let change = changes::member_change(entry)?;
        if now == self.configuration || mutant::is(Mutant::M30) {
            return Ok(());
        }
        let disagreement = |of: &str| ConsensusFault::Membership {
            index: entry.index,
            why: format!("{change:?} makes {now:?} of the state, {of}"),
        };
        let expected = self.configuration.after(&change);
        if now != expected {
            return Err(disagreement(&format!("but should make {expected:?}")));
        }
        let applied = self.with_raft(|raw| raw.apply_conf_change(&changes::to_raft(&change)));
        match applied.map(|state| Configuration::from_raft(&state)) {
            Ok(Some(of_raft)) if of_raft == now => {
                self.configuration = now;
                Ok(())
            }
            Ok(other) => Err(disagreement(&format!("and {other:?} of raft's"))),
            Err(error) => Err(disagreement(&format!("and raft refuses it: {error}"))),
        }
    }

    /// A leader that does not vote any more stops leading at once: raft would go on, and fall over
    /// its own absence at the next entry that is committed. It tells the others that its going is
    /// committed, and one of them to campaign.
    fn leave_if_removed(&mut self) {
        if !self.is_leader() || self.configuration.is_voter(self.config.id) {
            return;
        }
        let successor = self.best_transferee();
        tracing::info!(?successor, "this member was removed while it led");
        let term = self.raw.raft.term;
        self.with_raft(|raw| {
            raw.raft.bcast_append();
            if let Some(successor) = successor {
                raw.raft.send_timeout_now(successor.get());
            }
            raw.raft.become_follower(term, raft::INVALID_ID);
        });
    }

    /// Whether the voters that are there would be too few after a change, and how many they are. Only
    /// a leader knows who is there.
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

    /// As a leader: whether a member is there, and has nearly all that is committed, so that a quorum
    /// in which it votes does not wait for it.
    pub(crate) fn is_caught_up(&self, learner: NodeId) -> bool {
        self.peers().iter().any(|peer| {
            peer.id == learner
                && peer.active
                && peer.state == PeerState::Replicate
                && peer.matched.get() + CAUGHT_UP_ENTRIES >= self.commit().get()
        })
    }
}
