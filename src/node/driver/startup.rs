//! The start of a node: founding a cluster, or continuing from the log.

use std::sync::Arc;

use super::{Driver, DriverStage, Fatal, Recording};
use crate::consensus::{Consensus, ConsensusConfig};
use crate::model::{Command, Members, Moment, PeerMessage};
use crate::node::settings::Settings;
use crate::wal;

impl Driver {
    /// Advances the founding of the cluster, on a member that does not take part in consensus yet.
    pub(super) fn found(&mut self, now: Moment) {
        self.report_founding(now);
        let founders = match &self.stage {
            DriverStage::Founding(founding) => founding.done(),
            DriverStage::Restoring { .. } => None,
            DriverStage::Recording(_) | DriverStage::Running(_) => return,
        };
        if let Some(founders) = founders {
            let group = wal::Group { founding: Some(founders.clone()), ..wal::Group::default() };
            self.stage = DriverStage::Recording(Recording::Founders(founders));
            self.io.log.push(group);
        } else if self.timing.is_hello_due(now, self.shared.settings.heartbeat) {
            for peer in self.membership.roster.peers() {
                let message = match self.stage {
                    DriverStage::Restoring { least, .. } => PeerMessage::SnapshotWanted { least },
                    _ => PeerMessage::Hello(self.identity.hello(peer)),
                };
                self.send(peer, message);
            }
        }
    }

    /// Logs the founding members for which this member waits.
    fn report_founding(&mut self, now: Moment) {
        let DriverStage::Founding(founding) = &mut self.stage else { return };
        let Some(waits_for) = founding.report(now) else { return };
        let waiting_for = self.membership.roster.places(&waits_for).join(", ");
        tracing::warn!(
            node = self.my_name(),
            waiting_for,
            "the cluster is not founded yet: waiting for {waiting_for}"
        );
    }

    /// Continues the start once the record that must precede consensus is durable.
    pub(super) fn recorded(&mut self, recording: Recording) -> Result<(), Fatal> {
        match recording {
            Recording::Founders(founders) => {
                self.machine.found(Members::founded(&founders));
                let members = founders.len();
                self.identity.founded(founders);
                tracing::info!(node = self.my_name(), members, "founded a new cluster");
                // In a restored cluster, the applied index is higher than that of the synthetic
                // founding entry.
                let commit = self.machine.applied();
                self.start_consensus(wal::HardState { commit, ..wal::HardState::default() })?;
                for peer in self.membership.roster.peers() {
                    self.send(peer, PeerMessage::Hello(self.identity.hello(peer)));
                }
                Ok(())
            }
            Recording::Base(hard_state) => {
                self.start_consensus(hard_state)?;
                self.revoke_earlier_leases();
                Ok(())
            }
        }
    }

    pub(super) fn start_consensus(&mut self, hard_state: wal::HardState) -> Result<(), Fatal> {
        self.found_members();
        let settings = &self.shared.settings;
        let config = ConsensusConfig {
            uncommitted_bytes_max: settings.uncommitted_bytes_max(),
            ..ConsensusConfig::new(
                settings.node,
                Members::clone(self.machine.members()),
                Settings::TICKS_PER_HEARTBEAT as usize,
                settings.election_ticks() as usize,
                Arc::clone(&self.shared.env.entropy),
            )
        };
        let applied = self.machine.applied();
        let mut consensus = Consensus::new(config, self.io.log_reader.clone(), hard_state, applied)
            .map_err(|fault| fault.to_string())?;
        consensus.offer_snapshot(self.snapshots.own.newest().map(|(id, members)| (*id, members)));
        self.stage = DriverStage::Running(Box::new(consensus));
        self.release_at_least(self.shared.reader.revision());
        Ok(())
    }

    /// Revokes the leases of the node's own sessions from earlier incarnations. Leases of other sessions expire or
    /// are resumed.
    pub(super) fn revoke_earlier_leases(&mut self) {
        let (node, incarnation) = (self.shared.settings.node, self.identity.incarnation());
        for lease in self.machine.left_behind(node, incarnation) {
            self.propose_until_applied(Command::Revoke(lease));
        }
    }
}
