//! The end of a node: an orderly shutdown, a failure, or a panic.

use super::*;

impl Driver {
    /// Returns whether a node that is shutting down has finished, or has waited long enough.
    pub(super) fn is_done(&mut self, now: Moment) -> bool {
        let Some(stopping) = &mut self.stopping else { return false };
        let waited = now.since(stopping.began);
        if self.proposals.len() > 0 && self.known_leader.1.is_some() && waited < FAREWELL {
            return false;
        }
        let DriverStage::Running(consensus) = &mut self.stage else { return true };
        if self.leading.is_none() || waited > FAREWELL * 2 {
            return true;
        }
        if !stopping.transferred {
            let Some(peer) = consensus.best_transferee() else { return true };
            consensus.transfer_to(peer);
            stopping.transferred = true;
        }
        false
    }

    /// Releases everything that waits for the driver, after it has panicked in the middle of a turn.
    pub(crate) fn abandon(&mut self, reason: &StopReason) {
        self.stopped = true;
        // Run these steps separately: after the panic the state may be inconsistent, so each step
        // may panic again.
        waking(|| self.end_sessions(reason));
        waking(|| self.end_calls(reason));
        waking(|| self.shared.status.send_modify(|status| status.role = Role::Stopped));
        self.log.close();
        self.snapshot_queue.close();
        self.backups.close(reason);
        self.warm.abandon();
    }

    /// Fails all calls.
    fn end_calls(&mut self, reason: &StopReason) {
        let closed = self.proposals.stop(reason);
        self.tell(closed);
        self.reads.stop(reason);
        self.lease_calls.stop(reason);
        self.steps.stop(reason);
        let waiting = std::mem::take(&mut self.at_least).into_values().flatten();
        let transfers = std::mem::take(&mut self.transfers).into_iter().map(|(.., reply)| reply);
        for reply in waiting.map(|asking| asking.reply).chain(transfers) {
            let reason = reason.clone();
            reply.send(Err(CallError::Stopped { reason, maybe_applied: false }));
        }
    }

    fn end_sessions(&mut self, reason: &StopReason) {
        for reply in self.sessions.stop(self.shared.now()) {
            let reason = reason.clone();
            reply.send(Err(CallError::Stopped { reason, maybe_applied: false }));
        }
    }

    pub(super) fn stop(&mut self, reason: StopReason) -> Next {
        self.stopped = true;
        self.publish_status();
        self.end_calls(&reason);
        // Record the stop before ending the sessions, so that lock holders see a stopped node as
        // the reason, and not an ended session.
        self.shared.stop(reason.clone());
        self.end_sessions(&reason);
        if reason == StopReason::Shutdown {
            self.warm.stop(self.machine.image());
        } else {
            self.warm.abandon();
        }
        self.log.close();
        self.snapshot_queue.close();
        self.backups.close(&reason);
        Next::Stopped
    }
}
