//! Metrics of the driver and of completed requests, and the log lines about slow ones.

use std::time::Duration;

use super::{Driver, DriverStage};
use crate::metrics::{Ending, NodeThread, PeerLag, PeerLink, PeerQueue};
use crate::model::{LogIndex, Moment, NodeId, Term};
use crate::node::requests::proposals::Closed;
use crate::node::requests::request_trace::{BatchTimes, RequestTrace, Stages, ending};
use crate::node::requests::slow::Slow;
use crate::{consensus, metrics};

impl Driver {
    /// Answers the callers of requests that have ended without being applied by this node.
    pub(super) fn answer_callers(&mut self, closed: Vec<Closed>) {
        for closed in closed {
            self.close(closed, None);
        }
    }

    /// Answers the callers of requests that a batch of `entries` has decided.
    pub(super) fn answer_applied(
        &mut self,
        closed: Vec<Closed>,
        times: BatchTimes,
        entries: usize,
    ) {
        for closed in closed {
            self.close(closed, Some(times));
        }
        let now = self.shared.now();
        let took = now.since(times.received_at);
        self.shared.meters.apply_seconds.add(took);
        let slowness = self.shared.slow_applies.classify(took, now);
        if slowness != Slow::No {
            self.shared.meters.slow_applies_total.one();
        }
        if let Slow::Line { suppressed } = slowness {
            let (applying, notifying) =
                (times.visible.since(times.received_at), now.since(times.visible));
            tracing::warn!(
                node = self.my_name(),
                entries,
                ?took,
                ?applying,
                ?notifying,
                suppressed,
                "slow apply: a batch of entries took {took:.1?}"
            );
        }
    }

    /// As the leader: records the time at which an entry was proposed.
    pub(super) fn proposed(&mut self, term: Term, index: LogIndex) {
        tracing::trace!(%index, %term, "entry proposed");
        let now = self.shared.now();
        if let Some(leading) = &mut self.leader {
            leading.in_flight.push_back((index, now));
        }
    }

    /// Records that the entries up to `index` are committed.
    pub(super) fn committed(&mut self, index: LogIndex, now: Moment) {
        let Some(leading) = &mut self.leader else { return };
        while let Some((_, proposed)) = leading.in_flight.front().filter(|(at, _)| *at <= index) {
            self.shared.meters.entry_commit_seconds.add(now.since(*proposed));
            leading.in_flight.pop_front();
        }
    }

    fn close(&self, closed: Closed, times: Option<BatchTimes>) {
        self.shared.admission.release(closed.bytes);
        let (trace, result, reply) = closed.split();
        let (now, end) = (self.shared.now(), ending(&result));
        let took = now.since(trace.asked);
        self.shared.meters.ended(trace.kind, end, took);
        let stages = times.map(|times| trace.stages(times, now));
        for (stage, took) in stages.iter().flat_map(|stages| &stages.0) {
            if end == Ending::Ok {
                self.shared.meters.write_stage_seconds.at(*stage).add(*took);
            }
        }
        tracing::debug!(parent: &trace.span, outcome = end.as_str(), ?took, "request answered");
        if let Some(suppressed) = self.shared.is_slow(took, now) {
            self.log_slow_request(&trace, end, took, stages, suppressed, now);
        }
        reply.send(result);
    }

    /// Logs a slow request with the duration of each stage, and with the number of slow requests
    /// that were not logged since the last line.
    fn log_slow_request(
        &self,
        trace: &RequestTrace,
        end: Ending,
        took: Duration,
        stages: Option<Stages>,
        suppressed: u64,
        now: Moment,
    ) {
        let (kind, request, outcome) = (trace.kind.as_str(), trace.number, end.as_str());
        let (node, span, attempts) = (self.my_name(), &trace.span, trace.attempts);
        if let Some(stages) = stages {
            let most = trace.place(stages.longest());
            let [waiting, forwarding, logging, replicating, applying, notifying] =
                stages.0.map(|(_, took)| took);
            tracing::warn!(
                parent: span,
                node, kind, request, outcome, ?took, ?waiting, ?forwarding, ?logging, ?replicating,
                ?applying, ?notifying, attempts, suppressed,
                "slow request ({kind}): took {took:.1?}, mostly {most}"
            );
            return;
        }
        // The request has not completed, so only the stage that it was in is known.
        let owed = self.timing.log_owes_since.map(|since| now.since(since)).unwrap_or_default();
        let at = match trace.sent {
            None => metrics::Stage::Waiting,
            // The request cannot be decided on this node before its entry is on this node's disk.
            // So a slow disk is the likely cause.
            Some(sent) if owed > now.since(sent) / 2 => metrics::Stage::Logging,
            Some(_) => metrics::Stage::Replicating,
        };
        let leader = self.contact.leader().map(|id| self.membership.roster.name_of(id));
        let place = trace.place(at);
        tracing::warn!(
            parent: span,
            node, kind, request, outcome, ?took, at = at.as_str(), leader, log_pending = ?owed, attempts, suppressed,
            "slow request ({kind}): given up after {took:.1?}, {place}"
        );
    }

    /// Updates the gauges that only the driver can read, once a tick. `Shared::read_gauges` updates
    /// the other gauges.
    pub(super) fn read_gauges(&self) {
        let meters = &self.shared.meters;
        meters.open_requests.count(self.to_leader.proposals.len());
        meters.unsent_requests.count(self.to_leader.proposals.unsent());
        meters.open_reads.count(self.to_leader.open_reads());
        meters.log_queue_groups.count(self.io.log.len());
        meters.wakeups_total.at(NodeThread::Log).reach(self.io.log.wakeups());
        meters.snapshot_queue_jobs.count(self.io.snapshot_queue.len());
        let queued = |peer: NodeId| PeerQueue {
            peer: self.membership.roster.name_of(peer),
            bytes: self.io.network.queued_bytes(peer) as u64,
        };
        meters
            .peer_queue_bytes
            .set(self.membership.roster.peers().into_iter().map(queued).collect());
        let link = |peer: NodeId| PeerLink {
            peer: self.membership.roster.name_of(peer),
            connected: self.membership.is_connected(peer),
        };
        meters.peer_connected.set(self.membership.roster.peers().into_iter().map(link).collect());
        meters.disk_full.set(self.peers.space.is_low().into());
        meters.sessions.count(self.sessions.len());
        meters.is_leader.set(self.leader.is_some().into());
        meters.has_leader.set(self.contact.leader().is_some().into());
        meters.term.set(self.contact.term().get());
        meters.applied_index.set(self.machine.applied().get());
        let DriverStage::Running(consensus) = &self.stage else { return };
        meters.commit_index.set(consensus.commit().get());
        let last = consensus.last_index();
        let lag = |peer: &consensus::PeerStatus| PeerLag {
            peer: self.membership.roster.name_of(peer.id),
            entries: last.get().saturating_sub(peer.matched.get()),
            active: peer.active,
        };
        meters.peer_lag_entries.set(consensus.peers().iter().map(lag).collect());
    }
}
