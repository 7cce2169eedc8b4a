//! Snapshots on their way: taken and offered, sent to peers in parts, fetched and installed; and the
//! log's front, which they replace.

use super::*;

impl Driver {
    /// Takes a snapshot if one is due, and cuts what older ones have made superfluous.
    pub(super) fn keep_snapshots(&mut self, now: Moment) {
        let Stage::Running(consensus) = &mut self.stage else { return };
        let wanted = consensus.wants_snapshot();
        let covered = self.snapshots.newest().map_or(LogIndex(1), |(id, _)| id.index);
        let state_bytes = || self.shared.reader.bytes();
        if self.machine.applied() > covered && self.snapshots.is_due(state_bytes, wanted, now) {
            self.begin_snapshot();
        }
        if self.snapshots.end_serving(now) {
            self.offer_newest(now);
        }
        self.fetch_on(now);
        if self.warm.wants(self.machine.applied()) {
            self.warm.deliver(self.machine.image());
        }
    }

    fn begin_snapshot(&mut self) {
        self.snapshots.begun();
        self.snapshot_queue.push(Job::Take(Box::new(self.machine.image())));
    }

    /// Goes on with what is being fetched.
    pub(super) fn fetch_on(&mut self, now: Moment) {
        if let Some((from, id)) = self.snapshots.tick(now) {
            self.send(from, PeerMessage::SnapshotAsk { id, offset: id.bytes });
        }
        match &self.stage {
            Stage::Restoring { .. } => self.snapshots.give_up_stalled(now),
            // Whoever leads by now had the entries still.
            Stage::Running(_) => {
                if let Some(id) = self.snapshots.end_overtaken_fetch(self.machine.applied()) {
                    self.offer.take_if(|offer| offer.id == id);
                    self.snapshot_queue.push(Job::Discard(id));
                }
            }
            Stage::Founding(_) | Stage::Recording(_) => {}
        }
        self.ask_for_parts();
    }

    /// Cuts the front of the log, as far as nobody needs it.
    pub(super) fn cut_log(&mut self, now: Moment) {
        let Stage::Running(consensus) = &self.stage else { return };
        let peers = consensus.peers();
        let slowest = peers.iter().filter(|peer| peer.active).map(|peer| peer.matched).min();
        let (log_bytes, state_bytes) = (self.log_reader.bytes(), self.shared.reader.bytes());
        if let Some(up_to) = self.snapshots.cut(slowest, log_bytes, state_bytes, now) {
            self.log.cut(up_to);
        }
    }

    /// What came of a job of the snapshot worker.
    pub(super) fn take_news(&mut self, news: News, now: Moment) -> Result<(), Fatal> {
        match news {
            News::Taken { id, members, took } => {
                self.shared.meters.snapshot_taken(took, id.bytes);
                tracing::debug!(index = %id.index, bytes = id.bytes, "took a snapshot");
                self.snapshots.taken(id, members);
                self.offer_newest(now);
            }
            // With the log as it is the next start has everything.
            News::NotTaken { why: WriteError::State(ImageError::Fault(fault)) } => {
                return Err(fault.to_string());
            }
            News::NotTaken { why } => {
                tracing::warn!(%why, "a snapshot could not be taken; it is tried again");
                let no_room = matches!(&why, WriteError::File(error) if error.is_no_space());
                self.snapshots.not_taken(no_room, now);
            }
            News::Part { to, id, offset, data } => {
                let message = match data {
                    Ok(data) => {
                        // Only what is here keeps anything for a peer.
                        self.snapshots.serve(to, id, now);
                        if let Stage::Running(consensus) = &mut self.stage {
                            consensus.snapshot_progress(to);
                        }
                        self.shared.meters.snapshot_sent_bytes_total.add(data.len() as u64);
                        PeerMessage::SnapshotPart { id, offset, data }
                    }
                    Err(why) => {
                        self.cannot_be_sent(id, &why);
                        PeerMessage::SnapshotGone { id }
                    }
                };
                self.send(to, message);
            }
            News::Received { id, bytes } => {
                self.snapshots.received(id, bytes, now);
                self.ask_for_parts();
            }
            News::Loaded { id, machine } => self.loaded(id, machine, now)?,
            News::NotReceived { why, .. } if why.needs_upgrade() => return Err(why.to_string()),
            News::NotReceived { id, why } => {
                tracing::warn!(index = %id.index, %why, "a snapshot could not be received");
                self.snapshots.not_received(id, now);
                self.offer.take_if(|offer| offer.id == id);
            }
        }
        Ok(())
    }

    /// Tells the consensus of the newest snapshot, and lets go of what it replaces.
    fn offer_newest(&mut self, now: Moment) {
        let Some((id, members)) = self.snapshots.newest() else { return };
        let id = *id;
        if let Stage::Running(consensus) = &mut self.stage {
            consensus.offer_snapshot(Some((id, members)));
        }
        let served = self.snapshots.served(now);
        self.snapshot_queue.push(Job::Keep { newest: id, served });
        self.cut_log(now);
    }

    // ---- sending ----------------------------------------------------------------------------------

    /// What should be here of a snapshot is not. If it is the newest, its state is still in memory: another
    /// one is taken, whether or not anything was applied since.
    fn cannot_be_sent(&mut self, id: SnapshotId, why: &str) {
        if !self.snapshots.lost(id) {
            return tracing::debug!(index = %id.index, why, "an older snapshot cannot be sent");
        }
        tracing::error!(index = %id.index, why, "the newest snapshot cannot be read any more; another is taken");
        self.shared.meters.snapshots_unsound_total.one();
        if let Stage::Running(consensus) = &mut self.stage {
            consensus.offer_snapshot(None);
        }
    }

    /// A peer asks for a part.
    pub(super) fn serve_part(&mut self, to: NodeId, id: SnapshotId, offset: u64) {
        self.snapshot_queue.push(Job::Read { to, id, offset });
    }

    /// A peer has lost its state, and asks for any that is late enough.
    pub(super) fn serve_any(&mut self, to: NodeId, least: LogIndex, now: Moment) {
        match self.snapshots.newest().map(|(id, _)| *id) {
            Some(id) if id.index >= least => {
                self.snapshots.serve(to, id, now);
                self.send(to, PeerMessage::SnapshotHere { id });
            }
            _ => {
                if self.machine.applied() >= least
                    && self.snapshots.is_due(|| 0, true, now)
                    && matches!(self.stage, Stage::Running(_))
                {
                    self.begin_snapshot();
                }
            }
        }
    }

    // ---- fetching ---------------------------------------------------------------------------------

    /// The leader has a snapshot that this node needs: the log that it would need is cut.
    pub(super) fn offered(&mut self, offer: Offer, now: Moment) {
        // One that is whole here is put in place before another is begun: else a state that takes long
        // to read would never come to that.
        if self.snapshots.has_whole() || self.loaded.is_some() || self.to_install.is_some() {
            return;
        }
        let (from, id) = (offer.from, offer.id);
        if !self.snapshots.may_fetch(id, now) {
            return;
        }
        self.offer = Some(offer);
        self.fetch(from, id, now);
    }

    /// This node's own state is lost, and a peer has one.
    pub(super) fn found_state(&mut self, from: NodeId, id: SnapshotId, now: Moment) {
        if matches!(&self.stage, Stage::Restoring { least, .. } if id.index >= *least)
            && self.snapshots.fetching().is_none()
            && self.snapshots.may_fetch(id, now)
        {
            self.fetch(from, id, now);
        }
    }

    pub(super) fn fetch(&mut self, from: NodeId, id: SnapshotId, now: Moment) {
        if self.snapshots.fetch(from, id, now) {
            tracing::info!(peer = self.roster.name_of(from), index = %id.index, bytes = id.bytes, "fetches a snapshot");
            self.snapshot_queue.push(Job::Receive(id));
        }
    }

    fn ask_for_parts(&mut self) {
        while let Some((from, id, offset)) = self.snapshots.ask() {
            self.send(from, PeerMessage::SnapshotAsk { id, offset });
        }
    }

    /// A part has come.
    pub(super) fn part_came(&mut self, from: NodeId, id: SnapshotId, offset: u64, data: Bytes) {
        if self.snapshots.fetching() == Some((from, id)) {
            self.shared.meters.snapshot_received_bytes_total.add(data.len() as u64);
            self.snapshot_queue.push(Job::Append { id, offset, data });
        }
    }

    /// The peer does not have it any more: whoever leads offers another one.
    pub(super) fn part_is_gone(&mut self, from: NodeId, id: SnapshotId) {
        if self.snapshots.fetching() == Some((from, id)) {
            self.snapshots.end_fetch(id);
            self.offer.take_if(|offer| offer.id == id);
        }
    }

    /// A snapshot is here, durable, and in memory.
    fn loaded(&mut self, id: SnapshotId, machine: Box<Machine>, now: Moment) -> Result<(), Fatal> {
        self.snapshots.fetched(id);
        if let Stage::Restoring { .. } = self.stage {
            return self.restored(id, machine, now);
        }
        self.loaded = Some((id, machine));
        self.put_before_consensus();
        Ok(())
    }

    /// Hands the offer whose file is here to the consensus, unless it has no time for it now.
    pub(super) fn put_before_consensus(&mut self) {
        let Some((id, _)) = &self.loaded else { return };
        let taken = match (&mut self.stage, &self.offer) {
            (Stage::Running(consensus), Some(offer)) if offer.id == *id => {
                consensus.take_snapshot(offer)
            }
            _ => Taken::Needless,
        };
        match taken {
            Taken::Installing => {
                self.offer = None;
                self.to_install = self.loaded.take();
            }
            Taken::Later => {}
            Taken::Needless => {
                // Another may have been made meanwhile, and is being fetched.
                let id = *id;
                self.offer.take_if(|offer| offer.id == id);
                if let Some((_, machine)) = self.loaded.take() {
                    self.snapshot_queue.push(Job::Forget(machine));
                }
            }
        }
    }

    // ---- installing -------------------------------------------------------------------------------

    /// The consensus has put the snapshot into the log's place: its state becomes this replica's.
    pub(super) fn install(&mut self, id: SnapshotId, now: Moment) -> Result<(), Fatal> {
        let Some((_, machine)) = self.to_install.take_if(|(taken, _)| *taken == id) else {
            return Err(format!("the snapshot at {} is to be installed and is not here", id.index));
        };
        self.put_in_place(*machine)?;
        if let Stage::Running(consensus) = &mut self.stage {
            consensus.installed(self.machine.members()).map_err(|fault| fault.to_string())?;
        }
        self.snapshots.installed(id, Members::clone(self.machine.members()));
        self.end_own_past();
        tracing::info!(index = %id.index, "installed a snapshot");
        self.offer_newest(now);
        Ok(())
    }

    /// Replaces the replica's state by a later one, and tells everybody who follows it.
    fn put_in_place(&mut self, machine: Machine) -> Result<(), Fatal> {
        self.shared.meters.snapshots_installed_total.one();
        let before = self.shared.reader.revision();
        let old = self.machine.install(machine).map_err(|fault| fault.to_string())?;
        self.snapshot_queue.push(Job::Forget(Box::new(old)));
        self.found_members();
        let visible = self.shared.reader.revision();
        if visible > before {
            self.shared.hub.installed(visible);
        }
        if let Some(follower) = self.shared.follower.get() {
            Arc::clone(follower).installed(visible);
        }
        for lease in self.sessions.leases() {
            if self.shared.reader.lease_head(lease).is_none() {
                self.lease_ended(lease);
            }
        }
        // Requests that were applied in what was passed over: the table of answers knows.
        let (node, incarnation) = (self.shared.settings.node, self.identity.incarnation());
        let mut closed = Vec::new();
        for seq in self.proposals.open() {
            match self.machine.answer(RequestId { node, incarnation, seq }) {
                Some(Err(Rejection::Closed)) => closed.extend(self.proposals.lost(seq)),
                Some(outcome) => closed.extend(self.proposals.applied(seq, outcome)),
                None => {}
            }
        }
        self.reads.applied(self.machine.applied());
        self.steps.applied(self.machine.applied());
        self.release_at_least(visible);
        self.tell(closed);
        Ok(())
    }

    /// As a member whose log is whole and whose state was lost: the state is here again. What the log
    /// does not have of it is put into its place.
    fn restored(
        &mut self,
        id: SnapshotId,
        machine: Box<Machine>,
        now: Moment,
    ) -> Result<(), Fatal> {
        let Stage::Restoring { hard_state, .. } = &self.stage else { return Ok(()) };
        // A vote belongs to its term.
        let (term, vote) = match id.term > hard_state.term {
            true => (id.term, None),
            false => (hard_state.term, hard_state.vote),
        };
        let commit = hard_state.commit.max(id.index);
        let hard_state = wal::HardState { term, vote, commit };
        self.put_in_place(*machine)?;
        self.snapshots.installed(id, Members::clone(self.machine.members()));
        self.stage = Stage::Recording(Recording::Base(hard_state.clone()));
        self.log.push(wal::Group {
            base: Some(wal::Base { index: id.index, term: id.term }),
            hard_state: Some(hard_state),
            ..wal::Group::default()
        });
        self.cut_log(now);
        Ok(())
    }
}
