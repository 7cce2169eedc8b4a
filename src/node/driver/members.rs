//! The members change: what callers here want, what this node as the leader has under way, and what an
//! applied step means for this node.

use super::*;

/// A step that this node, as the leader, has proposed.
pub(super) struct UnderWay {
    term: Term,
    index: LogIndex,
    /// Whom it is about.
    id: NodeId,
    change: MemberChange,
    askers: Vec<StepAsker>,
}

/// Who wants a step.
pub(super) enum StepAsker {
    /// A caller here.
    Local { round: u64 },
    /// Another node.
    Remote { node: NodeId, incarnation: Incarnation, round: u64 },
}

/// A change of the members that is applied here, and not known to be settled.
///
/// That it is committed is written down with the next entry, not by itself. If all stopped before that, they would come
/// up with the members of before, and might need the vote of one that was removed. So nobody is told that a change is
/// made, and nobody that it was removed, before an entry is committed that was proposed when the change had been applied:
/// with that entry a quorum of the new members has written down that the change is committed. Such an entry has no
/// requests: one without any is proposed only by a leader that has applied all changes before it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsettled {
    /// Whoever leads has to propose that entry.
    ToPropose,
    /// This node has proposed it.
    Proposed,
}

impl Driver {
    /// As the leader: proposes the entry that settles the last change of the members.
    pub(super) fn settle_members(&mut self) {
        if self.unsettled == Some(Unsettled::ToPropose) && self.leading.is_some() {
            // Refused while leadership moves, or the log is full: there is another turn.
            if self.propose_nothing().is_ok() {
                self.unsettled = Some(Unsettled::Proposed);
            }
        }
    }

    /// As the leader: a peer that is here again may have started anew, and cannot tell who was removed before it knows
    /// that it is settled. Whoever was removed may know nobody else.
    pub(super) fn settle_for_peer(&mut self) {
        if self.leading.is_some() && self.machine.members().has_removed() {
            // Refused while a change is under way: that is settled in any case.
            let _ = self.propose_nothing();
        }
    }

    /// An entry without requests is applied: it settles the last change.
    pub(super) fn settled(&mut self, index: LogIndex) {
        if self.unsettled.take().is_none() {
            return;
        }
        self.introduce();
        let waiting = self.leading.as_mut().map(|leading| std::mem::take(&mut leading.untold));
        for (asker, id) in waiting.into_iter().flatten() {
            self.answer_step(asker, MemberAnswer::Done { id, index });
        }
    }

    /// As the leader: tells who wants a step that it is made, as soon as it is settled.
    fn step_is_made(&mut self, asker: StepAsker, id: NodeId, index: LogIndex) {
        match &mut self.leading {
            Some(leading) if self.unsettled.is_some() => leading.untold.push((asker, id)),
            _ => self.answer_step(asker, MemberAnswer::Done { id, index }),
        }
    }

    /// Puts what callers here want to the leader.
    pub(super) fn ask_for_steps(&mut self, now: Moment) {
        let (term, Some(leader)) = self.known_leader else { return };
        let (me, incarnation) = (self.shared.settings.node, self.identity.incarnation());
        while let Some((round, membership_request)) = self.steps.ask(term, now) {
            if leader == me {
                self.take_step(StepAsker::Local { round }, membership_request);
                continue;
            }
            let ask = PeerMessage::MemberAsk { round, incarnation, membership_request };
            if self.post(leader, ask.lane(), ask) != SendOutcome::Queued {
                self.steps.not_asked(round);
            }
        }
    }

    /// As the leader: takes a step that somebody wants, or says why not.
    pub(super) fn take_step(&mut self, asker: StepAsker, membership_request: MembershipRequest) {
        match self.judge_step(&membership_request) {
            Err(MemberAnswer::Done { id, index }) => self.step_is_made(asker, id, index),
            Err(answer) => self.answer_step(asker, answer),
            Ok((id, change)) => match self.under_way() {
                Some(under_way) if under_way.change == change => under_way.askers.push(asker),
                Some(_) => {
                    self.answer_step(asker, MemberAnswer::Refused(MembershipError::Pending));
                }
                None => match self.propose_step(id, change) {
                    Some(under_way) => under_way.askers.push(asker),
                    // Asked again, it may find a leader with more time.
                    None => self.answer_step(asker, MemberAnswer::NotLeader(None)),
                },
            },
        }
    }

    /// The step that a wish comes to and whom it is about, or the answer to it.
    fn judge_step(
        &mut self,
        membership_request: &MembershipRequest,
    ) -> Result<(NodeId, MemberChange), MemberAnswer> {
        let leader = self.known_leader.1;
        // A leader that was just elected has not heard from all members yet, and would reject changes because of members
        // that are there. Its answer makes the request come again.
        let (now, timeout) = (self.shared.now(), self.shared.settings.election_timeout);
        let is_young = |leading: &LeaderState| now.since(leading.since) < timeout;
        let is_young = self.leading.as_ref().is_some_and(is_young);
        let absent = |rejection| match is_young {
            true => MemberAnswer::NotLeader(None),
            false => MemberAnswer::Refused(rejection),
        };
        let Stage::Running(consensus) = &mut self.stage else {
            return Err(MemberAnswer::NotLeader(None));
        };
        if self.leading.is_none() || !consensus.is_ready_to_lead() {
            let me = self.shared.settings.node;
            return Err(MemberAnswer::NotLeader(leader.filter(|leader| *leader != me)));
        }
        let members = self.machine.members();
        let index = self.machine.applied();
        // What has come true already: the wish is repeated until its answer has arrived.
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
        // One that is under way is judged by the state before it.
        let repeated = self.leading.as_ref().and_then(|leading| leading.step.as_ref());
        if repeated.is_some_and(|under_way| under_way.change == change) {
            return Ok((id, change));
        }
        let refused = MemberAnswer::Refused;
        members.judge(&change).map_err(refused)?;
        // Nobody else could lead while its place is taken.
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
            // Another one leads, and removes this one: nobody leads who is no member.
            if let Some(peer) = consensus.best_transferee() {
                consensus.transfer_to(peer);
            }
            return Err(MemberAnswer::NotLeader(None));
        }
        Ok((id, change))
    }

    fn under_way(&mut self) -> Option<&mut UnderWay> {
        self.leading.as_mut().and_then(|leading| leading.step.as_mut())
    }

    fn propose_step(&mut self, id: NodeId, change: MemberChange) -> Option<&mut UnderWay> {
        let Stage::Running(consensus) = &mut self.stage else { return None };
        let (term, index) = consensus.propose_membership(&change).ok()?;
        tracing::info!(%id, ?change, %index, "a change of the members is proposed");
        let leading = self.leading.as_mut()?;
        Some(leading.step.insert(UnderWay { term, index, id, change, askers: Vec::new() }))
    }

    /// As the leader: new members that were to take a voter's place, or to vote in one of their own, and have caught
    /// up, do so.
    pub(super) fn replace_voters(&mut self) {
        let Stage::Running(consensus) = &mut self.stage else { return };
        let Some(leading) = &self.leading else { return };
        if leading.step.is_some() || !consensus.is_ready_to_lead() {
            return;
        }
        let members = self.machine.members();
        let replacement = members.rows().iter().find_map(|(new, member)| {
            let change = match member.replaces? {
                own if own == *new => MemberChange::Promote(own),
                old => MemberChange::Replace { old, new: *new },
            };
            let fit = members.judge(&change).is_ok()
                && consensus.is_caught_up(*new)
                && consensus.would_lose_quorum(&change).is_none();
            fit.then_some((*new, change))
        });
        if let Some((new, change)) = replacement {
            self.propose_step(new, change);
        }
    }

    fn answer_step(&mut self, asker: StepAsker, answer: MemberAnswer) {
        match asker {
            StepAsker::Local { round } => {
                self.steps.answered(round, answer);
                self.steps.applied(self.machine.applied());
            }
            StepAsker::Remote { node, incarnation, round } => {
                self.send(node, PeerMessage::MemberAnswer { round, incarnation, answer });
            }
        }
    }

    /// The machine has applied an entry that changes the members: the consensus follows at once, since
    /// everything behind it is judged by the new configuration.
    pub(super) fn follow_membership(&mut self, entry: &wal::Entry) -> Result<(), Fatal> {
        let Stage::Running(consensus) = &mut self.stage else {
            return Err("a change of the members before the consensus runs".to_owned());
        };
        consensus
            .applied_membership(entry, self.machine.members())
            .map_err(|fault| fault.to_string())
    }

    /// An entry is applied: if this node had a step under way, it is known what became of it.
    pub(super) fn settle_step(&mut self, index: LogIndex, term: Term, has_changed: bool) {
        let step = self
            .leading
            .as_mut()
            .and_then(|leading| leading.step.take_if(|under_way| under_way.index <= index));
        let Some(under_way) = step else { return };
        // Another entry is in its place: it was put aside, and is asked for again.
        let is_it = (under_way.term, under_way.index) == (term, index) && has_changed;
        for asker in under_way.askers {
            match is_it {
                true => self.step_is_made(asker, under_way.id, index),
                false => self.answer_step(asker, MemberAnswer::NotLeader(None)),
            }
        }
    }

    /// The members are others than before: whom this node talks to, and whose word counts.
    pub(super) fn members_changed(&mut self) {
        self.shared.in_company();
        let members = self.machine.members();
        self.roster.update(members);
        self.digests.set_voters(members.voters());
        self.introduce();
    }

    /// Whether this node leads, nobody else is a member, learners and those whose place is kept included, and nobody
    /// who was one can have applied what this replica has not.
    pub(super) fn is_alone(&self) -> bool {
        let Stage::Running(consensus) = &self.stage else { return false };
        let (members, me) = (self.machine.members(), self.shared.settings.node);
        let is_only =
            members.is_voter(me) && members.rows().len() == 1 && members.outgoing().is_empty();
        is_only
            && self.leading.is_some()
            && consensus.is_ready_to_lead()
            && consensus.known_commit() == self.machine.applied()
    }

    /// The members of a state that this node has not made itself. Whether their last change is settled nobody knows: if
    /// any has been removed ever, an entry says so.
    pub(super) fn found_members(&mut self) {
        let has_removed = self.machine.members().has_removed();
        self.unsettled = has_removed.then_some(Unsettled::ToPropose);
        self.members_changed();
    }

    /// Everybody who is connected, or wants to be, is judged by what this node knows of the members now.
    fn introduce(&mut self) {
        let settling = self.unsettled.is_some() && !mutant::is(Mutant::B52);
        self.identity.knows(Arc::clone(self.roster.members()), settling);
        self.network.set_peers(&self.roster.contacts());
    }

    /// Tells the others what this node is called and where it is, if they do not know.
    pub(super) fn announce(&mut self) {
        let settings = &self.shared.settings;
        let Contact { name, address } = &settings.contact;
        let announced = self.machine.members().get(settings.node);
        let known = announced.is_none_or(|member| {
            (&member.name, &member.address, &member.endpoints)
                == (name, address, &settings.endpoints)
        });
        if !known && !self.has_announced {
            self.has_announced = true;
            let (name, address) = (name.clone(), address.clone());
            let endpoints = settings.endpoints.clone();
            self.insist(Command::Announce(MemberAttributes { name, address, endpoints }));
        }
    }

    /// As the leader: what every member understands may be used from now on. Never lowered, so a member
    /// that goes back to an older build stops with a sentence. Whoever does not lead any more takes back what
    /// it has proposed: one may have gone back meanwhile, and the next leader would not know.
    pub(super) fn raise_version(&mut self) {
        if self.leading.is_none() || self.raising.is_some_and(|seq| self.proposals.is_open(seq)) {
            return;
        }
        let me = self.shared.settings.node;
        let supported_version = |id: &NodeId| match *id == me {
            true => Some(self.shared.settings.supported_version),
            false => self.peer_versions.get(id).copied(),
        };
        // One that is not connected has said nothing: it may come back as another build.
        let rows = self.machine.members().rows().iter();
        let here = rows.filter(|(_, member)| member.is_taken()).map(|(id, _)| id);
        let all: Option<Vec<_>> = here.map(supported_version).collect();
        let least = all.and_then(|all| all.into_iter().min());
        let known = self.machine.version();
        if let Some(version) = least.filter(|version| *version > known) {
            tracing::info!(%version, "all members understand it: the cluster's version is raised");
            self.raising = Some(self.insist(Command::Raise(version)));
        }
    }

    // ---- those who want to join -------------------------------------------------------------------

    /// Somebody who knows the cluster's token wants to become a member: any member may be asked.
    pub(super) fn take_join(&mut self, ask: JoinAsk, reply: JoinReply, now: Moment) {
        if !matches!(self.stage, Stage::Running(_)) || self.stopping.is_some() {
            return reply.send(JoinAnswer::Later("this member does not take part now".to_owned()));
        }
        let JoinAsk { disk, name, address, replaces } = ask;
        if disk == DiskId::NONE {
            return reply.send(JoinAnswer::Refused("it has no disk".to_owned()));
        }
        let members = self.machine.members();
        let is_in = members.rows().values().any(|member| member.disk == disk);
        let replaces = match replaces.as_deref().filter(|_| !is_in) {
            None => None,
            Some(old) => match members.named(old) {
                Some(id) => Some(id),
                None => {
                    let why = format!("there is no member called {old:?} to be replaced");
                    // One that has not said yet what it is called may be it, or one that this member has not heard of: it
                    // may be behind. The leader is not.
                    let nameless = members.rows().values().any(|member| member.name.is_empty());
                    return reply.send(match nameless || self.leading.is_none() {
                        true => JoinAnswer::Later(why),
                        false => JoinAnswer::Refused(why),
                    });
                }
            },
        };
        let inbox = Arc::clone(&self.shared.inbox);
        let membership_request = MembershipRequest::Add { disk, name, address, replaces };
        let told = ReplyTo::Call(Box::new(move |result| {
            drop(inbox.push(Input::LetIn(reply, result)));
        }));
        self.steps.add(membership_request, now + self.shared.settings.call_deadline, told, now);
    }

    /// The cluster has decided about somebody who wants to join.
    pub(super) fn let_in(&mut self, reply: JoinReply, result: CallResult<NodeId>) {
        let answer = match result {
            Ok(node) => JoinAnswer::Joined(Joined {
                cluster: self.shared.settings.cluster,
                node,
                founding: self.identity.founders(),
                members: Members::clone(self.machine.members()),
            }),
            Err(CallError::Members(rejection)) => not_let_in(&rejection),
            Err(error) => JoinAnswer::Later(error.to_string()),
        };
        reply.send(answer);
    }
}

/// What somebody is told whom the cluster does not let in.
fn not_let_in(rejection: &MembershipError) -> JoinAnswer {
    match rejection {
        MembershipError::Pending => {
            JoinAnswer::Later("another change of the members is under way".to_owned())
        }
        // Whose place it takes is known here by its name, and this member may be behind: another one has that name now.
        // And who is needed for a quorum may be back in a moment.
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
    fn who_joins_asks_again_where_the_answer_may_come_of_a_member_that_is_behind() {
        let id = NodeId::new(4).unwrap();
        for (rejection, is_final) in [
            (MembershipError::Unknown(id), false),
            (MembershipError::Pending, false),
            (MembershipError::NameTaken("m3".to_owned()), true),
            (MembershipError::TooMany(9), true),
            (MembershipError::NotVoter(id), true),
        ] {
            let answer = not_let_in(&rejection);
            assert_eq!(
                matches!(answer, JoinAnswer::Refused(_)),
                is_final,
                "{rejection}: {answer:?}"
            );
        }
    }
}
