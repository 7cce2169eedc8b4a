//! The calls of this node that wait for the leader.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::{Command, Incarnation, Moment, NodeId, Revision};
use crate::node::leader_queries::lease_calls::LeaseCalls;
use crate::node::leader_queries::reads::{ReadWaiter, Reads};
use crate::node::leader_queries::steps::Steps;
use crate::node::requests::answer::{CallError, ReplyTo, StopReason};
use crate::node::requests::inbox::Write;
use crate::node::requests::proposals::{Closed, Proposals};
use crate::node::requests::request_trace::RequestTrace;

/// Maximum number of callers that wait for a leadership transfer. Further callers are rejected as
/// busy.
const TRANSFERS_MAX: usize = 256;

/// The unanswered calls of this node.
pub(super) struct ToLeader {
    pub(super) proposals: Proposals,
    pub(super) reads: Reads,
    pub(super) lease_calls: LeaseCalls,
    pub(super) steps: Steps,
    /// Callers that wait until this replica has reached a revision.
    at_least: BTreeMap<Revision, Vec<ReadWaiter>>,
    /// Callers that wait for a leadership transfer: the deadline, the target, the caller.
    transfers: Vec<(Moment, Option<NodeId>, ReplyTo<()>)>,
    /// Time before which no requests are sent to the leader, because the leader has just rejected a
    /// request or was unreachable.
    hold_until: Moment,
    /// Length of the pause until `hold_until`.
    pause: Duration,
}

impl ToLeader {
    pub(super) fn new(
        node: NodeId,
        incarnation: Incarnation,
        election_timeout: Duration,
        heartbeat: Duration,
        now: Moment,
    ) -> Self {
        Self {
            proposals: Proposals::new(node, incarnation, election_timeout),
            reads: Reads::new(heartbeat * 2),
            lease_calls: LeaseCalls::new(heartbeat * 2),
            steps: Steps::new(heartbeat * 2),
            at_least: BTreeMap::new(),
            transfers: Vec::new(),
            hold_until: now,
            pause: heartbeat / 4,
        }
    }

    /// Adds an internal request of the node. Returns the number of the request.
    pub(super) fn propose(
        &mut self,
        command: Command,
        deadline: Option<Moment>,
        now: Moment,
    ) -> u64 {
        let trace = RequestTrace::begin(&command, now);
        self.proposals.add(Write { command, deadline, bytes: 0, reply: ReplyTo::Discard, trace })
    }

    /// Pauses the sending of requests to the leader.
    pub(super) fn hold(&mut self, now: Moment) {
        self.hold_until = self.hold_until.max(now + self.pause);
    }

    pub(super) fn is_held(&self, now: Moment) -> bool {
        now < self.hold_until
    }

    /// Sends everything unanswered again, to the new leader.
    pub(super) fn leader_changed(&mut self, now: Moment) {
        self.proposals.leader_changed();
        self.reads.leader_changed();
        self.lease_calls.leader_changed();
        self.steps.leader_changed(now);
        self.hold_until = now;
    }

    /// Adds a caller that waits until this replica has reached `revision`.
    pub(super) fn wait_for(&mut self, revision: Revision, waiter: ReadWaiter) {
        self.at_least.entry(revision).or_default().push(waiter);
    }

    /// Answers the callers that wait for a revision up to `visible`.
    pub(super) fn reached(&mut self, visible: Revision) {
        while let Some(entry) = self.at_least.first_entry()
            && *entry.key() <= visible
        {
            for waiter in entry.remove() {
                waiter.reply.send(Ok(()));
            }
        }
    }

    /// Fails the callers that wait for a revision and whose deadline has passed, and discards
    /// callers that no longer wait.
    pub(super) fn expire_waiting(&mut self, now: Moment) {
        for waiters in self.at_least.values_mut() {
            for waiter in waiters.extract_if(.., |a| a.deadline <= now || a.reply.is_gone()) {
                waiter.reply.send(Err(CallError::Deadline { maybe_applied: false }));
            }
        }
        self.at_least.retain(|_, waiters| !waiters.is_empty());
    }

    /// Returns the number of callers that wait for a read or for a revision.
    pub(super) fn open_reads(&self) -> usize {
        self.reads.len() + self.at_least.values().map(Vec::len).sum::<usize>()
    }

    /// Returns whether one more caller may wait for a leadership transfer.
    pub(super) fn has_room_for_transfer(&self) -> bool {
        self.transfers.len() < TRANSFERS_MAX
    }

    /// Adds a caller that waits for a leadership transfer.
    pub(super) fn wait_for_transfer(
        &mut self,
        deadline: Moment,
        to: Option<NodeId>,
        reply: ReplyTo<()>,
    ) {
        self.transfers.push((deadline, to, reply));
    }

    /// Answers the callers that wait for a leadership transfer, since `leader` leads now.
    pub(super) fn transferred(&mut self, leader: NodeId) {
        for (_, to, reply) in std::mem::take(&mut self.transfers) {
            let is_it = to.is_none_or(|to| to == leader);
            reply.send(if is_it { Ok(()) } else { Err(CallError::NoTransferee) });
        }
    }

    pub(super) fn expire_transfers(&mut self, now: Moment) {
        let is_over = |deadline: Moment| deadline <= now && !mutant!(B45);
        for (.., reply) in self.transfers.extract_if(.., |(deadline, ..)| is_over(*deadline)) {
            reply.send(Err(CallError::Deadline { maybe_applied: false }));
        }
    }

    /// Fails all calls except the writes, whose results it returns.
    pub(super) fn stop_writes(&mut self, reason: &StopReason) -> Vec<Closed> {
        self.proposals.stop(reason)
    }

    /// Fails all calls except the writes.
    pub(super) fn fail_queries(&mut self, reason: &StopReason) {
        self.reads.stop(reason);
        self.lease_calls.stop(reason);
        self.steps.stop(reason);
        let waiting = std::mem::take(&mut self.at_least).into_values().flatten();
        let transfers = std::mem::take(&mut self.transfers).into_iter().map(|(.., reply)| reply);
        for reply in waiting.map(|waiter| waiter.reply).chain(transfers) {
            let reason = reason.clone();
            reply.send(Err(CallError::Stopped { reason, maybe_applied: false }));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tracing::Span;

    use super::*;
    use crate::model::samples::{at, node};
    use crate::node::requests::answer::CallResult;

    fn none() -> ToLeader {
        let (timeout, heartbeat) = (Duration::from_millis(500), Duration::from_millis(100));
        ToLeader::new(node(1), Incarnation(1), timeout, heartbeat, at(0))
    }

    fn caller() -> (ReplyTo<()>, oneshot::Receiver<CallResult<()>>) {
        let (sender, receiver) = oneshot::channel();
        (ReplyTo::Waiting(sender), receiver)
    }

    #[test]
    fn rejection_pauses_requests_until_the_leader_changes() {
        let mut to_leader = none();
        assert!(!to_leader.is_held(at(10)));
        to_leader.hold(at(10));
        assert!(to_leader.is_held(at(34)) && !to_leader.is_held(at(35)));
        to_leader.hold(at(40));
        to_leader.leader_changed(at(41));
        assert!(!to_leader.is_held(at(41)));
    }

    #[test]
    fn waiter_for_a_revision_is_answered_when_it_is_visible() {
        let mut to_leader = none();
        let mut wait = |revision, deadline| {
            let (reply, receiver) = caller();
            let waiter = ReadWaiter { deadline: at(deadline), reply, span: Span::none() };
            to_leader.wait_for(Revision(revision), waiter);
            receiver
        };
        let (mut early, mut late) = (wait(5, 100), wait(6, 100));
        to_leader.reached(Revision(5));
        assert_eq!(early.try_recv().unwrap(), Ok(()));
        assert!(late.try_recv().is_err());
        assert_eq!(to_leader.open_reads(), 1);
        to_leader.expire_waiting(at(100));
        let deadline = Err(CallError::Deadline { maybe_applied: false });
        assert_eq!(late.try_recv().unwrap(), deadline);
        assert_eq!(to_leader.open_reads(), 0);
    }

    #[test]
    fn callers_that_wait_for_a_transfer_are_bounded_by_transfers_max() {
        let mut to_leader = none();
        for _ in 0..TRANSFERS_MAX {
            assert!(to_leader.has_room_for_transfer());
            to_leader.wait_for_transfer(at(100), None, caller().0);
        }
        assert!(!to_leader.has_room_for_transfer());
        to_leader.transferred(node(2));
        assert!(to_leader.has_room_for_transfer());
    }

    #[test]
    fn transfer_to_another_member_than_requested_fails() {
        let mut to_leader = none();
        let mut wait = |to| {
            let (reply, receiver) = caller();
            to_leader.wait_for_transfer(at(100), to, reply);
            receiver
        };
        let (mut any, mut to_it, mut to_other) =
            (wait(None), wait(Some(node(2))), wait(Some(node(3))));
        to_leader.transferred(node(2));
        assert_eq!(any.try_recv().unwrap(), Ok(()));
        assert_eq!(to_it.try_recv().unwrap(), Ok(()));
        assert_eq!(to_other.try_recv().unwrap(), Err(CallError::NoTransferee));
    }
}
