//! Snapshots: offered to followers that are too far behind, and taken by one that is.
//!
//! ```text
//!   a message that offers one ─▶ step ─▶ Offer ─▶ (the file is fetched, verified, made durable)
//!                                                               │
//!   raft ◀── take_snapshot ◀────────────────────────────────────┘
//!    │
//!    └▶ turn: install, with a group for the log ─▶ its proof ─▶ (the state is put in place) ─▶ installed
//! ```
//!
//! From the moment at which raft has a snapshot until it is in place, no other turn comes: raft does
//! not bear a second one on its way to the disk.

use super::*;

impl Consensus {
    /// What a follower gets that is too far behind for the log: a file that is durable and verified,
    /// and the members there. `None`: nothing.
    pub(crate) fn offer_snapshot(&mut self, offered: Option<(SnapshotId, &Members)>) {
        if let Some((id, _)) = offered {
            assert!(id.index <= self.applied_index(), "a snapshot of the future: {id:?}");
        }
        let offered = offered.map(|(id, members)| (id, Configuration::of(members)));
        self.raw.mut_store().offer(offered);
    }

    /// Whether a follower needs a snapshot, and what is offered does not do: it is too old for the
    /// log, or does not know the follower. Until the next offer.
    pub(crate) fn wants_snapshot(&self) -> bool {
        self.raw.store().is_wanted()
    }

    /// A peer has asked for a part of a snapshot: it is at work.
    pub(crate) fn snapshot_progress(&mut self, peer: NodeId) {
        if let Some(last) = self.fetching.get_mut(&peer) {
            *last = self.ticks;
        }
    }

    /// What a peer fetches is at its end: it has it all, or will never have it. Then it is asked again
    /// how far it is. A peer that has installed a snapshot says so itself.
    pub(crate) fn report_snapshot(&mut self, peer: NodeId, ok: bool) {
        self.fetching.remove(&peer);
        let status = if ok { raft::SnapshotStatus::Finish } else { raft::SnapshotStatus::Failure };
        self.with_raft(|raw| raw.report_snapshot(peer.get(), status));
    }

    /// The log's front was cut.
    ///
    /// # Errors
    /// This member must stop.
    pub(crate) fn log_cut(&mut self) -> Result<(), ConsensusFault> {
        let result = self.raw.mut_store().cut();
        result.map_err(|fault| self.fault.insert(fault).clone())
    }

    /// Once a tick. Raft waits for a peer that fetches a snapshot for ever, and sends it nothing: so
    /// one that shows no progress is asked again, and one whose log this member's can continue (it has
    /// installed an older snapshot than the last it was offered) goes on from there.
    pub(super) fn look_after_fetching(&mut self) {
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

    /// Whether what a message offers is more than what is here. If its last entry is here, all before
    /// it are the same as well, and raft only learns that they are committed.
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
        let (id, _) = snapshot::from_raft(message.get_snapshot()).expect("the gate has judged it");
        Stepped::Offer(Offer { from, id, message: Box::new(message) })
    }

    /// The file of an offer is here: durable, verified, and ready to be put in place.
    ///
    /// It may have taken long, and another leader may have come. What a snapshot covers is committed,
    /// so it is as good as any that this leader could send, and it is the one who is told of it.
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
        if !self.needs_install(&message) || gate::judge(&message, from, self).is_err() {
            return Taken::Needless;
        }
        let (id, configuration) =
            snapshot::from_raft(message.get_snapshot()).expect("the gate has judged it");
        if let Err(error) = self.with_raft(|raw| raw.step(message)) {
            tracing::debug!(%error, "raft did not take a snapshot");
        }
        if self.raw.snap().is_none() {
            return Taken::Needless;
        }
        self.install = Some(Install { id, configuration, stage: InstallStage::Taken });
        Taken::Installing
    }

    /// The state of the snapshot that a turn has said to install is in place, and these are its
    /// members. Its group is proven.
    ///
    /// # Errors
    /// They are not the members that raft has been told of. This member must stop.
    pub(crate) fn installed(&mut self, members: &Members) -> Result<(), ConsensusFault> {
        let install = self.install.take().expect("a turn has said to install one");
        assert_eq!(install.stage, InstallStage::Proven, "the log has not proven it");
        let index = install.id.index;
        let found = Configuration::of(members);
        if found != install.configuration {
            let why = format!("a snapshot of {found:?} was sent as {:?}", install.configuration);
            return Err(self.fault.insert(ConsensusFault::Membership { index, why }).clone());
        }
        (self.members, self.configuration) = (members.clone(), found);
        self.heard.retain(|id, _| !members.is_removed(*id));
        self.with_raft(|raw| raw.advance_apply_to(index.get()));
        self.evict();
        Ok(())
    }

    /// Whether a turn may come as far as snapshots go. One that brings a snapshot comes alone: all
    /// before it is on disk, and applied.
    pub(super) fn may_turn(&self) -> bool {
        match self.install.as_ref().map(|install| install.stage) {
            None => true,
            Some(InstallStage::Taken) => {
                self.pending.is_empty() && self.handed == self.applied_index()
            }
            Some(InstallStage::Logged(_) | InstallStage::Proven) => false,
        }
    }

    /// Where the log begins anew by this batch, if it brings a snapshot.
    pub(super) fn base_of(ready: &raft::Ready) -> Option<wal::Base> {
        let metadata = ready.snapshot().get_metadata();
        (!ready.snapshot().is_empty())
            .then_some(wal::Base { index: LogIndex(metadata.index), term: Term(metadata.term) })
    }

    /// A batch brings a snapshot: from here on raft's log begins behind it.
    pub(super) fn begin_install(&mut self, ready: &raft::Ready) -> Option<SnapshotId> {
        let base = Self::base_of(ready)?;
        let install = self.install.as_mut().expect("raft has none that it was not handed");
        assert_eq!((install.id.index, install.id.term), (base.index, base.term));
        install.stage = InstallStage::Logged(self.group);
        let id = install.id;
        self.raw.mut_store().begin_anew(base);
        self.handed = base.index;
        Some(id)
    }

    /// The log has proven everything up to a group.
    pub(super) fn prove_install(&mut self, group: u64) {
        if let Some(install) = &mut self.install
            && let InstallStage::Logged(carrier) = install.stage
            && carrier <= group
        {
            install.stage = InstallStage::Proven;
        }
    }
}
