//! What may make the state grow, and when it may not: the quota, and disks that are full.
//!
//! A call is judged where it is made, before it is handed over (`Shared::write`). The leader judges once
//! more, for nodes whose replica is behind or whose disk has room where the voters' have none, and counts
//! what is in its log and not applied yet. What cannot grow the state passes both, always.

use super::*;
use crate::metrics;
use crate::model::ProposeRejection as Why;
use crate::node::quota::{Values, growth};

impl Driver {
    /// As the leader: takes out of what is to be proposed what may not grow the state now, and tells
    /// whoever wants it.
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
                // Counted when it was proposed; it is not proposed again.
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
                // What an entry held is answered.
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
        // What an earlier leader may have is tried on; what nobody has seen is refused.
        let fresh: Vec<u64> = fresh.iter().copied().filter(|seq| *seq == id.seq).collect();
        self.proposals.put_back([id.seq], &fresh);
        let refused = self.proposals.refuse_growth(id.seq, self.growth_error(why));
        if refused.is_none() {
            self.hold(now);
        }
        self.tell(refused.into_iter().collect());
    }

    /// The leader has refused requests of this node that would have made the state grow.
    pub(super) fn growth_refused(&mut self, seqs: &[u64], why: Why, now: Moment) {
        for seq in seqs {
            let refused = self.proposals.refused_growth(*seq, self.growth_error(why));
            self.tell(refused.into_iter().collect());
            // What is tried on comes again in a while; what is refused holds nothing else up.
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

    /// Why nothing that grows can be proposed now, if so. A leader whose own disk is full does not lead
    /// for long, if there is anybody else.
    fn no_space(&self) -> Option<Why> {
        let members = self.roster.members();
        let quorum = self.space.quorum_has_room(members.voters())
            && self.space.quorum_has_room(members.outgoing().iter().copied());
        (self.space.is_low() || !quorum).then_some(Why::NoSpace)
    }

    /// What this node's log says about its disk.
    pub(super) fn take_space(&mut self, space: wal::Space, now: Moment) {
        let low = space == wal::Space::Low;
        if !self.space.own(low, now) {
            return;
        }
        let node = self.my_name();
        if low {
            tracing::warn!(node, "the disk is full: writes that grow the state are refused");
        } else {
            tracing::info!(node, "the disk has room again");
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

    /// Says again that the disk is full, and hands leadership to somebody who has room.
    pub(super) fn mind_space(&mut self, now: Moment) {
        self.rejected_requests.forget(now);
        if !self.space.tick(now) {
            return;
        }
        self.say_space();
        // Somebody may have needed the log's front when there was room, and does not any more.
        self.cut_log(now);
        let Stage::Running(consensus) = &mut self.stage else { return };
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
        // Among equals the lowest id.
        let best =
            peers.iter().filter(fit).max_by_key(|peer| (peer.matched, std::cmp::Reverse(peer.id)));
        if let Some(peer) = best.map(|peer| peer.id) {
            tracing::warn!(%peer, "the disk is full: leadership is handed over");
            consensus.transfer_to(peer);
        }
    }
}

/// What a rejection is counted as.
pub(super) fn reason(why: Why) -> metrics::Refused {
    match why {
        Why::NotLeader(_) => metrics::Refused::NotLeader,
        Why::Busy => metrics::Refused::Busy,
        Why::Diverged => metrics::Refused::Diverged,
        Why::QuotaExceeded => metrics::Refused::Quota,
        Why::NoSpace => metrics::Refused::NoSpace,
    }
}
