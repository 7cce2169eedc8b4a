//! The members change while everything else goes wrong: who is let in, promoted, replaced and removed.
//!
//! A machine may be lost with its disk only as long as the others can do without it: of those that vote,
//! fewer than half are ever lost or damaged at a time ([`World::can_lose`]).

use super::*;
use crate::api::{Effect, Error};

impl World {
    /// Whether a voter's disk may be lost, and the cluster still go on.
    pub(super) fn can_lose(&self, at: usize) -> bool {
        let members = self.judge.borrow().members();
        let rots = |id: &NodeId| self.nodes[place(*id)].is_rotten();
        let sound = |id: &NodeId| place(*id) != at && self.is_there(*id) && !rots(id);
        let enough =
            |voters: &[NodeId]| voters.iter().filter(|id| sound(id)).count() > voters.len() / 2;
        let voters: Vec<NodeId> = members.voters().collect();
        // What is proposed and not yet settled may need those that are left.
        let pending = self
            .processes()
            .any(|(_, process)| process.changes_pending() > 0 || !process.look().settled);
        !members.is_joint() && !pending && enough(&voters)
    }

    /// Whether a member has a machine, and a log to start from.
    fn is_there(&self, id: NodeId) -> bool {
        let is_there = |node: &SimNode| {
            !node.gone
                && !node.has_rotten_log()
                && !matches!(node.restored_from, RestoredFrom::Nobody)
        };
        self.nodes.get(place(id)).is_some_and(is_there)
    }

    /// Whether the sound ones of the members can decide.
    pub(crate) fn is_recoverable(&self) -> bool {
        let members = self.judge.borrow().members();
        let enough = |voters: Vec<NodeId>| {
            let sound = voters.iter().filter(|id| self.is_there(**id)).count();
            voters.is_empty() || sound > voters.len() / 2
        };
        enough(members.voters().collect()) && enough(members.outgoing().iter().copied().collect())
    }

    /// Where the members are whose machines are there.
    pub(crate) fn members(&self) -> Vec<usize> {
        let members = self.judge.borrow().members();
        if members.rows().is_empty() {
            return (0..self.nodes.len()).collect();
        }
        let all = members.rows().keys().copied().filter(|id| self.is_there(*id));
        all.map(place).collect()
    }

    /// Where those are who were removed, as far as anybody knows, and have not heard that the others can do without them.
    pub(crate) fn leaving(&self) -> Vec<usize> {
        let is_leaving = |at: &usize| self.is_removed(*at) && self.is_there(self.nodes[*at].id);
        (0..self.nodes.len()).filter(is_leaving).collect()
    }

    /// Whether no replacement is under way whose machine is there.
    pub(crate) fn members_are_quiet(&self) -> bool {
        let members = self.judge.borrow().members();
        let replaces = members.rows().iter().any(|(id, member)| {
            member.replaces.is_some() && member.role == MemberRole::Learner && self.is_there(*id)
        });
        !members.is_joint() && !replaces
    }

    /// Somebody comes in the place of a voter, whose machine is lost before or works on.
    pub(super) fn replace(&mut self, lost: bool) {
        let Some(at) = self.some_member(|role| role == MemberRole::Voter) else { return };
        if lost && self.can_lose(at) {
            self.lose(at);
            self.judge.borrow_mut().count("machine lost");
        }
        self.arrive_newcomer(Some(at));
    }

    /// A machine is lost with its disk.
    pub(super) fn lose(&mut self, at: usize) {
        let id = self.nodes[at].id;
        self.note(33, &[id.get()], || format!("{id:?} is lost with its disk"));
        self.crash(at, Ending::PowerLost);
        self.nodes[at].gone = true;
    }

    /// Whether the members are those who have founded the cluster, and all machines are there with all
    /// that they stored.
    pub(crate) fn is_as_founded(&self) -> bool {
        let members = self.judge.borrow().members();
        members.rows().len() == self.nodes.len()
            && self.nodes.len() as u64 == self.options.nodes
            && members.rows().keys().all(|id| self.is_there(*id))
            && self.nodes.iter().all(|node| !node.is_rotten())
    }

    /// All but these are lost.
    pub(crate) fn leave_alone(&mut self, core: &[usize]) {
        let others: Vec<usize> = (0..self.nodes.len()).filter(|at| !core.contains(at)).collect();
        if !others.is_empty() {
            self.judge.borrow_mut().count("core alone");
        }
        others.into_iter().for_each(|at| self.lose(at));
    }

    /// Some learner is to vote.
    pub(super) fn promote(&mut self) {
        if let Some(at) = self.some_member(|role| role == MemberRole::Learner) {
            self.membership_request("promoted", MembershipRequest::Promote(self.nodes[at].id));
        }
    }

    /// Some member is to go.
    pub(super) fn remove(&mut self) {
        let voters = self.judge.borrow().members().voters().count();
        // Of few not many go, or nothing would be left to go wrong.
        let role = match voters < 3 {
            true => MemberRole::Learner,
            false => [MemberRole::Voter, MemberRole::Learner][index(&self.rng, 2)],
        };
        if let Some(at) = self.some_member(|of| of == role) {
            self.membership_request("removed", MembershipRequest::Remove(self.nodes[at].id));
        }
    }

    fn some_member(&self, fits: impl Fn(MemberRole) -> bool) -> Option<usize> {
        let members = self.judge.borrow().members();
        let fitting = members.rows().iter().filter(|(_, member)| fits(member.role));
        let fitting: Vec<usize> =
            fitting.map(|(id, _)| place(*id)).filter(|at| *at < self.nodes.len()).collect();
        (!fitting.is_empty()).then(|| fitting[index(&self.rng, fitting.len())])
    }

    /// Somebody on some node wants the members to change.
    fn membership_request(&mut self, what: &'static str, membership_request: MembershipRequest) {
        let running: Vec<usize> = self.processes().map(|(at, _)| at).collect();
        if running.is_empty() {
            return;
        }
        let at = running[index(&self.rng, running.len())];
        let Some(process) = self.nodes[at].running() else { return };
        let (caller, judge, asker) = (process.caller(), self.judge.clone(), self.nodes[at].id);
        self.note(34, &[asker.get()], || format!("{asker:?} wants {membership_request:?}"));
        self.executor.spawner().spawn(Some(at), async move {
            judge.borrow_mut().wants_step(&membership_request);
            let call = judge.borrow_mut().call(asker, what, caller.deadline());
            let answer = caller.step(membership_request.clone()).await;
            let mut judge = judge.borrow_mut();
            judge.returned(call);
            match answer {
                Ok(_) => {
                    judge.members_stepped(&membership_request);
                    judge.count(what);
                }
                Err(error) => {
                    if Error::from(error).effect() == Effect::NotApplied {
                        judge.step_not_applied(&membership_request);
                    }
                    judge.count("step refused");
                }
            }
        });
    }

    /// Whether a node is no member any more, as far as anybody knows.
    pub(super) fn is_removed(&self, at: usize) -> bool {
        self.judge.borrow().members().is_removed(self.nodes[at].id)
    }

    /// A node has stopped because it is no member any more. Now and then it is started again, and must
    /// find out once more.
    pub(super) fn left(&mut self, at: usize) {
        self.judge.borrow_mut().count("stopped as removed");
        self.crash(at, Ending::Killed);
        self.nodes[at].revenant += 1;
        if self.nodes[at].revenant <= 2 && one_in(&self.rng, 2) {
            let wait = between(&self.rng, Duration::ZERO, Duration::from_secs(5));
            self.start_in(at, wait);
        } else {
            self.nodes[at].gone = true;
        }
    }
}
