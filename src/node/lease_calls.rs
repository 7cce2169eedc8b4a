//! Renewals and TTL queries for leases that this node does not keep alive. Only the leader can answer them.
//!
//! Calls that arrive between two runs of the driver share one question to the leader. The question
//! is repeated under the same number until all of its leases are answered. An answer to any
//! repetition is valid, because all callers had asked before the question was first sent. So
//! answers are also used if the leader takes longer than the repetition interval. If the expiry of
//! a lease is proposed and undecided, the answer omits this lease.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::{LeaseId, LeaseLife, Moment, Rejection};

use super::answer::{CallError, ReplyTo, StopReason};
use super::sessions::ASKED_AT_ONCE;
use super::shared::OpenRead;

/// A caller's request for a lease.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum LeaseRequest {
    /// Renew it for another TTL.
    Renew,
    /// Return the remaining TTL.
    Look,
}

/// A call for one lease.
pub(crate) struct PendingLeaseCall {
    pub(crate) lease: LeaseId,
    pub(crate) lease_request: LeaseRequest,
    pub(crate) deadline: Moment,
    /// Releases the admission of the call when dropped.
    pub(crate) _open: OpenRead,
    /// Receives the remaining TTL.
    pub(crate) reply: ReplyTo<Duration>,
}

/// A question to the leader about several leases.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LeaseQuestion {
    /// Number of the question, unique in one incarnation.
    pub(crate) round: u64,
    /// Leases to renew.
    pub(crate) renew: Vec<LeaseId>,
    /// Leases whose TTL is asked for.
    pub(crate) look: Vec<LeaseId>,
}

/// The unanswered calls.
pub(crate) struct LeaseCalls {
    /// Calls that are not part of a question yet.
    waiting: BTreeMap<(LeaseId, LeaseRequest), Vec<PendingLeaseCall>>,
    asked: BTreeMap<u64, InFlight>,
    next_round: u64,
    ask_again: Duration,
}

struct InFlight {
    sent: Moment,
    calls: BTreeMap<(LeaseId, LeaseRequest), Vec<PendingLeaseCall>>,
}

impl InFlight {
    fn question(&self, round: u64) -> LeaseQuestion {
        let of = |lease_request| {
            let leases =
                self.calls.keys().filter(move |(_, requested)| *requested == lease_request);
            leases.map(|(lease, _)| *lease).collect()
        };
        LeaseQuestion { round, renew: of(LeaseRequest::Renew), look: of(LeaseRequest::Look) }
    }
}

impl LeaseCalls {
    pub(crate) fn new(ask_again: Duration) -> Self {
        let (waiting, asked) = Default::default();
        Self { waiting, asked, next_round: 1, ask_again }
    }

    pub(crate) fn add(&mut self, call: PendingLeaseCall) {
        self.waiting.entry((call.lease, call.lease_request)).or_default().push(call);
    }

    /// Returns the next question to send. The question contains as many waiting leases as fit into
    /// a message. If no leases wait, returns an earlier question that has been unanswered for
    /// `ask_again`.
    pub(crate) fn ask(&mut self, now: Moment) -> Option<LeaseQuestion> {
        if self.waiting.is_empty() {
            let late = |asked: &InFlight| now.since(asked.sent) >= self.ask_again;
            let (round, asked) = self.asked.iter_mut().find(|(_, asked)| late(asked))?;
            asked.sent = now;
            return Some(asked.question(*round));
        }
        let over = self.waiting.keys().nth(ASKED_AT_ONCE).copied();
        let later = over.map_or_else(BTreeMap::new, |over| self.waiting.split_off(&over));
        let calls = std::mem::replace(&mut self.waiting, later);
        let (round, asked) = (self.next_round, InFlight { sent: now, calls });
        let question = asked.question(round);
        self.next_round += 1;
        self.asked.insert(round, asked);
        Some(question)
    }

    /// Processes an answer: the remaining TTLs of the existing leases, and the leases that have
    /// ended. Leases that are missing from the answer are asked for again later.
    pub(crate) fn answered(&mut self, round: u64, living: &[LeaseLife], gone: &[LeaseId]) {
        let Some(asked) = self.asked.get_mut(&round) else { return };
        let mut done: Vec<(PendingLeaseCall, Result<Duration, CallError>)> = Vec::new();
        for lease_request in [LeaseRequest::Renew, LeaseRequest::Look] {
            for LeaseLife { lease, left } in living {
                let calls = asked.calls.remove(&(*lease, lease_request)).unwrap_or_default();
                done.extend(calls.into_iter().map(|call| (call, Ok(*left))));
            }
            for lease in gone {
                let calls = asked.calls.remove(&(*lease, lease_request)).unwrap_or_default();
                let rejection = || Err(CallError::Rejected(Rejection::LeaseNotFound(*lease)));
                done.extend(calls.into_iter().map(|call| (call, rejection())));
            }
        }
        if asked.calls.is_empty() {
            self.asked.remove(&round);
        }
        for (call, result) in done {
            call.reply.send(result);
        }
    }

    /// Moves all unanswered calls into new questions, after a change of the leader.
    pub(crate) fn leader_changed(&mut self) {
        for (key, calls) in
            std::mem::take(&mut self.asked).into_values().flat_map(|asked| asked.calls)
        {
            self.waiting.entry(key).or_default().extend(calls);
        }
    }

    /// Fails the calls whose deadline has passed, and discards calls whose callers have gone away.
    pub(crate) fn expire(&mut self, now: Moment) {
        let asked = self.asked.values_mut().map(|asked| &mut asked.calls);
        for calls in asked.chain([&mut self.waiting]) {
            calls.retain(|_, calls| {
                let over =
                    |call: &mut PendingLeaseCall| call.deadline <= now || call.reply.is_gone();
                for call in calls.extract_if(.., over) {
                    // The leader may have received the renewal.
                    let maybe_applied = call.lease_request == LeaseRequest::Renew;
                    call.reply.send(Err(CallError::Deadline { maybe_applied }));
                }
                !calls.is_empty()
            });
        }
        self.asked.retain(|_, asked| !asked.calls.is_empty());
    }

    /// Fails all calls when the node stops.
    pub(crate) fn stop(&mut self, reason: &StopReason) {
        self.leader_changed();
        for call in std::mem::take(&mut self.waiting).into_values().flatten() {
            let (reason, maybe_applied) =
                (reason.clone(), call.lease_request == LeaseRequest::Renew);
            call.reply.send(Err(CallError::Stopped { reason, maybe_applied }));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::{self, error::TryRecvError};

    use super::*;
    use crate::node::answer::CallResult;

    fn at(ms: u64) -> Moment {
        Moment::since_boot(Duration::from_millis(ms))
    }

    fn lease(id: u64) -> LeaseId {
        LeaseId::new(id).unwrap()
    }

    fn lives(id: u64, left: u64) -> LeaseLife {
        LeaseLife { lease: lease(id), left: Duration::from_millis(left) }
    }

    type Answer = oneshot::Receiver<CallResult<Duration>>;

    fn call(calls: &mut LeaseCalls, id: u64, lease_request: LeaseRequest) -> Answer {
        let (sender, answer) = oneshot::channel();
        let (deadline, reply) = (at(5000), ReplyTo::Waiting(sender));
        calls.add(PendingLeaseCall {
            lease: lease(id),
            lease_request,
            deadline,
            _open: OpenRead::default(),
            reply,
        });
        answer
    }

    fn none() -> LeaseCalls {
        LeaseCalls::new(Duration::from_millis(200))
    }

    #[test]
    fn callers_share_one_lease_query_and_get_their_own_reply() {
        let mut calls = none();
        let mut one = call(&mut calls, 1, LeaseRequest::Renew);
        let mut same = call(&mut calls, 1, LeaseRequest::Renew);
        let mut two = call(&mut calls, 2, LeaseRequest::Look);
        let question = calls.ask(at(0)).unwrap();
        assert_eq!((question.renew, question.look), (vec![lease(1)], vec![lease(2)]));
        assert_eq!(calls.ask(at(1)), None);
        calls.answered(question.round, &[lives(1, 900)], &[lease(2)]);
        for answer in [&mut one, &mut same] {
            assert_eq!(answer.try_recv().unwrap(), Ok(Duration::from_millis(900)));
        }
        let gone = CallError::Rejected(Rejection::LeaseNotFound(lease(2)));
        assert_eq!(two.try_recv().unwrap(), Err(gone));
        assert_eq!(calls.ask(at(5000)), None);
    }

    #[test]
    fn unanswered_leases_are_asked_again_and_stale_replies_ignored() {
        let mut calls = none();
        let mut answer = call(&mut calls, 1, LeaseRequest::Renew);
        let first = calls.ask(at(0)).unwrap();
        calls.answered(first.round, &[], &[]);
        assert_eq!(calls.ask(at(199)), None);
        assert_eq!(calls.ask(at(200)), Some(first.clone()));
        calls.leader_changed();
        let second = calls.ask(at(201)).unwrap();
        assert_eq!(second.renew, first.renew);
        calls.answered(first.round, &[lives(1, 900)], &[]);
        assert_eq!(answer.try_recv(), Err(TryRecvError::Empty));
        calls.answered(second.round, &[lives(1, 800)], &[]);
        assert_eq!(answer.try_recv().unwrap(), Ok(Duration::from_millis(800)));
    }

    #[test]
    fn late_lease_reply_still_counts_after_a_retry() {
        let mut calls = none();
        let mut early = call(&mut calls, 1, LeaseRequest::Renew);
        let first = calls.ask(at(0)).unwrap();
        // A later call needs a later renewal.
        let mut late = call(&mut calls, 1, LeaseRequest::Renew);
        let second = calls.ask(at(100)).unwrap();
        assert_eq!(calls.ask(at(200)), Some(first.clone()));
        calls.answered(first.round, &[lives(1, 900)], &[]);
        assert_eq!(early.try_recv().unwrap(), Ok(Duration::from_millis(900)));
        assert_eq!(late.try_recv(), Err(TryRecvError::Empty));
        calls.answered(second.round, &[lives(1, 900)], &[]);
        assert_eq!(late.try_recv().unwrap(), Ok(Duration::from_millis(900)));
        assert_eq!(calls.ask(at(900)), None);
    }

    #[test]
    fn lease_query_fits_into_one_message() {
        let mut calls = none();
        let count = 2 * ASKED_AT_ONCE as u64 + 7;
        let _answers: Vec<Answer> =
            (1..=count).map(|id| call(&mut calls, id, LeaseRequest::Renew)).collect();
        let asked = std::iter::from_fn(|| calls.ask(at(0))).map(|question| question.renew.len());
        assert_eq!(asked.collect::<Vec<_>>(), [ASKED_AT_ONCE, ASKED_AT_ONCE, 7]);
    }

    #[test]
    fn lease_callers_time_out_at_their_deadline() {
        let mut calls = none();
        let mut asked = call(&mut calls, 1, LeaseRequest::Look);
        calls.ask(at(0)).unwrap();
        let mut waiting = call(&mut calls, 2, LeaseRequest::Renew);
        drop(call(&mut calls, 3, LeaseRequest::Look));
        calls.expire(at(4999));
        assert_eq!(asked.try_recv(), Err(TryRecvError::Empty));
        calls.expire(at(5000));
        let late = |maybe_applied| Err(CallError::Deadline { maybe_applied });
        assert_eq!(asked.try_recv().unwrap(), late(false));
        assert_eq!(waiting.try_recv().unwrap(), late(true));
        assert_eq!(calls.ask(at(9000)), None);
    }
}
