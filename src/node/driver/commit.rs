//! What is committed: applied, made visible, told to everybody, and compared with the other replicas.

use super::*;
use crate::machine::Tally;
use crate::mutant::{self, Mutant};

impl Driver {
    /// Applies committed entries, and tells everybody what became of them, in the order in which it
    /// may be told: readers see it first, then watchers and recipes hear of it, then callers.
    pub(super) fn apply(&mut self, entries: Vec<wal::Entry>) -> Result<(), Fatal> {
        // Until all of it is seen everywhere: leases are, before their keys.
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
            let entry = match mutant::is(Mutant::M29) && self.shared.settings.node.get() > 1 {
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
                    // A node that is no member any more is answered nothing but that.
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
            tracing::trace!(%index, %term, "applied");
            if Digests::is_due(index) {
                self.tell_digest(index)?;
            }
        }
        if let Some(leading) = &mut self.leading {
            leading.in_log.applied(last);
        }
        self.committed(last, came);
        self.log_times.forget(last);
        if mutant::is(Mutant::B67) {
            self.reads.applied(last);
        }
        if mutant::is(Mutant::B68) {
            let times = BatchTimes { came, visible: came };
            self.tell_applied(std::mem::take(&mut closed), times, count);
        }
        self.machine.publish();
        // Before whoever has compacted is told.
        self.shared.meters.compacted_revision.set(self.shared.reader.compacted().get());
        let times = BatchTimes { came, visible: self.shared.now() };
        self.shared.meters.apply_entries.add(count);
        self.shared.meters.watch_changes_total.add(changes.len() as u64);
        let visible = self.shared.reader.revision();
        self.shared.hub.publish(&changes, visible);
        if let Some(follower) = self.shared.follower.get() {
            Arc::clone(follower).applied(&changes, visible, came);
        }
        if let Stage::Running(consensus) = &mut self.stage {
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
                // An own earlier life, whose last words arrive late.
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

    /// Tells those who wait for the replica to go as far as it does now, or to be there at all.
    pub(super) fn release_at_least(&mut self, visible: Revision) {
        if !self.shared.has_state() {
            // Whoever holds a state of its cluster finds itself in it, or that it was in it. A newcomer begins with the
            // founders alone.
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
        // Only voters count: what a learner says about itself decides nothing.
        if self.roster.members().is_voter(self.shared.settings.node) {
            for peer in self.roster.peers() {
                self.send(peer, PeerMessage::Digest { index, digest });
            }
        }
        self.compare(self.shared.settings.node, index, digest)
    }

    /// As the leader, while nobody can say which replica is right: entries that change nothing, one a tick, lead to the
    /// next comparison. Who was missing may be back then, and who was wrong gone.
    pub(super) fn compare_again(&mut self) {
        if self.leading.is_some() && self.digests.wants_another() {
            // Refused while leadership moves: there is another tick.
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
                    tracing::error!(member = name, %index, "its replica differs from the majority's");
                }
                Ok(())
            }
            DigestVerdict::Nobody => {
                tracing::error!(%index, "replicas differ and no majority says which is right");
                Ok(())
            }
            DigestVerdict::Me => Err(format!(
                "this node's replica differs from the majority's at log index {index}: its memory or \
                 its disk has gone wrong"
            )),
        }
    }
}

/// For a mutant: an entry with its items the other way round.
fn backwards(mut entry: wal::Entry) -> wal::Entry {
    if entry.kind == wal::EntryKind::Data
        && let Ok(items) = codec::decode_items(entry.data.clone())
    {
        entry.data = codec::encode_items(&items.into_iter().rev().collect::<Vec<_>>()).into();
    }
    entry
}

/// Applies one entry of the log.
pub(crate) fn apply_entry(machine: &mut Machine, entry: wal::Entry) -> Result<Applied, Fault> {
    let (index, term) = (entry.index, entry.term);
    let unreadable = |why: String| Fault::Unreadable { index, why };
    match entry.kind {
        wal::EntryKind::Membership => {
            let change =
                consensus::member_change(&entry).map_err(|error| unreadable(error.to_string()))?;
            machine.apply_member(index, term, Some(&change))
        }
        // A leader's first entry, which only counts.
        wal::EntryKind::Data if entry.data.is_empty() => machine.apply(index, term, Vec::new()),
        wal::EntryKind::Data => {
            let items =
                codec::decode_items(entry.data).map_err(|error| unreadable(error.to_string()))?;
            machine.apply(index, term, items)
        }
    }
}
