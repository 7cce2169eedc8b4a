//! Limits the growth of the state by the quota and by full disks.
//!
//! A call is checked on its own node before it is sent (`node/requests/admission.rs`). The leader checks the
//! call again, because the node's replica may lag, or the node's disk may have space while the
//! voters' disks are full. The leader also counts the entries in its log that are not applied yet.
//! Commands that cannot grow the state pass both checks.

use super::Driver;
use crate::model::{LogIndex, Moment, PeerMessage, Proposal, ProposeRejection, RequestId};
use crate::node::requests::answer::CallError;
use crate::node::requests::proposals::Batch;
use crate::node::requests::quota::{self, Values, growth};
use crate::{metrics, wal};

impl Driver {
    /// As the leader: removes and rejects requests that would make the state grow beyond the quota
    /// or the disk space.
    pub(super) fn hold_back_growth(&mut self, waiting: &mut [Batch], now: Moment) {
        let no_space = self.peers.has_no_space(self.membership.roster.members());
        let quota_bytes = self.shared.settings.quota_bytes;
        let Some(leading) = &self.leader else { return };
        let mut bytes = self.shared.reader.bytes().saturating_add(leading.in_log.growth());
        let mut coming = Values::default();
        for batch in waiting {
            let Proposal { node, incarnation, .. } = batch.proposal;
            let mut refused: Vec<(u64, ProposeRejection)> = Vec::new();
            batch.proposal.requests.retain(|(seq, command)| {
                let id = RequestId { node, incarnation, seq: *seq };
                let leading = self.leader.as_ref();
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
                let earlier = self.peers.rejected_requests.why(id);
                let why = earlier.or_else(|| quota::rejection(no_space, bytes, more, quota_bytes));
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
                self.reject_growth(RequestId { node, incarnation, seq }, why, &batch.fresh, now);
            }
        }
    }

    fn reject_growth(&mut self, id: RequestId, why: ProposeRejection, fresh: &[u64], now: Moment) {
        if id.node != self.shared.settings.node {
            self.peers.rejected_requests.add(id, why, now);
            let (incarnation, seqs) = (id.incarnation, vec![id.seq]);
            self.shared.meters.proposals_refused_total.at(reason(why)).one();
            return self.send(id.node, PeerMessage::ProposeRejected { incarnation, seqs, why });
        }
        // A request that an earlier leader may have logged stays open. Reject only requests that no
        // log can contain.
        let fresh: Vec<u64> = fresh.iter().copied().filter(|seq| *seq == id.seq).collect();
        self.to_leader.proposals.put_back([id.seq], &fresh);
        let refused = self.to_leader.proposals.reject_growth_here(id.seq, self.growth_error(why));
        if refused.is_none() {
            self.to_leader.hold(now);
        }
        self.answer_callers(refused.into_iter().collect());
    }

    /// Processes the leader's rejection of requests that would have made the state grow.
    pub(super) fn growth_rejected_by_leader(
        &mut self,
        seqs: &[u64],
        why: ProposeRejection,
        now: Moment,
    ) {
        for seq in seqs {
            let refused =
                self.to_leader.proposals.growth_rejected_by_leader(*seq, self.growth_error(why));
            self.answer_callers(refused.into_iter().collect());
            // If the request stays open, pause before it is sent to the leader again.
            if self.to_leader.proposals.is_open(*seq) {
                self.to_leader.hold(now);
            }
        }
    }

    fn growth_error(&self, why: ProposeRejection) -> CallError {
        CallError::of_growth(why, self.shared.reader.bytes(), self.shared.settings.quota_bytes)
    }

    /// Processes a report of the log about the disk space.
    pub(super) fn take_space(&mut self, space: wal::Space, now: Moment) {
        let low = space == wal::Space::Low;
        if !self.peers.space.own(low, now) {
            return;
        }
        let node = self.my_name();
        if low {
            tracing::warn!(node, "disk is full, rejecting writes that grow the state");
        } else {
            tracing::info!(node, "disk has space again");
        }
        self.shared.admission.set_disk_full(low);
        self.io.warm.set_scarce(low);
        self.report_disk_space();
    }

    fn report_disk_space(&mut self) {
        for peer in self.membership.roster.peers() {
            self.send(peer, PeerMessage::Space { low: self.peers.space.is_low() });
        }
    }

    /// Repeats the report of a full disk, and transfers leadership to a member with disk space.
    pub(super) fn handle_full_disk(&mut self, now: Moment) {
        self.peers.rejected_requests.forget(now);
        if !self.peers.space.tick(now) {
            return;
        }
        self.report_disk_space();
        // Try again to truncate the log: a peer that needed the oldest entries may not need them
        // any more.
        self.cut_log(now);
        self.hand_over_from_full_disk();
    }
}

pub(super) fn reason(why: ProposeRejection) -> metrics::Refused {
    match why {
        ProposeRejection::NotLeader(_) => metrics::Refused::NotLeader,
        ProposeRejection::Busy => metrics::Refused::Busy,
        ProposeRejection::Diverged => metrics::Refused::Diverged,
        ProposeRejection::QuotaExceeded => metrics::Refused::Quota,
        ProposeRejection::NoSpace => metrics::Refused::NoSpace,
    }
}
