//! Campaigns soon after the process of the leader has ended.

use std::time::Duration;

use super::{Driver, DriverStage};
use crate::model::{Moment, NodeId};

/// Maximum delay of an early campaign, in microseconds.
const EARLY_DELAY_MAX_MICROS: u64 = 20_000;

impl Driver {
    /// Processes the evidence that the process of a peer has ended, or its withdrawal. A node whose
    /// leader has ended campaigns after a random delay, so that two nodes rarely campaign at once.
    pub(super) fn process_ended(&mut self, peer: NodeId, has_ended: bool, now: Moment) {
        let DriverStage::Running(consensus) = &mut self.stage else { return };
        if !has_ended {
            return consensus.not_ended(peer);
        }
        if consensus.process_ended(peer) {
            let delay = self.shared.env.entropy.below(EARLY_DELAY_MAX_MICROS);
            self.contact.set_campaign(Some(now + Duration::from_micros(delay)));
            tracing::info!(
                node = self.my_name(),
                leader = self.membership.roster.name_of(peer),
                "the leader's process has ended"
            );
        }
    }

    /// Starts the early campaign when its time has come. If the disk is not ready for it, a later turn starts it.
    pub(super) fn campaign_early(&mut self, now: Moment) {
        let DriverStage::Running(consensus) = &mut self.stage else { return };
        if self.contact.campaign_at().is_some_and(|at| at <= now) && consensus.campaign_early() {
            self.contact.set_campaign(None);
        }
    }
}
