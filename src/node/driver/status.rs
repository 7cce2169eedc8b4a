//! The status and the health of the node, as its driver reports them.

use std::collections::BTreeMap;

use super::{Driver, DriverStage};
use crate::consensus;
use crate::model::{LogIndex, Moment, NodeId, Term};
use crate::node::health::HealthSample;
use crate::node::health::status::{MemberStatus, NodeStatus, Progress, Role};
use crate::watch::waking;

impl Driver {
    pub(super) fn publish_status(&self) {
        let settings = &self.shared.settings;
        let (role, term, leader, commit, unreached) = match &self.stage {
            DriverStage::Running(consensus) => (
                match consensus.role() {
                    consensus::RaftRole::Leader => Role::Leader,
                    consensus::RaftRole::Candidate | consensus::RaftRole::PreCandidate => {
                        Role::Candidate
                    }
                    consensus::RaftRole::Follower => Role::Follower,
                },
                consensus.term(),
                consensus.leader(),
                consensus.commit(),
                Vec::new(),
            ),
            DriverStage::Founding(founding) => {
                (Role::Founding, Term(0), None, LogIndex(1), founding.missing())
            }
            DriverStage::Restoring { .. } => {
                (Role::Restoring, Term(0), None, LogIndex(1), Vec::new())
            }
            DriverStage::Recording(_) => (Role::Founding, Term(0), None, LogIndex(1), Vec::new()),
        };
        let status = NodeStatus {
            id: settings.node,
            name: settings.contact.name.clone(),
            role: if self.lifecycle.is_stopped() { Role::Stopped } else { role },
            version: self.machine.version(),
            term,
            leader,
            revision: self.shared.reader.revision(),
            commit,
            applied: self.machine.applied(),
            last: self.last_index(),
            members: self.member_statuses(),
            open_requests: self.to_leader.proposals.len(),
            sessions: self.sessions.len(),
            unreached,
            diverged: self.peers.digests.is_undecided(),
            digest: (self.machine.applied(), self.machine.digest()),
        };
        waking(|| {
            self.shared.state.status.send_if_modified(|old| {
                let news = *old != status;
                *old = status;
                news
            })
        });
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
        let rows = self.membership.roster.members().rows().iter();
        rows.map(|(id, member)| MemberStatus {
            id: *id,
            name: self.membership.roster.name_of(*id),
            address: self.membership.roster.address_of(*id).unwrap_or_default().to_owned(),
            endpoints: member.endpoints.clone(),
            role: member.role,
            progress: progress.get(id).copied(),
        })
        .collect()
    }

    /// Records the last contact with a leader or, on the leader, with a quorum.
    fn record_contact(&mut self, now: Moment) {
        let DriverStage::Running(consensus) = &self.stage else { return };
        let Some(leader) = consensus.leader() else { return };
        let ticks =
            consensus.ticks_since_contact().map(|ticks| u32::try_from(ticks).unwrap_or(u32::MAX));
        let at = ticks.map(|ticks| now - self.shared.settings.tick().saturating_mul(ticks));
        self.contact.touched(leader, at);
    }

    /// Records the facts for the health of the node, at each tick and when the leader changes.
    pub(super) fn record_sample(&mut self, now: Moment) {
        self.record_contact(now);
        let syncs = self.shared.meters.log_sync_seconds.histogram();
        let mut sample = HealthSample {
            slowest_sync: self.timing.slowest_sync(syncs, now),
            log_owes_since: self.timing.log_owes_since,
            disk_full: self.peers.space.is_low(),
            diverged: self.peers.digests.is_undecided(),
            rejected: self.peers.rejections.current(now),
            ..HealthSample::initial(now)
        };
        let name = |id: NodeId| self.membership.roster.name_of(id);
        match &self.stage {
            DriverStage::Founding(founding) => {
                sample.founding = Some(self.membership.roster.places(&founding.waits_for()));
            }
            DriverStage::Recording(_) => sample.founding = Some(Vec::new()),
            DriverStage::Restoring { .. } => sample.restoring = true,
            DriverStage::Running(consensus) => {
                let applied = self.machine.applied().get();
                let me = self.shared.settings.node;
                sample.leads = self.leader.is_some();
                sample.electing = consensus.leader().is_none();
                // If this member was the last leader and has stepped down, no other leader is
                // known.
                let last = self.contact.last().map(|contact| contact.leader);
                let last = consensus.leader().or(last.filter(|leader| *leader != me));
                sample.leader = last.map(name);
                sample.touched = self.contact.last().map(|contact| contact.at);
                sample.quorum_connected =
                    self.membership.is_connected_to_quorum(self.machine.members());
                let fetching = self.snapshots.own.fetching().map(|(_, id)| id.index);
                let known = consensus.known_commit().max(fetching.unwrap_or_default());
                sample.fetching = fetching.is_some();
                sample.behind = known.get().saturating_sub(applied);
            }
        }
        self.shared.meters.apply_lag_entries.set(sample.behind);
        self.shared.state.record_sample(sample);
    }
}
