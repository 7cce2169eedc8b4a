//! Snapshots: a leader offers a snapshot to followers that are too far behind, and a follower
//! installs an offered snapshot.
//!
//! ```text
//!   a message that offers one ─▶ step ─▶ Offer ─▶ (the file is fetched, verified, made durable)
//!                                                               │
//!   raft ◀── take_snapshot ◀────────────────────────────────────┘
//!    │
//!    └▶ turn: install, with a group for the log ─▶ its proof ─▶ (the state is installed) ─▶ installed
//! ```
//!
//! After raft has accepted a snapshot, the next turn happens only when the snapshot is installed.
//! Raft cannot handle a second snapshot while the first one is being written to the disk.

use raft::eraftpb::Message;

use super::{Consensus, Install, InstallStage};
use crate::consensus::fault::ConsensusFault;
use crate::consensus::gate::{self, Standpoint};
use crate::consensus::membership::Configuration;
use crate::consensus::snapshot::{self, Offer, Stepped, Taken};
use crate::consensus::status::PeerState;
use crate::model::{LogIndex, Members, NodeId, SnapshotId, Term};
use crate::wal;

impl Consensus {
    /// Sets the snapshot to offer to followers that need entries which the log no longer contains.
    /// The snapshot is a durable and verified file, with the members at its index. `None` offers no
    /// snapshot.
    pub(crate) fn offer_snapshot(&mut self, offered: Option<(SnapshotId, &Members)>) {
        if let Some((id, _)) = offered {
            assert!(id.index <= self.applied_index(), "a snapshot of the future: {id:?}");
        }
        let offered = offered.map(|(id, members)| (id, Configuration::of(members)));
        self.raw.mut_store().offer(offered);
    }

    /// Returns whether a follower needs another snapshot, because the offered one is too old for
    /// the log or does not contain the follower as a member. The next offer resets this flag.
    pub(crate) fn wants_snapshot(&self) -> bool {
        self.raw.store().is_wanted()
    }

    /// Records that a peer makes progress with a snapshot, because it has requested a part.
    pub(crate) fn snapshot_progress(&mut self, peer: NodeId) {
        if let Some(last) = self.fetching.get_mut(&peer) {
            *last = self.ticks;
        }
    }

    /// Records that a peer's snapshot transfer has ended, successfully or not. Raft then probes the
    /// end of the peer's log. A peer that has installed a snapshot reports this itself.
    pub(crate) fn report_snapshot(&mut self, peer: NodeId, ok: bool) {
        self.fetching.remove(&peer);
        let status = if ok { raft::SnapshotStatus::Finish } else { raft::SnapshotStatus::Failure };
        self.with_raft(|raw| raw.report_snapshot(peer.get(), status));
    }

    /// Records that the front of the log was truncated.
    ///
    /// # Errors
    /// Returns a fault after which this member must stop.
    pub(crate) fn log_cut(&mut self) -> Result<(), ConsensusFault> {
        let result = self.raw.mut_store().cut();
        result.map_err(|fault| self.fault.insert(fault).clone())
    }

    /// Checks the snapshot transfers once per tick. Raft waits indefinitely for a peer that fetches
    /// a snapshot, and sends it no entries. Therefore a peer without progress is probed again. A
    /// peer may have installed an older snapshot than the last offer. If the log of this member
    /// contains the entries after that snapshot, the peer receives these entries.
    pub(super) fn check_snapshot_transfers(&mut self) {
        if !self.is_leader() {
            return self.fetching.clear();
        }
        let base = self.raw.store().base();
        let peers = self.peers();
        self.fetching.retain(|id, _| peers.iter().any(|peer| peer.id == *id));
        for peer in peers {
            if peer.state != PeerState::Snapshot {
                self.fetching.remove(&peer.id);
                continue;
            }
            let last = *self.fetching.entry(peer.id).or_insert(self.ticks);
            let is_idle = self.ticks - last >= self.config.snapshot_ticks as u64;
            if is_idle || peer.matched >= base.index {
                self.report_snapshot(peer.id, false);
            }
        }
    }

    /// Returns whether an offered snapshot is newer than this member's log. If the log contains the
    /// last entry of the snapshot, then all earlier entries are equal as well, and raft only learns
    /// that they are committed.
    pub(super) fn needs_install(&self, message: &Message) -> bool {
        let metadata = message.get_snapshot().get_metadata();
        let index = LogIndex(metadata.index);
        message.term >= self.term().get()
            && index > self.commit()
            && self.term_at(index) != Some(Term(metadata.term))
    }

    pub(super) fn offer_of(&self, from: NodeId, message: Message) -> Stepped {
        if self.install.is_some() {
            return Stepped::Done;
        }
        let (id, _) = snapshot::from_raft(message.get_snapshot()).expect("the gate has checked it");
        Stepped::Offer(Offer { from, id, message: Box::new(message) })
    }

    /// Accepts the file of an offer, which is durable, verified and ready to be installed.
    ///
    /// The transfer may have taken long, and the leader may have changed meanwhile. A snapshot
    /// covers only committed entries, so a snapshot from a former leader is valid too. The snapshot
    /// is acknowledged to the current leader.
    pub(crate) fn take_snapshot(&mut self, offer: &Offer) -> Taken {
        if self.install.is_some() || self.fault.is_some() {
            return Taken::Later;
        }
        let mut message = Message::clone(&offer.message);
        if message.term <= self.term().get() {
            let Some(leader) = self.leader() else { return Taken::Later };
            (message.from, message.term) = (leader.get(), self.term().get());
        }
        let from = NodeId::new(message.from).expect("a leader or the sender");
        if !self.needs_install(&message) || gate::check(&message, from, self).is_err() {
            return Taken::Needless;
        }
        let (id, configuration) =
            snapshot::from_raft(message.get_snapshot()).expect("the gate has checked it");
        if let Err(error) = self.with_raft(|raw| raw.step(message)) {
            tracing::debug!(%error, "raft rejected a snapshot");
        }
        if self.raw.snap().is_none() {
            return Taken::Needless;
        }
        self.install = Some(Install { id, configuration, stage: InstallStage::Taken });
        Taken::Installing
    }

    /// Records that the state of the snapshot in the last turn's `install` is installed, and that
    /// `members` are its members. Its group must be proven.
    ///
    /// # Errors
    /// Returns an error if raft's configuration has other members. This member must stop.
    pub(crate) fn installed(&mut self, members: &Members) -> Result<(), ConsensusFault> {
        let install = self.install.take().expect("a turn has requested the install");
        assert_eq!(install.stage, InstallStage::Proven, "the log has not proven it");
        let index = install.id.index;
        let found = Configuration::of(members);
        if found != install.configuration {
            let why = format!(
                "the snapshot has {found:?}, but its message has {:?}",
                install.configuration
            );
            return Err(self.fault.insert(ConsensusFault::Membership { index, why }).clone());
        }
        (self.members, self.configuration) = (members.clone(), found);
        self.contacts.retain(|id| !members.is_removed(id));
        self.with_raft(|raw| raw.advance_apply_to(index.get()));
        self.evict();
        Ok(())
    }

    /// Returns whether a turn is possible in spite of a pending snapshot. Before the turn that
    /// returns a snapshot, all earlier groups must be on disk, and all earlier entries must be
    /// applied.
    pub(super) fn can_turn(&self) -> bool {
        match self.install.as_ref().map(|install| install.stage) {
            None => true,
            Some(InstallStage::Taken) => {
                self.pending.is_empty() && self.handed == self.applied_index()
            }
            Some(InstallStage::Logged(_) | InstallStage::Proven) => false,
        }
    }

    /// Returns the new base of the log, if this batch contains a snapshot.
    pub(super) fn base_of(ready: &raft::Ready) -> Option<wal::Base> {
        let metadata = ready.snapshot().get_metadata();
        (!ready.snapshot().is_empty())
            .then_some(wal::Base { index: LogIndex(metadata.index), term: Term(metadata.term) })
    }

    /// Starts the installation of a snapshot in this batch. From here on, raft's log begins after
    /// the snapshot.
    pub(super) fn begin_install(&mut self, ready: &raft::Ready) -> Option<SnapshotId> {
        let base = Self::base_of(ready)?;
        let install = self.install.as_mut().expect("raft has none that it was not handed");
        assert_eq!((install.id.index, install.id.term), (base.index, base.term));
        install.stage = InstallStage::Logged(self.group);
        let id = install.id;
        self.raw.mut_store().begin_again(base);
        self.handed = base.index;
        Some(id)
    }

    /// Records that the log has proven all groups up to this one durable.
    pub(super) fn prove_install(&mut self, group: u64) {
        if let Some(install) = &mut self.install
            && let InstallStage::Logged(carrier) = install.stage
            && carrier <= group
        {
            install.stage = InstallStage::Proven;
        }
    }
}
