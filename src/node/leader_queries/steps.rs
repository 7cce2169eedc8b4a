//! Membership changes that callers on this node have requested and that are not completed.
//!
//! A request is sent to the leader and repeated until it is answered. Repetition is safe: if the
//! change is already in effect, the leader answers as if it had just made the change. The caller is
//! answered once this node's replica has applied the change.
//!
//! A rejection is final only if no other attempt can still succeed. Each attempt has its own
//! number. An attempt is open until it is answered, or until a leader of a later term rejects the
//! request. Such a leader has applied all surviving entries of earlier terms, and does not reject a
//! change that is in effect. But such a leader may reject a change that was made and then undone.
//!
//! If the leader rejects a request because another change is in progress, the rejection is
//! temporary. Such a request is repeated until its deadline. If no attempt is open at the deadline,
//! the request fails with `Pending`, and otherwise its outcome is unknown.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::{
    LogIndex, MemberAnswer, MembershipError, MembershipRequest, Moment, NodeId, Term,
};

use crate::node::leader_queries::LeaderQueries;
use crate::node::requests::answer::{CallError, ReplyTo, StopReason};

/// Maximum number of open requests of one node. Operators need fewer. The limit protects against a
/// large number of joining processes.
const OPEN_MAX: usize = 256;

/// The open membership requests of this node.
pub(crate) struct Steps {
    open: BTreeMap<u64, PendingChange>,
    /// The unanswered attempts. Requests and attempts are numbered by one counter.
    attempts: LeaderQueries<Attempt>,
    ask_again_after: Duration,
}

struct PendingChange {
    membership_request: MembershipRequest,
    deadline: Moment,
    reply: ReplyTo<NodeId>,
    ask_at: Moment,
    /// Whether the last rejection was because another change is in progress.
    waits: bool,
    /// The member and the entry of the change, once the leader has made it.
    done: Option<(NodeId, LogIndex)>,
}

/// An attempt to make the change of a request.
struct Attempt {
    /// Number of the request.
    request: u64,
    /// The term of the leader that received the attempt.
    term: Term,
}

impl Steps {
    pub(crate) fn new(ask_again_after: Duration) -> Self {
        Self { open: BTreeMap::new(), attempts: LeaderQueries::default(), ask_again_after }
    }

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
        let (ask_at, waits, done) = (now, false, None);
        let wanted = PendingChange { membership_request, deadline, reply, ask_at, waits, done };
        self.open.insert(self.attempts.number(), wanted);
    }

    /// Returns the next request to send to the leader of `term`, and the number of the attempt.
    pub(crate) fn ask(&mut self, term: Term, now: Moment) -> Option<(u64, MembershipRequest)> {
        let due = |wanted: &PendingChange| wanted.done.is_none() && wanted.ask_at <= now;
        let (&request, wanted) = self.open.iter_mut().find(|(_, wanted)| due(wanted))?;
        let round = self.attempts.send(Attempt { request, term }, now);
        // The intervals grow with the number of open attempts, because a rejection is final only if
        // no attempt is open.
        let open = self.attempts.queries().filter(|attempt| attempt.request == request).count();
        let open = u32::try_from(open).unwrap_or(u32::MAX);
        wanted.ask_at = now + self.ask_again_after.saturating_mul(open);
        Some((round, wanted.membership_request.clone()))
    }

    /// Removes an attempt that was not sent.
    pub(crate) fn remove_attempt(&mut self, round: u64) {
        self.attempts.answered(round);
    }

    /// Returns whether no attempt to make the change of a request is open.
    fn has_no_attempt(&self, request: u64) -> bool {
        self.attempts.queries().all(|attempt| attempt.request != request)
    }

    /// Processes an answer of the leader.
    pub(crate) fn answered(&mut self, round: u64, answer: MemberAnswer) {
        let Some((_, Attempt { request, term })) = self.attempts.answered(round) else { return };
        let Some(wanted) = self.open.get_mut(&request) else { return };
        match answer {
            MemberAnswer::Done { id, index } => wanted.done = Some((id, index)),
            // The request will be sent again.
            MemberAnswer::NotLeader(_) => {}
            MemberAnswer::Refused(rejection) => {
                if proves_never_made(&wanted.membership_request, &rejection) {
                    self.attempts.retain(|_, other| other.request != request || other.term >= term);
                }
                wanted.waits = rejection == MembershipError::Pending;
                if wanted.waits || wanted.done.is_some() || !self.has_no_attempt(request) {
                    return;
                }
                if let Some(wanted) = self.open.remove(&request) {
                    wanted.reply.send(Err(CallError::Members(rejection)));
                }
            }
        }
    }

    /// Answers the requests whose change is applied on this replica.
    pub(crate) fn applied(&mut self, index: LogIndex) {
        for (_, wanted, id) in self.take(|wanted| wanted.done.filter(|(_, at)| *at <= index)) {
            wanted.reply.send(Ok(id.0));
        }
        self.forget_attempts();
    }

    /// Sends all requests again after a change of the leader. Earlier attempts stay open, because their leader may
    /// have made the change.
    pub(crate) fn leader_changed(&mut self, now: Moment) {
        for wanted in self.open.values_mut() {
            wanted.ask_at = now;
        }
    }

    /// Fails the requests whose deadline has passed. Their outcome is unknown, unless every attempt is known to be
    /// rejected.
    pub(crate) fn expire(&mut self, now: Moment) {
        let over = |wanted: &PendingChange| {
            (wanted.deadline <= now || wanted.reply.is_gone()).then_some(())
        };
        for (request, wanted, ()) in self.take(over) {
            let is_refused = wanted.waits && wanted.done.is_none() && self.has_no_attempt(request);
            wanted.reply.send(Err(match is_refused {
                true => CallError::Members(MembershipError::Pending),
                false => CallError::Deadline { maybe_applied: true },
            }));
        }
        self.forget_attempts();
    }

    /// Removes and returns the requests for which `what` returns a value, with their numbers.
    fn take<T>(
        &mut self,
        what: impl Fn(&PendingChange) -> Option<T>,
    ) -> Vec<(u64, PendingChange, T)> {
        let found: Vec<(u64, T)> = self
            .open
            .iter()
            .filter_map(|(number, wanted)| Some((*number, what(wanted)?)))
            .collect();
        let mut take = |(number, outcome)| Some((number, self.open.remove(&number)?, outcome));
        found.into_iter().filter_map(&mut take).collect()
    }

    /// Forgets the attempts of requests that are not open any more.
    fn forget_attempts(&mut self) {
        self.attempts.retain(|_, attempt| self.open.contains_key(&attempt.request));
    }

    pub(crate) fn stop(&mut self, reason: &StopReason) {
        for wanted in std::mem::take(&mut self.open).into_values() {
            let reason = reason.clone();
            wanted.reply.send(Err(CallError::Stopped { reason, maybe_applied: true }));
        }
        self.forget_attempts();
    }
}

/// Returns whether this rejection implies that no earlier leader has made the change. For some
/// requests, a rejection does not imply this: a change that was made and then undone looks as if it
/// had never been made. For example, a member was promoted and then removed, or a node has joined
/// on a reservation and was then removed.
fn proves_never_made(membership_request: &MembershipRequest, rejection: &MembershipError) -> bool {
    match membership_request {
        // The rejection shows that the member exists. A removed member never comes back, so the
        // member was not removed.
        MembershipRequest::Remove(_) => true,
        // Any other rejection than `Unknown` shows that the member exists and is a learner. A voter
        // never becomes a learner, so the member was not promoted.
        MembershipRequest::Promote(_) => !matches!(rejection, MembershipError::Unknown(_)),
        MembershipRequest::Add { .. } | MembershipRequest::Keep { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::at;
    use std::sync::{Arc, Mutex};

    /// The results that callers received, in order.
    #[derive(Default)]
    struct Results(Arc<Mutex<Vec<Result<NodeId, CallError>>>>);

    impl Results {
        fn caller(&self) -> ReplyTo<NodeId> {
            let results = Arc::clone(&self.0);
            ReplyTo::Call(Box::new(move |result| results.lock().unwrap().push(result)))
        }

        /// Takes the results since the last call.
        fn take(&self) -> Vec<Result<NodeId, CallError>> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    #[test]
    fn membership_request_is_retried_until_answered_and_reported_once_applied() {
        let results = Results::default();
        let id = NodeId::new(4).unwrap();
        let mut steps = Steps::new(Duration::from_millis(100));
        steps.add(MembershipRequest::Promote(id), at(1000), results.caller(), at(0));
        steps.add(MembershipRequest::Remove(id), at(1000), results.caller(), at(0));
        let t = Term(7);
        assert_eq!(steps.ask(t, at(0)), Some((3, MembershipRequest::Promote(id))));
        assert_eq!(steps.ask(t, at(0)), Some((4, MembershipRequest::Remove(id))));
        assert_eq!(steps.ask(t, at(99)), None);
        steps.answered(3, MemberAnswer::NotLeader(None));
        assert_eq!(steps.ask(t, at(100)), Some((5, MembershipRequest::Promote(id))));
        steps.answered(5, MemberAnswer::Done { id, index: LogIndex(9) });
        steps.answered(4, MemberAnswer::Refused(MembershipError::LastVoter(id)));
        steps.applied(LogIndex(8));
        assert_eq!(results.take(), [Err(CallError::Members(MembershipError::LastVoter(id)))]);
        steps.applied(LogIndex(9));
        steps.add(MembershipRequest::Remove(id), at(1000), results.caller(), at(200));
        steps.expire(at(1000));
        assert_eq!(results.take(), [Ok(id), Err(CallError::Deadline { maybe_applied: true })]);
    }

    #[test]
    fn membership_requests_beyond_open_max_fail_as_busy() {
        let results = Results::default();
        let mut steps = Steps::new(Duration::from_millis(100));
        let add = |steps: &mut Steps, deadline| {
            let request = MembershipRequest::Promote(NodeId::new(4).unwrap());
            steps.add(request, at(deadline), results.caller(), at(0));
        };
        (0..OPEN_MAX).for_each(|_| add(&mut steps, 10));
        assert_eq!(results.take(), []);
        add(&mut steps, 10);
        assert_eq!(results.take(), [Err(CallError::Busy)]);
        steps.expire(at(10));
        assert_eq!(results.take().len(), OPEN_MAX);
        add(&mut steps, 20);
        assert_eq!(results.take(), []);
    }

    #[test]
    fn rejection_ends_a_membership_request_only_if_no_attempt_can_succeed() {
        let results = Results::default();
        let id = NodeId::new(4).unwrap();
        let refused = || MemberAnswer::Refused(MembershipError::LastVoter(id));
        let mut steps = Steps::new(Duration::from_millis(100));
        let ask = |steps: &mut Steps, term, ms| steps.ask(Term(term), at(ms)).unwrap().0;

        // A late rejection arrives while a second attempt may have succeeded. Either the second
        // attempt is answered, or the deadline passes.
        steps.add(MembershipRequest::Remove(id), at(1000), results.caller(), at(0));
        let (first, second) = (ask(&mut steps, 1, 0), ask(&mut steps, 1, 100));
        steps.answered(first, refused());
        assert_eq!(results.take(), []);
        steps.answered(second, MemberAnswer::Done { id, index: LogIndex(9) });
        steps.applied(LogIndex(9));
        assert_eq!(results.take(), [Ok(id)]);

        // A change that was made is not affected by a rejection of another attempt.
        steps.add(MembershipRequest::Remove(id), at(1000), results.caller(), at(0));
        let (first, second) = (ask(&mut steps, 1, 0), ask(&mut steps, 1, 100));
        steps.answered(second, MemberAnswer::Done { id, index: LogIndex(10) });
        steps.answered(first, refused());
        steps.applied(LogIndex(10));
        assert_eq!(results.take(), [Ok(id)]);

        // The second attempt goes to the leader of a later term. That leader has applied all
        // surviving entries of the first leader.
        steps.add(MembershipRequest::Remove(id), at(1000), results.caller(), at(0));
        let (_, second) = (ask(&mut steps, 1, 0), ask(&mut steps, 2, 100));
        steps.answered(second, refused());
        // An attempt that was never sent cannot succeed.
        steps.add(MembershipRequest::Remove(id), at(1000), results.caller(), at(0));
        let (first, second) = (ask(&mut steps, 1, 0), ask(&mut steps, 1, 100));
        steps.remove_attempt(first);
        steps.answered(second, refused());
        let refused = || Err(CallError::Members(MembershipError::LastVoter(id)));
        assert_eq!(results.take(), [refused(), refused()]);
    }

    #[test]
    fn promotion_reverted_by_others_is_reported_as_unknown() {
        let results = Results::default();
        let id = NodeId::new(4).unwrap();
        let mut steps = Steps::new(Duration::from_millis(100));
        for (rejection, is_known) in [
            (MembershipError::Unknown(id), false),
            (MembershipError::NotCaughtUp(id), true),
            (MembershipError::Pending, true),
        ] {
            steps.add(MembershipRequest::Promote(id), at(1000), results.caller(), at(0));
            // A leader does not answer, and a later leader does not know the member any more.
            let _ = steps.ask(Term(1), at(0)).unwrap();
            let (second, _) = steps.ask(Term(2), at(100)).unwrap();
            steps.answered(second, MemberAnswer::Refused(rejection.clone()));
            steps.expire(at(1000));
            let expected = match is_known {
                true => CallError::Members(rejection),
                false => CallError::Deadline { maybe_applied: true },
            };
            assert_eq!(results.take(), [Err(expected)]);
        }
        // If only one leader was asked, the caller is answered at once.
        steps.add(MembershipRequest::Promote(id), at(1000), results.caller(), at(0));
        let (only, _) = steps.ask(Term(2), at(0)).unwrap();
        steps.answered(only, MemberAnswer::Refused(MembershipError::Unknown(id)));
        let unknown = Err(CallError::Members(MembershipError::Unknown(id)));
        assert_eq!(results.take(), [unknown]);
    }

    #[test]
    fn membership_request_waits_for_a_pending_change_until_its_deadline() {
        let results = Results::default();
        let id = NodeId::new(4).unwrap();
        let pending = || MemberAnswer::Refused(MembershipError::Pending);
        let mut steps = Steps::new(Duration::from_millis(100));
        let ask = |steps: &mut Steps, term, ms| steps.ask(Term(term), at(ms)).map(|asked| asked.0);

        // The request succeeds once the other change is complete.
        steps.add(MembershipRequest::Remove(id), at(1000), results.caller(), at(0));
        let first = ask(&mut steps, 1, 0).unwrap();
        steps.answered(first, pending());
        assert_eq!((ask(&mut steps, 1, 99), results.take().len()), (None, 0));
        let second = ask(&mut steps, 1, 100).unwrap();
        steps.answered(second, MemberAnswer::Done { id, index: LogIndex(9) });
        steps.applied(LogIndex(9));
        assert_eq!(results.take(), [Ok(id)]);

        // Otherwise the request fails at its deadline, with `Pending` if no attempt is open. An
        // answer from a leader that has lost its leadership changes nothing.
        let busy = || Err(CallError::Members(MembershipError::Pending));
        let unknown = || Err(CallError::Deadline { maybe_applied: true });
        for (last, expected) in [
            (Some(pending()), busy()),
            (Some(MemberAnswer::NotLeader(None)), busy()),
            (Some(MemberAnswer::Done { id, index: LogIndex(99) }), unknown()),
            (None, unknown()),
        ] {
            steps.add(MembershipRequest::Remove(id), at(1000), results.caller(), at(0));
            let first = ask(&mut steps, 1, 0).unwrap();
            steps.answered(first, pending());
            let second = ask(&mut steps, 1, 100).unwrap();
            if let Some(last) = last {
                steps.answered(second, last);
            }
            steps.expire(at(1000));
            assert_eq!(results.take(), [expected]);
        }
        // A leader of a later term has applied all surviving changes of earlier leaders, so open
        // attempts to earlier leaders cannot succeed later.
        steps.add(MembershipRequest::Remove(id), at(1000), results.caller(), at(0));
        let (_, second) = (ask(&mut steps, 1, 0), ask(&mut steps, 2, 100).unwrap());
        steps.answered(second, pending());
        steps.expire(at(1000));
        assert_eq!(results.take(), [busy()]);
    }
}
