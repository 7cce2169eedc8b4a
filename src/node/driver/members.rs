//! Membership changes: the requests of local callers, the change that this node proposes as the leader, and the
//! effect of an applied change.

use std::sync::Arc;

use super::leader_state::{InProgress, LeaderState};
use super::{Driver, DriverStage, Fatal};
use crate::env::SendOutcome;
use crate::model::{
    Command, DiskId, JoinAnswer, JoinAsk, Joined, LogIndex, MemberAnswer, MemberAttributes,
    MemberChange, Members, MembershipError, MembershipRequest, Moment, NodeId, PeerMessage, Term,
    are_addresses,
};
use crate::node::leader_queries::rounds::QueryOrigin;
use crate::node::requests::answer::{CallError, CallResult, ReplyTo};
use crate::node::requests::inbox::Input;
use crate::node::settings::Contact;
use crate::transport::JoinReply;
use crate::wal;

impl Driver {
    /// As the leader: proposes the entry that settles the last membership change.
    pub(super) fn settle_members(&mut self) {
        if self.membership.needs_settling_entry() && self.leader.is_some() {
            // The proposal is rejected during a leadership transfer, or while the log is full. The
            // next turn tries again.
            if self.propose_nothing().is_ok() {
                self.membership.settling_entry_proposed();
            }
        }
    }

    /// As the leader: proposes an entry for a peer that has reconnected. The peer may have
    /// restarted, and reports a removal to the removed member only if it knows that the change is
    /// settled. The removed member may know no other peer.
    pub(super) fn settle_for_peer(&mut self) {
        if self.leader.is_some() && self.machine.members().has_removed() {
            // The proposal is rejected while another change is in progress. In this case a later
            // entry settles both changes.
            let _ = self.propose_nothing();
        }
    }

    /// Processes an applied entry without requests, which settles the last change.
    pub(super) fn settled(&mut self, index: LogIndex) {
        if !self.membership.settle() {
            return;
        }
        self.update_connections();
        let waiting = self.leader.as_mut().map(|leading| std::mem::take(&mut leading.unanswered));
        for (origin, id) in waiting.into_iter().flatten() {
            self.answer_step(origin, MemberAnswer::Done { id, index });
        }
    }

    /// As the leader: answers the origin of a request as soon as the change is settled.
    fn step_is_made(&mut self, origin: QueryOrigin, id: NodeId, index: LogIndex) {
        match &mut self.leader {
            Some(leading) if !self.membership.is_settled() => leading.unanswered.push((origin, id)),
            _ => self.answer_step(origin, MemberAnswer::Done { id, index }),
        }
    }

    /// Sends the requests of local callers to the leader.
    pub(super) fn send_membership_requests(&mut self, now: Moment) {
        let Some(leader) = self.contact.leader() else { return };
        let term = self.contact.term();
        let (me, incarnation) = (self.shared.settings.node, self.identity.incarnation());
        while let Some((round, membership_request)) = self.to_leader.steps.ask(term, now) {
            if leader == me {
                self.take_step(QueryOrigin { node: me, incarnation, round }, membership_request);
                continue;
            }
            let ask = PeerMessage::MemberAsk { round, incarnation, membership_request };
            if self.post(leader, ask.lane(), ask) != SendOutcome::Queued {
                self.to_leader.steps.remove_attempt(round);
            }
        }
    }

    /// As the leader: starts a requested membership change, or answers with a rejection.
    pub(super) fn take_step(&mut self, origin: QueryOrigin, membership_request: MembershipRequest) {
        match self.validate_step(&membership_request) {
            Err(MemberAnswer::Done { id, index }) => self.step_is_made(origin, id, index),
            Err(answer) => self.answer_step(origin, answer),
            Ok((id, change)) => match self.in_progress() {
                Some(in_progress) if in_progress.change == change => {
                    in_progress.origins.push(origin)
                }
                Some(_) => {
                    self.answer_step(origin, MemberAnswer::Refused(MembershipError::Pending));
                }
                None => match self.propose_step(id, change) {
                    Some(in_progress) => in_progress.origins.push(origin),
                    // This node cannot propose the change now. The request is repeated, and may
                    // then reach another leader, which can propose it.
                    None => self.answer_step(origin, MemberAnswer::NotLeader(None)),
                },
            },
        }
    }

    /// Returns the membership change for a request, and the affected member. If no change is needed
    /// or possible, returns the answer to the request instead.
    fn validate_step(
        &mut self,
        membership_request: &MembershipRequest,
    ) -> Result<(NodeId, MemberChange), MemberAnswer> {
        let leader = self.contact.leader();
        // A new leader counts members from which it has not received a message yet as absent, and
        // would wrongly reject changes. The answer `NotLeader` causes the request to be repeated
        // later.
        let (now, timeout) = (self.shared.now(), self.shared.settings.election_timeout);
        let is_young = |leading: &LeaderState| now.since(leading.since) < timeout;
        let is_young = self.leader.as_ref().is_some_and(is_young);
        let absent = |rejection| match is_young {
            true => MemberAnswer::NotLeader(None),
            false => MemberAnswer::Refused(rejection),
        };
        let DriverStage::Running(consensus) = &mut self.stage else {
            return Err(MemberAnswer::NotLeader(None));
        };
        if self.leader.is_none() || !consensus.is_ready_to_lead() {
            let me = self.shared.settings.node;
            return Err(MemberAnswer::NotLeader(leader.filter(|leader| *leader != me)));
        }
        let members = self.machine.members();
        let index = self.machine.applied();
        // The change may already be in effect, because a request is repeated until its answer has arrived.
        let done = match membership_request {
            MembershipRequest::Add { disk, .. } => {
                let mut rows = members.rows().iter();
                rows.find(|(_, member)| member.disk == *disk).map(|(id, _)| *id)
            }
            MembershipRequest::Keep { address, .. } => members.kept_at(address),
            MembershipRequest::Promote(id) => Some(*id).filter(|id| members.is_voter(*id)),
            MembershipRequest::Remove(id) => Some(*id).filter(|id| members.is_removed(*id)),
        };
        if let Some(id) = done {
            return Err(MemberAnswer::Done { id, index });
        }
        if let MembershipRequest::Keep { address, .. } = membership_request
            && !are_addresses(address)
        {
            let address = address.chars().take(JoinAsk::TEXT_BYTES_MAX / 8).collect();
            return Err(MemberAnswer::Refused(MembershipError::BadAddress(address)));
        }
        let minted = NodeId::new(members.next()).expect("a cluster that runs was founded");
        let (id, change) = match membership_request.clone() {
            MembershipRequest::Add { disk, name, address, replaces } => {
                match members.kept_at(&address).filter(|_| replaces.is_none()) {
                    Some(id) => (id, MemberChange::Take { id, disk, name, address }),
                    None => {
                        (minted, MemberChange::Add { id: minted, disk, name, address, replaces })
                    }
                }
            }
            MembershipRequest::Keep { address, votes } => {
                let (disk, name, replaces) = (DiskId::NONE, String::new(), votes.then_some(minted));
                (minted, MemberChange::Add { id: minted, disk, name, address, replaces })
            }
            MembershipRequest::Promote(id) => (id, MemberChange::Promote(id)),
            MembershipRequest::Remove(id) => (id, MemberChange::Remove(id)),
        };
        // The request may repeat a change that is already in progress. Such a request was checked
        // before that change was proposed.
        let repeated = self.leader.as_ref().and_then(|leading| leading.step.as_ref());
        if repeated.is_some_and(|in_progress| in_progress.change == change) {
            return Ok((id, change));
        }
        let refused = MemberAnswer::Refused;
        members.validate(&change).map_err(refused)?;
        // The only voter is being replaced, so leadership cannot be transferred first: no other
        // voter exists.
        if let MemberChange::Add { replaces: Some(old), .. } = &change
            && members.voters().eq([*old])
        {
            return Err(refused(MembershipError::LastVoter(*old)));
        }
        if matches!(change, MemberChange::Promote(_)) && !consensus.is_caught_up(id) {
            return Err(absent(MembershipError::NotCaughtUp(id)));
        }
        if let Some(rejection) = consensus.would_lose_quorum(&change) {
            return Err(absent(rejection));
        }
        if change == MemberChange::Remove(self.shared.settings.node) {
            // Leadership moves first, because a leader must be a member. The next leader removes this node.
            if let Some(peer) = consensus.best_transferee() {
                consensus.transfer_to(peer);
            }
            return Err(MemberAnswer::NotLeader(None));
        }
        Ok((id, change))
    }

    fn in_progress(&mut self) -> Option<&mut InProgress> {
        self.leader.as_mut().and_then(|leading| leading.step.as_mut())
    }

    fn propose_step(&mut self, id: NodeId, change: MemberChange) -> Option<&mut InProgress> {
        let DriverStage::Running(consensus) = &mut self.stage else { return None };
        let (term, index) = consensus.propose_membership(&change).ok()?;
        tracing::info!(%id, ?change, %index, "proposed membership change");
        let leading = self.leader.as_mut()?;
        Some(leading.step.insert(InProgress { term, index, id, change, origins: Vec::new() }))
    }

    /// As the leader: promotes new members that have caught up, if they were added to replace a
    /// voter or joined as a reserved voter.
    pub(super) fn replace_voters(&mut self) {
        let DriverStage::Running(consensus) = &mut self.stage else { return };
        let Some(leading) = &self.leader else { return };
        if leading.step.is_some() || !consensus.is_ready_to_lead() {
            return;
        }
        let members = self.machine.members();
        let replacement = members.rows().iter().find_map(|(new, member)| {
            let change = match member.replaces? {
                own if own == *new => MemberChange::Promote(own),
                old => MemberChange::Replace { old, new: *new },
            };
            let fit = members.validate(&change).is_ok()
                && consensus.is_caught_up(*new)
                && consensus.would_lose_quorum(&change).is_none();
            fit.then_some((*new, change))
        });
        if let Some((new, change)) = replacement {
            self.propose_step(new, change);
        }
    }

    fn answer_step(&mut self, origin: QueryOrigin, answer: MemberAnswer) {
        if origin.node == self.shared.settings.node {
            self.to_leader.steps.answered(origin.round, answer);
            self.to_leader.steps.applied(self.machine.applied());
        } else {
            let QueryOrigin { node, incarnation, round } = origin;
            self.send(node, PeerMessage::MemberAnswer { round, incarnation, answer });
        }
    }

    /// Updates the consensus after the machine has applied a membership entry. The update happens
    /// at once, because the new configuration applies to all later entries.
    pub(super) fn follow_membership(&mut self, entry: &wal::Entry) -> Result<(), Fatal> {
        let DriverStage::Running(consensus) = &mut self.stage else {
            return Err("membership change committed before consensus was started".to_owned());
        };
        consensus
            .applied_membership(entry, self.machine.members())
            .map_err(|fault| fault.to_string())
    }

    /// Processes an applied entry. If this node had proposed a membership change, the outcome of
    /// that change may be known now.
    pub(super) fn settle_step(&mut self, index: LogIndex, term: Term, has_changed: bool) {
        let step = self
            .leader
            .as_mut()
            .and_then(|leading| leading.step.take_if(|in_progress| in_progress.index <= index));
        let Some(in_progress) = step else { return };
        // If another entry has this index, the change was discarded, and the request is repeated.
        let is_it = (in_progress.term, in_progress.index) == (term, index) && has_changed;
        for origin in in_progress.origins {
            match is_it {
                true => self.step_is_made(origin, in_progress.id, index),
                false => self.answer_step(origin, MemberAnswer::NotLeader(None)),
            }
        }
    }

    /// Updates the peers to connect to and the voters whose digests count, after the members have changed.
    pub(super) fn members_changed(&mut self) {
        self.shared.replica.stop_local_linearizable_reads();
        let members = self.machine.members();
        self.membership.roster.update(members);
        self.peers.digests.set_voters(members.voters());
        self.update_connections();
    }

    /// Returns whether this node leads and is the only member, and no former member can have
    /// applied more than this replica. Learners and reserved members count as members.
    pub(super) fn is_alone(&self) -> bool {
        let DriverStage::Running(consensus) = &self.stage else { return false };
        let (members, me) = (self.machine.members(), self.shared.settings.node);
        let is_only =
            members.is_voter(me) && members.rows().len() == 1 && members.outgoing().is_empty();
        is_only
            && self.leader.is_some()
            && consensus.is_ready_to_lead()
            && consensus.known_commit() == self.machine.applied()
    }

    /// Sets the members from a state that this node received or loaded.
    pub(super) fn found_members(&mut self) {
        let has_removed = self.machine.members().has_removed();
        self.membership.founded(has_removed);
        self.members_changed();
    }

    /// Applies the known members to all existing and future connections.
    fn update_connections(&mut self) {
        let settling = !self.membership.is_settled() && !mutant!(B52);
        self.identity.knows(Arc::clone(self.membership.roster.members()), settling);
        self.io.network.set_peers(&self.membership.roster.contacts());
    }

    /// Announces the name and addresses of this node, if they differ from the replicated values.
    pub(super) fn announce(&mut self) {
        let settings = &self.shared.settings;
        let Contact { name, address } = &settings.contact;
        let announced = self.machine.members().get(settings.node);
        let known = announced.is_none_or(|member| {
            (&member.name, &member.address, &member.endpoints)
                == (name, address, &settings.endpoints)
        });
        if !known && !self.membership.has_announced {
            self.membership.has_announced = true;
            let (name, address) = (name.clone(), address.clone());
            let endpoints = settings.endpoints.clone();
            self.propose_until_applied(Command::Announce(MemberAttributes {
                name,
                address,
                endpoints,
            }));
        }
    }

    /// As the leader: raises the cluster version when every member supports a newer one. The
    /// version is never lowered, so a member that goes back to an older build stops with an error.
    /// A node that stops leading withdraws its proposal. Otherwise the proposal could be applied
    /// after a member was downgraded, which the next leader would not notice.
    pub(super) fn raise_version(&mut self) {
        let Some(leading) = &self.leader else { return };
        if leading.raising.is_some_and(|seq| self.to_leader.proposals.is_open(seq)) {
            return;
        }
        let own = self.shared.settings.supported_version;
        let version = self.membership.version_of_all(self.machine.members(), own);
        let Some(version) = version.filter(|version| *version > self.machine.version()) else {
            return;
        };
        tracing::info!(%version, "raising cluster version, all members support it");
        let seq = self.propose_until_applied(Command::Raise(version));
        if let Some(leading) = &mut self.leader {
            leading.raising = Some(seq);
        }
    }

    // ---- joining ----------------------------------------------------------------------------------

    /// Processes the join request of a node that knows the cluster's token. Any member may receive
    /// the request.
    pub(super) fn take_join(&mut self, ask: JoinAsk, reply: JoinReply, now: Moment) {
        if !matches!(self.stage, DriverStage::Running(_)) || self.lifecycle.farewell().is_some() {
            return reply.send(JoinAnswer::Later("this member is starting or stopping".to_owned()));
        }
        let JoinAsk { disk, name, address, replaces } = ask;
        if disk == DiskId::NONE {
            return reply.send(JoinAnswer::Refused("the disk id is missing".to_owned()));
        }
        let members = self.machine.members();
        let is_in = members.rows().values().any(|member| member.disk == disk);
        let replaces = match replaces.as_deref().filter(|_| !is_in) {
            None => None,
            Some(old) => match members.named(old) {
                Some(id) => Some(id),
                None => {
                    let why = format!("no member named {old:?} to replace");
                    // The member to replace may not have announced its name yet, or may be unknown
                    // here because this replica lags. The leader's replica does not lag, so ask the
                    // leader.
                    let nameless = members.rows().values().any(|member| member.name.is_empty());
                    return reply.send(match nameless || self.leader.is_none() {
                        true => JoinAnswer::Later(why),
                        false => JoinAnswer::Refused(why),
                    });
                }
            },
        };
        let inbox = Arc::clone(&self.shared.inbox);
        let membership_request = MembershipRequest::Add { disk, name, address, replaces };
        let on_result = ReplyTo::Call(Box::new(move |result| {
            drop(inbox.push(Input::LetIn(reply, result)));
        }));
        self.to_leader.steps.add(
            membership_request,
            now + self.shared.settings.call_deadline,
            on_result,
            now,
        );
    }

    /// Answers a join request once its outcome is known.
    pub(super) fn answer_join(&mut self, reply: JoinReply, result: CallResult<NodeId>) {
        let answer = match result {
            Ok(node) => JoinAnswer::Joined(Joined {
                cluster: self.shared.settings.cluster,
                node,
                founding: self.identity.founders(),
                members: Members::clone(self.machine.members()),
            }),
            Err(CallError::Members(rejection)) => join_rejection(&rejection),
            Err(error) => JoinAnswer::Later(error.to_string()),
        };
        reply.send(answer);
    }
}

/// Returns the answer to a node whose join request was rejected.
fn join_rejection(rejection: &MembershipError) -> JoinAnswer {
    match rejection {
        MembershipError::Pending => {
            JoinAnswer::Later("another membership change is in progress".to_owned())
        }
        // The member to replace was looked up by its name in this replica, which may lag: another
        // member may have that name by now. A member without which there is no quorum may soon be
        // back. So the joining node should retry.
        MembershipError::Unknown(_) | MembershipError::LosesQuorum { .. } => {
            JoinAnswer::Later(rejection.to_string())
        }
        _ => JoinAnswer::Refused(rejection.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joiner_retries_rejections_that_may_be_stale() {
        let id = NodeId::new(4).unwrap();
        for (rejection, is_final) in [
            (MembershipError::Unknown(id), false),
            (MembershipError::Pending, false),
            (MembershipError::NameTaken("m3".to_owned()), true),
            (MembershipError::TooMany(9), true),
            (MembershipError::NotVoter(id), true),
        ] {
            let answer = join_rejection(&rejection);
            assert_eq!(
                matches!(answer, JoinAnswer::Refused(_)),
                is_final,
                "{rejection}: {answer:?}"
            );
        }
    }
}
