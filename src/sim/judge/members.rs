//! Judges the membership of the cluster as the log defines it. Members change one step at a time. So the
//! majorities before and after a step always intersect, and only the current voters decide.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Before, Judge};
use crate::model::{LogIndex, MemberChange, Members, MembershipRequest, NodeId, Term};
use crate::node::Look;

use super::super::process::SimProcess;

/// The voters that decide from a log index on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Deciders {
    voters: BTreeSet<NodeId>,
    /// During a replacement, the voters before it.
    outgoing: BTreeSet<NodeId>,
}

impl Deciders {
    pub(super) fn of(members: &Members) -> Self {
        Self { voters: members.voters().collect(), outgoing: members.outgoing().clone() }
    }

    /// Returns the voters after a change, or `None` if the change is not allowed now.
    fn after(&self, change: &MemberChange) -> Option<Self> {
        let mut next = self.clone();
        match change {
            MemberChange::LeaveJoint => {
                next.outgoing.clear();
                return (!self.outgoing.is_empty()).then_some(next);
            }
            _ if !self.outgoing.is_empty() => return None,
            MemberChange::Add { .. } | MemberChange::Take { .. } => {}
            MemberChange::Promote(id) => drop(next.voters.insert(*id)),
            MemberChange::Remove(id) => drop(next.voters.remove(id)),
            MemberChange::Replace { old, new } => {
                next.outgoing.clone_from(&self.voters);
                next.voters.remove(old);
                next.voters.insert(*new);
            }
        }
        Some(next)
    }

    /// Returns whether a majority of the voters satisfies `is_so`. If there are outgoing voters, a majority of them
    /// must satisfy it too.
    pub(super) fn agree(&self, is_so: impl Fn(NodeId) -> bool) -> bool {
        let most = |voters: &BTreeSet<NodeId>| {
            voters.iter().filter(|id| is_so(**id)).count() > voters.len() / 2
        };
        most(&self.voters) && (self.outgoing.is_empty() || most(&self.outgoing))
    }
}

/// A requested membership change and its known outcome.
struct MembersWanted {
    change: MemberChange,
    /// Number of requests for this change.
    request_count: u32,
    /// Whether the change was found in the log and was valid.
    is_taken: bool,
    /// Whether the change was reported as not applied.
    is_refused: bool,
}

impl MembersWanted {
    /// Returns whether the change was rejected and nevertheless applied. If the change was requested several times, one
    /// request may be rejected and another applied.
    fn is_wrong(&self) -> bool {
        self.request_count == 1 && self.is_taken && self.is_refused
    }
}

/// The state of the judge for membership.
#[derive(Default)]
pub(super) struct Roll {
    /// The members at the newest index that any node has applied.
    newest: Arc<Members>,
    newest_at: LogIndex,
    /// The members as each process has last applied them.
    of: BTreeMap<NodeId, Arc<Members>>,
    /// The deciding voters from each index on.
    deciders: BTreeMap<LogIndex, Deciders>,
    /// The last entry that any leader has committed: its index and term, and the term of the leader.
    committed: (LogIndex, Term, Term),
    /// The last term in which each process was observed to lead.
    led: BTreeMap<NodeId, Term>,
    wanted: Vec<MembersWanted>,
}

/// Returns the log entry that a request leads to, if it identifies the request. Ids of new members are assigned by
/// the leader.
fn step_of(membership_request: &MembershipRequest) -> Option<MemberChange> {
    match membership_request {
        MembershipRequest::Promote(id) => Some(MemberChange::Promote(*id)),
        MembershipRequest::Remove(id) => Some(MemberChange::Remove(*id)),
        MembershipRequest::Add { .. } | MembershipRequest::Keep { .. } => None,
    }
}

impl Judge {
    /// Returns the members as the most advanced node knows them.
    pub(crate) fn members(&self) -> Arc<Members> {
        Arc::clone(&self.roll.newest)
    }

    /// Forgets a process that has ended. The next process of the node may lead in the same term if no vote was durable,
    /// and then knows from its disk what was committed.
    pub(super) fn members_ended(&mut self, id: NodeId) {
        self.roll.of.remove(&id);
        self.roll.led.remove(&id);
    }

    /// Records that a caller will request a change.
    pub(crate) fn wants_step(&mut self, membership_request: &MembershipRequest) {
        let Some(change) = step_of(membership_request) else { return };
        let wanted = &mut self.roll.wanted;
        match wanted.iter_mut().find(|wanted| wanted.change == change) {
            Some(wanted) => wanted.request_count += 1,
            None => {
                wanted.push(MembersWanted {
                    change,
                    request_count: 1,
                    is_taken: false,
                    is_refused: false,
                });
            }
        }
    }

    /// Records that a change was reported as not applied: it must not happen unless another caller requests it.
    pub(crate) fn step_not_applied(&mut self, membership_request: &MembershipRequest) {
        let change = step_of(membership_request);
        self.learn_of_step(change.as_ref(), |wanted| wanted.is_refused = true);
        self.count("step not applied");
    }

    /// Records that a change was applied.
    fn step_taken(&mut self, change: &MemberChange) {
        self.learn_of_step(Some(change), |wanted| wanted.is_taken = true);
    }

    fn learn_of_step(
        &mut self,
        change: Option<&MemberChange>,
        learn: impl FnOnce(&mut MembersWanted),
    ) {
        let of = |wanted: &&mut MembersWanted| Some(&wanted.change) == change;
        let Some(wanted) = self.roll.wanted.iter_mut().find(of) else { return };
        learn(wanted);
        if wanted.is_wrong() {
            let detail = format!("{:?} is told as not taken, and is in the log", wanted.change);
            self.broken("X-UNKNOWN", || detail);
        }
    }

    /// Checks the reply that a change was applied.
    pub(crate) fn members_stepped(&mut self, membership_request: &MembershipRequest) {
        let members = self.members();
        let is_so = match membership_request {
            MembershipRequest::Add { .. } | MembershipRequest::Keep { .. } => true,
            // The member may have been removed since.
            MembershipRequest::Promote(id) => members.is_voter(*id) || members.is_removed(*id),
            MembershipRequest::Remove(id) => members.is_removed(*id),
        };
        self.expect(is_so, "MB-DONE", || {
            format!("{membership_request:?} is done, and there are {members:?}")
        });
    }

    /// Follows the members after a turn of a node. `before` is the index that it had applied before the turn.
    pub(crate) fn follow_members(&mut self, id: NodeId, process: &SimProcess, before: LogIndex) {
        let applied = process.look().applied;
        let members = process.members();
        // Return early in the common case: the node's members have not changed since its last turn.
        let known = self.roll.of.get(&id).is_some_and(|known| Arc::ptr_eq(known, &members));
        if known && Arc::ptr_eq(&self.roll.newest, &members) {
            self.roll.newest_at = self.roll.newest_at.max(applied);
            return;
        }
        if self.roll.deciders.is_empty() && !members.rows().is_empty() {
            self.roll.deciders.insert(LogIndex(1), Deciders::of(&members));
        }
        if applied >= self.roll.newest_at {
            (self.roll.newest, self.roll.newest_at) = (members.clone(), applied);
        }
        let Some(known) = self.roll.of.insert(id, members.clone()) else { return };
        if Arc::ptr_eq(&known, &members) || known == members || known.rows().is_empty() {
            return;
        }
        // For an installed snapshot only the digest can be checked.
        let Some(changes) = process.changes(before, applied) else { return };
        let mut rows = Members::clone(&known);
        let mut deciders = Deciders::of(&known);
        for (index, change) in changes {
            // An invalid change has no effect.
            if rows.validate(&change).is_err() {
                continue;
            }
            rows.apply(index, &change);
            self.step_taken(&change);
            match deciders.after(&change) {
                Some(next) => deciders = next,
                None => self.broken("R-CONF", || {
                    format!("{change:?} at {index:?}, while {deciders:?} are not done")
                }),
            }
            if self.roll.deciders.insert(index, deciders.clone()).is_none() {
                self.count(match change {
                    MemberChange::Add { .. } => "member added",
                    MemberChange::Take { .. } => "place taken",
                    MemberChange::Promote(_) => "member promoted",
                    MemberChange::Remove(_) => "member removed",
                    MemberChange::Replace { .. } => "member replaced",
                    MemberChange::LeaveJoint => "joint configuration left",
                });
            }
        }
        self.expect(deciders == Deciders::of(&members), "R-CONF", || {
            format!("{id:?} has {members:?} at {applied:?}, the log says {deciders:?}")
        });
    }

    /// Checks that a leader is a voter and has at most one change in progress.
    pub(super) fn check_leading(&mut self, id: NodeId, process: &SimProcess) {
        let members = process.members();
        self.expect(members.is_voter(id), "R-LEARNER", || {
            format!("{id:?} leads, and there are {members:?}")
        });
    }

    /// Checks that the log of a leader contains every entry that an earlier leader has committed.
    pub(crate) fn check_complete(&mut self, id: NodeId, process: &SimProcess, term: Term) {
        let (index, of, by) = self.roll.committed;
        if by < term && !process.has(index, of) {
            self.broken("R-COMPLETE", || {
                format!("{id:?} leads {term:?} without {index:?} of {of:?}, committed in {by:?}")
            });
        }
    }

    /// Checks that an entry that a leader has committed is in the logs of a majority of the deciding voters. `before`
    /// is the state of the leader before its turn. `has` returns whether a node has the entry, or had it when last
    /// seen.
    pub(crate) fn check_quorum(
        &mut self,
        id: NodeId,
        before: Before,
        look: &Look,
        term: Term,
        has: impl Fn(NodeId) -> bool,
    ) {
        let index = look.commit;
        // The node may know older commits from its disk or from the votes that it received.
        let led_before = self.roll.led.insert(id, look.term) == Some(look.term);
        // Earlier commits were checked when they happened, against the voters of that time.
        if index <= before.commit {
            return;
        }
        // An entry of an earlier term may only be committed together with one of the current term (Raft, figure 8).
        // Otherwise a later leader may overwrite it, however many nodes have it.
        self.expect(!led_before || term == look.term, "R-OWN", || {
            format!("{id:?}, which leads {:?}, commits {index:?} of {term:?}", look.term)
        });
        if index > self.roll.committed.0 {
            self.roll.committed = (index, term, look.term);
        }
        // A change is decided by the voters before it. The same voters decide the entries after the change until
        // the leader has applied it, because the leader counts the voters that it knows. Any quorum of the voters
        // after the change has these entries as well, since quorums before and after one step intersect.
        let since = before.applied.min(LogIndex(index.get().saturating_sub(1)));
        let first =
            self.roll.deciders.range(..=since).next_back().map_or(LogIndex(0), |(at, _)| *at);
        let mut in_force = self.roll.deciders.range(first..=index).map(|(_, deciders)| deciders);
        if self.roll.deciders.is_empty() || in_force.any(|deciders| deciders.agree(&has)) {
            return;
        }
        let deciders =
            self.roll.deciders.range(first..=index).next_back().map(|(_, of)| of.clone());
        let with_it: Vec<NodeId> =
            (1..=self.seen.len() as u64).filter_map(NodeId::new).filter(|id| has(*id)).collect();
        self.broken("R-QUORUM", || {
            format!(
                "{index:?} is committed by {deciders:?}; only {with_it:?} have it, or had it when \
                 they ended"
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::clock::Timeline;
    use super::*;

    const ID: NodeId = NodeId::new(4).unwrap();

    /// Returns the invariant that breaks if the change of node 4 is requested `request_count` times, rejected once, and
    /// applied before or after that.
    fn denied(request_count: u32, taken: MemberChange, is_early: bool) -> Option<&'static str> {
        let mut judge = Judge::new(Arc::new(Timeline::default()), 4);
        let membership_request = MembershipRequest::Remove(ID);
        (0..request_count).for_each(|_| judge.wants_step(&membership_request));
        if is_early {
            judge.step_taken(&taken);
        }
        judge.step_not_applied(&membership_request);
        judge.step_taken(&taken);
        judge.verdict().err().map(|violation| violation.invariant)
    }

    #[test]
    fn change_denied_to_its_only_requester_is_never_made() {
        for is_early in [false, true] {
            assert_eq!(denied(1, MemberChange::Remove(ID), is_early), Some("X-UNKNOWN"));
            assert_eq!(
                denied(2, MemberChange::Remove(ID), is_early),
                None,
                "it may be the other's"
            );
            assert_eq!(denied(1, MemberChange::Promote(ID), is_early), None, "another step");
        }
    }
}
