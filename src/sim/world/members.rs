//! Changes the members during other faults: machines join, are promoted, replaced and removed.
//!
//! A machine and its disk may be lost only if more than half of the voters remain intact ([`World::can_lose`]).

use std::time::Duration;

use super::{Ending, SimNode, World, WorldRestoredFrom, place};
use crate::api::{Effect, Error};
use crate::model::{MemberRole, MembershipRequest, NodeId};
use crate::sim::plan::{between, index, one_in};

impl World {
    /// Returns whether the cluster survives the loss of this voter's disk.
    pub(super) fn can_lose(&self, at: usize) -> bool {
        let members = self.judge.borrow().members();
        let rots = |id: &NodeId| self.nodes[place(*id)].is_rotten();
        let sound = |id: &NodeId| place(*id) != at && self.is_there(*id) && !rots(id);
        let enough =
            |voters: &[NodeId]| voters.iter().filter(|id| sound(id)).count() > voters.len() / 2;
        let voters: Vec<NodeId> = members.voters().collect();
        // A pending change may need the voters that are left.
        let pending = self
            .processes()
            .any(|(_, process)| process.changes_pending() > 0 || !process.look().settled);
        !members.is_joint() && !pending && enough(&voters)
    }

    /// Returns whether a member has a machine and a log to start from.
    fn is_there(&self, id: NodeId) -> bool {
        let is_there = |node: &SimNode| {
            !node.gone
                && !node.has_rotten_log()
                && !matches!(node.restored_from, WorldRestoredFrom::Nobody)
        };
        self.nodes.get(place(id)).is_some_and(is_there)
    }

    /// Returns whether the undamaged members form a quorum.
    pub(crate) fn is_recoverable(&self) -> bool {
        let members = self.judge.borrow().members();
        let enough = |voters: Vec<NodeId>| {
            let sound = voters.iter().filter(|id| self.is_there(**id)).count();
            voters.is_empty() || sound > voters.len() / 2
        };
        enough(members.voters().collect()) && enough(members.outgoing().iter().copied().collect())
    }

    /// Returns the indices of the members whose machines exist.
    pub(crate) fn members(&self) -> Vec<usize> {
        let members = self.judge.borrow().members();
        if members.rows().is_empty() {
            return (0..self.nodes.len()).collect();
        }
        let all = members.rows().keys().copied().filter(|id| self.is_there(*id));
        all.map(place).collect()
    }

    /// Returns the indices of removed nodes that still have a machine and a log.
    pub(crate) fn leaving(&self) -> Vec<usize> {
        let is_leaving = |at: &usize| self.is_removed(*at) && self.is_there(self.nodes[*at].id);
        (0..self.nodes.len()).filter(is_leaving).collect()
    }

    /// Returns whether no replacement with an existing machine is in progress.
    pub(crate) fn members_are_quiet(&self) -> bool {
        let members = self.judge.borrow().members();
        let replaces = members.rows().iter().any(|(id, member)| {
            member.replaces.is_some() && member.role == MemberRole::Learner && self.is_there(*id)
        });
        !members.is_joint() && !replaces
    }

    /// Replaces a voter, whose machine is lost before or keeps running.
    pub(super) fn replace(&mut self, lost: bool) {
        let Some(at) = self.some_member(|role| role == MemberRole::Voter) else { return };
        if lost && self.can_lose(at) {
            self.lose(at);
            self.judge.borrow_mut().count("machine of a replaced voter lost");
        }
        self.arrive_newcomer(Some(at));
    }

    /// Destroys a machine with its disk.
    pub(super) fn lose(&mut self, at: usize) {
        let id = self.nodes[at].id;
        self.note(33, &[id.get()], || format!("{id:?} is lost with its disk"));
        self.crash(at, Ending::PowerLost);
        self.nodes[at].gone = true;
    }

    /// Returns whether the members are the founders and all machines exist with all their data.
    pub(crate) fn is_as_founded(&self) -> bool {
        let members = self.judge.borrow().members();
        members.rows().len() == self.nodes.len()
            && self.nodes.len() as u64 == self.options.nodes
            && members.rows().keys().all(|id| self.is_there(*id))
            && self.nodes.iter().all(|node| !node.is_rotten())
    }

    /// Destroys all machines except these.
    pub(crate) fn destroy_others(&mut self, core: &[usize]) {
        let others: Vec<usize> = (0..self.nodes.len()).filter(|at| !core.contains(at)).collect();
        if !others.is_empty() {
            self.judge.borrow_mut().count("all machines but a quorum destroyed");
        }
        others.into_iter().for_each(|at| self.lose(at));
    }

    /// Promotes a learner.
    pub(super) fn promote(&mut self) {
        if let Some(at) = self.some_member(|role| role == MemberRole::Learner) {
            self.membership_request("promoted", MembershipRequest::Promote(self.nodes[at].id));
        }
    }

    /// Removes a member.
    pub(super) fn remove(&mut self) {
        let voters = self.judge.borrow().members().voters().count();
        // In a small cluster few voters are removed, so that it stays large enough for faults.
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

    /// Requests a membership change on behalf of a program on some node.
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

    /// Returns whether a node is no longer a member in the newest known state.
    pub(super) fn is_removed(&self, at: usize) -> bool {
        self.judge.borrow().members().is_removed(self.nodes[at].id)
    }

    /// Handles a node that has stopped because it was removed. Sometimes it is restarted and must find out again.
    pub(super) fn left(&mut self, at: usize) {
        self.judge.borrow_mut().count("stopped as removed");
        self.crash(at, Ending::Killed);
        self.nodes[at].revivals += 1;
        if self.nodes[at].revivals <= 2 && one_in(&self.rng, 2) {
            let wait = between(&self.rng, Duration::ZERO, Duration::from_secs(5));
            self.start_in(at, wait);
        } else {
            self.nodes[at].gone = true;
        }
    }
}
