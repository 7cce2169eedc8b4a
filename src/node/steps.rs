//! Changes of the members that callers on this node want, until the leader has made them.
//!
//! A wish is put to whoever leads, again and again until it is answered. That is safe, since a wish
//! that has come true already is answered as one that has just been granted. The caller hears of it
//! when this node's own replica has applied it.
//!
//! A rejection is final only if no other asking may still be granted: each has a number of its own, and is open until
//! it is answered, or a leader of a later term has refused. That one had applied whatever is left of earlier terms, and
//! refuses nothing that has come true: unless it was undone since.
//!
//! That another change is under way passes by itself, so such a wish is asked for again, too, until its time is up. Then
//! that is why it did not come true, if no asking is open.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::{
    LogIndex, MemberAnswer, MembershipError, MembershipRequest, Moment, NodeId, Term,
};

use super::answer::{CallError, ReplyTo, StopReason};

/// How many wishes of one node may be open: more than an operator has, and less than a storm of
/// joining processes could heap up.
const OPEN_MAX: usize = 256;

/// See the module.
pub(crate) struct Steps {
    next: u64,
    open: BTreeMap<u64, PendingChange>,
    ask_again_after: Duration,
}

/// One number counts wishes and askings.
struct PendingChange {
    /// Askings without an answer, and in which term the leader led that was asked.
    asked: BTreeSet<(Term, u64)>,
    membership_request: MembershipRequest,
    deadline: Moment,
    reply: ReplyTo<NodeId>,
    ask_at: Moment,
    /// It was refused last because another change is under way.
    waits: bool,
    /// The leader has made it, there.
    done: Option<(NodeId, LogIndex)>,
}

impl Steps {
    /// Nobody wants anything.
    pub(crate) fn new(ask_again_after: Duration) -> Self {
        Self { next: 1, open: BTreeMap::new(), ask_again_after }
    }

    /// Takes a wish.
    pub(crate) fn add(
        &mut self,
        membership_request: MembershipRequest,
        deadline: Moment,
        reply: ReplyTo<NodeId>,
        now: Moment,
    ) {
        if self.open.len() >= OPEN_MAX {
            return reply.send(Err(CallError::Busy));
        }
        let asked = BTreeSet::new();
        let wanted = PendingChange {
            asked,
            membership_request,
            deadline,
            reply,
            ask_at: now,
            waits: false,
            done: None,
        };
        self.open.insert(self.next, wanted);
        self.next += 1;
    }

    /// The next one to put to the leader of `term`, under a number of its own.
    pub(crate) fn ask(&mut self, term: Term, now: Moment) -> Option<(u64, MembershipRequest)> {
        let due = |wanted: &&mut PendingChange| wanted.done.is_none() && wanted.ask_at <= now;
        let wanted = self.open.values_mut().find(due)?;
        let round = self.next;
        self.next += 1;
        wanted.asked.insert((term, round));
        // Less and less often: a rejection is final only where no asking is open.
        let open = u32::try_from(wanted.asked.len()).unwrap_or(u32::MAX);
        wanted.ask_at = now + self.ask_again_after.saturating_mul(open);
        Some((round, wanted.membership_request.clone()))
    }

    /// An asking did not leave this node.
    pub(crate) fn not_asked(&mut self, round: u64) {
        if let Some((_, asking, wanted)) = self.asking(round) {
            wanted.asked.remove(&asking);
        }
    }

    /// The leader has answered.
    pub(crate) fn answered(&mut self, round: u64, answer: MemberAnswer) {
        let Some((number, asking, wanted)) = self.asking(round) else { return };
        wanted.asked.remove(&asking);
        match answer {
            MemberAnswer::Done { id, index } => wanted.done = Some((id, index)),
            // It is asked again.
            MemberAnswer::NotLeader(_) => {}
            MemberAnswer::Refused(rejection) => {
                if says_never(&wanted.membership_request, &rejection) {
                    wanted.asked.retain(|(term, _)| *term >= asking.0);
                }
                wanted.waits = rejection == MembershipError::Pending;
                if wanted.waits {
                    return;
                }
                let is_final = wanted.asked.is_empty() && wanted.done.is_none();
                if is_final && let Some(wanted) = self.open.remove(&number) {
                    wanted.reply.send(Err(CallError::Members(rejection)));
                }
            }
        }
    }

    /// The asking of a number: of which wish.
    fn asking(&mut self, round: u64) -> Option<(u64, (Term, u64), &mut PendingChange)> {
        self.open.iter_mut().find_map(|(number, wanted)| {
            let asking = *wanted.asked.iter().find(|(_, asked)| *asked == round)?;
            Some((*number, asking, wanted))
        })
    }

    /// This replica has applied everything up to `index`.
    pub(crate) fn applied(&mut self, index: LogIndex) {
        for (wanted, id) in self.take(|wanted| wanted.done.filter(|(_, at)| *at <= index)) {
            wanted.reply.send(Ok(id.0));
        }
    }

    /// Another leader: asks at once.
    pub(crate) fn leader_changed(&mut self, now: Moment) {
        for wanted in self.open.values_mut() {
            wanted.ask_at = now;
        }
    }

    /// Gives up those whose time is up: they may have come true, or may still, unless it is known that each asking was
    /// refused.
    pub(crate) fn expire(&mut self, now: Moment) {
        let over = |wanted: &PendingChange| {
            (wanted.deadline <= now || wanted.reply.is_gone()).then_some(())
        };
        for (wanted, ()) in self.take(over) {
            let is_refused = wanted.waits && wanted.asked.is_empty() && wanted.done.is_none();
            wanted.reply.send(Err(match is_refused {
                true => CallError::Members(MembershipError::Pending),
                false => CallError::Deadline { maybe_applied: true },
            }));
        }
    }

    /// Takes those out of which `what` says something.
    fn take<T>(&mut self, what: impl Fn(&PendingChange) -> Option<T>) -> Vec<(PendingChange, T)> {
        let found: Vec<(u64, T)> =
            self.open.iter().filter_map(|(round, wanted)| Some((*round, what(wanted)?))).collect();
        let mut take = |(round, said)| Some((self.open.remove(&round)?, said));
        found.into_iter().filter_map(&mut take).collect()
    }

    /// The node stops.
    pub(crate) fn stop(&mut self, reason: &StopReason) {
        for wanted in std::mem::take(&mut self.open).into_values() {
            let reason = reason.clone();
            wanted.reply.send(Err(CallError::Stopped { reason, maybe_applied: true }));
        }
    }
}

/// Whether a leader that refuses so says that no earlier one has made it. What was made, and undone by somebody else,
/// looks like what never was: a member that was promoted and is removed, a place that was taken and is left.
fn says_never(membership_request: &MembershipRequest, rejection: &MembershipError) -> bool {
    match membership_request {
        // It is there, and who is removed never comes back.
        MembershipRequest::Remove(_) => true,
        // It is there, and does not vote, as it always did.
        MembershipRequest::Promote(_) => !matches!(rejection, MembershipError::Unknown(_)),
        MembershipRequest::Add { .. } | MembershipRequest::Keep { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// What callers are told, in order.
    #[derive(Default)]
    struct Told(Arc<Mutex<Vec<Result<NodeId, CallError>>>>);

    impl Told {
        /// Somebody who waits for an answer.
        fn caller(&self) -> ReplyTo<NodeId> {
            let told = Arc::clone(&self.0);
            ReplyTo::Call(Box::new(move |result| told.lock().unwrap().push(result)))
        }

        /// What has been told since this was asked last.
        fn take(&self) -> Vec<Result<NodeId, CallError>> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    fn at(ms: u64) -> Moment {
        Moment::since_boot(Duration::from_millis(ms))
    }

    #[test]
    fn a_wish_is_asked_for_until_it_is_answered_and_told_when_it_is_applied_here() {
        let told = Told::default();
        let id = NodeId::new(4).unwrap();
        let mut steps = Steps::new(Duration::from_millis(100));
        steps.add(MembershipRequest::Promote(id), at(1000), told.caller(), at(0));
        steps.add(MembershipRequest::Remove(id), at(1000), told.caller(), at(0));
        let t = Term(7);
        assert_eq!(steps.ask(t, at(0)), Some((3, MembershipRequest::Promote(id))));
        assert_eq!(steps.ask(t, at(0)), Some((4, MembershipRequest::Remove(id))));
        assert_eq!(steps.ask(t, at(99)), None);
        steps.answered(3, MemberAnswer::NotLeader(None));
        assert_eq!(steps.ask(t, at(100)), Some((5, MembershipRequest::Promote(id))));
        steps.answered(5, MemberAnswer::Done { id, index: LogIndex(9) });
        steps.answered(4, MemberAnswer::Refused(MembershipError::LastVoter(id)));
        steps.applied(LogIndex(8));
        assert_eq!(told.take(), [Err(CallError::Members(MembershipError::LastVoter(id)))]);
        steps.applied(LogIndex(9));
        steps.add(MembershipRequest::Remove(id), at(1000), told.caller(), at(200));
        steps.expire(at(1000));
        assert_eq!(told.take(), [Ok(id), Err(CallError::Deadline { maybe_applied: true })]);
    }

    #[test]
    fn a_refusal_ends_a_wish_only_if_no_other_asking_can_be_granted() {
        let told = Told::default();
        let id = NodeId::new(4).unwrap();
        let refused = || MemberAnswer::Refused(MembershipError::LastVoter(id));
        let mut steps = Steps::new(Duration::from_millis(100));
        let ask = |steps: &mut Steps, term, ms| steps.ask(Term(term), at(ms)).unwrap().0;

        // An old rejection comes late, when a second asking may have been granted: it is, or time is up.
        steps.add(MembershipRequest::Remove(id), at(1000), told.caller(), at(0));
        let (first, second) = (ask(&mut steps, 1, 0), ask(&mut steps, 1, 100));
        steps.answered(first, refused());
        assert_eq!(told.take(), []);
        steps.answered(second, MemberAnswer::Done { id, index: LogIndex(9) });
        steps.applied(LogIndex(9));
        assert_eq!(told.take(), [Ok(id)]);

        // What is made stays made.
        steps.add(MembershipRequest::Remove(id), at(1000), told.caller(), at(0));
        let (first, second) = (ask(&mut steps, 1, 0), ask(&mut steps, 1, 100));
        steps.answered(second, MemberAnswer::Done { id, index: LogIndex(10) });
        steps.answered(first, refused());
        steps.applied(LogIndex(10));
        assert_eq!(told.take(), [Ok(id)]);

        // The leader that was asked first is gone, and has left nothing that the next one had not applied.
        steps.add(MembershipRequest::Remove(id), at(1000), told.caller(), at(0));
        let (_, second) = (ask(&mut steps, 1, 0), ask(&mut steps, 2, 100));
        steps.answered(second, refused());
        // One that never left can not be granted.
        steps.add(MembershipRequest::Remove(id), at(1000), told.caller(), at(0));
        let (first, second) = (ask(&mut steps, 1, 0), ask(&mut steps, 1, 100));
        steps.not_asked(first);
        steps.answered(second, refused());
        let refused = || Err(CallError::Members(MembershipError::LastVoter(id)));
        assert_eq!(told.take(), [refused(), refused()]);
    }

    #[test]
    fn who_was_promoted_and_removed_by_others_is_not_said_to_have_never_been_promoted() {
        let told = Told::default();
        let id = NodeId::new(4).unwrap();
        let mut steps = Steps::new(Duration::from_millis(100));
        for (rejection, is_known) in [
            (MembershipError::Unknown(id), false),
            (MembershipError::NotCaughtUp(id), true),
            (MembershipError::Pending, true),
        ] {
            steps.add(MembershipRequest::Promote(id), at(1000), told.caller(), at(0));
            // A leader that has not answered, and a later one that has no such member any more.
            let _ = steps.ask(Term(1), at(0)).unwrap();
            let (second, _) = steps.ask(Term(2), at(100)).unwrap();
            steps.answered(second, MemberAnswer::Refused(rejection.clone()));
            steps.expire(at(1000));
            let expected = match is_known {
                true => CallError::Members(rejection),
                false => CallError::Deadline { maybe_applied: true },
            };
            assert_eq!(told.take(), [Err(expected)]);
        }
        // Where nobody else was asked it is told at once.
        steps.add(MembershipRequest::Promote(id), at(1000), told.caller(), at(0));
        let (only, _) = steps.ask(Term(2), at(0)).unwrap();
        steps.answered(only, MemberAnswer::Refused(MembershipError::Unknown(id)));
        let unknown = Err(CallError::Members(MembershipError::Unknown(id)));
        assert_eq!(told.take(), [unknown]);
    }

    #[test]
    fn a_wish_waits_for_another_change_until_its_time_is_up() {
        let told = Told::default();
        let id = NodeId::new(4).unwrap();
        let pending = || MemberAnswer::Refused(MembershipError::Pending);
        let mut steps = Steps::new(Duration::from_millis(100));
        let ask = |steps: &mut Steps, term, ms| steps.ask(Term(term), at(ms)).map(|asked| asked.0);

        // It is granted once the other one is made.
        steps.add(MembershipRequest::Remove(id), at(1000), told.caller(), at(0));
        let first = ask(&mut steps, 1, 0).unwrap();
        steps.answered(first, pending());
        assert_eq!((ask(&mut steps, 1, 99), told.take().len()), (None, 0));
        let second = ask(&mut steps, 1, 100).unwrap();
        steps.answered(second, MemberAnswer::Done { id, index: LogIndex(9) });
        steps.applied(LogIndex(9));
        assert_eq!(told.take(), [Ok(id)]);

        // Or it is not, and that is known as long as no asking is open. Who has lost the lead meanwhile changes nothing.
        let busy = || Err(CallError::Members(MembershipError::Pending));
        let unknown = || Err(CallError::Deadline { maybe_applied: true });
        for (last, expected) in [
            (Some(pending()), busy()),
            (Some(MemberAnswer::NotLeader(None)), busy()),
            (Some(MemberAnswer::Done { id, index: LogIndex(99) }), unknown()),
            (None, unknown()),
        ] {
            steps.add(MembershipRequest::Remove(id), at(1000), told.caller(), at(0));
            let first = ask(&mut steps, 1, 0).unwrap();
            steps.answered(first, pending());
            let second = ask(&mut steps, 1, 100).unwrap();
            if let Some(last) = last {
                steps.answered(second, last);
            }
            steps.expire(at(1000));
            assert_eq!(told.take(), [expected]);
        }
        // A leader of a later term has applied what was asked of earlier ones: what is left open of these is no doubt.
        steps.add(MembershipRequest::Remove(id), at(1000), told.caller(), at(0));
        let (_, second) = (ask(&mut steps, 1, 0), ask(&mut steps, 2, 100).unwrap());
        steps.answered(second, pending());
        steps.expire(at(1000));
        assert_eq!(told.take(), [busy()]);
    }
}
