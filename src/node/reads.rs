//! Linearizable reads and lease renewals. Both are questions to the leader and need the same proof:
//! after the question has arrived, a quorum confirms that the answering node is still the leader.
//!
//! Every node sends questions with [`Reads`]. Callers that arrive between two runs of the driver
//! share one question to the leader. The answer is a log index. Once this node has applied this
//! index, the callers may read the local replica. The leader answers questions with [`Rounds`].
//! Questions from all nodes, including the leader, share one confirmation round of the consensus. A
//! round that is not confirmed in time is started again under a new number, so that a confirmation
//! of the old round is not counted for the new round.
//!
//! In a cluster with one member, readers need no question while no entry is being applied
//! (`Shared::alone`).

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::Span;

use crate::consensus::RoundId;
use crate::model::{Incarnation, LeaseId, LogIndex, Moment, NodeId};

use super::answer::{CallError, ReplyTo, StopReason};
use super::lease_calls::LeaseQuestion;

/// A caller that waits for a confirmed read, or for a revision. A confirmed read returns the time at which the
/// leader's answer arrived.
pub(crate) struct ReadWaiter<T = ()> {
    pub(crate) deadline: Moment,
    pub(crate) reply: ReplyTo<T>,
    /// The span of its traces.
    pub(crate) span: Span,
}

/// Callers that share a question, with the time of that question.
type WaiterGroup = (Moment, Vec<ReadWaiter<Moment>>);

/// The questions of this node.
pub(crate) struct Reads {
    waiting: Vec<ReadWaiter<Moment>>,
    /// Unanswered questions by round, with the time at which each was last sent.
    asked: BTreeMap<u64, WaiterGroup>,
    /// Answered questions whose index is not applied yet, by index and round, with the time of the
    /// answer.
    applying: BTreeMap<(LogIndex, u64), WaiterGroup>,
    next_round: u64,
    ask_again: Duration,
}

impl Reads {
    pub(crate) fn new(ask_again: Duration) -> Self {
        let (asked, applying) = (BTreeMap::new(), BTreeMap::new());
        Self { waiting: Vec::new(), asked, applying, next_round: 1, ask_again }
    }

    /// Returns the number of waiting callers.
    pub(crate) fn len(&self) -> usize {
        let asked = self.asked.values().map(|(_, askers)| askers.len());
        let applying = self.applying.values().map(|(_, askers)| askers.len());
        self.waiting.len() + asked.chain(applying).sum::<usize>()
    }

    pub(crate) fn add(&mut self, asking: ReadWaiter<Moment>) {
        self.waiting.push(asking);
    }

    /// Returns the number of the next question to send: a new question for all callers that wait,
    /// or a question that has been unanswered for `ask_again`. A repeated question keeps its
    /// number, so that a late answer of a slow leader is still used. This is safe, because all
    /// callers of the question had asked before it was first sent.
    pub(crate) fn ask(&mut self, now: Moment) -> Option<u64> {
        if self.waiting.is_empty() {
            let late = |sent: Moment| now.since(sent) >= self.ask_again && !mutant!(B46);
            let (round, (sent, _)) = self.asked.iter_mut().find(|(_, (sent, _))| late(*sent))?;
            *sent = now;
            return Some(*round);
        }
        let round = self.next_round;
        self.next_round += 1;
        for asking in &self.waiting {
            tracing::trace!(parent: &asking.span, round, "read sent to the leader");
        }
        self.asked.insert(round, (now, std::mem::take(&mut self.waiting)));
        Some(round)
    }

    /// Processes the answer: an index, or `None` if the answering node does not lead.
    pub(crate) fn answered(&mut self, round: u64, index: Option<LogIndex>, now: Moment) {
        let Some((_, askers)) = self.asked.remove(&round) else { return };
        let Some(index) = index else { return self.waiting.extend(askers) };
        for asking in &askers {
            tracing::trace!(parent: &asking.span, %index, "read confirmed by the leader");
        }
        self.applying.insert((index, round), (now, askers));
    }

    /// Queues all unanswered questions again, for a new leader.
    pub(crate) fn leader_changed(&mut self) {
        if mutant!(B46) || mutant!(B47) {
            return;
        }
        for (_, askers) in std::mem::take(&mut self.asked).into_values() {
            self.waiting.extend(askers);
        }
    }

    /// Answers the callers whose index is applied and visible to readers.
    pub(crate) fn applied(&mut self, index: LogIndex) {
        while let Some(entry) = self.applying.first_entry() {
            if entry.key().0 > index {
                break;
            }
            let (confirmed, askers) = entry.remove();
            for asking in askers {
                asking.reply.send(Ok(confirmed));
            }
        }
    }

    /// Fails the callers whose deadline has passed, and discards callers that have gone away.
    /// Returns how many of the failed callers had no answer from a leader.
    pub(crate) fn expire(&mut self, now: Moment) -> u64 {
        let mut late = 0;
        let asked = self.asked.values_mut().map(|(_, askers)| askers);
        for askers in asked.chain([&mut self.waiting]) {
            late += expire(askers, now);
        }
        for (_, askers) in self.applying.values_mut() {
            expire(askers, now);
        }
        self.asked.retain(|_, (_, askers)| !askers.is_empty());
        self.applying.retain(|_, (_, askers)| !askers.is_empty());
        late
    }

    /// Fails all callers when the node stops.
    pub(crate) fn stop(&mut self, reason: &StopReason) {
        let asked = std::mem::take(&mut self.asked).into_values().flat_map(|(_, askers)| askers);
        let applying = std::mem::take(&mut self.applying).into_values();
        let applying = applying.flat_map(|(_, askers)| askers);
        for asking in asked.chain(applying).chain(std::mem::take(&mut self.waiting)) {
            let reason = reason.clone();
            asking.reply.send(Err(CallError::Stopped { reason, maybe_applied: false }));
        }
    }
}

/// Fails the callers whose deadline has passed, and discards callers that have gone away. Returns
/// the number of failed callers.
fn expire(askers: &mut Vec<ReadWaiter<Moment>>, now: Moment) -> u64 {
    let mut late = 0;
    for asking in askers.extract_if(.., |a| a.deadline <= now || a.reply.is_gone()) {
        late += u64::from(!asking.reply.is_gone());
        asking.reply.send(Err(CallError::Deadline { maybe_applied: false }));
    }
    late
}

/// The origin of a question to the leader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ReadOrigin {
    /// This node, for the reads of its callers.
    Local { round: u64 },
    /// Another node, for the reads of its callers.
    Remote { node: NodeId, incarnation: Incarnation, round: u64 },
    /// Any node, including this one, for the leases of its sessions.
    Renewal { node: NodeId, incarnation: Incarnation, round: u64, leases: Vec<LeaseId> },
    /// Any node, including this one, for leases that its callers keep alive.
    Leases { node: NodeId, incarnation: Incarnation, question: LeaseQuestion },
}

/// The questions that this node answers as the leader, and their confirmation rounds.
#[derive(Debug)]
pub(crate) struct Rounds {
    node: NodeId,
    incarnation: Incarnation,
    counter: u64,
    pending: Vec<ReadOrigin>,
    flying: BTreeMap<u64, (Moment, Vec<ReadOrigin>)>,
    start_again: Duration,
}

/// Maximum number of unconfirmed rounds.
const FLYING_MAX: usize = 4;

/// Maximum number of questions that the leader holds. Further questions are dropped, and the node that asked repeats
/// them.
const PENDING_MAX: usize = 16_384;

impl Rounds {
    /// Returns an empty set for a new incarnation.
    pub(crate) fn new(node: NodeId, incarnation: Incarnation, start_again: Duration) -> Self {
        let (pending, flying) = (Vec::new(), BTreeMap::new());
        Self { node, incarnation, counter: 0, pending, flying, start_again }
    }

    /// Adds a question.
    pub(crate) fn join(&mut self, asker: ReadOrigin) {
        if mutant!(B29)
            && let Some(mut under_way) = self.flying.last_entry()
        {
            return under_way.get_mut().1.push(asker);
        }
        if self.pending.len() < PENDING_MAX {
            self.pending.push(asker);
        }
    }

    /// Starts a round for all waiting questions, if there are any.
    pub(crate) fn start(&mut self, now: Moment) -> Option<RoundId> {
        if self.pending.is_empty() || self.flying.len() >= FLYING_MAX {
            return None;
        }
        self.counter += u64::from(!mutant!(M07) || self.flying.is_empty());
        self.flying.insert(self.counter, (now, std::mem::take(&mut self.pending)));
        Some(RoundId { node: self.node, incarnation: self.incarnation, counter: self.counter })
    }

    /// Returns the questions of a round that could not be started. The number of the round is not
    /// used again.
    pub(crate) fn not_started(&mut self, round: RoundId) {
        if let Some((_, askers)) = self.flying.remove(&round.counter)
            && !mutant!(B48)
        {
            self.pending.extend(askers);
        }
    }

    /// Queues the questions of unconfirmed rounds again, for rounds with new numbers.
    pub(crate) fn start_again(&mut self, now: Moment) {
        while let Some(entry) = self.flying.first_entry()
            && !mutant!(B49)
        {
            if now.since(entry.get().0) < self.start_again {
                break;
            }
            self.pending.extend(entry.remove().1);
        }
    }

    /// Returns the time at which an unconfirmed round began.
    pub(crate) fn began(&self, round: RoundId) -> Option<Moment> {
        self.flying.get(&round.counter).map(|(began, _)| *began)
    }

    /// Takes the questions of a round that a quorum has confirmed.
    pub(crate) fn confirmed(&mut self, round: RoundId) -> Vec<ReadOrigin> {
        assert_eq!((round.node, round.incarnation), (self.node, self.incarnation));
        self.flying.remove(&round.counter).map(|(_, askers)| askers).unwrap_or_default()
    }

    /// Takes all questions when this node stops leading, so that the driver can answer that it does
    /// not lead.
    pub(crate) fn end(&mut self) -> Vec<ReadOrigin> {
        let flying = std::mem::take(&mut self.flying).into_values().flat_map(|(_, askers)| askers);
        flying.chain(std::mem::take(&mut self.pending)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::answer::CallResult;
    use tokio::sync::oneshot;

    fn at(ms: u64) -> Moment {
        Moment::since_boot(Duration::from_millis(ms))
    }

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

    #[test]
    fn excess_reads_are_dropped_and_rounds_are_bounded() {
        let mut rounds =
            Rounds::new(NodeId::new(1).unwrap(), Incarnation(1), Duration::from_millis(500));
        for round in 0..2 * PENDING_MAX as u64 {
            rounds.join(ReadOrigin::Local { round });
        }
        assert_eq!(rounds.pending.len(), PENDING_MAX);
        let mut started = 0;
        while rounds.start(at(0)).is_some() {
            started += 1;
            rounds.join(ReadOrigin::Local { round: 0 });
        }
        assert_eq!(started, FLYING_MAX);
    }
}
