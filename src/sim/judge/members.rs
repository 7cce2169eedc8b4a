//! Who belongs to the cluster, as the log has it: one step at a time, so that the majorities before and
//! after a step always share somebody, and so that only those decide who vote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Before, Judge};
use crate::model::{LogIndex, MemberChange, MemberWish, Members, NodeId, Term};
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

    /// A caller was told that a step was taken.
    pub(crate) fn members_stepped(&mut self, wish: &MemberWish) {
        let members = self.members();
        let is_so = match wish {
            MemberWish::Add { .. } | MemberWish::Keep { .. } => true,
            // Somebody may have removed it since.
            MemberWish::Promote(id) => members.is_voter(*id) || members.is_removed(*id),
            MemberWish::Remove(id) => members.is_removed(*id),
        };
        self.expect(is_so, "MB-DONE", || format!("{wish:?} is done, and there are {members:?}"));
    }

    /// A node has had a turn; `before` is what it had applied when it began.
    pub(crate) fn follow_members(&mut self, id: NodeId, process: &Process, before: LogIndex) {
        let applied = process.look().applied;
        let members = process.members();
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
