//! Metrics of the driver and of completed requests, and the log lines about slow ones.

use super::*;
use crate::metrics::{self, Ending, PeerLag, PeerLink, PeerQueue};
use crate::node::health::HealthSample;
use crate::node::request_trace::{BatchTimes, RequestTrace, Stages, ending};
use crate::node::slow::Slow;
use crate::node::status::{MemberStatus, Progress};

impl Driver {
    /// Answers the callers of requests that have ended without being applied by this node.
    pub(super) fn tell(&mut self, closed: Vec<Closed>) {
        for closed in closed {
            self.close(closed, None);
        }
    }

    /// Answers the callers of requests that a batch of `entries` has decided.
    pub(super) fn tell_applied(&mut self, closed: Vec<Closed>, times: BatchTimes, entries: usize) {
        for closed in closed {
            self.close(closed, Some(times));
        }
        let now = self.shared.now();
        let took = now.since(times.came);
        self.shared.meters.apply_seconds.add(took);
        let judged = self.shared.slow_applies.judge(took, now);
        if judged != Slow::No {
            self.shared.meters.slow_applies_total.one();
        }
        if let Slow::Line { passed_over } = judged {
            let (applying, notifying) = (times.visible.since(times.came), now.since(times.visible));
            tracing::warn!(
                node = self.my_name(),
                entries,
                ?took,
                ?applying,
                ?notifying,
                passed_over,
                "slow apply: a batch of entries took {took:.1?}"
            );
        }
    }

    /// As the leader: records the time at which an entry was proposed.
    pub(super) fn proposed(&mut self, term: Term, index: LogIndex) {
        tracing::trace!(%index, %term, "entry proposed");
        let now = self.shared.now();
        if let Some(leading) = &mut self.leading {
            leading.flights.push_back((index, now));
        }
    }

    /// Records that the entries up to `index` are committed.
    pub(super) fn committed(&mut self, index: LogIndex, now: Moment) {
        let Some(leading) = &mut self.leading else { return };
        while let Some((_, proposed)) = leading.flights.front().filter(|(at, _)| *at <= index) {
            self.shared.meters.entry_commit_seconds.add(now.since(*proposed));
            leading.flights.pop_front();
        }
    }

    fn close(&self, closed: Closed, times: Option<BatchTimes>) {
        self.shared.release(closed.bytes);
        let (trace, result, teller) = closed.split();
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
        if let Some(passed_over) = self.shared.is_slow(took, now) {
            self.say_slow(&trace, end, took, stages, passed_over, now);
        }
        teller.send(result);
    }

    /// Logs a slow request with the duration of each stage, and with the number of slow requests
    /// that were not logged since the last line.
    fn say_slow(
        &self,
        trace: &RequestTrace,
        end: Ending,
        took: Duration,
        stages: Option<Stages>,
        passed_over: u64,
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
                ?applying, ?notifying, attempts, passed_over,
                "slow request ({kind}): took {took:.1?}, mostly {most}"
            );
            return;
        }
        // The request has not completed, so only the stage that it was in is known.
        let owed = self.log_owes_since.map(|since| now.since(since)).unwrap_or_default();
        let at = match trace.sent {
            None => metrics::Stage::Waiting,
            // The request cannot be decided on this node before its entry is on this node's disk.
            // So a slow disk is the likely cause.
            Some(sent) if owed > now.since(sent) / 2 => metrics::Stage::Logging,
            Some(_) => metrics::Stage::Replicating,
        };
        let leader = self.known_leader.1.map(|id| self.roster.name_of(id));
        let place = trace.place(at);
        tracing::warn!(
            parent: span,
            node, kind, request, outcome, ?took, at = at.as_str(), leader, log_owes = ?owed, attempts, passed_over,
            "slow request ({kind}): given up after {took:.1?}, {place}"
        );
    }

    pub(super) fn last_index(&self) -> LogIndex {
        match &self.stage {
            DriverStage::Running(consensus) => consensus.last_index(),
            _ => self.machine.applied(),
        }
    }

    /// Returns the members as of the applied entries, with their progress if this node leads.
    pub(super) fn member_statuses(&self) -> Vec<MemberStatus> {
        let mut progress = BTreeMap::new();
        if let DriverStage::Running(consensus) = &self.stage
            && consensus.is_leader()
        {
            let last = consensus.last_index();
            let of = |peer: &consensus::PeerStatus| Progress {
                matched: peer.matched,
                behind: last.get().saturating_sub(peer.matched.get()),
                active: peer.active,
            };
            progress.extend(consensus.peers().iter().map(|peer| (peer.id, of(peer))));
            let (matched, behind, active) = (last, 0, true);
            progress.insert(self.shared.settings.node, Progress { matched, behind, active });
        }
        let rows = self.roster.members().rows().iter();
        rows.map(|(id, member)| MemberStatus {
            id: *id,
            name: self.roster.name_of(*id),
            address: self.roster.address_of(*id).unwrap_or_default().to_owned(),
            endpoints: member.endpoints.clone(),
            role: member.role,
            progress: progress.get(id).copied(),
        })
        .collect()
    }

    /// Records the last contact with a leader or, on the leader, with a quorum. The record is kept
    /// after the connection is lost or the term ends, because the next election may succeed soon.
    fn record_contact(&mut self, now: Moment) {
        let DriverStage::Running(consensus) = &self.stage else { return };
        let Some(leader) = consensus.leader() else { return };
        let ticks = consensus.out_of_touch().map(|ticks| u32::try_from(ticks).unwrap_or(u32::MAX));
        let at = ticks.map(|ticks| now - self.shared.settings.tick().saturating_mul(ticks));
        let last = self.last_contact.map(|contact| contact.at);
        self.last_contact = at.max(last).map(|at| Contacted { leader, at });
    }

    /// Returns whether this member and its connected peers are a majority of the voters.
    fn is_connected_to_quorum(&self) -> bool {
        let me = self.shared.settings.node;
        let members = self.machine.members();
        let is_there = |id: &NodeId| *id == me || self.peer_versions.contains_key(id);
        let (voters, there) = (members.voters().count(), members.voters().filter(is_there).count());
        there > voters / 2
    }

    /// Records the facts for the health of the node, at each tick and when the leader changes.
    pub(super) fn record_sample(&mut self, now: Moment) {
        self.record_contact(now);
        let syncs = self.shared.meters.log_sync_seconds.histogram();
        let mut sample = HealthSample {
            slowest_sync: self.syncs.slowest(syncs, now),
            log_owes_since: self.log_owes_since,
            disk_full: self.space.is_low(),
            diverged: self.digests.is_undecided(),
            rejected: self.peer_rejections.current(now),
            ..HealthSample::initial(now)
        };
        let name = |id: NodeId| self.roster.name_of(id);
        match &self.stage {
            DriverStage::Founding(founding) => {
                sample.founding = Some(self.roster.places(&founding.waits_for()));
            }
            DriverStage::Recording(_) => sample.founding = Some(Vec::new()),
            DriverStage::Restoring { .. } => sample.restoring = true,
            DriverStage::Running(consensus) => {
                let applied = self.machine.applied().get();
                let me = self.shared.settings.node;
                sample.leads = self.leading.is_some();
                sample.electing = consensus.leader().is_none();
                // If this member led and has stepped down, there is no other leader to name.
                let last = self.last_contact.map(|contact| contact.leader);
                let last = consensus.leader().or(last.filter(|leader| *leader != me));
                sample.leader = last.map(name);
                sample.touched = self.last_contact.map(|contact| contact.at);
                sample.quorum_connected = self.is_connected_to_quorum();
                let fetching = self.snapshots.fetching().map(|(_, id)| id.index);
                let known = consensus.known_commit().max(fetching.unwrap_or_default());
                sample.fetching = fetching.is_some();
                sample.behind = known.get().saturating_sub(applied);
            }
        }
        self.shared.meters.apply_lag_entries.set(sample.behind);
        self.shared.record_sample(sample);
    }

    /// Updates the gauges that only the driver can read, once a tick. `Shared::read_gauges` updates
    /// the other gauges.
    pub(super) fn read_gauges(&self) {
        let meters = &self.shared.meters;
        meters.open_requests.count(self.proposals.len());
        meters.unsent_requests.count(self.proposals.unsent());
        meters
            .open_reads
            .count(self.reads.len() + self.at_least.values().map(Vec::len).sum::<usize>());
        meters.log_queue_groups.count(self.log.len());
        meters.snapshot_queue_jobs.count(self.snapshot_queue.len());
        let queued = |peer: NodeId| PeerQueue {
            peer: self.roster.name_of(peer),
            bytes: self.network.queued_bytes(peer) as u64,
        };
        meters.peer_queue_bytes.set(self.roster.peers().into_iter().map(queued).collect());
        let link = |peer: NodeId| PeerLink {
            peer: self.roster.name_of(peer),
            connected: self.peer_versions.contains_key(&peer),
        };
        meters.peer_connected.set(self.roster.peers().into_iter().map(link).collect());
        meters.disk_full.set(self.space.is_low().into());
        meters.sessions.count(self.sessions.len());
        meters.is_leader.set(self.leading.is_some().into());
        meters.has_leader.set(self.known_leader.1.is_some().into());
        meters.term.set(self.known_leader.0.get());
        meters.applied_index.set(self.machine.applied().get());
        let DriverStage::Running(consensus) = &self.stage else { return };
        meters.commit_index.set(consensus.commit().get());
        let last = consensus.last_index();
        let lag = |peer: &consensus::PeerStatus| PeerLag {
            peer: self.roster.name_of(peer.id),
            entries: last.get().saturating_sub(peer.matched.get()),
            active: peer.active,
        };
        meters.peer_lag_entries.set(consensus.peers().iter().map(lag).collect());
    }
}
