//! The write requests of this node that have no answer yet.
//!
//! Each request keeps its number through all attempts, so that the dedup table of the state machine
//! can tell a repetition from a new request. Requests are sent to the leader. The node answers the
//! caller when the node itself applies the request. The leader sends no reply. So a write that has
//! returned is visible to local reads, watches and locks of this node. A request is sent again when
//! the leader changes, and when it has been unanswered for a while, because messages may get lost.
//! At its deadline, a request is given up and removed from the window (the set of open request
//! numbers). The node sends the window with later requests. Replicas that have received this window
//! never apply a request that was given up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range as Span;
use std::time::Duration;

use crate::codec::encoded_len_hint;
use crate::model::{
    AckWindow, Command, Incarnation, LogIndex, Moment, NodeId, Outcome, Proposal, Rejection, Reply,
    Revision,
};

use crate::node::health::log_times::InLog;
use crate::node::requests::answer::{CallError, CallResult, ReplyTo, StopReason};
use crate::node::requests::inbox::Write;
use crate::node::requests::request_trace::RequestTrace;

/// Maximum distance between the oldest open request and the newest request that is sent. The dedup
/// table of the state machine is larger than this distance.
const WINDOW: u64 = 32_768;

/// A compaction at this revision is always rejected. The node proposes the compaction under the
/// number of a request that is given up and that may be in some log. If the compaction is applied
/// first, the request can never be applied. Otherwise the request was applied, and its result is
/// kept.
const NEVER: Revision = Revision(u64::MAX);

/// The open requests of this node.
pub(crate) struct Proposals {
    node: NodeId,
    incarnation: Incarnation,
    next: u64,
    open: BTreeMap<u64, Open>,
    /// The keys of `open`, as ranges.
    spans: RequestSpans,
    /// Requests that must be sent, for the first time or again.
    unsent: BTreeSet<u64>,
    /// Sent requests, in the order in which they were sent.
    sent: VecDeque<(Moment, u64)>,
    deadlines: BTreeSet<(Moment, u64)>,
    resend_after: Duration,
}

struct Open {
    command: Command,
    deadline: Option<Moment>,
    bytes: usize,
    reply: ReplyTo<Reply>,
    trace: RequestTrace,
    /// Time at which the request was last sent.
    sent: Option<Moment>,
    /// Whether an attempt may have reached a log.
    maybe_applied: bool,
    /// Number of attempts, without attempts that were put back.
    attempts: u32,
    /// The error for the caller, if [`NEVER`] is proposed in place of this request.
    given_up: Option<CallError>,
}

/// Requests to send together.
pub(crate) struct Batch {
    pub(crate) proposal: Proposal,
    /// The requests that are sent for the first time.
    pub(crate) fresh: Vec<u64>,
}

/// A request that has ended, with its result for the caller.
pub(crate) struct Closed {
    reply: ReplyTo<Reply>,
    result: CallResult<Reply>,
    trace: RequestTrace,
    /// Number of bytes that the request uses of the limit of open writes.
    pub(crate) bytes: usize,
}

impl Closed {
    /// Returns a request that was rejected before it was accepted.
    pub(crate) fn not_accepted(write: Write, error: CallError) -> Self {
        let Write { bytes, reply, trace, .. } = write;
        Self { reply, result: Err(error), trace, bytes }
    }

    /// Records the entry that decided the request, and the times of that entry in this node's log.
    pub(crate) fn decided_by(&mut self, index: LogIndex, in_log: Option<InLog>) {
        self.trace.in_log = in_log;
        tracing::trace!(parent: &self.trace.span, %index, "request decided");
    }

    /// Splits the request into its trace, the result, and the receiver.
    pub(crate) fn split(self) -> (RequestTrace, CallResult<Reply>, ReplyTo<Reply>) {
        (self.trace, self.result, self.reply)
    }

    #[cfg(test)]
    fn answer(self) {
        self.reply.send(self.result);
    }
}

impl Proposals {
    pub(crate) fn new(node: NodeId, incarnation: Incarnation, resend_after: Duration) -> Self {
        Self {
            node,
            incarnation,
            next: 1,
            open: BTreeMap::new(),
            spans: RequestSpans::default(),
            unsent: BTreeSet::new(),
            sent: VecDeque::new(),
            deadlines: BTreeSet::new(),
            resend_after,
        }
    }

    /// Adds a request and returns its number.
    pub(crate) fn add(&mut self, write: Write) -> u64 {
        let seq = self.next;
        self.next += 1;
        self.spans.push(seq);
        self.unsent.insert(seq);
        if let Some(deadline) = write.deadline {
            self.deadlines.insert((deadline, seq));
        }
        let Write { command, deadline, bytes, reply, mut trace } = write;
        trace.numbered(seq);
        let open = Open {
            command,
            deadline,
            bytes,
            reply,
            trace,
            sent: None,
            maybe_applied: false,
            attempts: 0,
            given_up: None,
        };
        self.open.insert(seq, open);
        seq
    }

    /// Returns whether the request has no answer yet.
    pub(crate) fn is_open(&self, seq: u64) -> bool {
        self.open.contains_key(&seq)
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    fn first_unsent(&self) -> Option<u64> {
        let oldest = self.spans.first()?;
        self.unsent.first().copied().filter(|seq| *seq < oldest + WINDOW)
    }

    /// Takes the next requests to send: at least one, and no more once they have `bytes_max` bytes.
    /// Only the last request can exceed this limit.
    pub(crate) fn batch(&mut self, now: Moment, bytes_max: usize) -> Option<Batch> {
        let mut requests = Vec::new();
        let mut fresh = Vec::new();
        let mut bytes = 0;
        while bytes < bytes_max {
            let Some(seq) = self.first_unsent() else { break };
            self.unsent.remove(&seq);
            let open = self.open.get_mut(&seq).expect("what is unsent is open");
            open.sent = Some(now);
            open.attempts += 1;
            open.trace.record_sent(now);
            tracing::trace!(
                parent: &open.trace.span, attempt = open.attempts,
                "request sent to the leader"
            );
            if !std::mem::replace(&mut open.maybe_applied, true) {
                fresh.push(seq);
            }
            self.sent.push_back((now, seq));
            bytes += encoded_len_hint(&open.command);
            let mut seq = seq;
            mutant!(
                M39,
                if open.attempts > 1 {
                    seq = self.next;
                    self.next += 1;
                    self.spans.push(seq);
                }
            );
            requests.push((seq, open.command.clone()));
        }
        if requests.is_empty() {
            return None;
        }
        let window = self.window();
        let (node, incarnation) = (self.node, self.incarnation);
        Some(Batch { proposal: Proposal { node, incarnation, window, requests }, fresh })
    }

    /// The window leaves out requests that are too far ahead to be sent. The dedup table treats all
    /// numbers far enough below the highest number as completed, and the oldest open request must
    /// not be one of them.
    fn window(&self) -> AckWindow {
        let frontier = self
            .spans
            .first()
            .map_or(self.next, |oldest| self.next.min(oldest.saturating_add(WINDOW)));
        let below = self.spans.list().into_iter().filter(|span| span.start < frontier);
        let open = below.map(|span| span.start..span.end.min(frontier)).collect();
        AckWindow { frontier, open }
    }

    /// Takes back a batch that was not sent. Therefore this attempt has not put any request of the
    /// batch into a log.
    pub(crate) fn put_back(&mut self, seqs: impl IntoIterator<Item = u64>, fresh: &[u64]) {
        for seq in seqs {
            if let Some(open) = self.open.get_mut(&seq) {
                open.sent = None;
                open.attempts -= 1;
                self.unsent.insert(seq);
            }
        }
        for seq in fresh {
            if let Some(open) = self.open.get_mut(seq) {
                open.maybe_applied = false;
                open.trace.undo_sent();
            }
        }
    }

    /// Queues requests again that the leader has rejected. Such a request may nevertheless be in a
    /// log, because a message and its rejection may be duplicated.
    pub(crate) fn queue_again(&mut self, seqs: &[u64]) {
        self.unsent.extend(seqs.iter().filter(|seq| self.open.contains_key(seq)));
    }

    /// Queues all open requests again after a change of the leader.
    pub(crate) fn leader_changed(&mut self) {
        self.sent.clear();
        self.unsent.extend(self.open.keys().copied());
    }

    /// Queues requests again that have been unanswered for `resend_after`.
    pub(crate) fn resend(&mut self, now: Moment) {
        while let Some((at, seq)) = self.sent.front().copied() {
            if now.since(at) < self.resend_after {
                break;
            }
            self.sent.pop_front();
            if self.open.get(&seq).is_some_and(|open| open.sent == Some(at)) {
                self.unsent.insert(seq);
            }
        }
    }

    /// Processes the outcome of a request that this node has applied.
    pub(crate) fn applied(&mut self, seq: u64, outcome: Outcome) -> Option<Closed> {
        // A second entry with the same request may be rejected as completed after this node has
        // seen the result of the first. An open request is never rejected with `Closed`.
        if outcome == Err(Rejection::Closed) {
            debug_assert!(!self.open.contains_key(&seq), "an open request was taken for closed");
        }
        self.close(seq, |open| match (outcome, &open.given_up) {
            (Err(Rejection::Future { asked: NEVER, .. }), Some(why)) => Err(why.clone()),
            (outcome, _) => outcome.map_err(CallError::from),
        })
    }

    /// Returns the numbers of the open requests.
    pub(crate) fn open(&self) -> Vec<u64> {
        self.open.keys().copied().collect()
    }

    /// Ends a request whose result is lost, because this replica has skipped its entry with a
    /// snapshot.
    pub(crate) fn lost(&mut self, seq: u64) -> Option<Closed> {
        self.close(seq, |_| Err(CallError::Deadline { maybe_applied: true }))
    }

    /// Rejects a request that was not and will not be proposed. A request without a deadline stays
    /// open, because it must be applied eventually.
    pub(crate) fn reject_unproposed(&mut self, seq: u64, error: CallError) -> Option<Closed> {
        self.open.get(&seq)?.deadline?;
        self.close(seq, |_| Err(error))
    }

    /// Like [`Proposals::reject_unproposed`], for a request that would make the state grow.
    /// Requests without a deadline are rejected too, because no caller relies on such a request
    /// being applied. If some log may contain the request, returns `None`, and the caller is
    /// answered once the outcome is known.
    pub(crate) fn reject_growth_here(&mut self, seq: u64, error: CallError) -> Option<Closed> {
        let is_in_no_log = !self.open.get(&seq)?.maybe_applied;
        self.end_or_give_up(seq, is_in_no_log, error)
    }

    /// Processes the rejection by another node, the present or an earlier leader, of a request that
    /// would make the state grow. A rejection answers one attempt. If there was only one attempt,
    /// the request was not proposed and never will be.
    pub(crate) fn growth_rejected_by_leader(
        &mut self,
        seq: u64,
        error: CallError,
    ) -> Option<Closed> {
        let is_in_no_log = self.open.get(&seq)?.attempts == 1;
        self.end_or_give_up(seq, is_in_no_log, error)
    }

    /// A request that may be in a log would be retried until there is space, and would finally
    /// block all requests after it. Instead the request is given up, and a command that needs no
    /// space determines its outcome: see [`NEVER`].
    fn end_or_give_up(&mut self, seq: u64, is_in_no_log: bool, error: CallError) -> Option<Closed> {
        if is_in_no_log {
            return self.close(seq, |_| Err(error));
        }
        let open = self.open.get_mut(&seq)?;
        open.command = Command::Compact(NEVER);
        open.given_up = Some(error);
        self.unsent.insert(seq);
        None
    }

    /// Ends a request that its caller has abandoned. Replicas that receive the new window of open
    /// numbers before they apply the request never apply it.
    pub(crate) fn withdraw(&mut self, seq: u64) {
        drop(
            self.close(seq, |open| Err(CallError::Deadline { maybe_applied: open.maybe_applied })),
        );
    }

    /// Ends the requests whose deadline has passed.
    pub(crate) fn expire(&mut self, now: Moment) -> Vec<Closed> {
        let mut closed = Vec::new();
        while let Some((deadline, seq)) = self.deadlines.first().copied() {
            if deadline > now {
                break;
            }
            let deadline = |open: &Open| {
                let mut maybe_applied = open.maybe_applied;
                mutant!(M38, maybe_applied = false);
                Err(CallError::Deadline { maybe_applied })
            };
            closed.extend(self.close(seq, deadline));
        }
        closed
    }

    pub(crate) fn stop(&mut self, reason: &StopReason) -> Vec<Closed> {
        let open: Vec<u64> = self.open.keys().copied().collect();
        let stopped = |open: &Open| {
            Err(CallError::Stopped { reason: reason.clone(), maybe_applied: open.maybe_applied })
        };
        open.into_iter().filter_map(|seq| self.close(seq, stopped)).collect()
    }

    fn close(
        &mut self,
        seq: u64,
        result: impl FnOnce(&Open) -> CallResult<Reply>,
    ) -> Option<Closed> {
        let open = self.open.remove(&seq)?;
        self.spans.remove(seq);
        self.unsent.remove(&seq);
        if let Some(deadline) = open.deadline {
            self.deadlines.remove(&(deadline, seq));
        }
        let result = result(&open);
        let Open { reply, trace, bytes, .. } = open;
        Some(Closed { reply, result, trace, bytes })
    }
}

/// A set of numbers as ranges. Numbers are added in order and removed in almost the same order.
#[derive(Default)]
struct RequestSpans(BTreeMap<u64, u64>);

impl RequestSpans {
    /// Adds a number that is greater than all before.
    fn push(&mut self, number: u64) {
        if let Some(mut last) = self.0.last_entry() {
            assert!(*last.get() <= number, "numbers come in order");
            if *last.get() == number {
                *last.get_mut() = number + 1;
                return;
            }
        }
        self.0.insert(number, number + 1);
    }

    fn remove(&mut self, number: u64) {
        let Some((&start, &end)) = self.0.range(..=number).next_back() else { return };
        if number >= end {
            return;
        }
        self.0.remove(&start);
        if start < number {
            self.0.insert(start, number);
        }
        if number + 1 < end {
            self.0.insert(number + 1, end);
        }
    }

    fn first(&self) -> Option<u64> {
        self.0.first_key_value().map(|(start, _)| *start)
    }

    fn list(&self) -> Vec<Span<u64>> {
        self.0.iter().map(|(start, end)| *start..*end).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::at;
    use crate::model::{LeaseId, Put, PutReply};
    use std::sync::{Arc, Mutex};

    type Results = Arc<Mutex<Vec<CallResult<Reply>>>>;

    fn proposals() -> Proposals {
        Proposals::new(NodeId::new(1).unwrap(), Incarnation(3), Duration::from_millis(500))
    }

    fn write(results: &Results, deadline: Option<Moment>) -> Write {
        let results = results.clone();
        let reply = ReplyTo::Call(Box::new(move |result| results.lock().unwrap().push(result)));
        let command = Command::Put(Put::new("a", "1"));
        let trace = RequestTrace::begin(&command, at(0));
        Write { command, deadline, bytes: 10, reply, trace }
    }

    fn seqs(batch: Option<Batch>) -> Vec<u64> {
        let requests = batch.map_or_else(Vec::new, |batch| batch.proposal.requests);
        requests.into_iter().map(|(seq, _)| seq).collect()
    }

    fn put_reply() -> Outcome {
        Ok(Reply::Put(PutReply { revision: Revision(2), prev: None }))
    }

    #[test]
    fn request_is_sent_once_until_a_leader_change_or_timeout() {
        let (mut proposals, results) = (proposals(), Results::default());
        proposals.add(write(&results, None));
        proposals.add(write(&results, None));
        assert_eq!(seqs(proposals.batch(at(0), 1 << 20)), [1, 2]);
        assert_eq!(seqs(proposals.batch(at(1), 1 << 20)), [0; 0]);
        proposals.leader_changed();
        assert_eq!(seqs(proposals.batch(at(2), 1 << 20)), [1, 2]);
        proposals.resend(at(501));
        assert_eq!(seqs(proposals.batch(at(501), 1 << 20)), [0; 0]);
        proposals.resend(at(502));
        assert_eq!(seqs(proposals.batch(at(502), 1 << 20)), [1, 2]);
    }

    #[test]
    fn window_excludes_answered_requests_and_keeps_open_ones() {
        let (mut proposals, results) = (proposals(), Results::default());
        for _ in 0..5 {
            proposals.add(write(&results, None));
        }
        proposals.batch(at(0), 1 << 20).unwrap();
        for seq in [1, 3] {
            proposals.applied(seq, put_reply()).unwrap().answer();
        }
        proposals.add(write(&results, None));
        let window = proposals.batch(at(1), 1 << 20).unwrap().proposal.window;
        assert_eq!(window, AckWindow { frontier: 7, open: vec![2..3, 4..7] });
        assert_eq!(results.lock().unwrap().len(), 2);
        assert!(proposals.applied(3, put_reply()).is_none(), "a second answer finds nobody");
    }

    #[test]
    fn unsent_request_at_its_deadline_was_not_applied() {
        let (mut proposals, results) = (proposals(), Results::default());
        proposals.add(write(&results, Some(at(10))));
        proposals.batch(at(0), 1 << 20).unwrap();
        proposals.add(write(&results, Some(at(10))));
        assert!(proposals.expire(at(9)).is_empty());
        proposals.expire(at(10)).into_iter().for_each(Closed::answer);
        let results = results.lock().unwrap();
        assert_eq!(results[0], Err(CallError::Deadline { maybe_applied: true }));
        assert_eq!(results[1], Err(CallError::Deadline { maybe_applied: false }));
        assert_eq!(proposals.len(), 0);
    }

    #[test]
    fn undelivered_request_was_not_applied() {
        let (mut proposals, results) = (proposals(), Results::default());
        proposals.add(write(&results, Some(at(10))));
        let batch = proposals.batch(at(0), 1 << 20).unwrap();
        proposals.put_back([1], &batch.fresh);
        proposals.expire(at(10)).into_iter().for_each(Closed::answer);
        let expected = Err(CallError::Deadline { maybe_applied: false });
        assert_eq!(*results.lock().unwrap(), [expected]);
    }

    #[test]
    fn window_never_exceeds_the_send_limit() {
        let (mut proposals, results) = (proposals(), Results::default());
        for _ in 0..3 * WINDOW {
            proposals.add(write(&results, None));
        }
        let full = 1..WINDOW + 1;
        let window = proposals.batch(at(0), 1).unwrap().proposal.window;
        assert_eq!(window, AckWindow { frontier: WINDOW + 1, open: vec![full] });
        // A request in the middle of the window and the newest request are answered.
        proposals.applied(7, put_reply()).unwrap().answer();
        proposals.applied(3 * WINDOW, put_reply()).unwrap().answer();
        let window = proposals.batch(at(0), 1).unwrap().proposal.window;
        assert_eq!(window, AckWindow { frontier: WINDOW + 1, open: vec![1..7, 8..WINDOW + 1] });
    }

    #[test]
    fn request_without_a_deadline_is_never_rejected() {
        let (mut proposals, results) = (proposals(), Results::default());
        proposals.add(write(&results, None));
        proposals.add(write(&results, Some(at(10))));
        let batch = proposals.batch(at(0), 1 << 20).unwrap();
        proposals.put_back([1, 2], &batch.fresh);
        assert!(proposals.reject_unproposed(1, CallError::Diverged).is_none());
        proposals.reject_unproposed(2, CallError::Diverged).unwrap().answer();
        assert_eq!(*results.lock().unwrap(), [Err(CallError::Diverged)]);
        assert_eq!(seqs(proposals.batch(at(1), 1 << 20)), [1]);
    }

    /// Rejects a request that would make the state grow, after an earlier attempt may have reached a log.
    fn given_up(results: &Results, deadline: Option<Moment>) -> Proposals {
        let (mut proposals, answered) = (proposals(), results.lock().unwrap().len());
        proposals.add(write(results, deadline));
        proposals.batch(at(0), 1 << 20).unwrap();
        proposals.leader_changed();
        proposals.batch(at(1), 1 << 20).unwrap();
        assert!(proposals.growth_rejected_by_leader(1, CallError::NoSpace).is_none());
        assert_eq!(results.lock().unwrap().len(), answered, "the outcome is not known yet");
        let Batch { proposal, fresh } = proposals.batch(at(2), 1 << 20).unwrap();
        assert_eq!(proposal.requests, [(1, Command::Compact(NEVER))]);
        assert!(fresh.is_empty());
        assert_eq!(proposal.window.open.first(), Some(&(1..2)), "nobody takes it for closed");
        proposals
    }

    #[test]
    fn rejected_growth_is_reported_once_settled() {
        let never = || Err(Rejection::Future { asked: NEVER, newest: Revision(7) });
        for deadline in [None, Some(at(10))] {
            let results = Results::default();
            given_up(&results, deadline).applied(1, never()).unwrap().answer();
            given_up(&results, deadline).applied(1, put_reply()).unwrap().answer();
            let refused = Err(Rejection::LeaseNotFound(LeaseId::new(1).unwrap()));
            given_up(&results, deadline).applied(1, refused.clone()).unwrap().answer();
            let expected = [
                Err(CallError::NoSpace),
                put_reply().map_err(CallError::from),
                refused.map_err(CallError::from),
            ];
            assert_eq!(*results.lock().unwrap(), expected);
        }
        // The deadline of the request passes before the outcome is known.
        let results = Results::default();
        given_up(&results, Some(at(10))).expire(at(10)).into_iter().for_each(Closed::answer);
        let unknown = Err(CallError::Deadline { maybe_applied: true });
        assert_eq!(*results.lock().unwrap(), [unknown]);
    }

    #[test]
    fn unseen_growth_is_rejected_at_once() {
        let (mut proposals, results) = (proposals(), Results::default());
        proposals.add(write(&results, None));
        proposals.batch(at(0), 1 << 20).unwrap();
        proposals.growth_rejected_by_leader(1, CallError::NoSpace).unwrap().answer();
        proposals.add(write(&results, None));
        let batch = proposals.batch(at(1), 1 << 20).unwrap();
        proposals.put_back([2], &batch.fresh);
        proposals.reject_growth_here(2, CallError::NoSpace).unwrap().answer();
        assert_eq!(*results.lock().unwrap(), [Err(CallError::NoSpace), Err(CallError::NoSpace)]);
    }

    /// A rejection does not identify its attempt, and the other attempts may still succeed.
    #[test]
    fn resent_request_may_be_in_a_log_despite_rejections() {
        let (mut proposals, results) = (proposals(), Results::default());
        proposals.add(write(&results, Some(at(10))));
        proposals.batch(at(0), 1 << 20).unwrap();
        proposals.queue_again(&[1]);
        assert_eq!(seqs(proposals.batch(at(1), 1 << 20)), [1]);
        // The same rejection arrives a second time.
        proposals.queue_again(&[1]);
        proposals.expire(at(10)).into_iter().for_each(Closed::answer);
        let expected = Err(CallError::Deadline { maybe_applied: true });
        assert_eq!(*results.lock().unwrap(), [expected]);
    }

    #[test]
    fn sending_stops_at_the_window_after_the_oldest_open_request() {
        let mut proposals = proposals();
        let results = Results::default();
        for _ in 0..WINDOW + 2 {
            proposals.add(write(&results, None));
        }
        let mut sent = 0;
        while let Some(batch) = proposals.batch(at(0), 1 << 20) {
            sent += batch.proposal.requests.len() as u64;
        }
        assert_eq!(sent, WINDOW);
        proposals.applied(1, put_reply()).unwrap().answer();
        assert_eq!(seqs(proposals.batch(at(0), 1 << 20)), [WINDOW + 1]);
    }
}
