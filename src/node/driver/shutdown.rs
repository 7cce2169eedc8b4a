//! The end of a node: an orderly shutdown, a failure, or a panic.

use std::time::Duration;

use super::lifecycle::{LifecycleAction, LifecycleEvent};
use super::{Driver, DriverStage, Next};
use crate::model::{Command, Moment};
use crate::node::health::status::Role;
use crate::node::requests::answer::{CallError, StopReason};
use crate::watch::waking;

/// Maximum time for which a stopping node waits until its sessions have ended and another leader is
/// elected.
const FAREWELL: Duration = Duration::from_millis(400);

impl Driver {
    /// Processes an event that may stop the node at the end of this turn.
    pub(super) fn lifecycle_event(&mut self, event: LifecycleEvent, now: Moment) {
        match self.lifecycle.apply(event) {
            LifecycleAction::CloseSessions => {
                for lease in self.sessions.close_all(now) {
                    self.propose_until_applied(Command::Revoke(lease));
                }
            }
            LifecycleAction::Nothing | LifecycleAction::Stop(_) => {}
        }
    }

    /// Returns whether a node that is shutting down has finished, or has waited long enough.
    pub(super) fn is_farewell_over(&mut self, now: Moment) -> bool {
        let Some(farewell) = self.lifecycle.farewell() else { return false };
        let waited = now.since(farewell.began);
        let is_writing = self.to_leader.proposals.len() > 0;
        if is_writing && self.contact.leader().is_some() && waited < FAREWELL {
            return false;
        }
        let DriverStage::Running(consensus) = &mut self.stage else { return true };
        if self.leader.is_none() || waited > FAREWELL * 2 {
            return true;
        }
        if !farewell.transferred {
            let Some(peer) = consensus.best_transferee() else { return true };
            consensus.transfer_to(peer);
            self.lifecycle_event(LifecycleEvent::Transferring, now);
        }
        false
    }

    /// Fails all waiting calls and ends the sessions, after the driver has panicked in the middle
    /// of a turn.
    pub(crate) fn abandon(&mut self, reason: &StopReason) {
        self.lifecycle_event(LifecycleEvent::Failed(reason.clone()), self.shared.now());
        // Run these steps separately: after the panic the state may be inconsistent, so each step
        // may panic again.
        waking(|| self.end_sessions(reason));
        waking(|| self.end_calls(reason));
        waking(|| self.shared.state.status.send_modify(|status| status.role = Role::Stopped));
        self.io.close(reason);
        self.io.warm.abandon();
    }

    fn end_calls(&mut self, reason: &StopReason) {
        let closed = self.to_leader.stop_writes(reason);
        self.answer_callers(closed);
        self.to_leader.fail_queries(reason);
    }

    fn end_sessions(&mut self, reason: &StopReason) {
        for reply in self.sessions.stop(self.shared.now()) {
            let reason = reason.clone();
            reply.send(Err(CallError::Stopped { reason, maybe_applied: false }));
        }
    }

    /// Stops the node. The order of the steps makes sure that each waiting caller gets the reason.
    pub(super) fn stop(&mut self, reason: StopReason) -> Next {
        self.publish_status();
        self.end_calls(&reason);
        // Record the stop before ending the sessions, so that lock holders see a stopped node as
        // the reason, and not an ended session.
        self.shared.stop(reason.clone());
        self.end_sessions(&reason);
        if reason == StopReason::Shutdown {
            self.io.warm.stop(self.machine.image());
        } else {
            self.io.warm.abandon();
        }
        self.io.close(&reason);
        Next::Stopped
    }
}
