//! Transfers of the leadership: at the request of a caller, and away from a leader whose disk is full or hangs.

use super::{Driver, DriverStage};
use crate::consensus;
use crate::model::{Moment, NodeId};
use crate::node::requests::answer::{CallError, ReplyTo};

impl Driver {
    /// Transfers leadership to a member or, if `to` is `None`, to the best candidate.
    pub(super) fn transfer(&mut self, to: Option<NodeId>, deadline: Moment, reply: ReplyTo<()>) {
        let DriverStage::Running(consensus) = &mut self.stage else {
            return reply.send(Err(CallError::NoTransferee));
        };
        if self.leader.is_none() || to == Some(self.shared.settings.node) {
            return reply.send(Ok(()));
        }
        mutant!(B57, return reply.send(Ok(())));
        if !self.to_leader.has_room_for_transfer() {
            return reply.send(Err(CallError::Busy));
        }
        match to.or_else(|| consensus.best_transferee()) {
            Some(peer) if consensus.transfer_to(peer) => {
                self.to_leader.wait_for_transfer(deadline, to, reply);
            }
            _ => reply.send(Err(CallError::NoTransferee)),
        }
    }

    /// Transfers leadership if the log of this node does not respond. A leader without its log can
    /// still send heartbeats, but commits nothing.
    pub(super) fn hand_over_from_dead_disk(&mut self, now: Moment) {
        let patience = self.shared.settings.election_timeout * 2;
        if let DriverStage::Running(consensus) = &mut self.stage
            && self.timing.is_log_stuck(now, patience)
            && self.leader.is_some()
            && !consensus.is_transferring()
            && !mutant!(B43)
            && let Some(peer) = consensus.best_transferee()
        {
            tracing::warn!(%peer, "disk does not respond, transferring leadership");
            consensus.transfer_to(peer);
        }
    }

    /// Transfers leadership away from a full disk, to the most up-to-date member with disk space.
    pub(super) fn hand_over_from_full_disk(&mut self) {
        let DriverStage::Running(consensus) = &mut self.stage else { return };
        if self.leader.is_none() || consensus.is_transferring() {
            return;
        }
        let (space, members) = (&self.peers.space, self.membership.roster.members());
        let fit = |peer: &&consensus::PeerStatus| {
            peer.active
                && peer.state != consensus::PeerState::Snapshot
                && members.is_voter(peer.id)
                && space.has_room(peer.id)
        };
        let peers = consensus.peers();
        // Of equally good members, choose the member with the lowest id.
        let best =
            peers.iter().filter(fit).max_by_key(|peer| (peer.matched, std::cmp::Reverse(peer.id)));
        if let Some(peer) = best.map(|peer| peer.id) {
            tracing::warn!(%peer, "disk is full, transferring leadership");
            consensus.transfer_to(peer);
        }
    }
}
