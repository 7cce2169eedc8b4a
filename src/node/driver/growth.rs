//! Limits the growth of the state by the quota and by full disks.
//!
//! A call is checked on its own node before it is sent (`Shared::write`). The leader checks the
//! call again, because the node's replica may lag, or the node's disk may have space while the
//! voters' disks are full. The leader also counts the entries in its log that are not applied yet.
//! Commands that cannot grow the state pass both checks.

use super::*;
use crate::metrics;
use crate::model::ProposeRejection as Why;
use crate::node::quota::{Values, growth};

impl Driver {
    /// As the leader: removes the requests that must not grow the state now, and rejects them.
    pub(super) fn hold_back_growth(&mut self, waiting: &mut [Batch], now: Moment) {
        let no_space = self.no_space();
        let quota = self.shared.settings.quota_bytes;
        let Some(leading) = &self.leading else { return };
        let mut bytes = self.shared.reader.bytes().saturating_add(leading.in_log.growth());
        let mut coming = Values::default();
        for batch in waiting {
            let Proposal { node, incarnation, .. } = batch.proposal;
            let mut refused: Vec<(u64, Why)> = Vec::new();
            batch.proposal.requests.retain(|(seq, command)| {
                let id = RequestId { node, incarnation, seq: *seq };
                let leading = self.leading.as_ref();
                let in_log = leading.map(|leading| &leading.in_log);
                // The request is already in the log and will not be proposed again.
                if in_log.is_some_and(|in_log| in_log.contains(&id)) {
                    return true;
                }
                let len_of = |key: &[u8]| {
                    let proposed = in_log.map_or(0, |in_log| in_log.values().len_of(key));
                    coming.len_of(key).max(proposed).max(self.shared.reader.value_len(key))
                };
                let Some(more) = growth(command, &len_of) else { return true };
                let why =
                    self.rejected_requests.why(id).or(no_space).or_else(|| {
                        (bytes.saturating_add(more) > quota).then_some(Why::QuotaExceeded)
                    });
                let Some(why) = why else {
                    bytes = bytes.saturating_add(more);
                    coming.add(command, LogIndex(0));
                    return true;
                };
                // If the request was already applied, it has a result and must not be rejected.
                if self.machine.answer(id).is_none() {
                    refused.push((*seq, why));
                }
                false
            });
            for (seq, why) in refused {
                self.refuse_growth(RequestId { node, incarnation, seq }, why, &batch.fresh, now);
            }
        }
    }

    fn refuse_growth(&mut self, id: RequestId, why: Why, fresh: &[u64], now: Moment) {
        if id.node != self.shared.settings.node {
            self.rejected_requests.add(id, why, now);
            let (incarnation, seqs) = (id.incarnation, vec![id.seq]);
            self.shared.meters.proposals_refused_total.at(reason(why)).one();
            return self.send(id.node, PeerMessage::ProposeRejected { incarnation, seqs, why });
        }
        // A request that an earlier leader may have logged stays open. Reject only requests that no
        // log can contain.
        let fresh: Vec<u64> = fresh.iter().copied().filter(|seq| *seq == id.seq).collect();
        self.proposals.put_back([id.seq], &fresh);
        let refused = self.proposals.refuse_growth(id.seq, self.growth_error(why));
        if refused.is_none() {
            self.hold(now);
        }
        self.tell(refused.into_iter().collect());
    }

    /// Processes the leader's rejection of requests that would have made the state grow.
    pub(super) fn growth_refused(&mut self, seqs: &[u64], why: Why, now: Moment) {
        for seq in seqs {
            let refused = self.proposals.refused_growth(*seq, self.growth_error(why));
            self.tell(refused.into_iter().collect());
            // Only requests that stay open are repeated later, so only they need a pause.
            if self.proposals.is_open(*seq) {
                self.hold(now);
            }
        }
    }

    fn growth_error(&self, why: Why) -> CallError {
        match why {
            Why::NoSpace => CallError::NoSpace,
            _ => CallError::QuotaExceeded {
                bytes: self.shared.reader.bytes(),
                quota: self.shared.settings.quota_bytes,
            },
        }
    }

    /// If no request that grows the state can be proposed now, returns the reason. A leader whose
    /// own disk is full transfers its leadership if it can.
    fn no_space(&self) -> Option<Why> {
        let members = self.roster.members();
        let quorum = self.space.quorum_has_room(members.voters())
            && self.space.quorum_has_room(members.outgoing().iter().copied());
        (self.space.is_low() || !quorum).then_some(Why::NoSpace)
    }

    /// Processes a report of the log about the disk space.
    pub(super) fn take_space(&mut self, space: wal::Space, now: Moment) {
        let low = space == wal::Space::Low;
        if !self.space.own(low, now) {
            return;
        }
        let node = self.my_name();
        if low {
            tracing::warn!(node, "disk is full, rejecting writes that grow the state");
        } else {
            tracing::info!(node, "disk has space again");
        }
        self.shared.set_low(low);
        self.warm.set_scarce(low);
        self.say_space();
    }

    fn say_space(&mut self) {
        for peer in self.roster.peers() {
            self.send(peer, PeerMessage::Space { low: self.space.is_low() });
        }
    }

    /// Repeats the report of a full disk, and transfers leadership to a member with disk space.
    pub(super) fn mind_space(&mut self, now: Moment) {
        self.rejected_requests.forget(now);
        if !self.space.tick(now) {
            return;
        }
        self.say_space();
        // Try again to truncate the log: a peer that needed its front may not need it any more.
        self.cut_log(now);
        let DriverStage::Running(consensus) = &mut self.stage else { return };
        if self.leading.is_none() || consensus.is_transferring() {
            return;
        }
        let (space, members) = (&self.space, self.roster.members());
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

/// Returns the metric label for a rejection.
pub(super) fn reason(why: Why) -> metrics::Refused {
    match why {
        Why::NotLeader(_) => metrics::Refused::NotLeader,
        Why::Busy => metrics::Refused::Busy,
        Why::Diverged => metrics::Refused::Diverged,
        Why::QuotaExceeded => metrics::Refused::Quota,
        Why::NoSpace => metrics::Refused::NoSpace,
    }
}
