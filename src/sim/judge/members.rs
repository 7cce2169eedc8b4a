//! Who belongs to the cluster, as the log has it: one step at a time, so that the majorities before and
//! after a step always share somebody, and so that only those decide who vote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Before, Judge};
use crate::model::{LogIndex, MemberChange, Members, MembershipRequest, NodeId, Term};
use crate::node::Look;

use super::super::process::Process;

/// Who decides, from an index of the log on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Deciders {
    voters: BTreeSet<NodeId>,
    /// While a replacement is under way: those that voted before it.
    outgoing: BTreeSet<NodeId>,
}

impl Deciders {
    pub(super) fn of(members: &Members) -> Self {
        Self { voters: members.voters().collect(), outgoing: members.outgoing().clone() }
    }

    /// What becomes of them with a step; `None` if it may not be taken now.
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

    /// Whether a majority, of both if there are two, is among those for whom `is_so` holds.
    pub(super) fn agree(&self, is_so: impl Fn(NodeId) -> bool) -> bool {
        let most = |voters: &BTreeSet<NodeId>| {
            voters.iter().filter(|id| is_so(**id)).count() > voters.len() / 2
        };
        most(&self.voters) && (self.outgoing.is_empty() || most(&self.outgoing))
    }
}

/// A step that somebody wants, and what is known of it.
struct Wanted {
    change: MemberChange,
    /// How often it was asked for, by anybody.
    askings: u32,
    /// It was found in the log, and was not void.
    is_taken: bool,
    /// Somebody was told that it was not taken, and will not be.
    is_refused: bool,
}

impl Wanted {
    /// Whether it was denied and taken all the same. Of several askings another may have been the one that was granted.
    fn is_wrong(&self) -> bool {
        self.askings == 1 && self.is_taken && self.is_refused
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Roll {
    /// The members as of the newest index that anybody has applied.
    newest: Arc<Members>,
    newest_at: LogIndex,
    /// What each process has applied last.
    of: BTreeMap<NodeId, Arc<Members>>,
    /// Who decides from which index on.
    deciders: BTreeMap<LogIndex, Deciders>,
    /// The last entry that any leader has called committed: its index and term, and the leader's term.
    committed: (LogIndex, Term, Term),
    /// The last term in which each process was seen to lead.
    led: BTreeMap<NodeId, Term>,
    wanted: Vec<Wanted>,
}

/// The step that a wish comes to, where the log shows whose it was: places and ids of newcomers are the leader's to give.
fn step_of(membership_request: &MembershipRequest) -> Option<MemberChange> {
    match membership_request {
        MembershipRequest::Promote(id) => Some(MemberChange::Promote(*id)),
        MembershipRequest::Remove(id) => Some(MemberChange::Remove(*id)),
        MembershipRequest::Add { .. } | MembershipRequest::Keep { .. } => None,
    }
}

impl Judge {
    /// The members, as whoever has applied most knows them.
    pub(crate) fn members(&self) -> Arc<Members> {
        Arc::clone(&self.roll.newest)
    }

    /// A process has ended. The next one may lead in the same term, where nothing of it was durable; what
    /// is committed then, it knows from its disk.
    pub(super) fn members_ended(&mut self, id: NodeId) {
        self.roll.of.remove(&id);
        self.roll.led.remove(&id);
    }

    /// A caller will ask for a step.
    pub(crate) fn wants_step(&mut self, membership_request: &MembershipRequest) {
        let Some(change) = step_of(membership_request) else { return };
        let wanted = &mut self.roll.wanted;
        match wanted.iter_mut().find(|wanted| wanted.change == change) {
            Some(wanted) => wanted.askings += 1,
            None => {
                wanted.push(Wanted { change, askings: 1, is_taken: false, is_refused: false });
            }
        }
    }

    /// A caller was told that a step was not taken: it never is, unless somebody else asks for it.
    pub(crate) fn step_not_applied(&mut self, membership_request: &MembershipRequest) {
        let change = step_of(membership_request);
        self.learn_of_step(change.as_ref(), |wanted| wanted.is_refused = true);
        self.count("step not applied");
    }

    /// A step is in the log, and has changed the members.
    fn step_taken(&mut self, change: &MemberChange) {
        self.learn_of_step(Some(change), |wanted| wanted.is_taken = true);
    }

    fn learn_of_step(&mut self, change: Option<&MemberChange>, learn: impl FnOnce(&mut Wanted)) {
        let of = |wanted: &&mut Wanted| Some(&wanted.change) == change;
        let Some(wanted) = self.roll.wanted.iter_mut().find(of) else { return };
        learn(wanted);
        if wanted.is_wrong() {
            let detail = format!("{:?} is told as not taken, and is in the log", wanted.change);
            self.broken("X-UNKNOWN", || detail);
        }
    }

    /// A caller was told that a step was taken.
    pub(crate) fn members_stepped(&mut self, membership_request: &MembershipRequest) {
        let members = self.members();
        let is_so = match membership_request {
            MembershipRequest::Add { .. } | MembershipRequest::Keep { .. } => true,
            // Somebody may have removed it since.
            MembershipRequest::Promote(id) => members.is_voter(*id) || members.is_removed(*id),
            MembershipRequest::Remove(id) => members.is_removed(*id),
        };
        self.expect(is_so, "MB-DONE", || {
            format!("{membership_request:?} is done, and there are {members:?}")
        });
    }

    /// A node has had a turn; `before` is what it had applied when it began.
    pub(crate) fn follow_members(&mut self, id: NodeId, process: &Process, before: LogIndex) {
        let applied = process.look().applied;
        let members = process.members();
        // Most turns change nothing of it.
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
        // Of a state that was installed nothing but its digest can be judged.
        let Some(changes) = process.changes(before, applied) else { return };
        let mut rows = Members::clone(&known);
        let mut deciders = Deciders::of(&known);
        for (index, change) in changes {
            // A step that is void changes nothing.
            if rows.judge(&change).is_err() {
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

    /// A leader must vote, and have at most one step under way.
    pub(super) fn check_leading(&mut self, id: NodeId, process: &Process) {
        let members = process.members();
        self.expect(members.is_voter(id), "R-LEARNER", || {
            format!("{id:?} leads, and there are {members:?}")
        });
    }

    /// Who leads has in its log whatever an earlier leader has called committed.
    pub(crate) fn check_complete(&mut self, id: NodeId, process: &Process, term: Term) {
        let (index, of, by) = self.roll.committed;
        if by < term && !process.has(index, of) {
            self.broken("R-COMPLETE", || {
                format!("{id:?} leads {term:?} without {index:?} of {of:?}, committed in {by:?}")
            });
        }
    }

    /// An entry that a leader says is committed is in the logs of most of those that decide about it;
    /// `before` is how far the leader was before its turn. `has` says whether a node has the entry, or had it when it
    /// was last seen.
    pub(crate) fn check_quorum(
        &mut self,
        id: NodeId,
        before: Before,
        look: &Look,
        term: Term,
        has: impl Fn(NodeId) -> bool,
    ) {
        let index = look.commit;
        // From its disk, or with the votes that it was given, it may know what was committed before.
        let led_before = self.roll.led.insert(id, look.term) == Some(look.term);
        // What was committed before was judged when it was, by those who decided then.
        if index <= before.commit {
            return;
        }
        // An entry of an earlier term is committed with one of its own behind it: alone, however many have
        // it, a later leader may have another in its place.
        self.expect(!led_before || term == look.term, "R-OWN", || {
            format!("{id:?}, which leads {:?}, commits {index:?} of {term:?}", look.term)
        });
        if index > self.roll.committed.0 {
            self.roll.committed = (index, term, look.term);
        }
        // A step is decided about by those before it, and so is what comes behind it until the leader has applied it:
        // that counts by the members that it has. What they say is committed any quorum after the step has, too, since
        // quorums before and after one step meet.
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

    /// What is broken by a step of node 4 that is wanted so often, denied once, and taken before that or after it.
    fn denied(askings: u32, taken: MemberChange, is_early: bool) -> Option<&'static str> {
        let mut judge = Judge::new(Arc::new(Timeline::default()), 4);
        let membership_request = MembershipRequest::Remove(ID);
        (0..askings).for_each(|_| judge.wants_step(&membership_request));
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
