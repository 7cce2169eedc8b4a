//! Renewals and TTL queries for leases that this node does not keep alive. Only the leader can
//! answer such calls.
//!
//! Calls that arrive between two runs of the driver share one question to the leader. The question
//! is repeated until all of its leases are answered. If the expiry of
//! a lease is proposed and undecided, the answer omits this lease.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::{LeaseId, LeaseLife, Moment, Rejection};

use crate::node::leader_queries::rounds::LeaseQuestion;
use crate::node::leader_queries::{Callers, SharedQueries};
use crate::node::requests::admission::OpenRead;
use crate::node::requests::answer::{CallError, ReplyTo, StopReason};
use crate::node::sessions::QUERIED_LEASES_MAX;

/// A caller's request for a lease.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum LeaseRequest {
    /// Renew the lease for another TTL.
    Renew,
    /// Return the remaining TTL.
    Look,
}

pub(crate) struct PendingLeaseCall {
    pub(crate) lease: LeaseId,
    pub(crate) lease_request: LeaseRequest,
    pub(crate) deadline: Moment,
    /// Releases the admission of the call when dropped.
    pub(crate) _open: OpenRead,
    /// Receives the remaining TTL.
    pub(crate) reply: ReplyTo<Duration>,
}

/// The calls of one question, by lease and request.
#[derive(Default)]
struct CallsByLease(BTreeMap<(LeaseId, LeaseRequest), Vec<PendingLeaseCall>>);

impl Callers for CallsByLease {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn merge(&mut self, others: Self) {
        for (key, calls) in others.0 {
            self.0.entry(key).or_default().extend(calls);
        }
    }

    /// Removes as many leases as fit into a message.
    fn split_query(&mut self) -> Self {
        let over = self.0.keys().nth(QUERIED_LEASES_MAX).copied();
        let later = over.map_or_else(BTreeMap::new, |over| self.0.split_off(&over));
        Self(std::mem::replace(&mut self.0, later))
    }
}

impl CallsByLease {
    fn question(&self) -> LeaseQuestion {
        let of = |lease_request| {
            let leases = self.0.keys().filter(move |(_, requested)| *requested == lease_request);
            leases.map(|(lease, _)| *lease).collect()
        };
        LeaseQuestion { renew: of(LeaseRequest::Renew), look: of(LeaseRequest::Look) }
    }

    fn remove(&mut self, lease: LeaseId, lease_request: LeaseRequest) -> Vec<PendingLeaseCall> {
        self.0.remove(&(lease, lease_request)).unwrap_or_default()
    }
}

/// The unanswered calls.
pub(crate) struct LeaseCalls(SharedQueries<CallsByLease>);

impl LeaseCalls {
    /// Returns a set without calls. An unanswered question is repeated after `patience`.
    pub(crate) fn new(patience: Duration) -> Self {
        Self(SharedQueries::new(patience))
    }

    pub(crate) fn add(&mut self, call: PendingLeaseCall) {
        self.0.waiting().0.entry((call.lease, call.lease_request)).or_default().push(call);
    }

    /// Returns the next question to send, and its number.
    pub(crate) fn ask(&mut self, now: Moment) -> Option<(u64, LeaseQuestion)> {
        let ask = self.0.ask(now)?;
        Some((ask.number, ask.callers.question()))
    }

    /// Processes an answer: the remaining TTLs of the existing leases, and the leases that have
    /// ended. Leases that are missing from the answer are asked for again later.
    pub(crate) fn answered(&mut self, round: u64, living: &[LeaseLife], gone: &[LeaseId]) {
        let done = self.0.answered_partly(round, |calls| served(calls, living, gone));
        for (call, result) in done.into_iter().flatten() {
            call.reply.send(result);
        }
    }

    /// Recalls the unanswered questions, so that they are sent to the new leader.
    pub(crate) fn leader_changed(&mut self) {
        self.0.leader_changed();
    }

    /// Fails the calls whose deadline has passed, and discards calls whose callers no longer wait.
    pub(crate) fn expire(&mut self, now: Moment) {
        self.0.expire(|calls| {
            calls.0.retain(|_, calls| {
                let over =
                    |call: &mut PendingLeaseCall| call.deadline <= now || call.reply.is_gone();
                for call in calls.extract_if(.., over) {
                    // The leader may have received the renewal.
                    let maybe_applied = call.lease_request == LeaseRequest::Renew;
                    call.reply.send(Err(CallError::Deadline { maybe_applied }));
                }
                !calls.is_empty()
            });
        });
    }

    pub(crate) fn stop(&mut self, reason: &StopReason) {
        for call in self.0.stop().0.into_values().flatten() {
            let (reason, maybe_applied) =
                (reason.clone(), call.lease_request == LeaseRequest::Renew);
            call.reply.send(Err(CallError::Stopped { reason, maybe_applied }));
        }
    }
}

/// Removes the calls that an answer serves, and returns them with their results.
fn served(
    calls: &mut CallsByLease,
    living: &[LeaseLife],
    gone: &[LeaseId],
) -> Vec<(PendingLeaseCall, Result<Duration, CallError>)> {
    let mut done = Vec::new();
    for lease_request in [LeaseRequest::Renew, LeaseRequest::Look] {
        for LeaseLife { lease, left } in living {
            let calls = calls.remove(*lease, lease_request);
            done.extend(calls.into_iter().map(|call| (call, Ok(*left))));
        }
        for lease in gone {
            let calls = calls.remove(*lease, lease_request);
            let rejection = || Err(CallError::Rejected(Rejection::LeaseNotFound(*lease)));
            done.extend(calls.into_iter().map(|call| (call, rejection())));
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::{self, error::TryRecvError};

    use super::*;
    use crate::model::samples::{at, lease};
    use crate::node::requests::answer::CallResult;

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
        let (round, question) = calls.ask(at(0)).unwrap();
        assert_eq!((question.renew, question.look), (vec![lease(1)], vec![lease(2)]));
        assert_eq!(calls.ask(at(1)), None);
        calls.answered(round, &[lives(1, 900)], &[lease(2)]);
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
        calls.answered(first.0, &[], &[]);
        assert_eq!(calls.ask(at(199)), None);
        assert_eq!(calls.ask(at(200)), Some(first.clone()));
        calls.leader_changed();
        let second = calls.ask(at(201)).unwrap();
        assert_eq!(second.1, first.1);
        calls.answered(first.0, &[lives(1, 900)], &[]);
        assert_eq!(answer.try_recv(), Err(TryRecvError::Empty));
        calls.answered(second.0, &[lives(1, 800)], &[]);
        assert_eq!(answer.try_recv().unwrap(), Ok(Duration::from_millis(800)));
    }

    #[test]
    fn late_lease_reply_still_counts_after_a_retry() {
        let mut calls = none();
        let mut early = call(&mut calls, 1, LeaseRequest::Renew);
        let first = calls.ask(at(0)).unwrap();
        // A call that arrives after the renewal was sent needs another renewal.
        let mut late = call(&mut calls, 1, LeaseRequest::Renew);
        let second = calls.ask(at(100)).unwrap();
        assert_eq!(calls.ask(at(200)), Some(first.clone()));
        calls.answered(first.0, &[lives(1, 900)], &[]);
        assert_eq!(early.try_recv().unwrap(), Ok(Duration::from_millis(900)));
        assert_eq!(late.try_recv(), Err(TryRecvError::Empty));
        calls.answered(second.0, &[lives(1, 900)], &[]);
        assert_eq!(late.try_recv().unwrap(), Ok(Duration::from_millis(900)));
        assert_eq!(calls.ask(at(900)), None);
    }

    #[test]
    fn lease_query_fits_into_one_message() {
        let mut calls = none();
        let count = 2 * QUERIED_LEASES_MAX as u64 + 7;
        let _answers: Vec<Answer> =
            (1..=count).map(|id| call(&mut calls, id, LeaseRequest::Renew)).collect();
        let asked =
            std::iter::from_fn(|| calls.ask(at(0))).map(|(_, question)| question.renew.len());
        assert_eq!(asked.collect::<Vec<_>>(), [QUERIED_LEASES_MAX, QUERIED_LEASES_MAX, 7]);
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
