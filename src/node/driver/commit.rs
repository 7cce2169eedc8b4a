//! Committed entries: applies them, makes them visible, reports them, and compares digests with the other replicas.

use super::*;
use crate::machine::Tally;

impl Driver {
    /// Applies committed entries and reports them in the required order: first readers see the
    /// changes, then watchers and the lock table are notified, then the callers are answered.
    pub(super) fn apply(&mut self, entries: Vec<wal::Entry>) -> Result<(), Fatal> {
        // Until all changes are visible, readers must ask the leader, because leases become visible
        // before their keys.
        self.shared.in_company();
        self.shared.env.points.reach(Point::DriverBeforeApply);
        let came = self.shared.now();
        let mine = (self.shared.settings.node, self.identity.incarnation());
        let (count, mut last) = (entries.len(), self.machine.applied());
        let (mut changes, mut closed) = (Vec::new(), Vec::new());
        for entry in entries {
            let (index, term) = (entry.index, entry.term);
            let membership = (entry.kind == wal::EntryKind::Membership).then(|| entry.clone());
            let is_without_requests =
                entry.kind == wal::EntryKind::Data && codec::are_no_items(&entry.data);
            self.snapshots.applied(entry.data.len());
            let entry = match mutant!(M29) && self.shared.settings.node.get() > 1 {
                false => entry,
                true => backwards(entry),
            };
            let applied =
                apply_entry(&mut self.machine, entry).map_err(|fault| fault.to_string())?;
            if let Some(entry) = membership {
                self.follow_membership(&entry)?;
            }
            if applied.members.is_some() {
                self.unsettled = Some(Unsettled::ToPropose);
                self.members_changed();
            }
            if is_without_requests {
                self.settled(index);
            }
            self.settle_step(index, term, applied.members.is_some());
            let in_log = self.log_times.of(index);
            for (id, outcome) in applied.outcomes {
                if let Some(leading) = &mut self.leading {
                    leading.in_log.decided(&id);
                }
                if (id.node, id.incarnation) == mine {
                    // If this node was removed, report an unknown outcome to its callers.
                    let decided = match self.machine.members().is_removed(id.node) {
                        true => self.proposals.lost(id.seq),
                        false => self.proposals.applied(id.seq, outcome),
                    };
                    if let Some(mut decided) = decided {
                        decided.decided_by(index, in_log);
                        closed.push(decided);
                    }
                }
            }
            self.count_done(&applied.tally);
            for change in applied.leases {
                self.follow_lease(change);
            }
            changes.extend(applied.changes);
            last = index;
            tracing::trace!(%index, %term, "entry applied");
            if Digests::is_due(index) {
                self.tell_digest(index)?;
            }
        }
        if let Some(leading) = &mut self.leading {
            leading.in_log.applied(last);
        }
        self.committed(last, came);
        self.log_times.forget(last);
        if mutant!(B67) {
            self.reads.applied(last);
        }
        if mutant!(B68) {
            let times = BatchTimes { came, visible: came };
            self.tell_applied(std::mem::take(&mut closed), times, count);
        }
        self.machine.publish();
        // Update this gauge before the caller of a compaction is answered.
        self.shared.meters.compacted_revision.set(self.shared.reader.compacted().get());
        let times = BatchTimes { came, visible: self.shared.now() };
        self.shared.meters.apply_entries.add(count);
        self.shared.meters.watch_changes_total.add(changes.len() as u64);
        let visible = self.shared.reader.revision();
        self.shared.hub.publish(&changes, visible);
        if let Some(follower) = self.shared.follower.get() {
            Arc::clone(follower).applied(&changes, visible, came);
        }
        if let DriverStage::Running(consensus) = &mut self.stage {
            consensus.applied(last);
        }
        if self.is_alone() {
            self.shared.alone();
        }
        self.shared.env.points.reach(Point::DriverBeforeReply);
        self.reads.applied(last);
        self.steps.applied(last);
        self.release_at_least(visible);
        self.judge_renewals();
        self.tell_applied(closed, times, count);
        self.shared.env.points.reach(Point::DriverAfterReply);
        self.machine.scrub(SCRUB_ROWS * count).map_err(|fault| fault.to_string())
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

    pub(super) fn follow_lease(&mut self, change: LeaseChange) {
        match &change {
            LeaseChange::Granted { .. } => self.shared.meters.lease_grants_total.one(),
            LeaseChange::Ended { .. } => self.shared.meters.lease_ends_total.one(),
        }
        let lessor = self.leading.as_mut().and_then(|leading| leading.lessor.as_mut());
        match change {
            LeaseChange::Granted { id, ttl, session } => {
                if let Some(lessor) = lessor {
                    lessor.granted(id, ttl);
                }
                // A late entry of an earlier incarnation granted the lease of that incarnation's own session.
                if let Some((node, incarnation, info)) = session
                    && info.own
                    && node == self.shared.settings.node
                    && incarnation < self.identity.incarnation()
                {
                    self.insist(Command::Revoke(id));
                }
            }
            LeaseChange::Ended { id } => {
                if let Some(lessor) = lessor {
                    lessor.ended(id);
                }
                self.lease_ended(id);
            }
        }
    }

    /// Answers the callers that wait for this revision, or for the first state of the cluster.
    pub(super) fn release_at_least(&mut self, visible: Revision) {
        if !self.shared.has_state() {
            // A replica with a state of its cluster finds its own id in that state, as a present or
            // former member. A new member starts with only the founders.
            if !self.machine.members().has_minted(self.shared.settings.node) {
                return;
            }
            self.shared.set_has_state();
        }
        while let Some(entry) = self.at_least.first_entry() {
            if *entry.key() > visible {
                break;
            }
            for asking in entry.remove() {
                asking.reply.send(Ok(()));
            }
        }
    }

    pub(super) fn tell_digest(&mut self, index: LogIndex) -> Result<(), Fatal> {
        let digest = self.machine.digest();
        // Only the digests of voters count.
        if self.roster.members().is_voter(self.shared.settings.node) {
            for peer in self.roster.peers() {
                self.send(peer, PeerMessage::Digest { index, digest });
            }
        }
        self.compare(self.shared.settings.node, index, digest)
    }

    /// As the leader: while replicas differ and no majority agrees, proposes one entry without
    /// changes at each tick, to reach the next comparison. The next comparison may have a majority,
    /// because a missing member has come back or a wrong replica was removed.
    pub(super) fn compare_again(&mut self) {
        if self.leading.is_some() && self.digests.wants_another() {
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
        match self.digests.tell(from, index, digest) {
            DigestVerdict::Fine => Ok(()),
            DigestVerdict::Others(wrong) => {
                for node in wrong {
                    let name = self.roster.name_of(node);
                    tracing::error!(member = name, %index, "replica diverged from the majority");
                }
                Ok(())
            }
            DigestVerdict::Nobody => {
                tracing::error!(%index, "replicas differ without a majority");
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
