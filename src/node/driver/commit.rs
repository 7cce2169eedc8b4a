//! Committed entries: applies them, makes them visible, reports them, and compares digests with the other replicas.

use std::sync::Arc;

use super::{Driver, DriverStage, Fatal, SCRUB_ROWS};
use crate::env::Point;
use crate::machine::{Applied, Change, Machine, Tally};
use crate::model::{Fault, LogIndex, Moment, NodeId, Outcome, PeerMessage, RequestId, Revision};
use crate::node::health::digests::{DigestVerdict, Digests};
use crate::node::requests::proposals::Closed;
use crate::node::requests::request_trace::BatchTimes;
use crate::{codec, consensus, wal};

/// The effects of a batch of committed entries that are not reported yet.
struct Batch {
    entries: usize,
    /// The last entry.
    last: LogIndex,
    /// Time at which the driver received the entries.
    received_at: Moment,
    /// The changes of keys, in order.
    changes: Vec<Change>,
    /// The requests of this node that the entries have decided.
    closed: Vec<Closed>,
}

impl Driver {
    /// Applies committed entries and reports them in a fixed order. First the changes become
    /// visible to readers. Then watchers and the lock table are notified, and last the callers are
    /// answered.
    pub(super) fn apply(&mut self, entries: Vec<wal::Entry>) -> Result<(), Fatal> {
        // From now on, reads must query the leader, until all changes are visible. Otherwise a read
        // could see a new lease but not its keys.
        self.shared.replica.stop_local_linearizable_reads();
        self.shared.env.points.reach(Point::DriverBeforeApply);
        let mut batch = Batch {
            entries: entries.len(),
            last: self.machine.applied(),
            received_at: self.shared.now(),
            changes: Vec::new(),
            closed: Vec::new(),
        };
        for entry in entries {
            self.apply_to_replica(entry, &mut batch)?;
        }
        self.forget_applied(&batch);
        mutant!(B67, self.to_leader.reads.applied(batch.last));
        mutant!(B68, self.answer_early(&mut batch));
        let (visible_at, visible) = self.publish(&batch);
        self.notify_followers(&batch, visible);
        self.report_to_consensus(batch.last);
        self.shared.env.points.reach(Point::DriverBeforeReply);
        let entries = batch.entries;
        self.answer(batch, visible_at, visible);
        self.shared.env.points.reach(Point::DriverAfterReply);
        self.machine.scrub(SCRUB_ROWS * entries).map_err(|fault| fault.to_string())
    }

    /// Applies one entry to the replica, and collects its effects.
    fn apply_to_replica(&mut self, entry: wal::Entry, batch: &mut Batch) -> Result<(), Fatal> {
        let (index, term) = (entry.index, entry.term);
        let membership = (entry.kind == wal::EntryKind::Membership).then(|| entry.clone());
        let is_without_requests =
            entry.kind == wal::EntryKind::Data && codec::are_no_items(&entry.data);
        self.snapshots.own.applied(entry.data.len());
        let mut entry = entry;
        mutant!(
            M29,
            if self.shared.settings.node.get() > 1 {
                entry = backwards(entry)
            }
        );
        let applied = apply_entry(&mut self.machine, entry).map_err(|fault| fault.to_string())?;
        self.follow_members(membership, applied.members.is_some())?;
        if is_without_requests {
            self.settled(index);
        }
        self.settle_step(index, term, applied.members.is_some());
        self.decide(applied.outcomes, index, batch);
        self.count_done(&applied.tally);
        for change in applied.leases {
            self.follow_lease(change);
        }
        // A batch of one entry, which is usual, takes the list without a copy.
        if batch.changes.is_empty() {
            batch.changes = applied.changes;
        } else {
            batch.changes.extend(applied.changes);
        }
        batch.last = index;
        tracing::trace!(%index, %term, "entry applied");
        if Digests::is_due(index) {
            self.send_digest(index)?;
        }
        Ok(())
    }

    /// Updates everything that depends on the members, after an entry was applied.
    fn follow_members(
        &mut self,
        membership: Option<wal::Entry>,
        has_changed: bool,
    ) -> Result<(), Fatal> {
        if let Some(entry) = membership {
            self.follow_membership(&entry)?;
        }
        if has_changed {
            self.membership.changed();
            self.members_changed();
        }
        Ok(())
    }

    /// Records the outcomes of the requests in an entry.
    fn decide(&mut self, outcomes: Vec<(RequestId, Outcome)>, index: LogIndex, batch: &mut Batch) {
        let mine = (self.shared.settings.node, self.identity.incarnation());
        let in_log = self.timing.log_times.of(index);
        for (id, outcome) in outcomes {
            if let Some(leading) = &mut self.leader {
                leading.in_log.decided(&id);
            }
            if (id.node, id.incarnation) != mine {
                continue;
            }
            // If this node was removed, report an unknown outcome to its callers.
            let decided = match self.machine.members().is_removed(id.node) {
                true => self.to_leader.proposals.lost(id.seq),
                false => self.to_leader.proposals.applied(id.seq, outcome),
            };
            batch.closed.extend(decided.map(|mut decided| {
                decided.decided_by(index, in_log);
                decided
            }));
        }
    }

    /// Discards the bookkeeping for entries that are now applied.
    fn forget_applied(&mut self, batch: &Batch) {
        if let Some(leading) = &mut self.leader {
            leading.in_log.applied(batch.last);
        }
        self.shared.lessor.with(|lessor| lessor.applied(batch.last));
        self.committed(batch.last, batch.received_at);
        self.timing.log_times.forget(batch.last);
    }

    /// Used by a mutant: answers the callers before their changes are visible.
    fn answer_early(&mut self, batch: &mut Batch) {
        let times = BatchTimes { received_at: batch.received_at, visible: batch.received_at };
        self.answer_applied(std::mem::take(&mut batch.closed), times, batch.entries);
    }

    /// Makes the changes visible to readers. Returns the time, and the visible revision.
    fn publish(&mut self, batch: &Batch) -> (Moment, Revision) {
        self.machine.publish();
        // Update this gauge before the caller of a compaction is answered.
        let meters = &self.shared.meters;
        meters.compacted_revision.set(self.shared.reader.compacted().get());
        let visible = self.shared.now();
        meters.apply_entries.add(batch.entries);
        meters.watch_changes_total.add(batch.changes.len() as u64);
        (visible, self.shared.reader.revision())
    }

    /// Reports the visible changes to watchers and to the lock table.
    fn notify_followers(&self, batch: &Batch, visible: Revision) {
        self.shared.hub.publish(&batch.changes, visible);
        if let Some(follower) = self.shared.follower.get() {
            Arc::clone(follower).applied(&batch.changes, visible, batch.received_at);
        }
    }

    /// Reports the applied entries to consensus.
    fn report_to_consensus(&mut self, last: LogIndex) {
        if let DriverStage::Running(consensus) = &mut self.stage {
            consensus.applied(last);
        }
        if self.is_alone() {
            self.shared.replica.alone();
        }
    }

    /// Answers the callers that waited for these entries.
    fn answer(&mut self, batch: Batch, visible_at: Moment, visible: Revision) {
        self.to_leader.reads.applied(batch.last);
        self.to_leader.steps.applied(batch.last);
        self.release_at_least(visible);
        self.evaluate_renewals();
        let times = BatchTimes { received_at: batch.received_at, visible: visible_at };
        self.answer_applied(batch.closed, times, batch.entries);
    }

    fn count_done(&self, tally: &Tally) {
        let Tally { ranges, puts, put_bytes, deletes, txns } = *tally;
        let meters = &self.shared.meters;
        meters.ranges_total.add(ranges);
        meters.puts_total.add(puts);
        meters.put_bytes_total.add(put_bytes);
        meters.deletes_total.add(deletes);
        meters.txns_total.add(txns);
    }

    /// Answers the callers that wait for this revision, or for the first state of the cluster.
    pub(super) fn release_at_least(&mut self, visible: Revision) {
        if !self.shared.replica.has_state() {
            // The state of the cluster contains this node's id, as a current or former member. The
            // initial state of a new member contains only the founders.
            if !self.machine.members().has_minted(self.shared.settings.node) {
                return;
            }
            self.shared.replica.set_has_state();
        }
        self.to_leader.reached(visible);
    }

    pub(super) fn send_digest(&mut self, index: LogIndex) -> Result<(), Fatal> {
        let digest = self.machine.digest();
        // Only the digests of voters count.
        if self.membership.roster.members().is_voter(self.shared.settings.node) {
            for peer in self.membership.roster.peers() {
                self.send(peer, PeerMessage::Digest { index, digest });
            }
        }
        self.compare(self.shared.settings.node, index, digest)
    }

    /// As the leader: while replicas differ and no majority agrees, proposes one entry without
    /// changes at each tick, to reach the next comparison. The next comparison may have a majority,
    /// because a missing member has come back or a wrong replica was removed.
    pub(super) fn compare_again(&mut self) {
        if self.leader.is_some() && self.peers.digests.wants_another() {
            // During a leadership transfer the proposal is rejected. The next tick tries again.
            let _ = self.propose_nothing();
        }
    }

    pub(super) fn compare(
        &mut self,
        from: NodeId,
        index: LogIndex,
        digest: u64,
    ) -> Result<(), Fatal> {
        match self.peers.digests.record(from, index, digest) {
            DigestVerdict::Fine => Ok(()),
            DigestVerdict::Others(wrong) => {
                for node in wrong {
                    let name = self.membership.roster.name_of(node);
                    tracing::error!(member = name, %index, "replica diverged from the majority");
                }
                Ok(())
            }
            DigestVerdict::NoMajority => {
                tracing::error!(
                    %index,
                    "replicas differ and no majority of them agrees, rejecting writes"
                );
                Ok(())
            }
            DigestVerdict::Me => Err(format!(
                "this node's replica diverged from the majority at log index {index}: its memory or disk is faulty"
            )),
        }
    }
}

/// Used by a mutant: reverses the items of an entry.
fn backwards(mut entry: wal::Entry) -> wal::Entry {
    if entry.kind == wal::EntryKind::Data
        && let Ok(items) = codec::decode_items(entry.data.clone())
    {
        entry.data = codec::encode_items(&items.into_iter().rev().collect::<Vec<_>>()).into();
    }
    entry
}

pub(crate) fn apply_entry(machine: &mut Machine, entry: wal::Entry) -> Result<Applied, Fault> {
    let (index, term) = (entry.index, entry.term);
    let unreadable = |why: String| Fault::Unreadable { index, why };
    match entry.kind {
        wal::EntryKind::Membership => {
            let change =
                consensus::member_change(&entry).map_err(|error| unreadable(error.to_string()))?;
            machine.apply_member(index, term, Some(&change))
        }
        // The first entry of a leader is empty.
        wal::EntryKind::Data if entry.data.is_empty() => machine.apply(index, term, Vec::new()),
        wal::EntryKind::Data => {
            let items =
                codec::decode_items(entry.data).map_err(|error| unreadable(error.to_string()))?;
            machine.apply(index, term, items)
        }
    }
}
