//! Linearizable reads of this node.
//!
//! Callers that arrive between two runs of the driver share one query to the leader. The answer is
//! a log index. Once this node has applied this index, the callers may read the local replica. The
//! leader's side is [`crate::node::leader_queries::rounds`].
//!
//! In a cluster with one member, a reader reads the local replica without a query, unless an entry
//! is just being applied (`ReplicaState::is_alone`).

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::Span;

use crate::model::{LogIndex, Moment};

use crate::node::leader_queries::{Callers, SharedQueries};
use crate::node::requests::answer::{CallError, ReplyTo, StopReason};

/// A caller that waits for a confirmed read, or for a revision. A confirmed read returns the time at which the
/// leader's answer arrived.
pub(crate) struct ReadWaiter<T = ()> {
    pub(crate) deadline: Moment,
    pub(crate) reply: ReplyTo<T>,
    /// The tracing span of the call.
    pub(crate) span: Span,
}

/// Callers that share a question.
type Readers = Vec<ReadWaiter<Moment>>;

impl Callers for Readers {
    fn is_empty(&self) -> bool {
        Vec::is_empty(self)
    }

    fn merge(&mut self, others: Self) {
        self.extend(others);
    }
}

/// The linearizable reads of this node.
pub(crate) struct Reads {
    queries: SharedQueries<Readers>,
    /// Answered questions whose index is not applied yet, by index and round, with the time of the
    /// answer.
    applying: BTreeMap<(LogIndex, u64), (Moment, Readers)>,
}

impl Reads {
    /// Returns a set without callers. An unanswered question is repeated after `patience`.
    pub(crate) fn new(patience: Duration) -> Self {
        Self { queries: SharedQueries::new(patience), applying: BTreeMap::new() }
    }

    pub(crate) fn len(&self) -> usize {
        let applying = self.applying.values().map(|(_, readers)| readers);
        self.queries.groups().chain(applying).map(Vec::len).sum()
    }

    pub(crate) fn add(&mut self, waiter: ReadWaiter<Moment>) {
        self.queries.waiting().push(waiter);
    }

    /// Returns the number of the next question to send.
    pub(crate) fn ask(&mut self, now: Moment) -> Option<u64> {
        mutant!(
            B46,
            if self.queries.waiting().is_empty() {
                return None;
            }
        );
        let ask = self.queries.ask(now)?;
        let round = ask.number;
        for waiter in ask.callers.iter().filter(|_| !ask.is_repeated) {
            tracing::trace!(parent: &waiter.span, round, "read sent to the leader");
        }
        Some(round)
    }

    /// Processes the answer: an index, or `None` if the answering node does not lead.
    pub(crate) fn answered(&mut self, round: u64, index: Option<LogIndex>, now: Moment) {
        let Some(readers) = self.queries.answered(round) else { return };
        let Some(index) = index else { return self.queries.return_callers(readers) };
        for waiter in &readers {
            tracing::trace!(parent: &waiter.span, %index, "read confirmed by the leader");
        }
        self.applying.insert((index, round), (now, readers));
    }

    /// Recalls the unanswered questions, so that they are sent to the new leader.
    pub(crate) fn leader_changed(&mut self) {
        mutant!(B46, return);
        mutant!(B47, return);
        self.queries.leader_changed();
    }

    /// Answers the callers whose index is applied and visible to readers.
    pub(crate) fn applied(&mut self, index: LogIndex) {
        while let Some(entry) = self.applying.first_entry() {
            if entry.key().0 > index {
                break;
            }
            let (confirmed, readers) = entry.remove();
            for waiter in readers {
                waiter.reply.send(Ok(confirmed));
            }
        }
    }

    /// Fails the callers whose deadline has passed, and discards callers that no longer wait.
    /// Returns how many of the failed callers had no answer from a leader.
    pub(crate) fn expire(&mut self, now: Moment) -> u64 {
        let mut late = 0;
        self.queries.expire(|readers| late += expire(readers, now));
        for (_, readers) in self.applying.values_mut() {
            expire(readers, now);
        }
        self.applying.retain(|_, (_, readers)| !readers.is_empty());
        late
    }

    pub(crate) fn stop(&mut self, reason: &StopReason) {
        let applying = std::mem::take(&mut self.applying).into_values();
        let applying = applying.flat_map(|(_, readers)| readers);
        for waiter in self.queries.stop().into_iter().chain(applying) {
            let reason = reason.clone();
            waiter.reply.send(Err(CallError::Stopped { reason, maybe_applied: false }));
        }
    }
}

/// Fails the callers whose deadline has passed, and discards callers that no longer wait. Returns
/// the number of failed callers.
fn expire(readers: &mut Readers, now: Moment) -> u64 {
    let mut late = 0;
    for waiter in readers.extract_if(.., |a| a.deadline <= now || a.reply.is_gone()) {
        late += u64::from(!waiter.reply.is_gone());
        waiter.reply.send(Err(CallError::Deadline { maybe_applied: false }));
    }
    late
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::at;
    use crate::node::requests::answer::CallResult;
    use tokio::sync::oneshot;

    fn asking(sender: oneshot::Sender<CallResult<Moment>>) -> ReadWaiter<Moment> {
        ReadWaiter { deadline: at(5_000), reply: ReplyTo::Waiting(sender), span: Span::none() }
    }

    #[test]
    fn late_read_reply_still_counts_after_a_retry() {
        let mut reads = Reads::new(Duration::from_millis(200));
        let (sender, mut receiver) = oneshot::channel();
        reads.add(asking(sender));
        let round = reads.ask(at(0)).unwrap();
        assert_eq!(reads.ask(at(199)), None);
        assert_eq!(reads.ask(at(200)), Some(round), "it is put again");
        assert_eq!(reads.ask(at(201)), None);
        reads.answered(round, Some(LogIndex(7)), at(210));
        reads.applied(LogIndex(7));
        assert_eq!(receiver.try_recv(), Ok(Ok(at(210))), "with the moment of the answer");
        assert_eq!(reads.ask(at(999)), None);
    }

    #[test]
    fn expired_reads_without_a_confirmed_leader_are_counted() {
        let mut reads = Reads::new(Duration::from_millis(200));
        let add = |reads: &mut Reads| {
            let (sender, receiver) = oneshot::channel();
            reads.add(asking(sender));
            receiver
        };
        let _confirmed = add(&mut reads);
        let round = reads.ask(at(0)).unwrap();
        reads.answered(round, Some(LogIndex(7)), at(10));
        let _asked = add(&mut reads);
        reads.ask(at(20)).unwrap();
        let _waits = add(&mut reads);
        drop(add(&mut reads));
        assert_eq!(reads.expire(at(4_999)), 0, "one has gone away");
        assert_eq!(reads.len(), 3);
        assert_eq!(reads.expire(at(5_000)), 2);
        assert_eq!(reads.len(), 0);
    }

    #[test]
    fn read_added_after_a_query_needs_its_own_query() {
        let mut reads = Reads::new(Duration::from_millis(200));
        let mut waiters = [0, 1].map(|_| oneshot::channel());
        let [(first, _), (second, receiver)] = &mut waiters;
        let mut add = |sender: &mut oneshot::Sender<CallResult<Moment>>| {
            let sender = std::mem::replace(sender, oneshot::channel().0);
            reads.add(asking(sender));
            reads.ask(at(0)).unwrap()
        };
        let (early, late) = (add(first), add(second));
        assert_ne!(early, late);
        reads.answered(early, Some(LogIndex(7)), at(1));
        reads.applied(LogIndex(7));
        assert!(receiver.try_recv().is_err(), "an answer to the past is none");
    }
}
