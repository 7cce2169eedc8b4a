//! Snapshots: taking and offering them, sending parts to peers, fetching and installing them, and truncating the
//! front of the log.

use bytes::Bytes;
use std::sync::Arc;

use super::snapshot_flow::{SnapshotAction, SnapshotEvent, SnapshotFlow};
use super::{Driver, DriverStage, Fatal, Recording, SnapshotState};
use crate::consensus::{Offer, Taken};
use crate::machine::{ImageError, Machine};
use crate::model::{
    LogIndex, Members, Moment, NodeId, PeerMessage, Rejection, RequestId, SnapshotId,
};
use crate::node::requests::writing::WriteError;
use crate::node::snapshots::news::News;
use crate::node::snapshots::snapshot_worker::Job;
use crate::wal;

impl Driver {
    /// Takes a snapshot if one is due, and continues a fetch.
    pub(super) fn keep_snapshots(&mut self, now: Moment) {
        let DriverStage::Running(consensus) = &mut self.stage else { return };
        let wanted = consensus.wants_snapshot();
        let covered = self.snapshots.own.newest().map_or(LogIndex(1), |(id, _)| id.index);
        let state_bytes = || self.shared.reader.bytes();
        if self.machine.applied() > covered && self.snapshots.own.is_due(state_bytes, wanted, now) {
            self.begin_snapshot();
        }
        if self.snapshots.own.end_serving(now) {
            self.offer_newest(now);
        }
        self.fetch_on(now);
        if self.io.warm.wants(self.machine.applied()) {
            self.io.warm.deliver(self.machine.image());
        }
    }

    fn begin_snapshot(&mut self) {
        self.snapshots.own.begun();
        self.io.snapshot_queue.push(Job::Take(Box::new(self.machine.image())));
    }

    /// Continues the fetch of a snapshot.
    pub(super) fn fetch_on(&mut self, now: Moment) {
        if let Some((from, id)) = self.snapshots.own.tick(now) {
            self.send(from, PeerMessage::SnapshotAsk { id, offset: id.bytes });
        }
        match &self.stage {
            DriverStage::Restoring { .. } => self.snapshots.own.abandon_stalled(now),
            // The log may already contain entries beyond the snapshot, because a newer leader still
            // had these entries. The snapshot is then not needed.
            DriverStage::Running(_) => {
                if let Some(id) = self.snapshots.own.abandon_overtaken(self.machine.applied()) {
                    self.snapshot_abandoned(id);
                    self.io.snapshot_queue.push(Job::Discard(id));
                }
            }
            DriverStage::Founding(_) | DriverStage::Recording(_) => {}
        }
        self.request_parts();
    }

    /// Truncates the front of the log, as far as no member needs it.
    pub(super) fn cut_log(&mut self, now: Moment) {
        let DriverStage::Running(consensus) = &self.stage else { return };
        let peers = consensus.peers();
        let slowest = peers.iter().filter(|peer| peer.active).map(|peer| peer.matched).min();
        let (log_bytes, state_bytes) = (self.io.log_reader.bytes(), self.shared.reader.bytes());
        if let Some(up_to) = self.snapshots.own.cut(slowest, log_bytes, state_bytes, now) {
            self.io.log.cut(up_to);
        }
    }

    /// Processes the result of a job of the snapshot worker.
    pub(super) fn take_news(&mut self, news: News, now: Moment) -> Result<(), Fatal> {
        match news {
            News::Taken { id, members, took } => {
                self.shared.meters.snapshot_taken(took, id.bytes);
                tracing::debug!(index = %id.index, bytes = id.bytes, "took snapshot");
                self.snapshots.own.taken(id, members);
                self.offer_newest(now);
            }
            // The state in memory is damaged, so the node stops. The next start rebuilds the state
            // from the log.
            News::NotTaken { why: WriteError::State(ImageError::Fault(fault)) } => {
                return Err(fault.to_string());
            }
            News::NotTaken { why } => {
                tracing::warn!(%why, "cannot take snapshot, retrying");
                let no_room = matches!(&why, WriteError::File(error) if error.is_no_space());
                self.snapshots.own.not_taken(no_room, now);
            }
            News::Part { to, id, offset, data } => {
                let message = match data {
                    Ok(data) => {
                        // Keep the log for a peer only if the peer fetches a snapshot that exists
                        // here.
                        self.snapshots.own.serve(to, id, now);
                        if let DriverStage::Running(consensus) = &mut self.stage {
                            consensus.snapshot_progress(to);
                        }
                        self.shared.meters.snapshot_sent_bytes_total.add(data.len() as u64);
                        PeerMessage::SnapshotPart { id, offset, data }
                    }
                    Err(why) => {
                        self.handle_unusable_snapshot(id, &why);
                        PeerMessage::SnapshotGone { id }
                    }
                };
                self.send(to, message);
            }
            News::Received { id, bytes } => {
                self.snapshots.own.received(id, bytes, now);
                self.request_parts();
            }
            News::Loaded { id, machine } => self.loaded(id, machine, now)?,
            News::NotReceived { why, .. } if why.needs_upgrade() => return Err(why.to_string()),
            News::NotReceived { id, why } => {
                tracing::warn!(index = %id.index, %why, "receiving snapshot failed");
                self.snapshots.own.not_received(id, now);
                self.snapshot_abandoned(id);
            }
        }
        Ok(())
    }

    /// Reports the newest snapshot to consensus, and discards older snapshots and the log entries
    /// that it covers.
    fn offer_newest(&mut self, now: Moment) {
        let Some((id, members)) = self.snapshots.own.newest() else { return };
        let id = *id;
        if let DriverStage::Running(consensus) = &mut self.stage {
            consensus.offer_snapshot(Some((id, members)));
        }
        let served = self.snapshots.own.served(now);
        self.io.snapshot_queue.push(Job::Keep { newest: id, served });
        self.cut_log(now);
    }

    // ---- sending ----------------------------------------------------------------------------------

    /// Handles a snapshot that is missing or damaged. If the damaged snapshot is the newest,
    /// another one is taken from the state in memory, even if no entry was applied since.
    fn handle_unusable_snapshot(&mut self, id: SnapshotId, why: &str) {
        if !self.snapshots.own.lost(id) {
            return tracing::debug!(index = %id.index, why, "older snapshot cannot be sent");
        }
        tracing::error!(index = %id.index, why, "newest snapshot is unreadable, taking another");
        self.shared.meters.snapshots_unsound_total.one();
        if let DriverStage::Running(consensus) = &mut self.stage {
            consensus.offer_snapshot(None);
        }
    }

    /// Processes a peer's request for a part.
    pub(super) fn serve_part(&mut self, to: NodeId, id: SnapshotId, offset: u64) {
        self.io.snapshot_queue.push(Job::Read { to, id, offset });
    }

    /// Processes the request of a peer that has lost its state and needs any snapshot that covers `least`.
    pub(super) fn serve_any(&mut self, to: NodeId, least: LogIndex, now: Moment) {
        match self.snapshots.own.newest().map(|(id, _)| *id) {
            Some(id) if id.index >= least => {
                self.snapshots.own.serve(to, id, now);
                self.send(to, PeerMessage::SnapshotHere { id });
            }
            _ => {
                if self.machine.applied() >= least
                    && self.snapshots.own.is_due(|| 0, true, now)
                    && matches!(self.stage, DriverStage::Running(_))
                {
                    self.begin_snapshot();
                }
            }
        }
    }

    // ---- fetching ---------------------------------------------------------------------------------

    /// Processes the leader's offer of a snapshot. This node needs the snapshot, because the
    /// entries that it lacks are no longer in the leader's log.
    pub(super) fn offered(&mut self, offer: Offer, now: Moment) {
        let (from, id) = (offer.from, offer.id);
        let SnapshotState { own, flow } = &mut self.snapshots;
        // Install a complete snapshot before another fetch begins. Otherwise a snapshot that takes
        // long to load would never be installed.
        if own.has_whole() || !flow.may_fetch() || !own.may_fetch(id, now) {
            return;
        }
        let _ = flow.apply(SnapshotEvent::Offered { id, offer });
        self.fetch(from, id, now);
    }

    /// Fetches a snapshot from a peer after this node's own state was lost.
    pub(super) fn found_state(&mut self, from: NodeId, id: SnapshotId, now: Moment) {
        if matches!(&self.stage, DriverStage::Restoring { least, .. } if id.index >= *least)
            && self.snapshots.own.fetching().is_none()
            && self.snapshots.own.may_fetch(id, now)
        {
            self.fetch(from, id, now);
        }
    }

    pub(super) fn fetch(&mut self, from: NodeId, id: SnapshotId, now: Moment) {
        if self.snapshots.own.fetch(from, id, now) {
            tracing::info!(peer = self.membership.roster.name_of(from), index = %id.index, bytes = id.bytes, "fetching snapshot");
            self.io.snapshot_queue.push(Job::Receive(id));
        }
    }

    fn request_parts(&mut self) {
        while let Some((from, id, offset)) = self.snapshots.own.ask() {
            self.send(from, PeerMessage::SnapshotAsk { id, offset });
        }
    }

    /// Processes a part from a peer.
    pub(super) fn receive_part(&mut self, from: NodeId, id: SnapshotId, offset: u64, data: Bytes) {
        if self.snapshots.own.fetching() == Some((from, id)) {
            self.shared.meters.snapshot_received_bytes_total.add(data.len() as u64);
            self.io.snapshot_queue.push(Job::Append { id, offset, data });
        }
    }

    /// Ends a fetch because the peer does not have the snapshot any more. The leader then offers
    /// another snapshot.
    pub(super) fn end_fetch_of_missing(&mut self, from: NodeId, id: SnapshotId) {
        if self.snapshots.own.fetching() == Some((from, id)) {
            self.snapshots.own.end_fetch(id);
            self.snapshot_abandoned(id);
        }
    }

    /// Processes a snapshot that is durable and loaded.
    fn loaded(&mut self, id: SnapshotId, machine: Box<Machine>, now: Moment) -> Result<(), Fatal> {
        self.snapshots.own.fetched(id);
        if let DriverStage::Restoring { .. } = self.stage {
            return self.restored(id, machine, now);
        }
        self.snapshot_event(SnapshotEvent::Loaded { id, state: machine }, now)?;
        self.decide_on_loaded(now)
    }

    /// Passes the offer of the loaded snapshot to consensus, unless consensus is busy.
    pub(super) fn decide_on_loaded(&mut self, now: Moment) -> Result<(), Fatal> {
        let SnapshotFlow::Loaded { offer, .. } = &self.snapshots.flow else { return Ok(()) };
        let taken = match &mut self.stage {
            DriverStage::Running(consensus) => consensus.take_snapshot(offer),
            _ => Taken::Needless,
        };
        self.snapshot_event(SnapshotEvent::Decided(taken), now)
    }

    /// Records that a snapshot cannot be fetched or is not needed.
    fn snapshot_abandoned(&mut self, id: SnapshotId) {
        let _ = self.snapshots.flow.apply(SnapshotEvent::Abandoned(id));
    }

    /// Processes an event of the fetch or installation of a snapshot.
    pub(super) fn snapshot_event(
        &mut self,
        event: SnapshotEvent<Offer, Box<Machine>>,
        now: Moment,
    ) -> Result<(), Fatal> {
        match self.snapshots.flow.apply(event) {
            SnapshotAction::Nothing => Ok(()),
            SnapshotAction::Discard(machine) => {
                self.io.snapshot_queue.push(Job::Forget(machine));
                Ok(())
            }
            SnapshotAction::Install(id, machine) => self.install(id, *machine, now),
            SnapshotAction::Missing(id) => {
                Err(format!("the snapshot to install at index {} is missing", id.index))
            }
        }
    }

    // ---- installing -------------------------------------------------------------------------------

    /// Installs the state of a snapshot after consensus has replaced the log by the snapshot.
    fn install(&mut self, id: SnapshotId, machine: Machine, now: Moment) -> Result<(), Fatal> {
        self.put_in_place(machine)?;
        if let DriverStage::Running(consensus) = &mut self.stage {
            consensus.installed(self.machine.members()).map_err(|fault| fault.to_string())?;
        }
        self.snapshots.own.installed(id, Members::clone(self.machine.members()));
        self.revoke_earlier_leases();
        tracing::info!(index = %id.index, "installed snapshot");
        self.offer_newest(now);
        Ok(())
    }

    /// Replaces the replica's state by a later state, and notifies the watchers, the lock table and
    /// the waiting callers.
    fn put_in_place(&mut self, machine: Machine) -> Result<(), Fatal> {
        self.shared.meters.snapshots_installed_total.one();
        let before = self.shared.reader.revision();
        let old = self.machine.install(machine).map_err(|fault| fault.to_string())?;
        self.io.snapshot_queue.push(Job::Forget(Box::new(old)));
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
        // The dedup table of the new state contains the requests that were applied in the skipped
        // entries.
        let (node, incarnation) = (self.shared.settings.node, self.identity.incarnation());
        let mut closed = Vec::new();
        for seq in self.to_leader.proposals.open() {
            match self.machine.answer(RequestId { node, incarnation, seq }) {
                Some(Err(Rejection::Closed)) => closed.extend(self.to_leader.proposals.lost(seq)),
                Some(outcome) => closed.extend(self.to_leader.proposals.applied(seq, outcome)),
                None => {}
            }
        }
        self.to_leader.reads.applied(self.machine.applied());
        self.to_leader.steps.applied(self.machine.applied());
        self.release_at_least(visible);
        self.answer_callers(closed);
        Ok(())
    }

    /// Installs a fetched state on a member whose own state was lost. The state also replaces the
    /// missing front of the log.
    fn restored(
        &mut self,
        id: SnapshotId,
        machine: Box<Machine>,
        now: Moment,
    ) -> Result<(), Fatal> {
        let DriverStage::Restoring { hard_state, .. } = &self.stage else { return Ok(()) };
        // A vote is valid only in its term, so drop it if the term increases.
        let (term, vote) = match id.term > hard_state.term {
            true => (id.term, None),
            false => (hard_state.term, hard_state.vote),
        };
        let commit = hard_state.commit.max(id.index);
        let hard_state = wal::HardState { term, vote, commit };
        self.put_in_place(*machine)?;
        self.snapshots.own.installed(id, Members::clone(self.machine.members()));
        self.stage = DriverStage::Recording(Recording::Base(hard_state.clone()));
        self.io.log.push(wal::Group {
            base: Some(wal::Base { index: id.index, term: id.term }),
            hard_state: Some(hard_state),
            ..wal::Group::default()
        });
        self.cut_log(now);
        Ok(())
    }
}
