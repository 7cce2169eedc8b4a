//! The state of a node, as its driver reports it: the status, the health, and the reason for which it has stopped.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::model::Moment;

use crate::node::health::status::NodeStatus;
use crate::node::health::{Health, HealthSample};
use crate::node::requests::answer::{CallError, StopReason};

/// The reported state of a node.
pub(crate) struct NodeState {
    pub(crate) status: watch::Sender<NodeStatus>,
    stopped: watch::Sender<Option<StopReason>>,
    /// The facts that the driver recorded at its last tick.
    sample: Mutex<HealthSample>,
}

impl NodeState {
    pub(in crate::node) fn new(status: NodeStatus, now: Moment) -> Self {
        Self {
            status: watch::Sender::new(status),
            stopped: watch::Sender::new(None),
            sample: Mutex::new(HealthSample::initial(now)),
        }
    }

    /// Returns the reason for which the node has stopped, if it has.
    pub(in crate::node) fn stop_reason(&self) -> Option<StopReason> {
        self.stopped.borrow().clone()
    }

    /// Returns a receiver that is notified when the node stops.
    pub(in crate::node) fn watch_stop(&self) -> watch::Receiver<Option<StopReason>> {
        self.stopped.subscribe()
    }

    /// Records that the node has stopped. Returns false if this was recorded before.
    pub(in crate::node) fn stop(&self, reason: &StopReason) -> bool {
        self.stopped.send_if_modified(|stopped| {
            let first = stopped.is_none();
            stopped.get_or_insert_with(|| reason.clone());
            first
        })
    }

    /// Records the facts of the driver.
    pub(in crate::node) fn record_sample(&self, sample: HealthSample) {
        *self.sample.lock().unwrap_or_else(PoisonError::into_inner) = sample;
    }

    pub(in crate::node) fn health(&self, now: Moment, election_timeout: Duration) -> Health {
        let sample = self.sample.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Health::evaluate(sample, self.stop_reason(), now, election_timeout)
    }

    /// Returns the error for a call whose deadline has passed without an effect. While the cluster
    /// is not founded, the error names the members that the node waits for.
    pub(in crate::node) fn late(&self) -> CallError {
        let sample = self.sample.lock().unwrap_or_else(PoisonError::into_inner);
        match &sample.founding {
            Some(waiting_for) if !waiting_for.is_empty() => {
                CallError::NotFounded { waiting_for: waiting_for.clone() }
            }
            _ => CallError::Deadline { maybe_applied: false },
        }
    }
}
